"""Many plans as one program (``dpmcmc.sample_all``) against one by one (``dpmcmc.sample``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import dpmcmc
from benchmarks.problem import Size, make_plan, records
from benchmarks.report import Table
from benchmarks.timing import ratio
from dpmcmc.engine import compilation


def tables(size: Size) -> list[Table]:
    """One table of two rows."""
    epsilons = (1.0, 2.0) if size.quick else (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    repeats = 2 if size.quick else 10
    steps = max(size.steps // 3, 20)
    n, d = size.num_records, size.features
    data = records(n, d)
    plans = [
        plan
        for plan in (make_plan(n, d, size.batch, steps, thin=10, epsilon=e) for e in epsilons)
        for _ in range(repeats)
    ]
    table = Table(
        f"A sweep of {len(plans)} cells",
        f"{len(epsilons)} values of ε, {repeats} runs each, {steps} steps a run; N {n:,}, d {d}, batch {size.batch}. "
        "Whole seconds of the calls, from an empty in-memory compilation cache each "
        "time; the share of compilation is the results' own `wall_seconds`. The ratio is the time of `sample_all` over "
        "that of `sample` in a loop.",
    )
    ways: dict[str, Callable[[], Any]] = {
        "`sample` in a loop": lambda: [dpmcmc.sample(plan, data, key=i) for i, plan in enumerate(plans)],
        "`sample_all`": lambda: dpmcmc.sample_all(plans, data, keys=range(len(plans))),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    compiling: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(min(size.repeats, 3)):
        for name, way in ways.items():
            jax.clear_caches()
            compilation._compile_cached.cache_clear()
            started = time.perf_counter()
            results = way()
            seconds[name].append(time.perf_counter() - started)
            compiling[name].append(sum(result.wall_seconds["compile"] for result in results))
    single = np.array(seconds["`sample` in a loop"])
    for name in ways:
        taken = np.array(seconds[name])
        table.rows.append(
            {
                "way": name,
                "seconds": float(np.median(taken)),
                "cells a second": float(len(plans) / np.median(taken)),
                "share of compilation": float(np.median(np.array(compiling[name]) / taken)),
                "÷ loop": ratio(taken, single),
            }
        )
    return [table]
