"""What the terms of a formula span, and what follows: columns that are mapped about their middle, own coefficients.

A term is a product of factors. The indicators of all levels of a column add up to 1. So the columns of a term contain
those of the same term without any of its ``Levels``: ``a:g`` contains ``a``, and ``g`` contains the constant. Groups,
``(1|g)``, do not count as levels: their effects have a mean of zero.

**Middle.** A range [low, high] is mapped to [-1, 1] by its middle. That changes no model where a term without one or
more of its ranges is spanned too: (a − m)·b = ab − m·b needs b. Elsewhere the range is divided by its larger end.

**Own coefficients.** Columns in their own units may depend on each other, as a constant and the indicators of all
levels do. The columns that are kept form a basis: a column is left out where an earlier term spans the product of its
factors that are not at their first level. Terms with fewer levels are earlier, and else those that stand first.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from dpmcmc.data.column_kinds import Levels, Range
from dpmcmc.data.terms import Basis, Factor

#: A product of encoded columns: factor -> which of its columns.
Product = Mapping[str, str]


@dataclass(frozen=True, eq=False)
class Span:
    """The columns of a formula.

    Args:
        terms: names of the factors of each term, () of the intercept.
        named: factors by name.
    """

    terms: tuple[tuple[str, ...], ...]
    named: Mapping[str, Factor]

    def term_of(self, names: Collection[str]) -> int | None:
        """Return the earliest term that contains a product of factors in its columns; None where none does."""
        rest, levels = self._parted(names)
        for at, found in self._known.get(rest, ()):
            if levels <= found:
                return at
        return None

    def is_centred(self, term: tuple[str, ...]) -> bool:
        """Return whether the ranges of a term may be mapped about their middle."""
        ranges = [name for name in term if isinstance(self.named[name], Range)]
        return all(
            self.term_of(set(term).difference(gone)) is not None
            for count in range(1, len(ranges) + 1)
            for gone in itertools.combinations(ranges, count)
        )

    @functools.cached_property
    def encoders(self) -> tuple[tuple[Factor, ...], ...]:
        """What encodes each factor of each term."""
        out = []
        for term in self.terms:
            centred = self.is_centred(term)
            factors = [self.named[name] for name in term]
            out.append(
                tuple(
                    one if centred or not isinstance(one, Range) else one.from_zero
                    for one in factors
                )
            )
        return tuple(out)

    @functools.cached_property
    def blocks(self) -> list[list[tuple[str, ...]]]:
        """Parts of each encoded column, one of each factor, term by term."""
        parts = {
            name: [f"{name}{end}" for end in self.named[name].suffixes]
            for name in itertools.chain(*self.terms)
        }
        return [
            list(itertools.product(*(parts[name] for name in term)))
            for term in self.terms
        ]

    @property
    def has_constant(self) -> bool:
        """Whether a constant is spanned."""
        return self.term_of(()) is not None

    @functools.cached_property
    def constant(self) -> np.ndarray:
        """Weights of the columns in their own units whose sum is 1, (d,); zero where the constant is not spanned."""
        return self._sum({}) if self.has_constant else np.zeros(len(self._columns))

    @property
    def of_first_levels(self) -> np.ndarray:
        """Which columns are 1 where numbers are 0 and words their first levels, (d,)."""
        firsts = (
            all(self._is_first(name, part) for name, part in product.items())
            for _, product in self._columns
        )
        return np.fromiter(firsts, np.float64)

    @functools.cached_property
    def own(self) -> np.ndarray:
        """Matrix from coefficients of encoded columns to those of columns in their own units, (d, d)."""
        out = np.zeros((len(self._columns),) * 2)
        for column, (at, product) in enumerate(self._columns):
            sums = {part: {part: 1.0} for part in product.values()}
            for name, encoder in zip(self.terms[at], self.encoders[at], strict=True):
                if isinstance(encoder, Range | Basis):
                    sums |= encoder.own_units(name)
            for chosen in itertools.product(
                *(sums[part].items() for part in product.values())
            ):
                weight = math.prod(weight for _, weight in chosen)
                if weight:
                    names = zip(product, chosen, strict=True)
                    left = {name: part for name, (part, _) in names if part}
                    out[:, column] += weight * self._sum(left)
        return out

    def _parted(self, names: Collection[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Return the factors that are no levels, and those that are."""
        levels = frozenset(name for name in names if isinstance(self.named[name], Levels))
        return frozenset(names) - levels, levels

    @functools.cached_property
    def _known(self) -> dict[frozenset[str], list[tuple[int, frozenset[str]]]]:
        """Factors that are no levels -> (term, its levels), the earliest term first."""
        out: dict[frozenset[str], list[tuple[int, frozenset[str]]]] = {}
        for at, term in enumerate(self.terms):
            rest, levels = self._parted(term)
            out.setdefault(rest, []).append((at, levels))
        for found in out.values():
            found.sort(key=lambda one: len(one[1]))
        return out

    @functools.cached_property
    def _columns(self) -> list[tuple[int, Product]]:
        """(term, product) of each encoded column."""
        return [
            (at, dict(zip(term, parts, strict=True)))
            for at, (term, block) in enumerate(zip(self.terms, self.blocks, strict=True))
            for parts in block
        ]

    @functools.cached_property
    def _places(self) -> dict[frozenset[tuple[str, str]], int]:
        """Product -> its column."""
        return {
            frozenset(product.items()): column
            for column, (_, product) in enumerate(self._columns)
        }

    @functools.cached_property
    def _known_sums(self) -> dict[int, np.ndarray]:
        """Results of :meth:`_column`."""
        return {}

    def _sum(self, product: Product) -> np.ndarray:
        """Return weights of the columns that are kept, whose sum is a product that is spanned, (d,)."""
        place = self._places.get(frozenset(product.items()))
        if place is not None:
            return self._column(place)
        return self._rest(self.term_of(product), product)

    def _rest(self, at: int | None, product: Product, apart: int = -1) -> np.ndarray:
        """Return the sum of a term's columns that hold a product, one of them left out, (d,)."""
        out = np.zeros(len(self._columns))
        for column, (term, other) in enumerate(self._columns):
            if term == at and column != apart and product.items() <= other.items():
                out += self._column(column)
        return out

    def _column(self, column: int) -> np.ndarray:
        """Return weights of the columns that are kept, whose sum is a column, (d,)."""
        if column not in self._known_sums:
            at, product = self._columns[column]
            told = {
                name: part
                for name, part in product.items()
                if not self._is_first(name, part)
            }
            if self.term_of(told) == at:
                out = np.eye(1, len(self._columns), column)[0]
            else:
                out = self._sum(told) - self._rest(at, told, column)
            self._known_sums[column] = out
        return self._known_sums[column]

    def _is_first(self, name: str, part: str) -> bool:
        factor = self.named[name]
        return isinstance(factor, Levels) and part == f"{name}{factor.suffixes[0]}"
