"""A batch's clipped sum in one pass over its rows: a kernel for GPUs, used only with ``DPMCMC_ROW_KERNEL=1``.

Without it a GPU reads each row of a batch twice: for its margin, and for the sum, whose weights need the margins.
Here a thread block reads ``_NUMBERS`` numbers of a linear model's rows once, keeps them in registers, and adds up
what it has clipped. Rows that are not selected are not read. The sums are those of ``exact_sums.py``: integers on
the same grid, added exactly, so their order changes nothing.

* A row's norm is that of the numbers scaled. Its residual is one value of the kernel, computed once and kept in a
  register; operations of XLA would compute it again (``fixed_point.held``). Norms of x come with the records.
* Interpreted, the kernel gives the same bits as the plain path where margins are exact (``tests/test_row_kernel.py``).
  On a device it adds margins up in another order than the plain path, as any two devices do.

No device has measured it, so it is off. A run's self-test compares it with the plain path in NumPy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from dpmcmc.privacy.query import exact_sums
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.privacy.query.per_record_gradients import LINEAR_ROWS
from dpmcmc.privacy.query.query import GradientQuery, StepRandomness
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

#: Numbers of rows that a thread block keeps in registers, its warps, and the longest row that it takes.
_NUMBERS, _WARPS, _LONGEST = 16384, 16, 1024
#: Reference to an array in the device's memory, for which Pallas has no public type.
Ref = Any
#: (margins, labels, norms of rows) -> residuals.
Residual = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


class RowKernelQuery(GradientQuery):
    """A query that sums by the kernel where it can: a linear model's selected rows, clipped to a known C."""

    def gradient_sum(self, params: PyTree, records: PyTree, draws: StepRandomness) -> FixedPoint:
        """Sum as of :class:`GradientQuery`."""
        weighted = getattr(self.target, "weighted_residual", None)
        indices, mask = draws.batch
        linear = weighted is not None and "x_norm" in records and records["x"].shape[1] <= _LONGEST
        if not linear or self.metric is not None or indices is None or mask is None or len(indices) > LINEAR_ROWS:
            return super().gradient_sum(params, records, draws)
        self._check_rows(records, draws)
        assert isinstance(self.clip, float)
        assert weighted is not None
        residual = functools.partial(weighted, clip=self.clip if self.label_blind else None)
        total = linear_sum(residual, params, records, (indices, mask), self.clip, self.bits)
        return total if self.axis is None else total.across(self.axis)


def linear_sum(
    residual: Residual,
    params: Float[jax.Array, " d"],
    records: PyTree,
    batch: tuple[Int[jax.Array, " n"], Bool[jax.Array, " n"]],
    clip: float,
    bits: int,
    interpret: bool = False,
) -> FixedPoint:
    """Σ clip(residual(x·θ, y, ‖x‖)·x) over the selected rows, exactly summed.

    Args:
        residual: of a linear model, weighted where it is label-blind.
        params: θ, (d,).
        records: as the model has prepared them: x, or x_aligned with columns of zeros; x_norm; y.
        batch: places of rows, and whether each is selected.
        clip: C.
        bits: grid exponent.
        interpret: whether to run the kernel on a CPU, operation by operation.
    """
    x, (places, mask) = records["x_aligned"].table if "x_aligned" in records else records["x"], batch
    columns = pl.next_power_of_2(x.shape[1])
    height = min(_NUMBERS // columns, exact_sums.BLOCK_ROWS)
    blocks = -(-places.shape[0] // height)

    def sum_block(places: Ref, mask: Ref, params: Ref, x: Ref, norms: Ref, y: Ref, total: Ref) -> None:
        at, column = pl.program_id(0) * height + jnp.arange(height), jnp.arange(columns)
        taken = triton.load(mask.at[at], mask=at < mask.shape[0], other=False)
        row = triton.load(places.at[at], mask=taken, other=0)
        theta = triton.load(params.at[column], mask=column < params.shape[0], other=0.0)
        inside = taken[:, None] & (column < x.shape[1])[None, :]
        numbers = exact_sums.as_float(triton.load(x.at[row[:, None], column[None, :]], mask=inside, other=0))
        margin = jnp.sum(numbers * theta[None, :], axis=1)
        length = triton.load(norms.at[row], mask=taken, other=0.0)
        r = residual(margin, triton.load(y.at[row], mask=taken, other=0), length)
        factor = exact_sums.unit_factor(jnp.abs(r) * length, taken & jnp.isfinite(r), clip)
        weight = jnp.where(factor > 0, r * factor, 0.0) * np.float32(2.0**bits)
        scaled = jnp.where((factor > 0)[:, None], numbers * weight[:, None], 0.0)
        total[0, :] = jnp.sum(scaled.astype(jnp.int32), axis=0)

    totals = pl.pallas_call(
        sum_block,
        grid=(blocks,),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)] * 6,
        out_specs=pl.BlockSpec((1, columns), lambda block: (block, 0)),
        out_shape=jax.ShapeDtypeStruct((blocks, columns), jnp.int32),
        compiler_params=None if interpret else triton.CompilerParams(num_warps=_WARPS),
        interpret=interpret,
        name="row_kernel",
    )(places, mask, params, x, records["x_norm"], records["y"])
    return exact_sums.sum_blocks(totals[:, : params.shape[0]])
