"""A metric F that a run released, the noisy second moment behind it, and the curvatures that follow from both.

    F² = s² (Ĝ/N + floor·I),     s so that a typical vector has ‖F⁻¹v‖ = C/κ

Ĝ is the denoised second moment of the vectors v, rows or gradients (``denoised_moment.py``). A typical one has the root
mean square norm: tr(F⁻²Ĝ)/N = (C/κ)². So the plan's clip norm C is κ times the typical norm in units of the metric,
and every number of the plan, which was computed before a record was read, stays valid.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from dpmcmc.data.structure import RowStructure
from dpmcmc.inference.decompositions import spectral
from dpmcmc.inference.denoised_moment import Denoised, denoised
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.storage.blas import on_one_blas_thread

#: ``gram``: of rows x; ``second_moment``: of clipped gradients at the starting point.
MetricName = Literal["gram", "second_moment"]
#: Least value of the mean squared norm of gradients, as a share of the largest squared norm.
LEAST_MEAN_SHARE = 1e-4
#: Least norm of a typical vector in the metric; it would be 1 without the floor.
LEAST_TYPICAL_NORM = 0.1


def metric_floor(mean: float, noise_std: float, num_records: int, size: int) -> float:
    """Return the part of the identity in F²; ``mean`` is that of a vector's squared norm (``ReleasedMetric.floor``)."""
    return min(mean / size, noise_std * math.sqrt(2 * size) / num_records)


def metric_roots(values: np.ndarray, floor: float, clip: float, clip_ratio: float) -> np.ndarray:
    """Return the eigenvalues of F from those of Ĝ/N, which are not negative."""
    squares = values + floor
    typical = math.sqrt(max(float(np.sum(values / squares)), LEAST_TYPICAL_NORM**2))
    return np.sqrt(squares) * typical * clip_ratio / clip


@dataclass(frozen=True, eq=False)
class ReleasedMetric:
    """A metric, and the release behind it.

    Attributes:
        name: what it is the second moment of.
        noisy: Σ v vᵀ with noise, an estimate of its trace, and their stds.
        num_records: N.
        bound: largest ‖v‖.
        clip: C, the plan's.
        clip_ratio: κ, C over a typical ‖F⁻¹v‖.
        structure: declared of the vectors, or None.
        root: F, (d, d), symmetric; None: made of the rest.
    """

    name: MetricName
    noisy: NoisyGram
    num_records: int
    bound: float
    clip: float
    clip_ratio: float
    structure: RowStructure | None = None
    root: np.ndarray = None  # type: ignore[assignment]  # set below

    def __post_init__(self) -> None:
        if self.root is None:
            object.__setattr__(self, "root", self._made())

    def __repr__(self) -> str:
        return f"ReleasedMetric({self.name}, root of shape {self.root.shape})"

    @functools.cached_property
    @on_one_blas_thread
    def denoised(self) -> Denoised:
        """The estimate Ĝ of Σ v vᵀ, and the law of its error."""
        return denoised(self.noisy, self.structure)

    @property
    def gram(self) -> np.ndarray:
        """Ĝ, (d, d)."""
        return self.denoised.gram

    @functools.cached_property
    @on_one_blas_thread
    def inverse(self) -> np.ndarray:
        """F⁻¹, (d, d)."""
        return np.linalg.inv(self.root)

    @property
    def floor(self) -> float:
        """Part of the identity in F²: the spectral norm of the noise in Ĝ/N, and no more than its mean eigenvalue.

        Smaller eigenvalues of the release are noise. The smaller the floor, the sooner a chain forgets its start in
        directions that only the prior determines.
        """
        most = self.bound**2
        mean = most if self.name == "gram" else max(self.noisy.trace / self.num_records, LEAST_MEAN_SHARE * most)
        return metric_floor(mean, self.noisy.noise_std, self.num_records, len(self.noisy.gram))

    @on_one_blas_thread
    def _made(self) -> np.ndarray:
        def of_values(values: np.ndarray) -> np.ndarray:
            return metric_roots(np.maximum(values, 0.0), self.floor, self.clip, self.clip_ratio)

        return spectral(self.gram / self.num_records, of_values)

    @on_one_blas_thread
    def curvatures(self, likelihood: float, prior_precision: float) -> np.ndarray:
        """Return the eigenvalues of the potential's curvature in φ, F⁻¹(c Ĝ + m I)F⁻¹, ascending.

        Args:
            likelihood: c, curvature of a record's loss in x·θ; 1 for a second moment of gradients.
            prior_precision: m.
        """
        hessian = likelihood * self.gram + prior_precision * np.eye(len(self.root))
        return np.linalg.eigvalsh(self.inverse @ hessian @ self.inverse)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays, for a file."""
        return {"noisy": self.noisy.gram, "root": self.root}

    def facts(self) -> dict[str, object]:
        """Return everything but the arrays, as JSON values; :meth:`of` takes both."""
        noisy = self.noisy._asdict()
        del noisy["gram"]
        own = {
            "name": self.name,
            "num_records": self.num_records,
            "bound": self.bound,
            "clip": self.clip,
            "clip_ratio": self.clip_ratio,
        }
        structure = None if self.structure is None else self.structure.to_json()
        return {**own, "noisy": noisy, "structure": structure}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], facts: dict) -> Self:
        """Return the metric of :meth:`arrays` and :meth:`facts`."""
        structure = None if facts["structure"] is None else RowStructure.of_json(facts["structure"])
        noisy = NoisyGram(arrays["noisy"], **facts["noisy"])
        return cls(**{**facts, "noisy": noisy, "structure": structure, "root": arrays["root"]})
