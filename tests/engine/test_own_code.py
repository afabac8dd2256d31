"""A config runs no code but a target's or a sampler's, and one in a run folder imports nothing that was not allowed."""

import contextlib
import importlib
import io
import sys
from pathlib import Path

import pytest
import yaml

from dpmcmc.cli.commands import main
from dpmcmc.config import ConfigError, make_plan, named_code
from dpmcmc.config import file as config_file
from dpmcmc.engine.life import Life

ROOT = Path(__file__).resolve().parents[2]

#: Leaves a file when it is imported, and another when something in it is called.
MODULE = """
import pathlib, os, dpmcmc
from dpmcmc.targets import LogisticRegression
HERE = pathlib.Path(__file__).parent
(HERE / "imported").touch()
def undeclared(**keys):
    (HERE / "called").touch()
    return LogisticRegression()
def make(prior_scale: float = 1.0) -> "LogisticRegression":
    (HERE / "called").touch()
    return LogisticRegression(prior_scale=prior_scale)
def make_sampler(step_size: float) -> dpmcmc.samplers.Sampler:
    return dpmcmc.SGLD(step_size=step_size)
class Shell:
    def __init__(self, **keys): (HERE / "called").touch()
class Outer:
    class Inner(LogisticRegression): pass
"""
BODY = {
    "name": "small",
    "data": {"name": "two_normals"},
    "target": {"name": "logistic_regression", "prior_scale": 1.0},
    "sampler": {"name": "sgld", "step_size": 1.0},
    "sampling": {"scheme": "full"},
    "privacy": {"epsilon": 1.0, "delta": 1.0e-5},
    "run": {"steps": 8},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that a module of one's own is found from."""
    (tmp_path / "mine_alone.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("mine_alone", None)


def written(folder, **sections):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(BODY | sections), encoding="utf-8")
    return path


def refused(command, *arguments) -> str:
    """What a command says that refuses with exit code 2; its words, or the function of an experiment."""
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        if callable(command):
            assert command([str(a) for a in arguments]) == 2
        else:
            assert main([*command.split(), *map(str, arguments)]) == 2
    return error.getvalue()


@pytest.mark.parametrize("section", ["target", "sampler"])
@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "os:mkdir", "builtins:eval", "shutil:rmtree"])
def test_a_shell_command_in_a_yaml_is_not_run(here, section, name):
    given = {"name": name, "command": "touch called", "args": ["touch", "called"], "path": "called", "mode": 511}
    path = written(here / "configs", **{section: given})
    for command, more in (("plan", []), ("run", ["--out", here / "out"]), ("audit", []),
                          ("run --per-record", ["--out", here / "out"])):  # fmt: skip
        assert f"{section}.name: {name} is " in refused(command, path, *more)
    init = ["init", here / "new.ledger", "--epsilon", 1, "--delta", 1e-6]
    assert "so it is not called" in refused("ledger", *init, "--typical", path)
    assert not (here / "called").exists()
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("undeclared", "does not say what it returns"),
        ("Shell", "lacks init, log_prior, log_likelihood"),
        ("make_sampler", "lacks log_prior"),
        ("os.system", "os is no class"),
        ("pathlib.Path", "pathlib is no class"),
        ("HERE", "neither a class nor a function"),
    ],
)
def test_what_declares_no_target_is_not_called(here, attribute, said):
    path = written(here / "configs", target=f"mine_alone:{attribute}")
    with pytest.raises(ConfigError, match=said):
        make_plan(config_file.load(path))
    assert (here / "imported").exists()
    assert not (here / "called").exists()


@pytest.mark.parametrize("attribute", ["make", "Outer.Inner", "LogisticRegression"])
def test_a_declared_target_is_made(here, attribute):
    path = written(here / "configs", target={"name": f"mine_alone:{attribute}", "prior_scale": 2.0},
                   sampler={"name": "mine_alone:make_sampler", "step_size": 2.0})  # fmt: skip
    made = make_plan(config_file.load(path))
    assert (made.target.prior_scale, made.sampler.step_size) == (2.0, 2.0)


def test_a_key_of_another_type_than_its_annotation_is_refused_before_the_code_is_called(here):
    path = written(here / "configs", target={"name": "mine_alone:make", "prior_scale": "fifty"})
    with pytest.raises(ConfigError, match=r"target\.prior_scale: input should be a valid number, got 'fifty'"):
        make_plan(config_file.load(path))
    assert not (here / "called").exists()


def test_shipped_functions_declare_what_they_make():
    for name in ("digits_network", "poisson_regression"):
        assert named_code.find_code("target", f"dpmcmc.targets.shipped_models:{name}")
    assert named_code.find_code("sampler", "experiments.preconditioned:PreconditionedSGLD")


def _marked(folder, mark):
    path = folder / mark
    if "." in mark:
        path.write_text("{}", encoding="utf-8")
    else:
        path.mkdir()


@pytest.mark.parametrize(
    ("mark", "below"),
    [
        ("privacy.json", ""),
        ("plan.json", "deeper/still"),
        ("metrics.json", ""),
        ("draws.nc", "deeper/still"),
        ("confidential", ""),
        ("checkpoint", "deeper/still"),
    ],
)
def test_a_config_in_a_run_folder_imports_nothing_unasked(here, mark, below):
    path = written(here / "run", target="mine_alone:make")
    _marked(here / "run", mark)
    path = written(here / "run" / below, target="mine_alone:make")
    (here / "link.yaml").symlink_to(path)
    for given in (path, here / "link.yaml"):
        said = refused("plan", given)
        assert "mine_alone" in said
        assert "--allow-code mine_alone" in said
        assert "--allow-code mine_alone" in refused("plan", given, "--allow-code", "os", "--allow-code", "mine")
    assert not (here / "imported").exists()
    assert main(["plan", str(path), "--allow-code", "mine_alone"]) == 0
    assert (here / "called").exists()


def test_every_command_asks_for_code_of_a_run_folder(here):
    path = written(here / "run", sampler={"name": "mine_alone:make_sampler", "step_size": 1.0})
    _marked(here / "run", "confidential")
    init = ["init", here / "new.ledger", "--epsilon", 1, "--delta", 1e-6]
    settings = importlib.import_module("experiments.settings")
    for command, arguments in (("plan", [path]), ("run", [path, "--out", here / "out"]), ("audit", [path]),
                               ("run --per-record", [path, "--out", here / "out"]),
                               ("ledger", [*init, "--typical", path]), ("ledger", [*init, "--programme", path]),
                               (settings.main, [path])):  # fmt: skip
        assert "--allow-code mine_alone" in refused(command, *arguments)
    assert not (here / "imported").exists()


def test_a_planted_config_is_not_imported_by_resume(here):
    path = written(here / "run", target="mine_alone:make")
    (here / "run" / "elsewhere" / "checkpoint").mkdir(parents=True)
    with_folder = ["--resume", path.parent, "--confidential", here / "run" / "elsewhere"]
    assert "--allow-code mine_alone" in refused("run", *with_folder)
    assert "--allow-code mine_alone" in refused("run", *with_folder, "--allow-code", "mine")
    assert not (here / "imported").exists()


def test_a_stopped_run_says_what_to_allow_and_goes_on_with_it(here, monkeypatch, capsys):
    path = written(here / "configs", target="mine_alone:make")

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Life, "carry_out", stop)
        assert main(["run", str(path), "--out", str(here / "out"), "--quiet"]) == 130
        assert "--resume" in (said := capsys.readouterr().err)
        assert "--allow-code mine_alone" in said
        assert "--allow-code mine_alone" in refused("run", "--resume", here / "out")
        resumed = ["--resume", str(here / "out"), "--allow-code", "mine_alone", "--quiet"]
        assert main(["run", *resumed]) == 130  # it gets as far as sampling


def test_a_file_of_the_current_folder_replaces_no_library(tmp_path, monkeypatch):
    for name in ("wave", "mine_alone"):
        (tmp_path / f"{name}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    sys.modules.pop("wave", None)
    try:
        with pytest.raises(ValueError, match="no attribute 'make'"):
            named_code.find_code("target", "wave:make")
        assert not (tmp_path / "imported").exists()
        assert named_code.find_code("target", "mine_alone:make")
    finally:
        for name in ("wave", "mine_alone"):
            sys.modules.pop(name, None)
