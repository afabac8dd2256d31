"""Records of a table in partitions, of which sums alone can be asked: each partition is read and summed by a worker.

    people = find_partitions("people/*.parquet", schema)
    with workers() as engine:
        records = PartitionedRecords(people, engine).checked(check, num_records=10_000_000)
        records.total(gram)                       # exact integers, as of the whole table

Only public facts go to workers: where a partition is, the schema, and the sum that is asked. Only exact integers come
back. Keys and noise stay with the driver. A worker holds one batch of rows at a time, and keeps encoded partitions for
the next pass as long as they fit into a bound (:data:`KEEP_MB`).

**The same bits.** Rows are encoded and summed each by itself (``privacy/query/record_sums.py``), so totals depend on no
partition. Processors of different types may round a record's own numbers differently, and neighbours are compared on
one rounding: workers must all be of one type, with the same versions, or the run is refused.

**What is read is what was checked.** The first pass makes a digest of each partition's encoded records, bytes in their
order. Every later pass must find the same digest, of rows that are read anew as of those that a worker keeps. An answer
says which partition of which run it is about and which digest it found, so an answer that is missing, comes twice or
stands for another partition is refused. Files must be what they were until the first pass is over (``stamps_of``), so
that no record moves from one file to another between their readings. Where nothing of that kind can be looked at (Dask,
another file system), all partitions are read a second time before anything is spent, and the guarantee says what it
rests on (``EncodedPartitions.assumption``). Digests are as private as sums: they travel where those do, and are not
written.

Claim: Each partition of the table counts once in each sum, with the records that were checked, or nothing is released.
Proof: two names of one file are refused. Files keep their stamps until they have been read once. In each pass the
driver adds one answer for each partition, which names it and has the digest of the first pass.
Held by: test_a_partition_that_counts_twice_or_not_at_all_is_refused,
test_a_worker_that_computes_another_partition_is_refused, test_files_that_change_while_a_run_reads_them_end_it,
test_a_file_that_changes_before_all_have_been_read_is_refused, test_two_names_of_one_file_are_refused,
test_rows_that_are_drawn_anew_at_each_reading_are_refused, test_a_legal_folder_has_the_sums_of_the_whole_table,
test_draws_are_those_of_the_whole_table, "a file under two names", "a partition whose records changed",
"an answer for another partition"
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from dpmcmc.data.encoded_partitions import Digest, EncodedPartitions, in_partition
from dpmcmc.data.known_columns import as_bytes, as_known, sums_of_words
from dpmcmc.engine.kept_partitions import KEPT, Keeping, prepared_batches
from dpmcmc.engine.shares import Share, Steps
from dpmcmc.engine.workers import LostPartition, Workers
from dpmcmc.errors import DataError, InputError
from dpmcmc.privacy.query.record_sums import (
    Preparation,
    Sum,
    Total,
    added,
    summed,
)
from dpmcmc.storage.blas import one_blas_thread
from dpmcmc.storage.fingerprint import rounding_facts
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree, length_of

#: Share -> value, and digest of the records that have been read for it.
Work: TypeAlias = Callable[[Share], tuple[Any, str]]


@dataclass(frozen=True)
class Answer:
    """Answer of a worker.

    Attributes:
        share: token of the run, and number of the partition.
        rounding: digest of all that may decide how this worker rounds.
        value: of its work; None where that failed.
        digest: of the records that it has read; empty where it read none.
        failure: message of a refusal of rows, its ``about`` and the rows; None where there is none.
    """

    share: tuple[str, int]
    rounding: str
    value: Any = None
    digest: str = ""
    failure: tuple[str, str, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class Task:
    """Work on a share, whose failures are values: what a worker raises may be logged where it is.

    Attributes:
        do: the work; returns its value, and the digest of the records that it has read.
    """

    do: Work

    def __call__(self, share: Share) -> Answer:
        """Return the answer."""
        answer = Answer((share.run, share.number), rounding_facts())
        try:
            check_not_forked()
            # A warning of a library may tell of a record.
            with np.errstate(all="ignore"), one_blas_thread():
                value, digest = self.do(share)
            return dataclasses.replace(answer, value=value, digest=digest)
        except InputError as error:
            rows = error.rows if isinstance(error, DataError) else ()
            failure = (str(error), error.about, rows)
        except MemoryError:
            said = "does not fit in the memory of a worker: make files or row groups smaller"
            failure = (f"data: {share.part.name} {said}.", "", ())
        except Exception as error:  # a file system, a reader: their words may quote what they read
            said = f"cannot be computed ({type(error).__name__}): see that workers can read it"
            failure = (f"data: {share.part.name} {said}.", "", ())
        return dataclasses.replace(answer, failure=failure)


def _count(share: Share) -> tuple[int, str]:
    return share.part.part.count(), ""


def _read_again(share: Share) -> tuple[None, str]:
    for _ in share.read():
        pass
    return None, share.digest


@dataclass(frozen=True)
class _Check:
    """Look at all rows of a partition, before anything is computed from them.

    Attributes:
        check: raises DataError of records that a run does not take; its rows are counted from the block's first.
    """

    check: Callable[[PyTree], object]

    def __call__(self, share: Share) -> tuple[tuple[int, dict[str, int]], str]:
        """Return the number of rows, and of values outside the schema; and the records' digest."""
        count = 0
        outside: dict[str, int] = {}
        keeping = Keeping(share)
        found = Digest()
        for _, records, counts in share.part.batches():
            found.add(records)
            try:
                self.check(records)
            except DataError as error:
                raise in_partition(error, share.part.name, count) from None
            count += length_of(records)
            outside = {name: outside.get(name, 0) + number for name, number in counts.items()}
            keeping.add(records)
        keeping.end(str(found))
        return (count, outside), str(found)


@dataclass(frozen=True)
class _Summed:
    """Total of the records of a partition.

    Attributes:
        of: what is summed.
    """

    of: Sum

    def __call__(self, share: Share) -> tuple[Total | None, str]:
        """Return the total, None of no record; and the records' digest."""
        parts = [summed(self.of, records) for records in prepared_batches(share)]
        return (added(parts) if parts else None), share.digest


@dataclass(frozen=True)
class PartitionedRecords:
    """Records of a table in partitions; see ``Records`` of ``privacy/query/record_sums.py``.

    Attributes:
        data: partitions, with their schema.
        engine: that computes on them.
        run: token by which workers know what they keep.
        rows: of each partition, once they are checked.
        digests: of each partition's encoded records, once they are checked; private.
        steps: make records of those that the schema encodes.
        outside: values of each column that lay outside the schema; as private as the records.
        rounding: of the workers, once the partitions are checked.
    """

    data: EncodedPartitions
    engine: Workers
    run: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
    rows: tuple[int, ...] = ()
    digests: tuple[str, ...] = ()
    steps: Steps = ()
    outside: dict[str, int] = dataclasses.field(default_factory=dict)
    rounding: str = ""

    @property
    def num_records(self) -> int:
        """N."""
        return sum(self.rows)

    @property
    def shapes(self) -> PyTree:
        """Shapes and types of one record, ``jax.ShapeDtypeStruct`` leaves."""
        made = jax.tree.map(np.zeros_like, self.data.shaped(1))
        for _, prepare in self.steps:
            made = prepare(made)
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), made)

    def counted(self) -> int:
        """Return the number of rows that the partitions state."""
        return sum(answer.value for answer in self._answers(_count))

    def checked(self, check: Callable[[PyTree], object], num_records: int) -> PartitionedRecords:
        """Return the records, all of which have been read and looked at.

        Args:
            check: picklable; raises DataError of records that the run does not take.
            num_records: N that the run was planned for.

        Raises:
            DataError: rows that are refused, by the name of their partition; or files that have changed.
            InputError: another number of them, or workers that round differently.
            LostPartition: a worker was lost.
        """
        answers = self._answers(_Check(check))
        self.data.check_unchanged()
        rows = tuple(answer.value[0] for answer in answers)
        if sum(rows) != num_records:
            raise InputError(
                f"data: the partitions hold another number of rows than the plan's num_records {num_records}: plan "
                "again with the public number of records"
            )
        kinds = {answer.rounding for answer in answers}
        if len(kinds) > 1:
            raise InputError(
                "engine: the workers differ in their processors, versions or code, and each must round a record's "
                "numbers alike; take workers of one kind",
                "engine",
            )
        outside: dict[str, int] = {}
        for answer in answers:
            for name, number in answer.value[1].items():
                outside[name] = outside.get(name, 0) + number
        digests = tuple(answer.digest for answer in answers)
        found = dataclasses.replace(self, rows=rows, digests=digests, outside=outside, rounding=kinds.pop())
        if self.data.assumption:
            found._answers(_read_again)
        return found

    def prepared(self, by: Preparation) -> PartitionedRecords:
        """Return the records that ``by`` makes of these, where they are, and in each pass where they are not kept."""
        step = (secrets.token_hex(8), by)
        return dataclasses.replace(self, steps=(*self.steps, step))

    def total(self, of: Sum) -> Total:
        """Return what all records add, exact: arrays of Python integers.

        Raises:
            LostPartition: a worker was lost, or another one has come that rounds differently.
        """
        try:
            answers = self._answers(_Summed(of))
        except DataError as error:  # all of them were fine when they were checked
            raise LostPartition(str(error).removesuffix(".")) from None
        if any(answer.rounding != self.rounding for answer in answers):
            raise LostPartition("engine: a worker has joined whose processor, versions or code differ")
        return added(answer.value for answer in answers if answer.value is not None)

    @functools.cached_property
    def content(self) -> dict[str, np.ndarray]:
        """Bytes that tell these records from others whatever the partitions and the order of rows; private.

        They are the sum of all records' digests. Who keeps or shows them takes a keyed digest of them first.
        """
        (limbs,) = dataclasses.replace(self, steps=()).total(_Digests())
        total = sum(int(limb) << (_LIMB * place) for place, limb in enumerate(limbs))
        return {"records": as_bytes(total)}

    def known_columns(self) -> dict[str, np.ndarray]:
        """Return the table's columns as a ledger knows them, before encoding (``data/known_columns.py``)."""
        names = tuple(self.data.schema.columns)
        totals: dict[str, int | None] = dict.fromkeys(names, 0)
        for answer in self._answers(_Words(names)):
            for name, one in answer.value.items():
                before = totals[name]
                totals[name] = None if None in (before, one) else before + one
        return as_known(totals)

    def forget(self) -> None:
        """Let this process forget what it keeps of the records."""
        KEPT.forget(self.run)

    def _answers(self, do: Work) -> list[Answer]:
        """Return what work makes of each partition, in their order.

        Raises:
            DataError: a partition is refused.
            LostPartition: an answer is missing, comes twice, or is of another partition or of other records.
        """
        digests = self.digests or [""] * len(self.data.parts)
        shares = [
            Share(self.run, number, part, digest, self.steps)
            for number, (part, digest) in enumerate(zip(self.data.parts, digests, strict=True))
        ]
        names = [part.name for part in self.data.parts]
        answers = self.engine.results(Task(do), shares, names)
        for answer in answers:
            if answer.failure is not None:
                raise DataError(*answer.failure)
        check_each_once(answers, shares)
        return answers


def check_each_once(answers: Sequence[Answer], shares: Sequence[Share]) -> None:
    """Refuse answers that are not those of each share, of the records that were checked.

    Raises:
        LostPartition: one is missing, comes twice, or is of another partition or of other records.
    """
    found = [answer.share for answer in answers]
    if found != [(share.run, share.number) for share in shares] or any(
        share.digest not in ("", answer.digest) for share, answer in zip(shares, answers, strict=True)
    ):
        raise LostPartition(
            "engine: a worker has answered for another partition than it was asked for, twice, or not at all"
        )


#: Bits of the parts that digests are added in.
_LIMB = 32


@dataclass(frozen=True)
class _Digests:
    """Sum of the records' digests, in parts of 32 bits."""

    def __call__(self, records: PyTree) -> tuple[np.ndarray, ...]:
        rows = np.concatenate(
            [np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8) for leaf in jax.tree.leaves(records)],
            axis=1,
        )
        digests = b"".join(hashlib.sha256(row).digest() for row in rows)
        parts = np.frombuffer(digests, "<u4").reshape(len(rows), -1)
        return (parts.sum(axis=0, dtype=np.int64),)


@dataclass(frozen=True)
class _Words:
    """Sums of the words of each column of the table, modulo 2^256; None of a column that cannot be read.

    Attributes:
        names: of the columns.
    """

    names: tuple[str, ...]

    def __call__(self, share: Share) -> tuple[dict[str, int | None], str]:
        totals: dict[str, int | None] = dict.fromkeys(self.names, 0)
        for rows, _ in share.read(self.names):
            for name, one in sums_of_words(rows, self.names).items():
                before = totals[name]
                totals[name] = None if before is None or one is None else before + one
        return totals, share.digest
