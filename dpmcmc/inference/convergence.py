"""Effective sample size and split R-hat of released draws (Gelman et al., BDA3).

They are NumPyro's numbers, without its import, which takes longer than many runs.
"""

from __future__ import annotations

import jax
import numpy as np

from dpmcmc.storage.pytree import PyTree

#: Most numbers passed at once, since both diagnostics make several float64 copies of them.
NUMBERS_AT_ONCE = 2**24


def summary(draws: PyTree) -> dict[str, float | None]:
    """Smallest ESS and largest split R-hat over all coordinates.

    Args:
        draws: pytree, leaves (chains, draws, ...).

    Returns:
        ``{"ess": ..., "rhat": ...}``; None with fewer than 4 draws a chain or where draws do not move.
    """
    found = zip(*map(each, jax.tree.leaves(draws)), strict=True)
    ess, rhat = map(np.concatenate, found)
    moving = ~np.isnan(ess)
    ess = ess[moving]
    rhat = rhat[moving]
    # An estimate below zero means that the chains are too short for one.
    if not len(ess) or not np.all(np.isfinite(ess) & np.isfinite(rhat)) or ess.min() <= 0:
        return {"ess": None, "rhat": None}
    return {"ess": float(ess.min()), "rhat": float(rhat.max())}


def each(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (ESS, split R-hat) of every coordinate of draws (chains, draws, ...), flat.

    Both are NaN for a coordinate that does not move and for fewer than 4 draws a chain, and infinite where more draws
    are needed.
    """
    flat = np.asarray(draws).reshape(*draws.shape[:2], -1)
    ess, rhat = np.full((2, flat.shape[2]), np.nan)
    if flat.shape[1] < 4:
        return ess, rhat
    width = max(1, NUMBERS_AT_ONCE // (flat.shape[0] * flat.shape[1]))
    for start in range(0, flat.shape[2], width):
        block = slice(start, start + width)
        array = flat[..., block].astype(np.float64)
        moving = array.std(axis=(0, 1)) > 0
        with np.errstate(all="ignore"):
            found = _effective_size(array), _rhat(array)
        ess[block], rhat[block] = (
            np.where(moving, np.where(np.isnan(values), np.inf, values), np.nan) for values in found
        )
    return ess, rhat


def _effective_size(draws: np.ndarray) -> np.ndarray:
    """Effective sample size of draws (chains, draws, k), by the initial monotone sequence (Geyer 1992)."""
    chains, count = draws.shape[:2]
    away = draws - draws.mean(axis=1, keepdims=True)
    power = np.abs(np.fft.rfft(away, 2 * count, axis=1)) ** 2
    covariance = np.fft.irfft(power, axis=1)[:, :count].mean(axis=0) / count
    within, estimate = _variances(draws)
    correlation = 1 - ((within if chains > 1 else estimate) - covariance) / estimate
    correlation[0] = 1.0
    pairs = correlation[:-1:2] + correlation[1::2]
    pairs[1:] = np.minimum.accumulate(np.maximum(pairs[1:], 0.0), axis=0)
    return chains * count / (2 * pairs.sum(axis=0) - 1)


def _rhat(draws: np.ndarray) -> np.ndarray:
    half = draws.shape[1] // 2
    within, estimate = _variances(np.concatenate([draws[:, :half], draws[:, -half:]]))
    return np.sqrt(estimate / within)


def _variances(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean variance within chains, and the estimate of the posterior's, (k,) each, of draws (chains, draws, k)."""
    count = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    estimate = within * (count - 1) / count
    if len(draws) > 1:
        estimate = estimate + draws.mean(axis=1).var(axis=0, ddof=1)
    return within, estimate
