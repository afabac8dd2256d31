r"""K-ary randomised response: each label is changed at random, in whole numbers, so that its new value is ε-DP.

A label y in 0..K−1 is kept with probability e^ε/(e^ε + K − 1), and otherwise becomes each of the K − 1 others with the
same probability (Warner 1965 for K = 2; Kairouz, Bonawitz and Ramage 2016). Here the probabilities are whole numbers of
2^-64, which 64 uniform random bits u draw without rejection:

    u < (K − 1)V    the label becomes (y + 1 + ⌊u/V⌋) mod K
    otherwise       it is kept

Each other label takes V values of u, and the own one W = 2^64 − (K − 1)V. So a released label o has the probability W
or V over 2^64, whatever else is released. For two labels y, y' the ratio of its probabilities is 1, W/V or V/W. With

    V = ⌈2^64/(E + K − 1)⌉,   1 < E <= e^ε,     W/V = 2^64/V − (K − 1) <= E <= e^ε,

and W >= V is checked. So the table is ε-DP at δ = 0 with finite randomness, with no rounding toward less privacy: E is
e^ε in decimal arithmetic to 50 digits (correctly rounded), less a share of 10^-45. Rounding
makes W/V smaller than e^ε by about (e^ε + K − 1)²·2^-64 at most: 3e-11 of ε at ε = 20 and K = 2.

Words come from ChaCha20, as for all noise (``randomness.py``): computationally, the words are as good as uniform.

Claim: A randomised label is ε-DP at δ = 0, with finite randomness.
Proof: its probabilities are whole numbers over 2^64, whose ratio is at most e^ε.
Held by: test_the_table_is_exactly_epsilon_private, test_drawn_labels_have_the_probabilities_of_the_table,
test_neighbours_with_the_same_keys_differ_in_one_randomised_label
"""

from __future__ import annotations

import decimal
import functools
import math
import numbers
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.errors import InputError, shown
from dpmcmc.privacy.query.chacha import words_on_host

if TYPE_CHECKING:
    from jaxtyping import Int

#: Values of the random bits that decide a label.
VALUES = 1 << 64
#: Range of ε for which 64 bits say it to a relative 1e-10.
LEAST_EPSILON, MOST_EPSILON = 1e-6, 20.0
_DIGITS = 50
_BELOW = Fraction(1, 10**45)


@dataclass(frozen=True)
class RandomisedTable:
    """Probabilities of every released label given the true one.

    Args:
        epsilon: ε that one label may cost, within 1e-6 and 20.
        classes: K >= 2, public.

    Raises:
        InputError: an ε outside these, or more classes than 64 bits tell apart at it.
    """

    epsilon: float
    classes: int

    def __post_init__(self) -> None:
        number = isinstance(self.epsilon, numbers.Real)
        if not (number and LEAST_EPSILON <= self.epsilon <= MOST_EPSILON):
            raise InputError(
                f"epsilon: randomised labels take one within {LEAST_EPSILON:g} and {MOST_EPSILON:g}, got "
                f"{shown(self.epsilon)}",
                "epsilon",
            )
        if self.classes < 2 or not self.kept >= self.changed:
            raise InputError(
                f"num_classes: {self.classes} classes cannot be randomised at epsilon {self.epsilon:g}: there must be "
                "two, and few enough for 64 random bits",
                "num_classes",
            )

    @functools.cached_property
    def changed(self) -> int:
        """V, values of u out of 2^64 that lead to each other label."""
        with decimal.localcontext(prec=_DIGITS):
            odds = Fraction(decimal.Decimal(float(self.epsilon)).exp()) * (1 - _BELOW)
        return math.ceil(VALUES / (odds + self.classes - 1))

    @property
    def kept(self) -> int:
        """W, values of u out of 2^64 that keep the label."""
        return VALUES - (self.classes - 1) * self.changed

    @property
    def odds(self) -> Fraction:
        """W/V, exact; its logarithm is the ε that the table really has."""
        return Fraction(self.kept, self.changed)

    def drawn(self, labels: Int[np.ndarray, " n"], key: jax.Array) -> Int[np.ndarray, " n"]:
        """Return randomised labels, (N,), of the type of the labels.

        Args:
            labels: in 0..K−1.
            key: secret key of ChaCha20, used for nothing else.
        """
        words = words_on_host(key, 2 * len(labels)).astype(np.uint64)
        return self.by_bits(labels, words[::2] << np.uint64(32) | words[1::2])

    def by_bits(self, labels: Int[np.ndarray, " n"], bits: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the labels that random bits lead to.

        Args:
            labels: in 0..K−1, (N,).
            bits: u of each, (N,) uint64.
        """
        labels = np.asarray(labels)
        places = bits // np.uint64(self.changed)
        # Both branches of every label are computed, so that no time tells which labels changed.
        moved = np.where(places < np.uint64(self.classes - 1), places + np.uint64(1), np.uint64(0))
        new = (labels.astype(np.int64) + moved.astype(np.int64)) % self.classes
        return new.astype(labels.dtype)
