"""Promise that a run is asked for: the ``privacy:`` section of a configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting import ACCOUNTANTS, ADJACENCIES, RELEASES, UnsupportedCombination
from dpmcmc.privacy.calibration import CALIBRATORS

#: Its inverse is the largest: beyond, float32 loses the grid of the exact sums.
_SMALLEST_CLIP = 1e-9


@dataclass(frozen=True)
class Privacy:
    """Promised guarantee, and how it is computed.

    Args:
        epsilon: target ε > 0; None with calibrator ``free``, which reports it instead.
        delta: target δ in (0, 1); a plan refuses δ >= 1/N.
        adjacency: ``replace_one`` | ``add_remove`` | ``zero_out``.
        release: ``trace``: every iterate may be published. The only one of a sampler's run.
        accountant: ``pld`` | ``rdp`` | ``advanced``.
        calibrator: ``numeric`` | ``closed_form`` | ``free``.
        clip: C, the l2 norm each record's gradient is clipped to.
        hardened: whether keys are ChaCha20's and noise is drawn in integers (``chacha.py``, ``discrete_gaussian.py``).

    Raises:
        ValueError: a value outside these.
    """

    epsilon: float | None = None
    delta: float = 1e-6
    adjacency: str = "replace_one"
    release: str = "trace"
    accountant: str = "pld"
    calibrator: str = "numeric"
    clip: float = 1.0
    hardened: bool = False

    def __post_init__(self) -> None:
        if self.calibrator != "free" and self.epsilon is None:
            raise InputError(f"calibrator {self.calibrator} needs epsilon; only free reports it instead of taking it")
        if self.calibrator == "free" and self.epsilon is not None:
            raise InputError("calibrator free adds no noise for privacy and reports epsilon: leave epsilon out")
        if self.epsilon is not None and not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InputError(f"epsilon must be a finite number > 0, got {self.epsilon}")
        if not 0 < self.delta < 1:
            raise InputError(f"delta must lie strictly between 0 and 1, got {self.delta}")
        # Beyond, float32 loses the grid of the exact sums, and with it the noise.
        if not _SMALLEST_CLIP <= self.clip <= 1 / _SMALLEST_CLIP:
            raise InputError(f"clip must lie in [{_SMALLEST_CLIP:g}, {1 / _SMALLEST_CLIP:g}], got {self.clip}")
        for name, value, known in (
            ("adjacency", self.adjacency, ADJACENCIES),
            ("accountant", self.accountant, tuple(ACCOUNTANTS)),
            ("calibrator", self.calibrator, CALIBRATORS),
        ):
            if value not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if self.release not in RELEASES:
            raise UnsupportedCombination(f"release {self.release!r} is not known; known: {', '.join(RELEASES)}.")
