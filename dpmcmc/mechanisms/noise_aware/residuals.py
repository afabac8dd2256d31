"""The scale of a linear regression's residuals, learnt from released weights on a grid of sizes; see ``scale.py``.

The noisy weights say where the last tenth of sizes begins (:meth:`Residuals._tail_start`). Then they say how likely
each of many generalised Pareto laws of that tenth is (:meth:`Residuals._tail`). Both make the law of all sizes
(:class:`SizeLaw`). For each bound that Huber's score may have, this law gives the moments of what the score leaves in
and of what it leaves out (:func:`_learnt`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import boxcox, ndtr, ndtri, softmax, stdtrit

from dpmcmc.inference.linear_score import Huber
from dpmcmc.mechanisms.noise_aware.scale import LearntScore
from dpmcmc.privacy.accounting import Adjacency

#: Candidates for the bound of a score, in standard deviations of residuals: those of normal ones of which the same
#: share lies within the first bound. The wider the bound, the nearer is Huber's fit to the mean where errors are not
#: symmetric, and the larger is the noise.
BOUNDS_IN_STD = (1.645, 1.96, 2.33, 2.81, 3.5, 4.5, 6.0, 8.0, 11.0, 15.0)
#: Knots on each side of 0, and the ratio of one to the next.
_KNOTS, _KNOT_RATIO = 40, 1.25
#: Residuals are looked at up to so many standard deviations for the mean of what the score leaves out, or a half more
#: than its bound: the most of these at which the mean has little noise.
_FARTHEST_IN_STD = (12.0, 10.0, 8.0, 6.0)
#: Largest noise of that mean, in sampling errors of a mean.
_MOST_NOISE = 2.5
#: Prior of that mean: zero with this chance, for symmetric errors, or else normal, as wide as all that is left out.
_CHANCE_OF_SYMMETRY = 0.2
#: Density at that quantile of the logarithm of a normal residual's size.
_LOG_SIZE_DENSITY = 2 * BOUNDS_IN_STD[0] * math.exp(-(BOUNDS_IN_STD[0] ** 2) / 2) / math.sqrt(2 * math.pi)
#: Share of residuals in the tail, a generalised Pareto law.
_TAIL_SHARE = 2 * float(ndtr(-BOUNDS_IN_STD[0]))
#: Scales that the tail may have, in standard deviations; the prior's median of them, and the standard deviation of
#: their logarithm.
_TAIL_SCALES, _MEDIAN_TAIL_SCALE, _TAIL_SCALE_LOG_STD = np.geomspace(0.05, 5.0, 16), 0.5, 0.7
#: Shapes that it may have, all as likely.
_TAIL_SHAPES = np.array([-0.2, 0.0, 0.15, 0.3, 0.45])
#: Points of equal weight that stand for a law.
_POINTS = 100
#: How many of a law's points are of rows with far larger errors, and the chance of each number.
_OUTLIERS, _OUTLIER_CHANCES = (0, 5, 15, 40), (0.6, 0.2, 0.1, 0.1)
#: Mean of what such errors exceed the start of the tail by, in standard deviations; their law is exponential.
_MEAN_OUTLIER = 3.0
#: Least standard deviation of ψ, in those of residuals.
_LEAST_SCORE_STD = 0.1
#: Prior of the residuals' standard deviation, log-normal: its median in units of the label's bound, and the standard
#: deviation of its logarithm; how many candidates stand for it.
_MEDIAN_STD, _STD_LOG_STD, _STD_CANDIDATES = 0.25, 1.0, 120
#: Relative standard deviation of a knot's share about that of a Student's law.
_KNOT_SHARE_STD = 0.3
#: Noise of the number of residuals up to a knot, over those in the tail, that hides where the tail begins.
_HIDDEN_TAIL_NOISE = 0.2
#: Degrees of freedom of Student's laws that sizes are compared with.
_STUDENT_DEGREES = (3.0, 6.0, np.inf)


class TailStart(NamedTuple):
    """Start of the last tenth of residuals' sizes.

    Attributes:
        size: from which on weights on the knots are taken for the tail's.
        quantile: size that nine tenths are within.
        log_variance: variance of the quantile's logarithm.
    """

    size: float
    quantile: float
    log_variance: float


class SizeLaw(NamedTuple):
    """Law of residuals' sizes: noisy weights on knots, and beyond them one of the laws that the tail may have.

    Attributes:
        knots: sizes, (knots,).
        inner: share of residuals at each knot; 0 in the tail, (knots,).
        tails: points of each law of the tail, with equal shares, (laws, points).
        weights: posterior probabilities of these laws, (laws,).
    """

    knots: np.ndarray
    inner: np.ndarray
    tails: np.ndarray
    weights: np.ndarray

    def means(self, of: Callable[[np.ndarray], np.ndarray]) -> tuple[float, np.ndarray]:
        """Return the parts of E[of(|r|)] up to the tail and beyond, under each law of the tail, (laws,).

        Args:
            of: sizes (1, n) -> values (k, n), which are averaged over k.
        """
        inner = float(self.inner @ np.mean(of(self.knots[None]), axis=0))
        return inner, _TAIL_SHARE * np.mean(of(self.tails[:, None]), axis=(1, 2))

    def root_mean_square(self, of: Callable[[np.ndarray], np.ndarray]) -> float:
        """Return the root mean square over laws of the tail of E[of(|r|)], of what is not negative."""
        inner, tail = self.means(of)
        return math.sqrt(float(self.weights @ (max(0.0, inner) + tail) ** 2))


@dataclass(frozen=True)
class Residuals:
    """Sizes and signs of residuals, for Huber's bound.

    Attributes:
        label_bound: Y, of |y|.
    """

    label_bound: float

    @property
    def knots(self) -> np.ndarray:
        """Sizes, (_KNOTS + 1,): 0, and 2Y times powers of the ratio."""
        return np.append(0.0, 2 * self.label_bound * _KNOT_RATIO ** -np.arange(_KNOTS - 1, -1, -1.0))

    @property
    def size(self) -> int:
        """Return the number of knots, of both signs."""
        return 2 * (_KNOTS + 1)

    def first(self) -> Huber:
        """Return the score that leaves every residual within Y as it is."""
        return Huber(self.label_bound, self.label_bound / 4)

    def moved(self, adjacency: Adjacency) -> float:
        """Return √2 or 1; see ``scale.py``."""
        return math.sqrt(2) if adjacency == Adjacency.REPLACE_ONE else 1.0

    def statistic(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return weights on the knots, (n, size); see ``scale.py``."""
        knots = self.knots
        residual = np.nan_to_num(y - eta, nan=np.inf, posinf=np.inf, neginf=-np.inf)
        sizes = np.minimum(np.abs(residual), knots[-1])
        above = np.clip(np.searchsorted(knots, sizes, side="right"), 1, _KNOTS)
        part = (sizes - knots[above - 1]) / (knots[above] - knots[above - 1])
        out = np.zeros((len(y), self.size))
        side = (residual < 0) * (_KNOTS + 1)
        at = np.arange(len(y))
        out[at, side + above] = part
        # Both signs share the knot at 0, so that a residual whose sign rounding decides moves no further than its size.
        out[at, np.where(above > 1, side + above - 1, 0)] = 1 - part
        return out

    def shares(self, sizes: np.ndarray) -> np.ndarray:
        """Return the mean weights on the knots of points of several laws, (laws, points) -> (laws, knots)."""
        weights = self.statistic(np.zeros(sizes.size), sizes.ravel())
        return weights.reshape(*sizes.shape, -1)[..., : _KNOTS + 1].mean(axis=1)

    def learnt(
        self,
        released: np.ndarray,
        noise_std: float,
        count: int,
        limits: np.ndarray,
    ) -> tuple[LearntScore, ...]:
        """Return Huber's scores, and the mean and size of what each leaves out; see ``scale.py``."""
        signed = released.reshape(2, -1)
        sizes = signed.sum(axis=0)
        start = self._tail_start(sizes, math.sqrt(2) * noise_std, count)
        inner = np.where(self.knots <= start.size, sizes, 0.0) / count
        law = SizeLaw(self.knots, inner, *self._tail(sizes, noise_std, start.size, count))
        std = start.size / BOUNDS_IN_STD[0]
        residuals = (start.quantile / BOUNDS_IN_STD[0], start.log_variance)
        found = []
        for bound_in_std in BOUNDS_IN_STD:
            score = Huber.of(std, bound_in_std)
            cuts = score.bound * limits[:, None]
            seen, noise = self._seen(score, cuts, noise_std, count)
            mean = float((signed[0] - signed[1]) @ seen) / count
            sampled = float(np.maximum(sizes, 0.0) @ seen**2)
            found.append(_learnt(score, cuts, law, mean, (noise + sampled) / count**2, residuals))
        return tuple(found)

    def _seen(self, score: Huber, cuts: np.ndarray, noise_std: float, count: int) -> tuple[np.ndarray, float]:
        """Return the mean of what a score leaves out at each knot, (knots,), and the variance of its noisy sum.

        Knots so far out that the noise there would hide the mean count as 0.

        Args:
            score: Huber's.
            cuts: its bound in long rows, (k, 1).
            noise_std: of a knot's signed weight.
            count: of residuals.
        """
        left_out = np.maximum(self.knots - cuts, 0.0).mean(axis=0)
        for far in _FARTHEST_IN_STD:
            seen = np.where(self.knots <= max(far * score.std, 1.5 * score.bound), left_out, 0.0)
            noise = 2 * noise_std**2 * float(seen @ seen)
            if noise <= (_MOST_NOISE * score.std) ** 2 * count:
                break
        return seen, noise

    def label_std(self, median: float, varies: float, off: np.ndarray) -> float:
        """Return the standard deviation that labels are predicted with: the root of what their variance is on average.

        Residuals about a position vary by labels and by how far its predictors are from those of the best coefficients.
        Only the first is left where a posterior tells the coefficients. No label varies by more than its bound.

        Args:
            median: of the standard deviation of residuals, whose law is log-normal.
            varies: variance of its logarithm.
            off: mean squares over rows of how far the position's predictors are off, by draws of the posterior, (k,).
        """
        whole = median**2 * np.exp(2 * math.sqrt(varies) * ndtri(_chances(_POINTS)))
        left = np.subtract.outer(whole, off)
        likely = (left > 0) & (left <= self.label_bound**2)
        if not likely.any():
            return min(median * math.exp(varies), self.label_bound)
        return math.sqrt(float(np.mean(left[likely])))

    def _tail_start(self, sizes: np.ndarray, noise_std: float, count: int) -> TailStart:
        """Return where the tail starts.

        The start is the quantile of the noisy weights. Where noise hides the last tenth, Student's laws and a prior say
        more. A mean of both would be no surer, since they are of the same numbers. A knot's weight is of sizes on both
        sides of it, up to the middle of it and the next one. So nine tenths are within a size half a step farther out.

        Args:
            sizes: noisy weights on the knots.
            noise_std: of each.
            count: their sum without noise.
        """
        knots = self.knots
        # The weights sum to ``count``, so those beyond a knot tell as much as those up to it, with their own noise.
        within, beyond = np.cumsum(sizes), count - (np.cumsum(sizes[::-1])[::-1] - sizes)
        below = np.arange(1, _KNOTS + 2)
        above = _KNOTS + 1 - below
        mass = (above * within + below * beyond) / (_KNOTS + 1)
        mass = np.maximum.accumulate(np.clip(mass, 0.0, count))
        middle = (1 - _TAIL_SHARE) * count
        at = min(int(np.searchsorted(mass, middle)), _KNOTS - 1)
        hidden = noise_std * math.sqrt(below[at] * above[at] / (_KNOTS + 1))
        if hidden > _HIDDEN_TAIL_NOISE * _TAIL_SHARE * count:
            return self._student_start(sizes, noise_std, count)
        places = np.interp([middle - hidden, middle, middle + hidden], mass, knots)
        low, quantile, high = np.log(np.maximum(places, knots[1]))
        least = hidden / (count * _LOG_SIZE_DENSITY)
        log_std = max(float(high - low) / 2, least, 1e-6)
        start = math.exp(quantile)
        return TailStart(start, start * (1 + _KNOT_RATIO) / 2, log_std**2)

    def _student_start(self, sizes: np.ndarray, noise_std: float, count: int) -> TailStart:
        """Return where the tail of Student's laws starts, given noisy weights; see :meth:`_tail_start`."""
        candidates, shares = _students(self)
        expected = count * shares
        variance = noise_std**2 + 1.0 + expected + (_KNOT_SHARE_STD * expected) ** 2
        middle = math.log(_MEDIAN_STD * self.label_bound * BOUNDS_IN_STD[0])
        log_prior = -0.5 * ((candidates - middle) / _STD_LOG_STD) ** 2
        weights = softmax(log_prior + _log_likelihood(sizes, expected, variance)).sum(axis=0)
        mean = float(weights @ candidates)
        step = candidates[1] - candidates[0]
        quantile = math.exp(mean)
        return TailStart(quantile, quantile, max(float(weights @ (candidates - mean) ** 2), step**2))

    def _tail(self, sizes: np.ndarray, noise_std: float, start: float, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the laws of sizes beyond ``start``, (laws, points), and their probabilities given noisy weights."""
        excesses, log_prior = _excesses()
        points = np.minimum(start * (1 + excesses / BOUNDS_IN_STD[0]), self.knots[-1])
        expected = _TAIL_SHARE * count * self.shares(points)
        # A knot whose lower neighbour is in the tail has no weight of what is not.
        whole = np.append(False, self.knots[:-1] >= start)
        expected = expected[:, whole]
        return points, softmax(log_prior + _log_likelihood(sizes[whole], expected, 2 * noise_std**2 + expected))


def _learnt(
    score: Huber, cuts: np.ndarray, law: SizeLaw, mean: float, mean_variance: float, residuals: tuple[float, float]
) -> LearntScore:
    """Return a score with the moments of what it leaves in and out.

    The left-out part of a residual r is r − clip(r, ±c), with a smaller c in long rows. Its mean moves the intercept if
    errors are skewed. It is a posterior mean, so that symmetric errors cost little width.

    Args:
        score: Huber's.
        cuts: its bound c in long rows, (k, 1).
        law: of residuals' sizes.
        mean: noisy mean of the left-out part.
        mean_variance: of this mean's noise.
        residuals: law of their standard deviation.
    """
    inner, tail = law.means(lambda size: np.minimum(size, cuts) ** 2)
    variance = max(inner + float(law.weights @ tail), (_LEAST_SCORE_STD * score.std) ** 2)
    wide = law.root_mean_square(lambda size: np.maximum(size - cuts, 0.0)) ** 2
    # ψ = clip(η − y) is the negative of the clipped residual, whose mean is the negative of what is left out.
    shift, shift_variance = _spike_and_slab(mean, mean_variance, wide)
    return LearntScore(
        score,
        shift,
        shift_variance,
        variance=min(variance, score.bound**2),
        mean_beyond=law.root_mean_square(lambda size: size * (size > cuts)),
        residuals=residuals,
    )


def _spike_and_slab(mean: float, variance: float, wide: float) -> tuple[float, float]:
    """Return posterior mean and variance of what was measured as ``mean``, under a prior that is zero or N(0, wide)."""
    if not variance > 0:  # no knot lies beyond the bound
        return mean, 0.0
    kept = wide / (wide + variance)
    bayes_factor = math.sqrt(1 - kept) * math.exp(min(kept * mean**2 / (2 * variance), 700.0))
    odds = (1 / _CHANCE_OF_SYMMETRY - 1) * bayes_factor
    skewed = odds / (1 + odds)
    found = kept * mean
    return skewed * found, skewed * kept * variance + skewed * (1 - skewed) * found**2


def _log_likelihood(seen: np.ndarray, expected: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return log N(seen; expected, diag(variance)) up to a constant, (...,), of knots (..., knots)."""
    return -0.5 * np.sum(np.log(variance) + (seen - expected) ** 2 / variance, axis=-1)


def _chances(count: int) -> np.ndarray:
    """Return the chances of quantiles that stand for a law, (count,)."""
    return (np.arange(count) + 0.5) / max(count, 1)


@functools.cache
def _excesses() -> tuple[np.ndarray, np.ndarray]:
    """Return what sizes exceed the start of the tail by, in standard deviations, and log priors, of each law."""
    laws = []
    for outliers in _OUTLIERS:
        # Quantiles of a generalised Pareto law: ((1 − p)^−shape − 1)/shape times the scale.
        usual = boxcox(1 / (1 - _chances(_POINTS - outliers)), _TAIL_SHAPES[:, None])
        usual = _TAIL_SCALES[:, None, None] * usual
        far = -_MEAN_OUTLIER * np.log1p(-_chances(outliers))
        far = np.broadcast_to(far, (*usual.shape[:2], outliers))
        laws.append(np.concatenate([usual, far], axis=2).reshape(-1, _POINTS))
    of_scales = -0.5 * (np.log(_TAIL_SCALES / _MEDIAN_TAIL_SCALE) / _TAIL_SCALE_LOG_STD) ** 2
    log_prior = np.add.outer(np.log(_OUTLIER_CHANCES), np.repeat(of_scales, len(_TAIL_SHAPES)))
    return np.concatenate(laws), log_prior.ravel()


@functools.cache
def _students(residuals: Residuals) -> tuple[np.ndarray, np.ndarray]:
    """Return logarithms of the size that nine tenths are within, (k,), and shares on knots, (laws, k, knots)."""
    knots = residuals.knots
    candidates = np.linspace(math.log(knots[1]), math.log(knots[-1]), _STD_CANDIDATES)
    chances = np.append((1 + _chances(_POINTS)) / 2, 1 - _TAIL_SHARE / 2)
    shares = []
    for degrees in _STUDENT_DEGREES:
        quantiles = stdtrit(degrees, chances)
        unit = quantiles[:-1] / quantiles[-1]
        shares.append(residuals.shares(np.exp(candidates)[:, None] * unit))
    return candidates, np.stack(shares)
