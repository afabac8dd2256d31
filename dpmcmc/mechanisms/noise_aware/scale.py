r"""Scale of residuals and dispersion of counts, which a score has to know of its labels and learns on the way.

A linear regression's residuals are as long as the range of its label allows, and mostly far shorter. A count varies
more than Poisson's law says. Both are released three times while gradients are: early, midway and where they end.
Each record adds a vector to a sum that is released with Gaussian noise:

* **residuals** (:class:`Residuals`): weights on a signed grid of sizes, its place between two neighbouring knots
  (a histogram whose cells overlap). They are not negative and sum to 1, so a record adds a vector of norm at most 1, a
  replaced one moves the sum by √2 at most, since two such vectors have a product >= 0, and m rows of an owner m times
  as far. The bound c of Huber's score is a multiple of the quantile that holds nine tenths of them. The last tenth is a
  generalised Pareto law (Pickands 1975), whose two parameters few noisy numbers tell. It says what a score leaves out.
* **dispersion** (:class:`Dispersion`): q_α = (t² − E_α t²)/(9 sd²) for each candidate α, with t = clip(y − μ, ±3 sd)
  and sd the standard deviation under α. Each is within [−1/9, 1] and has the mean 0 at the true α. The candidate at
  which the sum crosses zero is the estimate. With k candidates a replaced record moves the vector by √k·10/9 at most.

Numbers beyond float64 count as residuals at the end of the grid.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.privacy.accounting import Adjacency


class LearntScore(NamedTuple):
    """Conclusions from the release of a scale.

    Attributes:
        score: with the scale that was learnt.
        shift: of what the score takes for known: the mean of ψ at the truth, or the dispersion. ``score.shifted`` says
            how the mean of ψ follows it.
        shift_variance: of the shift.
        variance: E ψ²; None: the score is centred.
        mean_beyond: E[|r|; |r| > c] of residuals r beyond their bound c.
        doubts: why intervals may not hold, clauses.
        residuals: where labels have residuals, the law of their standard deviation about the public position of the
            release, log-normal: its median, and the variance of its logarithm.
    """

    score: BoundedScore
    shift: float = 0.0
    shift_variance: float = 0.0
    doubts: tuple[str, ...] = ()
    variance: float | None = None
    mean_beyond: float = 0.0
    residuals: tuple[float, float] | None = None


class Scale(Protocol):
    """Something that a score has to know of its labels.

    Attributes:
        size: numbers that a record adds.
    """

    @property
    def size(self) -> int:
        """Return how many numbers a record adds."""

    def first(self) -> BoundedScore:
        """Return the score before anything is released."""

    def moved(self, adjacency: Adjacency) -> float:
        """Return how far neighbours' sums may lie apart, in l2 norm."""

    def statistic(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return what records add, (n, size). Private: it must not leave."""

    def learnt(
        self,
        released: np.ndarray,
        noise_std: float,
        count: int,
        limits: np.ndarray,
    ) -> tuple[LearntScore, ...]:
        """Return the scores that a noisy sum leads to: clipped ever further out, the nearest first.

        Args:
            released: sum with noise, (size,).
            noise_std: of each number.
            count: number of rows.
            limits: of rows, over the bound of the score, (k,) of them with equal shares.
        """
