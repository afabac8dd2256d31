"""Cost of compilation to a run: with an empty cache, with the one that the first run left, and of another setting."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dpmcmc
from benchmarks.commands import run_config
from benchmarks.problem import STEP_SIZE, Size, records
from benchmarks.report import Table
from benchmarks.timing import ratio

_CONFIGS = ("adult", "adult_prediction_sgfs", "digits_bnn", "numpyro_poisson")


def tables(size: Size) -> list[Table]:
    """Two tables: a row per configuration, cold and warm runs in turn; a row per changed setting."""
    return [cold_and_warm(size), other_settings(size)]


def cold_and_warm(size: Size) -> Table:
    """A row per configuration."""
    table = Table(
        "Compilation, from cold and from the cache",
        "`dpmcmc run configs/NAME.yaml`, a new process each time: cold with an empty `DPMCMC_CACHE`, warm "
        "with the one that run left. Compile seconds are the run's own (`wall_seconds.compile`, which loading from the "
        "cache is part of); the last two columns are the whole process, which imports, calibrates and plots as well. "
        "The ratio is warm over cold, of compile seconds.",
    )
    for config in ("two_normals",) if size.quick else _CONFIGS:
        pairs = []
        for _ in range(1 if size.quick else min(size.repeats, 3)):
            with tempfile.TemporaryDirectory() as folder:
                pairs.append([run_config(config, Path(folder)) for _ in ("cold", "warm")])
        failures = [run.failure for pair in pairs for run in pair if run.failure is not None]
        if failures:
            table.skipped.append(f"{config}: failed ({failures[0]}).")
            continue
        cold, warm = ([run.wall_seconds["compile"] for run in runs] for runs in zip(*pairs, strict=True))
        whole_cold, whole_warm = ([run.seconds for run in runs] for runs in zip(*pairs, strict=True))
        table.rows.append(
            {
                "configuration": config,
                "compile cold, s": statistics.median(cold),
                "compile warm, s": statistics.median(warm),
                "warm ÷ cold": ratio(np.array(warm), np.array(cold)),
                "process cold, s": statistics.median(whole_cold),
                "process warm, s": statistics.median(whole_warm),
            }
        )
    return table


def other_settings(size: Size) -> Table:
    """A row per setting that a second run in the same process changes."""
    table = Table(
        "A second run with another setting",
        "`dpmcmc.plan` and `dpmcmc.sample` of 200 steps in one process, after a run with the first settings. "
        "Compilations are XLA's, those that its cache on disk spares among them. CPU seconds are of all threads.",
    )
    data = records(size.num_records, size.features)

    def plan(
        steps: int = 200, epsilon: float = 1.0, clip: float = 1.0, prior_scale: float = 1.0, **sampler: float
    ) -> Any:
        privacy = dpmcmc.Privacy(epsilon=epsilon, delta=min(1e-6, 0.1 / size.num_records), accountant="rdp", clip=clip)
        return dpmcmc.plan(
            dpmcmc.targets.LogisticRegression(num_features=size.features, prior_scale=prior_scale),
            num_records=size.num_records,
            sampler=dpmcmc.SGLD(**({"step_size": STEP_SIZE} | sampler)),
            sampling=dpmcmc.Poisson(size.batch),
            steps=steps,
            privacy=privacy,
        )

    changes: dict[str, dict[str, Any]] = {
        "none": {},
        "step size": {"step_size": STEP_SIZE / 2},
        "temperature": {"temperature": 2.0},
        "prior scale": {"prior_scale": 2.0},
        "clip norm": {"clip": 0.5},
        "ε": {"epsilon": 1.1},
        "steps, 200 to 201": {"steps": 201},
    }
    dpmcmc.sample(plan(), data)
    for name, change in changes.items():
        started = time.process_time()
        changed = plan(**change)
        planned = time.process_time()
        wall = time.perf_counter()
        with counted() as compilations:
            dpmcmc.sample(changed, data)
        table.rows.append(
            {
                "changed": name,
                "compilations": len(compilations),
                "plan, CPU s": planned - started,
                "sample, CPU s": time.process_time() - planned,
                "sample, s": time.perf_counter() - wall,
            }
        )
    return table


@contextmanager
def counted() -> Iterator[list[float]]:
    """Seconds of each compilation of this process meanwhile."""
    found: list[float] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
