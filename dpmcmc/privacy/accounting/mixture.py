r"""k records of one Poisson-sampled Gaussian step, under add_remove or zero_out.

How many of the k take part is Binomial(k, q), and each that does moves the clipped sum by at most C. In units of C:

    P = Σ_j Bin(k, q)(j) · N(j, z²),      Q = N(0, z²),      in both orders.

*Why this pair dominates, for vectors chosen adaptively.* Given which OTHER records take part, the real pair is
P = Σ_S p_S N(v_S, z²I) and Q = N(0, z²I), over subsets S of the k, with ‖v_S‖ <= |S|. Under Q the likelihood ratio is
Σ p_S exp(X_S − Var X_S/2), X_S = ⟨v_S, ·⟩/z² centred Gaussian with Cov(X_S, X_T) <= |S||T|/z², the covariance of
Y_S = |S|·g/z. By Kahane's convexity inequality (1985), E φ(Σ p_S e^{X_S − Var X_S/2}) <= E φ(Σ p_S e^{Y_S − Var Y_S/2})
for every convex φ; φ(r) = (r − e^ε)₊ and (1 − e^ε r)₊ are the two orders. (The pair: Ganesh 2024, arXiv 2401.10294.)
The same inequality, with |S| coupled below J ~ Bin(k, q'), allows for a generator that is not exactly independent: the
charged rate q' bounds a record's chance given ALL others (``sampling.py``), so |S| is at most J in law. The other
records' selection has one law on both sides, an average over it is jointly convex, and dominated steps compose
adaptively (Zhu, Dong and Wang 2022, Theorem 10).

Where records differ on both sides (replace_one, or some that leave while others join) both laws are mixtures and the
inequality says nothing: such a pair is not offered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy
from scipy.special import log_ndtr, logsumexp, ndtri_exp

from dpmcmc.privacy.accounting import loss_distribution
from dpmcmc.privacy.accounting.dominating_pair import difference
from dpmcmc.privacy.accounting.effort import spend

_DIRECTIONS = ("remove", "add")
_STEP_POINTS = 30_000
_COMPOSED_POINTS = 3_000_000
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
    terms = log_weight + sign * np.multiply.outer(np.asarray(x, np.float64), j) / z - (j / z) ** 2 / 2
    return sign * logsumexp(terms, axis=-1)


def excess(epsilons: np.ndarray, z: float, q: float, k: int, direction: str) -> np.ndarray:
    """g(ε) = δ(ε) − (1 − e^ε)₊ of one step at each ε, (n,) float64, as ``dominating_pair.excess``."""
    eps = np.asarray(epsilons, np.float64)
    j, log_weight = _weights(q, k)
    # Where the loss equals ε, by bisection; an error of it enters δ by its square.
    low, high = np.full(eps.shape, -60.0), np.full(eps.shape, 60.0 + k / z)
    for _ in range(64):
        middle = (low + high) / 2
        below = loss(middle, z, q, k, direction) < eps
        low, high = np.where(below, middle, low), np.where(below, high, middle)
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
        value = np.where(eps >= 0, difference(p_above, q_above), difference(q_below, p_below))
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
    composed = _composed(tuple(steps), mu, k, _interval(steps, k, epsilon, log_tail), log_tail)
    if composed is None:
        return None
    # Against rounding of the Fourier transform, as in ``pld.py``.
    slack = 4 * 2.0**-52 * count

    def at(e: float) -> float:
        return min(1.0, max(order.delta(e) for order in composed) + slack)

    return at


@functools.lru_cache(maxsize=4)
def _composed(
    steps: tuple[tuple[float, float, int], ...], mu: float, k: int, interval: float, log_tail: float
) -> tuple[loss_distribution.Composed, ...] | None:
    for _ in range(8):
        orders = []
        for direction in _DIRECTIONS:
            pieces = [(_one_step(z, q, k, direction, interval, log_tail), count) for z, q, count in steps]
            if mu > 0:
                pieces.append((loss_distribution.one_step(1 / mu, 1.0, "remove", interval, log_tail), 1))
            orders.append(pieces)
        points = sum(w.high - w.low for w in (loss_distribution.window(*piece) for piece in orders[0]))
        if points <= _COMPOSED_POINTS:
            spend(points * len(orders) * len(orders[0]))
            return tuple(loss_distribution.compose(pieces, interval) for pieces in orders)
        interval *= 2
    return None


def _one_step(z: float, q: float, k: int, direction: str, interval: float, log_tail: float) -> loss_distribution.Masses:
    """One step on a grid; P-mass up to e^log_tail on either side goes to its ends."""
    low, high = _range(z, q, k, direction, log_tail)
    # Sixty-four bisections, each a sum over who takes part.
    spend(10 * (k + 1) * (high - low) / interval)
    return loss_distribution.on_grid(lambda losses: excess(losses, z, q, k, direction), low, high, interval)


def _range(z: float, q: float, k: int, direction: str, log_tail: float) -> tuple[float, float]:
    """(lowest, highest) loss outside which P has mass at most e^log_tail on either side."""
    reach = -float(ndtri_exp(log_tail))
    # Above it lies at most the tail of the component that is shifted most.
    ends = np.array([-reach, reach + (k / z if direction == "remove" else 0.0)])
    low, high = loss(ends, z, q, k, direction)
    return float(low), float(high)


def _interval(steps: list[tuple[float, float, int]], k: int, epsilon: float, log_tail: float) -> float:
    """Grid spacing: well inside one step's loss and far below the answer; a power of two, so that it is shared."""
    z, q, _ = min(steps)
    x = np.linspace(-10, 10 + k / z, 4001)
    mass = np.exp(-(x**2) / 2 + np.minimum(loss(x, z, q, k, "remove"), 700))
    spread = math.sqrt(float(np.average(loss(x, z, q, k, "remove") ** 2, weights=mass)))
    span = max(high - low for low, high in (_range(z, q, k, d, log_tail) for d in _DIRECTIONS))
    wanted = min(1e-3 * min(max(epsilon, 1e-6), 50.0), 0.15 * spread)
    return 2.0 ** math.floor(math.log2(max(wanted, span / _STEP_POINTS, 5e-7)))


def _weights(q: float, k: int) -> tuple[np.ndarray, np.ndarray]:
    """(number taking part, log of its probability), each (k + 1,)."""
    j = np.arange(k + 1)
    return j.astype(np.float64), scipy.stats.binom.logpmf(j, k, q)
