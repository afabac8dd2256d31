r"""The black-box tester of approximate DP of McMillan (dissertation 2018, Part IV, Algorithm 4), corrected.

For laws p, q on n outcomes, δ_ε = Σ max(0, p_i − e^ε q_i). The tester draws Poisson(λ) runs of either,

    λ = max(4n, 24)(1 + e^{2ε})/α²,      z = Σ_i max(0, x_i − e^ε y_i)/λ,

and accepts (ε, δ) iff z < δ + α in BOTH orders. With error at most 1/3 it accepts what is (ε, δ)-DP on this pair, and
rejects what is not even (ε, δ + 2α)-DP. Counts of Poisson(λ) runs are independent Poissons, so

    0 <= E z − δ_ε <= √(n(1 + e^{2ε})/λ) <= α/2   (Jensen; Cauchy–Schwarz),       Var z <= (1 + e^{2ε})/λ <= α²/24

and Chebyshev's inequality leaves 1/6 an order. Corrections of the printed algorithm: two independent sample sizes (one
shared r makes the counts dependent), division by λ and not by r, both orders (24 in place of 12), the sum over
outcomes. The same two facts bound δ_ε from below at any confidence. The verdict here uses that bound, since an error of
1/3 is too large.

No such tester exists for δ = 0 (Theorem 10.5), and none needs fewer than about 1/α² runs: δ below 1e-3 is out of reach.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Lt

from dpmcmc.errors import Checked


class Histogram(NamedTuple):
    """Findings of the tester.

    Attributes:
        epsilon: at which the claim was tested.
        runs: on one data set and on its neighbour.
        statistic: z, the larger of the two orders.
        accepted: the tester's answer, wrong with probability at most 1/3.
        delta_lower: lower bound on the true δ at ``epsilon``, at the confidence asked for.
    """

    epsilon: float
    runs: tuple[int, int]
    statistic: float
    accepted: bool
    delta_lower: float

    def epsilon_lower(self, delta: float) -> float:
        """Return a lower bound on ε at ``delta``.

        An (ε*, δ)-DP pair has δ_ε <= 1 − (1 − δ)(1 + e^ε)/(1 + e^ε*), the trade-off of its extreme pair.
        """
        if self.delta_lower <= delta:
            return 0.0
        if self.delta_lower >= 1:
            return math.inf
        odds = (1 - delta) * (1 + math.exp(self.epsilon)) / (1 - self.delta_lower) - 1
        return max(0.0, math.log(odds)) if odds > 0 else 0.0


@dataclass(frozen=True)
class Tester(Checked):
    """The tester of claims at one ε.

    Args:
        epsilon: ε of the claims.
        bins: n, outcomes.
        alpha: resolution in (0, 1).

    Raises:
        ValueError: a value outside these.
    """

    epsilon: Annotated[float, Ge(0), Lt(300)]
    bins: Annotated[int, Ge(2)]
    alpha: Annotated[float, Gt(0), Lt(1)]

    @property
    def expected(self) -> float:
        """Expected runs λ on each of the two data sets."""
        return max(4 * self.bins, 24) * (1 + math.exp(2 * self.epsilon)) / self.alpha**2

    def judge(
        self, counts: np.ndarray, neighbour_counts: np.ndarray, *, delta: float, significance: float
    ) -> Histogram:
        """Judge the claim (ε, δ) by counts of outcomes.

        Args:
            counts: (n,) of Poisson(λ) runs on one data set.
            neighbour_counts: (n,) of an INDEPENDENT Poisson number of runs on its neighbour.
            delta: of the claim.
            significance: of ``delta_lower``, shared by the two orders.
        """
        factor = math.exp(self.epsilon)
        x = np.asarray(counts, np.float64)
        y = np.asarray(neighbour_counts, np.float64)
        z = max(np.sum(np.maximum(0, x - factor * y)), np.sum(np.maximum(0, y - factor * x))) / self.expected
        variance = (1 + factor**2) / self.expected
        lower = z - math.sqrt(len(x) * variance) - math.sqrt(variance / (significance / 2))
        return Histogram(
            self.epsilon,
            (int(x.sum()), int(y.sum())),
            float(z),
            bool(z < delta + self.alpha),
            float(min(max(lower, 0.0), 1.0)),
        )


def bin_counts(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return counts of scores between public edges, (len(edges) + 1,)."""
    return np.bincount(np.searchsorted(edges, scores), minlength=len(edges) + 1)


def edges_of(pilot: np.ndarray, bins: int) -> np.ndarray:
    """Return bins − 1 edges at the quantiles of runs that are not tested themselves."""
    return np.quantile(pilot, np.arange(1, bins) / bins)
