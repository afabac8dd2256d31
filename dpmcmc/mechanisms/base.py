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
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.data.checks import Marked
from dpmcmc.data.schema import Schema
from dpmcmc.engine.chains import Chains, check_room
from dpmcmc.engine.life import sample
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.work import Progress, Session, Work, work_of
from dpmcmc.errors import InputError
from dpmcmc.inference.evidence import Evidence
from dpmcmc.planning.description import guaranteed, labelled, section
from dpmcmc.planning.permitted import Verdict
from dpmcmc.planning.plan import AnyPlan, Plan
from dpmcmc.planning.verdict import of_one_shot
from dpmcmc.privacy.accounting.events import Event, round_up
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.gaussian_release import within
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.checkpoint import Point
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, check_bound, target_offers
from dpmcmc.targets.last_layer import LastLayer

#: Bytes that a number of a draw takes while it is made: its normal in float64, and the random words of that.
_BYTES = 64


class MechanismOffers:
    """All that a mechanism may offer beside ``plan`` and ``draw``; None is not offered."""

    #: The kind of release, as a Guarantee says it.
    release: str | None = None
    #: plan -> (whether intervals of the draws hold, why), of a mechanism whose draws account for its noise.
    intervals: Callable[[Any], tuple[bool, str]] | None = None
    #: (plan, records, streams) -> (draws, evidence), of a mechanism that releases more than draws.
    drawn: Callable[[Any, Any, Any], Any] | None = None

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
        mechanism: what is released, and how (``one_shot.py``).
        target: the model, bound to its public facts.
        num_records: N, public.
        guarantee: of everything that leaves.
        settings: public numbers that were settled (temper, noise std, ...), for people and for ``plan.json``.
        draws: how many draws leave.
        first: plan of the draw that a hybrid's run starts from, or None.
        run: plan of a hybrid's run, or None.
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
    first: MechanismPlan | None = None
    run: Plan | None = None
    schema: Schema | None = None
    reasons: tuple[str, ...] = ()

    @property
    def charged_draws(self) -> int:
        """Posterior draws that the guarantee must charge for; 0 for a point estimate."""
        if self.first is not None:
            return self.first.charged_draws
        return 0 if self.mechanism.release == "estimate" else self.draws

    @property
    def runs(self) -> tuple[Plan, ...]:
        """Plans of a sampler that the release carries out."""
        return () if self.run is None else (self.run,)

    @property
    def label(self) -> str:
        """Name of the mechanism."""
        return type(self.mechanism).__name__

    @property
    def parts(self) -> tuple[object, ...]:
        """Target, the sampler of a hybrid, and mechanism."""
        return (self.target, *(run.sampler for run in self.runs), self.mechanism)

    @property
    def sections(self) -> dict[str, Any]:
        """Target and mechanism of the config that makes the plan, and the sections of a hybrid's run."""
        of_run = {} if self.run is None else self.run.sections
        return of_run | {"target": section(self.target, targets.TARGETS), "mechanism": section(self.mechanism)}

    @property
    def trace(self) -> Plan | None:
        """Plan of a hybrid's run, or None."""
        return self.run

    @functools.cached_property
    def verdict(self) -> Verdict:  # type: ignore[override]
        """Permitted uses of the release, and why; a hybrid's are those of its run."""
        if self.run is not None:
            return self.run.verdict
        width = self.settings.get("predicted_width")
        return of_one_shot(self.guarantee, self.num_records, self.target, self._intervals(), width)

    def _intervals(self) -> tuple[bool, str]:
        """Whether intervals of the draws hold, and why."""
        # A mechanism whose draws account for its noise says so itself.
        own = self.mechanism.intervals
        return (False, self._no_intervals()) if own is None else own(self)

    def _no_intervals(self) -> str:
        if self.draws == 1:
            return "Do not report intervals: one release has no spread."
        temper = self.settings.get("temper", 1.0)
        what = "the posterior" if temper >= 1 else f"a posterior whose likelihood has the power {temper:.3g}"
        return f"Do not report intervals: nothing shows that intervals of {self.draws} draws of {what} cover."

    def facts(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the plan beside its guarantee."""
        settled = {"mechanism": repr(self.mechanism), "settings": self.settings, "charged_draws": self.charged_draws}
        return {
            "num_records": self.num_records,
            "hardened": True,
            "in_floats": self._in_floats,
            **({} if self.run is None else self.run.facts()),
            **settled,
        }

    @property
    def unproved(self) -> str:
        """Part that the proof of the noise does not cover; empty where it covers all of it."""
        return f"{self._in_floats} is computed in floating point" if self._in_floats else ""

    @property
    def _in_floats(self) -> str:
        """Name the part that is drawn in floating point; empty where none is."""
        return (self.mechanism if self.first is None else self.first.mechanism).in_floats

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
            "run": None if self.run is None else self.run.to_json(secret),
            "guarantee": self.guarantee.to_json() if secret else None,
            **self.schema_json(),
            **self.sentences_json(),
            **self.verdict.to_json(),
        }

    def lines(self, secret: bool = True) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe the plan to a person."""
        out = [("target", repr(self.target)), ("mechanism", repr(self.mechanism))]
        if self.run is not None:
            # The run's own guarantee and verdict already cover the draw before it.
            own = ("target", "sampler", "unproved")
            out += [line for line in self.run.lines(secret) if line[0] not in own]
        else:
            out.append(("guarantee", guaranteed(self.guarantee, secret)))
        said = (f"{name} {_said(name, value)}" for name, value in self.settings.items())
        out += [("settings", ", ".join(said)), *labelled("unproved", self.unproved)]
        return out if self.run is not None else out + self.verdict.lines()


#: A mechanism's plan is carried out as any other, under this name too.
release = sample
#: A mechanism releases a Result.
Release = Result


class _OneShot:
    """Work on a mechanism's plan: one declared access to the records.

    Attributes:
        records: checked, NumPy arrays.
    """

    records: PyTree

    def __init__(self, plan: MechanismPlan) -> None:
        self._plan = plan

    def read(self, data: PyTree, starts: PyTree, mesh: Mesh | None, like: Work | None) -> None:
        """Refuse what :func:`dpmcmc.sample` says, and keep the records; see :class:`Work`."""
        for name, given in (("starts", starts), ("mesh", mesh)):
            if given is not None:
                raise InputError(f"{name}: a mechanism's release takes none; leave it out")
        self.records = _check_records(self._plan, data)
        self._plan.mechanism.check(self._plan, self.records)
        check_room(self._bound, self._plan.draws, _BYTES)

    def carry_out(self, session: Session, progress: Progress | None) -> Result:
        """Draw, unless the checkpoint holds what was drawn; see :class:`Work`."""
        plan, kept = self._plan, session.kept
        for run in plan.runs if session.secret else ():
            self._test_run(run)
        session.begin()
        started, guarantee, target = time.perf_counter(), session.guarantee, self._bound
        before = None if kept is None else kept.kept()
        if before is not None:
            structure = jax.tree.structure(jax.eval_shape(target.init, jax.random.key(0)))
            *before, content = before
            positions = jax.tree.unflatten(structure, before)
            evidence = Evidence.of(content.tobytes()) if content.size else None
        else:
            positions, evidence = self._drawn(session.streams, guarantee, None if kept is None else kept.inner)
            if kept is not None:
                saved = b"" if evidence is None else evidence.content()
                kept.keep([*jax.tree.leaves(positions), np.frombuffer(saved, np.uint8)])
        seconds = {"run": time.perf_counter() - started}
        constrain = target_offers(target).constrain
        draws = positions if constrain is None else jax.tree.map(np.asarray, jax.vmap(jax.vmap(constrain))(positions))
        return Result(plan, draws, positions, None, guarantee, seconds, evidence=evidence)

    @property
    def _bound(self) -> Target:
        """Target, bound to the records' shapes."""
        return targets.bind(self._plan.target, targets.record_shapes(self.records))

    def _test_run(self, run: Plan) -> None:
        """Compile and test a sampler's run before it is charged; zeros stand for a start that is not known yet."""
        starts = None
        if run.after is not None:
            shapes = jax.eval_shape(self._bound.init, jax.random.key(0))
            starts = jax.tree.map(lambda leaf: np.zeros((run.chains, *leaf.shape)), shapes)
        chains = Chains(run)
        # A candidate of a selection has a part of the records.
        chains.read(jax.tree.map(lambda leaf: leaf[: run.num_records], self.records), starts, None, None)
        chains.compile_and_test()

    def _drawn(
        self, streams: Streams, guarantee: Guarantee | None, inner: Path | None
    ) -> tuple[PyTree, Evidence | None]:
        """Positions (chains, draws, ...), with evidence: one chain; a hybrid's run has its own, and ``inner``."""
        plan = self._plan
        kept = {} if plan.run is None else {"checkpoint": inner}
        try:
            # Warnings of a library here are functions of the records.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                # A mechanism that releases more than draws says so itself.
                own = plan.mechanism.drawn
                if own is None:
                    drawn, evidence = plan.mechanism.draw(plan, self.records, streams, **kept), None
                else:
                    drawn, evidence = own(plan, self.records, streams)
        except DivergedError as error:
            raise DivergedError(error.step, 0.0, guarantee) from None
        rows = 1 if plan.run is None else plan.run.chains
        positions = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32).reshape((rows, -1, *leaf.shape[1:])), drawn)
        return positions, evidence

    def repeated(self, point: Point | None) -> tuple[tuple[Event, ...], str]:
        """The whole release; see :class:`Work`."""
        return self._plan.guarantee.events, "released again on another platform"


@work_of.register
def _(plan: MechanismPlan) -> Work:
    return _OneShot(plan)


def _check_records(plan: MechanismPlan, data: PyTree) -> PyTree:
    """NumPy arrays of the right length, finite, and within the public bounds that the proof rests on."""
    targets.check_rows(data, plan.num_records)
    targets.check(plan.target, data)
    records = jax.tree.map(np.asarray, data)
    owners = isinstance(plan.target, targets.PerOwner)
    model = plan.target.target if owners else plan.target
    offers = target_offers(model)
    row_bound, label_bound = offers.row_bound, offers.label_bound
    if row_bound is not None and not isinstance(model, LastLayer):  # it bounds its own features
        x = records["x"]
        rows = x.reshape(-1, *x.shape[2:]) if owners else x
        check_bound(rows, row_bound, "the guarantee")
        # Rows that rounding left beyond the bound are scaled back.
        records = {**records, "x": within(np.asarray(rows, np.float64), row_bound).reshape(x.shape)}
    if label_bound is not None:
        beyond = Marked()
        # In float64: the smallest signed integer has no absolute value of its own type.
        sizes = np.abs(np.asarray(records["y"], np.float64))
        beyond.add(0, np.any(sizes.reshape(len(sizes), -1) > label_bound, axis=1))
        beyond.refuse(f"data['y']: some labels are beyond the public label_bound {label_bound:g}: clip labels to it.")
    return records


def _said(name: str, value: float) -> str:
    """A number for people; a price never below what it is."""
    return round_up(value) if "epsilon" in name or name == "mu" else f"{value:.4g}"
