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
        "The most memory that the process of `dpmcmc run configs/NAME.yaml` held (`ru_maxrss`, the kernel's VmHWM), "
        "from its start to its end, once each with an empty cache: Python, JAX and the compiler are most of it, as the "
        "first row shows. The last column is what a configuration takes beyond that row.",
    )
    configs = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        nothing = process(["-c", "import dpmcmc, jax.numpy; jax.numpy.ones(1) + 1"], cache)
        table.rows.append({"configuration": "(import dpmcmc)", "MB": nothing.peak_bytes / 1e6, "MB beyond": 0.0})
        for config in ["two_normals"] if size.quick else configs:
            measured = run_config(config, cache / config)
            if measured.failure is not None:
                table.skipped.append(f"{config}: failed ({measured.failure}).")
                continue
            beyond = (measured.peak_bytes - nothing.peak_bytes) / 1e6
            table.rows.append({"configuration": config, "MB": measured.peak_bytes / 1e6, "MB beyond": beyond})
    return [table]
