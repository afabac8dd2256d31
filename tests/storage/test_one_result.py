"""A folder is one result: refused where there is one, whole or unreadable after a kill, and checked by its digests."""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
import warnings

import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.engine import sizes
from dpmcmc.errors import InputError
from dpmcmc.inference import Evidence
from dpmcmc.privacy import Ledger
from dpmcmc.storage import checkpoint
from dpmcmc.storage.run_folder import RunFolder, today
from tests.malformed.guarantees import damages

N, D = 400, 3
LOGISTIC = dpmcmc.targets.LogisticRegression(1.0, num_features=D, row_bound=1.0)


@functools.cache
def plan(epsilon):
    return dpmcmc.mechanisms.NoiseAware(draws=50).plan(LOGISTIC, num_records=N, epsilon=epsilon, delta=1e-5)


@functools.cache
def result(epsilon):
    """A release with evidence; of few draws, so that its verdict refuses intervals."""
    return dpmcmc.sample(plan(epsilon), records())


def records():
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (N, D)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}


@functools.cache
def chain():
    """A result without evidence."""
    privacy = dpmcmc.Privacy(epsilon=0.5, delta=1e-5)
    made = dpmcmc.plan(LOGISTIC, num_records=N, sampler=dpmcmc.SGLD(step_size=0.1), steps=8, privacy=privacy)
    return dpmcmc.sample(made, records())


def verified(folder, capsys):
    """(exit code, what was said) of ``verify``."""
    code = main(["verify", str(folder / "privacy.json")])
    said = capsys.readouterr()
    return code, said.out + said.err


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_result_is_not_saved_over_another(tmp_path, capsys):
    """Its evidence, at ε = 5, would lie beside a privacy.json that says ε = .5."""
    folder = result(5.0).save(tmp_path / "run")
    before = files(folder)
    with pytest.raises(ValueError, match=r"already holds a result; a folder is one result: .*new or empty"):
        chain().save(folder)
    assert files(folder) == before
    assert verified(folder, capsys)[0] == 0
    assert dpmcmc.load(folder).evidence is not None
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(ValueError, match="already holds something"):
        chain().save(tmp_path / "mine")


def test_two_results_in_one_folder_are_refused(tmp_path, capsys):
    """As a copy over a copy, or an earlier version, leaves them."""
    folder = result(5.0).save(tmp_path / "run")
    other = chain().save(tmp_path / "other")
    shutil.copytree(other, folder, dirs_exist_ok=True)
    with pytest.raises(ValueError, match=r"evidence\.npz is not a file of this result"):
        dpmcmc.load(folder)
    code, said = verified(folder, capsys)
    assert code == 1
    assert "evidence.npz is not a file of this result" in said


CHANGES = {
    "is missing": lambda path: path.unlink(),
    "is not the file that was released": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
}


@pytest.mark.parametrize("said", CHANGES)
@pytest.mark.parametrize("name", ["draws.nc", "plan.json", "metrics.json", "report.html", "evidence.npz"])
def test_a_missing_and_a_changed_file_is_refused(name, said, tmp_path, capsys):
    folder = result(5.0).save(tmp_path / "run")
    CHANGES[said](folder / name)
    with pytest.raises(ValueError, match=f"{name} {said}"):
        dpmcmc.load(folder)
    code, told = verified(folder, capsys)
    assert code == 1
    assert f"{name} {said}" in told


@pytest.mark.parametrize("name", ["trace.npz", "config.yaml", "figures/more.png"])
def test_a_file_of_another_result_is_refused(name, tmp_path, capsys):
    folder = result(5.0).save(tmp_path / "run")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"")
    with pytest.raises(ValueError, match=f"{name} is not a file of this result"):
        dpmcmc.load(folder)
    assert verified(folder, capsys)[0] == 1
    (folder / name).unlink()
    (folder / "notes.txt").touch()  # of whoever keeps the folder
    assert dpmcmc.load(folder).evidence is not None


def refusal(load, folder):
    """What a folder is refused with; nothing where it is read."""
    try:
        load(folder)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("digests", [True, False], ids=["digests", "none"])
def test_damage_of_any_file_is_one_sentence(digests, tmp_path):
    """With digests no damaged file is read, but privacy.json; without, whatever a library below raises is refused."""
    folder = result(5.0).save(tmp_path / "run")
    if not digests:
        body = json.loads((folder / "privacy.json").read_text())
        del body["files"]
        (folder / "privacy.json").write_text(json.dumps(body))
    for name, content in files(folder).items():
        for seed in range(4):
            for _, spoilt in damages(content, seed):
                (folder / name).write_bytes(spoilt)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # HDF5's of a file that it cannot close
                    said = refusal(dpmcmc.load, folder)
                assert not re.search(r"[\n]|[.!?]\s+[A-Z]", said)
                assert len(said) < 600
                assert said or name == "privacy.json" or not digests
        (folder / name).write_bytes(content)


def test_damaged_evidence_is_refused_by_whoever_reads_it_alone(tmp_path):
    """Also where zipfile and zlib raise what is no ValueError."""
    content = result(5.0).evidence.content()
    said = []
    for seed in range(30):
        for _, spoilt in damages(content, seed):
            (tmp_path / "evidence.npz").write_bytes(spoilt)
            said.append(refusal(Evidence.load, tmp_path))
    assert all("is damaged, or no evidence of this version" in one for one in said if one)
    assert sum(map(bool, said)) > 30


def test_a_privacy_json_alone_is_verified_by_itself(tmp_path, capsys):
    shutil.copy(result(5.0).save(tmp_path / "run") / "privacy.json", tmp_path)
    code, said = verified(tmp_path, capsys)
    assert code == 0
    assert "alone " in said


def test_a_folder_that_states_no_digests_is_refused(tmp_path, capsys):
    folder = result(5.0).save(tmp_path / "run")
    body = json.loads((folder / "privacy.json").read_text())
    del body["files"]
    (folder / "privacy.json").write_text(json.dumps(body))
    with pytest.raises(InputError, match="states no digests"):
        dpmcmc.load(folder)
    code, said = verified(folder, capsys)
    assert code == 1
    assert "states no digests" in said


class Kill(BaseException):
    """The process ends here."""


def killed(patch, last):
    """Nothing is renamed, or removed, after the ``last`` time; the list grows with each."""
    count = []
    for name in ("replace", "unlink", "mkdir"):
        real = getattr(os, name)

        def call(*given, real=real, **named):
            if len(count) >= last:
                raise Kill
            count.append(given)
            return real(*given, **named)

        patch.setattr(os, name, call)
    return count


def test_a_kill_at_any_moment_leaves_a_whole_result_or_none_and_the_cost_of_all_draws(tmp_path, monkeypatch):
    """And the result can be saved there again."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    one = dataclasses.replace(chain(), evidence=result(5.0).evidence)
    wanted = files(one.save(tmp_path / "whole"))
    for last in itertools.count():
        folder = tmp_path / str(last)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Kill):
            count = killed(patch, last)
            one.save(folder)
            break
        if (folder / "draws.nc").exists():
            assert json.loads((folder / "privacy.json").read_text())["epsilon"] == one.guarantee.epsilon
        if files(folder) != wanted:  # the last rename was still to come
            with pytest.raises(ValueError, match=r"has not ended|holds no result"):
                dpmcmc.load(folder)
            one.save(folder)
        assert files(folder) == wanted
    assert len(count) > len(wanted)
    assert files(folder) == wanted


def test_a_result_that_was_not_saved_to_its_end_is_said_to_be_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(RunFolder, "seal", lambda *_: None)
    folder = result(5.0).save(tmp_path / "run")
    with pytest.raises(ValueError, match="has not ended, or was stopped while it was saved"):
        dpmcmc.load(folder)
    code, said = verified(folder, capsys)
    assert code == 1
    assert "the run has not ended" in said
    for path in folder.iterdir():
        if path.name != "privacy.json":
            path.unlink()
    code, said = verified(folder, capsys)  # as of a run that is being computed
    assert code == 0
    assert "not ended" in said


def test_a_run_that_is_sealed_leaves_no_file_of_its_earlier_start(tmp_path):
    folder = RunFolder(tmp_path, today())
    for left in ("trace.npz", ".draws.nc.abc.nc", "figures/traces.png", "figures/calibration.png"):
        (tmp_path / left).parent.mkdir(exist_ok=True)
        (tmp_path / left).touch()
    folder.state({"epsilon": 1.0})
    for name in ("draws.nc", "figures/traces.png"):
        folder.write(name, b"new")
    folder.seal({"epsilon": 1.0})
    assert files(tmp_path).keys() == {"privacy.json", "draws.nc", "figures/traces.png"}
    assert json.loads((tmp_path / "privacy.json").read_text())["files"].keys() == {"draws.nc", "figures/traces.png"}
    assert {path.stat().st_mtime % 86400 for path in (tmp_path, *tmp_path.rglob("*"))} == {0}


# Beside keys, and beside a run's own folder.


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """The checkpoint of a run that was stopped, which holds its keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 2)
    monkeypatch.setattr(checkpoint, "_OVERHEAD", 1e9)

    def stop(done, total):
        raise Kill

    with contextlib.suppress(Kill):
        dpmcmc.sample(chain().plan, records(), checkpoint="around/ck", progress=stop)
    assert json.loads((tmp_path / "around/ck/run.json").read_text())["keys"]
    os.symlink(tmp_path / "around/ck", tmp_path / "link")
    os.symlink(tmp_path / "around", tmp_path / "link-around")
    return tmp_path


PLACES = ["around/ck", "link", "around", "link-around", "around/ck/in", "link/in", "around/ck/in/deeper", "./a/../link"]


@pytest.mark.parametrize("place", PLACES)
def test_a_result_is_not_saved_into_a_checkpoint(place, stopped):
    (stopped / "a").mkdir()
    before = files(stopped)
    for save in (lambda: result(5.0).save(place), lambda: dpmcmc.sample(plan(5.0), records(), out=place)):
        with pytest.raises(ValueError, match=r"^folder: .*(holds the keys of a run|already holds something)"):
            save()
    assert files(stopped) == before


def test_a_command_s_folders_lie_in_no_checkpoint(stopped, capsys):
    for option in ("--out", "--confidential"):
        code = main(["run", "two_normals", "--out", "run", option, "around/ck/in"])
        assert code == 2
        assert f"{option}: around/ck/in lies in a checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["run/kept", "to-run/kept", "run/figures/kept", "run"])
def test_keys_and_a_ledger_lie_in_no_result(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = files(result(5.0).save("run"))
    os.symlink(tmp_path / "run", tmp_path / "to-run")
    terms = {"adjacency": "replace_one", "epsilon": 50.0, "delta": 1e-3, "num_records": N}
    with pytest.raises(ValueError, match=r"^checkpoint: .*lies in .*which is a result"):
        dpmcmc.sample(plan(5.0), records(), checkpoint=place)
    assert files(tmp_path / "run") == before
    (tmp_path / place).parent.mkdir(exist_ok=True)
    book = Ledger.init(tmp_path / place / "x" if place == "run" else place, name="data", **terms)
    with pytest.raises(ValueError, match=r"^ledger: .*lies in .*which is a result"):
        dpmcmc.sample(plan(5.0), records(), ledger=book)
    assert book.state().runs == ()
    dpmcmc.sample(plan(5.0), records(), checkpoint="run/confidential/kept")


def test_a_folder_that_is_taken_is_refused_before_anything_is_charged(tmp_path):
    terms = {"adjacency": "replace_one", "epsilon": 50.0, "delta": 1e-3, "num_records": N}
    book = Ledger.init(tmp_path / "budget.db", name="data", **terms)
    folder = result(5.0).save(tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a result"):
        dpmcmc.sample(plan(5.0), records(), out=folder, ledger=book)
    assert book.state().runs == ()


def test_a_run_that_goes_on_finds_its_result_saved(tmp_path):
    """It was stopped after that; another result there is not touched, and this one is returned."""
    given = {"checkpoint": tmp_path / "kept", "out": tmp_path / "run"}
    first = dpmcmc.sample(plan(5.0), records(), **given)
    before = files(tmp_path / "run")
    again = dpmcmc.sample(plan(5.0), records(), **given)
    np.testing.assert_array_equal(again.draws, first.draws)
    assert files(tmp_path / "run") == before
    other = chain().save(tmp_path / "other")
    before = files(other)
    with pytest.warns(UserWarning, match="could not be saved .*already holds a result.*save it elsewhere"):
        again = dpmcmc.sample(plan(5.0), records(), checkpoint=tmp_path / "kept", out=other)
    np.testing.assert_array_equal(again.draws, first.draws)
    assert files(other) == before


# What ArviZ reads.


def test_draws_say_what_they_may_be_used_for(tmp_path):
    import xarray

    one = result(5.0)
    with xarray.open_dataset(one.save(tmp_path / "run") / "draws.nc", group="draws", engine="h5netcdf") as group:
        said = dict(group.attrs)
    assert said["usable_for"] == "prediction"
    assert said["intervals"] == one.verdict.reasons["intervals"]
    assert said["intervals"].startswith("Do not report intervals")
    assert (said["epsilon"], said["delta"], said["adjacency"]) == (one.guarantee.epsilon, 1e-5, "replace_one")
    assert said["guarantee"] == str(one.guarantee)


def test_arviz_is_told_that_draws_are_not_for_intervals(tmp_path):
    for one in (result(5.0), dpmcmc.load(result(5.0).save(tmp_path / "run"))):
        with pytest.warns(
            dpmcmc.NotForIntervals, match=r"^Do not report intervals.*There is no group posterior"
        ) as seen:
            made = one.to_arviz()
        assert [one.filename for one in seen if one.category is dpmcmc.NotForIntervals] == [__file__]
        assert made["draws"].attrs["usable_for"] == "prediction"
        assert "posterior" not in (made.groups() if callable(getattr(made, "groups", None)) else made.children)
