"""Cost of compilation to a run: with an empty cache, and with the one that the first run left."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.commands import run_config
from benchmarks.problem import Size
from benchmarks.report import Table
from benchmarks.timing import ratio

_CONFIGS = ("adult", "adult_sgfs", "digits_bnn", "numpyro_poisson")


def tables(size: Size) -> list[Table]:
    """One table: a row per configuration, cold and warm runs in turn."""
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
    return [table]
