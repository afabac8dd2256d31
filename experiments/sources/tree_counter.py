r"""Running sums of a stream, each released at once (Dwork, Naor, Pitassi and Rothblum 2010; Chan, Shi and Song 2011).

    python -m experiments.sources.tree_counter [--quick] [--out DIR]

Values stand at the leaves of a binary tree. The sum of the first t is that of one node for each binary digit 1 of t:
with t = 6, the node of values 1–4 and that of 5–6. A node gets its noise once, when its last value has come:

    S_t = Σ_{nodes of t} (sum of the node's values + Lap(L/ε)),     L = ⌊log₂ T⌋ + 1 levels for T values in [0, 1]

is (ε, 0)-DP. Proof: the noisy nodes determine all the S_t. One record has one value, which lies in at most one
released node a level, and the first value of all lies in L of them. Given the nodes so far, the next one is a Laplace
release of sensitivity 1 and scale L/ε, or the same for both neighbours: L adaptive releases of ε/L cost ε. The values
may depend on the sums before them. The noise of S_t has variance (binary digits 1 of t)·σ², at most L·σ², where a fresh
answer for each t would need noise of scale T/ε.

The lecture notes' TBAP has K = ⌈log₂ T⌉ for L. This is the same but where T is a power of two: there the first value
lies in K + 1 nodes, and scale K/ε loses ε(K + 1)/K. The table has both losses, and the noise beside that of fresh
answers. Neighbours replace a record: without one, all later values would move by one step.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from dpmcmc.privacy import Event, Guarantee
from experiments.sources.discrete_laplace import log_law, sample
from experiments.sources.script import script

#: One record's largest value, in grid steps.
ONE = 1 << 20


class TreeCounter:
    """Says after each value of a stream the noisy sum of all values so far.

    Args:
        steps: T >= 1, the most values of one counter.
        epsilon: ε of all sums together, with δ = 0.
        counters: number of counters that share ε; a record enters one, chosen from public facts and earlier sums.

    Attributes:
        levels: L.
    """

    def __init__(self, steps: int, epsilon: float, counters: int = 1) -> None:
        self.steps, self.levels = steps, steps.bit_length()
        self.scale = self.levels * ONE / Fraction(epsilon)
        self.guarantee = Guarantee.from_events(
            (Event("pure", 0.0, 1.0, 1, epsilon=epsilon),),
            delta=0.0, adjacency="replace_one", accountant="one_sample", release="estimate",
        )  # fmt: skip
        self._counts = [0] * counters
        # Nodes that the current sum is made of, in grid steps: at level l one of 2^l values, or none.
        self._sums = [[0] * self.levels for _ in range(counters)]
        self._noisy = [[0] * self.levels for _ in range(counters)]

    def noise_std(self, count: int) -> float:
        """Return the standard deviation of the noise of a counter's sum of ``count`` values."""
        one = 1 / (2 * math.sinh(1 / (2 * float(self.scale))) ** 2)
        return math.sqrt(count.bit_count() * one) / ONE

    def add(self, value: float, counter: int = 0) -> float:
        """Add the next value, clipped to [0, 1], to a counter; return the noisy sum of its values so far."""
        if self._counts[counter] == self.steps:
            raise RuntimeError(f"a counter has had its {self.steps} values; more cost another epsilon")
        self._counts[counter] += 1
        count, sums, noisy = self._counts[counter], self._sums[counter], self._noisy[counter]
        # Level of the node that this value completes: zeros at the end of the count. It takes in all smaller ones.
        level = (count & -count).bit_length() - 1
        node = round(min(max(value, 0.0), 1.0) * ONE) + sum(sums[:level])
        sums[: level + 1] = [0] * level + [node]
        noisy[: level + 1] = [0] * level + [node + sample(self.scale)]
        return sum(noisy) / ONE


def largest_loss(steps: int, epsilon: float, levels: int) -> float:
    """Return the largest loss of all sums: the first value lies in so many nodes, each of scale levels/ε."""
    nodes = sum(1 for level in range(steps.bit_length()) if 2**level <= steps)
    scale = levels / epsilon
    x = np.arange(-60, 61)
    return nodes * float(np.abs(log_law(x, scale) - log_law(x + 1, scale)).max())


def rows(steps: tuple[int, ...], epsilon: float = 1.5) -> list[dict[str, Any]]:
    """Return the rows of results.csv."""
    found = []
    for count in steps:
        counter, printed = TreeCounter(count, epsilon), max(math.ceil(math.log2(count)), 1)
        found.append({
            "steps": count,
            "levels": counter.levels,
            "printed_levels": printed,
            "epsilon": counter.guarantee.epsilon,
            "loss": largest_loss(count, epsilon, counter.levels),
            "printed_loss": largest_loss(count, epsilon, printed),
            "noise_std": max(counter.noise_std(t) for t in range(1, count + 1)),
            "noise_std_fresh": math.sqrt(2) * count / epsilon,
        })  # fmt: skip
    return found


SAID = (
    "T = {steps}: loss {loss:.3f} of ε = {epsilon:g}, {printed_loss:.3f} with the printed levels; noise "
    "{noise_std:.3g}, {noise_std_fresh:.3g} with fresh answers"
)
main = script(
    "tree_counter",
    "Running sums by a binary tree: the loss and the noise.",
    lambda quick: rows((2, 7, 8, 100) if quick else (2, 7, 8, 100, 128, 1000, 1024)),
    SAID,
)

if __name__ == "__main__":
    raise SystemExit(main())
