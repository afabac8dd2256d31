"""The life of a run: reserve its budget, check the records, take the steps, save, settle."""

from __future__ import annotations

import dataclasses
import datetime
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from dpmcmc import targets
from dpmcmc.engine.blocks import BoundPlan, DivergedError, run_together
from dpmcmc.engine.charged_again import with_charged_again
from dpmcmc.engine.checks import check_on_disk, check_records, checked_starts
from dpmcmc.engine.mesh import checked, sizes
from dpmcmc.engine.processes import agreed, check_alone, check_not_forked
from dpmcmc.engine.program import Program
from dpmcmc.engine.reservation import Reservation, reserved
from dpmcmc.engine.result import Result
from dpmcmc.engine.template import template
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.charging import charged_again
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.privacy.query.randomness import SecretKey, is_secret, streams_of
from dpmcmc.privacy.query.second_moment import multiples
from dpmcmc.storage.checkpoint import Checkpoint, opened
from dpmcmc.storage.compiled_programs import refuse_unsafe_caches
from dpmcmc.storage.run_folder import today

Progress = Callable[[int, int], None]


def sample(
    plan: Plan,
    data: Any,
    *,
    key: SecretKey | jax.Array | int | None = None,
    starts: Any = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
    ledger: Reservation | Ledger | str | Path | None = None,
    mesh: Mesh | None = None,
) -> Result:
    """Run a plan on records.

    Args:
        plan: from :func:`dpmcmc.plan`.
        data: pytree of arrays with leading axis N = ``plan.num_records``.
        key: None or a ``SecretKey``: fresh OS entropy, and the run carries its guarantee. A JAX key or an int
            makes the run reproducible, and anybody who knows it can subtract the noise: no guarantee.
        starts: where the chains start, a pytree like the target's parameters with leaves (chains, ...): a private
            release whose guarantee the plan was made ``after``. None: the target's own start.
        out: folder to save the result in, made before anything is charged; as :meth:`Result.save` does of records that
            are not public.
        progress: called on the host with (steps done, steps in all).
        checkpoint: folder of what a run that is stopped needs to go on; called again with the same plan and records,
            the run goes on there. It holds keys until the run is done: confidential. Remove it once the draws are
            saved.
        ledger: budget ledger to charge: the whole guarantee before a record is read. Whoever has reserved it already
            gives the Reservation, and settles it.
        mesh: devices that share the work, from :func:`dpmcmc.mesh`; None: one device. The guarantee is the same.

    Returns:
        Result, with draws of shape (chains, draws, ...).

    Raises:
        OSError: ``out`` cannot be made.
        ValueError: wrong N or shapes, or rows that are not finite (before anything is computed from them); a checkpoint
            or a ledger in one of several processes; a process forked from one that has run.
        UnsafeCache: somebody else can change what is in a cache folder, compiled programs among it.
        MiscompiledError: the compiled program failed its self-test; no step was taken on the records.
        LedgerError: the run is over the ledger's budget.
        CheckpointError: the checkpoint is of another plan or other records.
        DivergedError: a chain left the range of floats.
    """
    day = today()
    guarantee, label = plan.guarantee if is_secret(key) else None, type(plan.sampler).__name__
    mesh = checked(mesh)
    refuse_unsafe_caches()
    check_not_forked()
    check_alone(checkpoint=checkpoint, ledger=ledger)
    if out is not None and jax.process_index() == 0:
        Path(out).mkdir(parents=True, exist_ok=True)
    with opened(checkpoint) as kept, reserved(ledger, guarantee, label, kept, plan.num_records) as held:
        check_on_disk(plan, data)
        records = check_records(plan, data, host=mesh is not None)
        target = targets.bind(plan.target, targets.record_shapes(records))
        begun = checked_starts(plan, target, starts)
        if held is not None and held is not ledger:
            held.identify(data)
        streams, secret = streams_of(key, plan.hardened)
        program = Program.of(plan, template(target), template(plan.sampler), mesh=mesh)
        run = BoundPlan(plan, target, agreed(streams, secret, plan, (records, begun), mesh), secret, starts=begun)
        if kept is not None:
            run = _resumed(run, kept, (data, starts), held, mesh)
        if held is not None:
            held.start(plan.guarantee)
        report = None if progress is None else lambda done: progress(done, plan.steps)
        (outcome,) = run_together(program, [run], records, report, kept)
        if isinstance(outcome, DivergedError):
            raise outcome
        if held is not None:
            outcome = dataclasses.replace(outcome, receipt=held.receipt)
        if out is not None and jax.process_index() == 0:
            _save(outcome, out, day)
    return outcome


def _save(result: Result, out: str | Path, day: datetime.date) -> None:
    """Save a result whose cost is spent; where that fails, the caller still gets it."""
    try:
        result.save(out, day=day)
    except OSError as error:
        warnings.warn(
            f"out: the result could not be saved ({error.filename or out}: {error.strerror or error}); it is returned, "
            "so save it elsewhere with result.save(folder).",
            stacklevel=3,
        )


def _resumed(run: BoundPlan, kept: Checkpoint, data: Any, held: Reservation | None, mesh: Mesh | None) -> BoundPlan:
    """The run with the keys that its checkpoint has, or with its own where it begins or comes from elsewhere."""
    streams, moved = kept.begin(run.plan, data, run.streams, run.secret, None if mesh is None else sizes(mesh))
    if not moved:
        return run._replace(streams=streams)
    again: tuple[Event, ...] = ()
    plan, point = run.plan, kept.point()
    if plan.guarantee is not None:
        assert plan.noise_multipliers is not None
        # Without a commit to say how far the run may have got, as far as it goes.
        first, until, chains = 0, plan.steps, plan.chains
        if point is not None and point.sure:
            first, until = point.step, min(point.until, plan.steps)
            chains = min(point.shape[0], max(plan.chains - point.block, 0))
        again = charged_again(
            plan.guarantee,
            plan.noise_multipliers[first:until],
            plan.sampling,
            plan.num_records,
            chains,
            multiples(plan.second),
        )
        with_charged_again(plan.guarantee, kept, again)  # raises where nothing covers both
    if held is not None and again:
        held.extend(again, f"steps {first} to {until} taken again on another platform")
    kept.moved([event.to_json() for event in again], run.streams)
    return run
