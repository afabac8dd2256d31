"""A step against the memory: bytes that no implementation can avoid, over time, over the bandwidth measured here."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import dpmcmc
from benchmarks.problem import Size, make_plan, records, sampled
from benchmarks.report import Table
from benchmarks.timing import Clock, in_turn, scanned


def tables(size: Size) -> list[Table]:
    """One table: a row per batch and number of chains."""
    n, d = size.num_records, size.features
    data = records(n, d)
    cases = [(size.batch, 1), (size.batch, 16), (n // 16, 1), (n, 1), (n, 4)]
    if not size.quick:
        cases.insert(2, (size.batch, 256))
    clocks: dict[tuple[int, int], Clock] = {}
    for batch, chains in cases:
        steps = max(size.steps * size.batch // (batch * chains), 20)
        sampling = dpmcmc.Full() if batch == n else None
        plan = make_plan(n, d, batch, steps, sampling=sampling, chains=chains, thin=steps)
        clocks[batch, chains] = sampled(plan, data)
    stream, moved = triad(4 << 20 if size.quick else 256 << 20)
    times = in_turn({"stream": stream, **clocks}, min(size.repeats, 5))
    per_second = moved / float(np.min(times["stream"])) * 1e6
    table = Table(
        f"A step against the memory's bandwidth ({per_second / 1e9:.3g} GB/s here)",
        f"N {n:,}, d {d}. The bandwidth is that of a triad, a ← b + 3c, on arrays of {moved // 3 >> 20} MB, the best "
        "of the repeats. A step must at least read the rows of its batch and read and write its parameters, for each "
        "chain; chains that take the full batch could share one reading, which would be beyond 100 %. Small steps are "
        "bound by the latency of their many small operations, not by memory.",
    )
    for batch, chains in cases:
        microseconds = float(np.median(times[batch, chains]))
        least = 4 * chains * (batch * (d + 1) + 2 * d)
        table.rows.append(
            {
                "batch": batch if batch < n else f"{n:,} (full)",
                "chains": chains,
                "µs a step": microseconds,
                "least bytes a step": least,
                "GB/s": least / microseconds / 1e3,
                "% of the bandwidth": 100 * least / microseconds * 1e6 / per_second,
            }
        )
    return [table]


def triad(size: int) -> tuple[Clock, int]:
    """(clock of a ← b + 3c on float32 arrays of ``size`` bytes, bytes that it moves)."""
    b, c = jnp.ones(size // 4), jnp.ones(size // 4)
    run = jax.jit(lambda b, c: b + 3 * c)
    return scanned(lambda: run(b, c), 1), 3 * size
