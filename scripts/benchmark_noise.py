"""Cost of hardened randomness, as ratios within one run.

    python scripts/benchmark_noise.py

Standard and hardened programs take turns within a repeat, so drift of the machine cancels in the ratio. A step is the
engine's own (``Program.step``) on records of the Adult benchmark's shape; its parts are timed alone: the keys of a
step, the words of a batch and of the noise by either generator, and the noise from words of one generator.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpmcmc
from dpmcmc.engine.program import Cells, Program
from dpmcmc.privacy.accounting import discrete_gaussian
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.privacy.query.query import _with_noise, drawn_noise
from dpmcmc.privacy.query.randomness import CHACHA20, streams_of

Timed = Callable[[], Any]


def step_program(batch: float, hardened: bool, steps: int, records: Any, chains: int) -> tuple[Timed, int]:
    """(``steps`` steps of the engine's program, draws per coordinate of its noise)."""
    num_records, features = records["x"].shape
    target = dpmcmc.targets.LogisticRegression(num_features=features)
    plan = dpmcmc.plan(
        target,
        num_records=num_records,
        sampler=dpmcmc.SGLD(step_size=16.0),
        sampling=dpmcmc.Poisson(batch),
        steps=20 * num_records // int(batch),
        privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-6, hardened=hardened),
    )
    program = Program.of(plan)
    streams, _ = streams_of(0, hardened)
    cells = Cells(
        jax.tree.map(lambda number: jnp.stack([number] * chains), program.numbers(plan, plan.target)),
        jax.tree.map(lambda key: jnp.stack([key] * chains), streams),
        jnp.arange(chains, dtype=jnp.int32),
        jnp.full(chains, plan.steps, jnp.int32),
    )
    every_cell = jax.vmap(program.step, in_axes=(0, 0, None, 0, None))

    @jax.jit
    def run(cells: Any, states: Any, noise_std: Any, records: Any) -> Any:
        def body(states: Any, t: Any) -> tuple[Any, None]:
            return every_cell(cells, states, t, noise_std, records)[0], None

        return jax.lax.scan(body, states, jnp.arange(steps, dtype=jnp.int32))[0]

    states = jax.vmap(program.start)(cells)
    noise_std = jnp.full(chains, plan.noise_std[0])
    return (lambda: run(cells, states, noise_std, records)), plan.levels[0]


def part(draw: Callable[[jax.Array], jax.Array], impl: Any, steps: int) -> Timed:
    """``steps`` calls of ``draw`` with a fresh key each, every bit of their results consumed."""

    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        def body(total: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            return total ^ jnp.sum(draw(jax.random.fold_in(key, t)).astype(jnp.uint32)), None

        return jax.lax.scan(body, jnp.uint32(0), jnp.arange(steps))[0]

    key = jax.random.key(0, impl=impl)
    return lambda: run(key)


def noise(levels: int, size: int) -> Callable[[jax.Array], jax.Array]:
    """The noise as the query adds it, with ``levels`` 0 for that from floats."""

    def draw(key: jax.Array) -> jax.Array:
        zero = jnp.zeros(size, jnp.int32)
        # A std that XLA does not know, as in a run.
        std = jnp.float32(2.0**22) * (1 + 0 * jax.random.key_data(key)[0].astype(jnp.float32))
        total = _with_noise(FixedPoint(zero, zero), drawn_noise(key, zero, std, 1.0, levels), std, 1.0)
        return total.high * 65536 + total.low

    return draw


def compare(name: str, standard: Timed, hardened: Timed, steps: int, repeats: int) -> None:
    """Print one row."""
    for program in (standard, hardened):
        jax.block_until_ready(program())
    times = np.zeros((repeats, 2))
    for at in range(repeats):
        for which, program in enumerate((standard, hardened)):
            started = time.perf_counter()
            jax.block_until_ready(program())
            times[at, which] = (time.perf_counter() - started) / steps * 1e6
    ratio = times[:, 1] / times[:, 0]
    low, middle, high = np.quantile(ratio, [0.25, 0.5, 0.75])
    first, second = np.median(times, axis=0)
    print(f"{name:<44} {first:>9.1f} {second:>9.1f} {middle:>6.2f} ({low:.2f}-{high:.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-records", type=int, default=32_561)
    parser.add_argument("--features", type=int, default=109)
    parser.add_argument("--batches", type=float, nargs="+", default=[512, 180])
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    n, d, steps, repeats = arguments.num_records, arguments.features, arguments.steps, arguments.repeats
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d), dtype=np.float32) / np.float32(d**0.5)
    records = {"x": jnp.asarray(x), "y": jnp.asarray(rng.integers(0, 2, n, dtype=np.int32))}
    print(f"{platform.processor() or platform.machine()}, jax {jax.__version__} on {jax.devices()[0].platform}")
    print(f"N {n}, d {d}, {steps} steps a call; median microseconds a step, median (quartiles) of {repeats} ratios")
    print(f"{'':<44} {'standard':>9} {'hardened':>9}  ratio")
    levels = discrete_gaussian.LEVELS[1]
    for batch in arguments.batches:
        for chains in arguments.chains:
            standard, _ = step_program(batch, False, steps, records, chains)
            hardened, levels = step_program(batch, True, steps, records, chains)
            name = f"whole step, Poisson {batch:g}, {chains} chain{'s' if chains > 1 else ''} (L = {levels})"
            compare(name, standard, hardened, steps, repeats)

    def both(name: str, draw: Callable[[jax.Array], jax.Array], other: Callable[[jax.Array], jax.Array]) -> None:
        compare(name, part(draw, None, steps), part(other, CHACHA20, steps), steps, repeats)

    def keys(key: jax.Array) -> jax.Array:
        streams = streams_of(0, jax.random.key_data(key).size == 8)[0]
        folded = streams.at(0, jax.random.key_data(key)[0].astype(jnp.int32))
        return jax.random.key_data(jnp.stack(folded))

    slots = dpmcmc.Poisson(arguments.batches[0]).capacity(n, 1e-18)[0]

    def words(count: int) -> Callable[[jax.Array], jax.Array]:
        return lambda key: jax.random.bits(key, (count,), jnp.uint32)

    both("generator: the four keys of a step", keys, keys)
    both(f"generator: {2 * slots} words of a batch", words(2 * slots), words(2 * slots))
    both(f"generator and sampler: noise of {d} coordinates", noise(0, d), noise(levels, d))


if __name__ == "__main__":
    main()
