"""Private gradients one after the other, each at the posterior's mean given those before it.

Later gradients get more of the budget, since they are taken nearer to where the posterior ends. The mean of the
latest ones is what a posterior is concluded from (``inference/normal_law.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmcmc.inference import normal_law
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local
from dpmcmc.privacy.query.gram_release import within
from dpmcmc.report import progress

#: Gradients that the position settles in, at least.
FEWEST_STEPS = 16


def shares(steps: int, growth: float) -> np.ndarray:
    """Return the part of all gradients' μ² that each one gets, (steps,), each ``growth`` times the one before it."""
    parts = growth ** np.arange(steps, dtype=np.float64)
    return parts / parts.sum()


def multipliers(first: float, shares: np.ndarray) -> np.ndarray:
    """Return noise multipliers of gradients with these shares, (steps,), given the first's; never less than asked."""
    return first * np.sqrt(shares[0] / shares) * (1 + 1e-12)


@dataclass(frozen=True)
class Descent:
    """Public facts of the gradients.

    Attributes:
        stds: s_k, (steps,): the noise of gradient k has covariance s_k² F².
        square: F² of the metric, (d, d).
        precision: P of the prior N(0, P⁻¹), (d, d).
        local: model of the gradients, given a posterior's mean.
        latest: after each gradient, the part of those before it that a posterior is made of, (steps,).
        radius: how far from 0 a position may lie.
    """

    stds: np.ndarray
    square: np.ndarray
    precision: np.ndarray
    local: Callable[[np.ndarray], Local]
    latest: np.ndarray
    radius: float = math.inf

    def carry_out(
        self,
        gradient: Callable[[int, np.ndarray], np.ndarray],
        now: Gaussian,
        done: int,
        steps: int,
    ) -> tuple[Gaussian, GradientRelease]:
        """Release the gradients; return the last posterior, and the mean of the latest gradients.

        Args:
            gradient: (k, position) -> gradient k, released there.
            now: the posterior to begin with.
            done: gradients before these, of the run.
            steps: gradients of the run.
        """
        positions, gradients = np.zeros((2, len(self.stds), len(now.mean)))
        for k, part in enumerate(self.latest):
            positions[k] = within(now.mean[None], self.radius)[0]
            gradients[k] = gradient(k, positions[k])
            window = slice(k + 1 - math.ceil(part * (k + 1)), k + 1)
            precisions = self.stds[window] ** -2.0
            release = normal_law.weighted_mean(positions[window], gradients[window], precisions, self.square)
            now = normal_law.posterior(release, self.local(now.mean), self.precision, now, rounds=2)
            progress.report_steps(done + k + 1, steps)
        return now, release
