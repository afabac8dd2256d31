"""What a private step costs as N grows, as ratios within one run.

    python scripts/benchmark.py

Each row is the median over repeats taken in turn (small N, large N, small N, ...), so drift of the machine
cancels in the ratio. "gather" times the same program with every draw landing in the first 2**14 rows: what
disappears is the cost of cache misses, not of work.
"""

from __future__ import annotations

import argparse
import functools
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np

import dpmcmc
from dpmcmc.privacy.query import GradientQuery
from dpmcmc.privacy.randomness import streams_of

_NEAR = 1 << 14


def chunk(num_records: int, batch: float, features: int, steps: int, near: bool):  # type: ignore[no-untyped-def]
    """A compiled scan of ``steps`` private SGLD steps, and its arguments."""
    sampling = dpmcmc.Poisson(batch)
    slots, _ = sampling.capacity(num_records, 1e-18)
    select = sampling.selector(num_records, slots)
    assert select is not None
    if near:
        inner = select

        def select(key):  # type: ignore[no-untyped-def]
            indices, mask = inner(key)
            return indices % _NEAR, mask

    target = dpmcmc.targets.LogisticRegression(num_features=features)
    query = GradientQuery(target, num_records, batch, 1.0, select)
    sampler = dpmcmc.SGLD(step_size=1.0).bind(num_records)
    streams, _ = streams_of(0)

    @jax.jit
    def run(state, records):  # type: ignore[no-untyped-def]
        def body(state, t):  # type: ignore[no-untyped-def]
            keys = streams.at(0, t)
            gradient = query(state.position, records, keys.batch, keys.noise, jnp.float32(100.0))
            return sampler.step(keys.dynamics, state, gradient, t)[0], None

        return jax.lax.scan(body, state, jnp.arange(steps))[0]

    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_records, features), dtype=np.float32) / np.float32(features**0.5)
    records = {"x": jnp.asarray(x), "y": jnp.asarray(rng.integers(0, 2, num_records, dtype=np.int32))}
    return functools.partial(run, sampler.init(jax.random.key(0), jnp.zeros(features)), records)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-records", type=int, nargs="+", default=[30_000, 300_000, 1_000_000])
    parser.add_argument("--batch", type=float, default=200)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, jax {jax.__version__} on {jax.devices()[0].platform}")
    print(f"batch {arguments.batch:g}, d {arguments.features}, {arguments.steps} steps a call, median of repeats")
    size = (arguments.batch, arguments.features, arguments.steps)
    programs = {
        (n, near): chunk(n, *size, near)
        for n in arguments.num_records
        for near in ((False, True) if n > _NEAR else (False,))
    }
    times: dict[tuple[int, bool], list[float]] = {name: [] for name in programs}
    for program in programs.values():
        jax.block_until_ready(program())
    for _ in range(arguments.repeats):
        for name, program in programs.items():
            started = time.perf_counter()
            jax.block_until_ready(program())
            times[name].append((time.perf_counter() - started) / arguments.steps * 1e6)
    base = np.array(times[(arguments.num_records[0], False)])
    print(f"{'N':>10} {'us/step':>9} {'ratio to first':>15} {'without cache misses':>21} {'share of the gather':>20}")
    for n in arguments.num_records:
        whole, near = np.array(times[(n, False)]), np.array(times.get((n, True), times[(n, False)]))
        print(
            f"{n:>10,} {np.median(whole):>9.1f} {np.median(whole / base):>15.2f} {np.median(near):>21.1f} "
            f"{np.median(1 - near / whole):>20.0%}"
        )


if __name__ == "__main__":
    main()
