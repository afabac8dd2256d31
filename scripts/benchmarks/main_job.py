"""CPU seconds of the main job, a warm ``dpmcmc run adult``: beside those of its libraries, and by what they go to."""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Functions of the main job by what they do. A function within another one is counted by itself.
PARTS = {
    "plan": "dpmcmc.config:make_plan",
    "read data": "dpmcmc.config:load_data",
    "trace and compile": "dpmcmc.engine.steps:Steps.compiled_and_tested",
    "self-test": "dpmcmc.engine.steps:check_steps",
    "steps, and the metric before them": "dpmcmc.engine.chains:run_chains",
    "conclusion": "dpmcmc.engine.chain_end:ChainEndWork.made",
    "predictions": "dpmcmc.inference.predictive:predict",
    "fit without privacy": "dpmcmc.diagnostics.reference:fit",
    "save, page and pictures": "dpmcmc.cli.run:_compute_and_save",
    "the rest": "dpmcmc.cli.run:run",
}
_LIBRARIES = "import jax, numpy, numpyro; jax.jit(lambda a, b: a @ b)(numpy.ones((9, 9)), numpy.ones(9))"


def tables(size: Any) -> list[Any]:
    """Return two tables: the whole process beside its libraries, and its parts."""
    from benchmarks.commands import process
    from benchmarks.report import Table
    from benchmarks.timing import in_turn, ratio

    config = "two_normals" if size.quick else "adult"
    whole = Table(
        "CPU seconds of the main job",
        f"`dpmcmc run {config}`, warm, in a process of its own, in turn with a process that imports JAX and NumPyro, "
        "and compiles one product. Seconds are of all threads.",
    )
    parts = Table(
        "Where they go",
        "The same in a process that times its own functions; pictures are drawn on another core meanwhile.",
    )
    with tempfile.TemporaryDirectory() as folder:
        runs = iter(range(1_000_000))

        def job() -> float:
            out = str(Path(folder) / f"run{next(runs)}")
            return process(["-m", "dpmcmc.run", f"configs/{config}.yaml", "--quiet", "--out", out], cache).cpu_seconds

        cache = Path(folder) / "cache"
        seconds = in_turn(
            {"job": job, "libraries": lambda: process(["-c", _LIBRARIES], cache).cpu_seconds},
            1 if size.quick else min(size.repeats, 5),
        )
        whole.rows.append(
            {
                "configuration": config,
                "CPU s": float(sorted(seconds["job"])[len(seconds["job"]) // 2]),
                "÷ libraries": ratio(seconds["job"], seconds["libraries"]),
            }
        )
        told = Path(folder) / "parts.json"
        process([__file__, config, str(Path(folder) / "parts"), str(told)], cache)
        parts.rows = [{"part": name, "CPU s": seconds} for name, seconds in json.loads(told.read_text()).items()]
    return [whole, parts]


def measure(config: str, out: str) -> dict[str, float]:
    """Run a config in this process; return CPU seconds by part."""
    seconds: dict[str, float] = {}
    inner = [0.0]

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            started = time.process_time()
            inner.append(0.0)
            try:
                return function(*given, **named)
            finally:
                spent = time.process_time() - started
                seconds[part] = seconds.get(part, 0.0) + spent - inner.pop()
                inner[-1] += spent

        return call

    for part, place in PARTS.items():
        module, _, path = place.partition(":")
        *owners, name = path.split(".")
        owner = functools.reduce(getattr, owners, importlib.import_module(module))
        setattr(owner, name, timed(part, getattr(owner, name)))
    imported = time.process_time()
    importlib.import_module("dpmcmc.cli.run").run(config=config, out=out, quiet=True)
    return {"import": imported, **{part: seconds.get(part, 0.0) for part in PARTS}}


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(measure(*sys.argv[1:3])))
