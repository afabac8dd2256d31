"""Runs a Plan: a chunked ``lax.scan`` over steps, ``vmap`` over chains.

A chunk is one device call of a fixed number of steps, compiled once per plan shape: noise, keys and records are
its arguments, so another seed compiles nothing, nor does another ε that leaves the batch's room as it is. Between
chunks the host keeps the thinned draws, moves the progress bar and stops a chain that has diverged. Padding steps
at the end of the last chunk leave the state as it is and are not released.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc import targets
from dpmcmc.planning import Plan
from dpmcmc.privacy import Guarantee
from dpmcmc.privacy.query import GradientQuery
from dpmcmc.privacy.randomness import SecretKey, Streams, streams_of
from dpmcmc.privacy.second_moment import SecondMoment
from dpmcmc.result import Result

#: Most steps in one device call; fewer where the draws of a chunk would not fit ``_CHUNK_BYTES``.
_CHUNK_STEPS = 256
_CHUNK_BYTES = 32 << 20

Progress = Callable[[int, int], None]


class DivergedError(RuntimeError):
    """A chain left the range of floats. Every step up to then was released, so its cost is spent."""

    def __init__(self, step: int, norm: float, guarantee: Guarantee | None) -> None:
        self.step = step
        spent = "" if guarantee is None else f" The run still spent {guarantee}."
        super().__init__(
            f"the chain diverged by step {step}{f' (last norm {norm:.3g})' if norm else ''}: lower "
            f"sampler.step_size, or privacy.clip so that less noise is needed.{spent}"
        )


def sample(
    plan: Plan,
    data: Any,
    *,
    key: SecretKey | jax.Array | int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a plan on records.

    Args:
        plan: from :func:`dpmcmc.plan`.
        data: pytree of arrays with leading axis N = ``plan.num_records``.
        key: None or a ``SecretKey``: fresh OS entropy, and the run carries its guarantee. A JAX key or an int
            makes the run reproducible, and anybody who knows it can subtract the noise: no guarantee.
        out: folder to save the result in.
        progress: called on the host with (steps done, steps in all).

    Returns:
        Result, with draws of shape (chains, draws, ...).

    Raises:
        ValueError: wrong N or shapes, or rows that are not finite (before anything is computed from them).
        DivergedError: a chain left the range of floats.
    """
    records = _check_records(plan, data)
    streams, secret = streams_of(key)
    shapes = targets.record_shapes(records)
    target = targets.bind(plan.target, shapes)
    started = time.perf_counter()
    states = _initial_states(plan, target, streams)
    width = _chunk_steps(plan, states)
    kept_in_chunk = width // plan.thin + 1
    run_chunk = _compile(
        target,
        plan.sampler,
        plan.sampling,
        plan.num_records,
        None if plan.privacy is None else plan.privacy.clip,
        plan.slots,
        (plan.bits, plan.second_bits),
        plan.second,
        plan.batch_size,
        plan.chains,
        width,
    )
    noise_std = np.pad(plan.noise_std, (0, -len(plan.noise_std) % width), mode="edge")
    zero = jnp.zeros(kept_in_chunk, jnp.int32)
    arguments = (states, jnp.int32(0), jnp.int32(plan.steps), streams, noise_std[:width], records, zero)
    compiled = run_chunk.lower(*arguments).compile()
    compile_seconds = time.perf_counter() - started
    started = time.perf_counter()
    draws, infos, norm = [], [], 0.0
    for first in range(0, plan.steps, width):
        kept = _kept_steps(plan, first, width)
        indices = np.zeros(kept_in_chunk, np.int32)
        indices[: len(kept)] = kept - first
        states, positions, info, finite, norms = compiled(
            states,
            jnp.int32(first),
            jnp.int32(plan.steps),
            streams,
            jnp.asarray(noise_std[first : first + width]),
            records,
            jnp.asarray(indices),
        )
        if not bool(finite):
            raise DivergedError(min(first + width, plan.steps), norm, plan.guarantee if secret else None)
        norm = float(norms)
        if len(kept):
            draws.append(_head(positions, len(kept)))
            infos.append(_head(info, len(kept)))
        if progress is not None:
            progress(min(first + width, plan.steps), plan.steps)
    run_seconds = time.perf_counter() - started
    positions = _chains_first(draws)
    result = Result(
        plan=plan,
        draws=_constrained(target, positions),
        positions=positions,
        info=_chains_first(infos),
        guarantee=plan.guarantee if secret else None,
        wall_seconds={"compile": compile_seconds, "run": run_seconds},
    )
    if out is not None:
        result.save(out)
    return result


def _initial_states(plan: Plan, target: Any, streams: Streams) -> Any:
    """One state per chain, leading axis chains; depends on keys alone."""

    def one(chain: jax.Array) -> Any:
        start, dynamics = jax.random.split(streams.at(chain, 0).init)
        return plan.sampler.init(dynamics, target.init(start))

    return jax.jit(jax.vmap(one))(jnp.arange(plan.chains))


def _chunk_steps(plan: Plan, states: Any) -> int:
    """Steps per device call, as even as possible."""
    step_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(states.position))
    most = max(1, min(_CHUNK_STEPS, _CHUNK_BYTES // max(step_bytes, 1), plan.steps))
    return math.ceil(plan.steps / math.ceil(plan.steps / most))


def _kept_steps(plan: Plan, first: int, width: int) -> np.ndarray:
    """Indices of the steps in [first, first + width) whose result is a kept draw."""
    steps = np.arange(first, min(first + width, plan.steps))
    since = steps + 1 - plan.burn_in
    return steps[(since > 0) & (since % plan.thin == 0)]


def _compile(*static: Any) -> Any:
    """The jitted chunk, shared by plans that differ in noise, keys or records only."""
    try:
        return _compile_cached(*static)
    except TypeError:  # a user's target or sampler without a hash
        return _compile_cached.__wrapped__(*static)


@functools.lru_cache(maxsize=32)
def _compile_cached(
    target: Any,
    sampler: Any,
    sampling: Any,
    num_records: int,
    clip: float | None,
    slots: int,
    bits: tuple[int, int],
    second: SecondMoment | None,
    batch_size: float,
    chains: int,
    width: int,
) -> Any:
    query = GradientQuery(
        target,
        num_records,
        batch_size,
        clip,
        sampling.selector(num_records, slots),
        bits[0],
        second=second,
        second_bits=bits[1],
        metric=getattr(sampler, "metric", None),
    )
    chain_ids = jnp.arange(chains)

    def step(state: Any, chain: jax.Array, t: jax.Array, noise_std: jax.Array, streams: Streams, records: Any):  # type: ignore[no-untyped-def]
        keys = streams.at(chain, t)
        gradient = query(state.position, records, keys.batch, keys.noise, noise_std)
        return sampler.step(keys.dynamics, state, gradient, t)

    every_chain = jax.vmap(step, in_axes=(0, 0, None, None, None, None))

    def chunk(states, first, steps, streams, noise_std, records, kept):  # type: ignore[no-untyped-def]
        def body(states, inputs):  # type: ignore[no-untyped-def]
            offset, s = inputs
            t = first + offset
            following, info = every_chain(states, chain_ids, t, s, streams, records)
            states = jax.tree.map(lambda new, old: jnp.where(t < steps, new, old), following, states)
            return states, (states.position, info)

        offsets = jnp.arange(width, dtype=jnp.int32)
        states, (positions, info) = jax.lax.scan(body, states, (offsets, noise_std))
        leaves = jax.tree.leaves(states.position)
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves))
        take = functools.partial(jax.tree.map, lambda leaf: leaf[kept])
        return states, take(positions), take(info), finite, norm

    return jax.jit(chunk, donate_argnums=(0,))


def _head(tree: Any, count: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:count], tree)


def _chains_first(pieces: list[Any]) -> Any:
    """Concatenate (draws, chains, ...) pieces into (chains, draws, ...)."""
    return jax.tree.map(lambda *leaves: np.swapaxes(np.concatenate(leaves), 0, 1), *pieces)


def _constrained(target: Any, positions: Any) -> Any:
    """Draws in the model's own coordinates, where the target samples in others (``constrain``)."""
    constrain = getattr(target, "constrain", None)
    if constrain is None:
        return positions
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.vmap(constrain)))(positions))


def _check_records(plan: Plan, data: Any) -> Any:
    """Device arrays of the right length, finite, float32 or int32, and of the values the target is for."""
    leaves = jax.tree_util.tree_leaves_with_path(data)
    if not leaves:
        raise ValueError("data has no arrays; pass a pytree such as {'x': (N, d), 'y': (N,)}")
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        array = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        if array.ndim == 0 or array.shape[0] != plan.num_records:
            raise ValueError(
                f"data{name} has shape {array.shape}, and the plan is for num_records {plan.num_records}: "
                "plan again with the public number of records"
            )
        if jnp.issubdtype(array.dtype, jnp.floating):
            with np.errstate(over="ignore"):
                bad = ~np.isfinite(np.asarray(array, np.float32)).reshape(plan.num_records, -1).all(axis=1)
            if bad.any():
                raise ValueError(
                    f"data{name} has {int(bad.sum())} rows that are not finite (first: row {int(bad.argmax())}); "
                    "remove or impute them"
                )

    def convert(leaf: Any) -> jax.Array:
        array = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        return jnp.asarray(array, jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else None)

    targets.check(plan.target, data)
    return jax.tree.map(convert, data)
