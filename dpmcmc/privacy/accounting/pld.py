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

Rounding, of a step's curve and of the Fourier transform, is bounded by a theorem (``composition.py``): δ is lowered by
its bound, some 1e-13 for any number of steps.

**Steps of many sizes** are blends. With c = 1/z, δ(ε) of each pair here is, for every ε, a convex function of the total
variation of the unsampled pair: u = 2Φ(c/2) − 1 for ``remove`` and ``add``, u = 2Φ(c) − 1 for ``replace``. So a step
whose z lies between two others' is dominated by a public coin that shows the one or the other, with the chance λ that
gives its u on average: δ_z <= λδ_a + (1 − λ)δ_b. The excess is of second order in the distance of z_a and z_b.

*Proof for a Gaussian and its samples.* For μ = c, t = μ/2 − ε/μ and ε >= 0, ∂δ/∂μ = φ(t) and ∂²δ/∂μ² = −tφ(t)(1/2 +
ε/μ²). So δ''/δ' = ε²/μ³ − μ/4 >= −μ/4 = u''/u', which is convexity in u; for ε < 0 use δ(ε) = 1 − e^ε + e^ε δ(−ε).
With γ = e^ε, H_γ((1−q)Q + qP‖Q) = q·H_{1+(γ−1)/q}(P‖Q) for γ > 1 − q, and H_γ(Q‖(1−q)Q + qP) = (1 − γ(1−q))·
H_{γq/(1−γ(1−q))}(Q‖P) for γ < 1/(1−q): a constant times δ of the unsampled pair at another ε, which c does not move.
Elsewhere δ does not depend on c.

*Proof for* ``replace``. Let γ > 1 and H(c) = max over t of (1−γ)(1−q)Φ(−t) + q[Φ(c−t) − γΦ(−c−t)], with its maximum
at t >= 0. Write a = φ(t−c), b = γφ(t+c), w = (a−b)/(a+b). There q(a−b) = (γ−1)(1−q)φ(t) >= 0, so H' = q(a+b), and by
differentiating this equation t' = −(t−cw)/c. Hence H''/H' = −c + tw − t'(t−cw) = −c + tw + (t−cw)²/c >= −c = u''/u'.
For γ < 1 use the mirror image of the pair; at γ = 1, H = qu.

Claim: k Poisson queries cost at most the stated ε.
Proof: dominating pairs (Zhu, Dong and Wang 2022), rounded pessimistically and composed.
Held by: test_pld_lies_inside_an_independent_bracket, test_one_replace_one_step_matches_quadrature_of_its_pair,
test_hockey_stick_curves_are_those_of_a_pair, test_dp_accounting_agrees_with_what_a_run_states,
test_microsofts_values, "replacement accounted as removal", "accountant's cache without the adjacency"

Claim: Steps of many sizes cost no more than public coins between few of them.
Proof: δ of a step is convex in the total variation of its unsampled pair.
Held by: test_a_coin_between_two_steps_dominates_one_between_them, test_a_blend_is_the_product_of_its_coins,
test_four_hundred_sizes_cost_what_they_do_one_by_one
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import erf, erfc, log_ndtr, ndtri_exp

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import rdp
from dpmcmc.privacy.accounting.composition import (
    Blend,
    Composed,
    Curve,
    Piece,
    compose,
    on_grid,
    points,
    revealed,
)
from dpmcmc.privacy.accounting.events import (
    MOST_BLENDED,
    Adjacency,
    Event,
    bucket_down,
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


_UNIT = 2.0**-53
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(16)


def pair_directions(adjacency: Adjacency) -> tuple[str, ...]:
    """Return the pairs to compose: both orders where the pair is not its own mirror image."""
    return ("replace",) if adjacency == Adjacency.REPLACE_ONE else ("remove", "add")


def loss_range(z: float, q: float, direction: str, log_tail: float) -> tuple[float, float]:
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
            size = np.where(log_u > 20, log_u + math.log(2), np.arcsinh(np.exp(np.minimum(log_u, 20))))
            return (eps / 2 + np.sign(eps) * size) / c
        if direction == "remove":
            return (_log_excess(eps, log_keep) - log_q + c * c / 2) / c
        return (-_log_excess(-eps, log_keep) + log_q - c * c / 2) / c


def log_tails(x: np.ndarray, z: float, q: float, direction: str, side: float) -> tuple[np.ndarray, np.ndarray]:
    """log of the (P, Q) mass above each observation for side −1, and below it for side +1."""
    log_keep, log_q = _logs(q)

    def log_tail(shift: float) -> np.ndarray:
        """log of a tail of (1−q)N(0) + qN(shift)."""
        if shift == 0:
            return log_ndtr(side * x)
        return np.logaddexp(log_keep + log_ndtr(side * x), log_q + log_ndtr(side * (x - shift)))

    c = 1 / z
    p_shift, q_shift = {"replace": (c, -c), "remove": (c, 0.0), "add": (0.0, -c)}[direction]
    return log_tail(p_shift), log_tail(q_shift)


def excess(epsilons: np.ndarray, z: float, q: float, direction: str) -> np.ndarray:
    """g(ε) = δ(ε) − (1 − e^ε)₊ of one step at each ε, float64, >= 0; for ε < 0 it is e^ε·H_{e^−ε}(Q‖P)."""
    return curve(epsilons, z, q, direction)[0]


def curve(epsilons: np.ndarray, z: float, q: float, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """(g, bound on its rounding) of one step at each ε, float64.

    With P − Q above x* known, g is that less (e^ε − 1)·Q above x* where ε >= 0, or less (1 − e^ε)·Q below x* elsewhere.
    This loses no digits where P and Q are close. Where e^ε is far from 1 it is the difference of P's and e^ε·Q's tails.
    """
    eps = np.asarray(epsilons, np.float64)
    log_keep, _ = _logs(q)
    x = observation(eps, z, q, direction)
    c = 1 / z
    ends = {"replace": (-c, c), "remove": (0.0, c), "add": (-c, 0.0)}[direction]
    outside = np.isnan(x)
    if direction == "remove":  # no outcome has a loss below log(1−q)
        outside = outside | (eps <= log_keep)
    if direction == "add":  # nor one above −log(1−q) here
        outside = outside | (eps >= -log_keep)
    x = np.where(outside, 0.0, x)
    above = log_tails(x, z, q, direction, -1.0)
    below = log_tails(x, z, q, direction, 1.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_side = np.where(eps >= 0, above[1], below[1])
        log_rise = np.maximum(eps, 0.0) + np.log(-np.expm1(-np.abs(eps)))
        log_moved = math.log(q) + _log_between(x, *ends)
        close = np.abs(eps) < 1
        gain = np.where(close, log_moved, np.where(eps >= 0, above[0], eps + below[1]))
        loss = np.where(close, log_rise + log_side, np.where(eps >= 0, eps + above[1], below[0]))
        value = difference(gain, loss)
        error = sum(np.exp(part) * _UNIT * (32 + 8 * np.abs(part)) for part in (gain, loss))
    error = np.where(np.isfinite(error), error, 0.0)
    return np.where(outside, 0.0, value), np.where(outside, 0.0, error)


def _log_between(x: np.ndarray, low: float, high: float) -> np.ndarray:
    """log(Φ(high − x) − Φ(low − x)), to the last digits where both are close."""
    width = high - low
    middle = (low + high) / 2 - x
    # Gauss and Legendre's rule, where the density changes by less than e^±2 in the interval.
    density = np.exp(-0.5 * ((width / 2) * _NODES * (2 * middle[..., None] + (width / 2) * _NODES)))
    by_rule = np.log(density @ _NODE_WEIGHTS) - 0.5 * middle**2
    by_rule += math.log(width / 2) - 0.5 * math.log(2 * math.pi)
    right = middle < 0
    top = log_ndtr(np.where(right, high - x, x - low))
    rest = log_ndtr(np.where(right, low - x, x - high))
    by_tails = top + np.log(-np.expm1(np.minimum(rest - top, 0.0)))
    return np.where(width * (np.abs(middle) + 1) <= 4, by_rule, by_tails)


def difference(log_a: np.ndarray, log_b: np.ndarray) -> np.ndarray:
    """(e^a − e^b)₊."""
    return np.where(log_b < log_a, np.exp(log_a) * -np.expm1(np.minimum(log_b - log_a, 0.0)), 0.0)


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


@functools.lru_cache(maxsize=64)
def one_step(z: float, q: float, direction: str, interval: float, log_tail: float) -> Curve:
    """One sampled Gaussian step; P-mass up to e^log_tail on either side goes to the end of the grid."""
    low, high = loss_range(z, q, direction, log_tail)
    return on_grid(lambda losses: curve(losses, z, q, direction), low, high, interval)


# ----------------------------------------------------------------------------------------------------
# Steps of many sizes as blends of few.


def pieces_of(steps: Sequence[Event], direction: str, interval: float, log_tail: float) -> list[tuple[Piece, int]]:
    """Sampled steps, each with its count; more than ``_KNOTS`` sizes of a rate as blends of so many."""

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
    """Noise multipliers, ascending, between which others are blended: all, or about ``_KNOTS`` with both ends."""
    values = np.unique(z)
    if len(values) <= _KNOTS:
        return values
    starts, _ = bucket_down(z, counts, exact_below=_KNOTS, most=_KNOTS)
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


# ----------------------------------------------------------------------------------------------------
# The accountant.

#: Sizes of step of one rate that are composed as they are, or between which others are blended.
_KNOTS = 32
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
    parts = tuple(grouped(parts, MOST_BLENDED))
    if all(e.mechanism == "gaussian" for e in parts):
        return gaussian_epsilon(gaussian_parameter(parts, adjacency), delta)
    renyi = rdp.epsilon(parts, adjacency, delta)
    spend(_READ_WORK)
    composed = _composed(parts, adjacency, renyi, delta)
    if composed is None:
        return renyi
    return min(renyi, composed.epsilon(delta))


def delta(events: Iterable[Event], adjacency: Adjacency, epsilon: float) -> float:
    """Smallest certified δ at ε >= 0."""
    parts = tuple(queries(events))
    check(parts, adjacency)
    if not parts:
        return 0.0
    if any(e.noise_multiplier == 0 for e in parts):
        return 1.0
    parts = tuple(grouped(parts, MOST_BLENDED))
    if all(e.mechanism == "gaussian" for e in parts):
        return gaussian_delta(gaussian_parameter(parts, adjacency), epsilon)
    renyi = rdp.delta(parts, adjacency, epsilon)
    spend(_READ_WORK)
    composed = _composed(parts, adjacency, max(epsilon, 1e-3), max(renyi, 1e-12))
    if composed is None:
        return renyi
    return min(renyi, composed.delta(epsilon))


def near(
    events: Iterable[Event], adjacency: Adjacency, epsilon: float, delta: float
) -> Callable[[float], float] | None:
    """δ(ε) at every ε >= 0 on one grid, fit for ε near ``epsilon`` at ``delta``; None where none fits."""
    parts = tuple(grouped(queries(events), MOST_BLENDED))
    check(parts, adjacency)
    if any(e.noise_multiplier == 0 for e in parts):
        return None
    composed = _composed(parts, adjacency, epsilon, delta)
    return None if composed is None else composed.delta


class _Composed(NamedTuple):
    """One composed distribution per order of the pair; both must meet a promise."""

    orders: tuple[Composed, ...]

    def epsilon(self, delta: float) -> float:
        return max(order.most_epsilon(delta) for order in self.orders)

    def delta(self, epsilon: float) -> float:
        return max(order.most_delta(epsilon) for order in self.orders)


def _composed(parts: tuple[Event, ...], adjacency: Adjacency, epsilon: float, delta: float) -> _Composed | None:
    """The composed distribution on a grid fit for ε near ``epsilon`` at ``delta``; None where none fits."""
    # Mass that may be sent to infinite loss: 1e-5 of δ over all steps. Rounded so that grids can be shared.
    log_tail = max(-50.0, 5.0 * math.floor(math.log(1e-5 * delta / sum(e.count for e in parts)) / 5))
    noisy = _noisy(parts)
    return _composed_on(parts, adjacency, grid_interval(noisy, adjacency, epsilon, log_tail), log_tail)


@functools.lru_cache(maxsize=8)
def _composed_on(parts: tuple[Event, ...], adjacency: Adjacency, interval: float, log_tail: float) -> _Composed | None:
    sampled = [e for e in parts if e.mechanism != "gaussian"]
    noisy = _noisy(parts)
    fixed: list[tuple[Piece, int]] = [
        (revealed(-math.expm1(e.count * math.log1p(-e.rate))), 1) for e in sampled if e.noise_multiplier < SMALLEST_Z
    ]
    mu = gaussian_parameter(parts, adjacency)
    directions = pair_directions(adjacency)
    for _ in range(16):
        sizes = sum(
            (high - low) / interval
            for e in _made(noisy)
            for low, high in [loss_range(e.noise_multiplier, e.rate, directions[0], log_tail)]
        )
        if len(directions) * sizes * _STEP_WORK > _WORK and len(noisy) > 1:
            interval *= 2
            continue
        spend(len(directions) * sizes * _STEP_WORK)
        by_order = []
        for direction in directions:
            pieces = pieces_of(noisy, direction, interval, log_tail)
            if mu > 0:  # a Gaussian is its own mirror image
                pieces.append((one_step(1 / mu, 1.0, "remove", interval, log_tail), 1))
            by_order.append(pieces + fixed)
        width = points(by_order[0])
        work = width * len(directions) * len(by_order[0])
        if width <= COMPOSED_POINTS and work <= _WORK:
            spend(work)
            return _Composed(tuple(compose(pieces, interval) for pieces in by_order))
        interval *= 2
    return None


def _made(noisy: list[Event]) -> list[Event]:
    """Steps whose curves ``pieces_of`` computes."""
    out = []
    for q in {e.rate for e in noisy}:
        family = [e for e in noisy if e.rate == q]
        z = np.array([e.noise_multiplier for e in family])
        knots = knots_of(z, np.array([e.count for e in family]))
        out += [dataclasses.replace(family[0], noise_multiplier=float(k)) for k in knots]
    return out


def _noisy(parts: tuple[Event, ...]) -> list[Event]:
    """Sampled steps with noise enough for a grid of their own."""
    return [e for e in parts if e.mechanism != "gaussian" and e.noise_multiplier >= SMALLEST_Z]


def grid_interval(noisy: list[Event], adjacency: Adjacency, epsilon: float, log_tail: float) -> float:
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
