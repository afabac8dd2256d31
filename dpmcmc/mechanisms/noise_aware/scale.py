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

Either has these methods:

``size``              how many numbers a record adds
``first()``           the score before anything is released
``moved(adjacency)``  how far neighbours' sums may lie apart, in l2 norm
``statistic(η, y)``   what records add, (n, size). Private: it must not leave
``learnt(released, noise_std, count, limits)``
                      the scores that a noisy sum over ``count`` rows leads to: clipped ever further out, the nearest
                      first. ``limits``, (k,), are those of rows over the bound of the score, with equal shares
"""

from __future__ import annotations

from typing import NamedTuple

from dpmcmc.inference.bounded_score import BoundedScore


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
