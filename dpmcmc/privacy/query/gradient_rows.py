"""Gradients of all records at a public point, one row each: what the second moment of a metric is taken of."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.privacy.query.per_record_gradients import Model
from dpmcmc.storage.compiled_programs import RUN_ONCE
from dpmcmc.storage.pytree import PyTree, length_of

#: Rows at once; every block has as many, so that a row's rounding does not depend on its place.
_ROWS = 512


def gradient_rows(model: Model, params: PyTree, records: PyTree) -> np.ndarray:
    """Return −∇ log p(record | params) raveled, (N, p) float32. Private: it must not leave.

    Args:
        model: with a log-likelihood of one record.
        params: public point.
        records: pytree, leaves (N, ...).
    """

    def row(record: PyTree) -> jax.Array:
        return ravel_pytree(jax.grad(lambda p: -model.log_likelihood(p, record))(params))[0]

    rows = jax.jit(jax.vmap(row), compiler_options=RUN_ONCE)
    count = length_of(records)
    last = np.arange(_ROWS)
    found = []
    for i in range(0, count, _ROWS):
        at = np.minimum(i + last, count - 1)
        block = jax.tree.map(lambda leaf, at=at: jnp.asarray(np.asarray(leaf)[at]), records)
        found.append(np.asarray(rows(block))[: count - i])
    return np.concatenate(found)
