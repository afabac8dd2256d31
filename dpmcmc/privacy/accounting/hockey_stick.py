"""Hockey-stick curves of one Poisson-sampled Gaussian step, vectorised over ε.

With c = 1/z and q the rate, the loss is an increasing function of the observed x ~ P in every case, so
δ(ε) = P(x > x*) − e^ε Q(x > x*) with x* where the loss equals ε:

* ``replace``: P = (1−q)N(0)+qN(c), Q = (1−q)N(0)+qN(−c);  c·x* = ε/2 + asinh((1−q)/q · e^{c²/2} · sinh(ε/2))
* ``remove``:  P = (1−q)N(0)+qN(c), Q = N(0);               c·x* = log((e^ε − (1−q)) / q) + c²/2
* ``add``:     P = N(0),            Q = (1−q)N(0)+qN(−c);   c·x* = −log((e^−ε − (1−q)) / q) − c²/2
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.composition import (
    Curve,
    on_grid,
)

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
