"""``dpmcmc.fit``: from a table, its schema and an ε to a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dpmcmc.data.formula import of_names
from dpmcmc.data.schema import Label, Schema
from dpmcmc.data.tables import EncodedTable, Table, is_table, no_schema
from dpmcmc.engine.life import sample
from dpmcmc.engine.result import Result
from dpmcmc.engine.work import Progress
from dpmcmc.errors import InputError, shown
from dpmcmc.estimators.suggestion import Given, Goal, asked_epsilon, suggest
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.targets.base import Target
from dpmcmc.targets.glm import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)

#: Prior standard deviation of a coefficient where the user gives no model, for rows of norm at most 1. Without privacy
#: the coefficients of Adult, 401ksubs, fertil2 and thornton_hiv have root mean squares of 1.6, 2.4, 2.6 and 1.6. A
#: prior that is too narrow costs coverage (docs/uncertainty.md). Above 2 intervals of some models stop covering. Noise
#: of a real label on [-1, 1]; a sandwich variance replaces it in the width of intervals.
PRIOR_SCALE, _NOISE_SCALE = 2.0, 0.5

#: From the kind of a label to its regression.
_MODELS: dict[str, type[Target]] = {
    "binary": LogisticRegression,
    "classes": SoftmaxRegression,
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
    ledger: Ledger | str | Path | None = None,
    progress: Progress | bool | None = None,
) -> Result:
    """Fit a regression under differential privacy, with no setting chosen by hand.

    The model follows from the label: two levels give logistic regression, more give softmax regression, counts give
    Poisson regression, and a range gives linear regression with a sandwich variance. N is the number of rows, which
    replace_one makes public.

    Args:
        formula_or_columns: ``"income ~ age + C(job)"``, a list of names of the columns that predict, or None for all of
            them.
        data: pandas, polars or Arrow's table, arrays by name, or the path of a CSV or Parquet file.
        schema: public ranges and levels of the columns.
        epsilon: ε of this fit; it has to be given.
        delta: δ; None: the least of 1e-5 and N^-1.2.
        goal: ``intervals`` or ``prediction``; see :func:`dpmcmc.suggest`.
        target: another model than the label's own.
        ledger: budget ledger to charge, made by :meth:`dpmcmc.privacy.ledger.Ledger.init` or ``dpmcmc ledger init``.
        progress: as of :func:`dpmcmc.sample`.

    Returns:
        Result; ``print(result.summary())`` shows named intervals, ``print(result.plan)`` why the plan is as it is.

    Raises:
        NotAchievable: the goal is out of reach; the message says which N or which ε would do.
        InputError: no ε, no schema, a table that it does not fit, or a formula of another label.
        LedgerError: there is no such ledger, or the run is over its budget.
    """
    if isinstance(formula_or_columns, Mapping) or (
        is_table(formula_or_columns) and not isinstance(formula_or_columns, str)
    ):
        raise InputError(
            "fit: the table stands first; swap the two: fit(formula_or_columns, data, schema)",
            "data",
        )
    if not isinstance(formula_or_columns, Iterable | None):
        raise InputError(
            "fit: a formula, a list of columns or None stands first", "formula_or_columns"
        )
    if schema is None:
        raise no_schema(data, formula_or_columns)
    if not isinstance(schema, Schema):
        raise InputError(
            f"schema: must be a Schema, got a {type(schema).__name__}", "schema"
        )
    epsilon = asked_epsilon(epsilon)
    schema = _chosen(schema, formula_or_columns)
    records = schema.encode(data)
    given: Given = {}
    if target is None:
        target = model_of(schema.outcome)
        given = settings_of(target, goal)
    plan = suggest(
        target,
        num_records=len(records["x"]),
        epsilon=epsilon,
        delta=delta,
        schema=schema,
        goal=goal,
        **given,
    )
    return sample(plan, EncodedTable(records, data), ledger=ledger, progress=progress)


def _chosen(schema: Schema, formula_or_columns: str | Sequence[str] | None) -> Schema:
    """Return the schema with the features that were asked for.

    Raises:
        InputError: the formula's label is not the schema's.
    """
    if formula_or_columns is None:
        return schema
    if not isinstance(formula_or_columns, str):
        names = list(formula_or_columns)
        wrong = [
            name
            for name in names
            if not isinstance(name, str) or name not in schema.columns
        ]
        if wrong or not names:
            what = (
                f"{shown(wrong[0])} is no column of the schema"
                if wrong
                else "the list of columns is empty"
            )
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


def model_of(label: Label) -> Target:
    """Return the regression that a label asks for."""
    return usual(_MODELS[label.kind])


def usual(model: type[Target]) -> Target:
    """Return a regression with the default prior; real labels are on [-1, 1]."""
    given = {"prior_scale": PRIOR_SCALE}
    if model is LinearRegression:
        given |= {"noise_scale": _NOISE_SCALE, "label_bound": 1.0}
    return model(**given)


def settings_of(target: Target, goal: Goal) -> Given:
    """Return the settings of a model that the user did not choose.

    The noise of a linear regression's label is not declared then, so its covariance is a sandwich.
    """
    if goal == "intervals" and isinstance(target, LinearRegression):
        return {"mechanism": NoiseAware(covariance="sandwich")}
    return {}
