"""Runs many plans on the same records: those that differ in numbers alone are cells of one device program.

An experiment of 8 values of ε and 10 repeats is 80 plans of one sampler. ``sample`` in a loop checks and copies the
records 80 times and drives one chain at a time; here a block of cells shares each step. Plans of one program may
differ in noise and its draws, steps, burn-in, thinning, chains, clip norm, room for a batch, and every number of the
sampler and the target that the code does not branch on. These numbers are found by tracing a step with all of them
open; where that fails, with those that can be.

**Guarantee.** Nothing is shared that is secret: each plan has keys of its own, and reads records through its own query.
So each result carries its own plan's guarantee, and what leaves a sweep costs the composition of them all, as 80
single runs do. A plan whose batches have less room than others' gets theirs: its batches overflow more seldom than it
is charged for.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Hashable, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc.engine.blocks import BoundPlan
from dpmcmc.engine.chains import Chains, Given, run_together
from dpmcmc.engine.life import Key, Life
from dpmcmc.engine.program import Cells, Program
from dpmcmc.engine.result import DivergedError, Result
from dpmcmc.engine.template import numbers, template
from dpmcmc.engine.work import Progress
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.storage.pytree import PyTree

#: (role, field) of a number that plans of one program may differ in.
Name = tuple[str, str]
_CLIP = ("query", "clip")


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
        ValueError: as many keys as plans are needed; a mechanism's plan; a SecretKey given twice; a ledger in one of
            several processes; or what ``sample`` refuses in the data, before anything is computed from them.
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
    opener = _Opener(lives[0].work.records)
    for at, life in enumerate(lives):
        if not isinstance(life.work, Chains):
            raise InputError(f"plans: {life.plan.label} is a mechanism, and a sweep takes samplers' plans; use sample")
        run, key = life.work.bound(life.streams, life.secret), None
        if run.plan.metric is not None:
            # Runs in metrics of their own read rows of their own.
            program, key = life.work.program(), at
        else:
            program, run = opener.open(run)
            program = dataclasses.replace(program, mesh=life.mesh)
        group = groups.setdefault(_identity(program, run) if key is None else key, _Group(program))
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

    def told(self) -> list[BoundPlan]:
        """Return the runs, each with its own numbers of draws where these differ."""
        if all(len(among) == 1 for among in self.program.levels):
            return self.runs
        own = [run.numbers.get("query", {}) | {"levels": np.array(run.plan.levels, np.int32)} for run in self.runs]
        return [run._replace(numbers=run.numbers | {"query": query}) for run, query in zip(self.runs, own, strict=True)]

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

        outcomes = run_together(group.program, group.told(), records, report, None, group.begin)
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
    """Return a program without what those of one group may differ in; noise from floats is not among it."""
    return dataclasses.replace(program, slots=0, levels=tuple((min(n[0], 1),) for n in program.levels))


class _Opener:
    """Decides which numbers of a plan its program leaves open, and remembers it for plans alike.

    Args:
        records: as the device holds them; only their shapes are looked at.
    """

    def __init__(self, records: PyTree) -> None:
        self._records = records
        self._traces: dict[Program, bool] = {}
        self._alone: dict[Program, list[Name]] = {}

    def open(self, run: BoundPlan) -> tuple[Program, BoundPlan]:
        """(program, the run with the numbers that the program leaves open)."""
        names = list(_numbers(run))
        try:
            hash((_program(run, ()), _program(run, names)))
        except TypeError:  # a user's target or sampler without a hash is like nothing else
            names = []
        if names and not self._works(run, names):
            whole = _alike(_program(run, names))
            if whole not in self._alone:
                self._alone[whole] = [name for name in names if self._works(run, [name])]
            names = self._alone[whole]
            names = names if self._works(run, names) else []
        return _program(run, names), _opened(run, names)

    def _works(self, run: BoundPlan, names: list[Name]) -> bool:
        """Whether a step can be traced with these numbers open, and keeps the form of the state."""
        program = _program(run, names)
        alike = _alike(program)
        if alike not in self._traces:

            def step(cell: Cells, noise_std: jax.Array, records: PyTree) -> tuple[PyTree, PyTree]:
                state = program.start(cell)
                return state, program.step(cell, state, cell.chain, noise_std, records)[0]

            cell = Cells(_opened(run, names).numbers, run.streams, np.int32(0), np.int32(1))  # type: ignore[arg-type]
            try:
                state, following = jax.eval_shape(step, cell, np.float32(1), self._records)
                same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), state, following)
                self._traces[alike] = all(jax.tree.leaves(same))
            except Exception:  # code that branches on a number, or wants it as a Python one, fails in ways of its own
                self._traces[alike] = False
        return self._traces[alike]


def _numbers(run: BoundPlan) -> dict[Name, np.float32]:
    """Every number of a run that a program may leave open."""
    found = {("target", name): value for name, value in numbers(run.target).items()}
    found |= {("sampler", name): value for name, value in numbers(run.plan.sampler).items()}
    if run.plan.privacy is not None:
        found[_CLIP] = np.float32(run.plan.privacy.clip)
    return found


def _program(run: BoundPlan, names: Collection[Name]) -> Program:
    fields = {role: [field for r, field in names if r == role] for role in ("target", "sampler")}
    target, sampler = template(run.target, fields["target"]), template(run.plan.sampler, fields["sampler"])
    return Program.of(run.plan, target, sampler, trace_clip=_CLIP in names)


def _opened(run: BoundPlan, names: Collection[Name]) -> BoundPlan:
    opened: dict[str, dict[str, np.float32 | np.ndarray]] = {}
    values = _numbers(run)
    for role, field in names:
        opened.setdefault(role, {})[field] = values[role, field]
    return run._replace(numbers=opened)
