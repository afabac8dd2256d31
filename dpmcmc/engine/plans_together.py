"""``sample_all`` runs many plans on the same records: those that differ in numbers alone share one device program.

An experiment of 8 values of ε and 10 repeats is 80 plans of one sampler. ``sample`` in a loop checks and copies the
records 80 times and drives one chain at a time; here the chains of many plans share each step. Plans of one program may
differ in noise and its draws, steps, burn-in, thinning, chains, clip norm, room for a batch, and the numbers of the
sampler and the target (``storage/structure.py``). ``life.py`` is the life of each run.

**Guarantee.** Nothing is shared that is secret: each plan has keys of its own, and reads records through its own
query. So each result carries its own plan's guarantee, and what leaves a sweep costs the composition of them all, as
80 single runs do. A plan whose batches have less room than others' gets theirs: its batches overflow more seldom
than it is charged for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Sequence
from pathlib import Path

from jax.sharding import Mesh

from dpmcmc.engine.blocks import BoundPlan
from dpmcmc.engine.chains import Chains, run_together
from dpmcmc.engine.life import Key, Life
from dpmcmc.engine.program import Program
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.work import Given, Progress
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.storage.pytree import PyTree


def sample_all(
    plans: Sequence[Plan],
    data: PyTree,
    *,
    keys: Sequence[Key] | None = None,
    starts: Sequence[PyTree] | None = None,
    progress: Progress | None = None,
    ledger: Ledger | str | Path | None = None,
    mesh: Mesh | None = None,
) -> list[Result | DivergedError]:
    """Run many plans on the same records; a plan given several times is run that often, independently.

    Args:
        plans: from :func:`dpmcmc.plan`, of any kind. Those that differ in numbers alone run as one program.
        data: as of :func:`dpmcmc.sample`, of N = ``num_records`` of every plan.
        keys: one per plan, as :func:`dpmcmc.sample` takes it; None is fresh OS entropy for every plan. Under one JAX
            key or int a plan has the draws that ``sample`` gives it, up to float32 rounding; a Poisson plan with fewer
            slots than another of its program has other draws of the same law.
        starts: one per plan, as :func:`dpmcmc.sample` takes it, or None; None for all: the targets' own.
        progress: called on the host with (steps done, steps in all), summed over plans.
        ledger: budget ledger to charge, every plan's guarantee before a record is read; all of them, or none.
        mesh: devices that share the work, as :func:`dpmcmc.sample` takes it.

    Returns:
        One item per plan, in their order: its Result, or the DivergedError that ``sample`` would raise, which leaves
        the others as they are. A Result's wall time is its share of its program's, by steps.

    Raises:
        ValueError: as many keys as plans are needed; a mechanism's plan; a SecretKey given twice; or what ``sample``
            refuses in the data, before anything is computed from them.
        LedgerError: the plans together are over the ledger's budget.
        UnsafeCache: somebody else can change what is in a cache folder.
    """
    plans = list(plans)
    keys = [None] * len(plans) if keys is None else list(keys)
    starts = [None] * len(plans) if starts is None else list(starts)
    for name, given in (("keys", len(keys)), ("starts", len(starts))):
        if given != len(plans):
            raise InputError(f"{name} must be one per plan: got {given} for {len(plans)} plans")
    if not plans:
        return []
    with contextlib.ExitStack() as stack:
        lives = [
            stack.enter_context(Life(plan, key=key, ledger=ledger, mesh=mesh, label="sweep"))
            for plan, key in zip(plans, keys, strict=True)
        ]
        _read(lives, data, starts)
        outcomes = _run(_grouped(lives), lives[0].work.records, progress)
        return [
            outcome if isinstance(outcome, DivergedError) else life.with_receipt(outcome)
            for life, outcome in zip(lives, outcomes, strict=True)
        ]


def _read(lives: list[Life], data: PyTree, starts: list[PyTree]) -> None:
    """Read the records once, and check them for every target."""
    seen: dict[tuple[int, int], Life] = {}
    for life, start in zip(lives, starts, strict=True):
        about = (life.plan.num_records, id(life.plan.target))
        like = None if not seen else seen.get(about, lives[0])
        life.read(data, start, like)
        seen.setdefault(about, life)


def _grouped(lives: list[Life]) -> list[_Group]:
    """Plans by the program that they share."""
    groups: dict[Hashable, _Group] = {}
    for at, life in enumerate(lives):
        if not isinstance(life.work, Chains):
            raise InputError(f"plans: {life.plan.label} is a mechanism, and a sweep takes samplers' plans; use sample")
        run = life.work.bound(life.streams, life.secret)
        program = life.work.program()
        # Runs that release something first begin in metrics or at starts of their own.
        alone = run.plan.metric is not None or run.plan.start is not None
        key = at if alone else _identity(program, run)
        group = groups.setdefault(key, _Group(program))
        group.add(at, program, run, life)
    return list(groups.values())


@dataclasses.dataclass
class _Group:
    """Plans of one program, and where they stand among all."""

    program: Program
    runs: list[BoundPlan] = dataclasses.field(default_factory=list)
    places: list[int] = dataclasses.field(default_factory=list)
    lives: list[Life] = dataclasses.field(default_factory=list)

    def add(self, at: int, program: Program, run: BoundPlan, life: Life) -> None:
        """Add a run with its program, which may have fewer slots and other numbers of draws than the group's."""
        levels = tuple(tuple(sorted({*a, *b})) for a, b in zip(program.levels, self.program.levels, strict=True))
        self.program = dataclasses.replace(program, slots=max(program.slots, self.program.slots), levels=levels)
        self.places.append(at)
        self.runs.append(run)
        self.lives.append(life)

    def begin(self) -> Given | None:
        """Spend the budget of every run, which the group is about to take steps of; see :meth:`Chains.begin`."""
        given = None
        for life in self.lives:
            assert isinstance(life.work, Chains)
            given = life.work.begin(life)
        return given


def _run(groups: list[_Group], records: PyTree, progress: Progress | None) -> list[Result | DivergedError]:
    found: dict[int, Result | DivergedError] = {}
    total = sum(run.plan.steps for group in groups for run in group.runs)
    before = 0
    for group in groups:

        def report(done: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        with group.lives[0]._losses():
            outcomes = run_together(group.program, group.runs, records, report, None, group.begin)
        found |= zip(group.places, outcomes, strict=True)
        before += sum(run.plan.steps for run in group.runs)
    # A diverged run stops before its last step.
    if progress is not None:
        progress(total, total)
    return [found[at] for at in range(len(found))]


def _identity(program: Program, run: BoundPlan) -> Hashable:
    """Equal for runs that go together."""
    same = _alike(program), run.streams.batch.dtype, run.starts is None
    try:
        hash(same)
    except TypeError:
        return id(run.plan)
    return same


def _alike(program: Program) -> Program:
    """Return a program without what those of one group may differ in; whether they are private is not among it."""
    return dataclasses.replace(program, slots=0, levels=tuple((min(n[0], 1),) for n in program.levels))
