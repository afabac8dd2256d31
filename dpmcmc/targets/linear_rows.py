"""Rows of generalised linear models: norms and aligned copies once a run, clipped sums at each step.

A record's gradient is a residual times its row x, so its norm is |residual|·‖x‖, and no record's gradient is formed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpmcmc.privacy.query import fixed_point
from dpmcmc.privacy.query.fixed_point import FixedPoint

#: Numbers that one vector instruction takes; a row that is no multiple of it ends in single ones, a sixth of the step.
_LANES = 8
#: A copy is not made where it would be longer than the row by more than this, nor of more than so many bytes.
_LONGER = 1 / 8
_COPIED = 1 << 30


def prepared(records: Any) -> Any:
    """Records with ``x_norm`` (N,), the norm of each row of x, and ``x_aligned``, x with columns of zeros.

    Args:
        records: ``{"x": (N, d), ...}``; x_aligned is left out where d is a multiple of 8, or zeros would cost more.
    """
    x = fixed_point.as_float(jnp.asarray(records["x"]))
    more = {"x_norm": fixed_point.row_norms(x)}
    short = -x.shape[1] % _LANES
    if 0 < short <= _LONGER * x.shape[1] and x.nbytes <= _COPIED:
        more["x_aligned"] = jnp.pad(x, ((0, 0), (0, short)))
    return {**records, **more}


def clipped_gradient_sum(
    residual: Callable[[jax.Array, jax.Array], jax.Array],
    params: jax.Array,
    batch: Any,
    mask: jax.Array,
    clip: fixed_point.Clip,
    bits: int,
) -> FixedPoint:
    """Σ clip(residual(x·θ, y)·x) over unmasked rows, exactly summed.

    Args:
        residual: (margins x·θ (n,), y (n,)) -> (n,).
        params: θ, (d,).
        batch: ``{"x": (n, d), "y": (n,)}``, with or without what :func:`prepared` adds.
        mask: (n,) bool.
        clip: C.
        bits: grid exponent; ``result.to_float(clip, bits)`` has shape (d,).
    """
    x = batch.get("x_aligned", batch["x"])
    margin = x @ jnp.pad(params, (0, x.shape[1] - params.shape[0]))
    total = fixed_point.linear_sum(residual(margin, batch["y"]), x, mask, clip, bits, batch.get("x_norm"))
    return FixedPoint(*(limb[: params.shape[0]] for limb in total))
