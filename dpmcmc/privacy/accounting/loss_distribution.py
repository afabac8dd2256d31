"""Privacy-loss distributions on a grid: one step from its exact curve, and many steps by one Fourier transform.

Discretisation is pessimistic ("connect the dots", Doroshenko et al. 2022, Algorithm 1), so any grid gives an
upper bound. Masses are handed to dp-accounting's ``DensePLDPmf``, which answers ε and δ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy

from dpmcmc.privacy.accounting import dominating_pair

if TYPE_CHECKING:
    from dp_accounting.pld import pld_pmf

#: Mass beyond the window of a composition, per piece; charged to infinite loss.
_TAIL = 1e-15


class Masses(NamedTuple):
    """Probabilities of losses ``(first + i)·interval`` and of infinite loss."""

    first: int
    probabilities: np.ndarray
    infinite: float


@functools.lru_cache(maxsize=64)
def one_step(z: float, q: float, direction: str, interval: float, log_tail: float) -> Masses:
    """One sampled Gaussian step; P-mass up to e^log_tail on either side goes to the end of the grid."""
    low, high = dominating_pair.loss_range(z, q, direction, log_tail)
    # The grid straddles 0, where the (1 − e^ε)₊ part of the curve has its kink.
    first, last = min(math.floor(low / interval), -2), max(math.ceil(high / interval), 2)
    curve = dominating_pair.excess(np.arange(first, last + 1) * interval, z, q, direction)
    return connect_dots(curve, first, interval)


def revealed(probability: float) -> Masses:
    """A step that may reveal everything with this probability, and otherwise nothing."""
    return Masses(0, np.array([1 - probability]), probability)


def connect_dots(curve: np.ndarray, first: int, interval: float) -> Masses:
    """Pessimistic masses from g = δ − (1 − e^ε)₊.

    The mass at ε_i is a second difference of δ in e^ε. The second difference of (1 − e^ε)₊ is exactly 1 at ε = 0 and 0
    elsewhere, so only g is differenced: taken of δ itself, rounding at δ near 1 adds a spurious mass of about
    1e-16 / interval per point, which a million compositions turn into a large part of the answer.
    """
    rise = np.diff(curve)
    scale = math.expm1(interval)
    masses = np.empty_like(curve)
    masses[0] = -curve[0] + rise[0] / scale
    masses[1:-1] = (rise[1:] - math.exp(interval) * rise[:-1]) / scale
    masses[-1] = rise[-1] / math.expm1(-interval)
    masses[-first] += 1.0
    return Masses(first, np.maximum(masses, 0.0), float(curve[-1]))


class Window(NamedTuple):
    """Where all but ``_TAIL`` of a composition's mass lies, relative to its smallest loss."""

    low: int
    high: int


def window(piece: Masses, count: int) -> Window:
    """Chernoff bounds of ``count``-fold composition, by dp-accounting."""
    if len(piece.probabilities) == 1:
        return Window(0, 0)
    from dp_accounting.pld import common  # imports SciPy whole

    return Window(*common.compute_self_convolve_bounds(piece.probabilities, count, _TAIL))


def compose(pieces: Sequence[tuple[Masses, int]], interval: float) -> pld_pmf.DensePLDPmf:
    """All pieces, each ``count`` times, in one product of spectra.

    Mass outside a piece's window (at most ``_TAIL``) wraps around; it is charged again at infinite loss.
    """
    from dp_accounting.pld import pld_pmf  # imports SciPy whole

    windows = [window(piece, count) for piece, count in pieces]
    length = sum(w.high - w.low for w in windows) + 1
    size = scipy.fft.next_fast_len(max(length, *(len(piece.probabilities) for piece, _ in pieces)), real=True)
    log_spectrum = np.zeros(size // 2 + 1, np.complex128)
    log_finite = 0.0
    for piece, count in pieces:
        with np.errstate(divide="ignore", invalid="ignore"):  # a frequency that a piece does not hold
            log_spectrum += count * np.log(scipy.fft.rfft(piece.probabilities, size))
        log_finite += count * math.log1p(-piece.infinite) if piece.infinite < 1 else -math.inf
    with np.errstate(invalid="ignore"):
        spectrum = np.where(np.isfinite(log_spectrum), np.exp(log_spectrum), 0.0)
    masses = np.roll(scipy.fft.irfft(spectrum, size), -sum(w.low for w in windows))[:length]
    first = sum(piece.first * count + w.low for (piece, count), w in zip(pieces, windows, strict=True))
    infinite = min(1.0, -math.expm1(log_finite) + _TAIL * len(pieces))
    return pld_pmf.DensePLDPmf(interval, first, np.maximum(masses, 0.0), infinite, True)
