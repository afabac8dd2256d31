"""Costs around the steps of a run, against such a run: planning it, a noise-aware release, the ledger."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import dpmcmc
from benchmarks.problem import CLIP, STEP_SIZE, Size, make_plan, records
from benchmarks.report import Table
from benchmarks.timing import Clock, in_turn, ratio
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.privacy import Ledger
from dpmcmc.privacy.calibration import numeric

#: Features of the noise-aware release, whose cost grows with their cube.
_FEATURES = 10
#: Settled runs in the longer of the two ledgers.
_ENTRIES = 100
#: One more for every plan, so that none is remembered from an earlier one.
_plans = itertools.count()


def timed(call: Callable[[], Any]) -> Clock:
    """Clock of a call on the host, in milliseconds."""

    def clock() -> float:
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e3

    return clock


def planned(size: Size, accountant: str, sampling: Any, fresh: bool = True) -> Callable[[], dpmcmc.Plan]:
    """Plan SGLD at ε = 1, calibration included; ``fresh`` plans differ by 1e-9 in ε, and none is remembered."""

    def call() -> dpmcmc.Plan:
        epsilon = 1 + (1 + next(_plans)) * 1e-9 if fresh else 1.0
        privacy = dpmcmc.Privacy(epsilon=epsilon, delta=1e-6, accountant=accountant, clip=CLIP, calibrator="numeric")
        with _forgetting() if fresh else tempfile.TemporaryDirectory():
            return dpmcmc.plan(
                dpmcmc.targets.LogisticRegression(num_features=size.features),
                num_records=size.num_records,
                sampler=dpmcmc.SGLD(step_size=STEP_SIZE),
                sampling=sampling,
                steps=size.steps,
                privacy=privacy,
            )

    return call


@contextmanager
def _forgetting() -> Iterator[None]:
    """Leave no calibration behind: a benchmark fills nobody's cache."""
    remember, numeric.remember = numeric.remember, lambda inputs, z: None
    try:
        yield
    finally:
        numeric.remember = remember


def charged(path: Path, guarantee: Any) -> Callable[[], None]:
    """Reserve a run in the ledger and settle it as void, so that the budget stays."""

    def call() -> None:
        ledger = Ledger(path)
        ledger.settle(ledger.reserve(guarantee, "benchmark"), "void")

    return call


def tables(size: Size) -> list[Table]:
    """One table: a row per task, in milliseconds and against a private run."""
    about = f"N {size.num_records:,}, d {size.features}, batch {size.batch}, {size.steps:,} steps"
    table = Table(
        "Around the steps",
        f"Milliseconds of a whole call, and their ratio to the private SGLD run of the first row ({about}), which "
        "`dpmcmc.sample` takes from its start to its result with everything compiled. Plans are calibrated to ε = 1 "
        f"anew, unless the row says that the answer is remembered. The noise-aware release has {_FEATURES} features, "
        "48 gradients of all records and 1,000 posterior draws. A ledger's row is a run that is reserved and settled, "
        "on disk, with this many entries before it.",
    )
    data, few = records(size.num_records, size.features), records(size.num_records, _FEATURES)
    run = make_plan(size.num_records, size.features, size.batch, size.steps)
    poisson, fixed = dpmcmc.Poisson(size.batch), dpmcmc.FixedSize(size.batch)
    rows = few["x"] / np.maximum(np.linalg.norm(np.asarray(few["x"]), axis=1, keepdims=True), 1.0)
    target = dpmcmc.targets.LogisticRegression(num_features=_FEATURES, row_bound=1.0)
    release = NoiseAware().plan(target, num_records=size.num_records, epsilon=1.0, delta=1e-6)
    with tempfile.TemporaryDirectory() as folder:
        ledgers = {entries: Path(folder) / f"{entries}.ledger" for entries in (1, _ENTRIES)}
        assert run.guarantee is not None
        for entries, path in ledgers.items():
            terms = {"num_records": size.num_records, "adjacency": "replace_one", "epsilon": 8.0, "delta": 1e-5}
            Ledger.init(path, name="benchmark", typical=run.guarantee, **terms)  # type: ignore[arg-type]
            for _ in range(entries if entries > 1 else 0):
                charged(path, run.guarantee)()
        clocks: dict[str, Clock] = {
            "private SGLD run": timed(lambda: dpmcmc.sample(run, data, key=0)),
            "plan, accountant rdp": timed(planned(size, "rdp", poisson)),
            "plan, accountant pld": timed(planned(size, "pld", poisson)),
            "plan, accountant advanced (fixed size)": timed(planned(size, "advanced", fixed)),
            "plan, accountant pld, answer remembered": timed(planned(size, "pld", poisson, fresh=False)),
            f"noise-aware release and its posterior (d {_FEATURES})": timed(
                lambda: dpmcmc.sample(release, few | {"x": rows}, key=0)
            ),
            **{
                f"ledger: reserve and settle ({2 * entries if entries > 1 else 0} entries before)": timed(
                    charged(path, run.guarantee)
                )
                for entries, path in ledgers.items()
            },
        }
        times = in_turn(clocks, min(size.repeats, 5))
    for name, each in times.items():
        table.rows.append(
            {"task": name, "ms": float(np.median(each)), "÷ private run": ratio(each, times["private SGLD run"])}
        )
    return [table]
