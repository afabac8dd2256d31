r"""A metric F as a run released it: the noisy second moment that it was made of, and what anyone may conclude from it.

    F² = s² (Ĝ/N + floor·I),     s so that a typical vector has ‖F⁻¹v‖ = C/κ

Ĝ is the denoised second moment of the vectors v, rows or gradients (``gram.py``). A typical one has the root mean
square norm: tr(F⁻²Ĝ)/N = (C/κ)². So the clip norm C of the plan is κ times the typical norm in units of the metric,
and every number of the plan stays as it was settled before a record was read.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from dpmcmc.data.row_structure import RowStructure
from dpmcmc.inference.gram import Denoised, denoised
from dpmcmc.privacy.query.gram_release import NoisyGram

#: ``gram``: of rows x; ``second_moment``: of clipped gradients at the starting point.
MetricName = Literal["gram", "second_moment"]
#: Least part of the largest squared norm of a gradient that their mean is taken for.
_SMALLEST = 1e-4
#: A typical vector is taken for no shorter than this part of what it would be in its own metric, 1.
_SHORTEST = 0.1


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
    def denoised(self) -> Denoised:
        """The estimate Ĝ of Σ v vᵀ, and the law of its error."""
        return denoised(self.noisy, self.structure)

    @property
    def gram(self) -> np.ndarray:
        """Ĝ, (d, d)."""
        return self.denoised.gram

    @functools.cached_property
    def inverse(self) -> np.ndarray:
        """F⁻¹, (d, d)."""
        return np.linalg.inv(self.root)

    @property
    def floor(self) -> float:
        """Part of the identity in F²: the spectral norm of the noise in Ĝ/N, and no more than its mean eigenvalue.

        Below it the release holds noise alone. The less it is, the sooner a chain forgets its start in directions that
        are left to the prior.
        """
        size, most = len(self.noisy.gram), self.bound**2
        mean = most if self.name == "gram" else max(self.noisy.trace / self.num_records, _SMALLEST * most)
        return min(mean / size, self.noisy.noise_std * math.sqrt(2 * size) / self.num_records)

    def _made(self) -> np.ndarray:
        values, vectors = np.linalg.eigh(self.gram / self.num_records)
        squares = np.maximum(values, 0.0) + self.floor
        typical = math.sqrt(max(float(np.sum(np.maximum(values, 0.0) / squares)), _SHORTEST**2))
        return (vectors * (np.sqrt(squares) * typical * self.clip_ratio / self.clip)) @ vectors.T

    def curvatures(self, likelihood: float, prior_precision: float) -> np.ndarray:
        """Return the eigenvalues of the potential's curvature in φ, F⁻¹(c Ĝ + m I)F⁻¹, ascending.

        Args:
            likelihood: c, curvature of a record's loss in x·θ; of a second moment of gradients 1 stands for it.
            prior_precision: m.
        """
        hessian = likelihood * self.gram + prior_precision * np.eye(len(self.root))
        return np.linalg.eigvalsh(self.inverse @ hessian @ self.inverse)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays, for a file."""
        return {"noisy": self.noisy.gram, "root": self.root}

    def facts(self) -> dict[str, object]:
        """Return everything but the arrays, JSON values; :meth:`of` takes both."""
        noisy = self.noisy._asdict()
        del noisy["gram"]
        own = {name: getattr(self, name) for name in ("name", "num_records", "bound", "clip", "clip_ratio")}
        structure = None if self.structure is None else self.structure.to_json()
        return {**own, "noisy": noisy, "structure": structure}

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], facts: dict) -> Self:
        """Return the metric of :meth:`arrays` and :meth:`facts`."""
        structure = None if facts["structure"] is None else RowStructure.of_json(facts["structure"])
        noisy = NoisyGram(arrays["noisy"], **facts["noisy"])
        return cls(**{**facts, "noisy": noisy, "structure": structure, "root": arrays["root"]})
