"""The scale of a linear regression's residuals, learnt from released weights on a grid of sizes; see ``scale.py``."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

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
#: Points that stand for a law.
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


class Tail(NamedTuple):
    """Laws that the last tenth of residuals' sizes may have, with their probabilities.

    Attributes:
        sizes: points of each law, with equal shares, (laws, points).
        weights: posterior probabilities, (laws,).
    """

    sizes: np.ndarray
    weights: np.ndarray


@functools.cache
def _excesses() -> tuple[np.ndarray, np.ndarray]:
    """Return what sizes exceed the start of the tail by, in standard deviations, and log priors, of each law."""

    def exponential(count: int) -> np.ndarray:
        return -np.log1p(-(np.arange(count) + 0.5) / max(count, 1))

    laws = []
    for few in _OUTLIERS:
        log = exponential(_POINTS - few)
        shapes = _TAIL_SHAPES[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            most = np.where(shapes == 0, log, np.expm1(shapes * log) / shapes)
        most = _TAIL_SCALES[:, None, None] * most
        far = np.broadcast_to(_MEAN_OUTLIER * exponential(few), (*most.shape[:2], few))
        laws.append(np.concatenate([most, far], axis=2).reshape(-1, _POINTS))
    usual = -0.5 * (np.log(_TAIL_SCALES / _MEDIAN_TAIL_SCALE) / _TAIL_SCALE_LOG_STD) ** 2
    prior = np.add.outer(np.log(_OUTLIER_CHANCES), np.repeat(usual, len(_TAIL_SHAPES)))
    return np.concatenate(laws), prior.ravel()


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
        """Return Huber's scores, and the mean and size of what each leaves out; see ``scale.py``.

        The left-out part of a residual r is r − clip(r, ±c), with a smaller c in long rows. Its mean moves the
        intercept if errors are skewed. It is a posterior mean, so that symmetric errors cost little width.
        """
        knots = self.knots
        signed = released.reshape(2, -1)
        sizes = signed.sum(axis=0)
        nearest, usual, varies = self._nearest(sizes, math.sqrt(2) * noise_std, count)
        std = nearest / BOUNDS_IN_STD[0]
        tail = self._tail(sizes, noise_std, nearest, count)
        inner = np.where(knots <= nearest, sizes, 0.0) / count
        found = []
        for deviations in BOUNDS_IN_STD:
            bound = std * deviations
            cuts = bound * limits[:, None]
            left = np.maximum(knots - cuts, 0.0).mean(axis=0)
            for far in _FARTHEST_IN_STD:
                seen = std * max(far, 1.5 * deviations)
                shown = np.where(knots <= seen, left, 0.0)
                noise = 2 * noise_std**2 * float(shown @ shown)
                if noise <= (_MOST_NOISE * std) ** 2 * count:
                    break
            sampled = float(np.maximum(sizes, 0.0) @ shown**2)
            mean = float((signed[0] - signed[1]) @ shown) / count
            clipped = np.minimum(tail.sizes, cuts[:, :, None])
            variance = float(inner @ np.mean(np.minimum(knots, cuts) ** 2, axis=0))
            variance += _TAIL_SHARE * float(tail.weights @ np.mean(clipped**2, axis=(0, 2)))
            lost = max(0.0, float(inner @ left))
            lost = lost + _TAIL_SHARE * np.mean(tail.sizes - clipped, axis=(0, 2))
            outer = max(0.0, float(inner @ np.mean(knots * (knots > cuts), axis=0)))
            outer = outer + _TAIL_SHARE * np.mean(tail.sizes * (tail.sizes > cuts[:, :, None]), axis=(0, 2))
            # ψ = clip(η − y) is the negative of the clipped residual, whose mean is the negative of what is left out.
            wide = float(tail.weights @ lost**2)
            found.append(
                LearntScore(
                    Huber.of(std, deviations),
                    *_skew(mean, (noise + sampled) / count**2, wide),
                    variance=min(max(variance, (_LEAST_SCORE_STD * std) ** 2), bound**2),
                    mean_beyond=math.sqrt(float(tail.weights @ outer**2)),
                    residuals=(usual / BOUNDS_IN_STD[0], varies),
                )
            )
        return tuple(found)

    def label_std(self, median: float, varies: float, off: np.ndarray) -> float:
        """Return the standard deviation that labels are predicted with: the root of what their variance is on average.

        Residuals about a position vary by labels and by how far its predictors are from those of the best coefficients.
        Only the first is left where a posterior tells the coefficients. No label varies by more than its bound.

        Args:
            median: of the standard deviation of residuals, whose law is log-normal.
            varies: variance of its logarithm.
            off: mean squares over rows of how far the position's predictors are off, by draws of the posterior, (k,).
        """
        points = ndtri((np.arange(_POINTS) + 0.5) / _POINTS)
        whole = median**2 * np.exp(2 * math.sqrt(varies) * points)
        left = np.subtract.outer(whole, off)
        likely = (left > 0) & (left <= self.label_bound**2)
        if not likely.any():
            return min(median * math.exp(varies), self.label_bound)
        return math.sqrt(float(np.mean(left[likely])))

    def _nearest(self, sizes: np.ndarray, noise_std: float, count: int) -> tuple[float, float, float]:
        """Return where the tail starts, the size that nine tenths are within, and the variance of its logarithm.

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
            usual, varies = self._likely(sizes, noise_std, count)
            return math.exp(usual), math.exp(usual), varies
        places = np.interp([middle - hidden, middle, middle + hidden], mass, knots)
        low, quantile, high = np.log(np.maximum(places, knots[1]))
        least = hidden / (count * _LOG_SIZE_DENSITY)
        found = math.exp(quantile)
        varies = max(float(high - low) / 2, least, 1e-6) ** 2
        return found, found * (1 + _KNOT_RATIO) / 2, varies

    def _likely(self, sizes: np.ndarray, noise_std: float, count: int) -> tuple[float, float]:
        """Return mean and variance of the logarithm of that size under Student's laws, given noisy weights."""
        candidates, shares = _students(self)
        expected = count * shares
        variance = noise_std**2 + 1.0 + expected + (_KNOT_SHARE_STD * expected) ** 2
        logs = -0.5 * np.sum(np.log(variance) + (sizes - expected) ** 2 / variance, axis=2)
        middle = math.log(_MEDIAN_STD * self.label_bound * BOUNDS_IN_STD[0])
        logs = logs - 0.5 * ((candidates - middle) / _STD_LOG_STD) ** 2
        weights = np.exp(logs - logs.max()).sum(axis=0)
        weights /= weights.sum()
        mean = float(weights @ candidates)
        step = candidates[1] - candidates[0]
        return mean, max(float(weights @ (candidates - mean) ** 2), step**2)

    def _tail(self, sizes: np.ndarray, noise_std: float, start: float, count: int) -> Tail:
        """Return the laws of sizes beyond ``start``, given noisy weights on the knots."""
        excesses, logs = _excesses()
        points = start * (1 + excesses / BOUNDS_IN_STD[0])
        points = np.minimum(points, self.knots[-1])
        expected = _TAIL_SHARE * count * self.shares(points)
        # A knot whose lower neighbour is in the tail has no weight of what is not.
        whole = np.append(False, self.knots[:-1] >= start)
        variance = 2 * noise_std**2 + expected[:, whole]
        logs = logs - 0.5 * np.sum(np.log(variance) + (sizes - expected)[:, whole] ** 2 / variance, axis=1)
        weights = np.exp(logs - logs.max())
        return Tail(points, weights / weights.sum())


@functools.cache
def _students(residuals: Residuals) -> tuple[np.ndarray, np.ndarray]:
    """Return logarithms of the size that nine tenths are within, (k,), and shares on knots, (laws, k, knots)."""
    knots = residuals.knots
    candidates = np.linspace(math.log(knots[1]), math.log(knots[-1]), _STD_CANDIDATES)
    points = (np.arange(_POINTS) + 0.5) / _POINTS
    shares = []
    for degrees in _STUDENT_DEGREES:
        chances = np.append((1 + points) / 2, 1 - _TAIL_SHARE / 2)
        quantiles = stdtrit(degrees, chances) if degrees < np.inf else ndtri(chances)
        unit = quantiles[:-1] / quantiles[-1]
        shares.append(residuals.shares(np.exp(candidates)[:, None] * unit))
    return candidates, np.stack(shares)


def _skew(mean: float, variance: float, wide: float) -> tuple[float, float]:
    """Return mean and variance of what was measured, under a prior that is zero or N(0, wide)."""
    if not variance > 0:  # no knot lies beyond the bound
        return mean, 0.0
    apart = wide / (wide + variance)
    odds = (1 / _CHANCE_OF_SYMMETRY - 1) * math.sqrt(1 - apart) * math.exp(min(apart * mean**2 / (2 * variance), 700.0))
    skewed = odds / (1 + odds)
    found = apart * mean
    return skewed * found, skewed * apart * variance + skewed * (1 - skewed) * found**2
