r"""A lower bound on ε of noisy queries: no accountant that is right says less for their events.

*The data sets.* One record's clipped gradient is C in one direction at every step. Its neighbour's is −C (replace_one),
or there is none (add_remove, zero_out). All other gradients are 0. Then a step releases exactly one of the pairs of
``pld.py``, whatever the scheme: a batch of fixed size holds the record with probability b/N. Steps are independent. So
ε of the composed pair, in either order, is a lower bound for every (ε, δ) that holds for all data sets.

*From below.* A curve of a step is drawn that is convex, connects points of a grid, and lies nowhere above the step's
own δ(ε). There is a pair with this curve, which the step dominates. So the composition of such pairs costs no more than
that of the steps. In each cell of the grid a line touches δ, which is convex in e^ε and has the slope −Q(loss > ε); so
δ is above the line. A point of the grid is the lower one of its two cells' lines there. Then a chord between two points
is below its cell's line. The greatest convex minorant of the points is the curve: its slopes are the isotonic
regression of theirs. Lines touch in the middle of a cell; where the cell is too coarse for that, at its end that is
farther from 0.

Mass that wraps around in the Fourier transform, and the transform's rounding, count as no privacy loss.

Steps with almost no noise are left out, which is post-processing too.

Claim: No accountant that is right says less for these events.
Proof: two data sets on which the queries cost as much, and a curve below that of each step.
Held by: test_it_lies_below_pld_and_close_to_it, test_one_step_s_curve_lies_below_its_exact_curve,
test_points_that_are_not_lowered_are_caught, test_dp_accounting_s_bounds_overlap_ours,
test_one_below_the_lower_bound_is_refused_by_name
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import numpy as np

from dpmcmc.privacy.accounting import composition, hockey_stick, pld
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.composition import Composed, Curve
from dpmcmc.privacy.accounting.events import QUERIES, Event, bucket_down
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries
from dpmcmc.privacy.accounting.work import spend

#: Kinds of step that are told apart.
_MOST_KINDS = 64
#: Points of one step's grid, and of all steps'.
_STEP_POINTS = 400_000
_ALL_POINTS = 4_000_000
#: Grids that are tried, each of half the interval, until one sees a loss.
_GRIDS = 4
#: Least share of g at both ends of a cell that a line has which touches in its middle.
_FINE = 0.7
#: Losses beyond it are left out: e^loss has to be a float.
_MOST_LOSS = 600.0
#: Relative error of the closed form of Gaussian queries, generously.
_CLOSED_FORM = 1e-9
_UNIT = 2.0**-53


def epsilon(events: Iterable[Event], adjacency: Adjacency, delta: float) -> float:
    """An ε at ``delta`` that the events exceed or equal, on two data sets; 0 where none is known.

    Args:
        events: noisy queries; other mechanisms are left out.
        adjacency: of the claim.
        delta: in (0, 1).
    """
    parts = [
        # The pair is that of a Poisson-sampled step, whatever the scheme.
        e if e.mechanism == "gaussian" else Event("poisson_gaussian", e.noise_multiplier, e.rate, e.count)
        for e in queries(e for e in events if e.mechanism in QUERIES)
        if e.noise_multiplier >= pld.SMALLEST_Z
    ]
    mu = gaussian_parameter(parts, adjacency)
    sampled = [e for e in parts if e.mechanism != "gaussian"]
    found = [gaussian_epsilon(mu, delta) * (1 - _CLOSED_FORM)]
    if not sampled:
        return found[0]
    kinds = tuple(_fewer([(e.noise_multiplier, e.rate, e.count) for e in sampled]))
    guess = max(pld.rdp.epsilon(parts, adjacency, delta), 1e-3)
    count = sum(e.count for e in sampled)
    # Rounded, so that grids can be shared.
    log_tail = max(-50.0, 5.0 * math.floor(math.log(1e-5 * delta / count) / 5))
    interval = pld.grid_interval(sampled, adjacency, guess, log_tail)
    # Fine enough for the losses of those whose records do not take part, as far as memory allows.
    bulk = min(-math.log1p(-e.rate) for e in sampled) / 2
    span = max(high - low for z, q, _ in kinds for low, high in [hockey_stick.loss_range(z, q, "remove", log_tail)])
    interval = min(interval, max(bulk, min(span, 2 * _MOST_LOSS) / _STEP_POINTS * 2))
    # One order is enough where ε > 0; and a record may also be replaced by one whose gradient is 0.
    for direction in dict.fromkeys((hockey_stick.pair_directions(adjacency)[0], "remove")):
        for halved in range(_GRIDS):
            composed = _composed(kinds, mu, direction, interval / 2**halved, log_tail)
            if composed is None:
                break
            found.append(composed.least_epsilon(delta))
            if found[-1] > 0 or composed.interval > interval / 2**halved:
                break
        if max(found) > 0:
            break
    return max(found)


def _fewer(
    kinds: list[tuple[float, float, int]],
) -> list[tuple[float, float, int]]:
    """Return about ``_MOST_KINDS`` kinds of step. A group has its most noise and its least rate: it reveals less."""
    if len(kinds) <= _MOST_KINDS:
        return sorted(kinds)
    z, rates, counts = (np.array(part) for part in zip(*sorted(kinds), strict=True))
    starts, _ = bucket_down(z, counts, exact_below=_MOST_KINDS, most=_MOST_KINDS)
    group = np.searchsorted(starts, z, side="right")
    members = [group == k for k in np.unique(group)]
    return [(float(z[m].max()), float(rates[m].min()), int(counts[m].sum())) for m in members]


@functools.lru_cache(maxsize=8)
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
        spans = [
            (high - low) / interval
            for low, high in (hockey_stick.loss_range(z, q, way, log_tail) for z, q, way, _ in steps)
        ]
        if max(spans) > _STEP_POINTS or sum(spans) > _ALL_POINTS:
            interval *= 2
            continue
        spend(8 * sum(spans))
        pieces = [(one_step(z, q, way, interval, log_tail), count) for z, q, way, count in steps]
        width = composition.points(pieces)
        if width <= pld.COMPOSED_POINTS:
            spend(width * len(pieces))
            return composition.compose(pieces, interval)
        interval *= 2
    return None


def one_step(z: float, q: float, direction: str, interval: float, log_tail: float) -> Curve:
    """A curve on the grid that one sampled Gaussian step dominates."""
    from scipy.optimize import isotonic_regression  # a tenth of a second to import

    low, high = hockey_stick.loss_range(z, q, direction, log_tail)
    first = min(math.floor(max(low, -_MOST_LOSS) / interval), -2)
    last = max(math.ceil(min(high, _MOST_LOSS) / interval), 2)
    losses = interval * np.arange(first, last + 1)
    lowered = _points_below(losses, z, q, direction)
    # Beyond the grid the curve is that of no loss at all.
    lowered[0] = lowered[-1] = 0.0
    zero = -first
    widths = np.exp(losses[:-1]) * np.expm1(np.diff(losses))
    slopes = np.diff(lowered) / widths
    left = isotonic_regression(slopes[:zero], weights=widths[:zero]).x
    right = isotonic_regression(slopes[zero:], weights=widths[zero:]).x
    lost = 0.0
    if left[-1] - 1 > right[0]:
        # Both sides together, where they would meet in a dent; slopes near −1 lose digits.
        whole = np.append(slopes[:zero] - 1, slopes[zero:])
        whole = isotonic_regression(whole, weights=widths).x
        left = whole[:zero] + 1
        right = whole[zero:]
        lost = 8 * _UNIT * len(losses)
    # Each side from its own end, where it is 0, so that sums lose nothing.
    up = np.append(0.0, np.cumsum(np.maximum(left, 0.0) * widths[:zero]))
    down = np.append(0.0, np.cumsum(np.maximum(-right, 0.0)[::-1] * widths[zero:][::-1]))
    least = min(up[-1], down[-1])
    if least <= 0:
        return Curve(first, np.zeros(len(losses)), 0.0, interval)
    # They meet at the same number, up to rounding; a share of a curve lies below it.
    curve = np.concatenate([up[:-1] * (least / up[-1]), down[::-1] * (least / down[-1])])
    rounding = (2 * len(curve) + 32) * _UNIT * float(np.sum(curve))
    return Curve(first, curve, rounding + lost, interval)


def _points_below(losses: np.ndarray, z: float, q: float, direction: str) -> np.ndarray:
    """Points, (n,), between which chords lie nowhere above g = δ − (1 − e^ε)₊."""
    middle = (losses[:-1] + losses[1:]) / 2
    values, _ = hockey_stick.curve(losses, z, q, direction)
    left, right = _line(middle, losses, z, q, direction)
    fine = (left >= _FINE * values[:-1]) & (right >= _FINE * values[1:])
    fine &= np.minimum(left, right) >= 0
    outer = np.where(losses[:-1] >= 0, losses[1:], losses[:-1])
    far_left, far_right = _line(outer, losses, z, q, direction)
    # A line that touches at the outer end is nowhere negative.
    left = np.where(fine, left, np.maximum(far_left, 0.0))
    right = np.where(fine, right, np.maximum(far_right, 0.0))
    return np.minimum(np.append(left, right[-1]), np.append(left[0], right))


def _line(touch: np.ndarray, losses: np.ndarray, z: float, q: float, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """Values at both ends of each cell, (n − 1,), of lines that lie below g within it; lowered by their rounding.

    Args:
        touch: a loss in each cell, at which its line touches g.
        losses: ends of the cells, (n,).
        z, q, direction: of the step.
    """
    values, errors = hockey_stick.curve(touch, z, q, direction)
    x = hockey_stick.observation(touch, z, q, direction)
    side = np.where(losses[:-1] >= 0, -1.0, 1.0)
    # No loss lies below log(1 − q) where P is the mixture, nor above −log(1 − q) where Q is.
    x = np.where(np.isnan(x), np.inf * -side, x)
    above = hockey_stick.log_tails(x, z, q, direction, -1.0)[1]
    below = hockey_stick.log_tails(x, z, q, direction, 1.0)[1]
    slopes = side * np.exp(np.where(side < 0, above, below))

    def at(ends: np.ndarray) -> np.ndarray:
        moved = slopes * np.exp(touch) * np.expm1(ends - touch)
        return values + moved - errors - 1e-13 * (values + np.abs(moved))

    return at(losses[:-1]), at(losses[1:])
