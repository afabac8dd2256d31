"""Columns as a ledger knows them, before any schema changes them.

A column has two texts: its words in their order, and the sum of its words' digests, modulo 2^256. The sum is the same
for every order of the rows and for every way to cut a table into partitions, which are read where they lie. A ledger
holds digests of both under its own key (``storage/fingerprint.py``), from which others can tell nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from dpmcmc.data.tables import Table, columns, load_table
from dpmcmc.errors import DataError

#: Name of a column's sum, beside the column's own name.
ANY_ORDER = "{name}, in any order"
_MODULUS = 1 << 256


def texts(table: Table, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return columns as bytes that no schema changes, by name; those that cannot be read are left out."""
    found = {}
    for name, words in _words(table, names):
        if words is not None:
            found[name] = np.frombuffer(json.dumps(words).encode(), np.uint8)
            found |= as_known({name: _in_any_order(words)})
    return found


def sums_of_words(table: Table, names: Iterable[str]) -> dict[str, int | None]:
    """Return the sum of each column's digests, by name; None of a column that cannot be read."""
    return {name: None if words is None else _in_any_order(words) for name, words in _words(table, names)}


def _words(table: Table, names: Iterable[str]) -> Iterator[tuple[str, list[str | None] | None]]:
    """Yield (name, words of a column in their order; None where it cannot be read)."""
    frame = load_table(table)
    for name in names:
        try:
            (column,) = columns(frame, [name]).values()
            yield name, column.words()
        except DataError:
            yield name, None


def as_known(sums: Mapping[str, int | None]) -> dict[str, np.ndarray]:
    """Return sums of columns as bytes, by the names that a ledger knows them by; None is left out."""
    return {ANY_ORDER.format(name=name): as_bytes(one) for name, one in sums.items() if one is not None}


def as_bytes(total: int) -> np.ndarray:
    """Return a sum of digests, modulo 2^256, as bytes, (32,) uint8."""
    return np.frombuffer((total % _MODULUS).to_bytes(32, "little"), np.uint8)


def _in_any_order(words: list[str | None]) -> int:
    digests = (
        count * int.from_bytes(hashlib.sha256(json.dumps(word).encode()).digest(), "little")
        for word, count in Counter(words).items()
    )
    return sum(digests) % _MODULUS
