"""Steps of many sizes as blends of few."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import erf, erfc

from dpmcmc.privacy.accounting.composition import (
    Blend,
    Curve,
    Piece,
)
from dpmcmc.privacy.accounting.events import Event, bucket_down
from dpmcmc.privacy.accounting.hockey_stick import one_step

#: Sizes of step of one rate that are composed as they are, or between which others are blended.
KNOTS = 32


def pieces_of(steps: Sequence[Event], direction: str, interval: float, log_tail: float) -> list[tuple[Piece, int]]:
    """Sampled steps, each with its count; more than ``KNOTS`` sizes of a rate as blends of so many."""

    def step(z: float, q: float) -> Curve:
        return one_step(z, q, direction, interval, log_tail)

    pieces: list[tuple[Piece, int]] = []
    for q in sorted({e.rate for e in steps}):
        z = np.array([e.noise_multiplier for e in steps if e.rate == q])
        counts = np.array([e.count for e in steps if e.rate == q], np.float64)
        knots = knots_of(z, counts)
        if len(knots) == len(z):
            pieces += [(step(float(one), q), int(count)) for one, count in zip(z, counts, strict=True)]
            continue
        at = np.clip(np.searchsorted(knots, z, side="right") - 1, 0, len(knots) - 2)
        for k in np.unique(at):
            loud, quiet = float(knots[k]), float(knots[k + 1])
            here = at == k
            pieces.append(
                (
                    Blend(
                        step(loud, q),
                        step(quiet, q),
                        _shares(z[here], loud, quiet, direction),
                        counts[here],
                    ),
                    int(counts[here].sum()),
                )
            )
    return pieces


def knots_of(z: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Noise multipliers, ascending, between which others are blended: all, or about ``KNOTS`` with both ends."""
    values = np.unique(z)
    if len(values) <= KNOTS:
        return values
    starts, _ = bucket_down(z, counts, exact_below=KNOTS, most=KNOTS)
    return np.unique(np.append(starts, values[-1]))


def _shares(z: np.ndarray, loud: float, quiet: float, direction: str) -> np.ndarray:
    """λ of each z: the chance of the louder step, rounded up."""
    scale = math.sqrt(2) if direction == "replace" else math.sqrt(8)

    def more(z: np.ndarray | float) -> np.ndarray:
        """u less that of the quiet step, to the last digits where u is near 1 and where it is near 0."""
        own, other = 1 / (np.asarray(z) * scale), 1 / (quiet * scale)
        return erf(own) - erf(other) if 1 / (loud * scale) < 0.5 else erfc(other) - erfc(own)

    with np.errstate(invalid="ignore"):
        share = more(z) / more(loud)
    share = np.where(np.isfinite(share), share, 1.0)
    return np.clip(share * (1 + 1e-9) + 1e-9, 0.0, 1.0)
