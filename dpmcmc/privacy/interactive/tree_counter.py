r"""Running sums of a stream, each released at once (Dwork, Naor, Pitassi and Rothblum 2010; Chan, Shi and Song 2011).

Values stand at the leaves of a binary tree. The sum of the first t is that of one node for each binary digit 1 of t:
with t = 6, the node of values 1–4 and that of 5–6. A node gets its noise once, when its last value has come:

    S_t = Σ_{nodes of t} (sum of the node's values + Lap(L/ε)),     L = ⌊log₂ T⌋ + 1 levels for T values in [0, 1]

is (ε, 0)-DP. Proof: the noisy nodes determine all the S_t. One record has one value, which lies in at most one
released node a level, and the first value of all lies in L of them. Given the nodes so far, the next one is a Laplace
release of sensitivity 1 and scale L/ε, or the same for both neighbours: L adaptive releases of ε/L cost ε. The values
may depend on the sums before them. The noise of S_t has variance (binary digits 1 of t)·σ², at most L·σ², where a fresh
answer for each t would need noise of scale T/ε.

The lecture notes' TBAP has K = ⌈log₂ T⌉ for L. This is the same but where T is a power of two: there the first value
lies in K + 1 nodes, and scale K/ε loses ε(K + 1)/K.

Several counters share one ε where each record enters one of them: given the sums so far, which one it is must be the
same for both neighbours, as the arm that a bandit pulls is.

Claim: All running sums of a stream cost ε.
Proof: one record lies in at most L nodes, each a Laplace release of ε/L.
Held by: test_one_record_lies_in_as_many_nodes_as_are_charged, test_the_loss_of_all_sums_is_epsilon,
test_the_joint_law_of_two_sums_by_brute_force, "running sums with the printed levels"
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from fractions import Fraction

from dpmcmc.errors import InputError, shown
from dpmcmc.privacy.accounting.events import Adjacency
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.interactive import above_threshold
from dpmcmc.privacy.interactive.above_threshold import (
    Charge,
    Ledger,
    Once,
    check_count,
    check_positive,
    pure,
)
from dpmcmc.privacy.interactive.thresholdout import ONE, BudgetSpent, in_steps
from dpmcmc.storage.pytree import PyTree


class TreeCounter(Once):
    """Says after each value of a stream the noisy sum of all values so far.

    Args:
        steps: T >= 1, the most values of one counter.
        epsilon: ε of all sums together, with δ = 0.
        counters: number of counters; a record enters one of them, chosen from public facts and earlier sums.
        adjacency: replace_one | zero_out; without a record, all later ones would move by one step.
        ledger: the ledger in which the price is reserved before the first value is looked at, or None.
        records: the records that values are computed from, a pytree; needed with a ledger, which must be about them.
        label: name of the release in the ledger.

    Attributes:
        levels: L.

    Raises:
        ValueError: numbers that cannot be, another adjacency, or a ledger without records.

    Example:
        >>> from dpmcmc.privacy.interactive import TreeCounter
        >>> counter = TreeCounter(steps=1000, epsilon=1.0)
        >>> counter.levels
        10
        >>> sums = [counter.add(1.0) for _ in range(8)]
        >>> abs(sums[-1] - 8) < 15 * counter.noise_std(8)
        True
    """

    def __init__(
        self,
        steps: int,
        epsilon: float,
        counters: int = 1,
        adjacency: str = "replace_one",
        *,
        ledger: Ledger | None = None,
        records: PyTree = None,
        label: str = "tree counter",
    ) -> None:
        super().__init__()
        check_count("steps", steps)
        check_count("counters", counters)
        check_positive("epsilon", epsilon)
        if Adjacency(adjacency) == Adjacency.ADD_REMOVE:
            raise InputError(
                "adjacency: add_remove is not proved, for a record that is left out moves all later ones by a step; "
                "take zero_out or replace_one"
            )
        self.steps = int(steps)
        self.levels = self.steps.bit_length()
        self._scale = self.levels * ONE / Fraction(epsilon)
        self._charge = Charge(
            pure(
                epsilon,
                1,
                adjacency,
                "Each record has one value, which enters one counter; which one follows from public facts.",
            ),
            ledger,
            label,
            records,
        )
        self._trees = [_Tree(self.levels) for _ in range(int(counters))]

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of all sums together."""
        return self._charge.guarantee

    def __repr__(self) -> str:
        return f"TreeCounter(steps={self.steps}, counters={len(self._trees)})"

    def noise_std(self, count: int) -> float:
        """Return the standard deviation of the noise of a counter's sum of ``count`` values."""
        one = 1 / (2 * math.sinh(1 / (2 * float(self._scale))) ** 2)
        return math.sqrt(count.bit_count() * one) / ONE

    def add(self, value: float | Callable[[], float], counter: int = 0) -> float:
        """Add the next value to a counter, and return the noisy sum of its values so far.

        Args:
            value: a number in [0, 1], or a function of no arguments that computes it, which is called after the price
                is reserved; a value outside is clipped, and NaN counts as 0.
            counter: which one, from 0.

        Raises:
            BudgetSpent: the counter has had T values; nothing is looked at.
            ValueError: no such counter; in a process that was forked from the one that made this.
        """
        if not isinstance(counter, numbers.Integral) or not 0 <= counter < len(self._trees):
            raise InputError(f"counter: must lie in 0 … {len(self._trees) - 1}, got {shown(counter)}")
        tree = self._trees[counter]
        with self._answering():
            self._check_left(tree)
            self._charge.reserve()
            number = in_steps(value() if callable(value) else value)
            # The function may itself have added one.
            self._check_left(tree)
            answer = tree.add(number, self._scale)
            self._charge.settle()
            return answer / ONE

    def _check_left(self, tree: _Tree) -> None:
        if tree.count == self.steps:
            raise BudgetSpent(
                f"a counter has had its {self.steps} values; more need another TreeCounter, at another epsilon"
            )


class _Tree:
    """Nodes that the current sum is made of, in grid steps: at level l one of 2^l values, or none."""

    def __init__(self, levels: int) -> None:
        self.count = 0
        self._sums = [0] * levels
        self._noisy = [0] * levels

    def add(self, value: int, scale: Fraction) -> int:
        """Return the noisy sum after one more value."""
        self.count += 1
        # Level of the node that this value completes: zeros at the end of the count. It takes in all smaller ones.
        level = (self.count & -self.count).bit_length() - 1
        node = value + sum(self._sums[:level])
        self._sums[: level + 1] = [0] * level + [node]
        self._noisy[: level + 1] = [0] * level + [node + above_threshold.sample(scale)]
        return sum(self._noisy)
