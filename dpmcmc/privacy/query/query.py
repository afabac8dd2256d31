r"""The one place where records are read: a clipped, noisy minibatch gradient.

    value = −∇ log prior(θ) + (N/b) · ( Σ_{i in batch} clip_C(−∇ log p(x_i | θ)) + N(0, (s_t b/N)² I) )

b is the EXPECTED batch size, a public constant, so the normaliser does not depend on the data; s_t is the
noise std in gradient units, decided by the plan; the noise multiplier is s_t b / (N C). Everything a
sampler does with ``value`` is post-processing. A sampler may ask for a second moment beside it
(``metric.py``, with what that costs), and for clipping and noise in a public metric (``metric.py``).

Sensitivity of the clipped sum, per adjacency: C (add_remove, zero_out), 2C (replace_one), exactly on the
fixed-point grid and within 1 + ``KAPPA`` in float32 (``exact_sums.py``), which the plan charges. A record
whose gradient is not finite contributes zero, so no abort and no NaN depends on the data.

Claim: A step releases a function of the noisy sum and of public constants.
Proof: the normaliser is the expected size of a batch, and the gradient of the prior is added after the noise.
Held by: test_released_values_carry_noise_of_the_declared_std,
test_neighbours_under_the_same_keys_differ_by_their_sums_alone, "prior inside the clip", "prior once per record",
"normaliser of the actual batch", "normaliser rounded to whole records", "minibatch key public",
"training loss in Info", "thermostat reads records", "Fisher information reads records"
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.noise_tables import LEVELS
from dpmcmc.privacy.query import integer_noise, randomness
from dpmcmc.privacy.query.exact_sums import FixedPoint, float32, materialised
from dpmcmc.privacy.query.metric import flat
from dpmcmc.privacy.query.per_record_gradients import LINEAR_ROWS, Batch, PerRecordGradients
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment, Step
from dpmcmc.privacy.query.selection import (
    select_by as select_by,  # for the engine, which may not name the file that selects
)
from dpmcmc.storage.pytree import PyTree, size_of


class PrivateGradient(NamedTuple):
    """Private gradient: all that a sampler gets to see of the data.

    Attributes:
        value: noisy gradient of the potential, a pytree like the parameters.
        noise_std: s_t, std of the Gaussian noise in ``value`` (in units of the metric, where there is one); () float32.
        releases: other private releases of the step: a ``PrivateSecondMoment`` where one was asked for.

    Example:
        >>> import dpmcmc
        >>> import jax
        >>> import jax.numpy as jnp
        >>> sampler = dpmcmc.SGLD(step_size=4.0).bind(num_records=1000)
        >>> gradient = dpmcmc.privacy.PrivateGradient(value=jnp.ones(2), noise_std=jnp.float32(22.4))
        >>> state, info = sampler.step(jax.random.key(0), sampler.init(jax.random.key(1), jnp.zeros(2)), gradient, 0)
        >>> state.position
        Array([-0.004, -0.004], dtype=float32)
    """

    value: PyTree
    noise_std: jax.Array
    releases: tuple[PrivateSecondMoment, ...] = ()


class StepRandomness(NamedTuple):
    """Randomness of one query: a function of keys and public numbers, so drawn before a record is read.

    Attributes:
        batch: (indices or None, mask or None): which records take part, all of them where both are None; without
            indices the records at hand are the batch's.
        second_batch: likewise of the second moment's own, or None.
        noise: on the gradient's sum: a ``FixedPoint`` of integer noise; standard normals without privacy.
        second_noise: key of the noise on the second moment's, which is drawn in the steps that ask for it; or None.
    """

    batch: Batch
    second_batch: Batch | None
    noise: PyTree
    second_noise: PyTree


@dataclass(frozen=True)
class GradientQuery(PerRecordGradients):
    """A private (or, with ``clip=None``, plain) gradient of the potential.

    Args:
        target: the model; a ``clipped_gradient_sum`` method is used where it has one.
        num_records: N, public.
        batch_size: b, expected, public.
        clip: C, a number or traced; None for the non-private query.
        select: key -> (indices, mask), or None for all records.
        bits: grid exponent of the fixed-point sum.
        microbatch: rows per ``vmap`` of per-record gradients; fewer where these would be large.
        second: a second moment to release beside the gradient, or None.
        second_bits: its grid exponent.
        metric: public F in whose norm gradients are clipped and noised, or None for the identity.
        label_blind: whether gradients are weighted before they are clipped (``per_record_gradients.py``).
        levels: draws per coordinate of integer noise on the gradient and on the second moment
            (``integer_noise.py``).
        coordinates: numbers with integer noise that a step is charged for, the most it may release; None: no limit.
        rows: records at hand, where they are not all N.
        axis: mesh axis over whose devices the records are split and sums are added, or None.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from dpmcmc.privacy import GradientQuery
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(num_features=2)
        >>> query = GradientQuery(target, num_records=4, batch_size=4, clip=1.0, select=None)
        >>> records = {"x": jnp.ones((4, 2)), "y": jnp.array([0, 1, 1, 1])}
        >>> batch_key, noise_key = jax.random.split(jax.random.key(0))
        >>> gradient = query(jnp.zeros(2), records, batch_key, noise_key, jnp.float32(8.0))
        >>> gradient.value.shape, float(gradient.noise_std)
        ((2,), 8.0)
    """

    levels: tuple[int, ...] = (LEVELS[-1], LEVELS[-1])
    coordinates: int | None = None
    rows: int | None = None

    def __call__(
        self,
        params: PyTree,
        records: PyTree,
        batch_key: jax.Array,
        noise_key: jax.Array,
        noise_std: jax.Array,
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

    def draw(
        self,
        params: PyTree,
        batch_key: jax.Array,
        noise_key: jax.Array,
        noise_std: jax.Array,
    ) -> StepRandomness:
        """Everything random of one query.

        Args:
            params: only their shapes are looked at.
            batch_key, noise_key, noise_std: as of the query.
        """
        second_batch = second_noise = None
        if self.second is not None:
            noise_key, second_noise = jax.random.split(noise_key)
            if self.second.own_batch:
                batch_key, second_batch_key = jax.random.split(batch_key)
                second_batch = self._batch(second_batch_key)
        # In a metric, noise is on the whitened gradient, which is one vector.
        like = params if self.metric is None else jax.ShapeDtypeStruct((size_of(params),), jnp.float32)
        if self.clip is None:
            noise: PyTree = randomness.tree_normal(noise_key, like)[0]
        else:
            noise = drawn_noise(noise_key, like, self._grid(noise_std), 1.0, self.levels[0])
        return StepRandomness(self._batch(batch_key), second_batch, noise, second_noise)

    def answer(
        self,
        params: PyTree,
        records: PyTree,
        draws: StepRandomness,
        noise_std: jax.Array,
        t: Step | None = None,
    ) -> PrivateGradient:
        """The noisy gradient that these draws make of the records; arguments and errors as of the query.

        In step t, where that is given, it may be that no second moment is asked.
        """
        scale = self._scale
        if self.clip is None:
            total = self.plain_sum(params, records, draws.batch)
            likelihood = jax.tree.map(lambda s, n: scale * s + noise_std * n, total, draws.noise)
        else:
            exact = self.gradient_sum(params, records, draws)
            self._check_charged(exact.high, None if self.second is None else self._moment(params).entries)
            noisy = exact + draws.noise
            likelihood = jax.tree.map(lambda s: scale * s, noisy.to_float(self.clip, self.bits))
        releases = () if self.second is None else (self._second_release(params, records, draws, noise_std, t),)
        if self.metric is not None:
            likelihood = flat(params)[1](self.metric.times(likelihood))
        prior = jax.grad(lambda p: -self.target.log_prior(p))(params)
        return PrivateGradient(jax.tree.map(jnp.add, prior, likelihood), noise_std, releases)

    def _second_release(
        self,
        params: PyTree,
        records: PyTree,
        draws: StepRandomness,
        noise_std: jax.Array,
        t: Step | None,
    ) -> PrivateSecondMoment:
        """The noisy second moment of a step that asks for it; nothing is read in another."""
        moment = self._moment(params)

        def asked() -> PrivateSecondMoment:
            if self.clip is None:
                return moment.plain(self.plain_moment(params, records, draws.second_batch or draws.batch))
            in_grid = moment.noise_in_grid(noise_std)
            scale = moment.noise_scale
            # Held, or a compiler draws it again for each of its uses.
            noise = materialised(drawn_noise(draws.second_noise, moment.entries, in_grid, scale, self.levels[1]))
            total = self.moment_sum(params, records, draws.second_batch or draws.batch)
            return moment.released(total + noise, noise_std)

        assert self.second is not None
        if t is None or self.second.every == 1:
            return asked()
        # The number of a step is that of all chains beside each other, so only one branch is computed.
        return jax.lax.cond(self.second.asks(t), asked, moment.nothing)

    def _grid(self, noise_std: jax.Array) -> jax.Array:
        """Std of the noise on the gradient's sum in grid units."""
        assert self.clip is not None
        return noise_std / (self._scale * float32(self.clip * 2.0**-self.bits))

    def _batch(self, key: jax.Array) -> Batch:
        return (None, None) if self.select is None else self.select(key)

    def _check_charged(self, *sums: PyTree) -> None:
        """Refuse sums with more entries than the plan charged integer noise for, by their shapes."""
        released = size_of(sums)
        if self.coordinates is not None and released > self.coordinates:
            raise InputError(
                f"a step releases {released} numbers and the plan charged for {self.coordinates}; bind the target to "
                "its data's shape (num_features) before planning."
            )

    def clipped_sum(self, params: PyTree, records: PyTree, batch_key: jax.Array) -> FixedPoint:
        """Exact Σ clip(−∇ log-likelihood) over the batch, before noise. Private: it must not leave."""
        return self.sums(params, records, StepRandomness(self._batch(batch_key), None, None, None))[0]

    def sums(self, params: PyTree, records: PyTree, draws: StepRandomness) -> tuple[FixedPoint, FixedPoint | None]:
        """(exact clipped gradient sum, exact second-moment sum or None), before noise. Private: must not leave."""
        total = self.gradient_sum(params, records, draws)
        batch = draws.second_batch or draws.batch
        return total, None if self.second is None else self.moment_sum(params, records, batch)

    def gradient_sum(self, params: PyTree, records: PyTree, draws: StepRandomness) -> FixedPoint:
        """Exact clipped gradient sum, before noise. Private: must not leave."""
        self._check_rows(records, draws)
        if self.metric is None and self._in_closed_form:
            total = self._sum_of(partial(self._closed_form_sum, params), records, draws.batch, LINEAR_ROWS)
        else:
            total = self._sum_of(
                partial(self._microbatch_sum, params),
                records,
                draws.batch,
                self._at_once(params),
            )
        return total if self.axis is None else total.across(self.axis)

    def _closed_form_sum(self, params: PyTree, batch: PyTree, mask: jax.Array) -> FixedPoint:
        """The target's own clipped sum of some rows."""
        fast = self.target.clipped_gradient_sum  # type: ignore[attr-defined]  # only where it has one
        how = {"label_blind": True} if self.label_blind else {}  # a target without bounded labels does not take it
        total = fast(params, batch, mask, self.clip, bits=self.bits, **how)
        if not isinstance(total, FixedPoint):
            raise TypeError(
                f"{type(self.target).__name__}.clipped_gradient_sum must return an exact FixedPoint sum (build it with "
                "dpmcmc.privacy.query.exact_sums.linear_sum or clipped_sum): a float32 sum rounds differently on "
                "neighbouring data."
            )
        return total

    def _check_rows(self, records: PyTree, draws: StepRandomness) -> None:
        indices, mask = draws.batch
        # A gather beyond the end would repeat the last record, and its sensitivity with it.
        wanted = (self.rows or self.num_records) if mask is None or indices is not None else mask.shape[0]
        for leaf in jax.tree.leaves(records):
            if leaf.shape[0] != wanted:
                raise InputError(f"records have {leaf.shape[0]} rows, the query was planned for {wanted}")


def drawn_noise(
    key: jax.Array,
    like: PyTree,
    std: jax.Array,
    scale: float | np.ndarray,
    levels: int,
) -> FixedPoint:
    """Integer noise shaped like a pytree, of std ``std · scale`` grid units (``integer_noise.py``)."""
    return FixedPoint(*integer_noise.tree_noise(key, like, std, scale, levels))
