"""The one life of a run, whatever its plan: reserve → read → begin → commit → save → settle.

    reserve   budget is taken from the ledger, where there is one, before a record is looked at
    read      records, starts and a checkpoint's keys are refused where they do not fit; nothing is computed from them
    begin     the program is compiled and has passed its self-test: the checkpoint gets the keys, the budget is spent
    commit    steps or draws are computed, and committed to the checkpoint, where there is one
    save      the caller writes ``privacy.json``, then the draws
    settle    the ledger's entry is closed

**Charged at most once, and never too late.** A run that ends before ``begin``, for whatever reason, gives its budget
back: until then nothing was computed from a record that could leave. All before ``begin`` depends on public facts
alone, apart from refusals of records, which are for the data holder: shapes decide what is compiled, and the self-test
takes made-up records and known keys. A run that ends after ``begin`` stays charged and its entry open: with a
checkpoint the run goes on under the same entry. A kill before ``begin`` leaves it open too: the resumed run finds it.

Claim: Nothing leaves a run before its cost is written; what a stopped run, or a copy of it, repeats is the same bits.
Proof: the order of a life; keys that are kept until the last commit, beside the name that the ledger knows.
Held by: test_the_cost_is_on_disk_before_the_first_step,
test_a_fault_costs_at_most_one_charge_and_nothing_leaves_without_its_cost,
test_a_stopped_run_goes_on_to_the_same_bits, test_on_another_platform_a_run_is_refused,
test_copies_of_a_run_that_has_begun_make_the_same_bits_under_one_charge,
test_of_copies_from_before_a_run_has_begun_one_begins, "draws saved before their cost",
"resume with the same keys on another platform", "resume with the same keys on other records"

:func:`sample` is one life, and ``dpmcmc run`` writes its files inside one. ``work_table.py`` says who carries out each
stage of a plan.

Several processes live one life together. Process 0 alone reserves, begins, commits and settles, and the others wait for
it (``processes.py``). So no process computes from a record before the budget is spent, and each is charged for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc.data.partitions import EncodedPartitions
from dpmcmc.data.table_files import is_stored
from dpmcmc.data.tables import load_table
from dpmcmc.engine.agreement import CheckpointOfFirst, Kept, check_alike, keys_of_first, said_by_first
from dpmcmc.engine.devices import Device, device_used, on_device
from dpmcmc.engine.mesh import check_repeatable, checked, sizes
from dpmcmc.engine.partitions import PartitionedRecords
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import Result
from dpmcmc.engine.rows_on_disk import check_mapped, mapped
from dpmcmc.engine.saving import check_apart, check_unpublished, save
from dpmcmc.engine.work import Progress
from dpmcmc.engine.work_table import work_of
from dpmcmc.engine.workers import EngineGiven, LostPartition, workers
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.verdict import warn_of_release, warn_unless_for_intervals
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Ledger, Receipt
from dpmcmc.privacy.ledger.place import place
from dpmcmc.privacy.query.randomness import SecretKey, Streams, is_secret, streams_of
from dpmcmc.report.progress import show_progress
from dpmcmc.storage.blas import one_blas_thread
from dpmcmc.storage.checkpoint import Checkpoint, open_checkpoint
from dpmcmc.storage.compiled_programs import refuse_unsafe_caches
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.run_folder import today
from dpmcmc.targets.base import record_shapes

Key = SecretKey | jax.Array | int | None


class _Found(NamedTuple):
    """Keys and facts that a run finds with its records.

    Attributes:
        streams: its keys.
        new: what its checkpoint is to keep with them; None of a run that goes on, or without one.
        shapes: of a record; None of a table in partitions.
        assumption: on where such a table comes from; empty otherwise.
    """

    streams: Streams
    new: dict[str, Any] | None
    shapes: PyTree
    assumption: str


@dataclass
class Life:
    """One run of one plan, which :func:`reserved` makes.

    Attributes:
        plan, key, mesh, engine: as of :func:`sample`.
        partitioned: gives a table in partitions to workers, which end with the life.
        own: its checkpoint, on process 0; None without one.
        kept: the same on every process.
        reservation: its place in its ledger; process 0 alone has it.
        receipt: of that.
        settles: whether it closes that entry, which is not the caller's.
        begun: whether something may have been computed from a record, now or before the run was stopped.
        found: what it has read, once it has.
    """

    plan: Plan
    key: Key
    mesh: Mesh | None
    engine: EngineGiven
    partitioned: Callable[[EncodedPartitions], PartitionedRecords]
    own: Checkpoint | None = None
    kept: Kept | None = None
    reservation: Reservation | None = None
    receipt: Receipt | None = None
    settles: bool = True
    begun: bool = False
    found: _Found | None = None

    def __post_init__(self) -> None:
        """Find who works on the plan."""
        self.work = work_of(self.plan)
        #: Whether the keys are secret, so that the run carries its guarantee.
        self.secret = is_secret(self.key)

    @property
    def streams(self) -> Streams:
        """Keys of the run, once it has read its records."""
        assert self.found is not None
        return self.found.streams

    @property
    def guarantee(self) -> Guarantee | None:
        """Guarantee of the whole run; it rests on more than the plan says where the records' origin is not seen."""
        planned = self.plan.guarantee if self.secret else None
        more = "" if self.found is None else self.found.assumption
        return planned.assuming(more) if planned is not None and more else planned

    @property
    def device(self) -> dict[str, str | int]:
        """Devices that the run computes on (:func:`~dpmcmc.engine.devices.device_used`)."""
        return device_used(self.mesh)

    def read(self, data: PyTree, starts: PyTree = None) -> None:
        """Read the records; see :func:`sample` for the arguments, and for what is refused."""
        with _told_of_losses(self):
            people = self._partitions(data)
            if people is not None:
                self._read(people, starts, None, data)
                return
            if self.plan.schema is not None and is_stored(data):
                data = load_table(data)  # once, for the records and for the ledger
            records = mapped(self.plan.records_of(data))
            self._read(records, starts, record_shapes(records), data)

    def _read(self, records: PyTree, starts: PyTree, shapes: PyTree, given: PyTree) -> None:
        """Refuse records that do not fit, and find the keys; ``given`` are those that the caller gave."""
        self.work.read(records, starts, self.mesh)
        known: PyTree = records
        columns: Callable[[], dict[str, np.ndarray]] = functools.partial(self.plan.columns_of, given)
        assumption = rounding = ""
        if isinstance(records, PartitionedRecords):
            assumption = records.data.assumption
            read = cast(PartitionedRecords, self.work.records)
            rounding = read.rounding
            known = None
            if self.reservation is not None or self.own is not None:
                known = read.content
                columns = read.known_columns
        check_alike(self.secret, self.plan, (known, starts), self.mesh)
        said_by_first(lambda: None if self.reservation is None else self.reservation.identify(known, columns))
        check_mapped(records)
        fresh, _ = streams_of(self.key, self.plan.guarantee is not None)
        shape = None if self.mesh is None else sizes(self.mesh)

        def keys() -> Streams:
            if self.own is None:
                return fresh
            found: Streams = self.own.keys(self.plan, (known, starts), fresh, self.secret, shape, rounding)
            return found

        streams = keys_of_first(keys, fresh)
        self.found = _Found(streams, None if self.own is None else self.own.new, shapes, assumption)

    def _partitions(self, data: PyTree) -> PartitionedRecords | None:
        """Return records that are read partition by partition; None of others.

        Raises:
            InputError: an engine, and nothing that it could compute on; or as :func:`workers`.
        """
        people = self.plan.partitions_of(data) if self.work.takes_partitions else None
        if people is None:
            if self.engine is not None:
                raise InputError(
                    "engine: workers compute on a table in partitions, for a plan that reads sums alone, and "
                    f"{self.plan.label} reads these data whole; leave it out",
                    "engine",
                )
            return None
        if self.mesh is not None:
            raise InputError(
                "mesh: workers of an engine compute on a table in partitions, and devices do not; leave mesh out, or "
                "give a table that is held whole",
                "mesh",
            )
        return self.partitioned(people)

    def begin(self) -> None:
        """Spend the budget: from here on something may be computed from a record.

        Raises:
            LedgerError: the reservation is another run's.
            CheckpointError: another run has begun in the checkpoint meanwhile.
        """

        def begin() -> None:
            if self.own is not None:
                assert self.found is not None
                self.own.begin(self.found.new)
            if self.reservation is not None:
                self.reservation.start(self.plan.guarantee, self.own)
            self.begun = True  # whatever becomes of the others

        said_by_first(begin)
        self.begun = True

    def carry_out(self, progress: Progress | None = None) -> Result:
        """Compute what the plan releases, from records that have been read.

        Raises:
            DivergedError, MiscompiledError, LedgerError, CheckpointError: see :func:`sample`.
        """
        assert self.found is not None
        with _told_of_losses(self):
            result = self.work.carry_out(self, progress)
        return dataclasses.replace(result, receipt=self.receipt, device=self.device, record=self.found.shapes)

    def settle(self, ended: bool = True) -> None:
        """Close the ledger's entry; see :meth:`Reservation.settle`."""
        if self.reservation is not None and self.settles:
            self.reservation.settle(ended)


@contextlib.contextmanager
def _told_of_losses(life: Life) -> Iterator[None]:
    """Say of a lost partition what it has cost, and what to do."""
    try:
        yield
    except LostPartition as error:
        if not life.begun:
            after = "nothing is spent, so start the run again"
        elif life.kept is None:
            after = "its budget is spent, and without a checkpoint another run costs it again"
        else:
            after = "its budget is spent, and the run goes on from its checkpoint at no further cost"
        raise LostPartition(f"{error}; nothing was released; {after}") from None


@contextlib.contextmanager
def reserved(
    plan: Plan,
    *,
    key: Key = None,
    checkpoint: Checkpoint | str | Path | None = None,
    ledger: Reservation | Ledger | str | Path | None = None,
    mesh: Mesh | None = None,
    label: str | None = None,
    engine: EngineGiven = None,
    trusted_network: bool = False,
    out: str | Path | None = None,
) -> Iterator[Life]:
    """Reserve, and settle in the end: what has begun is spent then, and what has not is given back.

    Args:
        plan, key, checkpoint, ledger, mesh, engine, trusted_network, out: as of :func:`sample`; of several processes,
            process 0's checkpoint and ledger count, and the others' are not looked at.
        label: names the run in the ledger's history; None: the plan's own.

    Raises:
        LedgerError: the run is over the ledger's budget.
        CheckpointError: the checkpoint is another process's, or none.
    """
    mesh = checked(mesh)
    refuse_unsafe_caches()
    check_not_forked()

    def check() -> None:
        if checkpoint is not None:
            check_repeatable(mesh)
        if jax.process_count() > 1 and isinstance(ledger, Reservation):
            raise InputError(
                "ledger: process 0 of several reserves, and a reservation is one process's; give the ledger's path or "
                "URL"
            )
        check_unpublished(checkpoint, ledger)
        if out is not None:
            Path(out).mkdir(parents=True, exist_ok=True)

    said_by_first(check)
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_blas_thread())

        def partitioned(people: EncodedPartitions) -> PartitionedRecords:
            found = PartitionedRecords(people, stack.enter_context(workers(engine, trusted_network)))
            stack.callback(found.forget)
            return found

        life = Life(plan, key, mesh, engine, partitioned, settles=not isinstance(ledger, Reservation))
        try:
            _reserve(life, checkpoint, ledger, plan.label if label is None else label, stack)
            yield life
        except BaseException:
            if not life.begun:
                life.settle(ended=False)
            raise
        life.settle()


def _reserve(
    life: Life,
    checkpoint: Checkpoint | str | Path | None,
    ledger: Reservation | Ledger | str | Path | None,
    label: str,
    stack: contextlib.ExitStack,
) -> None:
    """Open the checkpoint and reserve, on process 0, and tell the others."""

    def reserve() -> dict[str, Any]:
        kept = life.own = stack.enter_context(open_checkpoint(checkpoint))
        life.begun = kept is not None and kept.begun
        if isinstance(ledger, Reservation):
            life.reservation = ledger
        elif ledger is not None:
            life.reservation = Reservation(ledger, life.guarantee, label, kept, life.plan.num_records)
        receipt = None if life.reservation is None else life.reservation.receipt
        return {
            "begun": life.begun,
            "folder": None if kept is None else str(kept.folder),
            "receipt": None if receipt is None else receipt.to_json() | {"path": str(receipt.path)},
        }

    said = said_by_first(reserve)
    life.begun = said["begun"]
    several = said["folder"] is not None and jax.process_count() > 1
    life.kept = CheckpointOfFirst(life.own, said["folder"]) if several else life.own
    if life.reservation is not None:
        life.receipt = life.reservation.receipt
    elif said["receipt"] is not None:
        life.receipt = Receipt(**said["receipt"] | {"path": place(said["receipt"]["path"])})


def sample(
    plan: Plan,
    data: PyTree,
    *,
    key: Key = None,
    starts: PyTree = None,
    out: str | Path | None = None,
    progress: Progress | bool | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
    ledger: Reservation | Ledger | str | Path | None = None,
    mesh: Mesh | None = None,
    device: Device = "auto",
    engine: EngineGiven = None,
    trusted_network: bool = False,
) -> Result:
    """Run a plan on records.

    Args:
        plan: from :func:`dpmcmc.plan`, or from a mechanism's ``plan``.
        data: arrays (a pytree) of length N = ``plan.num_records``; a data set; a table, if the plan has a schema, also
            one in partitions: a folder or a glob of Parquet files, a ``pyarrow.dataset.Dataset``, a Dask DataFrame.
        key: None or a ``SecretKey``: fresh OS entropy, and the run carries its guarantee. A JAX key or an int
            makes the run reproducible, and anybody who knows it can subtract the noise: no guarantee.
        starts: where a sampler's chains start, a pytree like the target's parameters with leaves (chains, ...): a
            private release whose guarantee the plan was made ``after``. None: the target's own start.
        out: folder to save the result in, made before anything is charged; as :meth:`Result.save` does of records that
            are not public.
        progress: called with (steps done, steps in all); None: a bar where one can be seen; True: lines in a log too.
        checkpoint: folder of what a run that is stopped needs to go on; called again with the same plan and records,
            the run goes on there. It holds keys until the run is done: confidential, so it may not lie in ``out``,
            but below ``out/confidential``. Remove it once the draws are saved. A release that was not committed is made
            again to the same bits, and a chain goes on at its last commit; another platform is refused.
        ledger: budget ledger to charge: the whole guarantee before a record is read. Whoever has reserved it already
            gives the Reservation, and settles it; the run may be in another process, which gets a copy.
        mesh: devices that share a sampler's work, from :func:`dpmcmc.mesh`, under the same guarantee; None: one device.
        device: kind of device to compute on, cpu or gpu, which is JAX's default of the process meanwhile; auto: JAX's
            own default. A mesh has its devices already.
        engine: workers that compute on a table in partitions, where the plan reads sums alone: the URL of a Dask
            scheduler, ``dask://HOST:PORT`` or ``tls://HOST:PORT``, or a ``distributed.Client``; None: this process.
        trusted_network: you vouch that nobody else reads or changes what links between workers carry, which is refused
            otherwise where they are neither local nor encrypted.

    Returns:
        Result, with draws of shape (chains, draws, ...).

    Warns:
        NotForIntervals: the plan is private, and its draws are not for intervals; or the release says so of itself.

    Raises:
        OSError: ``out`` cannot be made.
        ValueError: no such device; wrong N or shapes, rows that are not finite or beyond the target's public bounds
            (before anything is computed from them); a checkpoint or a ledger in ``out``; a reservation, with several
            processes; a process forked from one that has used JAX.
        UnsafeCache: somebody else can change what is in a cache folder, compiled programs among it.
        MiscompiledError: the compiled program failed its self-test; no step was taken on the records, and nothing is
            charged.
        LedgerError: the run is over the ledger's budget.
        CheckpointError: the checkpoint is of another plan, other records or another platform.
        LostPartition: a worker was lost with a partition, or a partition holds other records than when it was checked;
            what the run was to spend is spent if it had begun.
        DivergedError: a chain left the range of floats.
        DrawError: a mechanism could make no draw. The failure depends on the records: it is for the data holder alone.
    """
    day = today()
    if out is not None:
        said_by_first(lambda: check_apart(out, checkpoint, ledger))
    life = reserved(
        plan,
        key=key,
        checkpoint=checkpoint,
        ledger=ledger,
        mesh=mesh,
        engine=engine,
        trusted_network=trusted_network,
        out=out,
    )
    with on_device(device), life as run:
        warn_unless_for_intervals(plan)
        with show_progress(progress, run) as report:
            run.read(data, starts)
            result = run.carry_out(report).named(data)
            if out is not None and jax.process_index() == 0:
                save(result, out, day)
    warn_of_release(plan, result.verdict)
    return result
