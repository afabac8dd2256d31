r"""The one place where records are read: a clipped, noisy minibatch gradient.

    value = −∇ log prior(θ) + (N/b) · ( Σ_{i in batch} clip_C(−∇ log p(x_i | θ)) + N(0, (s_t b/N)² I) )

b is the EXPECTED batch size, a public constant, so the normaliser does not depend on the data; s_t is the
noise std in gradient units, decided by the plan; the noise multiplier is s_t b / (N C). Everything a
sampler does with ``value`` is post-processing. A sampler may ask for a second moment beside it
(``second_moment.py``, with what that costs), and for clipping and noise in a public metric (``metric.py``).

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

from dpmcmc.privacy import discrete_gaussian, fixed_point, randomness, second_moment
from dpmcmc.privacy.fixed_point import Clip, FixedPoint, float32
from dpmcmc.privacy.metric import PublicMatrix, flat
from dpmcmc.privacy.second_moment import PrivateSecondMoment, SecondMoment
from dpmcmc.privacy.subsampling import Selection

#: Rows handled at once, of a generalised linear model and of others; larger batches are scanned.
LINEAR_ROWS = 1 << 14
MICROBATCH = 64


class PrivateGradient(NamedTuple):
    """What a sampler gets to see of the data.

    Attributes:
        value: noisy gradient of the potential, a pytree like the parameters.
        noise_std: s_t, std of the Gaussian noise in ``value`` (in units of the metric, where there is one); () float32.
        releases: other private releases of the step: a ``PrivateSecondMoment`` where one was asked for.
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
        clip: C, a number or traced; None for the non-private query.
        select: key -> (indices, mask), or None for all records.
        bits: grid exponent of the fixed-point sum.
        microbatch: rows per ``vmap`` of per-record gradients.
        second: a second moment to release beside the gradient, or None.
        second_bits: its grid exponent.
        metric: public F in whose norm gradients are clipped and noised, or None for the identity.
        levels: draws per coordinate of integer noise on the gradient and on the second moment
            (``discrete_gaussian.py``); 0 for noise from floats.
        coordinates: numbers with integer noise that a step is charged for, the most it may release; None: no limit.
    """

    target: Model
    num_records: int
    batch_size: float
    clip: Clip | None
    select: Callable[[jax.Array], Selection] | None
    bits: int = 21
    microbatch: int = MICROBATCH
    second: SecondMoment | None = None
    second_bits: int = 21
    metric: PublicMatrix | None = None
    levels: tuple[int, int] = (0, 0)
    coordinates: int | None = None

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

        Raises:
            ValueError: more numbers with integer noise than are charged for; while tracing, before a record is read.
        """
        scale = np.float32(self.num_records / self.batch_size)
        second_batch_key = second_noise_key = None
        if self.second is not None:
            noise_key, second_noise_key = jax.random.split(noise_key)
            if self.second.own_batch:
                batch_key, second_batch_key = jax.random.split(batch_key)
        moment: Any
        total: Any
        if self.clip is None:
            total, moment = self.plain_sum(params, records, batch_key, second_batch_key)
            noise = randomness.tree_normal(noise_key, total)[0]
            likelihood = jax.tree.map(lambda s, n: scale * s + noise_std * n, total, noise)
        else:
            total, moment = self.clipped_sums(params, records, batch_key, second_batch_key)
            self._check_charged(total.high, None if moment is None else moment.high)
            unit = float32(self.clip * 2.0**-self.bits)
            total = _with_noise(total, noise_key, noise_std / (scale * unit), 1.0, self.levels[0])
            likelihood = jax.tree.map(lambda s: scale * s, total.to_float(self.clip, self.bits))
        if self.metric is not None:
            likelihood = flat(params)[1](self.metric.times(likelihood))
        prior = jax.grad(lambda p: -self.target.log_prior(p))(params)
        releases: tuple = ()
        if self.second is not None:
            releases = (self._released(moment, params, second_noise_key, noise_std, scale),)
        return PrivateGradient(jax.tree.map(jnp.add, prior, likelihood), noise_std, releases)

    def _check_charged(self, *sums: Any) -> None:
        """Refuse sums with more entries than the plan charged integer noise for, by their shapes."""
        if not self.levels[0] or self.coordinates is None:
            return
        released = sum(leaf.size for leaf in jax.tree.leaves(sums))
        if released > self.coordinates:
            raise ValueError(
                f"hardened: a step releases {released} numbers and the plan charged for {self.coordinates}; bind the "
                "target to its data's shape (num_features) before planning."
            )

    def _released(
        self, moment: Any, params: Any, key: Any, noise_std: jax.Array, scale: np.float32
    ) -> PrivateSecondMoment:
        """V with its noise, whose std on the sum is z_V C² = ratio·z_g·C², so ratio·C·s_t in gradient units."""
        assert self.second is not None
        size = flat(params)[0].size
        dense = second_moment.is_dense(self.second.structure, size)
        noise = jnp.zeros((), jnp.float32)
        if self.clip is not None:
            ratio = np.float32(self.second.ratio)
            in_grid = ratio * noise_std / (scale * float32(self.clip * 2.0**-self.second_bits))
            scales = second_moment.noise_scale(size, dense)
            moment = _with_noise(moment, key, in_grid, scales, self.levels[1])
            moment = moment.to_float(self.clip**2, self.second_bits)
            noise = ratio * float32(self.clip) * noise_std
        value = scale * moment
        return PrivateSecondMoment(second_moment.symmetric(value, size) if dense else value, noise)

    def clipped_sum(self, params: Any, records: Any, batch_key: jax.Array) -> FixedPoint:
        """Exact Σ clip(−∇ log-likelihood) over the batch, before noise. Private: it must not leave."""
        return self.clipped_sums(params, records, batch_key)[0]

    def clipped_sums(
        self, params: Any, records: Any, batch_key: jax.Array, second_batch_key: jax.Array | None = None
    ) -> tuple[FixedPoint, FixedPoint | None]:
        """(exact clipped gradient sum, exact second-moment sum or None), before noise. Private: must not leave."""
        assert self.clip is not None
        for leaf in jax.tree.leaves(records):
            # A gather beyond the end would repeat the last record, and its sensitivity with it.
            if leaf.shape[0] != self.num_records:
                raise ValueError(f"records have {leaf.shape[0]} rows, the query was planned for {self.num_records}")
        fast = getattr(self.target, "clipped_gradient_sum", None)
        if self.second is not None and second_batch_key is None:
            return self._scan(params, records, batch_key, self._both_sums, self.microbatch)
        moment = None
        if self.second is not None:
            assert second_batch_key is not None
            moment = self._scan(params, records, second_batch_key, self._moment_sum, self.microbatch)
        if fast is None or self.metric is not None:
            return self._scan(params, records, batch_key, self._microbatch_sum, self.microbatch), moment

        def rows(params: Any, batch: Any, mask: jax.Array) -> FixedPoint:
            total = fast(params, batch, mask, self.clip, bits=self.bits)
            if not isinstance(total, FixedPoint):
                raise TypeError(
                    f"{type(self.target).__name__}.clipped_gradient_sum must return an exact FixedPoint sum "
                    "(build it with dpmcmc.privacy.fixed_point.linear_sum or clipped_sum): a float32 sum "
                    "rounds differently on neighbouring data."
                )
            return total

        return self._scan(params, records, batch_key, rows, LINEAR_ROWS), moment

    def plain_sum(
        self, params: Any, records: Any, batch_key: jax.Array, second_batch_key: jax.Array | None = None
    ) -> tuple[Any, jax.Array | None]:
        """(Σ −∇ log-likelihood over the batch, Σ of outer products or None), unclipped, float32: the plain query."""

        def rows(params: Any, batch: Any, mask: jax.Array) -> Any:
            def loss(p: Any) -> jax.Array:
                each = jax.vmap(lambda record: self.target.log_likelihood(p, record))(batch)
                return -jnp.sum(jnp.where(mask, each, 0.0))

            return jax.grad(loss)(params)

        def outer(params: Any, batch: Any, mask: jax.Array) -> jax.Array:
            assert self.second is not None
            each = jnp.where(mask[:, None], self._flat_scores(params, batch), 0.0)
            if second_moment.is_dense(self.second.structure, each.shape[1]):
                row, column = second_moment.pairs(each.shape[1])
                return (each.T @ each)[row, column]
            return jnp.sum(jnp.square(each), axis=0)

        total = self._scan(params, records, batch_key, rows, LINEAR_ROWS)
        if self.metric is not None:
            total = self.metric.whiten(flat(total)[0])
        if self.second is None:
            return total, None
        key = batch_key if second_batch_key is None else second_batch_key
        return total, self._scan(params, records, key, outer, self.microbatch)

    def _scores(self, params: Any, batch: Any) -> Any:
        """−∇ log-likelihood of each row, leaves (n, ...); one flat leaf (n, p) in whitened units under a metric."""

        def negative_score(record: Any) -> Any:
            return jax.grad(lambda p: -self.target.log_likelihood(p, record))(params)

        each = jax.vmap(negative_score)(batch)
        if self.metric is None:
            return each
        metric = self.metric
        return jax.vmap(lambda tree: metric.whiten(flat(tree)[0]))(each)

    def _flat_scores(self, params: Any, batch: Any) -> jax.Array:
        return jax.vmap(lambda tree: flat(tree)[0])(self._scores(params, batch))

    def _microbatch_sum(self, params: Any, batch: Any, mask: jax.Array) -> FixedPoint:
        assert self.clip is not None
        return fixed_point.clipped_sum(self._scores(params, batch), mask, self.clip, self.bits)

    def _moment_sum(self, params: Any, batch: Any, mask: jax.Array) -> FixedPoint:
        return self._moment(params, self._scores(params, batch), mask)

    def _both_sums(self, params: Any, batch: Any, mask: jax.Array) -> tuple[FixedPoint, FixedPoint]:
        assert self.clip is not None
        rows = self._scores(params, batch)
        return fixed_point.clipped_sum(rows, mask, self.clip, self.bits), self._moment(params, rows, mask)

    def _moment(self, params: Any, rows: Any, mask: jax.Array) -> FixedPoint:
        assert self.clip is not None
        assert self.second is not None
        dense = second_moment.is_dense(self.second.structure, flat(params)[0].size)
        return fixed_point.second_moment_sum(rows, mask, self.clip, self.second_bits, dense)

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
            exact = lambda node: isinstance(node, FixedPoint)  # noqa: E731
            return jax.tree.map(lambda a, b: a + b, total, part, is_leaf=exact), None

        def zeros() -> Any:
            shape = jax.eval_shape(
                rows,
                params,
                jax.tree.map(lambda leaf: leaf[offsets], records),
                jnp.zeros(width, bool),
            )
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)

        return jax.lax.scan(add, zeros(), jnp.arange(blocks, dtype=jnp.int32))[0]


def _with_noise(total: FixedPoint, key: jax.Array, in_grid: jax.Array, scale: Any, levels: int) -> FixedPoint:
    """Add Gaussian noise of std ``in_grid · scale`` grid units to an exact sum.

    In integers alone where ``levels`` says of how many draws (``discrete_gaussian.py``). Else from floats in two parts,
    where the fine part reaches the bits that the coarse part, a float32, does not (``fixed_point.py``).
    """
    if levels:
        return total + FixedPoint(*discrete_gaussian.tree_noise(key, total.high, in_grid, scale, levels))
    sizes = (1.0, fixed_point.FINE_NOISE)
    for size, noise in zip(sizes, randomness.tree_normal(key, total.high, copies=2), strict=True):
        total = fixed_point.add_noise(total, jax.tree.map(lambda n, s=size: n * (s * in_grid) * scale, noise))
    return total
