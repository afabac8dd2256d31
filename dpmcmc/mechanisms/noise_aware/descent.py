"""Private gradients one after the other, each at the posterior's mean given those before it.

Later gradients get more of the budget, since they are taken nearer to where the posterior ends. The mean of the
latest ones is what a posterior is concluded from (``inference/normal_law.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmcmc.inference import normal_law
from dpmcmc.inference.decompositions import square_root
from dpmcmc.inference.normal_law import Gaussian, GradientRelease
from dpmcmc.privacy.query.gram_release import within
from dpmcmc.report import progress

#: Pairs of points that stand for those of which a position is the mean.
_SPREAD_POINTS = 32


class Path(NamedTuple):
    """Released gradients in their order.

    Attributes:
        positions: where each was released, (d,).
        gradients: of the negative log-likelihood, (d,).
        stds: s_k: the noise of gradient k has covariance s_k² F².
        spread: covariance of points of which a position is the mean, (d, d), and its gradient the mean of theirs; None:
            each is one point.
        minibatch: covariance of what minibatches add to the last gradient, (d, d), or 0.
    """

    positions: tuple[np.ndarray, ...] = ()
    gradients: tuple[np.ndarray, ...] = ()
    stds: tuple[float, ...] = ()
    spread: np.ndarray | None = None
    minibatch: np.ndarray | float = 0.0

    def with_gradient(self, position: np.ndarray, gradient: np.ndarray, std: float) -> Path:
        """Return the path with one more gradient."""
        return self._replace(
            positions=(*self.positions, position),
            gradients=(*self.gradients, gradient),
            stds=(*self.stds, std),
        )

    def precisions(self, count: int) -> np.ndarray:
        """Return 1/s_k² of the last ``count`` gradients, (count,)."""
        return np.array(self.stds[-count:]) ** -2.0

    def last(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return points of the last ``count`` positions, (points, d), and their weights in the mean."""
        precisions = self.precisions(count)
        positions = np.array(self.positions[-count:])
        weights = precisions / precisions.sum()
        if self.spread is None:
            return positions, weights
        away = _spread_points(self.spread)
        return (positions[:, None] + away).reshape(-1, positions.shape[1]), np.repeat(weights / len(away), len(away))

    def mean(self, count: int, square: np.ndarray) -> GradientRelease:
        """Return the mean of the last ``count`` gradients, weighted by their precision, given F², (d, d)."""
        positions, gradients = (np.array(leaves[-count:]) for leaves in (self.positions, self.gradients))
        found = normal_law.weighted_mean(positions, gradients, self.precisions(count), square)
        return found._replace(noise=found.noise + self.minibatch)


def _spread_points(spread: np.ndarray) -> np.ndarray:
    """Return points of a normal law about 0 with this covariance, (points, d), which are public."""
    noise = np.random.default_rng(0).normal(size=(_SPREAD_POINTS, len(spread)))
    return np.concatenate([noise, -noise]) @ square_root(spread).T


def descend(
    now: Gaussian,
    path: Path,
    steps: range,
    multipliers: np.ndarray,
    gradient: Callable[[np.ndarray, float], tuple[np.ndarray, float]],
    posterior: Callable[[Path, Gaussian], Gaussian],
    radius: float,
) -> tuple[Gaussian, Path]:
    """Release gradients; return the posterior that follows, and the path with them.

    Args:
        now: the posterior to begin with.
        path: gradients before these.
        steps: numbers of the gradients.
        multipliers: noise multipliers of all gradients of the run, (steps,).
        gradient: (position, noise multiplier) -> the gradient, released there, and its noise std in the metric.
        posterior: (path, the posterior before it) -> the posterior given the path.
        radius: how far from 0 a position may lie.
    """
    for k in steps:
        at = within(now.mean[None], radius)[0]
        path = path.with_gradient(at, *gradient(at, multipliers[k]))
        now = posterior(path, now)
        progress.report_steps(k + 1, len(multipliers))
    return now, path
