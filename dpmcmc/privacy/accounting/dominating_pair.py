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


def directions(adjacency: str) -> tuple[str, ...]:
    """Which pairs to compose: both orders where the pair is not its own mirror image."""
    return ("replace",) if adjacency == "replace_one" else ("remove", "add")


def loss_range(z: float, q: float, direction: str, log_tail: float) -> tuple[float, float]:
    """(lowest, highest) loss outside which P has mass at most e^log_tail on either side."""
    c = 1 / z
    reach = -float(ndtri_exp(log_tail))
    shifted = 0.0 if direction == "add" else c
    return _loss(-reach, c, q, direction), _loss(shifted + reach, c, q, direction)


def deltas(epsilons: np.ndarray, z: float, q: float, direction: str) -> np.ndarray:
    """δ(ε) of one step at each ε, decreasing; float64, clipped to [0, 1]."""
    c = 1 / z
    eps = np.asarray(epsilons, np.float64)
    log_keep, log_q = math.log1p(-q), math.log(q)
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
        unsampled = log_keep + log_ndtr(-x)
        if direction == "add":
            upper = log_ndtr(-x)
        else:
            upper = np.logaddexp(unsampled, log_q + log_ndtr(c - x))
        if direction == "remove":
            lower = eps + log_ndtr(-x)
        else:
            lower = eps + np.logaddexp(unsampled, log_q + log_ndtr(-c - x))
        value = np.where(lower < upper, np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0)), 0.0)
    if direction == "remove":  # below log(1−q) no outcome has so low a loss
        value = np.where(eps <= log_keep, -np.expm1(eps), value)
    if direction == "add":  # nor one above −log(1−q) here
        value = np.where(eps >= -log_keep, 0.0, value)
    return np.clip(np.nan_to_num(value, nan=1.0), 0.0, 1.0)


def _log_excess(eps: np.ndarray, log_keep: float) -> np.ndarray:
    """log(e^ε − (1−q)); −inf (or nan) where it is not positive."""
    return eps + np.log(-np.expm1(np.minimum(log_keep - eps, 0.0)))


def _loss(x: float, c: float, q: float, direction: str) -> float:
    log_keep, log_q = math.log1p(-q), math.log(q)
    up = float(np.logaddexp(log_keep, log_q + c * x - c * c / 2))
    down = float(np.logaddexp(log_keep, log_q - c * x - c * c / 2))
    return {"replace": up - down, "remove": up, "add": -down}[direction]
