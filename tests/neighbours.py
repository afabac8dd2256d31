"""Runs of the command on two private files of which one is the other's neighbour, and what others see of them.

Privatised values come from ``constant`` releases, which look at no record: then nothing that others see may differ.
"""

from __future__ import annotations

import contextlib
import io
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from dpmcmc.cli import per_record, run
from dpmcmc.cli.commands import main
from dpmcmc.diagnostics import reference
from dpmcmc.diagnostics.per_record import PerRecord
from dpmcmc.engine.life import Life
from dpmcmc.engine.result import Result
from dpmcmc.inference import predictive
from dpmcmc.privacy.query.record_sums import Whole
from dpmcmc.report import figures as plots
from dpmcmc.report import progress
from dpmcmc.targets import bind, record_shapes

#: Training records, owners and columns.
N, OWNERS, D = 12, 8, 2
PROMISE = {"epsilon": 5.0, "delta": 1e-3}
LOGISTIC = {"name": "logistic_regression", "prior_scale": 1.0}
LINEAR = {"name": "linear_regression", "prior_scale": 1.0, "noise_scale": 1.0}
_BOUND = {"num_features": D, "row_bound": 1.0}
#: Mechanisms need the number of columns, which a config of a user's file says through the constructor.
_BOUND_LOGISTIC = {"name": "dpmcmc.targets:LogisticRegression", "prior_scale": 1.0, **_BOUND}
_BOUND_LINEAR = {**LINEAR, "name": "dpmcmc.targets:LinearRegression", "label_bound": 4.0, **_BOUND}
SAMPLER = {
    "sampler": {"name": "sgld", "step_size": 0.5},
    "sampling": {"scheme": "poisson", "batch_size": 4},
    "run": {"steps": 8, "burn_in": 0.5, "thin": 1},
}


def sampled(target: Any, **changes: Any) -> dict[str, Any]:
    """A sampler's config."""
    return {"target": target, "privacy": PROMISE, **SAMPLER, **changes}


def drawn(name: str, target: Any, **keys: Any) -> dict[str, Any]:
    """A mechanism's config."""
    return {"target": target, "mechanism": {"name": name, **keys}, "privacy": PROMISE}


#: Every kind of target, every mechanism, and owners: sections of a config, but for its data.
CASES: dict[str, dict[str, Any]] = {
    "logistic": sampled(LOGISTIC),
    "linear": sampled(LINEAR),
    "softmax": sampled({"name": "dpmcmc.targets:SoftmaxRegression", "prior_scale": 1.0, "num_classes": 2}),
    "ordinal": drawn(
        "noise_aware",
        {"name": "dpmcmc.targets:OrdinalRegression", "num_classes": 3, **_BOUND},
        covariance="sandwich",
        draws=100,
        steps=4,
    ),
    "poisson": drawn("noise_aware", {"name": "dpmcmc.targets:PoissonRegression", **_BOUND}, draws=100, steps=4),
    "negative_binomial": drawn(
        "noise_aware", {"name": "dpmcmc.targets:NegativeBinomialRegression", **_BOUND}, draws=100, steps=4
    ),
    "custom": sampled("tests.own_models:line"),
    "flax": sampled("tests.own_models:network"),
    "numpyro": sampled("tests.own_models:counts"),
    "gram": sampled(_BOUND_LOGISTIC, metric={"name": "gram"}),
    "second_moment": sampled("tests.own_models:line", metric={"name": "second_moment"}),
    "owner": sampled(LOGISTIC, data={"owner": "who", "num_owners": OWNERS, "records_per_owner": 3}),
    "optax": sampled(LOGISTIC, sampler={"name": "optax", "rule": "adam", "learning_rate": 0.1}),
    "ops": drawn("ops", _BOUND_LOGISTIC, form="gdp"),
    "certified_ops": drawn("certified_ops", _BOUND_LOGISTIC, steps=5),
    "objective_perturbation": drawn("objective_perturbation", _BOUND_LOGISTIC, regularisation=5.0),
    "output_perturbation": drawn("output_perturbation", _BOUND_LOGISTIC, regularisation=50.0),
    "ops_range": drawn("ops", _BOUND_LOGISTIC, form="range", radius=3.0),
    "sufficient_statistics": drawn("sufficient_statistics", _BOUND_LINEAR),
    "noise_aware": drawn("noise_aware", _BOUND_LOGISTIC, draws=100),
    "adassp": drawn("adassp", _BOUND_LINEAR),
    "hybrid": drawn("hybrid", _BOUND_LOGISTIC, form="gdp") | SAMPLER,
    "randomised_labels": {
        "target": LOGISTIC,
        "privacy": None,
        "data": {"labels": {"randomised": 1.0}},
    },
}


def file(path: Path, second: bool, owners: bool) -> None:
    """Half of the rows are held out; the second file has another training record and fewer held-out rows."""
    rng = np.random.default_rng(0)
    count = 3 * OWNERS if owners else 2 * N
    x = (rng.normal(size=(count, D)) / 8).astype(np.float32)
    arrays = {"x": x, "y": (x[:, 0] > 0).astype(np.int32), "who": np.repeat(np.arange(OWNERS), count // OWNERS)}
    if second:
        arrays["x"] = -x
        arrays["y"][0] = 1 - arrays["y"][0]
        # Owners without rows stay owners; N training records are what 2N rows leave, and 2N − 1.
        kept = ~np.isin(arrays["who"], _held_out_owners()) if owners else np.arange(count) > 0
        arrays = {name: array[kept] for name, array in arrays.items()}
    np.savez(path, **arrays)


def _held_out_owners() -> np.ndarray:
    from dpmcmc.data.split import split_rows

    return split_rows(OWNERS, OWNERS // 2)[1]


def write(folder: Path, case: dict[str, Any], second: bool) -> Path:
    """A config and its private file in a folder."""
    folder.mkdir(parents=True)
    more = case.get("data", {})
    owners = "owner" in more
    file(folder / "mine.npz", second, owners)
    data = {"path": "mine.npz", "test_fraction": 0.5, "row_bound": 1.0, **more}
    data |= {} if owners else {"num_records": N}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", **case, "data": data}))
    return folder / "mine.yaml"


def _draws(target: Any, shape: tuple[int, int]) -> Any:
    rng = np.random.default_rng(1)
    like = jax.eval_shape(target.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: rng.normal(size=(*shape, *leaf.shape)).astype(np.float32), like)


def constant_sample(plan: Any, data: Any, **_: Any) -> Result:
    """What :func:`dpmcmc.sample` returns, without a look at the records, but for the time that it takes."""
    draws = _draws(bind(plan.target, record_shapes(data)), (plan.chains, plan.num_draws))
    norms = {"norm": np.ones((plan.chains, plan.num_draws), np.float32)}
    return Result(plan, draws, draws, norms, plan.guarantee, {"compile": time.time(), "run": time.time()})


def constant_release(plan: Any, data: Any, **_: Any) -> Result:
    """What :func:`dpmcmc.sample` returns of a mechanism, likewise."""
    draws = _draws(bind(plan.target, record_shapes(data)), (1, plan.draws))
    return Result(plan, draws, draws, None, plan.guarantee, {"run": time.time()})


class _ConstantAccount(per_record.per_record.Account):
    """An account of draws that look at no record; it tells of the records, and is confidential."""

    def of(self, data: Any, positions: Any) -> PerRecord:
        n, x = self.plan.num_records, data["x"]
        return PerRecord(x[:, 0], x[:, 1], np.ones(1), np.ones((n, 1)), 1.0, 1e-3, "replace_one")


def _score(target: Any, draws: Any, rows: dict[str, np.ndarray]) -> predictive.Prediction:
    found = float(np.sum(rows["x"]))
    return predictive.Prediction(predictive.measure(target), found, np.array([found]), found)


def _fit(target: Any, records: Any) -> reference.MaximumAPosteriori:
    """A fit that fails, with a warning, on one of the files."""
    if np.asarray(records["x"]).sum() > 0:
        raise np.linalg.LinAlgError("Singular matrix")
    return reference.MaximumAPosteriori(np.zeros(D), lambda flat: flat)


def _print(picture: Any, *arguments: Any) -> None:
    picture.write(repr(arguments).encode())


def computed(patch: pytest.MonkeyPatch, made: Callable[[Any, Any], Result]) -> None:
    """Let a life give, once it has begun, what ``made`` makes of its plan and records."""

    def carry_out(life: Life, progress: Any = None) -> Result:
        life.begin()
        _take_time(life, progress)
        return made(life.plan, _arrays(life))

    patch.setattr(Life, "carry_out", carry_out)


def _arrays(life: Life) -> Any:
    """Records of a life, also of one that is asked for sums alone."""
    records = life.work.records
    return records.records if isinstance(records, Whole) else records


class Clock(threading.Event):
    """Stands for the event that a log of progress waits ten seconds for: they pass when a run says so."""

    last: Clock | None = None

    def __init__(self) -> None:
        super().__init__()
        self._ends: queue.Queue[bool] = queue.Queue()
        Clock.last = self

    def wait(self, timeout: float | None = None) -> bool:
        return self._ends.get()

    def set(self) -> None:
        self._ends.put(True)

    def pass_seconds(self, times: int) -> None:
        """Let ten seconds pass so often."""
        for _ in range(times):
            self._ends.put(False)


def _take_time(life: Life, progress: Any) -> None:
    """Take all steps, in a time that depends on the records."""
    if Clock.last is not None:
        records = _arrays(life)
        rows = records.get("x", jax.tree.leaves(records)[0])
        Clock.last.pass_seconds(1 + int(np.sum(rows) > 0))
    steps = 0 if life.plan.run is None else life.plan.steps
    for done in range(steps):
        if progress is not None:
            progress(done + 1, steps)


@contextlib.contextmanager
def constant(pictures: bool = False) -> Any:
    """Privatised values that look at no record; with ``pictures`` as they are."""
    with quick(pictures) as patch:
        computed(patch, lambda plan, data: (constant_sample if plan.has_chains else constant_release)(plan, data))
        patch.setattr(per_record.per_record, "Account", _ConstantAccount)
        yield patch


@contextlib.contextmanager
def quick(pictures: bool = False) -> Any:
    """Diagnostics and pictures that compile and draw nothing, but tell of the records."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive, "predict", _score)
        patch.setattr(reference, "fit", _fit)
        known_clock(patch)
        if not pictures:
            for name in ("traces", "temperature", "epsilon_delta"):
                patch.setattr(plots, name, _print)
        yield patch


def known_clock(patch: pytest.MonkeyPatch) -> None:
    """Before the first record is read, no time passes; after it, what a run takes."""
    patch.setattr(progress, "threading", SimpleNamespace(Thread=threading.Thread, Event=Clock))
    patch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: 0.0))


def seen(command: Any, config: Path, *options: str) -> dict[str, Any]:
    """What others see of a run: exit code, console, and of each released file its name, time, mode and content."""
    out = config.parent / "out"
    console = io.StringIO()
    with contextlib.redirect_stdout(console), contextlib.redirect_stderr(console):
        code = main(
            ["run", *(["--per-record"] if command is per_record else []), str(config), "--out", str(out), *options]
        )
    visible: dict[str, Any] = {"code": code, "console": console.getvalue().replace(str(config.parent), "HERE")}
    confidential = out / "confidential"
    for path in (out, *sorted(out.rglob("*"))):
        if path.is_relative_to(confidential) and path != confidential:
            continue
        facts = path.stat()
        name = str(path.relative_to(config.parent))
        # To list a folder, as here, is to access it.
        accessed = facts.st_atime_ns if path.is_file() else facts.st_mtime_ns
        visible[name] = (facts.st_mtime_ns, accessed, oct(facts.st_mode), facts.st_nlink)
        if path.is_file():
            visible[f"content of {name}"] = path.read_bytes()
    return visible


def both(folder: Path, case: dict[str, Any], command: Any = run, *options: str) -> list[dict[str, Any]]:
    """What others see of the runs on a file and on its neighbour."""
    return [seen(command, write(folder / name, case, name == "b"), *options) for name in ("a", "b")]


def differing(pair: list[dict[str, Any]]) -> set[str]:
    """Names of what others can tell the two runs by."""
    first, second = pair
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}
