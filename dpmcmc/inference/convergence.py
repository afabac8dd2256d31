"""Effective sample size and split R-hat of released draws (Gelman et al., BDA3), by NumPyro."""

from __future__ import annotations

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

from dpmcmc.storage.pytree import PyTree

#: Numbers looked at together: both diagnostics hold several float64 copies of what they are given.
_NUMBERS_AT_ONCE = 2**24


def summary(draws: PyTree) -> dict[str, float | None]:
    """Smallest ESS and largest split R-hat over all coordinates.

    Args:
        draws: pytree, leaves (chains, draws, ...).

    Returns:
        ``{"ess": ..., "rhat": ...}``; None with fewer than 4 draws a chain or where draws do not move.
    """
    ess, rhat = [], []
    for leaf in jax.tree.leaves(draws):
        flat = np.asarray(leaf).reshape(*leaf.shape[:2], -1)
        if flat.shape[1] < 4:
            return {"ess": None, "rhat": None}
        width = max(1, _NUMBERS_AT_ONCE // (flat.shape[0] * flat.shape[1]))
        for start in range(0, flat.shape[2], width):
            array = flat[..., start : start + width].astype(np.float64)
            moving = array.std(axis=(0, 1)) > 0
            if moving.any():
                with np.errstate(all="ignore"):  # a statistic that needs more draws is not finite, and None below
                    ess.append(float(np.min(effective_sample_size(array[..., moving]))))
                    rhat.append(float(np.max(split_gelman_rubin(array[..., moving]))))
    # An estimate below zero says that the chains are too short for one.
    if not ess or min(ess) <= 0 or not np.all(np.isfinite(ess + rhat)):
        return {"ess": None, "rhat": None}
    return {"ess": min(ess), "rhat": max(rhat)}
