"""Private gradients one after the other, each at the posterior's mean given those before it.

Later gradients get more of the budget, since they are taken nearer to where the posterior ends. The mean of the
latest ones is what a posterior is concluded from (``inference/normal_law.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmcmc.inference import normal_law
from dpmcmc.inference.normal_law import Gaussian, GradientRelease
from dpmcmc.privacy.query.gram_release import within
from dpmcmc.report import progress


class Path(NamedTuple):
    """Released gradients in their order.

    Attributes:
        positions: where each was released, (d,).
        gradients: of the negative log-likelihood, (d,).
        stds: s_k: the noise of gradient k has covariance s_k² F².
    """

    positions: tuple[np.ndarray, ...] = ()
    gradients: tuple[np.ndarray, ...] = ()
    stds: tuple[float, ...] = ()

    def with_gradient(self, position: np.ndarray, gradient: np.ndarray, std: float) -> Path:
        """Return the path with one more gradient."""
        return Path((*self.positions, position), (*self.gradients, gradient), (*self.stds, std))

    def precisions(self, count: int) -> np.ndarray:
        """Return 1/s_k² of the last ``count`` gradients, (count,)."""
        return np.array(self.stds[-count:]) ** -2.0

    def last(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the last ``count`` positions, (count, d), and their weights in the mean."""
        precisions = self.precisions(count)
        return np.array(self.positions[-count:]), precisions / precisions.sum()

    def mean(self, count: int, square: np.ndarray) -> GradientRelease:
        """Return the mean of the last ``count`` gradients, weighted by their precision, given F², (d, d)."""
        positions, gradients = (np.array(leaves[-count:]) for leaves in (self.positions, self.gradients))
        return normal_law.weighted_mean(positions, gradients, self.precisions(count), square)


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
