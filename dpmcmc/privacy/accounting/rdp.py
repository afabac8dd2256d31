r"""Rényi accountant (``accountant: rdp``).

Supported, each with its derivation:

* rate 1, any adjacency: D_α = α Δ²/(2z²), Δ = 1 (add_remove, zero_out) or 2 (replace_one).
* Poisson, add_remove and zero_out: the pair A = (1−q)N(0,1) + qN(c,1), B = N(0,1), c = 1/z
  (Mironov, Talwar and Zhang 2019); both directions are computed and the larger is charged.
* Poisson, replace_one: the pair P₊ = (1−q)N(0,1) + qN(c,1), P₋ = (1−q)N(0,1) + qN(−c,1).
* Fixed size without replacement, replace_one: Wang, Balle and Kasiviswanathan 2019, Theorem 27
  (``rdp.py``).

**The Poisson, replace_one pair dominates.** Fix the other records' selection (joint convexity averages over
it, and it shifts both sides alike). It remains to bound P_u = (1−q)N(0,I) + qN(u,I) against P_{u'}, with
‖u‖, ‖u'‖ ≤ c. For γ ≥ 1 the hockey-stick divergence is

    H_γ(P_u‖P_{u'}) = E[ (q e^X̂ − γq e^Ŷ − (1−q)(γ−1))₊ ],   X̂ = ⟨u,Z⟩ − ‖u‖²/2,  Ŷ = ⟨u',Z⟩ − ‖u'‖²/2.

(1) It falls with Cov(X̂,Ŷ) = ⟨u,u'⟩: by Plackett's identity the derivative is E[∂²/∂X∂Y], and
(a − b − k)₊ has mixed second derivative −δ(a − b − k) ≤ 0 (a point mass) in (a, b), which are increasing in X
and Y. So the antiparallel case is worst. (2) On that line the integrand is positive exactly on a half line
{x > t}, where H = (1−γ)(1−q)Q(t) + q[Q(t − ‖u‖) − γQ(t + ‖u'‖)] increases with both norms for every t: take c and −c.
(3) For γ < 1 use H_γ(P‖Q) = 1 − γ + γH_{1/γ}(Q‖P) and the reflection symmetry of the pair. So the pair
dominates for every γ >= 0, hence for every f-divergence, Rényi included, and under adaptive composition
(Zhu, Dong and Wang 2022, Theorem 10). The same half-line form is linear in q with a nonnegative slope, so an
upper bound on the inclusion probability may be charged for it.

**Quadrature.** E_B[(A/B)^α] is computed by the trapezoid rule on an analytic integrand, whose error is below
2M/(e^{2πa/h} − 1) when the integrand extends to a strip of half-width a and is bounded there by M times its
real values. With θ = c·a the mixtures satisfy |B(x+ia)| >= cos(θ/2)B(x), so M <= e^{a²/2} cos(θ/2)^{−(α−1)};
h is chosen from that bound, so the error is below 1e-20 of the integral. Terms are written so that all
are nonnegative and none cancels.

Claim: A replaced record under Poisson sampling is dominated by one pair of mixtures.
Proof: Plackett's identity, and an integrand that is positive on a half line.
Held by: test_the_replace_one_pair_dominates_every_pair_of_clipped_vectors,
test_renyi_replace_one_matches_high_precision_quadrature, test_an_upper_bound_of_the_rate_may_be_charged

Claim: k queries of fixed size cost at most the stated ε.
Proof: Rényi divergences (Wang, Balle and Kasiviswanathan 2019, Theorem 27).
Held by: test_renyi_fixed_size_matches_dp_accounting_where_it_keeps_its_digits,
test_dp_accounting_agrees_with_what_a_run_states
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.fixed_size_renyi import renyi
from dpmcmc.privacy.accounting.gaussian_queries import queries
from dpmcmc.privacy.accounting.grouping import grouped
from dpmcmc.privacy.accounting.work import spend

#: Orders for Gaussian and Poisson events. The largest serve targets as small as ε = 1e-4.
ORDERS = tuple(1 + np.geomspace(0.02, 1e6, 700))
#: Fixed-size events: the theorem is stated at integers.
INTEGER_ORDERS = tuple(sorted({*range(2, 33), *(int(a) for a in np.geomspace(33, 40_000, 140))}))
# An order far out (α/z > 60) whose quadrature also needs many points is left to the unsampled bound: sampling
# saves little more than log(1/q) there.
_LARGEST_SHIFT = 60.0
_MOST_POINTS = 6000
# Beyond so many kinds of step only every so many-th order is tried: any order gives a bound, and the best of fewer is
# within 0.4 % of the best of all.
_FEW_KINDS = 24
_STRIDE = 7
# One order of one kind of step, and one reading of a composed curve, in points of ``events.py``.
_ORDER_WORK = {"gaussian": 1, "poisson_gaussian": 1000, "fixed_size_gaussian": 5500}
_READ_WORK = 10_000


def epsilon(events: Iterable[Event], adjacency: Adjacency, delta: float) -> float:
    """Smallest ε certified at δ."""
    composed = compose(events, adjacency)
    if composed is None:
        return 0.0
    return certified(*composed, delta)


def certified(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """Smallest ε >= 0 certified at δ by Rényi divergences at ``orders``."""
    if delta <= 0 or not np.any(np.isfinite(divergences)):
        return math.inf
    # The total variation is at most √(1 − e^{−KL}) (Bretagnolle and Huber 1979), and KL at most any of these.
    if np.any(delta**2 + np.expm1(-divergences) > 0):
        return 0.0
    return max(0.0, epsilon_of(orders, divergences, delta))


def epsilon_of(orders: np.ndarray, divergences: np.ndarray, delta: float) -> float:
    """Least ε at δ that Rényi divergences at ``orders`` certify (Canonne, Kamath and Steinke 2020, Proposition 12)."""
    return float(np.min(divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)))


def delta(events: Iterable[Event], adjacency: Adjacency, epsilon: float) -> float:
    """Smallest δ certified at ε >= 0, by the same two bounds."""
    composed = compose(events, adjacency)
    if composed is None:
        return 0.0
    orders, rdp = composed
    converted = (orders - 1) * (rdp - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return min(
        math.sqrt(-math.expm1(-float(np.min(rdp)))),
        math.exp(min(0.0, float(np.min(converted)))),
    )


def compose(events: Iterable[Event], adjacency: Adjacency) -> tuple[np.ndarray, np.ndarray] | None:
    """(orders, total Rényi divergence), or None for an empty list of queries."""
    parts = grouped(queries(events))
    if not parts:
        return None
    spend(_READ_WORK)
    integer = any(e.mechanism == "fixed_size_gaussian" for e in parts)
    orders = np.array(INTEGER_ORDERS if integer else ORDERS, np.float64)
    if len(parts) > _FEW_KINDS:
        orders = orders[:: 2 if integer else _STRIDE]
    total = np.zeros_like(orders)
    for e in parts:
        total += e.count * one_step(e, adjacency, tuple(orders))
    return orders, total


def check(events: Iterable[Event], adjacency: Adjacency) -> None:
    """Raise UnsupportedCombination for a pair without a derivation."""
    for e in queries(events):
        if e.mechanism == "fixed_size_gaussian" and adjacency != Adjacency.REPLACE_ONE:
            raise UnsupportedCombination(
                f"accountant rdp has no derivation for fixed_size sampling under {adjacency}: replacing the "
                "batch's record by another one moves the sum by up to 2C. Use adjacency replace_one (it "
                "covers zero_out: a zero gradient is one of the values a replacement can take) or poisson.",
                "accountant",
            )


@functools.lru_cache(maxsize=4096)
def _one_step(
    mechanism: str,
    z: float,
    rate: float,
    n: int | None,
    adjacency: Adjacency,
    orders: tuple,
) -> tuple:
    alpha = np.array(orders)
    spend(_ORDER_WORK.get(mechanism, 1) * len(orders))
    if z == 0:
        return tuple(np.full_like(alpha, np.inf))
    unsampled = alpha * (adjacency.sensitivity / z) ** 2 / 2
    if mechanism == "gaussian":
        return tuple(unsampled)
    if mechanism == "fixed_size_gaussian":
        assert n is not None
        return tuple(np.minimum(renyi(z, rate, orders), unsampled))
    # Rényi divergence is jointly quasi-convex, so sampling never exceeds the unsampled bound.
    sampled = [_poisson_rdp(z, rate, a, adjacency == Adjacency.REPLACE_ONE) for a in orders]
    return tuple(np.minimum(sampled, unsampled))


def one_step(event: Event, adjacency: Adjacency, orders: Sequence[float]) -> np.ndarray:
    """Rényi divergence of one repetition of ``event`` at each order."""
    check([event], adjacency)
    return np.array(
        _one_step(
            event.mechanism,
            event.noise_multiplier,
            event.rate,
            event.num_records,
            adjacency,
            tuple(orders),
        )
    )


def quadrature_grid(c: float, alpha: float) -> tuple[np.ndarray, float] | None:
    """(points, spacing) for D_α between mixtures of N(0, 1) and Gaussians moved by at most c; derived above.

    None where the points are so many that only the unsampled bound is of use.
    """
    theta = min(math.pi / 2, math.sqrt(8 / alpha))
    a = min(theta / c, 6.0)
    growth = a * a / 2 - (alpha - 1) * math.log(math.cos(min(theta, c * a) / 2))
    h = 2 * math.pi * a / (46.0 + 5.0 + growth)
    reach = alpha * c + 16
    if alpha * c > _LARGEST_SHIFT and 2 * reach / h > _MOST_POINTS:
        return None
    return np.arange(-reach, reach + h, h), h


def _poisson_rdp(z: float, q: float, alpha: float, replace_one: bool) -> float:
    """D_α of the dominating pair by quadrature; inf where only the unsampled bound is of use."""
    c = 1.0 / z
    grid = quadrature_grid(c, alpha)
    if grid is None:
        return math.inf
    x, h = grid
    log_phi = -0.5 * x * x - 0.5 * math.log(2 * math.pi)
    up = c * x - c * c / 2
    down = -c * x - c * c / 2
    log_keep = math.log1p(-q)
    log_q = math.log(q)
    log_a = np.logaddexp(log_keep, log_q + up)
    if replace_one:
        log_b = np.logaddexp(log_keep, log_q + down)
        # A − B = q e^{−c²/2} 2 sinh(cx), in logarithms: at small z either factor alone leaves the floats.
        size = np.abs(c * x)
        with np.errstate(divide="ignore"):
            log_size = log_q - c * c / 2 + size + np.log(-np.expm1(-2 * size)) - log_b
        ratio = np.sign(x) * np.exp(np.minimum(log_size, 700))
        return _log_moment(log_phi + log_b, ratio, log_a - log_b, alpha, h)
    with np.errstate(over="ignore"):
        excess = q * np.expm1(np.minimum(up, 700))
    forward = _log_moment(log_phi, excess, log_a, alpha, h)
    backward = _log_moment(log_phi + log_a, -excess * np.exp(-log_a), -log_a, alpha, h)
    return max(forward, backward)


def _log_moment(log_weight: np.ndarray, r: np.ndarray, log1p_r: np.ndarray, alpha: float, h: float) -> float:
    """log E[(1+r)^α]/(α−1) under density exp(log_weight), with E[r] = 0.

    E[(1+r)^α] − 1 = E[(1+r)^α − 1 − αr], whose integrand is nonnegative by Bernoulli's inequality, so tiny
    divergences keep their relative precision.
    """
    # r is exact where small, its logarithm where large; each is taken from the other elsewhere.
    close = np.abs(log1p_r) < 0.3
    exponent = alpha * np.where(close, np.log1p(np.clip(r, -0.5, 0.5)), log1p_r)
    r = np.where(close, r, np.expm1(np.minimum(log1p_r, 700)))
    big = exponent > 30
    small = np.abs(alpha * r) < 1e-2
    value = np.zeros_like(r)
    rs = r[small]
    # Binomial series; with |αr| < 0.01 the first dropped term is below 1e-12 of the first kept one.
    term = alpha * (alpha - 1) / 2 * rs * rs
    series = term.copy()
    for k in range(3, 9):
        term = term * (alpha - k + 1) / k * rs
        series += term
    value[small] = series
    middle = ~small & ~big
    value[middle] = np.expm1(exponent[middle]) - alpha * r[middle]
    ordinary = float(np.sum(np.exp(log_weight[~big]) * np.maximum(value[~big], 0.0))) * h
    log_excess = math.log(ordinary) if ordinary > 0 else -math.inf
    if big.any():
        # (1+r)^α alone is an upper bound of (1+r)^α − 1 − αr here, since r > 0.
        logs = log_weight[big] + exponent[big]
        top = float(logs.max())
        log_excess = float(
            np.logaddexp(
                log_excess,
                top + math.log(float(np.sum(np.exp(logs - top)))) + math.log(h),
            )
        )
    log_value = math.log1p(math.exp(log_excess)) if log_excess < 30 else log_excess + math.exp(-log_excess)
    # A part in 1e12 for the rounding of the sum itself, on the private side.
    return log_value * (1 + 1e-12) / (alpha - 1)
