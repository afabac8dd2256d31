"""Exact draws from the Gaussian posterior of a linear regression, in float64.

On a ball they are those of the whole posterior that fall into it (rejection): exact, and slow where few do.
"""

from __future__ import annotations

import math

import jax
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.mechanisms.engines.protocol import DrawError, Wanted
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.tempered import Tempered

EXACT = True
ASSUMES = "draws are exact, which they are up to float64 rounding."
#: Candidates in all, and at a time.
MOST_TRIES = 1 << 20
_AT_ONCE = 1 << 12


def check(target: Target) -> None:
    """Raise ValueError unless the target is a linear regression."""
    if type(target) is not LinearRegression:
        raise InputError(
            f"engine: closed_form draws from the posterior of LinearRegression, and the target is "
            f"{type(target).__name__}; use nuts",
            "engine",
        )


def draw(target: Tempered, records: PyTree, wanted: Wanted, streams: Streams) -> np.ndarray:
    """Return exact draws, (draws, d) float64; ``steps`` is not used.

    Args:
        target: bound, around a linear regression.
        records: ``{"x": (N, d), "y": (N,)}``.
        wanted: how many, and where.
        streams: secret keys; ``noise`` is used.

    Raises:
        DrawError: too few candidates fell into the ball.
    """
    mean, covariance = target.posterior(records)
    factor = np.linalg.cholesky(covariance)
    limit = math.inf if wanted.radius is None else wanted.radius
    generator = _generator(streams.noise)
    kept: list[np.ndarray] = []
    count = 0
    for _ in range(MOST_TRIES // _AT_ONCE):
        size = wanted.draws if math.isinf(limit) else _AT_ONCE
        candidates = mean + generator.standard_normal((size, len(mean))) @ factor.T
        inside = candidates[np.linalg.norm(candidates, axis=1) <= limit]
        kept.append(inside)
        count += len(inside)
        if count >= wanted.draws:
            return np.concatenate(kept)[: wanted.draws]
    raise DrawError(
        f"radius: of {MOST_TRIES} draws from the posterior fewer than {wanted.draws} lie within {limit:g}; take "
        "engine nuts. Nothing was released"
    )


def _generator(key: jax.Array) -> np.random.Generator:
    """Return float64 normals of a secret key: Philox, counter-based, keyed by 128 bits drawn with it."""
    words = np.asarray(jax.random.bits(key, (2,), np.uint32)).astype(np.uint64)
    return np.random.Generator(np.random.Philox(key=int(words[0]) << 32 | int(words[1])))
