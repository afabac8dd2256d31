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
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import dominating_pair, loss_distribution, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.effort import spend
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpmcmc.privacy.accounting.grouping import grouped
from dpmcmc.privacy.accounting.queries import gaussian_parameter, queries

_FFT_SLACK = 4 * 2.0**-52
_MOST_SLACK = 0.05
# One step's grid and the composed grid are kept below these sizes: about a second and 300 MB.
_STEP_POINTS = 200_000
_COMPOSED_POINTS = 3_000_000
# Spectra of all kinds of step and both orders together, and points of all steps: a second or two.
_WORK = 20_000_000
# Cost per point of making a step's distribution and bounding its composition, in points of a spectrum.
_STEP_WORK = 8
# Cost of reading an answer from a composed distribution, likewise.
_READ_WORK = 50_000
# Below this z a step is charged as revealing its batch: (0, rate)-DP, whatever the noise.
_SMALLEST_Z = 0.025


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
    return _FFT_SLACK * sum(e.count for e in parts if e.mechanism != "gaussian")


class _Composed(NamedTuple):
    """One composed distribution per order of the pair; both must meet a promise."""

    orders: tuple[loss_distribution.Composed, ...]

    def epsilon(self, delta: float) -> float:
        return max(order.epsilon(delta) for order in self.orders)

    def delta(self, epsilon: float) -> float:
        return max(order.delta(epsilon) for order in self.orders)


def _composed(parts: tuple[Event, ...], adjacency: Adjacency, epsilon: float, delta: float) -> _Composed | None:
    """The composed distribution on a grid fit for ε near ``epsilon`` at ``delta``; None where none fits."""
    # Mass that may be sent to infinite loss: 1e-5 of δ over all steps. Rounded so that grids can be shared.
    log_tail = max(-50.0, 5.0 * math.floor(math.log(1e-5 * delta / sum(e.count for e in parts)) / 5))
    noisy = _noisy(parts)
    return _composed_on(parts, adjacency, _interval(noisy, adjacency, epsilon, log_tail), log_tail)


@functools.lru_cache(maxsize=8)
def _composed_on(parts: tuple[Event, ...], adjacency: Adjacency, interval: float, log_tail: float) -> _Composed | None:
    sampled = [e for e in parts if e.mechanism != "gaussian"]
    noisy = _noisy(parts)
    fixed = [
        (loss_distribution.revealed(-math.expm1(e.count * math.log1p(-e.rate))), 1)
        for e in sampled
        if e.noise_multiplier < _SMALLEST_Z
    ]
    mu = gaussian_parameter(parts, adjacency)
    directions = dominating_pair.directions(adjacency)
    for _ in range(16):
        sizes = sum(
            (high - low) / interval
            for e in noisy
            for low, high in [dominating_pair.loss_range(e.noise_multiplier, e.rate, directions[0], log_tail)]
        )
        if len(directions) * sizes * _STEP_WORK > _WORK and len(noisy) > 1:
            interval *= 2
            continue
        spend(len(directions) * sizes * _STEP_WORK)
        by_order = []
        for direction in directions:
            pieces = [
                (loss_distribution.one_step(e.noise_multiplier, e.rate, direction, interval, log_tail), e.count)
                for e in noisy
            ]
            if mu > 0:  # a Gaussian is its own mirror image
                pieces.append((loss_distribution.one_step(1 / mu, 1.0, "remove", interval, log_tail), 1))
            by_order.append(pieces + fixed)
        points = sum(w.high - w.low for w in (loss_distribution.window(*piece) for piece in by_order[0]))
        work = points * len(directions) * len(by_order[0])
        if points <= _COMPOSED_POINTS and work <= _WORK:
            spend(work)
            return _Composed(tuple(loss_distribution.compose(pieces, interval) for pieces in by_order))
        interval *= 2
    return None


def _noisy(parts: tuple[Event, ...]) -> list[Event]:
    """Sampled steps with noise enough for a grid of their own."""
    return [e for e in parts if e.mechanism != "gaussian" and e.noise_multiplier >= _SMALLEST_Z]


def _interval(noisy: list[Event], adjacency: Adjacency, epsilon: float, log_tail: float) -> float:
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
        for d in dominating_pair.directions(adjacency)
        for low, high in [dominating_pair.loss_range(loudest.noise_multiplier, loudest.rate, d, log_tail)]
    )
    wanted = min(wanted, 0.15 * math.sqrt(2 * kl))
    return 2.0 ** math.floor(math.log2(max(wanted, span / _STEP_POINTS, 5e-7)))
