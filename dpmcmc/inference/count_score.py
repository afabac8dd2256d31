"""Bounded scores of counts with a log link: residuals clipped at both ends, then centred in closed form.

    ψ = c w (E[t] − t),   t = clip(y − μ, ±h),   c = 1/(1 + αμ),   μ = exp(η)

with Var y = μ + αμ² =: v (α = 0: Poisson) and the model's own score s = c(μ − y), whose variance is I = cμ. A score
may have c = 1/(1 + βμ) of another β: with β = 0 and a limit far out it is Poisson's, whose estimate holds for the
mean whatever the law of a count. Here, with S = c√v the standard deviation of c(μ − y),

    h = max(limit, ¾S)/c,   w = min(1, limit/longest),   longest = c max(h − E[t], min(μ, h) + E[t]).

This is the centred Huber score with a Mallows weight of Cantoni and Ronchetti (2001). A Mallows weight alone does not
bound a residual that has no bound, and a clipped residual that is not centred has a mean, since counts are skew.

**Bound.** Labels are not negative, so t lies between −min(μ, h) and h, both within reach of some label or real
number. Then c|E[t] − t| <= longest, and |ψ| <= limit for every y.

**Unbiased.** h and w are functions of η and of the limit, not of y, and E[E[t] − t | η] = 0.

**Efficient.** With β = α and the limit far above S nothing is clipped, and ψ = s. Far below it, residuals are clipped
at ¾ of a standard deviation: per limit the curvature is then within a twelfth of that of the optimal score, whose h
tends to 0.

**Law.** E[t], E[t²] and E[t(y − μ)] are made of A_j(k) = Σ_{y <= k} (y − μ)^j p(y). With F the distribution function
and τ(k) = μ(1 + αk), Stein's identity for counts says Σ_{y <= k} (μ − y) p(y) = τ(k) p(k), and summation by parts
gives A_2:

    A_0 = F(k),   A_1 = −τ(k) p(k),   A_2 = v F(k) − τ(k) p(k) (k − μ + 1 + αμ).

Then Λ = c w E[t(y − μ)]/(1 + αμ) and V = c² w² Var t.

**Predictors.** η is brought into ±8, so that no power overflows. A record whose mean is beyond exp(8) =
2,981 would have a biased score; a prior within ``strongest`` and ``strongest_intercept`` puts that at 8/√(2² + 4²) =
1.8 of its standard deviations or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import betainc, gammaln, pdtr

from dpmcmc.inference.bounded_score import BoundedScore, Law

#: Least h, in standard deviations of a count: further in, hardly anything is gained per limit.
LEAST_BOUND_IN_STD = 0.75
#: Most |η|, so that no power overflows.
LARGEST_PREDICTOR = 8.0
#: Candidates for κ. The first costs least: at 0.5 and at 1 intervals were as wide to a tenth (d = 10, N = 20,000, ε
#: from 0.3 to 3). Centring rests on the model's law of a count, and the further out residuals are clipped the less it
#: matters where counts vary otherwise.
CLIPS = (0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0)
#: Step of a numerical derivative in the dispersion.
DISPERSION_STEP = 0.05


class _Partial(NamedTuple):
    """A_0, A_1 and A_2 up to some count, (n,) each."""

    zeroth: np.ndarray
    first: np.ndarray
    second: np.ndarray


class _Clipped(NamedTuple):
    """Moments of clipped residuals at predictors, (n,) each.

    Attributes:
        mean: μ.
        share: c.
        own: 1/(1 + αμ).
        bound: h.
        centre: E[t].
        weight: w.
        variance: Var t.
        slope: E[t(y − μ)].
        left_out: E[|y − μ| − h; |y − μ| > h].
    """

    mean: np.ndarray
    share: np.ndarray
    own: np.ndarray
    bound: np.ndarray
    centre: np.ndarray
    weight: np.ndarray
    variance: np.ndarray
    slope: np.ndarray
    left_out: np.ndarray


@dataclass(frozen=True)
class Counts(BoundedScore):
    """The score of counts.

    Attributes:
        dispersion: α.
        clip: κ; see :class:`~dpmcmc.inference.scores.BoundedScore`.
        weighting: β; None: α.
    """

    predictors: ClassVar[str] = "logarithms of means"
    needs_mean_row: ClassVar[bool] = True
    step: ClassVar[float] = 1.0
    size: ClassVar[int] = 1
    dispersion: float = 0.0
    clip: float = CLIPS[0]
    weighting: float | None = None

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ; see :class:`~dpmcmc.inference.scores.BoundedScore`."""
        at = self._clipped(eta, limit)
        return at.share * at.weight * (at.centre - np.clip(y - at.mean, -at.bound, at.bound))

    def law(self, eta: np.ndarray, limit: np.ndarray | float) -> Law:
        """Return Λ and V; see :class:`~dpmcmc.inference.scores.BoundedScore`."""
        whole = np.isinf(limit)
        # Decided for each record: a limit of one changes no law of another.
        at = self._clipped(eta, np.where(whole, 1.0, limit))
        weight = at.share * at.weight
        slope = at.share * at.mean
        return Law(
            np.where(whole, slope, weight * at.own * at.slope),
            np.where(whole, slope * at.share / at.own, weight**2 * at.variance),
        )

    def spread(self, eta: np.ndarray, y: np.ndarray, cut: float) -> np.ndarray:
        """Return (t² − E t²)/sd², t = clip(y − μ, ±cut·sd), within [−1, cut²] and of mean 0 under α; (n,)."""
        mean, share, own = self._shares(eta)
        at = self._clipped(eta, cut * share * np.sqrt(mean / own))
        away = np.clip(y - at.mean, -at.bound, at.bound)
        return (away**2 - at.variance - at.centre**2) * at.own / at.mean

    def left_out(self, eta: np.ndarray, limit: float) -> tuple[np.ndarray, np.ndarray]:
        """Return μ, and the mean of |y − μ| that the score leaves out beyond its bound under α, (n,) each."""
        at = self._clipped(eta, limit)
        return at.mean, np.maximum(at.left_out, 0.0)

    def shifted(self, eta: np.ndarray, limit: float) -> np.ndarray:
        """Return dE[ψ]/dα', (n,), of the dispersion α' of the counts at that of the score."""
        at = self._clipped(eta, limit)
        more = Counts(self.dispersion + DISPERSION_STEP, self.clip)
        moved = _centre(at.bound, *more._edges(at.mean, at.bound))
        return at.share * at.weight * (at.centre - moved) / DISPERSION_STEP

    def _shares(self, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (μ, c, 1/(1 + αμ))."""
        mean = np.exp(np.clip(eta, -LARGEST_PREDICTOR, LARGEST_PREDICTOR))
        own = 1 / (1 + self.dispersion * mean)
        if self.weighting is None:
            return mean, own, own
        return mean, 1 / (1 + self.weighting * mean), own

    def _clipped(self, eta: np.ndarray, limit: np.ndarray | float) -> _Clipped:
        mean, share, own = self._shares(eta)
        bound = np.maximum(limit, LEAST_BOUND_IN_STD * share * np.sqrt(mean / own)) / share
        low, high = self._edges(mean, bound)
        outside = 1 - high.zeroth + low.zeroth
        centre = _centre(bound, low, high)
        square = bound**2 * outside + high.second - low.second
        slope = high.second - low.second - bound * (low.first + high.first)
        longest = share * np.maximum(bound - centre, np.minimum(mean, bound) + centre)
        weight = np.minimum(1.0, limit / longest)
        left_out = -high.first - low.first - bound * outside
        return _Clipped(mean, share, own, bound, centre, weight, square - centre**2, slope, left_out)

    def _edges(self, mean: np.ndarray, bound: np.ndarray) -> tuple[_Partial, _Partial]:
        """Return sums over counts below μ − h, and over those up to μ + h."""
        return self._partial(np.ceil(mean - bound) - 1, mean), self._partial(np.floor(mean + bound), mean)

    def _partial(self, k: np.ndarray, mean: np.ndarray) -> _Partial:
        """Return sums up to k, whole numbers of which some may be negative."""
        share = 1 / (1 + self.dispersion * mean)
        count = np.maximum(k, 0.0)
        inside = k >= 0
        distribution = np.where(inside, self._distribution(count, mean, share), 0.0)
        kernel = np.where(
            inside,
            mean * (1 + self.dispersion * count) * self._chance(count, mean, share),
            0.0,
        )
        second = mean / share * distribution - kernel * (count - mean + 1 / share)
        return _Partial(distribution, -kernel, second)

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


def _centre(bound: np.ndarray, low: _Partial, high: _Partial) -> np.ndarray:
    """Return E[t] of residuals clipped to ±h, given sums below −h and up to h."""
    return bound * (1 - high.zeroth - low.zeroth) + high.first - low.first
