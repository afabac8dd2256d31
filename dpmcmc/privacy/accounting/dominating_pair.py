r"""Hockey-stick curves of one Poisson-sampled Gaussian step, vectorised over ε.

With c = 1/z and q the rate, the loss is an increasing function of the observed x ~ P in every case, so
δ(ε) = P(x > x*) − e^ε Q(x > x*) with x* where the loss equals ε:

* ``replace``: P = (1−q)N(0)+qN(c), Q = (1−q)N(0)+qN(−c);  c·x* = ε/2 + asinh((1−q)/q · e^{c²/2} · sinh(ε/2))
* ``remove``:  P = (1−q)N(0)+qN(c), Q = N(0);               c·x* = log((e^ε − (1−q)) / q) + c²/2
* ``add``:     P = N(0),            Q = (1−q)N(0)+qN(−c);   c·x* = −log((e^−ε − (1−q)) / q) − c²/2
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from dpmcmc.privacy.accounting.adjacency import Adjacency


def directions(adjacency: Adjacency) -> tuple[str, ...]:
    """Return the pairs to compose: both orders where the pair is not its own mirror image."""
    return ("replace",) if adjacency == Adjacency.REPLACE_ONE else ("remove", "add")


def loss_range(z: float, q: float, direction: str, log_tail: float) -> tuple[float, float]:
    """(lowest, highest) loss outside which P has mass at most e^log_tail on either side."""
    c = 1 / z
    reach = -float(ndtri_exp(log_tail))
    shifted = 0.0 if direction == "add" else c
    return _loss(-reach, c, q, direction), _loss(shifted + reach, c, q, direction)


def excess(epsilons: np.ndarray, z: float, q: float, direction: str) -> np.ndarray:
    """g(ε) = δ(ε) − (1 − e^ε)₊ of one step at each ε, float64, >= 0.

    For ε >= 0 it is δ; for ε < 0 it is e^ε·H_{e^−ε}(Q‖P), computed from lower tails, so that a
    discretisation that takes differences of it loses nothing to the 1 that δ tends to there.
    """
    c = 1 / z
    eps = np.asarray(epsilons, np.float64)
    log_keep, log_q = _logs(q)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if direction == "replace":
            half = np.abs(eps) / 2
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            log_u = log_keep - log_q + c * c / 2 + log_sinh
            size = np.where(log_u > 20, log_u + math.log(2), np.arcsinh(np.exp(np.minimum(log_u, 20))))
            x = (eps / 2 + np.sign(eps) * size) / c
        elif direction == "remove":
            x = (_log_excess(eps, log_keep) - log_q + c * c / 2) / c
        else:
            x = (-_log_excess(-eps, log_keep) + log_q - c * c / 2) / c

        def log_tail(side: float, shift: float) -> np.ndarray:
            """log of a tail of (1−q)N(0) + qN(shift): above x for side −1, below it for side +1."""
            if shift == 0:
                return log_ndtr(side * x)
            return np.logaddexp(log_keep + log_ndtr(side * x), log_q + log_ndtr(side * (x - shift)))

        p_shift, q_shift = {"replace": (c, -c), "remove": (c, 0.0), "add": (0.0, -c)}[direction]
        above = difference(log_tail(-1.0, p_shift), eps + log_tail(-1.0, q_shift))
        below = difference(eps + log_tail(1.0, q_shift), log_tail(1.0, p_shift))
        value = np.where(eps >= 0, above, below)
    if direction == "remove":  # no outcome has a loss below log(1−q)
        value = np.where(eps <= log_keep, 0.0, value)
    if direction == "add":  # nor one above −log(1−q) here
        value = np.where(eps >= -log_keep, 0.0, value)
    return np.maximum(np.nan_to_num(value, nan=1.0), 0.0)


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
