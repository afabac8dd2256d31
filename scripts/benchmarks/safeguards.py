"""Cost of each of privacy's safeguards: SGLD's step from the plainest to dpmcmc's own, one safeguard more a line.

The lines before the query's are written here, for the comparison alone. **They are NOT private**, however like a
private step they look: a batch with replacement is not the one that is charged, float32 sums move by more than the
sensitivity, and ``jax.random.normal`` has no tails beyond 5.42σ.

They are as well made as the engine's, or a ratio would tell of engineering and not of safeguards. The random numbers of
a group of steps are drawn side by side before the steps are taken, rows are aligned and their norms computed once, and
a step stays on one core.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dpmcmc
from benchmarks.problem import CLIP, STEP_SIZE, Size, make_plan, records, sampled
from benchmarks.report import Table
from benchmarks.timing import Clock, in_turn, ratio, scanned
from dpmcmc.engine.sizes import ONE_THREAD
from dpmcmc.privacy import GradientQuery
from dpmcmc.privacy.query import exact_sums
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.privacy.query.selection import selector
from dpmcmc.targets import LogisticRegression

#: Most steps whose random numbers are drawn together, as in the engine.
_TOGETHER = 32


class Gradient(NamedTuple):
    """A gradient of the mean loss with its noise, in two parts.

    Attributes:
        draw: key -> all that is random.
        answer: (θ, records, what was drawn) -> gradient, like θ.
    """

    draw: Callable[[jax.Array], Any]
    answer: Callable[[jax.Array, Any, Any], jax.Array]


def tables(size: Size) -> list[Table]:
    """One table, a ladder."""
    n, d = size.num_records, size.features
    data = records(n, d)
    plan = make_plan(n, d, size.batch, size.steps)
    rungs: dict[str, tuple[str, Clock]] = {
        "no privacy": ("no", clock_without_privacy(size, data)),
        "+ each record clipped, noise by `jax.random.normal`": ("NO", _by_hand(textbook(plan), data, size)),
        "+ a Poisson batch, padded and masked": ("NO", _by_hand(poisson(plan), data, size)),
        "+ exact sums in fixed point": ("NO", _by_hand(exact(plan), data, size)),
        "+ noise in integers, from ChaCha20 keys by purpose (the query)": ("NO", _query(plan, data, size)),
        "+ the engine: batches of any size, chunks, guards, draws to the host (`sample`)": ("yes", sampled(plan, data)),
    }
    times = in_turn({name: clock for name, (_, clock) in rungs.items()}, size.repeats)
    table = Table(
        "Cost of privacy's safeguards",
        f"SGLD, N {n:,}, d {d}, batch {size.batch}. Each line has what the one above has, and one thing more; the "
        "ratios are to the line above and to the first. Lines marked NO look private and are not: they are there to be "
        "compared with. All draw the random numbers of a group of steps side by side, and have aligned rows with their "
        "norms.",
    )
    first = above = times["no privacy"]
    for name, (private, _) in rungs.items():
        table.rows.append(
            {
                "step": name,
                "private": private,
                "µs a step": float(np.median(times[name])),
                "÷ line above": ratio(times[name], above),
                "÷ first": ratio(times[name], first),
            }
        )
        above = times[name]
    return [table]


def clock_without_privacy(size: Size, data: Any) -> Clock:
    """Clock of the step without privacy."""
    return _by_hand(no_privacy(size), data, size)


def no_privacy(size: Size) -> Gradient:
    """A batch with replacement and SGLD's own noise."""
    n = size.num_records
    noise = (2 * STEP_SIZE / n) ** 0.5 / STEP_SIZE

    def answer(theta: jax.Array, data: Any, drawn: Any) -> jax.Array:
        at, normal = drawn
        x, y, _ = _rows(data, at)
        return theta / n + _of(theta, _residual(theta, x, y) @ x) / size.batch + noise * normal

    return Gradient(_with_replacement(size.features, n, size.batch), answer)


def textbook(plan: dpmcmc.Plan) -> Gradient:
    """Return the gradient as DP-SGD is usually written, in float32 throughout."""
    batch = int(plan.batch_size)

    def answer(theta: jax.Array, data: Any, drawn: Any) -> jax.Array:
        at, normal = drawn
        return _noised(plan, theta, _float_sum(theta, *_rows(data, at), jnp.ones(batch, bool)), normal)

    return Gradient(_with_replacement(plan.target.num_features, plan.num_records, batch), answer)


def poisson(plan: dpmcmc.Plan) -> Gradient:
    """Return the gradient of a batch that is drawn as the plan draws it."""

    def answer(theta: jax.Array, data: Any, drawn: Any) -> jax.Array:
        (at, mask), normal = drawn
        return _noised(plan, theta, _float_sum(theta, *_rows(data, at), mask), normal)

    return Gradient(_poisson_batch(plan), answer)


def exact(plan: dpmcmc.Plan) -> Gradient:
    """Return the gradient with the exact sum that dpmcmc takes."""

    def answer(theta: jax.Array, data: Any, drawn: Any) -> jax.Array:
        (at, mask), normal = drawn
        x, y, norms = _rows(data, at)
        total = exact_sums.linear_sum(_residual(theta, x, y), x, mask, CLIP, plan.noise.bits, norms)
        return _noised(plan, theta, _of(theta, total.to_float(CLIP, plan.noise.bits)), normal)

    return Gradient(_poisson_batch(plan), answer)


def _with_replacement(features: int, num_records: int, batch: int) -> Callable[[jax.Array], Any]:
    def draw(key: jax.Array) -> Any:
        batch_key, noise_key = jax.random.split(key)
        return jax.random.randint(batch_key, (batch,), 0, num_records), jax.random.normal(noise_key, (features,))

    return draw


def _select(plan: dpmcmc.Plan) -> Callable[[jax.Array], Any]:
    """Draws a batch into the room that the plan is charged for."""
    select = selector(plan.sampling, plan.num_records, plan.noise.slots)
    assert select is not None
    return select


def _poisson_batch(plan: dpmcmc.Plan) -> Callable[[jax.Array], Any]:
    select = _select(plan)

    def draw(key: jax.Array) -> Any:
        batch_key, noise_key = jax.random.split(key)
        return select(batch_key), jax.random.normal(noise_key, (plan.target.num_features,))

    return draw


def _rows(data: Any, at: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return tuple(data[name].at[at].get(mode="clip") for name in ("x", "y", "norm"))


def _residual(theta: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(x @ jnp.pad(theta, (0, x.shape[1] - theta.shape[0]))) - y


def _of(theta: jax.Array, aligned: jax.Array) -> jax.Array:
    """Without the columns that rows are aligned by."""
    return aligned[: theta.shape[0]]


def _float_sum(theta: jax.Array, x: jax.Array, y: jax.Array, norms: jax.Array, mask: jax.Array) -> jax.Array:
    residual = _residual(theta, x, y)
    factor = jnp.minimum(1.0, CLIP / (jnp.abs(residual) * norms))
    return _of(theta, jnp.where(mask, residual * factor, 0.0) @ x)


def _noised(plan: dpmcmc.Plan, theta: jax.Array, total: jax.Array, normal: jax.Array) -> jax.Array:
    assert plan.noise_multipliers is not None
    noise = float(plan.noise_multipliers[0]) * CLIP * normal
    return theta / plan.num_records + (total + noise) / plan.batch_size


def with_norms(data: Any) -> Any:
    """Aligned records, with the norm of each row."""
    ready = LogisticRegression().prepared(data)
    return {
        "x": ready["x_aligned"].table if "x_aligned" in ready else data["x"],
        "y": data["y"],
        "norm": ready["x_norm"],
    }


def _by_hand(gradient: Gradient, data: Any, size: Size) -> Clock:
    """θ' = θ − step · gradient."""

    def advance(theta: jax.Array, data: Any, step: Any) -> tuple[jax.Array, jax.Array]:
        theta = theta - STEP_SIZE * gradient.answer(theta, data, step)
        return theta, theta

    def draw(key: jax.Array, t: jax.Array) -> Any:
        return gradient.draw(jax.random.fold_in(key, t))

    return _scan(draw, advance, jax.random.key(0), jnp.zeros(size.features), with_norms(data), size.steps)


def _query(plan: dpmcmc.Plan, data: Any, size: Size) -> Clock:
    """dpmcmc's query and sampler in the same loop."""
    query = GradientQuery(
        plan.target, plan.num_records, plan.batch_size, CLIP, _select(plan), plan.noise.bits, levels=plan.noise.levels
    )
    noise_std = float(plan.noise_std[0])
    start = jnp.zeros(size.features)

    def draw(streams: Any, t: jax.Array) -> Any:
        keys = streams.at(0, t)
        return t, keys.dynamics, query.draw(start, keys.batch, keys.noise, jnp.float32(noise_std))

    def advance(state: Any, data: Any, step: Any) -> tuple[Any, Any]:
        t, key, drawn = step
        gradient = query.answer(state.position, data, drawn, jnp.float32(noise_std))
        state, info = plan.sampler.step(key, state, gradient, t)
        return state, (state.position, info)

    state = plan.sampler.init(jax.random.key(0), start)
    return _scan(draw, advance, streams_of(0)[0], state, plan.target.prepared(data), size.steps)


def _scan(draw: Any, advance: Any, keys: Any, state: Any, data: Any, steps: int) -> Clock:
    """One compiled call of ``steps`` steps that keeps what each one yields."""
    together = max(size for size in range(1, _TOGETHER + 1) if steps % size == 0)

    @functools.partial(jax.jit, compiler_options=ONE_THREAD if jax.default_backend() == "cpu" else None)
    def run(keys: Any, state: Any, data: Any) -> Any:
        def group(state: Any, t: jax.Array) -> tuple[Any, Any]:
            drawn = jax.vmap(draw, in_axes=(None, 0))(keys, t)
            return jax.lax.scan(lambda state, step: advance(state, data, step), state, drawn)

        return jax.lax.scan(group, state, jnp.arange(steps, dtype=jnp.int32).reshape(-1, together))

    return scanned(functools.partial(run, keys, state, data), steps)
