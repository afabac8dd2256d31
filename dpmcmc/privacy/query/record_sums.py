"""Sums over records as exact integers, the same however the records are cut into blocks and partitions.

A release that is a sum over records is a :class:`Sum`: a pure, picklable function from some records and public numbers
to integers. It computes every record's integers from that record alone and adds them, so

* a total is exact: it depends on no order, and on no block or partition that a record is in;
* two neighbours' totals differ by the integers of the records that differ, and by nothing else. No rounding of a sum
  is charged.

Totals are private. They leave through ``gaussian_release.py`` alone, which adds integer noise on a public grid.

**Contract of a Sum.** ``of(records)`` takes at most :data:`MOST_RECORDS` records, in NumPy arrays with leaves (n, ...),
and returns int64 arrays whose shapes are public and do not depend on n. No entry is beyond :data:`LARGEST`. It holds
public facts alone, so it may be sent to where a partition is. ``of`` of two blocks, added, is ``of`` of both blocks
together, for every order of the records. A record's own numbers may be computed in floating point by functions of its
own numbers, element by element, and are rounded to integers before anything is added (``integer_rows.py``).

**Contract of a Preparation.** It is a Sum's other half: a pure, picklable function from some records to as many others,
each made of one record alone.

Claim: One record moves a one-shot release that is a sum by at most its bound, however the table is cut.
Proof: each record's numbers are rounded within the bound by themselves, and integers are added exactly.
Held by: test_totals_are_the_same_for_every_partition_and_order,
test_a_contribution_that_is_not_rounded_before_it_is_added_is_caught,
test_rounding_leaves_every_row_within_its_bound, test_a_bound_that_rounding_exceeds_is_caught
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np

from dpmcmc.storage.pytree import PyTree, length_of

#: Most records of one call of a Sum. Blocks of so many rows of usual tables stay in a processor's cache.
MOST_RECORDS = 1 << 13
#: Numbers of a block, about, and fewest records of one.
_MOST_NUMBERS, _FEWEST = 1 << 21, 64
#: Largest size of an entry that a Sum returns.
LARGEST = 2**62

#: A total: arrays of Python integers, dtype object, which have no largest one.
Total = tuple[np.ndarray, ...]
#: Records -> as many records, each made of one record alone.
Preparation = Callable[[PyTree], PyTree]


class Sum(Protocol):
    """The sum of records' integers in a release; see the contract above."""

    def __call__(self, records: PyTree) -> tuple[np.ndarray, ...]:
        """Return what these records add, int64 arrays; at most :data:`MOST_RECORDS` of them."""


class Records(Protocol):
    """Records of which sums alone can be asked.

    Attributes:
        num_records: how many there are.
    """

    @property
    def num_records(self) -> int:
        """Return N."""

    @property
    def shapes(self) -> PyTree:
        """Return the shapes and types of one record, ``jax.ShapeDtypeStruct`` leaves; public."""

    def prepared(self, by: Preparation) -> Records:
        """Return the records that ``by`` makes of these, block by block."""

    def total(self, of: Sum) -> Total:
        """Return what all records add, exact: arrays of Python integers."""


@dataclass(frozen=True)
class Whole:
    """Records in arrays of this process.

    Attributes:
        records: pytree of arrays, leaves (N, ...).
    """

    records: PyTree

    @property
    def num_records(self) -> int:
        """N."""
        return length_of(self.records)

    @property
    def shapes(self) -> PyTree:
        """Shapes and types of one record."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self.records)

    def prepared(self, by: Preparation) -> Whole:
        """Return the records that ``by`` makes of these, made once and kept."""
        made = [by(block) for block in blocks_of(self.records)]
        return Whole(jax.tree.map(lambda *parts: np.concatenate(parts), *made))

    def total(self, of: Sum) -> Total:
        """Return what all records add, exact: arrays of Python integers."""
        return summed(of, self.records)


def asked(records: Records | PyTree) -> Records:
    """Return records of which sums are asked: arrays of this process as :class:`Whole`, others as they are."""
    return records if hasattr(records, "total") else Whole(records)


@dataclass(frozen=True)
class Prepared:
    """The Sum of records that are yet to be prepared.

    Attributes:
        by: of the records.
        of: of what it makes.
    """

    by: Preparation
    of: Sum

    def __call__(self, records: PyTree) -> tuple[np.ndarray, ...]:
        """Return what these records add; see :class:`Sum`."""
        return self.of(self.by(records))


def blocks_of(records: PyTree) -> Iterable[PyTree]:
    """Yield all records in their order, at most :data:`MOST_RECORDS` at once, and fewer of large ones.

    No record is one empty block.
    """
    leaves, structure = jax.tree.flatten(records)
    each = max(1, sum(math.prod(leaf.shape[1:]) for leaf in leaves))
    at_once = min(MOST_RECORDS, max(_FEWEST, _MOST_NUMBERS // each))
    for start in range(0, max(1, length_of(records)), at_once):
        part = slice(start, start + at_once)
        yield jax.tree.unflatten(structure, [leaf[part] for leaf in leaves])


def summed(of: Sum, records: PyTree) -> Total:
    """Return what some records add, however many, exact: what a partition has to send.

    Args:
        of: what is summed.
        records: pytree of arrays, leaves (n, ...); n may be 0.
    """
    low: list[np.ndarray] = []
    high: list[np.ndarray] = []
    for block in blocks_of(records):
        parts = of(block)
        if not low:
            low, high = ([np.zeros(part.shape, np.int64) for part in parts] for _ in "lh")
        # Two halves of 32 bits: neither sum can pass the largest int64 in fewer than 2^31 blocks.
        for i, part in enumerate(parts):
            low[i] += part & _MASK
            high[i] += part >> _HALF
    return tuple((upper.astype(object) << _HALF) + lower.astype(object) for upper, lower in zip(high, low, strict=True))


_HALF = 32
_MASK = np.int64((1 << _HALF) - 1)


def added(totals: Iterable[Total]) -> Total:
    """Return the total of several partitions, in any order.

    Raises:
        ValueError: there is none.
    """
    first, *others = totals
    for other in others:
        first = tuple(a + b for a, b in zip(first, other, strict=True))
    return first
