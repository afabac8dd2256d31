"""Peak memory of each shipped configuration, run whole in a process of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.commands import ROOT, process, run_config
from benchmarks.problem import Size
from benchmarks.report import Table


def tables(size: Size) -> list[Table]:
    """One table: a row per configuration, after one for importing dpmcmc and doing nothing."""
    table = Table(
        "Peak memory of the shipped configurations",
        "The most memory (`ru_maxrss`) of the process of `dpmcmc run configs/NAME.yaml`, once each: Python, "
        "JAX and the compiler are most of it, as the first row shows. Seconds are those of the whole process.",
    )
    configs = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        nothing = process(["-c", "import dpmcmc, jax.numpy; jax.numpy.ones(1) + 1"], cache)
        table.rows.append({"configuration": "(import dpmcmc)", "MB": nothing.peak_bytes / 1e6, "s": nothing.seconds})
        for config in ["two_normals"] if size.quick else configs:
            measured = run_config(config, cache)
            if measured.failure is not None:
                table.skipped.append(f"{config}: failed ({measured.failure}).")
                continue
            table.rows.append({"configuration": config, "MB": measured.peak_bytes / 1e6, "s": measured.seconds})
    return [table]
