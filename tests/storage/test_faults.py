"""What the library refuses on purpose is the user's error; any other exception is a fault of ours, told in private."""

import ast
import errno
import stat
from pathlib import Path

import jax
import pytest

from dpmcmc.cli.commands import main
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import ConfigError
from dpmcmc.data import DataError
from dpmcmc.engine.life import Life
from dpmcmc.errors import InputError
from dpmcmc.privacy import CalibrationError, UnsupportedCombination
from dpmcmc.privacy.accounting.work import TooMuchWork
from dpmcmc.privacy.ledger import BrokenChain, LedgerError, OverBudget
from dpmcmc.storage.checkpoint import CheckpointError
from dpmcmc.targets import TargetError
from experiments.commands import command

ROOT = Path(__file__).resolve().parents[2]
SECRET = "record 17 has income 31337"


def raising(error):
    @command
    def main(argv):
        raise error

    return main


def told(capsys):
    """The file that the sentence on stderr names."""
    error = capsys.readouterr().err
    assert error.startswith("error: a fault of dpmcmc, not of your input")
    assert error.count("\n") == 1
    assert "please report it" in error
    assert SECRET not in error
    path = Path(error.partition("its traceback is in ")[2].partition(";")[0])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path


@pytest.mark.parametrize(
    "kind",
    [
        *(InputError, ConfigError, DataError, TargetError, CheckpointError, UnsupportedCombination),
        *(CalibrationError, LedgerError, OverBudget, BrokenChain, TooMuchWork, CommandError),
    ],
)
def test_each_class_of_the_library_is_the_users_error(kind, capsys):
    assert raising(kind("data.x: is wrong; mend it"))([]) == 2
    assert "is wrong; mend it" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [ValueError, KeyError, TypeError, RuntimeError, AssertionError, OSError])
def test_any_other_exception_is_a_fault_of_ours_and_is_not_quoted(kind, capsys):
    assert raising(kind(SECRET))([]) == 70
    path = told(capsys)
    assert SECRET in path.read_text()
    assert "Traceback" in path.read_text()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_that_cannot_be_written_is_the_users(capsys):
    assert raising(OSError(errno.ENOSPC, "No space left on device"))([]) == 2
    assert "No space left" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run", "audit"])
def test_a_platform_without_a_device_is_the_users(name, tmp_path, capsys, monkeypatch):
    def absent():
        assert False  # as JAX raises it  # noqa: B011, PT015

    monkeypatch.setattr(jax, "devices", absent)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.chdir(tmp_path)
    assert main([name, str(ROOT / "configs" / "breast_cancer.yaml")]) == 2
    assert "JAX_PLATFORMS: 'cuda' names devices of which JAX finds none here; unset it" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_fault_of_a_run_is_told_in_its_confidential_folder(tmp_path, capsys, monkeypatch):
    def fails(self, progress=None):
        raise ValueError(SECRET)

    monkeypatch.setattr(Life, "carry_out", fails)
    config = str(ROOT / "configs" / "breast_cancer.yaml")
    options = ["--set", "run={steps: 4, chains: 1, burn_in: 0.5}", "--set", "privacy.ledger=null"]
    assert main(["run", config, *options, "--out", str(tmp_path / "out"), "--quiet"]) == 70
    path = told(capsys)
    assert path.parent == tmp_path / "out" / "confidential"
    assert not [
        p for p in (tmp_path / "out").rglob("*") if p.is_file() and p != path and SECRET in p.read_text("latin-1")
    ]


def test_every_refusal_of_the_library_has_a_class_of_the_library():
    """A ``raise ValueError`` would be taken for a fault."""
    found = []
    for path in sorted([*(ROOT / "dpmcmc").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")]):
        if path.stem == "from_scratch":  # imports nothing of ours
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                called = node.exc.func
                if isinstance(called, ast.Name) and called.id == "ValueError":
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
            if isinstance(node, ast.ClassDef) and node.name != "InputError":
                found += [
                    f"{path.relative_to(ROOT)}:{b.lineno}" for b in node.bases if getattr(b, "id", "") == "ValueError"
                ]
    assert found == []
