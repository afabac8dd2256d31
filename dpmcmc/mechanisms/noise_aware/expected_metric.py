"""The metric that a plan expects, before a record is read, and what the release of a curvature is expected to tell.

Stand-in rows take the place of the real ones: those of a usual spectrum (``regression_width.py``), or those that a
schema makes possible (``estimators/outlook.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.corrected_matrix import corrected
from dpmcmc.inference.decompositions import roots
from dpmcmc.inference.denoised_moment import Denoised
from dpmcmc.inference.normal_law import GradientRelease, Local, error_of_curvatures, moved_error
from dpmcmc.mechanisms.noise_aware.gradients import Design
from dpmcmc.mechanisms.noise_aware.metric import curvature_bounds, floor_of, joined, longest_whitened

#: Curvatures that stand for all that a release is expected to leave possible.
_CURVATURES = 16


class ExpectedMetric(NamedTuple):
    """The metric of stand-in rows.

    Attributes:
        gram: Σ x xᵀ, (d, d), or an estimate of it.
        square: F², (d, d).
        norm: a typical ‖F⁻¹x‖.
        longest: the largest one.
        error: Q -> Cov[E u] of the error of the rows' second moment.
        curvature_std: noise of the release of a curvature, over its bound L; None: none is released.
    """

    gram: np.ndarray
    square: np.ndarray
    norm: float
    longest: float
    error: Callable[[np.ndarray], np.ndarray]
    curvature_std: float | None = None

    @classmethod
    def of_one_release(cls, found: Denoised, design: Design) -> ExpectedMetric:
        """Return the metric of an estimate of the rows' second moment, where no curvature is released."""
        gram, error = found
        return cls(gram, design.metric(gram), design.whitened_norm(gram), design.longest, error)

    @classmethod
    def of_two_releases(
        cls,
        gram: np.ndarray,
        stds: tuple[float, float, float],
        num_rows: int,
        row_bound: float,
        own: Callable[[np.ndarray], np.ndarray],
    ) -> ExpectedMetric:
        """Return the metric that two releases of rows make, where a curvature is released.

        Args:
            gram: Σ x xᵀ, (d, d).
            stds: noise of its first release, of the second one over R², and of the curvature over L.
            num_rows: N.
            row_bound: b.
            own: Q -> Cov[E u] of the error E of the first.
        """
        first_std, second_std, curvature_std = stds
        size = len(gram)
        floor = floor_of(first_std, num_rows, size, row_bound)
        inverse = roots(gram / num_rows + floor * np.eye(size))[1]
        whitened = inverse @ gram @ inverse
        norm = math.sqrt(float(np.trace(whitened)) / num_rows)
        longest = longest_whitened(norm, row_bound / math.sqrt(floor), second_std, num_rows, size)
        found = joined(inverse, gram, whitened, longest**2 * second_std, own, num_rows)
        square = found.square
        norm = math.sqrt(float(np.trace(np.linalg.solve(square, gram))) / num_rows)
        longest = row_bound / math.sqrt(float(np.linalg.eigvalsh(square)[0]))
        return cls(gram, square, norm, longest, found.rows.error, curvature_std)

    def local(
        self,
        curvature: np.ndarray,
        spread: np.ndarray,
        score: BoundedScore,
        clip: float,
        mean: float,
        noise: np.ndarray,
        precision: np.ndarray,
        num_rows: int,
    ) -> Local:
        """Return a model of the gradient with the error that the releases are expected to leave in its curvature.

        Args:
            curvature: H, (d, d).
            spread: B, (d, d).
            score: of the family.
            clip: C.
            mean: curvature of a row's score in its predictor, the mean one.
            noise: V of the gradient's release, (d, d).
            precision: P of the prior.
            num_rows: N.
        """
        released_std = self.curvature_std
        if released_std is None:
            # A gradient is taken about as far from the truth as the posterior is wide.
            return Local(curvature, spread, lambda q: 2 * mean**2 * self.error(q))
        root, inverse = roots(self.square)
        model = inverse @ curvature @ inverse
        trace = float(np.trace(model))
        most = curvature_bounds(score, clip, self.norm, self.longest, trace, num_rows, len(model), released_std)[1]
        std = most * released_std
        own = moved_error(lambda q: mean**2 * self.error(q), inverse)
        possible = corrected(model, model, std, own).possible(_CURVATURES)
        zero = np.zeros(len(root))
        local = Local(curvature, spread, np.zeros_like)
        added = error_of_curvatures(GradientRelease(zero, zero, noise), local, root @ possible @ root, precision)
        return local._replace(curvature_error=lambda q: added)
