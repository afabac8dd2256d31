"""Exact clipped gradient sums, in closed form, of models whose records enter through one number m = x·θ.

A record's gradient is its residual times its row x, so its norm is |residual|·‖x‖, and no record's gradient is
formed. Norms and aligned copies of the rows are computed once a run, sums at each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from dpmcmc.privacy.query import exact_sums
from dpmcmc.privacy.query.exact_sums import Clip, FixedPoint
from dpmcmc.privacy.query.label_blind import label_blind_weight
from dpmcmc.privacy.query.rows_in_place import LANES, Rows
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Num
from dpmcmc.targets.generalised_linear import GeneralisedLinear

#: A copy is not made where it would be longer than the row by more than this, nor of more than so many bytes.
_LONGER = 1 / 8
_COPIED = 1 << 30


class LinearPredictor(GeneralisedLinear):
    """A family of one linear predictor: it states log density, residual and mean as functions of the margins m."""

    linear_predictor = True

    def log_density(self, margin: Float[jax.Array, ""], y: Num[jax.Array, ""]) -> Float[jax.Array, ""]:
        """Log-likelihood of a label at its margin, ()."""
        raise NotImplementedError

    def residual(self, margin: Float[jax.Array, " n"], y: Num[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """−∂ log density/∂m, (n,) for margins and labels (n,)."""
        raise NotImplementedError

    def scores(
        self,
        margin: jax.Array,
        batch: PyTree,
        norms: jax.Array,
        clip: Clip | None = None,
    ) -> jax.Array:
        """Residuals times s·w, (n,).

        Args:
            margin: m, (n,).
            batch: records.
            norms: of rows, (n,).
            clip: C of :func:`label_blind_weight`, which they are then multiplied by; None: they are not.
        """
        residual = self.weighted(self.residual(margin, batch["y"]), batch)
        if clip is None:
            return residual
        longest = self.residual(margin, self.longest_labels(margin)[0])
        norms = jnp.abs(self.weighted(longest, batch)) * norms
        return residual * label_blind_weight(norms, clip)

    def mean(self, margin: Float[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """E[y] at margins (n,)."""
        raise NotImplementedError

    def log_likelihood(self, params: Float[jax.Array, " d"], record: PyTree) -> Float[jax.Array, ""]:
        """Log-likelihood of one record, ()."""
        density = self.log_density(self.predictor(params, record), record["y"])
        return self.weighted(density, record)

    def predict(
        self,
        params: Float[jax.Array, " d"],
        x: Num[jax.Array, "n d"],
        offset: Num[jax.Array, " n"] | None = None,
    ) -> Float[jax.Array, " n"]:
        """E[y | x, θ] for rows x (n, d), (n,); ``offset`` (n,) where the target has an ``offset_bound``."""
        return self.mean(self.with_offset(x @ params, offset))

    def prepared(self, records: PyTree) -> PyTree:
        """Records with ``x_norm`` (N,), the norm of each row of x, and ``x_aligned``, x with columns of zeros.

        Args:
            records: ``{"x": (N, d), ...}``; x_aligned is left out where d is a multiple of 8, or zeros would cost more.
        """
        x = exact_sums.as_float(jnp.asarray(records["x"]))
        more: dict[str, jax.Array | Rows] = {"x_norm": exact_sums.row_norms(x)}
        # A row that is no multiple of a vector ends in single numbers, a sixth of the step.
        short = -x.shape[1] % LANES
        if 0 < short <= _LONGER * x.shape[1] and x.nbytes <= _COPIED:
            more["x_aligned"] = Rows(jnp.pad(x, ((0, 0), (0, short))))
        return {**records, **more}

    def clipped_gradient_sum(
        self,
        params: Float[jax.Array, " d"],
        batch: PyTree,
        mask: Bool[jax.Array, " n"],
        clip: Clip,
        bits: int = 21,
        label_blind: bool = False,
    ) -> FixedPoint:
        """Σ clip(v·s·w·residual(x·θ + o, y)·x) over unmasked rows, exactly summed.

        Args:
            params: θ, (d,).
            batch: ``{"x": (n, d), "y": (n,)}``, or what :meth:`prepared` makes of it.
            mask: (n,) bool.
            clip: C.
            bits: grid exponent; ``result.to_float(clip, bits)`` has shape (d,).
            label_blind: whether v is :func:`label_blind_weight`; otherwise 1.
        """
        rows = batch.get("x_aligned") or Rows(exact_sums.as_float(batch["x"]))
        norms = exact_sums.row_norms(rows.read()) if "x_norm" not in batch else batch["x_norm"]
        margins = self.with_offset(rows.margins(params), batch.get("offset"))
        residual = self.scores(margins, batch, norms, clip if label_blind else None)
        total = exact_sums.linear_sum(residual, rows, mask, clip, bits, norms)
        return FixedPoint(*(limb[: params.shape[0]] for limb in total))
