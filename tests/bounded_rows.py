"""A regression's access to some records, with its private sums as floats: what a test compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmcmc.mechanisms.noise_aware.gradients import BoundedGradient, Bounds, Design
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.privacy.query.record_sums import Whole


@dataclass(frozen=True)
class Reading:
    """Records as they are, x (n, d) or owners' (n, m, d), and the access to them."""

    access: BoundedGradient
    records: dict[str, Any]

    @classmethod
    def of(cls, gram: np.ndarray, design: Design, score: Any, x: np.ndarray, y: np.ndarray, **more: Any) -> Reading:
        """Return the access in the metric of a Gram matrix; ``more`` are leaves of the records."""
        return cls(BoundedGradient.of(gram, design, score), {"x": x, "y": y, **more})

    def bounded(self, bounds: Bounds) -> Reading:
        """Return the access under other bounds."""
        return dataclasses.replace(self, access=dataclasses.replace(self.access, bounds=bounds))

    @property
    def rows(self) -> Whole:
        """The records as sums take them."""
        plain = Whole(self.records).prepared(Rows(None, self.access.design.row_bound))  # type: ignore[arg-type]
        return self.access.prepared(plain)  # type: ignore[return-value]

    def sum(self, theta: np.ndarray) -> np.ndarray:
        """Σ u F⁻¹xψ/C."""
        return self.access.gradient(self.rows, theta).floats

    def moment(self, longest: float) -> np.ndarray:
        """Σ min(1, R²/‖z‖²) zzᵀ/R²."""
        return self.access.rows(self.rows, longest).floats

    def curvature(self, theta: np.ndarray) -> np.ndarray:
        """Σ v slope zzᵀ/L."""
        return self.access.curvature(self.rows, theta).floats

    def spread(self, theta: np.ndarray) -> np.ndarray:
        """Σ ggᵀ/C²."""
        return self.access.spread(self.rows, theta).floats

    def expected_spread(self, theta: np.ndarray) -> np.ndarray:
        """Σ u²V zzᵀ/C²."""
        return self.access.expected_spread(self.rows, theta).floats

    def labels(self, theta: np.ndarray, of: Callable[..., np.ndarray]) -> np.ndarray:
        """Σ of(η, y)."""
        return self.access.labels(self.rows, theta, of).floats
