r"""Composition of privacy-loss distributions on a grid: many steps by one Fourier transform, with a proved error.

A step is a curve g(ε) = δ(ε) − (1 − e^ε)₊ at the points ε_k = kh of a grid, k = first … last. Connecting the dots
(Doroshenko et al. 2022, Algorithm 1) makes it a distribution p of losses on the grid. It dominates the step, so that
any grid gives an upper bound. :func:`compose` raises the spectrum of each p to its count, and multiplies.

**Close to 1.** A spectrum y(ω) = Σ p_k e^{−iωk} is raised to large powers, so y − 1 must be known to a small part of
itself and not of 1. Summation by parts twice gives it from the curve, without a difference of p or of g:

    y − 1 = {(e^{iω} − 1)[(1 − e^{h−iω}) G − e^{−iω·first} g_first] + (1 − e^{h−iω}) e^{−iω·last} g_last}/(e^h − 1)

with G(ω) = Σ g_k e^{−iωk}. At ω = 0 this is −g_last, the mass of infinite loss.

**The transform.** Let u = 2^-53. SciPy's transform (pocketfft; Cooley and Tukey 1965) of a length 2^t·r, r in {1, 3,
5}, is t passes of butterflies of two and at most one pass of r. A number of a pass of two is one complex sum, which is
within u of itself, and one product with a root of unity. The product is within (√5 + 1)u (Brent, Percival and
Zimmermann 2007), the rounding of the root included. The pass of r has at most six roundings, of terms that add up to √2
times their size. One path leads from each input to each output. Hence, with ``_transform_error(n)`` = (8 log₂ n + 24)u,

    |ŷ(ω) − y(ω)| <= error·Σ|x_k|  at every ω,        ‖ŷ − y‖₂ <= error·‖y‖₂,

the second as in Higham 2002, Theorem 24.2, whose proof this is. A transform of real numbers computes those of these
outputs that symmetry does not give. Fused multiplications and other orders of the passes round no more. Two things rest
on the library: that it is such a transform, and that its table of roots is rounded within u. The tests measure both.

**The product.** Let e_i(ω) bound the error of the computed ŷ_i(ω) = 1 + D̂_i(ω), by the above and by the errors of g.
With t_i = e_i/|ŷ_i| <= 1/2, log y_i is within t_i/(1 − t_i) of log ŷ_i, and so for the product X of all powers

    |X̂ − X| <= E = |X̂|·(exp(Σ_i c_i(t_i/(1 − t_i) + rounding of the logarithm)) − 1);

elsewhere X̂ is set to 0 and E = Π min(1, |ŷ_i| + e_i)^{c_i}. The inverse transform adds error·‖X̂‖₂. By Parseval the
masses are within (‖E‖₂ + error·‖X̂‖₂)/√n of the exact ones in ℓ₂. A δ(ε) is their inner product with numbers in
[0, 1], whose ℓ₂ norm is at most √n. So every δ(ε) is within ``slack`` = ‖E‖₂ + error·‖X̂‖₂ of the exact one's. It is
some 1e-13 whatever the number of steps, because c_i·e_i shrinks with c_i·|y_i − 1|.

**Outside the window.** Mass beyond it wraps around in the transform. It is at most ``TAIL`` a piece, by Chernoff's
bound, and is charged twice at infinite loss: the second time against rounding of the bound's moments.

**Many kinds.** A :class:`Blend` is a set of steps each of which releases, by a public coin of its own chance λ_j, one
of two curves. Its spectrum is Π (ŷ_b + λ_j(ŷ_a − ŷ_b))^{c_j}, whose logarithm is a series in r = (ŷ_a − ŷ_b)/ŷ_b with
the power sums Σ c_j λ_j^m as coefficients; the rest of the series is part of E.

Claim: Rounding of a composition, its Fourier transform included, is covered.
Proof: the error of each butterfly (Higham 2002, Theorem 24.2), carried to δ.
Held by: test_the_transform_is_within_its_bound, test_a_spectrum_is_within_its_bound_close_to_one,
test_a_composition_is_within_its_slack_of_brute_force, test_a_transform_of_fewer_digits_is_caught,
test_a_step_s_curve_is_within_its_rounding_of_50_digits

Assumed: SciPy's Fourier transform has passes of butterflies, whose roots of unity are rounded within 2^-53.
Held by: test_the_transform_is_within_its_bound, test_a_transform_of_fewer_digits_is_caught
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

_UNIT = 2.0**-53
#: Mass beyond the window of a composition, per piece; charged to infinite loss.
TAIL = 1e-15
#: Relative rounding of sums that read a δ from masses.
READING = 1e-9
#: Terms of a blend's series.
_TERMS = 8
#: Frequencies at which a product is below e^-this are left out, and charged.
_NOTHING = 80.0
#: Numbers that are added one by one in a sum of many.
_ROW = 256


class Masses(NamedTuple):
    """Probabilities of losses ``(first + i)·interval`` and of infinite loss; ``first`` need not be whole."""

    first: float
    probabilities: np.ndarray
    infinite: float


class Curve(NamedTuple):
    """g = δ − (1 − e^ε)₊ of one step at the losses ``(first + i)·interval``.

    Attributes:
        first: whole number; the grid straddles 0.
        values: g, (n,), float64.
        error: bound on the sum of the absolute errors of ``values``.
        interval: h.
    """

    first: int
    values: np.ndarray
    error: float
    interval: float

    @property
    def masses(self) -> Masses:
        """The distribution that connects the dots."""
        return connect_dots(self.values, self.first, self.interval)

    @property
    def infinite(self) -> float:
        """Mass of infinite loss."""
        return float(self.values[-1])


class Blend(NamedTuple):
    """Steps that release one of two curves, by a public coin.

    Attributes:
        loud: the one, with probability ``shares[j]``.
        quiet: the other.
        shares: (kinds,).
        counts: steps of each kind, (kinds,).
    """

    loud: Curve
    quiet: Curve
    shares: np.ndarray
    counts: np.ndarray

    @property
    def masses(self) -> Masses:
        """The distribution at the mean share, whose powers have a larger moment than the steps (Jensen)."""
        share = float(np.average(self.shares, weights=self.counts))
        loud = self.loud.masses
        quiet = self.quiet.masses
        first = min(loud.first, quiet.first)
        last = max(m.first + len(m.probabilities) for m in (loud, quiet))
        mixed = np.zeros(int(last - first))
        for part, weight in ((loud, share), (quiet, 1 - share)):
            start = int(part.first - first)
            mixed[start : start + len(part.probabilities)] += weight * part.probabilities
        return Masses(first, mixed, self.infinite)

    @property
    def infinite(self) -> float:
        """Mass of infinite loss, at most."""
        return max(self.loud.infinite, self.quiet.infinite)


Piece = Masses | Curve | Blend


class Composed(NamedTuple):
    """The privacy loss of a whole run: ``masses`` of losses that lie ``interval`` apart.

    Attributes:
        masses: as computed.
        interval: h.
        slack: every δ(ε) of the masses is within this of that of the exact composition.
    """

    masses: Masses
    interval: float
    slack: float = 0.0

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

    def most_epsilon(self, delta: float) -> float:
        """Upper bound on ε at ``delta`` of the exact composition."""
        return self.epsilon(delta * (1 - READING) - self.slack)

    def most_delta(self, epsilon: float) -> float:
        """Upper bound on δ at ``epsilon`` of the exact composition."""
        return min(1.0, self.delta(epsilon) * (1 + READING) + self.slack)

    def least_epsilon(self, delta: float) -> float:
        """Lower bound on ε at ``delta`` of the exact composition, infinite losses and what wraps around left out."""
        finite = self._replace(masses=self.masses._replace(infinite=0.0))
        # The infinite mass of ``compose`` is at least the mass that wraps around.
        return finite.epsilon(delta * (1 + READING) + self.slack + self.masses.infinite)

    def _above(self, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
        """(losses beyond ``epsilon``, their masses), ascending."""
        first, probabilities, _ = self.masses
        start = max(math.floor(min(epsilon / self.interval, 2.0**62) - first) + 1, 0)
        places = np.arange(start, len(probabilities))
        return (first + places) * self.interval, probabilities[start:]


def on_grid(
    curve: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    low: float,
    high: float,
    interval: float,
) -> Curve:
    """One step on a grid from ``low`` to ``high``.

    Args:
        curve: losses -> (g, bounds on the errors of g).
        low, high: losses.
        interval: h.
    """
    # The grid straddles 0, where the (1 − e^ε)₊ part of the curve has its kink.
    first = min(math.floor(low / interval), -2)
    last = max(math.ceil(high / interval), 2)
    values, errors = curve(np.arange(first, last + 1) * interval)
    return Curve(first, values, float(np.sum(errors)), interval)


def revealed(probability: float) -> Masses:
    """A step that may reveal everything with this probability, and otherwise nothing."""
    return Masses(0, np.array([1 - probability]), probability)


def connect_dots(curve: np.ndarray, first: int, interval: float) -> Masses:
    """Pessimistic masses from g = δ − (1 − e^ε)₊.

    The mass at ε_i is a second difference of δ in e^ε. The second difference of (1 − e^ε)₊ is exactly 1 at ε = 0 and 0
    elsewhere, so only g is differenced.
    """
    rise = np.diff(curve)
    scale = math.expm1(interval)
    masses = np.empty_like(curve)
    masses[0] = -curve[0] + rise[0] / scale
    masses[1:-1] = (rise[1:] - math.exp(interval) * rise[:-1]) / scale
    masses[-1] = rise[-1] / math.expm1(-interval)
    masses[-first] += 1.0
    return Masses(first, np.maximum(masses, 0.0), float(curve[-1]))


def masses_of(piece: Piece) -> Masses:
    """Return the distribution of a piece."""
    return piece if isinstance(piece, Masses) else piece.masses


class Window(NamedTuple):
    """Ends of the interval that holds all but ``TAIL`` of a composition's mass, relative to its smallest loss."""

    low: int
    high: int


def window(piece: Masses, count: int) -> Window:
    """Chernoff bounds of ``count``-fold composition: ±b(λ), b = (count·log E e^{λ·loss} + log(2/TAIL))/λ."""
    size = len(piece.probabilities)
    if size == 1:
        return Window(0, 0)
    low = 0
    high = (size - 1) * count
    places = np.arange(size)
    for order in np.concatenate([np.arange(-20, 0), np.arange(1, 21)]) / size:
        total = float(np.dot(np.exp(places * order), piece.probabilities))  # terms within e^±20
        if not total > 0:
            continue
        moment = math.log(total)
        bound = (count * moment + math.log(2 / TAIL)) / order
        if order > 0:
            high = min(high, math.ceil(bound))
        else:
            low = max(low, math.floor(bound))
    return Window(low, high)


def points(pieces: Sequence[tuple[Piece, int]]) -> int:
    """Return the length of the grid that holds a composition, up to one."""
    return sum(w.high - w.low for w in (window(masses_of(piece), count) for piece, count in pieces))


def compose(pieces: Sequence[tuple[Piece, int]], interval: float) -> Composed:
    """All pieces, each ``count`` times, in one product of spectra.

    Args:
        pieces: (piece, count); of a blend its counts' sum.
        interval: h, of every piece.
    """
    if len(pieces) == 1 and isinstance(pieces[0][0], Curve) and pieces[0][1] == 1:
        return _alone(pieces[0][0])
    all_masses = [masses_of(piece) for piece, _ in pieces]
    windows = [window(masses, count) for masses, (_, count) in zip(all_masses, pieces, strict=True)]
    length = sum(w.high - w.low for w in windows) + 1
    size = _length(max(length, *(len(part.values) for piece, _ in pieces for part in _parts(piece))))
    spectrum, far = _product(pieces, size)
    error = _transform_error(size)
    # Norms of the whole spectrum, whose other half mirrors this one.
    norms = [math.sqrt(2 * float(np.sum(np.abs(part) ** 2))) for part in (far, spectrum)]
    slack = (norms[0] + error * norms[1]) * (1 + READING)
    finite = 0.0
    low = 0
    first = 0.0
    for (_, count), masses, w in zip(pieces, all_masses, windows, strict=True):
        finite += count * math.log1p(-masses.infinite) if masses.infinite < 1 else -math.inf
        low += w.low - count * _anchor(masses)
        first += masses.first * count + w.low
    masses = np.roll(scipy.fft.irfft(spectrum, size), -low)[:length]
    infinite = min(1.0, -math.expm1(finite) + 2 * TAIL * len(pieces))
    return Composed(Masses(first, np.maximum(masses, 0.0), infinite), interval, slack)


def _alone(curve: Curve) -> Composed:
    """One step: δ at a point of the grid is g, up to g's error and the rounding of its second differences."""
    rounding = 16 * _UNIT * float(np.sum(curve.values)) / math.expm1(curve.interval)
    return Composed(curve.masses, curve.interval, curve.error + rounding)


def _parts(piece: Piece) -> list[Curve]:
    """The curves that a piece is made of, as far as their length goes."""
    if isinstance(piece, Blend):
        return [piece.loud, piece.quiet]
    if isinstance(piece, Curve):
        return [piece]
    return [Curve(0, piece.probabilities, 0.0, 0.0)]


def _anchor(masses: Masses) -> int:
    """Place, among a piece's masses, of the loss that its spectrum counts from: 0 of a curve; else the mean."""
    if masses.first == int(masses.first) and masses.first <= 0 < masses.first + len(masses.probabilities):
        return -int(masses.first)
    total = float(np.sum(masses.probabilities))
    places = np.arange(len(masses.probabilities))
    return round(float(np.dot(places, masses.probabilities)) / total) if total else 0


def _length(least: int) -> int:
    """Smallest 2^t, 3·2^t or 5·2^t that is at least so large."""
    return min(odd << max(0, -(-least // odd) - 1).bit_length() for odd in (1, 3, 5))


def _transform_error(size: int) -> float:
    """Bound on the relative error of a transform of so many numbers, derived above."""
    return (8 * math.log2(max(size, 2)) + 24) * _UNIT


def _product(pieces: Sequence[tuple[Piece, int]], size: int) -> tuple[np.ndarray, np.ndarray]:
    """(X̂, E) at the frequencies 0 … size/2."""
    alive = np.arange(size // 2 + 1)
    log_product = np.zeros(len(alive), np.complex128)
    off = np.zeros(len(alive))
    log_most = np.zeros(len(alive))
    far = np.zeros(len(alive))
    for piece, count in pieces:
        log_factor, error, most = (
            _blend(piece, size, alive) if isinstance(piece, Blend) else _power(piece, count, size, alive)
        )
        log_product += log_factor
        off += error + (len(pieces) + 2) * _UNIT * np.abs(log_factor)
        log_most += most
        keep = log_most > -_NOTHING
        far[alive[~keep]] = math.exp(-_NOTHING)
        alive = alive[keep]
        log_product = log_product[keep]
        off = off[keep]
        log_most = log_most[keep]
    spectrum = np.zeros(len(far), np.complex128)
    known = off < 0.5
    values = np.where(known, np.exp(np.where(known, log_product, 0.0)), 0.0)
    spectrum[alive] = values
    far[alive] = np.where(
        known,
        np.abs(values) * np.expm1(np.where(known, off, 0.0) + 8 * _UNIT),
        np.exp(log_most),
    )
    return spectrum, far


Factor = tuple[np.ndarray, np.ndarray, np.ndarray]


def _power(piece: Masses | Curve, count: int, size: int, alive: np.ndarray) -> Factor:
    """(log ŷ^count, bound on its error or inf, log of the largest that |y^count| may be)."""
    moved, error = _from_one(piece, size, alive)
    log_y, size_y, off = _logarithm(moved, error)
    most = count * np.minimum(0.0, np.log(size_y + error + 4 * _UNIT))
    with np.errstate(invalid="ignore"):
        log_power = np.where(np.isfinite(off), count * log_y, 0.0)
    return log_power, count * off, most


def _blend(piece: Blend, size: int, alive: np.ndarray) -> Factor:
    """Return what :func:`_power` does, of all steps of a blend."""
    loud, loud_error = _from_one(piece.loud, size, alive)
    quiet, quiet_error = _from_one(piece.quiet, size, alive)
    error = np.maximum(loud_error, quiet_error)
    sums = [float(np.dot(piece.counts, piece.shares**m)) for m in range(_TERMS + 1)]
    y = 1 + quiet
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = (loud - quiet) / y
        reach = np.abs(ratio)
        known = reach < 0.5
        ratio = np.where(known, ratio, 0.0)
        reach = np.where(known, reach, 0.0)
        log_y, _, off = _logarithm(quiet, error, shrink=1 - reach)
    series = np.zeros(len(alive), np.complex128)
    power = np.ones(len(alive), np.complex128)
    for m in range(1, _TERMS + 1):
        power = power * ratio
        series += ((-1) ** (m + 1) * sums[m] / m) * power
    rest = sums[_TERMS] * reach ** (_TERMS + 1) / ((_TERMS + 1) * (1 - reach))
    rounding = 64 * _UNIT * sums[1] * reach
    off = np.where(known, sums[0] * off + rest + rounding, np.inf)
    with np.errstate(invalid="ignore"):
        log_power = np.where(np.isfinite(off), sums[0] * log_y + series, 0.0)
    largest = np.maximum(np.abs(1 + loud), np.abs(y)) + error + 4 * _UNIT
    return log_power, off, sums[0] * np.minimum(0.0, np.log(largest))


def _logarithm(moved: np.ndarray, error: np.ndarray, shrink: np.ndarray | float = 1.0) -> Factor:
    """(log(1 + D̂), |1 + D̂|, bound on the error of the logarithm for every y within ``error``, or inf).

    Args:
        moved: D̂, complex.
        error: bound on |D̂ − D|.
        shrink: least |y| over |1 + D̂| of the numbers whose logarithm this one starts.
    """
    a = moved.real
    b = moved.imag
    distance = np.abs(moved)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_y = 0.5 * np.log1p(2 * a + a * a + b * b) + 1j * np.arctan2(b, 1 + a)
        size_y = np.abs(1 + moved)
        share = error / (size_y * shrink)
        rounding = 16 * _UNIT * distance * (1 + distance) / size_y**2
        rounding += 4 * _UNIT * np.abs(log_y)
        off = np.where(share < 0.5, share / (1 - share) + rounding, np.inf)
    return log_y, size_y, np.where(np.isfinite(log_y), off, np.inf)


def _from_one(piece: Masses | Curve, size: int, alive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(D̂ = ŷ − 1, bound on its error) at these frequencies, losses counted from ``_anchor``."""
    angle = (2 * math.pi / size) * alive
    # e^{−iω} − 1, to the last digit where ω is small.
    back = -2j * np.sin(angle / 2) * np.exp(-0.5j * angle)
    error = _transform_error(size) + 16 * _UNIT
    if isinstance(piece, Masses):
        return _from_tails(piece, size, alive, back, error)
    first, values, errors, interval = piece
    scale = math.expm1(interval)
    forth = np.conj(back)
    # 1 − e^{h−iω}
    kept = -back - scale * (1 + back)
    curve = _transformed(values, first, size)[alive]
    lowest = values[0] * np.exp(-1j * ((first * alive) % size) * (2 * math.pi / size))
    last = first + len(values) - 1
    highest = values[-1] * np.exp(-1j * ((last * alive) % size) * (2 * math.pi / size))
    moved = (forth * (kept * curve - lowest) + highest * kept) / scale
    total = float(np.sum(values)) * (1 + READING)
    slope = np.abs(forth) / scale
    bound = slope * np.abs(kept) * (error * total + errors * (1 + READING))
    bound += 32 * _UNIT * (slope * values[0] + np.abs(kept) / scale * values[-1])
    return moved, bound


def _from_tails(
    piece: Masses, size: int, alive: np.ndarray, back: np.ndarray, error: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return what :func:`_from_one` does, from the masses on both sides of the anchor, summed by parts once."""
    probabilities = piece.probabilities
    anchor = _anchor(piece)
    above = _running_sum(probabilities[anchor + 1 :][::-1])[::-1]
    below = _running_sum(probabilities[:anchor])
    tails = np.concatenate([-below, above])
    # Rounded once: the sum and 1 are close.
    missing = -math.fsum([-1.0, *probabilities])
    moved = back * _transformed(tails, -anchor, size)[alive] - missing
    rows = (_ROW + len(probabilities) / _ROW + 2) * _UNIT
    total = float(np.sum(np.abs(tails))) * (1 + READING)
    return moved, np.abs(back) * (error + rows) * total + 2 * _UNIT * abs(missing)


def _running_sum(values: np.ndarray) -> np.ndarray:
    """Sums of the first values, each within (_ROW + n/_ROW + 2)u of itself."""
    rows = -(-len(values) // _ROW)
    padded = np.zeros(rows * _ROW)
    padded[: len(values)] = values
    within = np.cumsum(padded.reshape(rows, _ROW), axis=1)
    before = np.append(0.0, np.cumsum(within[:, -1]))[:rows]
    return (within + np.reshape(before, (rows, 1))).reshape(-1)[: len(values)]


def _transformed(values: np.ndarray, first: int, size: int) -> np.ndarray:
    """Σ values_i e^{−iω(first + i)} at the frequencies 0 … size/2."""
    placed = np.zeros(size)
    placed[(first + np.arange(len(values))) % size] = values
    return scipy.fft.rfft(placed)
