"""Sums over a batch for a target without a closed form: the gradient of each record by ``vmap`` and ``jax.grad``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy.query import exact_sums
from dpmcmc.privacy.query.exact_sums import Clip, FixedPoint
from dpmcmc.privacy.query.label_blind import label_blind_weight
from dpmcmc.privacy.query.metric import PublicMatrix, flat
from dpmcmc.privacy.query.moment_sum import MomentSum
from dpmcmc.privacy.query.rows_in_place import Rows, arrays
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.storage.pytree import PyTree, length_of, num_bytes, size_of

#: Rows handled at once, of a generalised linear model and of others; larger batches are scanned.
LINEAR_ROWS = 1 << 14
MICROBATCH = 64
#: Bytes of gradients of single records at once, unless one record's are more.
GRADIENT_BYTES = 64 << 20
#: (indices or None, mask or None): which records take part; all where both are None.
Batch = tuple[jax.Array | None, jax.Array | None]
#: (batch, mask (n,)) -> a sum over its rows: a pytree of arrays and of exact sums.
RowSum = Callable[[PyTree, jax.Array], PyTree]


class Model(Protocol):
    """Methods of a target that the query needs."""

    def log_prior(self, params: PyTree) -> jax.Array:
        """Log density of the prior, up to a constant."""

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """Log-likelihood of ONE record."""


@dataclass(frozen=True)
class PerRecordGradients:
    """The part of a ``GradientQuery``, whose arguments these are, that differentiates record by record."""

    target: Model
    num_records: int
    batch_size: float
    clip: Clip | None
    select: Callable[[jax.Array], Batch] | None
    bits: int = 21
    microbatch: int = MICROBATCH
    second: SecondMoment | None = None
    second_bits: int = 21
    metric: PublicMatrix | None = None
    axis: str | None = None
    label_blind: bool = False

    @property
    def _scale(self) -> np.float32:
        """N/b."""
        return np.float32(self.num_records / self.batch_size)

    def _moment(self, params: PyTree) -> MomentSum:
        assert self.second is not None
        return MomentSum(self.second, size_of(params), self.clip, self.second_bits, self._scale)

    def _sum_of(self, rows: RowSum, records: PyTree, batch: Batch, width: int) -> PyTree:
        """Sum of ``rows`` over a batch, at most ``width`` of them at once."""
        indices, mask = batch
        count = length_of(records) if indices is None else indices.shape[0]
        if count > width:
            return scanned(rows, records, batch, count, width)
        chosen = records if indices is None else gathered(records, indices)
        return rows(chosen, jnp.ones(count, bool) if mask is None else mask)

    def plain_sum(self, params: PyTree, records: PyTree, batch: Batch) -> PyTree:
        """Σ −∇ log-likelihood over the batch, unclipped, float32: the plain query."""

        def rows(batch: PyTree, mask: jax.Array) -> PyTree:
            each_record = arrays(batch)

            def loss(p: PyTree) -> jax.Array:
                each = jax.vmap(lambda record: self.target.log_likelihood(p, record))(each_record)
                return -jnp.sum(jnp.where(mask, each, 0.0))

            return jax.grad(loss)(params)

        total = self._plain_across(self._sum_of(rows, records, batch, LINEAR_ROWS))
        return total if self.metric is None else self.metric.whiten(flat(total)[0])

    def plain_moment(self, params: PyTree, records: PyTree, batch: Batch) -> jax.Array:
        """Σ of outer products of the gradients of a batch, unclipped, float32: the plain query's second moment."""

        def outer(batch: PyTree, mask: jax.Array) -> jax.Array:
            each = jax.vmap(lambda tree: flat(tree)[0])(self._gradients(params, batch))
            return self._moment(params).form.summed(jnp.where(mask[:, None], each, 0.0))

        return self._plain_across(self._sum_of(outer, records, batch, self._at_once(params)))

    def _at_once(self, params: PyTree) -> int:
        """Return how many records' gradients are held at once."""
        return min(self.microbatch, self._fit(params))

    def _fit(self, params: PyTree) -> int:
        """Return how many records' gradients may be held at once."""
        return max(1, GRADIENT_BYTES // num_bytes(params))

    def _plain_across(self, total: PyTree) -> PyTree:
        return total if self.axis is None else jax.lax.psum(total, self.axis)

    def scores(self, params: PyTree, batch: PyTree) -> PyTree:
        """Gradients of each row as they are clipped, weighted where ``label_blind``; see :meth:`_gradients`."""
        each = self._gradients(params, batch)
        if not self.label_blind:
            return each
        assert self.clip is not None
        weight = label_blind_weight(self._longest(params, batch), self.clip)
        return jax.tree.map(lambda leaf: leaf * weight.reshape(-1, *[1] * (leaf.ndim - 1)), each)

    def _longest(self, params: PyTree, batch: PyTree) -> jax.Array:
        """Largest norm of each row's gradient over all labels, (n,)."""
        whitened = self.metric is not None
        batch = arrays(batch)

        def labels(record: PyTree) -> jax.Array:
            target: Any = self.target
            return target.longest_labels(target.predictor(params, record), whitened)

        def norms(y: jax.Array) -> jax.Array:
            return exact_sums.row_norms(self._gradients(params, {**batch, "y": y}))

        return jnp.max(jax.vmap(norms, in_axes=1)(jax.vmap(labels)(batch)), axis=0)

    def _gradients(self, params: PyTree, batch: PyTree) -> PyTree:
        """−∇ log-likelihood of each row, leaves (n, ...); one flat leaf (n, p) in whitened units under a metric."""

        def negative_score(record: PyTree) -> PyTree:
            return jax.grad(lambda p: -self.target.log_likelihood(p, record))(params)

        each = jax.vmap(negative_score)(arrays(batch))
        if self.metric is None:
            return each
        metric = self.metric
        return jax.vmap(lambda tree: metric.whiten(flat(tree)[0]))(each)

    def _microbatch_sum(self, params: PyTree, batch: PyTree, mask: jax.Array) -> FixedPoint:
        assert self.clip is not None
        return exact_sums.clipped_sum(self.scores(params, batch), mask, self.clip, self.bits)

    @property
    def _in_closed_form(self) -> bool:
        """Whether the target sums clipped gradients itself."""
        return getattr(self.target, "clipped_gradient_sum", None) is not None

    def moment_sum(self, params: PyTree, records: PyTree, batch: Batch) -> FixedPoint:
        """Exact second-moment sum over a batch, before noise. Private: must not leave."""
        # Gradients of a linear model are rows times numbers: as many at once as one block of an exact sum.
        width = min(exact_sums.BLOCK_ROWS, self._fit(params)) if self._in_closed_form else self._at_once(params)
        total = self._sum_of(lambda rows, mask: self._moment_sum(params, rows, mask), records, batch, width)
        return total if self.axis is None else total.across(self.axis)

    def _moment_sum(self, params: PyTree, batch: PyTree, mask: jax.Array) -> FixedPoint:
        return self._moment(params).exact(self.scores(params, batch), mask)


def gathered(records: PyTree, indices: jax.Array) -> PyTree:
    """The records at these places, which lie within them."""

    def taken(leaf: jax.Array | Rows) -> jax.Array | Rows:
        return leaf.taken(indices) if isinstance(leaf, Rows) else Rows(jnp.asarray(leaf), indices).read()

    return jax.tree.map(taken, records, is_leaf=lambda node: isinstance(node, Rows))


def scanned(rows: RowSum, records: PyTree, batch: Batch, count: int, width: int) -> PyTree:
    """Sum of ``rows`` over blocks of at most ``width`` selected records, as even as possible.

    Args:
        rows: sum of one block.
        records: leaves (N, ...).
        batch: the selection.
        count: places of the batch.
        width: rows at once.
    """
    indices, mask = batch
    blocks = -(-count // width)
    width = -(-count // blocks)
    offsets = jnp.arange(width, dtype=jnp.int32)

    def add(total: PyTree, block: jax.Array) -> tuple[PyTree, None]:
        at = block * width + offsets
        inside = at < count
        at = jnp.minimum(at, count - 1)
        where = at if indices is None else indices[at]
        part = rows(gathered(records, where), inside if mask is None else inside & mask[at])
        # FixedPoint adds with carry; a plain pytree adds leaf by leaf.
        return jax.tree.map(
            lambda a, b: a + b,
            total,
            part,
            is_leaf=lambda node: isinstance(node, FixedPoint),
        ), None

    shapes = jax.eval_shape(lambda: rows(gathered(records, offsets), jnp.zeros(width, bool)))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(add, zeros, jnp.arange(blocks, dtype=jnp.int32))[0]
