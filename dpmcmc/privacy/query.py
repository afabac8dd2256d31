r"""The one place where records are read: a clipped, noisy minibatch gradient.

    value = −∇ log prior(θ) + (N/b) · ( Σ_{i in batch} clip_C(−∇ log p(x_i | θ)) + N(0, (s_t b/N)² I) )

b is the EXPECTED batch size, a public constant, so the normaliser does not depend on the data; s_t is the
noise std in gradient units, decided by the plan; the noise multiplier is s_t b / (N C). Everything a
sampler does with ``value`` is post-processing.

Sensitivity of the clipped sum, per adjacency: C (add_remove, zero_out), 2C (replace_one), exactly on the
fixed-point grid and within 1 + ``KAPPA`` in float32 (``fixed_point.py``), which the plan charges. A record
whose gradient is not finite contributes zero, so no abort and no NaN depends on the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.privacy import fixed_point, randomness
from dpmcmc.privacy.fixed_point import FixedPoint
from dpmcmc.privacy.subsampling import Selection

#: Rows of a generalised linear model handled at once; larger batches are scanned.
_LINEAR_ROWS = 1 << 14


class PrivateGradient(NamedTuple):
    """What a sampler gets to see of the data.

    Attributes:
        value: noisy gradient of the potential, a pytree like the parameters.
        noise_std: s_t, std of the Gaussian noise in ``value``; () float32.
        releases: other private releases of the step (none for a plain gradient query).
    """

    value: Any
    noise_std: jax.Array
    releases: tuple = ()


class Model(Protocol):
    """What the query needs of a target."""

    def log_prior(self, params: Any) -> jax.Array:
        """Log density of the prior, up to a constant."""

    def log_likelihood(self, params: Any, record: Any) -> jax.Array:
        """Log-likelihood of ONE record."""


@dataclass(frozen=True)
class GradientQuery:
    """A private (or, with ``clip=None``, plain) gradient of the potential.

    Args:
        target: the model; a ``clipped_gradient_sum`` method is used where it has one.
        num_records: N, public.
        batch_size: b, expected, public.
        clip: C, or None for the non-private query.
        select: key -> (indices, mask), or None for all records.
        bits: grid exponent of the fixed-point sum.
        microbatch: rows per ``vmap`` of per-record gradients.
    """

    target: Model
    num_records: int
    batch_size: float
    clip: float | None
    select: Callable[[jax.Array], Selection] | None
    bits: int = 21
    microbatch: int = 64

    def __call__(
        self, params: Any, records: Any, batch_key: jax.Array, noise_key: jax.Array, noise_std: jax.Array
    ) -> PrivateGradient:
        """One noisy gradient.

        Args:
            params: pytree of float32.
            records: pytree, leaves (N, ...).
            batch_key: key of the minibatch.
            noise_key: key of the noise, distinct from every other key of the run.
            noise_std: s_t, ().
        """
        scale = np.float32(self.num_records / self.batch_size)
        if self.clip is None:
            noise = randomness.tree_normal(noise_key, params)[0]
            total = self.plain_sum(params, records, batch_key)
            likelihood = jax.tree.map(lambda s, n: scale * s + noise_std * n, total, noise)
        else:
            unit = np.float32(self.clip * 2.0**-self.bits)
            in_grid = noise_std / (scale * unit)
            total = self.clipped_sum(params, records, batch_key)
            # The fine part reaches the bits that the coarse part, a float32, does not (``fixed_point.py``).
            sizes = (1.0, fixed_point.FINE_NOISE)
            for size, noise in zip(sizes, randomness.tree_normal(noise_key, params, copies=2), strict=True):
                total = fixed_point.add_noise(total, jax.tree.map(lambda n, s=size: n * (s * in_grid), noise))
            likelihood = jax.tree.map(lambda s: scale * s, total.to_float(self.clip, self.bits))
        prior = jax.grad(lambda p: -self.target.log_prior(p))(params)
        return PrivateGradient(jax.tree.map(jnp.add, prior, likelihood), noise_std)

    def clipped_sum(self, params: Any, records: Any, batch_key: jax.Array) -> FixedPoint:
        """Exact Σ clip(−∇ log-likelihood) over the batch, before noise. Private: it must not leave."""
        assert self.clip is not None
        for leaf in jax.tree.leaves(records):
            # A gather beyond the end would repeat the last record, and its sensitivity with it.
            if leaf.shape[0] != self.num_records:
                raise ValueError(f"records have {leaf.shape[0]} rows, the query was planned for {self.num_records}")
        fast = getattr(self.target, "clipped_gradient_sum", None)
        if fast is None:
            return self._scan(params, records, batch_key, self._microbatch_sum, self.microbatch)

        def rows(params: Any, batch: Any, mask: jax.Array) -> FixedPoint:
            total = fast(params, batch, mask, self.clip, bits=self.bits)
            if not isinstance(total, FixedPoint):
                raise TypeError(
                    f"{type(self.target).__name__}.clipped_gradient_sum must return an exact FixedPoint sum "
                    "(build it with dpmcmc.privacy.fixed_point.linear_sum or clipped_sum): a float32 sum "
                    "rounds differently on neighbouring data."
                )
            return total

        return self._scan(params, records, batch_key, rows, _LINEAR_ROWS)

    def plain_sum(self, params: Any, records: Any, batch_key: jax.Array) -> Any:
        """Σ −∇ log-likelihood over the batch, unclipped, float32: the non-private query."""

        def rows(params: Any, batch: Any, mask: jax.Array) -> Any:
            def loss(p: Any) -> jax.Array:
                each = jax.vmap(lambda record: self.target.log_likelihood(p, record))(batch)
                return -jnp.sum(jnp.where(mask, each, 0.0))

            return jax.grad(loss)(params)

        return self._scan(params, records, batch_key, rows, _LINEAR_ROWS)

    def _microbatch_sum(self, params: Any, batch: Any, mask: jax.Array) -> FixedPoint:
        assert self.clip is not None

        def negative_score(record: Any) -> Any:
            return jax.grad(lambda p: -self.target.log_likelihood(p, record))(params)

        return fixed_point.clipped_sum(jax.vmap(negative_score)(batch), mask, self.clip, self.bits)

    def _scan(self, params: Any, records: Any, key: jax.Array, rows: Callable[..., Any], width: int) -> Any:
        """Sum ``rows(params, batch, mask)`` over blocks of at most ``width`` selected records."""
        if self.select is None:
            count = self.num_records
            indices, mask = None, None
        else:
            indices, mask = self.select(key)
            count = indices.shape[0]
        if count <= width:
            batch = records if indices is None else jax.tree.map(lambda leaf: leaf[indices], records)
            return rows(params, batch, jnp.ones(count, bool) if mask is None else mask)
        blocks = -(-count // width)
        width = -(-count // blocks)
        offsets = jnp.arange(width, dtype=jnp.int32)

        def add(total: Any, block: jax.Array) -> tuple[Any, None]:
            at = block * width + offsets
            inside = at < count
            at = jnp.minimum(at, count - 1)
            where = at if indices is None else indices[at]
            keep = inside if mask is None else inside & mask[at]
            part = rows(params, jax.tree.map(lambda leaf: leaf[where], records), keep)
            # FixedPoint adds with carry; a plain pytree adds leaf by leaf.
            if isinstance(total, FixedPoint):
                return total + part, None
            return jax.tree.map(jnp.add, total, part), None

        def zeros() -> Any:
            shape = jax.eval_shape(
                rows,
                params,
                jax.tree.map(lambda leaf: leaf[offsets], records),
                jnp.zeros(width, bool),
            )
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)

        return jax.lax.scan(add, zeros(), jnp.arange(blocks, dtype=jnp.int32))[0]
