r"""Privacy-loss-distribution accountant (``accountant: pld``).

Supported, each with its derivation:

* rate 1, any adjacency: exact. k Gaussian queries compose to one of μ = √(Σ Δ²/z²) (see ``gaussian.py``).
* Poisson, add_remove and zero_out: dominating pairs ((1−q)N(0)+qN(1), N(0)) and its reverse (Zhu, Dong and
  Wang 2022, Proposition 30), composed separately; the larger δ is reported.
* Poisson, replace_one: the pair (1−q)N(0)+qN(±1), shown to dominate in ``rdp.py``.
* Fixed size: no dominating pair is known here; refused. Use ``rdp`` or ``advanced``.

Discretisation is pessimistic, so any grid gives an upper bound; the grid is chosen from the target and the step
because a fixed one is wrong at both ends: at z = 1500 an interval of 1e-4 is coarser than a step's loss, at
z = 0.01 it needs 24 GB. The smallest of the valid bounds (PLD at the grid, Rényi) is reported.

Against rounding of the Fourier transform, δ is lowered by 4·2⁻⁵² a step: a margin above the rounding seen, as
float64 accountants have, not a theorem about it. Where that is more than a twentieth of δ (10⁶ steps at δ below
2e-8) rounding would decide the answer, and Rényi is used.

Claim: k Poisson queries cost at most the stated ε.
Proof: dominating pairs (Zhu, Dong and Wang 2022), rounded pessimistically and composed.
Held by: test_pld_lies_inside_an_independent_bracket, test_one_replace_one_step_matches_quadrature_of_its_pair,
test_hockey_stick_curves_are_those_of_a_pair, test_dp_accounting_agrees_with_what_a_run_states,
test_microsofts_values, "replacement accounted as removal", "accountant's cache without the adjacency"
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from scipy.special import log_ndtr, logsumexp, ndtri_exp

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import rdp
from dpmcmc.privacy.accounting.events import (
    Adjacency,
    Event,
    gaussian_parameter,
    grouped,
    queries,
    spend,
)
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon

# ----------------------------------------------------------------------------------------------------
# Hockey-stick curves of one Poisson-sampled Gaussian step, vectorised over ε.
#
# With c = 1/z and q the rate, the loss is an increasing function of the observed x ~ P in every case, so
# δ(ε) = P(x > x*) − e^ε Q(x > x*) with x* where the loss equals ε:
#
# * ``replace``: P = (1−q)N(0)+qN(c), Q = (1−q)N(0)+qN(−c);  c·x* = ε/2 + asinh((1−q)/q · e^{c²/2} · sinh(ε/2))
# * ``remove``:  P = (1−q)N(0)+qN(c), Q = N(0);               c·x* = log((e^ε − (1−q)) / q) + c²/2
# * ``add``:     P = N(0),            Q = (1−q)N(0)+qN(−c);   c·x* = −log((e^−ε − (1−q)) / q) − c²/2


def pair_directions(adjacency: Adjacency) -> tuple[str, ...]:
    """Return the pairs to compose: both orders where the pair is not its own mirror image."""
    return ("replace",) if adjacency == Adjacency.REPLACE_ONE else ("remove", "add")


def loss_range(
    z: float, q: float, direction: str, log_tail: float
) -> tuple[float, float]:
    """(lowest, highest) loss outside which P has mass at most e^log_tail on either side."""
    c = 1 / z
    reach = -float(ndtri_exp(log_tail))
    shifted = 0.0 if direction == "add" else c
    return _loss(-reach, c, q, direction), _loss(shifted + reach, c, q, direction)


def observation(epsilons: np.ndarray, z: float, q: float, direction: str) -> np.ndarray:
    """The observation x*, in units of z, at which the loss equals each ε; nan where no observation has that loss."""
    c = 1 / z
    eps = np.asarray(epsilons, np.float64)
    log_keep, log_q = _logs(q)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if direction == "replace":
            half = np.abs(eps) / 2
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            log_u = log_keep - log_q + c * c / 2 + log_sinh
            size = np.where(
                log_u > 20, log_u + math.log(2), np.arcsinh(np.exp(np.minimum(log_u, 20)))
            )
            return (eps / 2 + np.sign(eps) * size) / c
        if direction == "remove":
            return (_log_excess(eps, log_keep) - log_q + c * c / 2) / c
        return (-_log_excess(-eps, log_keep) + log_q - c * c / 2) / c


def log_tails(
    x: np.ndarray, z: float, q: float, direction: str, side: float
) -> tuple[np.ndarray, np.ndarray]:
    """log of the (P, Q) mass above each observation for side −1, and below it for side +1."""
    log_keep, log_q = _logs(q)

    def log_tail(shift: float) -> np.ndarray:
        """log of a tail of (1−q)N(0) + qN(shift)."""
        if shift == 0:
            return log_ndtr(side * x)
        return np.logaddexp(
            log_keep + log_ndtr(side * x), log_q + log_ndtr(side * (x - shift))
        )

    c = 1 / z
    p_shift, q_shift = {"replace": (c, -c), "remove": (c, 0.0), "add": (0.0, -c)}[
        direction
    ]
    return log_tail(p_shift), log_tail(q_shift)


def excess(epsilons: np.ndarray, z: float, q: float, direction: str) -> np.ndarray:
    """g(ε) = δ(ε) − (1 − e^ε)₊ of one step at each ε, float64, >= 0.

    For ε >= 0 it is δ; for ε < 0 it is e^ε·H_{e^−ε}(Q‖P), computed from lower tails, so that a
    discretisation that takes differences of it loses nothing to the 1 that δ tends to there.
    """
    eps = np.asarray(epsilons, np.float64)
    log_keep, _ = _logs(q)
    x = observation(eps, z, q, direction)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        p_above, q_above = log_tails(x, z, q, direction, -1.0)
        p_below, q_below = log_tails(x, z, q, direction, 1.0)
        above = difference(p_above, eps + q_above)
        below = difference(eps + q_below, p_below)
        value = np.where(eps >= 0, above, below)
    if direction == "remove":  # no outcome has a loss below log(1−q)
        value = np.where(eps <= log_keep, 0.0, value)
    if direction == "add":  # nor one above −log(1−q) here
        value = np.where(eps >= -log_keep, 0.0, value)
    return np.maximum(np.nan_to_num(value, nan=1.0), 0.0)


def difference(log_a: np.ndarray, log_b: np.ndarray) -> np.ndarray:
    """(e^a − e^b)₊."""
    return np.where(
        log_b < log_a, np.exp(log_a) * -np.expm1(np.minimum(log_b - log_a, 0.0)), 0.0
    )


def _log_excess(eps: np.ndarray, log_keep: float) -> np.ndarray:
    """log(e^ε − (1−q)); −inf (or nan) where it is not positive."""
    return eps + np.log(-np.expm1(np.minimum(log_keep - eps, 0.0)))


def _loss(x: float, c: float, q: float, direction: str) -> float:
    log_keep, log_q = _logs(q)
    up = float(np.logaddexp(log_keep, log_q + c * x - c * c / 2))
    down = float(np.logaddexp(log_keep, log_q - c * x - c * c / 2))
    return {"replace": up - down, "remove": up, "add": -down}[direction]


def _logs(q: float) -> tuple[float, float]:
    return (math.log1p(-q) if q < 1 else -math.inf), math.log(q)


# ----------------------------------------------------------------------------------------------------
# Privacy-loss distributions on a grid: one step from its exact curve, and many steps by one Fourier transform.
#
# Discretisation is pessimistic ("connect the dots", Doroshenko et al. 2022, Algorithm 1), so any grid gives an
# upper bound. The tests hold every answer against dp-accounting's.

#: Mass beyond the window of a composition, per piece; charged to infinite loss.
TAIL = 1e-15


class Masses(NamedTuple):
    """Probabilities of losses ``(first + i)·interval`` and of infinite loss; ``first`` need not be whole."""

    first: float
    probabilities: np.ndarray
    infinite: float


class Composed(NamedTuple):
    """The privacy loss of a whole run: ``masses`` of losses that lie ``interval`` apart."""

    masses: Masses
    interval: float

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence Σ (1 − e^{ε − loss})₊·mass."""
        losses, probabilities = self._above(epsilon)
        return self.masses.infinite + float(
            np.dot(-np.expm1(epsilon - losses), probabilities)
        )

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
        start = max(math.floor(min(epsilon / self.interval, 2.0**62) - first) + 1, 0)
        places = np.arange(start, len(probabilities))
        return (first + places) * self.interval, probabilities[start:]


@functools.lru_cache(maxsize=64)
def one_step(
    z: float, q: float, direction: str, interval: float, log_tail: float
) -> Masses:
    """One sampled Gaussian step; P-mass up to e^log_tail on either side goes to the end of the grid."""
    low, high = loss_range(z, q, direction, log_tail)
    return on_grid(lambda losses: excess(losses, z, q, direction), low, high, interval)


def on_grid(
    excess: Callable[[np.ndarray], np.ndarray], low: float, high: float, interval: float
) -> Masses:
    """One step of the curve g = δ − (1 − e^ε)₊ on a grid from ``low`` to ``high``."""
    # The grid straddles 0, where the (1 − e^ε)₊ part of the curve has its kink.
    first = min(math.floor(low / interval), -2)
    last = max(math.ceil(high / interval), 2)
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
        with np.errstate(over="ignore"):  # within scipy, where the largest term is tiny
            moment = logsumexp(places * order, b=piece.probabilities)
        if not math.isfinite(moment):
            continue
        bound = (count * moment + math.log(2 / TAIL)) / order
        if order > 0:
            high = min(high, math.ceil(bound))
        else:
            low = max(low, math.floor(bound))
    return Window(low, high)


def compose(pieces: Sequence[tuple[Masses, int]], interval: float) -> Composed:
    """All pieces, each ``count`` times, in one product of spectra.

    Mass outside a piece's window (at most ``TAIL``) wraps around; it is charged again at infinite loss.
    """
    windows = [window(piece, count) for piece, count in pieces]
    length = sum(w.high - w.low for w in windows) + 1
    size = scipy.fft.next_fast_len(
        max(length, *(len(piece.probabilities) for piece, _ in pieces)), real=True
    )
    log_spectrum = np.zeros(size // 2 + 1, np.complex128)
    log_finite = 0.0
    for piece, count in pieces:
        with np.errstate(
            divide="ignore", invalid="ignore"
        ):  # a frequency that a piece does not hold
            log_spectrum += count * np.log(scipy.fft.rfft(piece.probabilities, size))
        log_finite += (
            count * math.log1p(-piece.infinite) if piece.infinite < 1 else -math.inf
        )
    with np.errstate(invalid="ignore"):
        spectrum = np.where(np.isfinite(log_spectrum), np.exp(log_spectrum), 0.0)
    masses = np.roll(scipy.fft.irfft(spectrum, size), -sum(w.low for w in windows))[
        :length
    ]
    first = sum(
        piece.first * count + w.low
        for (piece, count), w in zip(pieces, windows, strict=True)
    )
    infinite = min(1.0, -math.expm1(log_finite) + TAIL * len(pieces))
    return Composed(Masses(first, np.maximum(masses, 0.0), infinite), interval)


# ----------------------------------------------------------------------------------------------------
# k records of one Poisson-sampled Gaussian step, under add_remove or zero_out.
#
# How many of the k take part is Binomial(k, q), and each that does moves the clipped sum by at most C. In units of C:
#
#     P = Σ_j Bin(k, q)(j) · N(j, z²),      Q = N(0, z²),      in both orders.
#
# *Why this pair dominates, for vectors chosen adaptively.* Given which OTHER records take part, the real pair is
# P = Σ_S p_S N(v_S, z²I) and Q = N(0, z²I), over subsets S of the k, with ‖v_S‖ <= |S|. Under Q the likelihood ratio is
# Σ p_S exp(X_S − Var X_S/2), X_S = ⟨v_S, ·⟩/z² centred Gaussian with Cov(X_S, X_T) <= |S||T|/z², the covariance of
# Y_S = |S|·g/z. By Kahane's convexity inequality (1985), E φ(Σ p_S e^{X_S − Var X_S/2}) <= E φ(Σ p_S e^{Y_S − Var
# Y_S/2}) for every convex φ; φ(r) = (r − e^ε)₊ and (1 − e^ε r)₊ are the two orders. (The pair: Ganesh 2024, arXiv
# 2401.10294.) The same inequality, with |S| coupled below J ~ Bin(k, q'), allows for a generator that is not exactly
# independent: the charged rate q' bounds a record's chance given ALL others (``sampling.py``), so |S| is at most J in
# law. The other records' selection has one law on both sides, an average over it is jointly convex, and dominated steps
# compose adaptively (Zhu, Dong and Wang 2022, Theorem 10).
#
# Where records differ on both sides (replace_one, or some that leave while others join) both laws are mixtures and the
# inequality says nothing: such a pair is not offered.
#
# Claim: k records that are all there, or all absent, cost a mixture of binomially many of them.
# Proof: Kahane's convexity inequality (1985), for vectors that are chosen adaptively.
# Held by: test_the_mixture_dominates_vectors, test_one_step_agrees_with_another_implementation,
# test_composed_steps_agree_with_another_implementation,
# test_a_mixture_is_not_used_where_some_records_leave_and_others_join

_DIRECTIONS = ("remove", "add")
_MIXTURE_STEP_POINTS = 30_000
_MIXTURE_COMPOSED_POINTS = 3_000_000
#: Beyond so many records the sum over j costs more than it gains.
MOST = 32


def loss(x: np.ndarray, z: float, q: float, k: int, direction: str) -> np.ndarray:
    """Privacy loss at the observation x, in units of z; increasing in x in both orders.

    Args:
        x: (n,).
        z: noise multiplier.
        q: rate.
        k: size of the group.
        direction: ``remove``: P is the mixture; ``add``: P is N(0), and the mixture lies at −j.
    """
    j, log_weight = _weights(q, k)
    sign = 1.0 if direction == "remove" else -1.0
    terms = (
        log_weight
        + sign * np.multiply.outer(np.asarray(x, np.float64), j) / z
        - (j / z) ** 2 / 2
    )
    return sign * logsumexp(terms, axis=-1)


def mixture_excess(
    epsilons: np.ndarray, z: float, q: float, k: int, direction: str
) -> np.ndarray:
    """g(ε) = δ(ε) − (1 − e^ε)₊ of one step at each ε, (n,) float64, as ``dominating_pair.excess``."""
    eps = np.asarray(epsilons, np.float64)
    j, log_weight = _weights(q, k)
    # Where the loss equals ε, by bisection; an error of it enters δ by its square.
    low = np.full(eps.shape, -60.0)
    high = np.full(eps.shape, 60.0 + k / z)
    for _ in range(64):
        middle = (low + high) / 2
        below = loss(middle, z, q, k, direction) < eps
        low = np.where(below, middle, low)
        high = np.where(below, high, middle)
    x = (low + high) / 2
    shifts = j / z if direction == "remove" else -j / z

    def tails(side: float) -> tuple[np.ndarray, np.ndarray]:
        """log of (P, e^ε Q) above x for side −1, below it for side +1."""
        mixed = logsumexp(log_weight + log_ndtr(side * (x[:, None] - shifts)), axis=1)
        plain = log_ndtr(side * x)
        return (mixed, eps + plain) if direction == "remove" else (plain, eps + mixed)

    p_above, q_above = tails(-1.0)
    p_below, q_below = tails(1.0)
    with np.errstate(over="ignore"):  # on the side of 0 that is not looked at
        value = np.where(
            eps >= 0, difference(p_above, q_above), difference(q_below, p_below)
        )
    log_none = float(log_weight[0])
    # Nobody of the group may take part: no loss lies below log p_0 in one order, nor above −log p_0 in the other.
    outside = eps <= log_none if direction == "remove" else eps >= -log_none
    return np.where(outside, 0.0, np.maximum(value, 0.0))


def composed_delta(
    steps: list[tuple[float, float, int]], mu: float, k: int, epsilon: float, delta: float
) -> Callable[[float], float] | None:
    """δ(ε) for ε >= 0 of all steps and a Gaussian beside them, on a grid fit for ε near ``epsilon`` at ``delta``.

    Args:
        steps: (noise multiplier, rate, count) of each kind of step.
        mu: of the Gaussian beside them, for the whole group; 0 for none.
        k: size of the group, at most ``MOST``.
        epsilon: a rough guess of the answer.
        delta: what it is wanted at.

    Returns:
        δ(ε), or None where no grid fits into memory.
    """
    count = sum(c for _, _, c in steps)
    # Mass that may be sent to infinite loss: 1e-5 of δ over all steps, rounded so that nearby δ share a grid.
    log_tail = max(-50.0, 5.0 * math.floor(math.log(1e-5 * delta / count) / 5))
    composed = _mixture_composed(
        tuple(steps), mu, k, _mixture_interval(steps, k, epsilon, log_tail), log_tail
    )
    if composed is None:
        return None
    # Against rounding of the Fourier transform, as in ``pld.py``.
    slack = 4 * 2.0**-52 * count

    def at(e: float) -> float:
        return min(1.0, max(order.delta(e) for order in composed) + slack)

    return at


@functools.lru_cache(maxsize=4)
def _mixture_composed(
    steps: tuple[tuple[float, float, int], ...],
    mu: float,
    k: int,
    interval: float,
    log_tail: float,
) -> tuple[Composed, ...] | None:
    for _ in range(8):
        orders = []
        for direction in _DIRECTIONS:
            pieces = [
                (_one_step(z, q, k, direction, interval, log_tail), count)
                for z, q, count in steps
            ]
            if mu > 0:
                pieces.append((one_step(1 / mu, 1.0, "remove", interval, log_tail), 1))
            orders.append(pieces)
        points = sum(w.high - w.low for w in (window(*piece) for piece in orders[0]))
        if points <= _MIXTURE_COMPOSED_POINTS:
            spend(points * len(orders) * len(orders[0]))
            return tuple(compose(pieces, interval) for pieces in orders)
        interval *= 2
    return None


def _one_step(
    z: float, q: float, k: int, direction: str, interval: float, log_tail: float
) -> Masses:
    """One step on a grid; P-mass up to e^log_tail on either side goes to its ends."""
    low, high = _range(z, q, k, direction, log_tail)
    # Sixty-four bisections, each a sum over who takes part.
    spend(10 * (k + 1) * (high - low) / interval)
    return on_grid(
        lambda losses: mixture_excess(losses, z, q, k, direction), low, high, interval
    )


def _range(
    z: float, q: float, k: int, direction: str, log_tail: float
) -> tuple[float, float]:
    """(lowest, highest) loss outside which P has mass at most e^log_tail on either side."""
    reach = -float(ndtri_exp(log_tail))
    # Above it lies at most the tail of the component that is shifted most.
    ends = np.array([-reach, reach + (k / z if direction == "remove" else 0.0)])
    low, high = loss(ends, z, q, k, direction)
    return float(low), float(high)


def _mixture_interval(
    steps: list[tuple[float, float, int]], k: int, epsilon: float, log_tail: float
) -> float:
    """Grid spacing: well inside one step's loss and far below the answer; a power of two, so that it is shared."""
    z, q, _ = min(steps)
    x = np.linspace(-10, 10 + k / z, 4001)
    mass = np.exp(-(x**2) / 2 + np.minimum(loss(x, z, q, k, "remove"), 700))
    spread = math.sqrt(float(np.average(loss(x, z, q, k, "remove") ** 2, weights=mass)))
    span = max(
        high - low for low, high in (_range(z, q, k, d, log_tail) for d in _DIRECTIONS)
    )
    wanted = min(1e-3 * min(max(epsilon, 1e-6), 50.0), 0.15 * spread)
    return 2.0 ** math.floor(math.log2(max(wanted, span / _MIXTURE_STEP_POINTS, 5e-7)))


def _weights(q: float, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(number taking part, log of its probability), each (k + 1,)."""
    j = np.arange(k + 1)
    return j.astype(np.float64), scipy.stats.binom.logpmf(j, k, q)


FFT_SLACK = 4 * 2.0**-52
_MOST_SLACK = 0.05
# One step's grid and the composed grid are kept below these sizes: about a second and 300 MB.
_STEP_POINTS = 200_000
COMPOSED_POINTS = 3_000_000
# Spectra of all kinds of step and both orders together, and points of all steps: a second or two.
_WORK = 20_000_000
# Cost per point of making a step's distribution and bounding its composition, in points of a spectrum.
_STEP_WORK = 8
# Cost of reading an answer from a composed distribution, likewise.
_READ_WORK = 50_000
# Below this z a step is charged as revealing its batch: (0, rate)-DP, whatever the noise.
SMALLEST_Z = 0.025


def check(events: Iterable[Event], adjacency: Adjacency) -> None:
    """Raise UnsupportedCombination for a pair without a derivation."""
    for e in queries(events):
        if e.mechanism == "fixed_size_gaussian":
            raise UnsupportedCombination(
                "accountant pld has no dominating pair for fixed_size sampling; use accountant rdp or advanced "
                "with replace_one, or scheme poisson.",
                "accountant",
            )


def epsilon(events: Iterable[Event], adjacency: Adjacency, delta: float) -> float:
    """Smallest certified ε at δ: the least of exact Gaussian, PLD and Rényi where valid."""
    parts = tuple(queries(events))
    check(parts, adjacency)
    if not parts:
        return 0.0
    if delta <= 0 or any(e.noise_multiplier == 0 for e in parts):
        return math.inf
    parts = tuple(grouped(parts))
    if all(e.mechanism == "gaussian" for e in parts):
        return gaussian_epsilon(gaussian_parameter(parts, adjacency), delta)
    renyi = rdp.epsilon(parts, adjacency, delta)
    spend(_READ_WORK)
    slack = _slack(parts)
    if slack > _MOST_SLACK * delta:
        return renyi
    composed = _composed(parts, adjacency, renyi, delta)
    if composed is None:
        return renyi
    return min(renyi, composed.epsilon(delta - slack))


def delta(events: Iterable[Event], adjacency: Adjacency, epsilon: float) -> float:
    """Smallest certified δ at ε >= 0."""
    parts = tuple(queries(events))
    check(parts, adjacency)
    if not parts:
        return 0.0
    if any(e.noise_multiplier == 0 for e in parts):
        return 1.0
    parts = tuple(grouped(parts))
    if all(e.mechanism == "gaussian" for e in parts):
        return gaussian_delta(gaussian_parameter(parts, adjacency), epsilon)
    renyi = rdp.delta(parts, adjacency, epsilon)
    spend(_READ_WORK)
    composed = _composed(parts, adjacency, max(epsilon, 1e-3), max(renyi, 1e-12))
    if composed is None:
        return renyi
    return min(renyi, composed.delta(epsilon) + _slack(parts))


def _slack(parts: Iterable[Event]) -> float:
    return FFT_SLACK * sum(e.count for e in parts if e.mechanism != "gaussian")


class _Composed(NamedTuple):
    """One composed distribution per order of the pair; both must meet a promise."""

    orders: tuple[Composed, ...]

    def epsilon(self, delta: float) -> float:
        return max(order.epsilon(delta) for order in self.orders)

    def delta(self, epsilon: float) -> float:
        return max(order.delta(epsilon) for order in self.orders)


def _composed(
    parts: tuple[Event, ...], adjacency: Adjacency, epsilon: float, delta: float
) -> _Composed | None:
    """The composed distribution on a grid fit for ε near ``epsilon`` at ``delta``; None where none fits."""
    # Mass that may be sent to infinite loss: 1e-5 of δ over all steps. Rounded so that grids can be shared.
    log_tail = max(
        -50.0, 5.0 * math.floor(math.log(1e-5 * delta / sum(e.count for e in parts)) / 5)
    )
    noisy = _noisy(parts)
    return _composed_on(
        parts, adjacency, grid_interval(noisy, adjacency, epsilon, log_tail), log_tail
    )


@functools.lru_cache(maxsize=8)
def _composed_on(
    parts: tuple[Event, ...], adjacency: Adjacency, interval: float, log_tail: float
) -> _Composed | None:
    sampled = [e for e in parts if e.mechanism != "gaussian"]
    noisy = _noisy(parts)
    fixed = [
        (revealed(-math.expm1(e.count * math.log1p(-e.rate))), 1)
        for e in sampled
        if e.noise_multiplier < SMALLEST_Z
    ]
    mu = gaussian_parameter(parts, adjacency)
    directions = pair_directions(adjacency)
    for _ in range(16):
        sizes = sum(
            (high - low) / interval
            for e in noisy
            for low, high in [
                loss_range(e.noise_multiplier, e.rate, directions[0], log_tail)
            ]
        )
        if len(directions) * sizes * _STEP_WORK > _WORK and len(noisy) > 1:
            interval *= 2
            continue
        spend(len(directions) * sizes * _STEP_WORK)
        by_order = []
        for direction in directions:
            pieces = [
                (
                    one_step(e.noise_multiplier, e.rate, direction, interval, log_tail),
                    e.count,
                )
                for e in noisy
            ]
            if mu > 0:  # a Gaussian is its own mirror image
                pieces.append((one_step(1 / mu, 1.0, "remove", interval, log_tail), 1))
            by_order.append(pieces + fixed)
        points = sum(w.high - w.low for w in (window(*piece) for piece in by_order[0]))
        work = points * len(directions) * len(by_order[0])
        if points <= COMPOSED_POINTS and work <= _WORK:
            spend(work)
            return _Composed(tuple(compose(pieces, interval) for pieces in by_order))
        interval *= 2
    return None


def _noisy(parts: tuple[Event, ...]) -> list[Event]:
    """Sampled steps with noise enough for a grid of their own."""
    return [
        e for e in parts if e.mechanism != "gaussian" and e.noise_multiplier >= SMALLEST_Z
    ]


def grid_interval(
    noisy: list[Event], adjacency: Adjacency, epsilon: float, log_tail: float
) -> float:
    """Grid spacing: well inside one step's loss and far below the answer, but never beyond memory.

    A power of two, so that neighbouring evaluations of a calibration share it.
    """
    wanted = 1e-3 * min(max(epsilon, 1e-6), 50.0)
    if not noisy:
        return 2.0 ** math.floor(math.log2(wanted))
    # The loss of a small step has variance about twice its divergence; the least noisy step matters most.
    loudest = min(noisy, key=lambda e: e.noise_multiplier)
    kl = float(rdp.one_step(loudest, adjacency, rdp.ORDERS[:1])[0])
    span = max(
        high - low
        for d in pair_directions(adjacency)
        for low, high in [loss_range(loudest.noise_multiplier, loudest.rate, d, log_tail)]
    )
    wanted = min(wanted, 0.15 * math.sqrt(2 * kl))
    return 2.0 ** math.floor(math.log2(max(wanted, span / _STEP_POINTS, 5e-7)))
