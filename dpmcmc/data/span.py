"""The columns that a formula spans: which ranges may be shifted, and coefficients in the units of the columns.

A term is a product of factors. The indicators of all levels of a column add up to 1. So the columns of a term contain
those of the same term without any of its ``Levels``: ``a:g`` contains ``a``, and ``g`` contains the constant. Groups,
``(1|g)``, do not count as levels: their effects have a mean of zero.

**Shift.** A range [low, high] is mapped to [-1, 1] by its middle m. In a term ``a:b`` this gives (a − m)·b = ab − m·b,
which is the same model where ``b`` is spanned too. So the ranges of a term are shifted where the term is spanned
without each of them, and without any several of them. In other terms a range is divided by its larger end.

**Own coefficients.** Columns in their own units may depend on each other, as a constant and the indicators of all
levels do. The columns that are kept form a basis: a column is left out where an earlier term spans the product of its
factors that are not at their first level. Terms with fewer levels are earlier, and else those that stand first.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
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

    @functools.cached_property
    def spanned(self) -> dict[frozenset[str], int]:
        """Each product of factors that a term contains in its columns -> the earliest such term."""
        levels = [[name for name in term if isinstance(self.named[name], Levels)] for term in self.terms]
        order = sorted(range(len(levels)), key=lambda at: len(levels[at]))
        return {
            frozenset(self.terms[at]).difference(gone): at
            for at in reversed(order)  # the last one, which is kept, is the earliest
            for gone in _subsets(levels[at])
        }

    @functools.cached_property
    def encoders(self) -> list[list[Factor]]:
        """Encoder of each factor of each term."""
        return [[self._encoder(term, name) for name in term] for term in self.terms]

    def _encoder(self, term: tuple[str, ...], name: str) -> Factor:
        factor = self.named[name]
        ranges = [one for one in term if isinstance(self.named[one], Range)]
        if not isinstance(factor, Range) or all(
            frozenset(term).difference(gone) in self.spanned for gone in _subsets(ranges)
        ):
            return factor
        return factor.from_zero

    @functools.cached_property
    def blocks(self) -> list[list[tuple[str, ...]]]:
        """Parts of each encoded column, one of each factor, term by term."""
        parts = {name: [f"{name}{end}" for end in self.named[name].suffixes] for name in itertools.chain(*self.terms)}
        return [list(itertools.product(*(parts[name] for name in term))) for term in self.terms]

    @functools.cached_property
    def constant(self) -> np.ndarray:
        """Weights of the columns in their own units whose sum is 1, (d,); zero where the constant is not spanned."""
        has = frozenset() in self.spanned
        return self._sum({}) if has else np.zeros(len(self._columns))

    @functools.cached_property
    def own(self) -> np.ndarray:
        """Matrix from coefficients of encoded columns to those of columns in their own units, (d, d)."""
        out = np.zeros((len(self._columns),) * 2)
        for column, (at, product) in enumerate(self._columns):
            sums = {part: {part: 1.0} for part in product.values()}
            for name, encoder in zip(self.terms[at], self.encoders[at], strict=True):
                if isinstance(encoder, Range | Basis):
                    sums |= encoder.own_units(name)
            for chosen in itertools.product(*(sums[part].items() for part in product.values())):
                left = {name: part for name, (part, _) in zip(product, chosen, strict=True) if part}
                weight = math.prod(weight for _, weight in chosen)
                if weight:
                    out[:, column] += weight * self._sum(left)
        return out

    @functools.cached_property
    def _columns(self) -> list[tuple[int, Product]]:
        """(term, product) of each encoded column."""
        return [
            (at, dict(zip(term, parts, strict=True)))
            for at, (term, block) in enumerate(zip(self.terms, self.blocks, strict=True))
            for parts in block
        ]

    def _sum(self, product: Product) -> np.ndarray:
        """Return weights of the columns that are kept, whose sum is a product that is spanned, (d,)."""
        return self._rest(self.spanned[frozenset(product)], product)

    def _rest(self, at: int, product: Product, apart: int = -1) -> np.ndarray:
        """Return the sum of a term's columns that hold a product, one of them left out, (d,)."""
        out = np.zeros(len(self._columns))
        for column, (term, other) in enumerate(self._columns):
            if term == at and column != apart and product.items() <= other.items():
                out += self._column(column)
        return out

    def _column(self, column: int) -> np.ndarray:
        """Return weights of the columns that are kept, whose sum is a column, (d,)."""
        at, product = self._columns[column]
        told = {
            name: part
            for name, part in product.items()
            if not isinstance(self.named[name], Levels) or part != f"{name}{self.named[name].suffixes[0]}"
        }
        if self.spanned[frozenset(told)] == at:
            return np.eye(1, len(self._columns), column)[0]
        if column not in self._left_out:
            self._left_out[column] = self._sum(told) - self._rest(at, told, column)
        return self._left_out[column]

    @functools.cached_property
    def _left_out(self) -> dict[int, np.ndarray]:
        """Results of :meth:`_column`."""
        return {}


def _subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    return itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(len(names) + 1))
