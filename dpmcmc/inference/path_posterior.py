"""A normal posterior that accounts for the noise of privacy: what a noise-aware release or a chain's path concludes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from dpmcmc.errors import InputError
from dpmcmc.inference.normal_law import Gaussian
from dpmcmc.storage.blas import on_one_blas_thread


@dataclass(frozen=True, eq=False)
class PathPosterior:
    """A normal posterior that accounts for the noise of privacy.

    Attributes:
        mean: (d,).
        covariance: (d, d).
        doubts: why intervals may not hold, clauses that the release itself gave.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.inference import PathPosterior
        >>> posterior = PathPosterior(mean=np.array([1.0, 0.0]), covariance=np.diag([0.25, 0.01]))
        >>> posterior.std
        array([0.5, 0.1])
        >>> posterior.intervals(0.9).shape
        (2, 2)
    """

    mean: np.ndarray
    covariance: np.ndarray
    doubts: tuple[str, ...] = ()

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, (d,)."""
        return np.sqrt(np.diag(self.covariance))

    @on_one_blas_thread
    def draws(self, count: int, seed: int = 0) -> np.ndarray:
        """Return draws, (count, d); they cost nothing, and the seed may be public.

        Where there are more than twice as many as coefficients, their mean and covariance are those of the posterior,
        so that a table of them does not depend on the seed.
        """
        noise = np.random.default_rng(seed).normal(size=(count, len(self.mean)))
        if count > 2 * len(self.mean):
            noise = noise - noise.mean(axis=0)
            root = np.linalg.cholesky(np.cov(noise, rowvar=False).reshape(noise.shape[1], -1))
            noise = np.linalg.solve(root, noise.T).T
        return Gaussian(self.mean, self.covariance).draws(noise)

    def intervals(self, level: float = 0.9) -> np.ndarray:
        """Return central intervals of the coefficients, (d, 2).

        Raises:
            ValueError: a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise InputError(f"level must be in (0, 1), got {level}", "level")
        half = ndtri((1 + level) / 2) * self.std
        return np.stack([self.mean - half, self.mean + half], axis=1)

    def __repr__(self) -> str:
        return f"PathPosterior(mean of shape {self.mean.shape})"
