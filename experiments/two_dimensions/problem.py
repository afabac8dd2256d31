"""The generated regression of Figure 3.1, and its exact posterior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import dpmcmc
from experiments.two_dimensions.settings import Regression


@dataclass(frozen=True)
class Problem:
    """A generated regression, and its exact posterior: mean (2,), covariance (2, 2) and its inverse."""

    target: dpmcmc.targets.LinearRegression
    records: dict[str, np.ndarray]
    mean: np.ndarray
    covariance: np.ndarray
    precision: np.ndarray

    @property
    def num_records(self) -> int:
        """N."""
        return len(self.records["y"])

    @property
    def curvature(self) -> float:
        """Mean curvature of the potential."""
        return float(np.trace(self.precision)) / 2

    def distance(self, point: np.ndarray) -> float:
        """Distance of a point to the posterior mean, in posterior standard deviations along the way."""
        return float(np.sqrt((point - self.mean) @ self.precision @ (point - self.mean)))

    def clipped_share(self, clip: float) -> float:
        """Share of the records whose gradient at the posterior mean exceeds the clip norm. Reads every record."""
        x = self.records["x"]
        y = self.records["y"]
        norms = np.abs(x @ self.mean - y) * np.linalg.norm(x, axis=1) / self.target.noise_scale**2
        return float(np.mean(norms > clip))


def make_problem(regression: Regression) -> Problem:
    """Draw coefficients and records from public seeds."""
    rng = np.random.default_rng(regression.seed)
    coefficients = regression.prior_scale * rng.normal(size=2)
    rho = regression.correlation
    x = rng.normal(size=(regression.num_records, 2)) @ np.linalg.cholesky(np.array([[1, rho], [rho, 1]])).T
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = x @ coefficients + regression.noise_scale * rng.normal(size=len(x))
    records = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    target = dpmcmc.targets.LinearRegression(regression.prior_scale, regression.noise_scale)
    mean, covariance = target.posterior(records)
    return Problem(target, records, mean, covariance, np.linalg.inv(covariance))
