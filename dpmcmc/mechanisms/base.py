"""One-shot mechanism: it reads all records once and lets one estimate, or a few draws, leave.

A mechanism settles its guarantee and every number that the guarantee rests on in ``plan``, from public
quantities alone; ``draw`` is its single declared access to the records. Adding one is one file and one line
of ``MECHANISMS``.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.data.schema import Schema
from dpmcmc.engine.chain_checks import check_room
from dpmcmc.engine.chains import Chains
from dpmcmc.engine.life import sample
from dpmcmc.engine.partitions import PartitionedRecords
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.shards import shards_of
from dpmcmc.engine.work import Progress, Session, Work, released, work_of
from dpmcmc.errors import InputError
from dpmcmc.inference.evidence import Evidence
from dpmcmc.mechanisms.checked_records import Fits, checked
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.description import guaranteed, labelled
from dpmcmc.planning.own_code import assumed
from dpmcmc.planning.permitted_uses import REFUSED, Use, Verdict
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.settings_json import section
from dpmcmc.planning.verdict import of_one_shot
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records, Whole
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, target_offers

#: Bytes that a number of a draw takes while it is made: its normal in float64, and the random words of that.
_BYTES = 64


class MechanismOffers:
    """All that a mechanism may offer beside ``plan`` and ``draw``; None is not offered."""

    #: The kind of release, as a Guarantee says it.
    release: str | None = None
    #: Whether the release is pure ε-DP, so that δ may be 0.
    pure: bool = False
    #: Arrays of a record beside x and y that the mechanism takes, ``offset`` and ``weight``.
    honours: frozenset[str] = frozenset()
    #: plan -> (whether intervals of the draws hold, why), of a mechanism whose draws account for its noise.
    intervals: Callable[[Any], Use] | None = None
    #: (plan, records, streams) -> (draws, evidence), of a mechanism that releases more than draws.
    drawn: Callable[[Any, Any, Any], Any] | None = None

    def reads_sums(self, target: Any) -> bool:
        """Return whether ``draw`` reads records through exact sums alone (``privacy/query/record_sums.py``).

        It is then given :class:`~dpmcmc.privacy.query.record_sums.Records`, of a table that may be partitioned, and
        otherwise arrays.
        """
        return False

    @property
    def in_floats(self) -> str:
        """Part that is drawn in floating point; empty where all randomness is in integers."""
        return ""

    def check(self, plan: MechanismPlan, records: PyTree) -> None:
        """Refuse records, or code of the user's own, that ``draw`` would fail on; only shapes are evaluated.

        Nothing is charged yet. A mechanism whose draw rests on more than the target's own check has its refusals here.

        Raises:
            InputError: one sentence of public facts.
        """


@dataclass(frozen=True, eq=False)
class MechanismPlan(AnyPlan):
    """A one-shot release before it reads a record.

    Attributes:
        mechanism: what is released, and how (``base.py``).
        target: the model, bound to its public facts.
        num_records: N, public.
        guarantee: of everything that leaves.
        settings: public numbers that were settled (temper, noise std, ...), for people and for ``plan.json``.
        draws: how many draws leave.
        schema: public facts of a table's columns, or None where records are arrays.
        reasons: why the plan is as it is, where :func:`dpmcmc.suggest` made it.

    Example:
        >>> from dpmcmc.mechanisms import ObjectivePerturbation
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = ObjectivePerturbation(regularisation=10.0).plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.draws, plan.usable_for
        (1, ['prediction'])
        >>> plan.settings["regularisation"]
        10.0
    """

    mechanism: Any
    target: Any
    num_records: int
    guarantee: Guarantee
    settings: dict[str, float]
    draws: int = 1
    schema: Schema | None = None
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "guarantee", self.guarantee.assuming(*assumed(self)))

    @property
    def charged_draws(self) -> int:
        """Posterior draws that the guarantee must charge for; 0 for an estimate, and for what follows from labels."""
        return 0 if self.mechanism.release in ("estimate", "labels") else self.draws

    @property
    def runs(self) -> tuple[Plan, ...]:
        """Plans of a sampler that the release carries out within itself."""
        return ()

    @property
    def label(self) -> str:
        """Name of the mechanism."""
        return type(self.mechanism).__name__

    @property
    def parts(self) -> tuple[object, ...]:
        """Target, samplers of runs within the release, and mechanism."""
        return (self.target, *(run.sampler for run in self.runs), self.mechanism)

    @property
    def sections(self) -> dict[str, Any]:
        """Target and mechanism of the config that makes the plan."""
        return {
            "target": section(self.target, targets.TARGETS),
            "mechanism": section(self.mechanism),
        }

    @functools.cached_property
    @on_one_blas_thread
    def verdict(self) -> Verdict:  # type: ignore[override]
        """Permitted uses of the release, and why."""
        width = self.settings.get("predicted_width")
        return of_one_shot(self.guarantee, self.num_records, self.target, self._intervals(), width)

    def _intervals(self) -> Use:
        """Whether intervals of the draws hold, and why."""
        # A mechanism whose draws account for its noise says so itself.
        own = self.mechanism.intervals
        return self._no_intervals() if own is None else Use(*own(self))

    def _no_intervals(self) -> Use:
        if self.draws == 1:
            brief = "one release has no spread"
            return Use(False, f"{REFUSED}: {brief}.", brief)
        temper = self.settings.get("temper", 1.0)
        what = "the posterior" if temper >= 1 else f"a posterior whose likelihood has the power {temper:.3g}"
        why = f"{REFUSED}: nothing shows that intervals of {self.draws} draws of {what} cover."
        return Use(False, why, "nothing shows that they cover")

    def facts(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the plan beside its guarantee."""
        return {
            "num_records": self.num_records,
            "hardened": True,
            "in_floats": self.mechanism.in_floats,
            "mechanism": repr(self.mechanism),
            "settings": self.settings,
            "charged_draws": self.charged_draws,
        }

    @property
    def unproved(self) -> str:
        """Part that the proof of the noise does not cover; empty where it covers all of it."""
        part = self.mechanism.in_floats
        return f"{part} is computed in floating point" if part else ""

    def to_json(self, secret: bool = True) -> dict[str, object]:
        """The plan in numbers; holds no record and no key. ``secret``: whether the release's noise is."""
        return {
            "label": self.label,
            "target": repr(self.target),
            "mechanism": repr(self.mechanism),
            "config": self.sections,
            "num_records": self.num_records,
            "unit": self.unit,
            "draws": self.draws,
            "settings": self.settings,
            "guarantee": self.guarantee.to_json() if secret else None,
            "facts": self.facts(),
            **self.schema_json(),
            **self.sentences_json(),
            **self.verdict.to_json(),
        }

    def lines(self, secret: bool = True) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe the plan to a person."""
        said = (f"{name} {_said(name, value)}" for name, value in self.settings.items())
        return [
            ("target", repr(self.target)),
            ("mechanism", repr(self.mechanism)),
            ("guarantee", guaranteed(self.guarantee, secret)),
            ("settings", ", ".join(said)),
            *labelled("unproved", self.unproved),
            *self.verdict.lines(),
        ]


#: A mechanism's plan is carried out as any other, under this name too.
release = sample
#: A mechanism releases a Result.
Release = Result
#: Positions, a pytree with leaves (1, draws, ...): one chain; and what the draws rest on, if they account for noise.
_Drawn = tuple[PyTree, Evidence | None]


class _OneShot:
    """Work on a mechanism's plan: one declared access to the records, which is the plan's only stage.

    Attributes:
        records: checked, NumPy arrays, or a table of which sums alone are asked.
    """

    records: PyTree | Records

    def __init__(self, plan: MechanismPlan) -> None:
        self._plan = plan

    @property
    def takes_partitions(self) -> bool:
        """Return whether records may be a table in partitions; see :class:`Work`."""
        return bool(self._plan.mechanism.reads_sums(self._plan.target))

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None, like: Work | None) -> None:
        """Refuse what :func:`dpmcmc.sample` says, and keep the records; see :class:`Work`."""
        if starts is not None:
            raise InputError("starts: a mechanism's release takes none; leave it out")
        plan = self._plan
        sums = self.takes_partitions
        if mesh is not None and not sums:
            raise InputError(
                f"mesh: {type(plan.mechanism).__name__} reads records one by one; mechanisms that release sums "
                "take a mesh (NoiseAware but of a NumPyro model, SufficientStatistics, AdaSSP), and so do "
                "samplers and hybrids; leave it out",
                "mesh",
            )
        if isinstance(data, PartitionedRecords):
            self._shapes = data.shapes
            one = data.data.shaped(1)
            targets.check(plan.target, one)
            plan.mechanism.check(plan, one)
            self.records = data.checked(Fits(plan.target), plan.num_records)
        else:
            found = checked(data, plan.target, plan.num_records, sums)
            plan.mechanism.check(plan, found)
            self._shapes = targets.record_shapes(found)
            if mesh is not None:
                self.records = shards_of(found, mesh)
            else:
                self.records = Whole(found) if sums else found
        check_room(self._bound, self._plan.draws, _BYTES)

    def carry_out(self, session: Session, progress: Progress | None) -> Result:
        """Draw, unless the checkpoint holds what was drawn; see :class:`Work`."""
        plan = self._plan
        target = self._bound
        for run in plan.runs if session.secret else ():
            self._test_run(run)
        session.begin()
        started = time.perf_counter()
        positions, evidence = released(0, self, session.streams, session, last=True)
        seconds = {"run": time.perf_counter() - started}
        constrain = target_offers(target).constrain
        draws = positions if constrain is None else jax.tree.map(np.asarray, jax.vmap(jax.vmap(constrain))(positions))
        return Result(plan, draws, positions, None, session.guarantee, seconds, evidence=evidence)

    @property
    def _bound(self) -> Target:
        """Target, bound to the records' shapes."""
        return targets.bind(self._plan.target, self._shapes)

    def _test_run(self, run: Plan) -> None:
        """Compile and test a sampler's run before it is charged."""
        chains = Chains(run)
        # A candidate of a selection has a part of the records. A mechanism that runs chains reads arrays.
        chains.read(
            jax.tree.map(lambda leaf: leaf[: run.num_records], self.records),
            None,
            None,
            None,
        )
        chains.compile_and_test()

    def made(self, streams: Streams, guarantee: Guarantee | None) -> _Drawn:
        """Draw, with what the draws rest on; see :class:`Release`."""
        plan = self._plan
        mechanism = self._plan.mechanism
        evidence = None
        try:
            # Warnings of a library here are functions of the records.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                # A mechanism that releases more than draws says so itself.
                if mechanism.drawn is None:
                    drawn = mechanism.draw(plan, self.records, streams)
                else:
                    drawn, evidence = mechanism.drawn(plan, self.records, streams)
        except DivergedError as error:
            raise DivergedError(error.step, 0.0, guarantee) from None
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32)[None], drawn), evidence

    def arrays(self, made: _Drawn) -> dict[str, np.ndarray]:
        """Return leaves of the positions, and what the draws rest on; see :class:`Release`."""
        positions, evidence = made
        content = b"" if evidence is None else evidence.content()
        leaves = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(positions))}
        return leaves | {"evidence": np.frombuffer(content, np.uint8)}

    def of(self, arrays: dict[str, np.ndarray]) -> _Drawn:
        """Return positions, and what the draws rest on; see :class:`Release`."""
        content = arrays.pop("evidence")
        structure = jax.tree.structure(jax.eval_shape(self._bound.init, jax.random.key(0)))
        positions = jax.tree.unflatten(structure, [arrays[str(i)] for i in range(len(arrays))])
        return positions, Evidence.of(content.tobytes()) if content.size else None

    def repeated(self, kept: Checkpoint) -> tuple[tuple[Event, ...], str]:
        """The whole release; see :class:`Work`."""
        return self._plan.guarantee.events, "released again on another platform"


@work_of.register
def _(plan: MechanismPlan) -> Work:
    return _OneShot(plan)


def _said(name: str, value: float) -> str:
    """A number for people; a price never below what it is."""
    return round_up(value) if "epsilon" in name or name == "mu" else f"{value:.4g}"
