"""A private step as one thing grows: records, features, batch, chains, steps; SGLD on logistic regression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import dpmcmc
from benchmarks.comparators import over_given_batches
from benchmarks.problem import Size, make_plan, records, sampled, sampled_apart
from benchmarks.report import Table
from benchmarks.timing import Clock, in_turn, ratio, scanned


def tables(size: Size) -> list[Table]:
    """Five tables."""
    return [_records(size), _features(size), _batch(size), _chains(size), _steps(size)]


def _records(size: Size) -> Table:
    table = Table(
        "As the number of records grows",
        "Poisson batches cost O(batch) to draw, whatever N. Only the gather grows: rows of a large N are in no "
        "cache. Microseconds are those of a further step, from runs of two lengths; what a run takes besides, once, is "
        "in milliseconds. The bare gather reads the rows of given batches of the same size, adds them up, and does "
        "nothing else. 10⁷ records have 16 features here, for the memory's sake.",
    )
    cases = [(50, 200, (30_000, 300_000, 1_000_000)), (16, 180, (10_000, 30_000, 100_000, 1_000_000, 10_000_000))]
    if size.quick:
        cases = [(8, 50, (2_000, 20_000))]
    for features, batch, counts in cases:
        clocks: dict[Any, Clock] = {}
        for n in counts:
            data = records(n, features)
            # Alike except for their length, and so one program.
            short, long = (make_plan(n, features, batch, steps, thin=10) for steps in (size.steps, 4 * size.steps))
            clocks[n, "step"] = sampled_apart(short, long, data)
            clocks[n, "gather"] = scanned(_bare_gather(data["x"], batch, size.steps), size.steps)
        times = in_turn(clocks, size.repeats)
        for n in counts:
            (step, first), (gather, first_gather) = ((times[n, of], times[counts[0], of]) for of in ("step", "gather"))
            table.rows.append(
                {
                    "N": n,
                    "d": features,
                    "batch": batch,
                    "µs a step": float(np.median(step[:, 0])),
                    "÷ first": ratio(step[:, 0], first[:, 0]),
                    "µs, bare gather": float(np.median(gather)),
                    "gather ÷ first": ratio(gather, first_gather),
                    "ms a run besides": float(np.median(step[:, 1])),
                }
            )
    return table


def _bare_gather(x: jax.Array, batch: int, steps: int) -> Callable[[], Any]:
    """Rows of given batches, gathered and added up."""
    return over_given_batches(x, batch, steps, 0.0, lambda total, rows: total + rows.sum(axis=0))


def _features(size: Size) -> Table:
    table = Table("As the features grow", "N 10,000 and a batch of 180. A step is O(batch · d) once d is large.")
    counts = (10, 40) if size.quick else (16, 109, 1000, 10_000)
    n, batch = (2_000, 50) if size.quick else (10_000, 180)
    steps = {d: max(size.steps // max(d // 100, 1), 20) for d in counts}
    clocks = {d: sampled(make_plan(n, d, batch, steps[d], thin=10), records(n, d)) for d in counts}
    times = in_turn(clocks, size.repeats)
    for d in counts:
        table.rows.append(
            {
                "d": d,
                "µs a step": float(np.median(times[d])),
                "÷ first": ratio(times[d], times[counts[0]]),
                "ns a step and feature": float(np.median(times[d])) / d * 1e3,
            }
        )
    return table


def _batch(size: Size) -> Table:
    about = f"N {size.num_records:,}, d {size.features}"
    table = Table("As the batch grows", f"{about}; the last row is the full batch (`dpmcmc.Full()`).")
    n, d = size.num_records, size.features
    batches = (32, 128) if size.quick else (32, 180, 512, 2048, 8192)
    data = records(n, d)
    clocks: dict[int, Clock] = {}
    for batch in batches:
        clocks[batch] = sampled(make_plan(n, d, batch, max(size.steps * 180 // max(batch, 180), 20)), data)
    clocks[n] = sampled(make_plan(n, d, n, max(size.steps // 100, 10), sampling=dpmcmc.Full()), data)
    times = in_turn(clocks, size.repeats)
    for batch, values in times.items():
        table.rows.append(
            {
                "batch": batch,
                "µs a step": float(np.median(values)),
                "÷ first": ratio(values, times[batches[0]]),
                "ns a step and record": float(np.median(values)) / batch * 1e3,
            }
        )
    return table


def _chains(size: Size) -> Table:
    table = Table(
        "As the chains grow",
        f"N {size.num_records:,}, d {size.features}, batch {size.batch}; the last draw of each is kept. The ratio is "
        "time a step and chain over that of one chain alone: below 1, chains share what they have in common.",
    )
    n, d = size.num_records, size.features
    counts = (1, 4) if size.quick else (1, 4, 16, 64, 256, 1024)
    data = records(n, d)
    clocks = {}
    for chains in counts:
        # Long enough that what a run costs once, some milliseconds, is little beside it.
        steps = max(size.steps // max(chains // 64, 1), 20)
        clocks[chains] = sampled(make_plan(n, d, size.batch, steps, chains=chains, thin=steps), data)
    # Chunks of the most chains take a while each, so the tail is timed less often than the rest of the benchmark.
    times = in_turn(clocks, min(size.repeats, 5))
    for chains, values in times.items():
        table.rows.append(
            {
                "chains": chains,
                "µs a step, all": float(np.median(values)),
                "µs a step and chain": float(np.median(values)) / chains,
                "÷ one chain": ratio(values / chains, times[1]),
            }
        )
    return table


def _steps(size: Size) -> Table:
    table = Table(
        "As the steps grow",
        "Time of `dpmcmc.sample` beyond the steps themselves (the first dispatch, draws to the host) shows in short "
        "runs.",
    )
    counts = (50, 200) if size.quick else (100, 1000, 10_000)
    n, d = size.num_records, size.features
    data = records(n, d)
    clocks = {steps: sampled(make_plan(n, d, size.batch, steps, thin=10), data) for steps in counts}
    times = in_turn(clocks, size.repeats)
    for steps, values in times.items():
        table.rows.append(
            {"steps": steps, "µs a step": float(np.median(values)), "÷ longest": ratio(values, times[counts[-1]])}
        )
    return table
