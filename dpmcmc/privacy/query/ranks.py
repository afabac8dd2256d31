"""Ranks of random words among the thresholds of a table: how an integer table becomes a draw."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.accounting.sampling import WORD

#: A table is looked up by a word's leading bits, and then by bisection among the thresholds that share them.
_GUIDE_BITS = 13


def rank(thresholds: np.ndarray, words: jax.Array) -> jax.Array:
    """How many thresholds are <= each word."""
    below, most, shift = _guide(thresholds.tobytes())
    found = jnp.asarray(below)[words >> shift].astype(jnp.int32)
    for step in (1 << k for k in reversed(range(most.bit_length()))):
        further = found + step
        last = jnp.asarray(thresholds).at[further - 1].get(mode="clip")
        found = jnp.where((further <= len(thresholds)) & (last <= words), further, found)
    return found


@functools.lru_cache(maxsize=128)
def _guide(thresholds: bytes) -> tuple[np.ndarray, int, np.uint32]:
    """(thresholds <= the least word of each bucket, most thresholds within a bucket, shift from word to bucket)."""
    values = np.frombuffer(thresholds, np.uint32)
    bits = min(len(values).bit_length() + 5, _GUIDE_BITS)
    shift = np.uint32(32 - bits)
    starts = np.arange(1 << bits, dtype=np.uint32) << shift
    below = np.searchsorted(values, starts, side="right").astype(np.int32)
    through = np.append(below[1:], np.int32(np.searchsorted(values, WORD - 1, side="right")))
    # A threshold on the least word of the next bucket counts there; looked at here too, it is above every word.
    # In few bytes, which a device reads once a word.
    return (
        below.astype(np.min_scalar_type(len(values))),
        int(np.max(through - below, initial=0)),
        shift,
    )
