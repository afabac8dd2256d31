"""A Result: what a run released, the posterior that it gives, and what both say; or the error of a chain that diverged.

A run releases numbers: iterates of chains, or draws of a mechanism. Its *posterior* is what may be reported. These are
the released numbers themselves, or, of a chain in a private metric, draws from the posterior given the whole released
path. Where neither may be reported there is no posterior, and the verdict says why.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.data.base import DataSet
from dpmcmc.data.checks import refuse_mask
from dpmcmc.data.tables import Table, is_table, refuse_no_schema
from dpmcmc.engine.recorded import Means
from dpmcmc.engine.result_folder import DRAWS, PATH, POSTERIOR, Group, content, datasets, groups
from dpmcmc.errors import Carried, InputError, NotForIntervals, UnsupportedCombination
from dpmcmc.inference import predictive
from dpmcmc.inference.breakdown import breakdown, tells_no_rows_apart
from dpmcmc.inference.evidence import CALLED, REFUSED_WITH_ALL, Evidence
from dpmcmc.inference.evidence import FILE as EVIDENCE_FILE
from dpmcmc.inference.path_posterior import PathPosterior
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.inference.trace import FILE as TRACE_FILE
from dpmcmc.inference.trace import Trace
from dpmcmc.planning.description import html_table
from dpmcmc.planning.path import trace_of
from dpmcmc.planning.permitted_uses import INTERVALS, Verdict
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.verdict import of_result
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.report.circumstances import Circumstances
from dpmcmc.report.coefficients import Reading
from dpmcmc.report.effects import Effects, effects_of
from dpmcmc.report.page import FILE as PAGE
from dpmcmc.report.page import Context, page
from dpmcmc.report.privacy_json import privacy_json
from dpmcmc.report.summary import ROWS, Posterior, Summary
from dpmcmc.report.words import title
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.run_folder import RunFolder, today
from dpmcmc.storage.surroundings import check_free
from dpmcmc.targets.base import bind, record_shapes, target_offers
from dpmcmc.targets.numpyro.model import NumPyroTarget
from dpmcmc.targets.predicting import by_row

if TYPE_CHECKING:
    import arviz
    import xarray
    from matplotlib.figure import Figure


#: Least draws of a posterior that follows from a path, and the chains that they stand in.
_DRAWS, _CHAINS = 1000, 4


class DivergedError(Carried, RuntimeError):
    """A chain left the range of floats. Every step up to then was released, so its cost is spent.

    Example:
        >>> import dpmcmc
        >>> raise dpmcmc.DivergedError(step=12, norm=float("inf"), guarantee=None)
        Traceback (most recent call last):
            ...
        dpmcmc.engine.result.DivergedError: the chain diverged by step 12 (last norm inf): lower...
    """

    def __init__(self, step: int, norm: float, guarantee: Guarantee | None) -> None:
        self.step = step
        spent = "" if guarantee is None else f" The run still spent {guarantee}."
        super().__init__(
            f"the chain diverged by step {step}{f' (last norm {norm:.3g})' if norm else ''}: lower "
            f"sampler.step_size, or privacy.clip so that less noise is needed.{spent}"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """Everything that a run releases.

    Attributes:
        plan: what was run.
        released: iterates that chains keep, or draws of a mechanism, in the model's own coordinates, leaves (chains,
            draws, ...); :attr:`draws` are those to use.
        positions: the released ones as the chain moved them, a pytree like the target's parameters; ``released`` itself
            for most targets.
        info: sampler's Info at the kept steps, leaves (chains, draws); None of a mechanism's release.
        guarantee: None when the plan has no privacy or the key was not secret.
        wall_seconds: ``compile`` and ``run``; ``run`` alone of a mechanism. They may depend on the records (a NUTS
            trajectory is as long as it is), and no guarantee covers them: publish them of public records alone.
        receipt: of the run's entry in its ledger, or None without one.
        metric: that the run released before its first step, covered by the guarantee; None without one.
        means: of the path from one draw to the next (``program.py``), which ``trace`` is made of; None where none are
            kept.
        columns: names of the columns of the records, public; None: those of the plan's schema, if it has one.
        evidence: what draws of mechanism noise_aware, or the posterior of a chain with an end, rest on, for checks and
            Bayes factors at no further cost; None of other runs.
        doubts: why intervals of draws without evidence may not hold, clauses that the release gave.
        record: shapes of one record, public; None of what was loaded.
        device: ``platform``, ``kind`` and ``count`` of the devices that computed it; None of what was loaded.

    Example:
        >>> import dpmcmc
        >>> import numpy as np
        >>> target = dpmcmc.targets.LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
        >>> plan = dpmcmc.suggest(target, num_records=1000, epsilon=1.0)
        >>> x = np.random.default_rng(0).uniform(-0.7, 0.7, size=(1000, 2))
        >>> result = dpmcmc.sample(plan, {"x": x, "y": x[:, 0]})
        >>> result.guarantee.epsilon <= 1.0
        True
        >>> result.predict(x[:5]).shape
        (5,)
    """

    plan: Plan
    released: PyTree
    positions: PyTree
    info: PyTree
    guarantee: Guarantee | None
    wall_seconds: dict[str, float]
    receipt: Receipt | None = None
    metric: ReleasedMetric | None = None
    means: Means | None = None
    columns: tuple[str, ...] | None = None
    evidence: Evidence | None = None
    doubts: tuple[str, ...] = ()
    device: dict[str, str | int] | None = None
    record: PyTree | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return what a pickle or a copy holds: all but the wall time, which no guarantee covers."""
        return self.__dict__ | {"wall_seconds": {}}

    def __post_init__(self) -> None:
        if self.columns is None and self.plan.schema is not None:
            object.__setattr__(self, "columns", self.plan.schema.names)
        if self.evidence is not None and self.columns is not None:
            object.__setattr__(
                self,
                "evidence",
                dataclasses.replace(self.evidence, names=self._names(self.evidence)),
            )

    def _names(self, evidence: Evidence) -> tuple[tuple[str, ...], ...]:
        """Return the names that each coefficient of the evidence answers to; those of the K classes are the same."""
        columns = self.columns or ()
        schema = self.plan.schema
        if schema is not None and schema.names == columns:
            names = schema.answers
        else:
            names = tuple((name, name.partition("=")[0]) for name in columns)
        classes, left = divmod(len(evidence.scales), max(len(names), 1))
        return () if left else tuple(one for one in names for _ in range(classes))

    def named(self, data: object) -> Result:
        """Return the result with the names of a data set's columns; of other data, the result as it is."""
        return dataclasses.replace(self, columns=data.columns) if isinstance(data, DataSet) else self

    @property
    def path(self) -> PyTree | None:
        """Kept iterates of the chains, leaves (chains, draws, ...); None of a mechanism's release."""
        return self.released if self.plan.has_chains else None

    @functools.cached_property
    @on_one_blas_thread
    def draws(self) -> PyTree:
        """Draws of the posterior, leaves (chains, draws, ...); where the run has none, what it released.

        Those of a posterior that follows from a path are independent, (4, draws, d): ArviZ asks for several chains.
        """
        if not self.verdict.from_path:
            return self.released
        found = self.noise_aware()
        each = max(_DRAWS // _CHAINS, len(found.mean))
        drawn = found.draws(_CHAINS * each).astype(np.float32)
        return drawn.reshape(_CHAINS, each, -1)

    @functools.cached_property
    def posterior(self) -> Posterior | None:
        """Parameters that may be reported, by name, in the units of the columns where the plan has a schema.

        None where intervals may not be reported: :attr:`verdict` says why.
        """
        if INTERVALS not in self.usable_for:
            return None
        return Posterior.of(self._reading(None).of(self.draws))

    @functools.cached_property
    def trace(self) -> Trace:
        """Path of the run after burn-in, as it was released.

        Raises:
            UnsupportedCombination: no posterior is concluded from it, so it is not kept.
        """
        return self.plan.released_path or trace_of(self.plan, self.means, self.metric)

    @on_one_blas_thread
    def noise_aware(self) -> PathPosterior:
        """Return the posterior given all that was released: its intervals account for the noise of privacy.

        It costs nothing more. :attr:`draws` and :attr:`posterior` of a chain with an end are made of it.

        Raises:
            UnsupportedCombination: the run concludes no such posterior; what would.
        """
        if self.evidence is None:
            raise UnsupportedCombination(
                f"noise_aware: no posterior is concluded from this run of {self.plan.label}; a chain needs an end, as "
                "label-blind gradients of a logistic regression in metric gram have, or use mechanism noise_aware."
            )
        return dataclasses.replace(self.evidence.posterior(), doubts=self.evidence.objections)

    @property
    def steps_per_second(self) -> float | None:
        """Steps of all chains together, per second of running; None of a mechanism's release, and of a copy."""
        plan = self.plan
        if plan.run is None or "run" not in self.wall_seconds:
            return None
        return plan.steps * plan.chains / max(self.wall_seconds["run"], 1e-9)

    def __repr__(self) -> str:
        shapes = jax.tree.map(np.shape, self.draws)
        of = "posterior" if INTERVALS in self.usable_for else "draws"
        return f"Result({of} of shape {shapes}, {self.guarantee or 'no guarantee'})"

    @functools.cached_property
    def diagnostics(self) -> dict[str, float | None]:
        """``ess`` and ``rhat`` of the released chains, each the worst over coordinates.

        None where iterates are too few, and of a one-shot mechanism, whose draws are no chain.
        """
        from dpmcmc.inference import convergence

        if not self.plan.has_chains:
            return {"ess": None, "rhat": None}
        return convergence.summary(self.released)

    @functools.cached_property
    @on_one_blas_thread
    def verdict(self) -> Verdict:
        """Permitted uses of the draws, and why, by the plan's verdict and by what was released.

        Draws of a chain may be reported if its iterates mix, or if a posterior follows from its path.
        """
        found = of_result(self.plan, self.diagnostics, self.metric)
        broken = breakdown(
            self.plan.target,
            self.positions,
            self.plan.schema,
            self.record,
            self.plan.has_chains,
        )
        if broken is not None:
            return found.without_prediction(broken).without_intervals((broken,))
        if self.evidence is None:
            return found.without_intervals(self.doubts)
        if self.plan.end is not None:
            found = found.with_path(self.plan.verdict.intervals)
        found = found.without_intervals(self.evidence.objections)
        return found.without_prediction(tells_no_rows_apart(self.plan.target, self.evidence, self.positions))

    @property
    def usable_for(self) -> list[str]:
        """Out of ``prediction`` and ``intervals``; empty for nothing."""
        return list(self.verdict.usable_for)

    def _repr_html_(self) -> str:
        summary = self.summary(most=ROWS)
        costs = (line for line in self.verdict.lines() if line[0] not in ("usable for", *self.verdict.reasons))
        return html_table([("result", repr(self)), *costs]) + summary._repr_html_()

    @on_one_blas_thread
    def summary(
        self,
        level: float = 0.9,
        original_units: bool | None = None,
        most: int | None = None,
    ) -> Summary:
        """Return mean, spread and range of each parameter by name, with the verdict; ``print`` shows the table.

        Coefficients of a softmax regression are differences from its first class, which are all that the data tell.
        Where a posterior follows from a chain's path, and its iterates mix at temperature 1, their own ranges stand
        beside it.

        Args:
            level: share of the draws that the range holds.
            original_units: whether coefficients are per unit of the columns as they were before their encoding, which
                takes a plan with a schema; None: where it has one.
            most: parameters that it has, the first ones; None: all.

        Raises:
            ValueError: a level outside (0, 1); original units without a schema.
        """
        chains = self.plan.has_chains and not self.verdict.from_path
        reading = self._reading(original_units)
        shown = reading.of(self.draws, most)
        uses = (CALLED if INTERVALS in self.usable_for else REFUSED_WITH_ALL,) * len(shown.names)
        if self.evidence is not None and INTERVALS in self.usable_for:
            directions = reading.directions(self.draws, most)
            uses = uses if directions is None else self.evidence.uses(directions)
        path = None
        if self.verdict.path:
            path = Summary.of_draws(reading.of(self.released, most), level, self.verdict.of_path, True, uses)
        return Summary.of_draws(shown, level, self.verdict, chains, uses, path)

    @on_one_blas_thread
    def effects(self, contrast: Mapping[str, float] | None = None, *, level: float = 0.9) -> Effects:
        """Return odds or rate ratios and average marginal effects of the columns, or a contrast, with intervals.

        They are functions of the draws and of what the release holds, and cost nothing more (``report/effects.py``).

        Args:
            contrast: weights by name of a coefficient in its own units, for the interval of their weighted sum; None:
                all effects.
            level: of the intervals.

        Raises:
            UnsupportedCombination: the plan has no schema, or its draws are not for intervals.
            InputError: a name that no coefficient has, or a level outside (0, 1).
        """
        if self.plan.schema is None:
            raise UnsupportedCombination(
                "effects: the plan has no schema, which names columns and their units; use dpmcmc.fit, or suggest "
                "with a schema"
            )
        if INTERVALS not in self.usable_for:
            raise UnsupportedCombination(f"effects: the draws are not for intervals. {self.verdict.reasons[INTERVALS]}")
        directions = self._reading(True).directions(self.draws)
        law = (self.evidence, directions)
        return effects_of(np.asarray(self.flat_draws()), self.plan.target, self.plan.schema, *law, level, contrast)

    def _reading(self, original_units: bool | None) -> Reading:
        return Reading(self.plan.target, self.plan.schema, self.columns, original_units)

    def plot(self, level: float = 0.9, original_units: bool | None = None) -> Figure:
        """Return a Matplotlib figure of :meth:`summary`: means, and intervals where these may be reported."""
        return self.summary(level, original_units, ROWS).plot()

    def predict(self, x: np.ndarray | Table | None = None, **arguments: np.ndarray) -> np.ndarray:
        """Return the posterior predictive mean of rows; it costs nothing more.

        Args:
            x: rows, (n, d), encoded as those of the records; or a table, if the plan has a schema. A real label is then
                predicted in its own units.
            arguments: of a NumPyro model: its arguments by name, leaves (n, ...), without what it observes. A
                regression whose records have an offset takes ``offset``, (n,), such as the log of the exposure.

        Returns:
            P(y = 1), (n,), of two classes; class probabilities (n, K) of more; else the mean of y, (n,).

        Raises:
            ValueError: rows of another width; a target that does not predict; arguments that a model does not have; a
                process forked from one that has used JAX.
        """
        if (is_table(x) or isinstance(x, Mapping)) and not arguments:
            if self.plan.schema is None:
                raise refuse_no_schema(x)
            return self.plan.schema.label_of(self.predict(**self.plan.schema.encode_inputs(x)))
        target, _ = by_row(self.plan.target, {})
        if isinstance(target, NumPyroTarget):
            inputs = {name: np.asarray(value) for name, value in (arguments | ({} if x is None else {"x": x})).items()}
            return predictive.mean(target.predictor(inputs), self.flat_draws(), inputs)
        offset = target_offers(target).offset_bound is not None
        wanted = {"offset"} if offset else set()
        if x is None or set(arguments) != wanted:
            rows_alone = "rows x and offset: give predict(x, offset=...)"
            how = rows_alone if offset else "rows x alone: give predict(x)"
            raise InputError(f"predict: {type(target).__name__} predicts from {how}", "x")
        refuse_mask(x, "predict: x")
        rows = {"x": np.asarray(x)}
        rows["y"] = np.zeros(len(rows["x"]))
        for name, value in arguments.items():
            refuse_mask(value, f"predict: {name}")
            rows[name] = np.asarray(value)
            if rows[name].shape != rows["y"].shape:
                raise InputError(f"predict: {name} needs one number for each row", name)
        target, rows = by_row(bind(target, record_shapes(rows)), rows)
        return predictive.mean(target, self.flat_draws(), rows["x"])

    def to_arviz(self, original_units: bool = False) -> arviz.InferenceData | xarray.DataTree:
        """Return the groups of ``draws.nc`` for ArviZ: its ``InferenceData``, or from ArviZ 1.0 on a DataTree.

        The group ``posterior`` holds what may be reported. There is none where nothing may be (``result_folder.py``).
        Guarantee and verdict are attributes of its groups.

        Warns:
            NotForIntervals: there is no posterior, and why.

        Raises:
            ImportError: ArviZ is not installed.
        """
        try:
            import arviz
        except ImportError:
            raise ImportError("to_arviz needs ArviZ: pip install arviz") from None
        import xarray

        if INTERVALS not in self.usable_for:
            chains = self.plan.has_chains and not self.verdict.from_path
            where = PATH if chains else DRAWS
            warnings.warn(
                f"{self.verdict.reasons[INTERVALS]} There is no group posterior; the released numbers are the group "
                f"{where}.",
                NotForIntervals,
                stacklevel=2,
            )
        held = self._groups()
        reading = self._reading(original_units)
        held |= {
            name: group._replace(leaves=reading.in_units(group.leaves)[0])
            for name, group in held.items()
            if name in (POSTERIOR, PATH, DRAWS)
        }
        made: dict = datasets(held, self.guarantee, self.columns)
        if hasattr(arviz, "InferenceData"):
            return arviz.InferenceData(None, warn_on_custom_groups=False, **made)
        return xarray.DataTree.from_dict(made)

    def _groups(self) -> dict[str, Group]:
        """Return the groups of ``draws.nc``."""
        chains = self.plan.has_chains
        return groups(self.draws, self.released, self.positions, self.info, self.verdict, chains)

    def page(self, context: Context | None = None) -> str:
        """Return the page of the run, ``report.html``: one HTML file that needs no network.

        Args:
            context: what it says beside the result; None: nothing.
        """
        context = context or Context(title(self.plan), today())
        context = dataclasses.replace(context, secret=self.guarantee is not None)
        summary = self.summary(most=ROWS)
        return page(self.plan, self.guarantee, summary, context, self._ratios())

    def _ratios(self) -> Effects | None:
        """Return the effects of a model whose coefficients are logs of ratios; None where there are none."""
        try:
            found = self.effects()
        except (UnsupportedCombination, InputError):
            return None
        return found if found.has_ratios else None

    def flat_draws(self) -> PyTree:
        """Draws of all chains in one axis, leaves (chains·draws, ...), as the target's functions take them."""
        draws = self.draws if self.verdict.from_path else self.positions
        return jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), draws)

    def save(
        self,
        folder: str | Path | RunFolder,
        *,
        public: bool = False,
        day: datetime.date | None = None,
    ) -> Path:
        """Write ``privacy.json``, ``plan.json`` and then draws and verdict into a folder: no draw without what it cost.

        It holds no key and no record; :func:`dpmcmc.load` reads it. A folder is one result. ``privacy.json`` has the
        SHA-256 digests of the other files once all are there, so a kill at any moment leaves a whole result or none.

        Args:
            folder: new or empty. Without a finite guarantee what is made is readable by its owner alone. A run that
                adds files of its own gives its RunFolder, which gets the draws and what rests on them. It states cost
                and plan before, adds its metrics and page, and seals it.
            public: whether the records are public, so that draws without a guarantee may be published too.
            day: that the files bear, on which the run began; None: today.

        Raises:
            ValueError: the folder holds something, or lies in a checkpoint.
            OSError: it cannot be written.
        """
        if isinstance(folder, RunFolder):
            self._write_draws(folder)
            return folder.folder
        check_free(folder)
        covered = self.guarantee is not None and math.isfinite(self.guarantee.epsilon)
        opened = RunFolder(Path(folder), day or today(), owner_only=not (covered or public))
        said = privacy_json(self.plan, self.guarantee, receipt=self.receipt)
        circumstances = Circumstances.of_plan(self.plan, public)
        opened.state(said)
        opened.json("plan.json", self.plan.describe(secret=self.guarantee is not None).stated | circumstances.to_json())
        self._write_draws(opened)
        opened.json("metrics.json", {**self.diagnostics, **self.verdict.to_json(), "device": self.device})
        opened.write(PAGE, self.page(Context(title(self.plan), opened.day, circumstances=circumstances)))
        opened.seal(said)
        return opened.folder

    def _write_draws(self, folder: RunFolder) -> None:
        """Write draws and what rests on them."""
        folder.write("draws.nc", netcdf(self))
        if self.evidence is not None:
            folder.write(EVIDENCE_FILE, self.evidence.content())
        if self.means is not None:
            folder.write(TRACE_FILE, self.trace.content())


def netcdf(result: Result) -> bytes:
    """Return the content of ``draws.nc``: groups for ArviZ, with guarantee and verdict as attributes."""
    return content(datasets(result._groups(), result.guarantee, result.columns), result.metric)
