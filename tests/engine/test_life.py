"""A fault at every step of a run's life, on every path that takes it: charged at most once, and nothing out of order.

Each cell of the table plants one fault in one path, as an error or as a kill. After it, and after the run has gone on
or has been started anew, the ledger holds one charge of what was computed, and no draw lies where its cost does not.
"""

import contextlib
import errno
import functools
import io
import itertools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.cli import place
from dpmcmc.cli.commands import main
from dpmcmc.engine import life, result, self_test, sizes
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.self_test import MiscompiledError
from dpmcmc.mechanisms import OPS, Hybrid, NoiseAware, SufficientStatistics
from dpmcmc.privacy import Ledger
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.report import figures
from dpmcmc.storage import checkpoint
from dpmcmc.storage.released_files import check_result
from dpmcmc.storage.run_folder import RunFolder
from dpmcmc.targets import LinearRegression, LogisticRegression
from tests import neighbours

N = neighbours.N
LINEAR = LinearRegression(1.0, num_features=neighbours.D, row_bound=1.0, label_bound=4.0, noise_scale=1.0)
LOGISTIC = LogisticRegression(1.0, num_features=neighbours.D, row_bound=1.0)
PRIVACY = dpmcmc.Privacy(**neighbours.PROMISE, accountant="rdp")
SHAPE = {"steps": 8, "burn_in": 4}


class Kill(BaseException):
    """The process ends here: nothing after it is written, and no handler runs."""


# Paths.


@dataclass
class Scene:
    """Where one run takes place."""

    folder: Path
    ledger: Ledger

    @property
    def out(self) -> Path:
        return self.folder / "run"

    @property
    def runs(self) -> list[str]:
        return [run.outcome for run in self.ledger.state().runs]

    @property
    def draws(self) -> list[Path]:
        return [path for path in self.folder.rglob("draws.nc")]


@dataclass
class Route:
    """One way to take a life.

    Attributes:
        start: begins the run; what it returns or raises is looked at by nobody.
        go_on: goes on with it.
        saves: whether it writes a folder.
    """

    start: Callable[[Scene], Any]
    go_on: Callable[[Scene], Any]
    saves: bool = True


def records(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(N, neighbours.D)) / 8
    return {"x": x.astype(dtype), "y": (x[:, 0] > 0).astype(dtype)}


@functools.cache
def sampled() -> dpmcmc.Plan:
    return dpmcmc.plan(LINEAR, num_records=N, sampler=dpmcmc.SGLD(step_size=0.5), privacy=PRIVACY, **SHAPE)


@functools.cache
def in_metric() -> dpmcmc.Plan:
    more = {"sampler": dpmcmc.SGLD(step_size=0.5), "metric": dpmcmc.PrivateMetric(), **SHAPE}
    return dpmcmc.plan(LINEAR, num_records=N, privacy=PRIVACY, **more)


@functools.cache
def ended() -> dpmcmc.Plan:
    more = {"sampler": dpmcmc.SGLD(step_size=0.5), "metric": dpmcmc.PrivateMetric(), "end": NoiseAware(), **SHAPE}
    return dpmcmc.plan(LOGISTIC, num_records=N, privacy=PRIVACY, **more)


@functools.cache
def promised(mechanism: Any, target: Any = LINEAR) -> Any:
    return mechanism.plan(target, num_records=N, **neighbours.PROMISE)


HYBRID = Hybrid(start=OPS(form="gdp", draws=1), sampler=dpmcmc.SGLD(step_size=0.5), accountant="rdp", **SHAPE)


def commanded(case: dict[str, Any], *options: str) -> Route:
    """``dpmcmc run`` of a config, which goes on with ``--resume``."""

    def call(*arguments: Any) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main(["run", *map(str, arguments)])
        if code:
            raise RuntimeError(f"{code}: {said.getvalue()}")

    def start(scene: Scene) -> None:
        body = case | {"privacy": {**neighbours.PROMISE, "ledger": str(scene.ledger.path), "accountant": "rdp"}}
        if "mechanism" in case:
            body["privacy"].pop("accountant")
        if not (scene.folder / "data").exists():
            neighbours.write(scene.folder / "data", body, False)
        call(scene.folder / "data" / "mine.yaml", "--out", scene.out, *options)

    def go_on(scene: Scene) -> None:
        begun = (scene.out / "config.yaml").exists()
        call("--resume", scene.out) if begun else start(scene)

    return Route(start, go_on)


def called(plan: Callable[[], Any]) -> Route:
    """A call of the library, which goes on when it is made again."""

    def start(scene: Scene) -> None:
        kept = scene.folder / "kept"
        dpmcmc.sample(plan(), records(), out=scene.out, checkpoint=kept, ledger=scene.ledger)

    return Route(start, start)


SAMPLER = neighbours.SAMPLER | {"sampling": {"scheme": "full"}}
ROUTES = {
    "run": commanded({"target": neighbours.LOGISTIC, **SAMPLER}),
    "run --per-record": commanded({"target": neighbours.LOGISTIC, **SAMPLER}, "--per-record"),
    "run in a metric": commanded(neighbours.CASES["gram"] | {"sampling": {"scheme": "full"}}),
    "run of a mechanism": commanded(neighbours.CASES["sufficient_statistics"]),
    "run of a hybrid": commanded(neighbours.CASES["hybrid"] | {"sampling": {"scheme": "full"}}),
    "sample": called(sampled),
    "sample in a metric": called(in_metric),
    "sample to the end of a chain": called(ended),
    "sample of a mechanism": called(lambda: promised(SufficientStatistics())),
    "sample of a hybrid": called(lambda: promised(HYBRID, LOGISTIC)),
}


# Faults.


def before(owner: Any, name: str, error: BaseException, nth: int = 0, when: Any = None) -> Any:
    """A fault in place of the ``nth`` call, or of those whose arguments ``when`` holds for."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real, count = getattr(owner, name), itertools.count()

        def call(*given: Any, **named: Any) -> Any:
            if (when is None or when(*given)) and next(count) == nth:
                raise error
            return real(*given, **named)

        patch.setattr(owner, name, call)

    return plant


def after(owner: Any, name: str, error: BaseException, when: Any = None) -> Any:
    """A fault right after the first call that ``when`` holds for."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)

        def call(*given: Any, **named: Any) -> Any:
            found = real(*given, **named)
            if when is None or when(*given):
                raise error
            return found

        patch.setattr(owner, name, call)

    return plant


def committed(error: BaseException, last: bool) -> Any:
    """A fault in place of the first commit of what was computed, or right after the last one."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        fault = after if last else before
        fault(checkpoint.Checkpoint, "commit", error)(patch)
        fault(checkpoint.Checkpoint, "commit_stage", error, when=ends)(patch)

    return plant


def ends(kept: Any, stage: int, arrays: Any, last: bool) -> bool:
    """Whether a stage that is kept is the run's last."""
    return last


def begins(*given: Any) -> bool:
    """Whether a stage that is kept comes before a chain."""
    return not ends(*given)


def named(name: str) -> Any:
    return lambda folder, file, *_: file == name


def compiled_wrongly(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(self_test._Reference, "agrees", lambda *_: False)
    from dpmcmc.engine import compilation

    compilation._compile_cached.cache_clear()


#: Steps of a life, in their order. ``begun``: whether the run may have computed something from a record by then.
STEPS = {
    "reserve": (False, lambda error: before(Ledger, "reserve", error)),
    "read": (False, lambda error: before(life.Life, "read", error)),
    "check": (False, lambda error: before(Reservation, "identify", error)),
    "keep the keys": (False, lambda error: before(checkpoint.Checkpoint, "begin", error)),
    "charge": (False, lambda error: before(Reservation, "start", error)),
    "charged": (True, lambda error: after(Reservation, "start", error)),
    "keep the first stage": (True, lambda error: before(checkpoint.Checkpoint, "commit_stage", error, when=begins)),
    "kept the first stage": (True, lambda error: after(checkpoint.Checkpoint, "commit_stage", error, when=begins)),
    "first commit": (True, lambda error: committed(error, last=False)),
    "last commit": (True, lambda error: committed(error, last=True)),
    "save privacy.json": (None, lambda error: before(RunFolder, "json", error, when=named("privacy.json"))),
    "save draws": (True, lambda error: before(RunFolder, "write", error, when=named("draws.nc"))),
    "settle": (True, lambda error: before(Ledger, "settle", error)),
}
ERRORS = {"error": lambda: OSError(errno.ENOSPC, "No space left on device"), "kill": Kill}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Commits after every chunk of two steps; posterior draws, diagnostics and files that cost no time."""
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 2)
    monkeypatch.setattr(checkpoint, "_OVERHEAD", 1e9)
    monkeypatch.setattr(OPS, "draw", lambda self, plan, *_: np.zeros((1, neighbours.D)))
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(result, "content", lambda *_: b"draws")
    monkeypatch.setattr(figures, "epsilon_delta", lambda picture, *_: picture.write(b""))
    with neighbours.quick():
        yield


@pytest.fixture
def scene(tmp_path):
    terms = {"adjacency": "replace_one", "epsilon": 50.0, "delta": 2e-3, "num_records": N}
    return Scene(tmp_path, Ledger.init(tmp_path / "budget.db", name="data", **terms))


def stop(route: Route, scene: Scene, plant: Any, kind: str) -> BaseException | None:
    """Start a run under a fault; what was raised, or None."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        if kind == "kill":
            patch.setattr(Reservation, "settle", lambda self, *_: None)
            patch.setattr(place.Place, "clear", lambda *_: True)
        try:
            route.start(scene)
        except (Exception, Kill) as error:
            return error
    return None


def check_order(scene: Scene) -> None:
    """No draw lies where its cost does not, and the cost names the ledger's entry."""
    for draws in scene.draws:
        body = json.loads((draws.parent / "privacy.json").read_text())
        assert body["epsilon"] is not None
        scene.ledger.confirm(Receipt(**body["ledger"], path=scene.ledger.path))


def check_whole(scene: Scene) -> None:
    """Each folder with draws is one result, by the digests in its privacy.json."""
    for draws in scene.draws:
        check_result(draws.parent, json.loads((draws.parent / "privacy.json").read_text()))


@pytest.mark.filterwarnings("ignore:out. the result could not be saved", "ignore:.*stays spent")
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ROUTES)
def test_a_fault_costs_at_most_one_charge_and_nothing_leaves_without_its_cost(name, step, kind, scene):
    route, (begun, planted) = ROUTES[name], STEPS[step]
    error = stop(route, scene, planted(ERRORS[kind]()), kind)
    check_order(scene)
    charged = [outcome for outcome in scene.runs if outcome != "void"]
    assert len(charged) <= 1
    if error is None:  # the path has no such step, or a result in memory is not lost with its folder
        assert len(charged) == 1
        return
    if begun is False and kind == "error":
        assert charged == []
    if begun:
        assert charged
    if kind == "error":
        assert "No space left on device" in str(error)
    if kind == "error" and name.startswith("run") and charged:
        assert f"--resume {scene.out}" in str(error)
    route.go_on(scene)
    check_order(scene)
    assert [outcome for outcome in scene.runs if outcome != "void"] == ["released"]
    assert len(scene.draws) == route.saves
    check_whole(scene)


@pytest.mark.parametrize("name", [name for name in ROUTES if "mechanism" not in name])
def test_a_program_that_fails_its_self_test_costs_nothing(name, scene):
    """Compiled and tested before the charge; a one-shot mechanism compiles no steps."""
    error = stop(ROUTES[name], scene, compiled_wrongly, "error")
    assert isinstance(error, MiscompiledError) or "self-test" in str(error)
    assert set(scene.runs) == {"void"}
    assert scene.ledger.state().spent == 0
    assert scene.draws == []
    assert not (scene.out / "config.yaml").exists()
    shutil.rmtree(scene.out, ignore_errors=True)
    (scene.folder / "kept").exists() and shutil.rmtree(scene.folder / "kept")
    ROUTES[name].start(scene)
    assert [outcome for outcome in scene.runs if outcome != "void"] == ["released"]


def test_what_is_no_plan_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="plan: dict is no plan"):
        dpmcmc.sample({}, records())
    with pytest.raises(ValueError, match="starts: a mechanism's release takes none"):
        dpmcmc.sample(promised(SufficientStatistics()), records(), starts=np.zeros((1, 2)))


def test_a_mechanism_has_the_result_of_a_sampler(scene, tmp_path):
    found = dpmcmc.sample(promised(SufficientStatistics()), records(), out=tmp_path / "out", ledger=scene.ledger)
    assert isinstance(found, dpmcmc.Result)
    assert found.usable_for == found.plan.usable_for
    assert found.steps_per_second is None
    body = yaml.safe_load((tmp_path / "out" / "privacy.json").read_text())
    assert body["mechanism"].startswith("SufficientStatistics")
    assert body["ledger"] == found.receipt.to_json()
