r"""A lower bound on ε of noisy queries: no accountant that is right says less for their events.

*The data sets.* One record's clipped gradient is C in one direction at every step. Its neighbour's is −C (replace_one),
or there is none (add_remove, zero_out). All other gradients are 0. Then a step releases exactly one of the pairs of
``pld.py``, whatever the scheme: a batch of fixed size holds the record with probability b/N. Steps are independent. So
ε of the composed pair, in either order, is a lower bound for every (ε, δ) that holds for all data sets.

*From below.* The observation of a step is cut into cells. This is post-processing, so the cells' privacy loss has a
δ(ε) that is no larger. A cell of P-mass p and Q-mass q has the loss log(p/q). The cells are chosen such that this loss
lies on the grid, or above it by a rounding error, and then it counts as the grid's. Mass that wraps around in the
Fourier transform, and the transform's rounding, count as no privacy loss.

Steps with almost no noise are left out, which is post-processing too.

Claim: No accountant that is right says less for these events.
Proof: two data sets, and cells of their observations.
Held by: test_it_lies_below_pld_and_close_to_it, test_one_step_s_cells_lie_below_its_exact_curve,
test_one_below_the_lower_bound_is_refused_by_name
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import scipy

from dpmcmc.privacy.accounting import pld
from dpmcmc.privacy.accounting.events import (
    Adjacency,
    Event,
    gaussian_parameter,
    queries,
)
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.accounting.pld import Composed, Masses

#: Kinds of step that are told apart.
_MOST_KINDS = 16
#: Rounds that move the edges of cells until their losses lie on the grid.
_ROUNDS = 60
#: Cells times rounds.
_WORK = 300_000
#: Shares of the interval that cells are off on average at the end.
_SMALL = 1e-6
#: Shares of the interval that a cell may be off after them, at most, for the grid to move because of it.
_LEFT = 1e-4
#: λ, in cells of mass 1.
_DAMPING = 1e-9
#: Relative rounding of a tail of the normal law, and of a difference of two of them, generously.
_ROUNDING = 1e-14
#: Relative error of the closed form of Gaussian queries, generously.
_CLOSED_FORM = 1e-9


def epsilon(events: Iterable[Event], adjacency: Adjacency, delta: float) -> float:
    """An ε at ``delta`` that the events exceed or equal, on two data sets; 0 where none is known.

    Args:
        events: noisy queries; other mechanisms are left out.
        adjacency: of the claim.
        delta: in (0, 1).
    """
    parts = [
        # The pair is that of a Poisson-sampled step, whatever the scheme.
        e
        if e.mechanism == "gaussian"
        else Event("poisson_gaussian", e.noise_multiplier, e.rate, e.count)
        for e in queries(events)
        if e.noise_multiplier >= pld.SMALLEST_Z
    ]
    mu = gaussian_parameter(parts, adjacency)
    sampled = [e for e in parts if e.mechanism != "gaussian"]
    found = [gaussian_epsilon(mu, delta) * (1 - _CLOSED_FORM)]
    if not sampled:
        return found[0]
    kinds = tuple(_fewer([(e.noise_multiplier, e.rate, e.count) for e in sampled]))
    guess = max(pld.rdp.epsilon(parts, adjacency, delta), 1e-3)
    log_tail = max(-50.0, float(np.log(1e-5 * delta / sum(e.count for e in sampled))))
    interval = pld.grid_interval(sampled, adjacency, guess, log_tail)
    # One order is enough where ε > 0; and a record may also be replaced by one whose gradient is 0.
    for direction in dict.fromkeys((pld.pair_directions(adjacency)[0], "remove")):
        composed = _composed(kinds, mu, direction, interval, log_tail)
        if composed is not None:
            found.append(composed.epsilon(delta + _charge(kinds)))
    return max(found)


def _charge(kinds: tuple[tuple[float, float, int], ...]) -> float:
    """δ that rounding of the transform, and mass that wraps around in it, may have added."""
    steps = sum(count for _, _, count in kinds)
    return pld.FFT_SLACK * steps + pld.TAIL * (len(kinds) + 1)


def _fewer(
    kinds: list[tuple[float, float, int]],
) -> list[tuple[float, float, int]]:
    """Return at most ``_MOST_KINDS`` kinds of step. A group has its most noise and its least rate: it reveals less."""
    kinds = sorted(kinds)
    size = -(-len(kinds) // _MOST_KINDS)
    groups = [kinds[first : first + size] for first in range(0, len(kinds), size)]
    return [
        (
            max(z for z, _, _ in group),
            min(q for _, q, _ in group),
            sum(count for _, _, count in group),
        )
        for group in groups
    ]


@functools.lru_cache(maxsize=4)
def _composed(
    kinds: tuple[tuple[float, float, int], ...],
    mu: float,
    direction: str,
    interval: float,
    log_tail: float,
) -> Composed | None:
    """All steps and a Gaussian beside them, from below; None where no grid fits into memory."""
    steps = [(z, q, direction, count) for z, q, count in kinds]
    if mu > 0:  # a Gaussian is its own mirror image
        steps.append((1 / mu, 1.0, "remove", 1))
    for _ in range(16):
        spans = (pld.loss_range(z, q, way, log_tail) for z, q, way, _ in steps)
        if max(high - low for low, high in spans) > (_WORK - 3) * interval:
            interval *= 2
            continue
        pieces = [
            (one_step(z, q, way, interval, log_tail), count) for z, q, way, count in steps
        ]
        windows = [pld.window(piece, count) for piece, count in pieces]
        if sum(w.high - w.low for w in windows) <= pld.COMPOSED_POINTS:
            composed = pld.compose(pieces, interval)
            return composed._replace(masses=composed.masses._replace(infinite=0.0))
        interval *= 2
    return None


def one_step(
    z: float, q: float, direction: str, interval: float, log_tail: float
) -> Masses:
    """Masses of one sampled Gaussian step's cells: a loss that post-processing has, or less.

    The lowest cell holds all observations below its upper edge. Where it has mass to speak of, its loss is a point of
    the grid, which then has an offset. The other edges solve "the loss of each cell is its point of the grid", one
    equation fewer than edges, by Newton's steps of the least norm.
    """
    low, high = pld.loss_range(z, q, direction, log_tail)
    edge = low + interval
    for _ in range(_ROUNDS):
        edge = _lowest(edge, z, q, direction) + interval / 2
    anchored = edge > low
    edge = edge if anchored else low
    edges = edge + interval * np.arange(
        max(int(np.ceil((high - edge) / interval)), 2) + 1
    )
    start = edge - interval / 2
    nominal = edges
    for _ in range(min(_ROUNDS, _WORK // len(edges))):
        start = _lowest(edges[0], z, q, direction) if anchored else start
        grid = start + interval * np.arange(1, len(edges))
        step, left = _step(edges, grid, interval, z, q, direction)
        if left < _SMALL * interval:
            break
        # Less than half an interval either way, so that edges stay in their order.
        edges = nominal + np.clip(
            edges - step - nominal, -0.45 * interval, 0.45 * interval
        )
    # The grid moves down by the worst of what is left, so that no loss of a cell lies below its point.
    _, losses, errors = _cells(edges[:-1], edges[1:], z, q, direction)
    short = grid + errors - losses
    start -= max(float(short[short < _LEFT * interval].max(initial=0.0)), 0.0)
    ends = (np.append(-np.inf, edges), np.append(edges, np.inf))
    masses, losses, errors = _cells(*ends, z, q, direction)
    sure = losses - errors
    first = float(min(start, sure[0] if anchored else start) / interval)
    points = np.arange(len(masses)) + first
    # A cell that still lies below its point counts at the point below, or as no loss.
    down = ~(sure >= points * interval)
    down[0] = not anchored
    placed = np.where(down, 0.0, masses)
    placed[:-1] += np.where(down & (sure >= (points - 1) * interval), masses, 0.0)[1:]
    return Masses(first, placed * (1 - _ROUNDING), 0.0)


def _lowest(edge: float, z: float, q: float, direction: str) -> float:
    """Return the loss of the cell of all observations below that of the loss ``edge``."""
    return float(_cells(np.array([-np.inf]), np.array([edge]), z, q, direction)[1][0])


def _step(
    edges: np.ndarray,
    grid: np.ndarray,
    interval: float,
    z: float,
    q: float,
    direction: str,
) -> tuple[np.ndarray, float]:
    """A damped Newton's step toward cells whose losses are ``grid``, (n + 1,), and how far they are off on average.

    It solves (J Jᵀ + λ/mass)·y = losses − grid and moves the edges by Jᵀy: the least norm, with cells of little mass
    left to what the others need.
    """
    small = 1e-4 * interval
    masses, losses, _ = _cells(edges[:-1], edges[1:], z, q, direction)
    _, left, _ = _cells(edges[:-1] + small, edges[1:], z, q, direction)
    _, right, _ = _cells(edges[:-1], edges[1:] + small, z, q, direction)
    off = losses - grid
    by_left = (left - losses) / small
    by_right = (right - losses) / small
    known = np.isfinite(off + by_left + by_right)
    off, by_left, by_right = (
        np.where(known, part, 0.0) for part in (off, by_left, by_right)
    )
    # J has by_left on its diagonal and by_right beside it, so J Jᵀ is tridiagonal.
    banded = np.zeros((2, len(off)))
    banded[1] = by_left**2 + by_right**2 + _DAMPING / np.maximum(masses, 1e-30)
    banded[0, 1:] = by_right[:-1] * by_left[1:]
    solved = scipy.linalg.solveh_banded(banded, off)
    step = np.append(by_left * solved, 0.0) + np.append(0.0, by_right * solved)
    return step, float(np.dot(masses, np.abs(off)))


def _cells(
    lower: np.ndarray, upper: np.ndarray, z: float, q: float, direction: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(P-mass, log(P/Q), bound on its rounding) of the observations between two losses, each (n,)."""
    tails = []
    for edges in (lower, upper):
        with np.errstate(invalid="ignore"):
            x = pld.observation(np.where(np.isinf(edges), 0.0, edges), z, q, direction)
        # No loss lies below log(1 − q) where P is the mixture.
        x = np.where(np.isnan(x), -np.inf, x)
        x = np.where(np.isinf(edges), edges, x)
        above = pld.log_tails(x, z, q, direction, -1.0)
        below = pld.log_tails(x, z, q, direction, 1.0)
        tails.append((above, below))
    ((above_lower, below_lower), (above_upper, below_upper)) = tails
    logs = []
    errors = []
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for side in range(2):
            from_above = above_lower[side] <= below_upper[side]
            base = np.where(from_above, above_lower[side], below_upper[side])
            rest = np.where(from_above, above_upper[side], below_lower[side])
            log_mass = base + np.log(-np.expm1(rest - base))
            logs.append(log_mass)
            errors.append(_ROUNDING * (1 + np.abs(base)) * np.exp(base - log_mass))
        error = 2 * (errors[0] + errors[1])
        masses = np.exp(logs[0] - error)
        losses = logs[0] - logs[1]
    return np.nan_to_num(masses), losses, np.where(np.isfinite(error), error, np.inf)
