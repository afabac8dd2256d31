r"""Scores of an adversary who sees a release and knows everything but one record.

**Samplers.** The score is the log-likelihood ratio of the private gradients of all steps, which a trace reveals. With z
the step's noise multiplier, q its rate and y the gradient's likelihood part on the clipped sum, in units of C, less
what all other records add (b·m_B of a batch of them),

    Σ_steps log[(1 − q) + q e^{(y·u − ‖u‖²/2)/z²}] − log[(1 − q) + q e^{(y·v − ‖v‖²/2)/z²}],   u = m − m_B, v = m' − m_B

for clipped gradients m, m' of the record and its replacement and m_B of another, all at the step's own position. Any
score is valid. Where this is not the ratio (a broken query does not follow its law, or a step releases a second moment
too), the audit has less power. A wrapper around the sampler computes it inside the real engine, whose chains are the
repeated runs. A release of several chains scores their sum.

**One-shot mechanisms** score the coordinate of what they release in the direction in which a record moves it.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.audit.neighbours import Neighbours
from dpmcmc.engine.life import reserved
from dpmcmc.engine.result import Result
from dpmcmc.mechanisms.certified_ops import CertifiedOPS
from dpmcmc.mechanisms.ops import OPS
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.metric import flat
from dpmcmc.privacy.query.per_record_gradients import PerRecordGradients
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target

#: Most posterior draws that an engine makes at once.
_AT_ONCE = 1000

#: (coins (m,), count) -> scores of ``count`` independent releases, (count, m).
Scores: TypeAlias = Callable[[np.ndarray, int], np.ndarray]

#: None: fresh OS entropy for every release; otherwise a seed of reproducible keys.
Keys = Iterator[jax.Array | None]


def keys_of(seed: int | None) -> Keys:
    """Yield a key for each call of the engine."""
    count = 0
    while True:
        yield None if seed is None else jax.random.fold_in(jax.random.key(seed), count)
        count += 1


def released(plan: Plan, data: PyTree, key: jax.Array | None) -> Result:
    """Return the release of a plan, as ``dpmcmc.sample`` does, without its warnings."""
    with reserved(plan, key=key) as life:
        life.read(data)
        return life.carry_out()


class ObservedState(NamedTuple):
    """The sampler's state, its position, and the score so far, (m,)."""

    position: PyTree
    inner: Any
    score: jax.Array


class ObservedInfo(NamedTuple):
    """The score so far, (m,)."""

    score: jax.Array


@dataclass(frozen=True, eq=False)
class Observed:
    """A plan's sampler, with an adversary's score in its state; nothing else changes.

    Args:
        plan: private; its sampler and its query's public numbers.
        target: what the query evaluates, bound.
        neighbours: what the adversary knows.
    """

    plan: Plan
    target: Target
    neighbours: Neighbours

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.plan.sampler, name)

    def init(self, key: jax.Array, position: PyTree) -> ObservedState:
        """Return the sampler's state, with score 0."""
        inner = self.plan.sampler.init(key, position)
        return ObservedState(inner.position, inner, jnp.zeros(self.neighbours.canaries))

    def step(
        self,
        key: jax.Array,
        state: ObservedState,
        gradient: PrivateGradient,
        t: jax.Array,
    ) -> tuple[ObservedState, ObservedInfo]:
        """Return the sampler's step, with the score so far."""
        score = state.score + self._log_ratio(state.position, gradient)
        inner = self.plan.sampler.step(key, state.inner, gradient, t)[0]
        return ObservedState(inner.position, inner, score), ObservedInfo(score)

    def _log_ratio(self, position: PyTree, gradient: PrivateGradient) -> jax.Array:
        """Return the log-likelihood ratio of one step's releases, (m,)."""
        plan = self.plan
        m = self.neighbours.canaries
        assert plan.privacy is not None
        clip = np.float32(plan.privacy.clip)
        batch = plan.batch_size
        unit = np.float32(batch / plan.num_records) / clip
        prior = jax.grad(lambda p: -self.target.log_prior(p))(position)
        likelihood = self._whitened(jax.tree.map(jnp.subtract, gradient.value, prior))
        each = self._clipped(position) / clip
        other = each[-1]
        y = unit * likelihood - batch * other
        z = unit * gradient.noise_std
        here, there = (
            (rows @ y - jnp.sum(rows * rows, axis=-1) / 2) / z**2
            for rows in (each[:m] - other, each[m : 2 * m] - other)
        )
        q = plan.sampling.rate(plan.num_records)
        absent = np.float32(np.log1p(-q) if q < 1 else -np.inf)
        present = np.float32(np.log(q))
        return jnp.logaddexp(absent, present + here) - jnp.logaddexp(absent, present + there)

    def _whitened(self, tree: PyTree) -> jax.Array:
        metric = self.plan.sampler_run.offers.metric
        vector = flat(tree)[0]
        return vector if metric is None else metric.whiten(vector)

    @property
    def _gradients(self) -> PerRecordGradients:
        """Gradients of records as the plan's query clips them."""
        plan = self.plan
        metric = plan.sampler_run.offers.metric
        assert plan.privacy is not None
        blind = dataclasses.replace(plan, target=self.target).label_blind
        size = (plan.num_records, plan.batch_size)
        return PerRecordGradients(self.target, *size, plan.privacy.clip, None, metric=metric, label_blind=blind)

    def _clipped(self, position: PyTree) -> jax.Array:
        """Return clipped gradients of the m records, of their m replacements, and of another record, (2m + 1, p)."""
        assert self.plan.privacy is not None
        sides = (
            self.neighbours.inside,
            self.neighbours.outside,
            self.neighbours.background,
        )
        records = jax.tree.map(
            lambda a, b, c: jnp.concatenate([a, b, jnp.asarray(c)[None]]),
            *map(_device, sides),
        )

        each = jax.vmap(lambda tree: flat(tree)[0])(self._gradients.scores(position, records))
        norms = jnp.linalg.norm(each, axis=1, keepdims=True)
        shrunk = each * jnp.minimum(1.0, np.float32(self.plan.privacy.clip) / jnp.maximum(norms, 1e-30))
        return jnp.where(jnp.isfinite(norms), shrunk, 0.0)


def _device(tree: PyTree) -> PyTree:
    return jax.tree.map(
        lambda a: np.asarray(a, np.float32) if np.issubdtype(np.asarray(a).dtype, np.floating) else a,
        tree,
    )


class Sampled:
    """Scores of a sampler's plan.

    Args:
        plan: what is audited: its noise, batches, room and grid are used as they are.
        target: the plan's own or a probe, bound.
        neighbours: data sets.
        keys: of the runs.
    """

    def __init__(self, plan: Plan, target: Target, neighbours: Neighbours, keys: Keys) -> None:
        self.plan = plan
        self.neighbours = neighbours
        self.keys = keys
        # Only the last step is kept, which has the score. A probe may have more parameters than the plan.
        self.audited = dataclasses.replace(plan, target=target).with_last(
            sampler=Observed(plan, target, neighbours),
            burn_in=0,
            thin=plan.steps,
            curvature=None,
            noise=dataclasses.replace(plan.noise, coordinates=None),
        )

    def __call__(self, coins: np.ndarray, count: int) -> np.ndarray:
        """Return scores of ``count`` independent releases, (count, m).

        Raises:
            DivergedError: a chain left the range of floats.
        """
        plan = self.audited.with_last(chains=count * self.plan.chains)
        result = released(plan, self.neighbours.data(coins), next(self.keys))
        score = np.asarray(result.info.score, np.float64)[:, -1]
        return score.reshape(count, self.plan.chains, -1).sum(axis=1)


class Estimated:
    """Scores of a release: its coordinate in the direction in which the record moves it relative to its replacement.

    The direction is the gradient of log p(x|θ) − log p(x'|θ) at the target's public start. For a posterior draw under a
    model of one linear predictor this coordinate tells as much as the likelihood ratio.
    """

    def __init__(self, plan: Plan, neighbours: Neighbours, keys: Keys) -> None:
        self.plan = plan
        self.neighbours = neighbours
        self.keys = keys
        start = plan.target.init(jax.random.key(0))

        def pull(side: PyTree) -> jax.Array:
            each = jax.vmap(lambda record: flat(jax.grad(plan.target.log_likelihood)(start, record))[0])
            return each(_device(side))

        self.directions = np.asarray(pull(neighbours.inside) - pull(neighbours.outside), np.float64)

    def __call__(self, coins: np.ndarray, count: int) -> np.ndarray:
        """Return scores of ``count`` independent releases, (count, m), each summed over its draws."""
        data = self.neighbours.data(coins)
        several = isinstance(self.plan.mechanism, (OPS, CertifiedOPS))
        draws = self._posterior_draws(data, count) if several else self._estimates(data, count)
        return np.concatenate(draws).reshape(count, -1, len(coins)).sum(axis=1)

    def _posterior_draws(self, data: PyTree, count: int) -> list[np.ndarray]:
        """Return scores of independent draws; one call with more draws makes those of many releases."""
        found = []
        wanted = count * self.plan.draws
        while wanted > 0:
            now = min(wanted, _AT_ONCE)
            more = dataclasses.replace(self.plan.mechanism, draws=now)
            plan = self.plan.with_last(mechanism=more, draws=now)
            found.append(self._along(released(plan, data, next(self.keys)).flat_draws()))
            wanted -= now
        return found

    def _estimates(self, data: PyTree, count: int) -> list[np.ndarray]:
        """Return scores of releases that are made one by one."""
        # Only the first release checks the records, which takes longer than a draw; the others use the same records.
        out = [self._along(released(self.plan, data, next(self.keys)).flat_draws())]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for _ in range(count - 1):
                streams, _ = streams_of(next(self.keys))
                out.append(self._along(self.plan.mechanism.draw(self.plan, data, streams)))
        return out

    def _along(self, draws: PyTree) -> np.ndarray:
        """Return the scores of draws, (n, m)."""
        flattened = [np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(draws)]
        return np.concatenate(flattened, axis=1).astype(np.float64) @ self.directions.T


def source(plan: Plan, target: Target, neighbours: Neighbours, seed: int | None) -> Scores:
    """Return the function that scores releases of a plan."""
    keys = keys_of(seed)
    return Estimated(plan, neighbours, keys) if plan.run is None else Sampled(plan, target, neighbours, keys)
