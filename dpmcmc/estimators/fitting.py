"""``dpmcmc.fit``: from a table, its schema and an ε to a result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dpmcmc.data.formula import of_names
from dpmcmc.data.partitions import find_partitions
from dpmcmc.data.schema import Schema
from dpmcmc.data.tables import EncodedTable, Table, is_table, load_table, refuse_no_schema
from dpmcmc.engine.life import sample
from dpmcmc.engine.partitions import PartitionedRecords
from dpmcmc.engine.result import Result
from dpmcmc.engine.work import Progress
from dpmcmc.engine.work_table import work_of
from dpmcmc.engine.workers import EngineGiven, workers
from dpmcmc.errors import InputError, shown
from dpmcmc.estimators.own_units import encoded_priors
from dpmcmc.estimators.suggestion import (
    Given,
    Goal,
    ask,
    asked_epsilon,
)
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware import Normal
from dpmcmc.mechanisms.noise_aware.options import SamplerName
from dpmcmc.mechanisms.noise_aware.regression_plan import MOST_RELEASED
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.samplers.base import Sampler
from dpmcmc.targets.base import Target
from dpmcmc.targets.counts import PoissonRegression
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.ordinal import OrdinalRegression
from dpmcmc.targets.softmax import SoftmaxRegression

#: Prior standard deviation of a coefficient where no schema says what its units are, for rows of norm at most 1; and
#: of the effect of half a column's range where one does, in units of the predictor. Released numbers multiply it
#: (``prior_scale: evidence``). Noise of a real label on [-1, 1]; a fit learns its own.
PRIOR_SCALE, _EFFECT, _NOISE_SCALE = 2.0, 1.0, 0.5
#: Half a real label's range bounds what all its columns explain together. Each of d effects has the standard deviation
#: of this over √d, in units of half the range, where that is less than the usual one.
_TOGETHER = 2.0

#: From the kind of a label to its regression.
_MODELS: dict[str, type[Target]] = {
    "binary": LogisticRegression,
    "classes": SoftmaxRegression,
    "ordered": OrdinalRegression,
    "count": PoissonRegression,
    "real": LinearRegression,
}


def fit(
    formula_or_columns: str | Sequence[str] | None,
    data: Table,
    schema: Schema | None = None,
    epsilon: float | None = None,
    *,
    delta: float | None = None,
    goal: Goal = "intervals",
    target: Target | None = None,
    prior: Mapping[str, Normal] | None = None,
    covariance: Literal["sandwich", "model"] | None = None,
    sampler: SamplerName | Sampler | None = None,
    ledger: Ledger | str | Path | None = None,
    progress: Progress | bool | None = None,
    engine: EngineGiven = None,
    trusted_network: bool = False,
) -> Result:
    """Fit a regression under differential privacy, with no setting chosen by hand.

    The model follows from the label: two levels give logistic regression, more give softmax regression, or ordinal
    regression where they are ordered, counts give Poisson regression whose dispersion is learnt, and a range gives
    linear regression whose residual scale is. N is the number of rows, which replace_one makes public.

    Intervals are for the best-fitting coefficients, whether or not the model is true; with covariance ``model`` they
    hold if the model and its prior are true. The prior of a coefficient is N(0, f²) for the effect of half the column's
    declared range, with a factor f that the releases tell; the intercept has a wide one of its own.

    Args:
        formula_or_columns: ``"income ~ age + C(job)"``, a list of names of the columns that predict, or None for all of
            them.
        data: pandas, polars or Arrow's table, arrays by name, or the path of a CSV or Parquet file; or a table in
            partitions, which stays where it is: a folder or a glob of Parquet files, a ``pyarrow.dataset.Dataset``, a
            Dask DataFrame.
        schema: public ranges and levels of the columns.
        epsilon: ε of this fit; it has to be given.
        delta: δ; None: the least of 1e-5 and N^-1.2.
        goal: ``intervals`` or ``prediction``; see :func:`dpmcmc.suggest`.
        target: another model than the label's own.
        prior: normal priors of coefficients in the units of their columns, by name: ``{"age": Normal(0, 0.05)}``. The
            prior of ``intercept`` is for the prediction in the middle of all ranges. A level's is for its difference
            from the first level of its column.
        covariance: ``sandwich``: of the records' own scores, the default up to 100 coefficients of the label's own
            model; ``model``: as the model says, the default of a given target, whose prior then is the target's.
        sampler: whose steps lead to the points where gradients are released; None: these are the posterior's means
            given the gradients so far. ``sgld``, ``sghmc``, ``sgnht`` or ``sgfs`` gets its settings from the releases,
            and a :class:`dpmcmc.samplers.Sampler` keeps its own. ε is the same, and the posterior follows from the
            gradients in the same way (:class:`dpmcmc.mechanisms.NoiseAware`).
        ledger: budget ledger to charge, made by :meth:`dpmcmc.privacy.ledger.Ledger.init` or ``dpmcmc ledger init``.
        progress: as of :func:`dpmcmc.sample`.
        engine, trusted_network: workers that compute on a table in partitions, as of :func:`dpmcmc.sample`.

    Returns:
        Result; ``print(result.summary())`` shows named intervals, ``print(result.plan)`` why the plan is as it is.

    Warns:
        NotForIntervals: the goal is out of reach, or the release says so of itself; the message says what would do.

    Raises:
        InputError: no ε, no schema, a table that it does not fit, or a formula of another label.
        LedgerError: there is no such ledger, or the run is over its budget.
        LostPartition: as of :func:`dpmcmc.sample`.
    """
    if isinstance(formula_or_columns, Mapping) or (
        is_table(formula_or_columns) and not isinstance(formula_or_columns, str)
    ):
        raise InputError(
            "fit: the table stands first; swap the two: fit(formula_or_columns, data, schema)",
            "data",
        )
    if not isinstance(formula_or_columns, Iterable | None):
        raise InputError("fit: a formula, a list of columns or None stands first", "formula_or_columns")
    if schema is None:
        raise refuse_no_schema(data, formula_or_columns)
    if not isinstance(schema, Schema):
        raise InputError(f"schema: must be a Schema, got a {type(schema).__name__}", "schema")
    epsilon = asked_epsilon(epsilon)
    schema = _chosen(schema, formula_or_columns)
    people = find_partitions(data, schema)
    given: Given = {}
    if target is None:
        target = model_of(schema)
        given = settings_of(target, goal, schema.num_features)
    changes: dict[str, Any] = {}
    if schema.group_effects and goal == "intervals":
        changes["group_effects"] = tuple(one.columns for one in schema.group_effects)
    if covariance is not None:
        changes["covariance"] = covariance
    if prior is not None:
        changes["coefficients"] = encoded_priors(schema, prior)
    if sampler is not None:
        changes["sampler"] = sampler
    if changes:
        mechanism = given.get("mechanism", NoiseAware())
        given = {"mechanism": dataclasses.replace(mechanism, **changes)}  # type: ignore[type-var]

    def planned(num_records: int) -> Plan:
        asked = ask(target, num_records, epsilon, delta, schema, None, given)
        return asked.attempted(goal, stacklevel=3)

    if people is None:
        table = load_table(data)  # once, for the records and for the ledger
        records = schema.encode(table)
        plan = planned(len(records["x"]))
        read = EncodedTable(records, table)
        return sample(plan, read, ledger=ledger, progress=progress, engine=engine)
    with workers(engine, trusted_network) as crew:
        plan = planned(PartitionedRecords(people, crew).counted())
        whole = not work_of(plan).takes_partitions  # a chain reads rows
        return sample(
            plan,
            data if whole else people,
            ledger=ledger,
            progress=progress,
            engine=engine if whole else crew,
        )


def _chosen(schema: Schema, formula_or_columns: str | Sequence[str] | None) -> Schema:
    """Return the schema with the features that were asked for.

    Raises:
        InputError: the formula's label is not the schema's.
    """
    if formula_or_columns is None:
        return schema
    if not isinstance(formula_or_columns, str):
        names = list(formula_or_columns)
        wrong = [name for name in names if not isinstance(name, str) or name not in schema.columns]
        if wrong or not names:
            what = f"{shown(wrong[0])} is no column of the schema" if wrong else "the list of columns is empty"
            raise InputError(
                f"fit: {what}; name columns of the schema, or give None for all",
                "formula_or_columns",
            )
        return schema.with_formula(of_names(schema.label, names, schema.intercept))
    found = schema.with_formula(formula_or_columns)
    if found.label != schema.label:
        raise InputError(
            f"formula: its label is {found.label}, and the schema's is {schema.label}; write {schema.label} ~ ..., or "
            f"give Schema(..., label={found.label!r})",
            "formula",
        )
    return found


def model_of(schema: Schema) -> Target:
    """Return the regression that a schema's label asks for, with the default prior in the units of its columns."""
    effect = _EFFECT
    if schema.outcome.kind == "real":
        effect = min(effect, _TOGETHER / math.sqrt(schema.num_features))
    model = usual(_MODELS[schema.outcome.kind], effect / schema.row_scale)
    if isinstance(model, SoftmaxRegression | OrdinalRegression):
        return dataclasses.replace(model, num_classes=schema.outcome.num_classes)
    return model


def usual(model: type[Target], prior_scale: float = PRIOR_SCALE) -> Target:
    """Return a regression with the default prior; real labels are on [-1, 1]."""
    given = {"prior_scale": prior_scale}
    if model is LinearRegression:
        given |= {"noise_scale": _NOISE_SCALE, "label_bound": 1.0}
    return model(**given)


def settings_of(target: Target, goal: Goal, num_features: int | None) -> Given:
    """Return the settings of a model that the user did not choose.

    Args:
        target: that :func:`model_of` or :func:`usual` made.
        goal: of :func:`dpmcmc.suggest`.
        num_features: d; None: not known, and then few.
    """
    if goal != "intervals":
        return {}
    size = num_features or 1
    if isinstance(target, SoftmaxRegression):
        size *= target.num_classes or 1
    covariance: Literal["sandwich", "model"] = (
        "sandwich" if size <= MOST_RELEASED or isinstance(target, OrdinalRegression) else "model"
    )
    return {"mechanism": NoiseAware(prior_scale="evidence", covariance=covariance)}
