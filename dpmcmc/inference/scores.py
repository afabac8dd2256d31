r"""Bounded, Fisher-consistent scores of one record at its predictor η, one class for each family.

A family's own score is s = −∂ log p(y | η)/∂η. A bounded score ψ(η, y) replaces it (:class:`BoundedScore`):

* ‖ψ‖ <= limit for every label y; each record may have its own limit;
* E[ψ(η, y) | η] = 0 under the model, so the sum of scores has mean zero at the parameter that made the labels;
* Λ = E[ψ sᵀ] and V = E[ψ ψᵀ] are known functions of η and of the limit (:class:`Law`). As E[ψ] = 0 for every η, Λ is
  the derivative of E_{y ~ η*}[ψ(η, y)] in η at η = η*: it is the curvature, and V the variance, of the score.

A model's record has the gradient J(x)ᵀψ, J = ∂η/∂θ: x ψ for a regression with one predictor x·θ, x ψᵀ for one of K with
parameters (d, K). With limit = C/‖F⁻¹Jᵀ‖ a record's gradient is at most C long in the metric F, and remains unbiased.

Shapes: η is (n,) for a family of one predictor, and (n, K) for one of ``size`` K > 1; so are scores. Λ and V are (n,),
or (n, K, K). A limit is a number or (n,).

:func:`score_of` returns the family of a target. A new family is one class here, its target's file, and one line of
``SCORES``. A family whose bounded score is the model's own times a weight that does not see the label, as chains clip,
is a :class:`LabelBlind` one and a line of ``LABEL_BLIND``: it may conclude from a chain's path, too. A family of
several predictors may not yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import betainc, expit, gammaln, ndtr, pdtr, softmax

from dpmcmc.errors import InputError
from dpmcmc.inference.bounded_score import BoundedScore, LabelBlind, Law
from dpmcmc.privacy.query.label_blind import label_blind_weight
from dpmcmc.targets.counts import NegativeBinomialRegression, PoissonRegression
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.softmax import SoftmaxRegression

# ----------------------------------------------------------------------------------------------------
# Scores of linear regression, (η − y)/φ with φ the variance of the noise.
#
# The residual has no bound, so there is no score with a finite limit. A mechanism releases XᵀX and Xᵀy instead, and a
# chain's path gives a posterior only if nothing is clipped.


@dataclass(frozen=True)
class Linear(LabelBlind):
    """The score of linear regression."""

    predictors: ClassVar[str] = "means"
    needs_mean_row: ClassVar[bool] = False
    clip: ClassVar[float] = math.inf
    limit: ClassVar[float] = math.inf
    step: ClassVar[float] = math.inf

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Return η."""
        return eta

    def mean_slope(self, eta: np.ndarray) -> np.ndarray:
        """Return 1."""
        return np.ones_like(eta)

    def weight(self, eta: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
        """Return 1.

        Raises:
            InputError: a finite limit, which no weight keeps.
        """
        if np.isfinite(limit).any():
            raise InputError(
                "limit: the score of linear regression has no bound; give an infinite limit",
                "limit",
            )
        return np.ones_like(eta)

    def leverage(self, clip: float, longest: float) -> float:
        """Return infinity, since no release uses this score."""
        return math.inf


#: Lengths, in units of a row whose limit is the typical one, beyond which a row has a weight, so that its limit is no
#: smaller than the typical one over this.
FARTHEST_ROW = 8.0


@dataclass(frozen=True)
class Huber:
    """Huber's score of a real label (1964): ψ = clip(η − y, ±c), with c learnt on the way.

    E[ψ | η] = 0 where errors are symmetric; other errors move the intercept alone if their law is the same in all rows,
    and the released histogram says by how much. A record's slope, the derivative of ψ in η, is 1 within 0.9c and falls
    to 0 at 1.1c; its mean is that of the indicator of |η − y| < c, about.

    Attributes:
        bound: c.
        std: standard deviation of residuals, were they normal; Λ and V are theirs.
    """

    bound: float
    std: float
    predictors: ClassVar[str] = "means"
    needs_mean_row: ClassVar[bool] = False
    step: ClassVar[float] = math.inf
    size: ClassVar[int] = 1
    clip: ClassVar[float] = 1.0

    @classmethod
    def of(cls, std: float, deviations: float) -> Huber:
        """Return the score with a bound of so many standard deviations."""
        return cls(std * deviations, std)

    @property
    def limit(self) -> float:
        """c, which no typical record's own limit is below."""
        return self.bound

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ; see :class:`BoundedScore`."""
        most = np.minimum(self.bound, limit)
        return np.clip(eta - y, -most, most)

    def law(self, eta: np.ndarray, limit: np.ndarray | float) -> Law:
        """Return Λ and V; see :class:`BoundedScore`."""
        cut = np.minimum(self.bound, limit) / self.std * np.ones_like(eta)
        return Law(1 - 2 * ndtr(-cut), self.std**2 * _censored(cut))

    @property
    def beyond(self) -> float:
        """E[|r|; |r| > c] of normal residuals r."""
        cut = self.bound / self.std
        return self.std * math.sqrt(2 / math.pi) * math.exp(-(cut**2) / 2)

    def slope(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return the slope of each record; see :class:`BoundedScore`."""
        most = np.minimum(self.bound, limit)
        return np.clip((1.1 - np.abs(eta - y) / most) / 0.2, 0.0, 1.0)

    def shifted(self, eta: np.ndarray, limit: float) -> np.ndarray:
        """Return dE[ψ]/d(mean of residuals), (n,): a mean that all rows have in common is one more of the predictor."""
        return self.law(eta, limit).curvature

    def leverage(self, clip: float, longest: float) -> float:
        """Return ‖z‖², since slopes are at most 1; see :class:`BoundedScore`."""
        return longest**2


# ----------------------------------------------------------------------------------------------------
# Scores of logistic regression, y in {0, 1}, p = σ(η): ψ = w (p − y), w = min(1, limit/max(p, 1 − p)).
#
# |ψ| <= w max(p, 1 − p) <= limit for both labels. For a binary label every score with mean zero at the truth has this
# form, a function of η times p − y.


@dataclass(frozen=True)
class Logistic(LabelBlind):
    """The score of logistic regression."""

    predictors: ClassVar[str] = "logits"
    needs_mean_row: ClassVar[bool] = False
    step: ClassVar[float] = 1.5
    #: Below 1 the weights shrink most scores, and less noise is needed.
    clip: float = 0.5

    @property
    def limit(self) -> float:
        """κ."""
        return self.clip

    def mean(self, eta: np.ndarray) -> np.ndarray:
        """Return p."""
        return expit(eta)

    def mean_slope(self, eta: np.ndarray) -> np.ndarray:
        """Return p(1 − p)."""
        return expit(eta) * expit(-eta)

    def longest(self, eta: np.ndarray) -> np.ndarray:
        """Return max(p, 1 − p)."""
        return expit(np.abs(eta))

    def leverage(self, clip: float, longest: float) -> float:
        """Return the bound; see :class:`BoundedScore`.

        w p(1 − p) <= ¼. As w‖z‖max(p, 1 − p) <= C it is at most C‖z‖min(p, 1 − p), too, and min(p, 1 − p) <= ½.
        """
        return min(longest**2 / 4, clip * longest / 2)


# ----------------------------------------------------------------------------------------------------
# Scores of softmax regression, y in 0..K−1, p = softmax(η): ψ = w (p − e_y), w = min(1, limit/max_y ‖p − e_y‖).
#
# ‖ψ‖ <= limit for every label. The weight sees no label, so E[ψ | η] = w (p − E[e_y]) = 0. With the score's own
# variance D = diag p − ppᵀ, Λ = w D and V = w² D. The largest residual is the least likely label's: ‖p − e_y‖² = ‖p‖² +
# 1 − 2p_y.


@dataclass(frozen=True)
class Softmax:
    """The score of softmax regression.

    Attributes:
        size: K, number of classes.
    """

    size: int
    predictors: ClassVar[str] = "logits"
    needs_mean_row: ClassVar[bool] = False
    step: ClassVar[float] = 1.5
    #: Below 1 the weights shrink most scores, and less noise is needed.
    clip: float = 0.5

    @property
    def limit(self) -> float:
        """κ."""
        return self.clip

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ, (n, K); see :class:`BoundedScore`."""
        p = softmax(eta, axis=1)
        return _weight(p, limit)[:, None] * (p - (np.arange(self.size) == y[:, None]))

    def law(self, eta: np.ndarray, limit: np.ndarray | float) -> Law:
        """Return Λ and V, (n, K, K); see :class:`BoundedScore`."""
        p = softmax(eta, axis=1)
        weight = _weight(p, limit)[:, None, None]
        curvature = weight * (p[:, :, None] * np.eye(self.size) - p[:, :, None] * p[:, None, :])
        return Law(curvature, weight * curvature)

    def slope(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return Λ; see :class:`BoundedScore`."""
        return self.law(eta, limit).curvature

    def leverage(self, clip: float, longest: float) -> float:
        """Return the bound; see :class:`BoundedScore`.

        tr D = 1 − ‖p‖² <= 1 − 1/K. With r the largest ‖p − e_y‖, w‖z‖r <= C gives C‖z‖ tr D/r, where
        tr D/r <= √(1 − 1/K): with s = ‖p‖² >= 1/K and min p <= 1/K it is at most (1 − s)/√(1 + s − 2/K), which falls
        as s grows.
        """
        most = 1 - 1 / self.size
        return min(most * longest**2, math.sqrt(most) * clip * longest)


def _weight(p: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
    """Return w, (n,)."""
    return label_blind_weight(np.sqrt(np.sum(np.square(p), axis=1) + 1 - 2 * p.min(axis=1)), limit)


# ----------------------------------------------------------------------------------------------------
# Scores of a Normal with location and log scale as predictors.
#
# With η = (m, log σ) and r = (y − m)/σ the family's own score is s = (−r/σ, 1 − r²), and the bounded one
#
#     ψ = (−clip(r, ±a)/σ,  β(c) − min(r², c²)),    β(c) = E min(r², c²) = 1 − 2Φ(−c) − 2cφ(c) + 2c²Φ(−c).
#
# The first part is Huber's (1964), odd in r, and the second that of his Proposal 2 less its mean: E[ψ] = 0. Each part
# has a limit ℓ of its own: a = ℓ₁σ, and c² = ℓ₂ + β(√ℓ₂) where ℓ₂ >= 1, else c² = ℓ₂. As β <= min(1, c²) and β grows
# with c,
# |ψ₂| <= max(β(c), c² − β(c)) <= ℓ₂. Odd and even functions of r are uncorrelated, so
#
#     Λ = diag((1 − 2Φ(−a))/σ²,  E[min(r², c²) r²] − β(c)),    V = diag(β(a)/σ²,  E[min(r², c²)²] − β(c)²),
#
#     E[r⁴; |r| < c] = 3(1 − 2Φ(−c)) − 2φ(c)(c³ + 3c),    E[r²; |r| > c] = 2Φ(−c) + 2cφ(c).
#
# No label needs a bound.

#: Beyond this many standard deviations nothing is left of a Normal in float64.
_FARTHEST_SCALE = 40.0


@dataclass(frozen=True)
class Normal:
    """The score of a Normal's location and log scale."""

    size: ClassVar[int] = 2

    def sizes(self, eta: np.ndarray) -> np.ndarray:
        """Return the standard deviation of each part of s, (n, 2)."""
        return np.stack([np.exp(-eta[:, 1]), np.full(len(eta), math.sqrt(2))], axis=1)

    def residual(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return ψ, (n, 2), each part within its limit (n, 2)."""
        a, c, sigma = _cuts(eta, limit)
        r = (y - eta[:, 0]) / sigma
        return np.stack([-np.clip(r, -a, a) / sigma, _censored(c) - np.minimum(r**2, c**2)], axis=1)

    def law(self, eta: np.ndarray, limit: np.ndarray) -> Law:
        """Return Λ and V, (n, 2, 2)."""
        a, c, sigma = _cuts(eta, limit)
        tail = ndtr(-c)
        density = np.exp(-(c**2) / 2) / math.sqrt(2 * math.pi)
        inner = 3 * (1 - 2 * tail) - 2 * density * (c**3 + 3 * c)
        beta = _censored(c)
        location = (1 - 2 * ndtr(-a)) / sigma**2, _censored(a) / sigma**2
        scale = (
            inner + 2 * c**2 * (tail + c * density) - beta,
            inner + 2 * c**4 * tail - beta**2,
        )
        parts = (np.stack(pair, axis=1)[:, :, None] * np.eye(2) for pair in zip(location, scale, strict=True))
        return Law(*parts)


def _cuts(eta: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (a, c, σ), (n,) each."""
    sigma = np.exp(eta[:, 1])
    most = np.minimum(limit[:, 1], _FARTHEST_SCALE**2)
    square = np.where(most >= 1, most + _censored(np.sqrt(most)), most)
    return np.minimum(limit[:, 0] * sigma, _FARTHEST_SCALE), np.sqrt(square), sigma


def _censored(c: np.ndarray) -> np.ndarray:
    """Return β(c) = E min(r², c²)."""
    tail = ndtr(-c)
    density = np.exp(-(c**2) / 2) / math.sqrt(2 * math.pi)
    return 1 - 2 * tail - 2 * c * density + 2 * c**2 * tail


# ----------------------------------------------------------------------------------------------------
# Bounded scores of counts with a log link: residuals clipped at both ends, then centred in closed form.
#
#     ψ = c w (E[t] − t),   t = clip(y − μ, ±h),   c = 1/(1 + αμ),   μ = exp(η)
#
# with Var y = μ + αμ² =: v (α = 0: Poisson) and the model's own score s = c(μ − y), whose variance is I = cμ. A score
# may have c = 1/(1 + βμ) of another β: with β = 0 and a limit far out it is Poisson's, whose estimate holds for the
# mean whatever the law of a count. Here, with S = c√v the standard deviation of c(μ − y),
#
#     h = max(limit, ¾S)/c,   w = min(1, limit/longest),   longest = c max(h − E[t], min(μ, h) + E[t]).
#
# This is the centred Huber score with a Mallows weight of Cantoni and Ronchetti (2001). A Mallows weight alone does not
# bound a residual that has no bound, and a clipped residual that is not centred has a mean, since counts are skew.
#
# **Bound.** Labels are not negative, so t lies between −min(μ, h) and h, both within reach of some label or real
# number. Then c|E[t] − t| <= longest, and |ψ| <= limit for every y.
#
# **Unbiased.** h and w are functions of η and of the limit, not of y, and E[E[t] − t | η] = 0.
#
# **Efficient.** With β = α and the limit far above S nothing is clipped, and ψ = s. Far below it, residuals are clipped
# at ¾ of a standard deviation: per limit the curvature is then within a twelfth of that of the optimal score, whose h
# tends to 0.
#
# **Law.** E[t], E[t²] and E[t(y − μ)] are made of A_j(k) = Σ_{y <= k} (y − μ)^j p(y). With F the distribution function
# and τ(k) = μ(1 + αk), Stein's identity for counts says Σ_{y <= k} (μ − y) p(y) = τ(k) p(k), and summation by parts
# gives A_2:
#
#     A_0 = F(k),   A_1 = −τ(k) p(k),   A_2 = v F(k) − τ(k) p(k) (k − μ + 1 + αμ).
#
# Then Λ = c w E[t(y − μ)]/(1 + αμ) and V = c² w² Var t.
#
# **Predictors.** η is brought into ±8, so that no power overflows. A record whose mean is beyond exp(8) =
# 2,981 would have a biased score; a prior within ``strongest`` and ``strongest_intercept`` puts that at 8/√(2² + 4²) =
# 1.8 of its standard deviations or more.

#: Least h in standard deviations of a count; most |η|.
_LEAST, _FARTHEST = 0.75, 8.0
#: Candidates for κ. The first costs least: at 0.5 and at 1 intervals were as wide to a tenth (d = 10, N = 20,000, ε
#: from 0.3 to 3). Centring rests on the model's law of a count, and the further out residuals are clipped the less it
#: matters where counts vary otherwise.
CLIPS = (0.75, 1.5, 3.0, 6.0, 12.0, 24.0, 48.0)
#: Step of a derivative in the dispersion.
_STEP = 0.05


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
class Counts:
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

    @property
    def limit(self) -> float:
        """κ."""
        return self.clip

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

    def slope(self, eta: np.ndarray, y: np.ndarray, limit: np.ndarray) -> np.ndarray:
        """Return Λ; see :class:`~dpmcmc.inference.scores.BoundedScore`."""
        return self.law(eta, limit).curvature

    def leverage(self, clip: float, longest: float) -> float:
        """Return infinity: a count's variance, and with it its slope, has no bound."""
        return math.inf

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
        more = Counts(self.dispersion + _STEP, self.clip)
        share = 1 / (1 + more.dispersion * at.mean)
        low, high = (
            more._partial(k, at.mean, share, at.mean / share)
            for k in (np.ceil(at.mean - at.bound) - 1, np.floor(at.mean + at.bound))
        )
        centre = at.bound * (1 - high[0] - low[0]) + high[1] - low[1]
        return at.share * at.weight * (at.centre - centre) / _STEP

    def _shares(self, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (μ, c, 1/(1 + αμ))."""
        mean = np.exp(np.clip(eta, -_FARTHEST, _FARTHEST))
        own = 1 / (1 + self.dispersion * mean)
        if self.weighting is None:
            return mean, own, own
        return mean, 1 / (1 + self.weighting * mean), own

    def _clipped(self, eta: np.ndarray, limit: np.ndarray | float) -> _Clipped:
        mean, share, own = self._shares(eta)
        variance = mean / own
        bound = np.maximum(limit, _LEAST * share * np.sqrt(variance)) / share
        (low, low_first, low_second), (high, high_first, high_second) = (
            self._partial(k, mean, own, variance) for k in (np.ceil(mean - bound) - 1, np.floor(mean + bound))
        )
        above = 1 - high
        centre = bound * (above - low) + high_first - low_first
        square = bound**2 * (above + low) + high_second - low_second
        slope = high_second - low_second - bound * (low_first + high_first)
        longest = share * np.maximum(bound - centre, np.minimum(mean, bound) + centre)
        weight = np.minimum(1.0, limit / longest)
        left_out = -high_first - low_first - bound * (above + low)
        return _Clipped(mean, share, own, bound, centre, weight, square - centre**2, slope, left_out)

    def _partial(
        self, k: np.ndarray, mean: np.ndarray, share: np.ndarray, variance: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return A_0, A_1 and A_2 up to k, whole numbers of which some may be negative."""
        count = np.maximum(k, 0.0)
        inside = k >= 0
        distribution = np.where(inside, self._distribution(count, mean, share), 0.0)
        kernel = np.where(
            inside,
            mean * (1 + self.dispersion * count) * self._chance(count, mean, share),
            0.0,
        )
        return (
            distribution,
            -kernel,
            variance * distribution - kernel * (count - mean + 1 / share),
        )

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


#: Families whose scores are weighted blindly to labels, by the name that a saved path has.
LABEL_BLIND: dict[str, type[LabelBlind]] = {"logistic": Logistic, "linear": Linear}
#: From a target to its score.
SCORES: dict[type, Callable[[Any], BoundedScore]] = {
    LogisticRegression: lambda target: Logistic(),
    LinearRegression: lambda target: Linear(target.noise_scale**2),
    SoftmaxRegression: lambda target: Softmax(target.classes),
    PoissonRegression: lambda target: Counts(),
    NegativeBinomialRegression: lambda target: Counts(target.dispersion),
}
#: Scores of the observed site of a NumPyro model, by the name of its family in ``targets/numpyro/model.py``.
MODEL_SCORES: dict[str, BoundedScore | Normal] = {
    "logistic": Logistic(),
    "normal": Normal(),
    "poisson": Counts(),
}


def score_of(target: object) -> BoundedScore | None:
    """Return the bounded score of a target, or None where none is derived."""
    made = SCORES.get(type(target))
    return None if made is None else made(target)


__all__ = [
    "LABEL_BLIND",
    "MODEL_SCORES",
    "SCORES",
    "BoundedScore",
    "LabelBlind",
    "Law",
    "score_of",
]
