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

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.sampling import Sampling
from dpmcmc.privacy.query import fixed_point, integer_noise, randomness, second_moment, selection
from dpmcmc.privacy.query.fixed_point import Clip, FixedPoint, float32
from dpmcmc.privacy.query.metric import PublicMatrix, flat
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment, SecondMoment
from dpmcmc.privacy.query.selection import Selection

#: Rows handled at once, of a generalised linear model and of others; larger batches are scanned.
LINEAR_ROWS = 1 << 14
MICROBATCH = 64


class PrivateGradient(NamedTuple):
    """Private gradient: all that a sampler gets to see of the data.

    Attributes:
        value: noisy gradient of the potential, a pytree like the parameters.
        noise_std: s_t, std of the Gaussian noise in ``value`` (in units of the metric, where there is one); () float32.
        releases: other private releases of the step: a ``PrivateSecondMoment`` where one was asked for.
    """

    value: Any
    noise_std: jax.Array
    releases: tuple = ()


class StepRandomness(NamedTuple):
    """Randomness of one query: a function of keys and public numbers, so drawn before a record is read.

    Attributes:
        batch: (indices or None, mask or None): which records take part, all of them where both are None; without
            indices the records at hand are the batch's.
        second_batch: likewise of the second moment's own, or None.
        noise: on the gradient's sum: pytrees of standard normals, or a ``FixedPoint`` of integer noise.
        second_noise: on the second moment's, or None.
    """

    batch: tuple[jax.Array | None, jax.Array | None]
    second_batch: tuple[jax.Array | None, jax.Array | None] | None
    noise: Any
    second_noise: Any


class Model(Protocol):
    """Methods of a target that the query needs."""

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
        rows: records at hand, where they are not all N.
        axis: mesh axis over whose devices the records are split and sums are added, or None.
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
    rows: int | None = None
    axis: str | None = None

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
        return self.answer(params, records, self.draw(params, batch_key, noise_key, noise_std), noise_std)

    def draw(self, params: Any, batch_key: jax.Array, noise_key: jax.Array, noise_std: jax.Array) -> StepRandomness:
        """Everything random of one query.

        Args:
            params: only their shapes are looked at.
            batch_key, noise_key, noise_std: as of the query.
        """
        second_batch = second_noise = None
        wanted: Any = params
        size = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))
        if self.metric is not None:
            wanted = jax.ShapeDtypeStruct((size,), jnp.float32)
        if self.second is not None:
            noise_key, second_noise_key = jax.random.split(noise_key)
            if self.second.own_batch:
                batch_key, second_batch_key = jax.random.split(batch_key)
                second_batch = self._batch(second_batch_key)
            if self.clip is not None:
                shape, scales = self._moment_shape(size)
                grid = self._moment_grid(noise_std)
                second_noise = drawn_noise(second_noise_key, shape, grid, scales, self.levels[1])
        if self.clip is None:
            noise: Any = randomness.tree_normal(noise_key, wanted)[0]
        else:
            noise = drawn_noise(noise_key, wanted, self._grid(noise_std), 1.0, self.levels[0])
        return StepRandomness(self._batch(batch_key), second_batch, noise, second_noise)

    def answer(self, params: Any, records: Any, draws: StepRandomness, noise_std: jax.Array) -> PrivateGradient:
        """The noisy gradient that these draws make of the records; arguments and errors as of the query."""
        scale = self._scale
        moment: Any
        total: Any
        if self.clip is None:
            total, moment = self.plain_sums(params, records, draws)
            likelihood = jax.tree.map(lambda s, n: scale * s + noise_std * n, total, draws.noise)
        else:
            total, moment = self.sums(params, records, draws)
            self._check_charged(total.high, None if moment is None else moment.high)
            total = _with_noise(total, draws.noise, self._grid(noise_std), 1.0)
            likelihood = jax.tree.map(lambda s: scale * s, total.to_float(self.clip, self.bits))
        if self.metric is not None:
            likelihood = flat(params)[1](self.metric.times(likelihood))
        prior = jax.grad(lambda p: -self.target.log_prior(p))(params)
        releases: tuple = ()
        if self.second is not None:
            releases = (self._released(moment, params, draws.second_noise, noise_std),)
        return PrivateGradient(jax.tree.map(jnp.add, prior, likelihood), noise_std, releases)

    @property
    def _scale(self) -> np.float32:
        """N/b."""
        return np.float32(self.num_records / self.batch_size)

    def _grid(self, noise_std: jax.Array) -> Any:
        """Std of the noise on the gradient's sum in grid units."""
        return noise_std / (self._scale * float32(self.clip * 2.0**-self.bits))  # type: ignore[operator]

    def _moment_grid(self, noise_std: jax.Array) -> Any:
        """Std of the noise on the second moment's sum: z_V C² = ratio·z_g·C², so ratio·C·s_t in gradient units."""
        assert self.second is not None
        unit = float32(self.clip * 2.0**-self.second_bits)  # type: ignore[operator]
        return np.float32(self.second.ratio) * noise_std / (self._scale * unit)

    def _moment_shape(self, size: int) -> tuple[Any, Any]:
        """(shape of the second moment's sum, factors on its noise) for so many parameters."""
        assert self.second is not None
        dense = second_moment.is_dense(self.second.structure, size)
        shape = (size * (size + 1) // 2,) if dense else (size,)
        return jax.ShapeDtypeStruct(shape, jnp.float32), second_moment.noise_scale(size, dense)

    def _batch(self, key: jax.Array) -> tuple[jax.Array | None, jax.Array | None]:
        return (None, None) if self.select is None else self.select(key)

    def _check_charged(self, *sums: Any) -> None:
        """Refuse sums with more entries than the plan charged integer noise for, by their shapes."""
        if not self.levels[0] or self.coordinates is None:
            return
        released = sum(leaf.size for leaf in jax.tree.leaves(sums))
        if released > self.coordinates:
            raise InputError(
                f"hardened: a step releases {released} numbers and the plan charged for {self.coordinates}; bind the "
                "target to its data's shape (num_features) before planning."
            )

    def _released(self, moment: Any, params: Any, drawn: Any, noise_std: jax.Array) -> PrivateSecondMoment:
        """V with its noise."""
        assert self.second is not None
        size = flat(params)[0].size
        dense = second_moment.is_dense(self.second.structure, size)
        noise = jnp.zeros((), jnp.float32)
        if self.clip is not None:
            moment = _with_noise(moment, drawn, self._moment_grid(noise_std), self._moment_shape(size)[1])
            moment = moment.to_float(self.clip**2, self.second_bits)
            noise = np.float32(self.second.ratio) * float32(self.clip) * noise_std
        value = self._scale * moment
        return PrivateSecondMoment(second_moment.symmetric(value, size) if dense else value, noise)

    def clipped_sum(self, params: Any, records: Any, batch_key: jax.Array) -> FixedPoint:
        """Exact Σ clip(−∇ log-likelihood) over the batch, before noise. Private: it must not leave."""
        return self.sums(params, records, StepRandomness(self._batch(batch_key), None, None, None))[0]

    def sums(self, params: Any, records: Any, draws: StepRandomness) -> tuple[FixedPoint, FixedPoint | None]:
        """(exact clipped gradient sum, exact second-moment sum or None), before noise. Private: must not leave."""
        total, moment = self._sums_here(params, records, draws)
        if self.axis is None:
            return total, moment
        return total.across(self.axis), None if moment is None else moment.across(self.axis)

    def _sums_here(self, params: Any, records: Any, draws: StepRandomness) -> tuple[FixedPoint, FixedPoint | None]:
        assert self.clip is not None
        self._check_rows(records, draws)
        fast = getattr(self.target, "clipped_gradient_sum", None)
        if self.second is not None and draws.second_batch is None:
            return self._scan(params, records, draws.batch, self._both_sums, self.microbatch)
        moment = None
        if self.second is not None:
            moment = self._scan(params, records, draws.second_batch, self._moment_sum, self.microbatch)
        if fast is None or self.metric is not None:
            return self._scan(params, records, draws.batch, self._microbatch_sum, self.microbatch), moment

        def rows(params: Any, batch: Any, mask: jax.Array) -> FixedPoint:
            total = fast(params, batch, mask, self.clip, bits=self.bits)
            if not isinstance(total, FixedPoint):
                raise TypeError(
                    f"{type(self.target).__name__}.clipped_gradient_sum must return an exact FixedPoint sum "
                    "(build it with dpmcmc.privacy.query.fixed_point.linear_sum or clipped_sum): a float32 sum "
                    "rounds differently on neighbouring data."
                )
            return total

        return self._scan(params, records, draws.batch, rows, LINEAR_ROWS), moment

    def _check_rows(self, records: Any, draws: StepRandomness) -> None:
        indices, mask = draws.batch
        # A gather beyond the end would repeat the last record, and its sensitivity with it.
        wanted = (self.rows or self.num_records) if mask is None or indices is not None else mask.shape[0]
        for leaf in jax.tree.leaves(records):
            if leaf.shape[0] != wanted:
                raise InputError(f"records have {leaf.shape[0]} rows, the query was planned for {wanted}")

    def plain_sums(self, params: Any, records: Any, draws: StepRandomness) -> tuple[Any, jax.Array | None]:
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

        across = lambda leaf: leaf if self.axis is None else jax.lax.psum(leaf, self.axis)  # noqa: E731
        total = across(self._scan(params, records, draws.batch, rows, LINEAR_ROWS))
        if self.metric is not None:
            total = self.metric.whiten(flat(total)[0])
        if self.second is None:
            return total, None
        batch = draws.batch if draws.second_batch is None else draws.second_batch
        return total, across(self._scan(params, records, batch, outer, self.microbatch))

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

    def _scan(self, params: Any, records: Any, selection: Any, rows: Callable[..., Any], width: int) -> Any:
        """Sum ``rows(params, batch, mask)`` over blocks of at most ``width`` selected records."""
        indices, mask = selection
        count = jax.tree.leaves(records)[0].shape[0] if indices is None else indices.shape[0]
        if count <= width:
            batch = records if indices is None else _rows(records, indices)
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
            part = rows(params, _rows(records, where), keep)
            # FixedPoint adds with carry; a plain pytree adds leaf by leaf.
            exact = lambda node: isinstance(node, FixedPoint)  # noqa: E731
            return jax.tree.map(lambda a, b: a + b, total, part, is_leaf=exact), None

        def zeros() -> Any:
            shape = jax.eval_shape(
                rows,
                params,
                _rows(records, offsets),
                jnp.zeros(width, bool),
            )
            return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shape)

        return jax.lax.scan(add, zeros(), jnp.arange(blocks, dtype=jnp.int32))[0]


def _rows(records: Any, indices: jax.Array) -> Any:
    """The records at these places, which lie within them."""
    # Without the fill of places outside, a masked copy of the whole batch.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf).at[indices].get(mode="clip"), records)


def drawn_noise(key: jax.Array, like: Any, in_grid: jax.Array, scale: Any, levels: int) -> Any:
    """Noise for :func:`_with_noise` shaped like a pytree.

    In integers of std ``in_grid · scale`` grid units where ``levels`` says of how many draws
    (``discrete_gaussian.py``). Else two trees of standard normals: a coarse part and a fine one, which reaches the bits
    that the coarse part, a float32, does not (``fixed_point.py``).
    """
    if levels:
        return FixedPoint(*integer_noise.tree_noise(key, like, in_grid, scale, levels))
    return tuple(randomness.tree_normal(key, like, copies=2))


def noise_on_grid(key: jax.Array, size: int, noise_std: jax.Array, grid: jax.Array) -> jax.Array:
    """Gaussian noise as whole multiples of a grid, for a float64 sum that is rounded to it; (size,) float64.

    As :func:`drawn_noise`, a coarse part and a fine one, which reaches the bits that a float32 does not.

    Args:
        key: used for nothing else.
        size: number of coordinates.
        noise_std: std of the noise, in units of the sum.
        grid: a power of two.
    """
    coarse, fine = randomness.normal(key, (2, size)).astype(jnp.float64)
    return jnp.round(noise_std * (coarse + fixed_point.FINE_NOISE * fine) / grid)


def _with_noise(total: FixedPoint, noise: Any, in_grid: jax.Array, scale: Any) -> FixedPoint:
    """Add noise of :func:`drawn_noise`, of std ``in_grid · scale`` grid units, to an exact sum."""
    if isinstance(noise, FixedPoint):
        return total + noise
    for size, part in zip((1.0, fixed_point.FINE_NOISE), noise, strict=True):
        total = fixed_point.add_noise(total, jax.tree.map(lambda n, s=size: n * (s * in_grid) * scale, part))
    return total


def select_by(
    sampling: Sampling, num_records: int, slots: int, shards: int, axis: str
) -> Callable[[jax.Array], Any] | None:
    """Return the selector of a query: :func:`selection.selector`, or on a mesh that of the shard a device holds.

    Args:
        sampling: scheme.
        num_records: N.
        slots: rows that a batch of all records has room for.
        shards: devices along the records.
        axis: their mesh axis.
    """
    if shards == 1:
        return selection.selector(sampling, num_records, slots)
    select = selection.shard_selector(sampling, num_records, shards, sampling.shard_slots(num_records, shards, slots))
    return lambda key: select(key, jax.lax.axis_index(axis))
