"""A Plan: everything a run will do, decided before a record is read.

It is a list of stages (``stages.py``), whatever carries it out: ``dpmcmc.plan`` makes one of a sampler's run
(``mechanisms/chain.py``), and a mechanism's ``plan`` one of a single release. A plan puts together here, once, all that
its stages say of themselves. The facts of a sampler's run that rest on the stages before it, as its temperature, are
below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from dpmcmc.data.base import DataSet
from dpmcmc.data.checks import refuse_other
from dpmcmc.data.encoded_partitions import EncodedPartitions
from dpmcmc.data.known_columns import texts
from dpmcmc.data.partitions import find_partitions
from dpmcmc.data.schema import Schema
from dpmcmc.data.tables import EncodedTable, Table, is_table, refuse_no_schema
from dpmcmc.errors import DataError, InputError, printable
from dpmcmc.planning.chain_end import ChainEnd
from dpmcmc.planning.description import Description, guaranteed, html_table, labelled
from dpmcmc.planning.mechanism_release import MechanismRelease
from dpmcmc.planning.noise import Noise
from dpmcmc.planning.own_code import assumed
from dpmcmc.planning.permitted_uses import UNJUDGED, Verdict
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.planning.sampler_run import SamplerRun
from dpmcmc.planning.saved import SavedRun
from dpmcmc.planning.settings_json import section
from dpmcmc.planning.stages import GivenStarts, Stage
from dpmcmc.privacy.accounting.charging import Schedule
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Sampling, expected_batch
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.privacy.query.second_moment import every_of, multiples
from dpmcmc.samplers.base import Sampler
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.stamps import check_unchanged
from dpmcmc.targets import TARGETS
from dpmcmc.targets.base import Target, TargetOffers, target_offers

if TYPE_CHECKING:
    from dpmcmc.inference.trace import Trace

_S = TypeVar("_S", bound=Stage)


@dataclass(frozen=True, eq=False)
class Plan:
    """A run before it reads a record; made by :func:`dpmcmc.plan`, or by a mechanism's ``plan``.

    Attributes:
        target: the model.
        num_records: N, public.
        stages: what the run does, in its order.
        schema: public ranges and levels of the columns of a table, or None where records are arrays.
        reasons: why the plan is as it is, where :func:`dpmcmc.suggest` made it.
        verdict: permitted uses of the draws, and why, from public facts.

    Example:
        >>> import dpmcmc
        >>> plan = dpmcmc.plan(
        ...     dpmcmc.targets.LogisticRegression(num_features=2),
        ...     num_records=1000,
        ...     sampler=dpmcmc.SGLD(step_size=1.0),
        ...     sampling=dpmcmc.Full(),
        ...     steps=10,
        ...     privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
        ... )
        >>> plan.guarantee.epsilon <= 1.0
        True
        >>> plan.noise_multipliers.shape
        (10,)
        >>> plan.usable_for
        ['prediction']
    """

    target: Target
    num_records: int
    stages: tuple[Stage, ...]
    schema: Schema | None = None
    reasons: tuple[str, ...] = ()
    verdict: Verdict = field(default=UNJUDGED, repr=False)

    def __post_init__(self) -> None:
        assuming = self.main.assuming(*assumed(self))
        object.__setattr__(self, "stages", self._with_main(assuming))

    def with_last(self, **facts: Any) -> Plan:
        """Return the plan with other facts of its last stage, by the names of the stage's attributes."""
        return replace(self, stages=self._with_main(self.main.replaced(**facts)))

    @property
    def main(self) -> Stage:
        """The stage with the plan's guarantee, the last one except what follows a chain."""
        return next(stage for stage in reversed(self.stages) if not isinstance(stage, ChainEnd))

    def _with_main(self, main: Stage) -> tuple[Stage, ...]:
        return tuple(main if stage is self.main else stage for stage in self.stages)

    def alone(self, stage: Stage) -> Plan:
        """Return the plan of one stage, on the same target and records."""
        if len(self.stages) == 1:
            return self
        return replace(self, stages=(stage,), schema=None, reasons=(), verdict=stage.verdict)

    @property
    def guarantee(self) -> Guarantee | None:
        """Guarantee of everything that leaves, or None without privacy."""
        return self.main.guarantee

    @property
    def draws(self) -> int:
        """Draws that leave, of all chains."""
        return self.main.draws

    @property
    def has_chains(self) -> bool:
        """Whether the draws are chains of a sampler."""
        return self.main.has_chains

    @property
    def label(self) -> str:
        """Names of the mechanism and the sampler; they name the run in a ledger's history."""
        return " then ".join(stage.label for stage in self.stages if stage.label)

    @property
    def target_offers(self) -> TargetOffers:
        """The target with a default in the place of everything that it does not offer."""
        return target_offers(self.target)

    @property
    def unit(self) -> str:
        """Whom a guarantee speaks of."""
        said = None if self.saved is None else self.saved.unit
        return said or self.target_offers.unit or "record"

    @property
    def usable_for(self) -> list[str]:
        """Out of ``prediction`` and ``intervals``; empty for nothing."""
        return list(self.verdict.usable_for)

    @property
    def parts(self) -> tuple[object, ...]:
        """Target, samplers, mechanisms and noise, which a user may have written."""
        return (self.target, *(part for stage in self.stages for part in stage.parts))

    def describe(self, secret: bool = True) -> Description:
        """Return what it says of itself: to a person, in ``plan.json``, in ``privacy.json``, and as a config.

        Nothing of it is a record or a key.

        Args:
            secret: whether the noise of the run is; without that there is no guarantee.
        """
        parts = [stage.describe(self, secret) for stage in self.stages]
        sections: dict[str, Any] = {"target": section(self.target, TARGETS)}
        facts: dict[str, object] = {"num_records": self.num_records, "hardened": self.guarantee is not None}
        for part in parts:
            sections |= part.sections
            facts |= part.facts
        stated: dict[str, object] = {
            "label": self.label,
            "target": repr(self.target),
            "config": sections,
            "num_records": self.num_records,
            "unit": self.unit,
        }
        for part in parts:
            stated |= part.stated
        guarantee = self.guarantee
        # The proof of the noise does not cover these parts.
        unproved = "; ".join(stage.unproved for stage in self.stages if stage.unproved)
        stated |= {
            "guarantee": guarantee.to_json() if guarantee is not None and secret else None,
            "facts": facts,
            **({} if self.schema is None else {"schema": self.schema.to_yaml()}),
            "unproved": unproved,
            "reasons": list(self.reasons),
            **self.verdict.to_json(),
        }
        lines = [
            ("target", repr(self.target)),
            *(line for part in parts for line in part.lines),
            *labelled("guarantee", "" if guarantee is None else guaranteed(guarantee, secret)),
            *(line for part in parts for line in part.costs),
            *labelled("unproved", unproved),
            *self.verdict.lines(),
        ]
        return Description(sections, stated if self.saved is None else self.saved.stated_plan, facts, lines)

    def __str__(self) -> str:
        said = (f"{name:<12} {text}" for name, text in self._said())
        return "\n".join(map(printable, said))

    def _repr_html_(self) -> str:
        return html_table(self._said())

    def _said(self) -> list[tuple[str, str]]:
        return [*self.describe().lines, *(("why", reason) for reason in self.reasons)]

    def records_of(self, data: PyTree | Table | DataSet | EncodedTable) -> PyTree:
        """Return records as the target takes them: training records of a data set; a table is encoded by the schema.

        Raises:
            InputError: a table, and the plan has no schema. It names columns and types alone.
            DataError: data that are no arrays of numbers, or masked ones; and see :meth:`dpmcmc.data.Schema.encode`.
        """
        if isinstance(data, EncodedTable):
            return data.records
        if isinstance(data, EncodedPartitions) or (isinstance(data, DataSet) and data.partitions is not None):
            raise DataError(
                f"data: {self.label} needs all rows in one memory, and these are in partitions: give the table in "
                "memory."
            )
        if isinstance(data, DataSet) or not self._is_table(data):
            records = data.train if isinstance(data, DataSet) else data
            for path, leaf in jax.tree_util.tree_leaves_with_path(records):
                refuse_other(leaf, f"data{jax.tree_util.keystr(path)}")
            return records
        if self.schema is None:
            raise refuse_no_schema(data)
        return self.schema.encode(data)

    def partitions_of(self, data: PyTree | Table | DataSet) -> EncodedPartitions | None:
        """Return a table in its partitions, with the plan's schema; None of anything that is not read so."""
        if isinstance(data, DataSet):
            return data.partitions
        if isinstance(data, EncodedPartitions):
            return data
        if self.schema is None or not is_table(data):
            return None
        return find_partitions(data, self.schema)

    def columns_of(self, data: PyTree | Table | DataSet | EncodedTable) -> dict[str, np.ndarray]:
        """Return every column that the schema declares, as bytes before encoding; none of data that are no table.

        A ledger knows a table by them under any formula.
        """
        if isinstance(data, EncodedPartitions):
            return {}  # the workers know them
        table = data.table if isinstance(data, DataSet | EncodedTable) else data if self._is_table(data) else None
        if table is None or self.schema is None:
            return {}
        found = texts(table, self.schema.columns)
        if isinstance(data, DataSet):
            check_unchanged(data.seen)
        return found

    def _is_table(self, data: PyTree | Table) -> bool:
        """Return whether data are a table; where there is a schema, arrays by name are one if each is a column."""
        if self.schema is None or not isinstance(data, Mapping):
            return is_table(data)
        return self.schema.label in data and all(np.ndim(column) == 1 for column in data.values())

    def stage(self, kind: type[_S]) -> _S | None:
        """Return the first stage of a kind, or None."""
        return next((stage for stage in self.stages if isinstance(stage, kind)), None)

    @property
    def run(self) -> SamplerRun | None:
        """The sampler's run, or None."""
        return self.stage(SamplerRun)

    @property
    def release(self) -> MechanismRelease | None:
        """The mechanism's release that the plan ends with, or None."""
        return self.main if isinstance(self.main, MechanismRelease) else None

    @property
    def saved(self) -> SavedRun | None:
        """All that files say of a run that was loaded; None of a plan that can be run."""
        return self.stage(SavedRun)

    @property
    def metric(self) -> PlannedMetric | None:
        """Metric that the run releases first, or None; noise, steps and time are then in its units."""
        return self.stage(PlannedMetric)

    @property
    def end(self) -> ChainEnd | None:
        """Releases where the chain ends, or None."""
        return self.stage(ChainEnd)

    @property
    def start(self) -> MechanismRelease | None:
        """The draw that every chain starts from, or None."""
        first = self.stages[0]
        return first if isinstance(first, MechanismRelease) and first is not self.release else None

    @property
    def starts(self) -> Stage | None:
        """Private starts that the guarantee covers, which are drawn by the run or given to ``sample``; or None."""
        return self.start or self.stage(GivenStarts)

    @property
    def released_path(self) -> Trace | None:
        """Path of a run in a metric that was saved; None of a plan that can be run."""
        return None if self.saved is None else self.saved.released_path

    @property
    def mechanism(self) -> Any:
        """The mechanism of the release that the plan ends with."""
        return self._release.mechanism

    @property
    def settings(self) -> dict[str, float]:
        """Public numbers that the mechanism's release has settled."""
        return self._release.settings

    @property
    def _release(self) -> MechanismRelease:
        if self.release is None:
            raise InputError(f"plan: {self.label} is not the release of a mechanism", "plan")
        return self.release

    @property
    def sampler_run(self) -> SamplerRun:
        """The sampler's run.

        Raises:
            InputError: the plan has none.
        """
        if self.run is None:
            raise InputError(f"plan: {self.label} is not a sampler's run, and has no steps", "plan")
        return self.run

    @property
    def sampler(self) -> Sampler:
        """The sampler, bound to N."""
        return self.sampler_run.sampler

    @property
    def sampling(self) -> Sampling:
        """How records are selected."""
        return self.sampler_run.sampling

    @property
    def steps(self) -> int:
        """Steps of each chain."""
        return self.sampler_run.steps

    @property
    def chains(self) -> int:
        """Chains; each is charged."""
        return self.sampler_run.chains

    @property
    def burn_in(self) -> int:
        """Steps before the first kept stretch."""
        return self.sampler_run.burn_in

    @property
    def thin(self) -> int:
        """Steps from one draw to the next."""
        return self.sampler_run.thin

    @property
    def num_draws(self) -> int:
        """Draws kept per chain."""
        return self.sampler_run.num_draws

    @property
    def noise(self) -> Noise:
        """Noise of the sampler's run, and what it costs."""
        return self.sampler_run.noise

    @property
    def noise_std(self) -> np.ndarray:
        """s_t, (steps,) float32, std of the noise in gradient units, of a metric if there is one."""
        return self.noise.noise_std

    @property
    def privacy(self) -> Privacy | None:
        """The promise that a sampler's run was asked for, or None for plain SG-MCMC."""
        return self.noise.promise

    @property
    def noise_multipliers(self) -> np.ndarray | None:
        """s_t·b/(N·C), (steps,) float64, nominal; None without privacy."""
        return self.noise.noise_multipliers

    @property
    def free_fraction(self) -> float:
        """Share of steps whose noise is the sampler's own."""
        return self.noise.free_fraction

    @property
    def in_metric(self) -> bool:
        """Whether noise, steps and time are in the units of a metric, the run's or the sampler's."""
        return self.metric is not None or self.sampler_run.offers.metric is not None

    @property
    def label_blind(self) -> bool:
        """Whether gradients are weighted so that clipping does not bias the score (``per_record_gradients.py``).

        The default where the target's labels are bounded.
        """
        asked = self.privacy is not None and self.privacy.clipping != "residual"
        return asked and self.target_offers.bounded_labels

    @property
    def batch_size(self) -> float:
        """b, the expected batch size."""
        return expected_batch(self.sampling, self.num_records)

    @property
    def temperatures(self) -> np.ndarray:
        """Temperature kept at each step, (steps,) float64; that of the plan's noise, not of minibatch noise."""
        return self.sampler_run.temperatures

    @property
    def time(self) -> float:
        """Langevin time the chain runs for; NaN for an optimiser, which has none."""
        return self.sampler_run.time

    @property
    def private_time(self) -> float | None:
        """Time μ²/(2C² chains) that the budget buys EACH chain at temperature 1 from full batches.

        (2μ²/C² unless replace_one.) Each step's Gaussian has μ_t = ΔC/s_t with s_t² = 2/η_t, so Σμ_t² = Δ²C²Ση_t/2
        is at most μ², the Gaussian budget of (ε, δ), less what a metric and the end of the chain
        take of it. None without privacy.
        """
        promise = self.privacy
        guarantee = self.guarantee
        if promise is None or guarantee is None:
            return None
        epsilon = guarantee.epsilon if promise.epsilon is None else promise.epsilon
        if not math.isfinite(epsilon):
            return math.inf
        left = 1.0 if self.metric is None else 1 - self.metric.asked.share
        left -= 0.0 if self.end is None else self.end.share
        mu = gaussian_mu(epsilon, promise.delta)
        return 2 * left * (mu / (guarantee.adjacency.sensitivity * promise.clip)) ** 2 / self.chains

    @property
    def schedule(self) -> Schedule:
        """Noisy queries of a private run's chain, and the charges of the stages around it.

        Raises:
            InputError: the run has no privacy.
        """
        if self.noise_multipliers is None:
            raise InputError("plan: has no privacy, so none of its queries is charged", "plan")
        return Schedule(
            self.noise_multipliers,
            self.sampling,
            self.num_records,
            self.chains,
            multiples(self.sampler_run.second),
            self.noise.coordinates,
            tuple(stage.charge for stage in self.stages if stage is not self.main),
            every_of(self.sampler_run.second),
        )

    @property
    def thesis_multiplier(self) -> tuple[float | None, str | None]:
        """(z of the corrected thesis formula for this many steps, or None; why it does not apply, or None)."""
        if self.privacy is None or self.privacy.epsilon is None:
            return None, "Wang's formula takes a target epsilon, and this plan has none"
        inputs: dict[str, Any] = {
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "steps": self.schedule.minibatches,
            "rate": self.batch_size / self.num_records,
        }
        return closed_form.formula(**inputs), closed_form.condition(**inputs)
