"""Replay: a plan's own steps, run again on other records under the same keys, with all that its query did.

The steps are the engine's (``program.Program.step``), so that whatever is wrong with program, query, sampler or keys
is wrong here too. The query is watched, not changed: its keys, the records it selected, its exact sums and what it
released come back beside states and infos. What it releases may be replaced by what it released on other records, so
that two runs stay at the same positions, and whatever else differs between them was read past the query.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc import targets
from dpmcmc.engine import program
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query.metric import flat
from dpmcmc.privacy.query.query import GradientQuery, PrivateGradient
from dpmcmc.privacy.query.randomness import Streams, streams_of
from dpmcmc.privacy.query.second_moment import released_shape

#: Compiles faster; for checks that do not depend on how a compiler rounds.
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class Call(NamedTuple):
    """What one call of the query did; every leaf has leading axes (chains, steps).

    Attributes:
        params: raveled parameters, (p,).
        batch_key, noise_key: words of the keys.
        noise_std: s_t.
        selections: (indices, mask) of each minibatch; empty where all records take part.
        gradient: limbs of the exact clipped sum, raveled, ((p,), (p,)).
        moment: likewise of the second moment's; empty without one.
        released: what the sampler got to see, before anything was put in its place.
    """

    params: Any
    batch_key: Any
    noise_key: Any
    noise_std: Any
    selections: Any
    gradient: Any
    moment: Any
    released: Any


class Trace(NamedTuple):
    """What a run did.

    Attributes:
        calls: of the query in each step, one after another.
        queries: the query objects behind them.
        states, infos: of the sampler after each step, leaves (chains, steps, ...).
    """

    calls: list[Call]
    queries: list[GradientQuery]
    states: Any
    infos: Any

    def sum_of(self, i: int = 0) -> np.ndarray:
        """Exact clipped gradient sum of the i-th call over C, (chains, steps, p) float64."""
        return _exact(self.calls[i].gradient, self.queries[i].bits)

    def moment_of(self, i: int = 0) -> np.ndarray:
        """Exact second-moment sum over C², in coordinates of unit Frobenius norm, (chains, steps, entries)."""
        entries, p = _exact(self.calls[i].moment, self.queries[i].second_bits), self.calls[i].params.shape[-1]
        if entries.shape[-1] > p:
            row, column = np.triu_indices(p)
            entries = entries * np.where(row == column, 1.0, np.sqrt(2))
        return entries


def _exact(limbs: Any, bits: int) -> np.ndarray:
    high, low = (np.asarray(part, np.float64) for part in limbs)
    return (high * 65536 + low) * 2.0**-bits


class _Watched(GradientQuery):
    """The real query, which leaves what it did in ``_log`` and may be told what to say."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        if self.select is not None:
            object.__setattr__(self, "select", _watched_select(self.select))

    def draw(self, params, batch_key, noise_key, noise_std):  # type: ignore[no-untyped-def]
        log = _log[-1]
        log.selections.append([])
        log.keys.append(tuple(map(_words, (batch_key, noise_key))))
        return super().draw(params, batch_key, noise_key, noise_std)

    def answer(self, params, records, draws, noise_std, t=None):  # type: ignore[no-untyped-def]
        log = _log[-1]
        log.moment = None
        released = super().answer(params, records, draws, noise_std, t)
        moment = log.moment
        if self.second is not None and self.second.every > 1:  # computed again: what a condition holds cannot leave it
            moment = jax.tree.map(
                lambda limb: jnp.where(self.second.asks(t), limb, 0),
                super().moment_sum(params, records, draws.second_batch or draws.batch),
            )
        limbs = lambda total: tuple(flat(part)[0] for part in total) if total is not None else ()  # noqa: E731
        log.queries.append(self)
        log.calls.append(
            Call(
                flat(params)[0],
                *log.keys.pop(),
                jnp.asarray(noise_std, jnp.float32),
                tuple(log.selections.pop()),
                limbs(log.gradient),
                limbs(moment),
                released,
            )
        )
        if len(log.calls) > 1:
            return released
        return jax.tree.map(lambda given, own: jnp.where(log.replace, given, own), log.given, released)

    def gradient_sum(self, *arguments: Any) -> Any:
        """The real sum, kept."""
        _log[-1].gradient = super().gradient_sum(*arguments)
        return _log[-1].gradient

    def moment_sum(self, *arguments: Any) -> Any:
        """The real sum, kept."""
        _log[-1].moment = super().moment_sum(*arguments)
        return _log[-1].moment


def _words(key: jax.Array) -> jax.Array:
    """Words of a key."""
    return jax.random.key_data(key)


def _watched_select(select: Any) -> Any:
    def watched(key: jax.Array) -> Any:
        chosen = select(key)
        if _log and _log[-1].selections:
            _log[-1].selections[-1].append(chosen)
        return chosen

    return watched


class _Log:
    def __init__(self, given: Any, replace: Any) -> None:
        self.given, self.replace = given, replace
        self.calls: list[Call] = []
        self.queries: list[GradientQuery] = []
        self.selections: list[list] = []
        self.keys: list[tuple] = []
        self.gradient: Any = None
        self.moment: Any = None


_log: list[_Log] = []


@contextlib.contextmanager
def _watching(given: Any, replace: Any) -> Iterator[_Log]:
    real = program.GradientQuery
    program.GradientQuery = _Watched  # type: ignore[misc]
    _log.append(_Log(given, replace))
    try:
        yield _log[-1]
    finally:
        _log.pop()
        program.GradientQuery = real  # type: ignore[misc]


class Replay:
    """A plan's steps, compiled once for records of one shape.

    Args:
        plan: private.
        records: any of the shape.
        options: of the compiler; ``FAST`` or its defaults.
    """

    def __init__(self, plan: Any, records: Any, options: dict[str, Any] | None = None) -> None:
        self.plan = plan
        records = jax.tree.map(np.asarray, records)
        target = targets.bind(plan.target, targets.record_shapes(records))
        params = jax.eval_shape(target.init, jax.random.key(0))
        moment = () if plan.sampler_run.second is None else (released_shape(plan.sampler_run.second, params),)
        number = jax.ShapeDtypeStruct((), np.float32)
        one = PrivateGradient(params, number, moment)  # type: ignore[arg-type]
        self.nothing = jax.tree.map(lambda s: np.zeros((plan.chains, plan.steps, *s.shape), s.dtype), one)
        self._program = program.Program.of(plan, target)
        self._numbers = self._program.numbers(plan, target)
        self._queries: list[GradientQuery] = []
        streams, _ = streams_of(0, plan.guarantee is not None)
        first = jax.tree.map(lambda leaf: leaf[0], self.nothing)
        arguments = (streams, np.int32(0), self._device(records), np.bool_(False), first)
        self._run = jax.jit(self._chain).lower(*arguments).compile(compiler_options=options)

    def _chain(self, streams: Streams, chain: jax.Array, records: Any, replace: jax.Array, given: Any) -> Any:
        cell = program.Chain(self._numbers, streams, jnp.int32(self.plan.steps), chain)

        def step(state: Any, inputs: Any) -> Any:
            t, s, instead = inputs
            with _watching(instead, replace) as log:
                following, info = self._program.step(cell, state, t, s, records)
            self._queries = log.queries
            return following, (log.calls, following, info)

        steps = jnp.arange(self.plan.steps, dtype=jnp.int32)
        return jax.lax.scan(step, self._program.start(cell), (steps, jnp.asarray(self.plan.noise_std), given))[1]

    def __call__(self, records: Any, streams: Streams | int = 0, given: Trace | None = None) -> Trace:
        """Run on records.

        Args:
            records: of the shape compiled for.
            streams: keys, or a seed of some.
            given: what the first call of each step is to release in place of its own, from another run.
        """
        keys = streams_of(streams, self.plan.guarantee is not None)[0] if isinstance(streams, int) else streams
        if given is not None:
            return self._replayed(records, keys, given.calls[0].released)
        # A compiler may compute a release twice, for the sampler and for the log, and round the two differently. So a
        # run takes its own releases from outside too, as those that are compared with it do.
        released = self._replayed(records, keys, None).calls[0].released
        trace = self._replayed(records, keys, released)
        return trace._replace(calls=[trace.calls[0]._replace(released=released), *trace.calls[1:]])

    def _replayed(self, records: Any, keys: Streams, released: Any) -> Trace:
        instead = self.nothing if released is None else released
        chains = [
            self._run(
                keys,
                np.int32(chain),
                self._device(records),
                np.bool_(released is not None),
                jax.tree.map(lambda leaf, c=chain: leaf[c], instead),
            )
            for chain in range(self.plan.chains)
        ]
        calls, states, infos = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *chains)
        return Trace(calls, self._queries, states, infos)

    @staticmethod
    def _device(records: Any) -> Any:
        def convert(leaf: Any) -> jax.Array:
            array = np.asarray(leaf)
            return jnp.asarray(array, jnp.float32 if np.issubdtype(array.dtype, np.floating) else None)

        return jax.tree.map(convert, records)


def share(first: Trace, second: Trace, i: int = 0) -> np.ndarray:
    """How far apart the exact sums of two runs are, over what one record adds at most in float32, (chains, steps).

    Where one minibatch has two sums, both are whitened by their noise and seen as one vector. At most 1 where a record
    came or went, 2 where one was replaced.
    """
    one, second_moment = 1 + KAPPA, first.queries[i].second
    moved = np.linalg.norm(first.sum_of(i) - second.sum_of(i), axis=-1)
    if second_moment is None:
        return moved / one
    other = np.linalg.norm(first.moment_of(i) - second.moment_of(i), axis=-1)
    if second_moment.own_batch:
        return np.maximum(moved / one, other / one**2)
    # A step that does not ask for it releases, and is charged for, the gradient alone.
    ratio = np.where(second_moment.asks(np.arange(moved.shape[-1])), second_moment.ratio, np.inf)
    return np.hypot(moved, other / ratio) / np.hypot(one, one**2 / ratio)


def same_bits(first: Any, second: Any) -> bool:
    """Whether two pytrees hold the same numbers, NaN included."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in pairs)
