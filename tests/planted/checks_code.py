"""What a config may run: its own code, where it says so, and none that somebody else planted."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dpmcmc.cli.commands import main
from dpmcmc.config import ConfigError, make_plan
from dpmcmc.config import file as config_file
from tests.planted import Scene, require

_MODULE = """
import pathlib
HERE = pathlib.Path(__file__).parent
(HERE / "imported").touch()
def remove(**keys): (HERE / "called").touch()
"""


@contextlib.contextmanager
def _folder(scene: Scene) -> Iterator[Path]:
    """A current folder with a module that leaves marks, and a run folder whose config names a function of it."""
    folder = scene.folder / "code"
    (folder / "run" / "confidential" / "checkpoint").mkdir(parents=True, exist_ok=True)
    (folder / "planted_module.py").write_text(_MODULE, encoding="utf-8")
    for mark in ("imported", "called"):
        (folder / mark).unlink(missing_ok=True)
    body = {
        "name": "small",
        "data": {"name": "two_normals"},
        "target": {"name": "logistic_regression"},
        "sampler": {"name": "planted_module:remove", "path": "/"},
        "sampling": {"scheme": "full"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "run": {"steps": 8},
    }
    for path in (folder / "small.yaml", folder / "run" / "config.yaml"):
        path.write_text(yaml.safe_dump(body), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(folder)])
        try:
            yield folder
        finally:
            sys.modules.pop("planted_module", None)


def a_name_alone_calls_nothing(scene: Scene) -> None:
    """A function that does not say that it makes a sampler is not called, whatever config names it."""
    with _folder(scene) as folder:
        with contextlib.suppress(ConfigError):
            make_plan(config_file.load(folder / "small.yaml"))
        require(not (folder / "called").exists(), "a function was called because a config has its name")


def a_resumed_run_imports_nothing_unasked(scene: Scene) -> None:
    """``--resume`` of a folder that somebody else may have written imports no module that the user has not named."""
    with _folder(scene) as folder:
        with contextlib.redirect_stderr(io.StringIO()):
            main(["run", "--resume", str(folder / "run"), "--quiet"])
        require(not (folder / "imported").exists(), "a module was imported because a run folder names it")
