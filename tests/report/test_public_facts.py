"""What others see of a run is a function of public facts and of privatised values, and of nothing else."""

import hashlib
import json
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli import per_record, run
from dpmcmc.cli.commands import main
from dpmcmc.engine import result as result_room
from dpmcmc.mechanisms import MECHANISMS, DrawError
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import TARGETS
from tests import neighbours
from tests.neighbours import CASES, both, constant, differing, sampled, seen, write

_DAY = 24 * 60 * 60 * 10**9


def of_one_day(visible):
    """Whether all released files and folders bear one time, a midnight."""
    times = {time for value in visible.values() if isinstance(value, tuple) for time in value[:2]}
    return len(times) == 1 and times.pop() % _DAY == 0


def test_every_mechanism_and_every_kind_of_target_is_among_the_cases():
    assert CASES.keys() >= {*MECHANISMS, "hybrid", "owner", "custom", "flax", "numpyro"}
    kinds = {"logistic", "linear", "softmax", "ordinal", "poisson", "negative_binomial"}
    assert len(TARGETS) == len(kinds & CASES.keys())


@pytest.mark.parametrize("name", CASES)
def test_neighbours_with_the_same_privatised_values_cannot_be_told_apart(name, tmp_path):
    with constant(pictures=name == "logistic"):
        pair = both(tmp_path, CASES[name])
    assert pair[0]["code"] == 0, pair[0]["console"]
    assert differing(pair) == set()
    assert all(of_one_day(visible) for visible in pair)
    assert "content of out/draws.nc" in pair[0]
    hidden = [(tmp_path / file / "out" / "confidential" / "diagnostics.json").read_text() for file in "ab"]
    assert hidden[0] != hidden[1]  # the records did differ


def test_neighbours_cannot_be_told_apart_by_the_release_of_per_record(tmp_path):
    with constant():
        pair = both(tmp_path, CASES["logistic"], per_record)
    assert pair[0]["code"] == 0, pair[0]["console"]
    assert differing(pair) == set()
    assert all(of_one_day(visible) for visible in pair)


def keyed(patch):
    """Every life has the same keys, which a test alone may give, and its guarantee."""

    def life(plan, real=run.reserved, **more):
        return real(plan, **(more | {"key": dpmcmc.SecretKey._of(streams_of(5)[0])}))

    patch.setattr(run, "reserved", life)


def same_but_for_privatised_values(pair):
    """Whether the two runs differ in draws, and otherwise in nothing but what is computed from released numbers."""
    assert pair[0]["code"] == 0, pair[0]["console"]
    assert json.loads(pair[0]["content of out/privacy.json"])["epsilon"] is not None
    privatised = {"content of out/draws.nc", "content of out/metrics.json", "content of out/figures/traces.png"}
    privatised |= {"content of out/report.html", "content of out/evidence.npz"}
    has_metric = "content of out/trace.npz" in pair[0]
    privatised |= {"content of out/trace.npz"} if has_metric else set()
    # privacy.json has a digest of each of these files, and differs in nothing else.
    stated = [json.loads(visible["content of out/privacy.json"]) for visible in pair]
    for said, visible in zip(stated, pair, strict=True):
        for name, digest in said.pop("files").items():
            assert digest == hashlib.sha256(visible[f"content of out/{name}"]).hexdigest()
    assert stated[0] == stated[1]
    assert differing(pair) <= privatised | {"console", "content of out/privacy.json"}
    draws = [visible["content of out/draws.nc"] for visible in pair]
    assert draws[0] != draws[1]
    assert len(draws[0]) == len(draws[1])
    metrics = [json.loads(visible["content of out/metrics.json"]) for visible in pair]
    assert metrics[0].keys() == metrics[1].keys()
    of_draws = {"ess", "rhat", "usable_for", "usable_for_reasons", "from_path"}
    # Functions of the released metric, where the run has one.
    of_metric = {"relaxations", "predicted_inflation", "predicted_width"} if has_metric else set()
    assert {key for key in metrics[0] if metrics[0][key] != metrics[1][key]} <= of_draws | of_metric
    lines = [set(visible["console"].splitlines()) for visible in pair]
    assert {line.split()[0] for line in lines[0] ^ lines[1]} <= {"intervals", "use", "better", "why"}
    assert all(of_one_day(visible) for visible in pair)


#: Every sampler's and mechanism's way to its numbers; other targets take the same.
ONE_TARGET_EACH = [name for name in CASES if name not in ("linear", "softmax", "poisson", "negative_binomial")]


@pytest.mark.parametrize(
    "name", [name if name == "owner" else pytest.param(name, marks=pytest.mark.slow) for name in ONE_TARGET_EACH]
)
def test_neighbours_with_the_same_keys_differ_in_privatised_values_alone(name, tmp_path):
    with neighbours.quick() as patch:
        keyed(patch)
        same_but_for_privatised_values(both(tmp_path, CASES[name]))


@pytest.mark.slow
def test_whole_runs_on_neighbours_differ_in_privatised_values_alone(tmp_path, monkeypatch):
    keyed(monkeypatch)
    neighbours.known_clock(monkeypatch)
    same_but_for_privatised_values(both(tmp_path, CASES["logistic"]))


# Without a guarantee.


def private_sample(plan, data, **_):
    """Draws that tell the records, with no guarantee."""
    result = neighbours.constant_sample(plan, data)
    draws = result.draws + np.float32(np.sum(data["x"]))
    return result_room.Result(plan, draws, draws, result.info, None, result.wall_seconds)


WITHOUT = {
    "null": sampled(neighbours.LOGISTIC, privacy=None),
    "seed": sampled(neighbours.LOGISTIC, privacy=neighbours.PROMISE | {"insecure_noise_seed": 3}),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_without_a_guarantee_all_that_private_records_give_is_confidential(name, tmp_path):
    with constant() as patch:
        neighbours.computed(patch, private_sample)
        pair = both(tmp_path, WITHOUT[name])
    assert pair[0]["code"] == 0, pair[0]["console"]
    assert differing(pair) == set()
    released = {name for name in pair[0] if name.startswith("content of")}
    assert released == {
        f"content of out/{name}" for name in ("config.yaml", "plan.json", "privacy.json", "metrics.json")
    }
    last = " ".join(pair[0]["console"].split())
    assert "no guarantee" in last
    assert "saved HERE/out/confidential" in last
    confidential = tmp_path / "a" / "out" / "confidential"
    assert {path.name for path in confidential.iterdir()} == {
        *("draws.nc", "metrics.json", "diagnostics.json", "figures", "report.html")
    }
    for path in (confidential, *confidential.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    for path in (confidential / "figures").iterdir():
        assert b"no privacy guarantee, and the records are not public" in path.read_bytes()


def test_without_a_guarantee_draws_from_public_records_are_released(tmp_path):
    case = sampled(neighbours.LOGISTIC, privacy=None)
    path = write(tmp_path / "a", case, False)
    with constant() as patch:
        neighbours.computed(patch, private_sample)
        assert main(["run", str(path), "--set", "data.public=true", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    assert (tmp_path / "out" / "draws.nc").exists()
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["wall_seconds"]["run"] is not None


def test_a_saved_result_without_a_guarantee_is_its_owner_s_alone(tmp_path):
    plan = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(1.0, num_features=2),
        num_records=10,
        sampler=dpmcmc.SGLD(1.0),
        steps=4,
        privacy=None,
    )
    result = private_sample(plan, {"x": np.ones((10, 2)), "y": np.ones(10)})
    private, public = result.save(tmp_path / "private"), result.save(tmp_path / "public", public=True)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in private.iterdir()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in public.iterdir()} == {0o644}
    assert {path.stat().st_mtime_ns % _DAY for path in (public, *public.iterdir())} == {0}


# Runs that fail or are stopped.


def diverging(plan, data, **_):
    raise dpmcmc.DivergedError(int(np.sum(data["y"])), float(np.sum(data["x"])), None)


def failing(plan, data, **_):
    raise DrawError(f"{np.sum(data['x'])}")


def stopped(plan, data, **_):
    raise KeyboardInterrupt


def full(plan, data, **_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("name", "fails"),
    [("logistic", stopped), ("logistic", full), ("certified_ops", failing), ("certified_ops", stopped)],
)
def test_a_run_that_fails_leaves_one_time_and_no_word_of_the_records(name, fails, tmp_path):
    with constant() as patch:
        neighbours.computed(patch, fails)
        pair = both(tmp_path, CASES[name])
    assert pair[0]["code"] != 0
    assert differing(pair) == set()
    assert all(of_one_day(visible) for visible in pair)


def test_a_run_without_a_guarantee_diverges_in_silence(tmp_path):
    with constant() as patch:
        neighbours.computed(patch, diverging)
        pair = both(tmp_path, WITHOUT["null"])
    assert pair[0]["code"] == 1
    assert differing(pair) == set()
    assert "diverged" in pair[0]["console"]
    hidden = json.loads((tmp_path / "a" / "out" / "confidential" / "metrics.json").read_text())
    assert hidden["diverged_at"] > 0


def test_a_resumed_run_bears_the_day_on_which_it_began(tmp_path, monkeypatch):
    import datetime

    path, out = write(tmp_path / "a", CASES["logistic"], False), tmp_path / "a" / "out"
    with constant() as patch:
        neighbours.computed(patch, stopped)
        assert main(["run", str(path), "--out", str(out)]) == 130
        began = datetime.datetime(2020, 2, 29, tzinfo=datetime.UTC).timestamp()
        os.utime(out / "config.yaml", (began, began))
        neighbours.computed(patch, neighbours.constant_sample)
        assert main(["run", "--resume", str(out), "--quiet"]) == 0
    times = {file.stat().st_mtime for file in (out, *out.rglob("*")) if file.parent.name != "confidential"}
    assert times == {began}


def test_the_default_folder_names_the_day_and_nothing_later(tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "a", CASES["logistic"], False)
    monkeypatch.chdir(tmp_path)
    with constant():
        for _ in range(2):
            assert main(["run", str(path), "--quiet"]) == 0
    names = [Path(line).name for line in capsys.readouterr().out.split()]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"mine-\d{8}-[0-9a-f]{8}", name) for name in names)


def test_a_diagnostic_that_warns_or_fails_says_so_to_the_holder_alone(tmp_path):
    import warnings

    def loud(target, draws, rows):
        warnings.warn(f"mean label {np.mean(rows['y'])}", RuntimeWarning, stacklevel=1)
        if len(rows["y"]) != neighbours.N:
            raise RuntimeError("what a library says")
        return neighbours._score(target, draws, rows)

    with constant() as patch:
        patch.setattr("dpmcmc.inference.predictive.predict", loud)
        pair = both(tmp_path, CASES["logistic"])
    assert pair[0]["code"] == 0
    assert differing(pair) == set()
    hidden = json.loads((tmp_path / "b" / "out" / "confidential" / "diagnostics.json").read_text())
    assert hidden["failed"] == "what a library says"


def test_seen_notices_a_file_of_another_time(tmp_path):
    """The comparison itself: one second on one file is seen."""
    import os

    with constant():
        path = write(tmp_path / "a", CASES["logistic"], False)
        first = seen(run, path)
    assert of_one_day(first)
    file = tmp_path / "a" / "out" / "plan.json"
    os.utime(file, (file.stat().st_atime, file.stat().st_mtime + 1))
    second = first | {"out/plan.json": (file.stat().st_mtime_ns, 0, 0, 0)}
    assert not of_one_day(second)
    assert differing([first, second]) == {"out/plan.json"}
