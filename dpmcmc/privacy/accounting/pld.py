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
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.blends import knots_of, pieces_of
from dpmcmc.privacy.accounting.composition import (
    Composed,
    Piece,
    compose,
    points,
    revealed,
)
from dpmcmc.privacy.accounting.events import MOST_BLENDED, Event
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries
from dpmcmc.privacy.accounting.grouping import grouped
from dpmcmc.privacy.accounting.hockey_stick import loss_range, one_step, pair_directions
from dpmcmc.privacy.accounting.work import spend

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
