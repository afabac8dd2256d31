"""Privacy-loss distributions on a grid: one step from its exact curve, and many steps by one Fourier transform.

Discretisation is pessimistic ("connect the dots", Doroshenko et al. 2022, Algorithm 1), so any grid gives an
upper bound. The tests hold every answer against dp-accounting's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from scipy.special import logsumexp

from dpmcmc.privacy.accounting import dominating_pair

#: Mass beyond the window of a composition, per piece; charged to infinite loss.
_TAIL = 1e-15


class Masses(NamedTuple):
    """Probabilities of losses ``(first + i)·interval`` and of infinite loss."""

    first: int
    probabilities: np.ndarray
    infinite: float


class Composed(NamedTuple):
    """The privacy loss of a whole run: ``masses`` of losses that lie ``interval`` apart."""

    masses: Masses
    interval: float

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence Σ (1 − e^{ε − loss})₊·mass."""
        losses, probabilities = self._above(epsilon)
        return self.masses.infinite + float(np.dot(-np.expm1(epsilon - losses), probabilities))

    def epsilon(self, delta: float) -> float:
        """Smallest ε >= 0 with δ(ε) <= delta; infinite where there is none."""
        if self.masses.infinite > delta:
            return math.inf
        losses, probabilities = (part[::-1] for part in self._above(0.0))
        if not losses.size:
            return 0.0
        # With U and L the sums of mass and of e^{−loss}·mass from the largest loss down, δ(ε) = U − e^ε L on the
        # stretch below each loss. The answer is in the first stretch that reaches delta.
        upper = np.cumsum(np.concatenate([[self.masses.infinite], probabilities]))[1:]
        lower = np.cumsum(np.exp(-losses) * probabilities)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            reached = np.log((upper - delta) / lower)
        found = np.flatnonzero(reached >= np.append(losses[1:], 0.0))
        if not found.size:
            return 0.0
        # Where every e^{−loss} is 0 in float64, the loss itself is an upper bound.
        return float(min(reached[found[0]], losses[found[0]]))

    def _above(self, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
        """(losses beyond ``epsilon``, their masses), ascending."""
        first, probabilities, _ = self.masses
        start = max(math.floor(min(epsilon / self.interval, 2.0**62)) + 1 - first, 0)
        return np.arange(first + start, first + len(probabilities)) * self.interval, probabilities[start:]


@functools.lru_cache(maxsize=64)
def one_step(z: float, q: float, direction: str, interval: float, log_tail: float) -> Masses:
    """One sampled Gaussian step; P-mass up to e^log_tail on either side goes to the end of the grid."""
    low, high = dominating_pair.loss_range(z, q, direction, log_tail)
    return on_grid(lambda losses: dominating_pair.excess(losses, z, q, direction), low, high, interval)


def on_grid(excess: Callable[[np.ndarray], np.ndarray], low: float, high: float, interval: float) -> Masses:
    """One step of the curve g = δ − (1 − e^ε)₊ on a grid from ``low`` to ``high``."""
    # The grid straddles 0, where the (1 − e^ε)₊ part of the curve has its kink.
    first, last = min(math.floor(low / interval), -2), max(math.ceil(high / interval), 2)
    return connect_dots(excess(np.arange(first, last + 1) * interval), first, interval)


def revealed(probability: float) -> Masses:
    """A step that may reveal everything with this probability, and otherwise nothing."""
    return Masses(0, np.array([1 - probability]), probability)


def connect_dots(curve: np.ndarray, first: int, interval: float) -> Masses:
    """Pessimistic masses from g = δ − (1 − e^ε)₊.

    The mass at ε_i is a second difference of δ in e^ε. The second difference of (1 − e^ε)₊ is exactly 1 at ε = 0 and 0
    elsewhere, so only g is differenced. Differences of δ itself would add a spurious mass of about 1e-16 / interval at
    each point, by rounding at δ near 1, and a million compositions would make it a large part of the answer.
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
    """Ends of the interval that holds all but ``_TAIL`` of a composition's mass, relative to its smallest loss."""

    low: int
    high: int


def window(piece: Masses, count: int) -> Window:
    """Chernoff bounds of ``count``-fold composition: ±b(λ), b = (count·log E e^{λ·loss} + log(2/_TAIL))/λ."""
    size = len(piece.probabilities)
    if size == 1:
        return Window(0, 0)
    low, high = 0, (size - 1) * count
    places = np.arange(size)
    for order in np.concatenate([np.arange(-20, 0), np.arange(1, 21)]) / size:
        bound = (count * logsumexp(places * order, b=piece.probabilities) + math.log(2 / _TAIL)) / order
        if order > 0:
            high = min(high, math.ceil(bound))
        else:
            low = max(low, math.floor(bound))
    return Window(low, high)


def compose(pieces: Sequence[tuple[Masses, int]], interval: float) -> Composed:
    """All pieces, each ``count`` times, in one product of spectra.

    Mass outside a piece's window (at most ``_TAIL``) wraps around; it is charged again at infinite loss.
    """
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
    return Composed(Masses(first, np.maximum(masses, 0.0), infinite), interval)
