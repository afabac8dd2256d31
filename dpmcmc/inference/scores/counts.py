r"""Bounded scores of counts with a log link: residuals clipped at both ends, then centred in closed form.

    ψ = c w (E[t] − t),   t = clip(y − μ, ±h),   c = 1/(1 + αμ),   μ = exp(η)

with Var y = μ + αμ² =: v (α = 0: Poisson) and the model's own score s = c(μ − y), whose variance is I = cμ. Here

    h = max(limit, ¾√I)/c,   w = min(1, limit/longest),   longest = c max(h − E[t], min(μ, h) + E[t]).

This is the centred Huber score with a Mallows weight of Cantoni and Ronchetti (2001). A Mallows weight alone does not
bound a residual that has no bound, and a clipped residual that is not centred has a mean, since counts are skew.

**Bound.** Labels are not negative, so t lies between −min(μ, h) and h, both within reach of some label or real number.
Then c|E[t] − t| <= longest, and |ψ| <= limit for every y.

**Unbiased.** h and w are functions of η and of the limit, not of y, and E[E[t] − t | η] = 0.

**Efficient.** With the limit far above √I nothing is clipped, and ψ = s. Far below it, residuals are clipped at ¾ of a
standard deviation: per limit the curvature is then within a twelfth of that of the optimal score, whose h tends to 0.

**Law.** E[t], E[t²] and E[t(y − μ)] are made of A_j(k) = Σ_{y <= k} (y − μ)^j p(y). With F the distribution function
and τ(k) = μ(1 + αk), Stein's identity for counts says Σ_{y <= k} (μ − y) p(y) = τ(k) p(k), and summation by parts gives
A_2:

    A_0 = F(k),   A_1 = −τ(k) p(k),   A_2 = v F(k) − τ(k) p(k) (k − μ + 1 + αμ).

Then Λ = c² w E[t(y − μ)] and V = c² w² Var t.

**Predictors.** η is brought into ±8, so that rounding has a public bound. A record whose mean is beyond exp(8) = 2,981
would have a biased score; a prior within ``strongest`` and ``strongest_intercept`` puts that at 8/√(2² + 4²) = 1.8 of
its standard deviations or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import betainc, gammaln, pdtr

from dpmcmc.inference.scores.base import Law

#: Least h in standard deviations of a count; most |η|.
_LEAST, _FARTHEST = 0.75, 8.0
#: Candidates for κ. The first costs least: at 0.5 and at 1 intervals were as wide to a tenth (d = 10, N = 20,000, ε
#: from 0.3 to 3). Centring rests on the model's law of a count, and the further out residuals are clipped the less it
#: matters where counts vary otherwise.
CLIPS = (0.75, 1.5, 3.0, 6.0)
#: Error of E[t]/longest and of the rest of ψ/limit in float64; ``tests/test_count_scores.py`` compares exact sums.
_ARITHMETIC = 2.0**-30


class _Clipped(NamedTuple):
    """Moments of clipped residuals at predictors, (n,) each.

    Attributes:
        mean: μ.
        share: c.
        bound: h.
        centre: E[t].
        weight: w.
        variance: Var t.
        slope: E[t(y − μ)].
    """

    mean: np.ndarray
    share: np.ndarray
    bound: np.ndarray
    centre: np.ndarray
    weight: np.ndarray
    variance: np.ndarray
    slope: np.ndarray


@dataclass(frozen=True)
class Counts:
    """The score of counts.

    Attributes:
        dispersion: α.
        clip: κ; see :class:`~dpmcmc.inference.scores.base.BoundedScore`.
    """

    predictors: ClassVar[str] = "logarithms of means"
    needs_mean_row: ClassVar[bool] = True
    strongest: ClassVar[float] = 2.0
    strongest_intercept: ClassVar[float] = 4.0
    size: ClassVar[int] = 1
    dispersion: float = 0.0
    clip: float = CLIPS[0]

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ; see :class:`~dpmcmc.inference.scores.base.BoundedScore`."""
        at = self._clipped(eta, limit)
        return at.share * at.weight * (at.centre - np.clip(y - at.mean, -at.bound, at.bound))

    def law(self, eta: np.ndarray, limit: np.ndarray | float) -> Law:
        """Return Λ and V; see :class:`~dpmcmc.inference.scores.base.BoundedScore`."""
        own = np.isinf(limit)
        # Decided for each record: a limit of one changes no law of another.
        at = self._clipped(eta, np.where(own, 1.0, limit))
        square = at.share**2 * at.weight
        information = self._information(np.where(own, eta, 0.0))
        return Law(
            np.where(own, information, square * at.slope),
            np.where(own, information, square * at.weight * at.variance),
        )

    def _information(self, eta: np.ndarray) -> np.ndarray:
        """Return the variance of the model's own score, I."""
        mean = np.exp(eta)
        return mean / (1 + self.dispersion * mean)

    def rounding(self, margin: float, limit: float) -> float:
        r"""Return the most that ψ/limit moves; see :class:`~dpmcmc.inference.scores.base.BoundedScore`.

        With z = c(E[t] − t), H = ch and D = max(limit, longest) it is ψ/limit = z/D, and |z| <= D.

        * D >= H/2: the range of z is at least H long, or H is the limit.
        * In η, c(y − μ) moves at most H + I where it is not clipped, and H at most H/2. E[t] moves by the mean of that
          and by |E[c t s]| <= H√I. So z, and D, move at most M = 3H + 2I + H√I, and z/D at most 2M/D <= 12 + 4√I +
          8I/H, where H >= ¾√I and I is at most its value at η = 8.
        * In the limit, H moves by its part at most, z and D by twice that, and z/D by 8 of it.
        """
        most = math.exp(_FARTHEST) / (1 + self.dispersion * math.exp(_FARTHEST))
        return (12 + 15 * math.sqrt(most)) * margin + 8 * limit + _ARITHMETIC

    def _clipped(self, eta: np.ndarray, limit: np.ndarray | float) -> _Clipped:
        mean = np.exp(np.clip(eta, -_FARTHEST, _FARTHEST))
        share = 1 / (1 + self.dispersion * mean)
        variance = mean / share
        bound = np.maximum(limit, _LEAST * np.sqrt(share * mean)) / share
        (low, low_first, low_second), (high, high_first, high_second) = (
            self._partial(k, mean, share, variance) for k in (np.ceil(mean - bound) - 1, np.floor(mean + bound))
        )
        above = 1 - high
        centre = bound * (above - low) + high_first - low_first
        square = bound**2 * (above + low) + high_second - low_second
        slope = high_second - low_second - bound * (low_first + high_first)
        longest = share * np.maximum(bound - centre, np.minimum(mean, bound) + centre)
        weight = np.minimum(1.0, limit / longest)
        return _Clipped(mean, share, bound, centre, weight, square - centre**2, slope)

    def _partial(
        self, k: np.ndarray, mean: np.ndarray, share: np.ndarray, variance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return A_0, A_1 and A_2 up to k, whole numbers of which some may be negative."""
        count, inside = np.maximum(k, 0.0), k >= 0
        distribution = np.where(inside, self._distribution(count, mean, share), 0.0)
        kernel = np.where(inside, mean * (1 + self.dispersion * count) * self._chance(count, mean, share), 0.0)
        return distribution, -kernel, variance * distribution - kernel * (count - mean + 1 / share)

    def _distribution(self, k: np.ndarray, mean: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Return F(k)."""
        if not self.dispersion:
            return pdtr(k, mean)
        return betainc(1 / self.dispersion, k + 1, share)

    def _chance(self, k: np.ndarray, mean: np.ndarray, share: np.ndarray) -> np.ndarray:
        """Return p(k)."""
        if not self.dispersion:
            return np.exp(k * np.log(mean) - mean - gammaln(k + 1))
        size = 1 / self.dispersion
        choices = gammaln(k + size) - gammaln(size) - gammaln(k + 1)
        return np.exp(choices + size * np.log(share) + k * np.log(self.dispersion * mean * share))
