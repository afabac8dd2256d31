"""Nothing that this library writes and that is passed on runs code: each command, on each kind of folder."""

import contextlib
import io
import json
import os
import random
import shutil
import sys
from pathlib import Path

import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.cli.sweep import sweep
from dpmcmc.config import ConfigError, named_code
from dpmcmc.config import file as config_file
from dpmcmc.config import grid as grids
from dpmcmc.engine import results_table
from dpmcmc.storage.released_files import COMPUTED, CONFIG, PICTURES, digest, list_released
from dpmcmc.storage.surroundings import OURS

#: Leaves a file when it is imported.
MODULE = """
import pathlib
(pathlib.Path(__file__).parent / "imported").touch()
from dpmcmc.targets import LogisticRegression
def make(prior_scale: float = 1.0) -> "LogisticRegression": return LogisticRegression(prior_scale=prior_scale)
def epsilon(events, adjacency, delta) -> float: return 0.5
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
#: Keys of a config that may name code.
OWN = {
    "target": {"target": {"name": "planted:make", "prior_scale": 1.0}},
    "sampler": {"sampler": {"name": "planted:make", "step_size": 1.0}},
    "calibrator": {"privacy": BODY["privacy"] | {"calibrator": "planted:make"}},
    "accountant": {"privacy": BODY["privacy"] | {"accountant": "planted:epsilon"}},
}
#: Kinds of folders, and what lies in them beside a config.
KINDS = {
    "run": ("plan.json", "privacy.json", *COMPUTED, "figures/traces.png", "confidential"),
    "stopped run": ("plan.json", "privacy.json", "confidential"),
    "saved result": ("plan.json", "privacy.json", "draws.nc", "metrics.json", "report.html"),
    "sweep": ("results.csv", "report.html", "confidential"),
    "table of results": ("results.csv", "about.json", "summary.csv"),
    "benchmark": ("results.csv", "about.json", "summary.csv", "beside.csv", "losses.md", "ranks.png"),
    "confidential": ("checkpoint", "diagnostics.json", "per_record.csv", "results.csv", "about.json"),
}
#: Commands that read a config, and a grid.
COMMANDS = {
    "plan": lambda path, out: ["plan", path],
    "run": lambda path, out: ["run", path, "--out", out],
    "run --per-record": lambda path, out: ["run", path, "--per-record", "--out", out],
    "suggest": lambda path, out: ["suggest", path],
    "audit": lambda path, out: ["audit", path],
    "typical": lambda path, out: ["ledger", "init", out, "--epsilon", 1, "--delta", 1e-6, "--typical", path],
    "programme": lambda path, out: ["ledger", "init", out, "--epsilon", 1, "--delta", 1e-6, "--programme", path],
    "sweep": lambda path, out: ["sweep", path, "--out", out],
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder that a planted module is found from."""
    (tmp_path / "planted.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("planted", None)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A sweep of one config, which is a run folder."""
    place = tmp_path_factory.mktemp("written")
    grid = place / "mine.yaml"
    grid.write_text(yaml.safe_dump(BODY | {"sweep": {"over": {"privacy.epsilon": [1.0]}}}), encoding="utf-8")
    assert sweep(grid, out=place / "sweep").complete
    return place / "sweep"


def put(folder, name):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}", encoding="utf-8") if path.suffix else path.mkdir(exist_ok=True)


def config_in(folder, command, name, **changed):
    folder.mkdir(parents=True, exist_ok=True)
    body = BODY | changed
    if command == "sweep":
        body |= {"sweep": {"over": {"privacy.delta": [1e-5, 1e-6]}}}
    path = folder / name
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return path


def told(*words):
    """Exit code of a command, and what it prints."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = main([str(word) for word in words])
    return code, said.getvalue()


def check_refused(here, command, path):
    code, said = told(*COMMANDS[command](path, here / "out"))
    assert code == 2, said
    assert said.count("\n") == 1
    assert "--allow-code planted" in said, said
    assert not (here / "imported").exists()
    assert not (here / "out").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_beside_any_file_of_ours_runs_no_code(here, kind):
    for number, name in enumerate(KINDS[kind]):
        folder = here / str(number)
        put(folder, name)
        for command in COMMANDS:
            path = config_in(folder, command, "config.yaml", **OWN["target"])
            check_refused(here, command, path)


@pytest.mark.parametrize("seed", range(40))
def test_a_config_that_reaches_a_folder_of_ours_runs_no_code(here, seed):
    """Part of a folder, a config in it, below it, or led to by links; any command, any key."""
    chance = random.Random(seed)
    command = chance.choice(list(COMMANDS))
    kind = chance.choice(list(KINDS))
    below = chance.choice(["", "configs/0001", "deeper/still"])
    least = 2 if below else 1  # a folder above needs two names, for other programs write there too
    names = chance.sample(KINDS[kind], chance.randint(least, min(len(KINDS[kind]), 4)))
    for name in names:
        put(here / "ours", name)
    key = "target" if command == "suggest" else chance.choice(list(OWN))  # it chooses the others anew
    path = config_in(here / "ours" / below, command, chance.choice(["config.yaml", "a.yaml"]), **OWN[key])
    way = chance.choice(["itself", "link", "folder", "out of it"])
    if way == "link":
        (here / "elsewhere").mkdir()
        (here / "elsewhere" / "lone.yaml").symlink_to(path)
        path = here / "elsewhere" / "lone.yaml"
    elif way == "folder":
        (here / "linked").symlink_to(path.parent, target_is_directory=True)
        path = here / "linked" / path.name
    elif way == "out of it":  # a link to a link that lies in the folder
        (here / "far").mkdir()
        shutil.move(path, here / "far" / "away.yaml")
        path.symlink_to(os.path.relpath(here / "far" / "away.yaml", path.parent))
        (here / "lone.yaml").symlink_to(path)
        path = here / "lone.yaml"
    check_refused(here, command, path)


def test_every_name_that_a_sweep_and_its_runs_leave_is_known(written):
    left = [path.relative_to(written) for path in written.rglob("*")]
    names = {part for path in left for part in path.parts} - {
        "configs",
        "0001",
        "0001.yaml",
        PICTURES,
        results_table.LOCK,
    }
    assert {"results.csv", "draws.nc", "confidential", "diagnostics.json"} <= names
    pictures = {f"{path.parent.name}/{path.name}" for path in left if path.parent.name == PICTURES}
    assert names - set(OURS) <= {CONFIG} | {path.split("/")[1] for path in pictures}
    assert pictures <= set(OURS)


@pytest.mark.parametrize("kept", ["results.csv", "report.html", "configs/0001/privacy.json", "configs/0001/draws.nc"])
def test_part_of_a_written_sweep_runs_no_code(here, written, kept):
    """A grid and a config in it named a module by whoever passed them on."""
    copy = here / "passed on" / kept
    copy.parent.mkdir(parents=True)
    shutil.copy(written / kept, copy)
    check_refused(here, "run", config_in(copy.parent, "run", "config.yaml", **OWN["target"]))
    grid = config_in(copy.parent, "sweep", "grid.yaml", **OWN["target"])
    check_refused(here, "sweep", grid)
    with pytest.raises(ConfigError, match="--allow-code planted"):
        grids.load(grid)
    with pytest.raises(ConfigError, match="--allow-code planted"):
        sweep(grid, out=here / "out")
    assert not (here / "imported").exists()


def with_digests(folder):
    """Let ``privacy.json`` state the digests of the files that lie there."""
    said = json.loads((folder / "privacy.json").read_text())
    said["files"] = {name: digest((folder / name).read_bytes()) for name in list_released(folder)}
    (folder / "privacy.json").write_text(json.dumps(said))


def test_commands_that_read_a_run_folder_run_no_code(here, written):
    run = here / "run"
    shutil.copytree(written / "configs" / "0001", run)
    body = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(body | OWN["target"]))
    with_digests(run)
    (here / "me.csv").write_text("x0,x1,y\n0.1,0.2,1\n")
    assert dpmcmc.load(run).guarantee.epsilon <= 1.0
    assert "--allow-code planted" in told("receipt", run, "--record", here / "me.csv")[1]
    assert told("verify", run)[0] == 0
    (run / "confidential" / "checkpoint").mkdir()
    assert "--allow-code planted" in told("run", "--resume", run)[1]
    said = json.loads((run / "privacy.json").read_text()) | {"accountant": "planted:epsilon"}
    (run / "privacy.json").write_text(json.dumps(said))
    assert "--allow-code planted" in told("verify", run)[1]
    with pytest.raises(ValueError, match="import its module first"):
        dpmcmc.load(run)
    assert not (here / "imported").exists()


@pytest.mark.parametrize("beside", [(), ("records.csv", "notes.md", "mine.ledger"), ("figures/a.png", "config.yaml")])
def test_a_config_of_ones_own_runs_ones_code(here, beside):
    """In a project with data, notes, and folders of runs below it."""
    for name in beside:
        put(here / "project", name)
    for name in KINDS["run"]:
        put(here / "project" / "runs" / "first", name)
    path = config_in(here / "project", "plan", "mine.yaml", **OWN["target"])
    assert told("plan", path)[0] == 0
    assert (here / "imported").exists()
    inside = here / "project" / "runs" / "first" / "config.yaml"
    assert config_file.lying(inside)
    os.chdir(inside.parent)  # the folder that a path begins in is none that it leads through
    assert not config_file.lying(Path("../../mine.yaml"))


def test_what_a_module_of_ours_looks_for_is_not_found_in_the_current_folder(tmp_path, monkeypatch):
    """A folder may hold ``numpyro.py`` for a machine that has none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    assert named_code.find_code("target", "dpmcmc.targets.shipped_models:poisson_regression")
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("text", ["=1+1", "@SUM(A1)", "+cmd|' /C calc'!A0", "-2+3+cmd|' '!A0", "\x1b]0;a\x07", "\t=1"])
def test_a_text_in_a_table_is_no_formula(tmp_path, text):
    with results_table.Table(tmp_path, ("name", "value"), ("name",)) as table:
        table.add([{"name": text, "value": -0.5}, {"name": "plain", "value": "-1e-3"}])
        assert table.has({"name": text})
    with results_table.Table(tmp_path, ("name", "value"), ("name",)) as table:
        assert table.has({"name": text})
        table.add([{"name": text, "value": "+2"}])
        (row, plain) = table.rows
    assert row["name"][0] in "'\\"
    assert (row["value"], plain["value"]) == ("+2", "-1e-3")
