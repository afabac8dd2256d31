"""The dispersion α of counts, Var y = μ + αμ², learnt from released sums; see ``scale.py``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpmcmc.inference.count_score import CLIPS, Counts
from dpmcmc.mechanisms.noise_aware.scale import LearntScore
from dpmcmc.privacy.accounting import Adjacency

#: Candidates for α.
_CANDIDATES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.4, 2.0, 2.8, 4.0)
#: Where counts are clipped, in standard deviations.
_CLIP_IN_STD = 3.0
#: Variance of a count's own q_α, about.
_OWN_VARIANCE = 0.1
#: α before anything is released.
_FIRST_DISPERSION = 1.0
#: β of the score: Poisson's weights, under which the estimate is of the mean, whatever the law of the counts is.
_WEIGHTS_OF_POISSON = 0.0


@dataclass(frozen=True)
class Dispersion:
    """Dispersion α of counts, by which they vary more than Poisson's law says."""

    @property
    def size(self) -> int:
        """Return the number of candidates."""
        return len(_CANDIDATES)

    def first(self) -> Counts:
        """Return the score of a guess."""
        return Counts(_FIRST_DISPERSION, CLIPS[0], _WEIGHTS_OF_POISSON)

    def moved(self, adjacency: Adjacency) -> float:
        """Return the bound of the module; see ``scale.py``."""
        one = 10 / 9 if adjacency == Adjacency.REPLACE_ONE else 1.0
        return math.sqrt(self.size) * one

    def statistic(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return q_α of each candidate, (n, size); see ``scale.py``."""
        parts = [Counts(alpha).spread(eta, y, _CLIP_IN_STD) for alpha in _CANDIDATES]
        out = np.stack(parts, axis=1) / _CLIP_IN_STD**2
        return np.clip(np.nan_to_num(out, nan=1.0), -(_CLIP_IN_STD**-2), 1.0)

    def learnt(
        self,
        released: np.ndarray,
        noise_std: float,
        count: int,
        limits: np.ndarray,
    ) -> tuple[LearntScore, ...]:
        """Return scores at the candidate where the sum crosses zero; see ``scale.py``."""
        from scipy.optimize import isotonic_regression  # a tenth of a second to import

        falling = isotonic_regression(released, increasing=False).x
        # Where no sum crosses zero this is the first or the last candidate.
        found = float(np.interp(0.0, -falling, _CANDIDATES))
        doubts = (
            (
                f"counts vary at least as much as a dispersion of {_CANDIDATES[-1]:g}, the largest that is tried, so "
                "that their law is not known; take a larger epsilon, more records, or other counts",
            )
            if found == _CANDIDATES[-1]
            else ()
        )
        # The sum falls with α; where the estimate lies its slope says how far noise moves it.
        at = min(max(int(np.searchsorted(_CANDIDATES, found)), 1), self.size - 1)
        slope = (falling[at - 1] - falling[at]) / (_CANDIDATES[at] - _CANDIDATES[at - 1])
        noise = noise_std**2 + _OWN_VARIANCE * count
        most = _CANDIDATES[at] if found else _CANDIDATES[1]
        variance = min(noise / slope**2, most**2) if slope**2 > 0 else most**2
        return tuple(LearntScore(Counts(found, clip, _WEIGHTS_OF_POISSON), 0.0, variance, doubts) for clip in CLIPS)
