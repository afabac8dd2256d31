"""A run that was stopped goes on to the same bits or not at all, and what it keeps is its owner's alone."""

import contextlib
import errno
import itertools
import json
import stat

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import sizes
from dpmcmc.engine.kept_draws import KeptDraws
from dpmcmc.mechanisms import OPS, Hybrid, OutputPerturbation
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.storage import arrays, checkpoint
from dpmcmc.storage.checkpoint import Checkpoint, CheckpointError
from dpmcmc.storage.fingerprint import plan_digest
from tests.engine.test_engine import DATA, TARGET, make

#: Bits or sensitivities of what users run.
pytestmark = pytest.mark.optimised

PLAN = make(chains=3, sampler=dpmcmc.SGNHT(step_size=0.01))


class Stop(BaseException):
    """A kill."""


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    """Chunks of 7 steps, a commit after every chunk."""
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 7)
    monkeypatch.setattr(sizes, "cores", lambda platform: 1)
    monkeypatch.setattr(checkpoint, "_OVERHEAD", 1e9)


@pytest.fixture(scope="module")
def alone():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "_CHUNK_STEPS", 7)
        patch.setattr(sizes, "cores", lambda platform: 1)
        return dpmcmc.sample(PLAN, DATA, key=3)


def stopped(folder, chunk, plan=PLAN, **arguments):
    """Start, or go on, and be killed while the result of a chunk is looked at."""
    count = itertools.count()

    def progress(done, total):
        if next(count) == chunk:
            raise Stop

    with pytest.raises(Stop):
        dpmcmc.sample(plan, DATA, checkpoint=folder, progress=progress, **arguments)


def same(a, b):
    pairs = zip(jax.tree.leaves((a.draws, a.info)), jax.tree.leaves((b.draws, b.info)), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, 1, 5, 8])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, alone, chunk):
    stopped(tmp_path / "c", chunk, key=3)
    assert same(dpmcmc.sample(PLAN, DATA, key=3, checkpoint=tmp_path / "c"), alone)


@pytest.mark.slow
def test_chains_beside_each_other_go_on_too_on_whatever_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "cores", lambda platform: 2)
    alone = dpmcmc.sample(PLAN, DATA, key=3)
    for cores, chunk in ((2, 5), (1, 6)):
        folder = tmp_path / str(cores)
        monkeypatch.setattr(sizes, "cores", lambda platform: 2)
        stopped(folder, chunk, key=3)
        monkeypatch.setattr(sizes, "cores", lambda platform, cores=cores: cores)
        after = dpmcmc.sample(PLAN, DATA, key=3, checkpoint=folder)
        assert same(after, alone) if cores == 2 else np.allclose(after.draws, alone.draws, rtol=1e-4, atol=1e-6)


def test_a_finished_run_is_read_and_holds_no_key(tmp_path, alone):
    folder = tmp_path / "c"
    key = dpmcmc.SecretKey._of(streams_of(None)[0])
    words = [np.asarray(jax.random.key_data(k)).tolist() for k in key._streams]
    first = dpmcmc.sample(PLAN, DATA, key=key, checkpoint=folder)
    kept = json.loads((folder / "run.json").read_text())
    assert kept["keys"] is None
    assert str(words[0]) not in (folder / "run.json").read_text()
    assert same(dpmcmc.sample(PLAN, DATA, checkpoint=folder), first)
    assert first.guarantee == PLAN.guarantee


def test_only_the_owner_can_read_it(tmp_path):
    stopped(tmp_path / "c", 6, key=3)
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    files = list((tmp_path / "c").iterdir())
    assert {path.name.split("-")[0] for path in files} == {"run.json", "state", "draws"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_another_plan_other_records_and_another_kind_of_key_are_refused(tmp_path):
    stopped(tmp_path / "c", 3, key=3)
    with pytest.raises(CheckpointError, match="another plan"):
        dpmcmc.sample(make(chains=3), DATA, key=3, checkpoint=tmp_path / "c")
    x = DATA["x"].copy()
    x[17, 1] = np.nextafter(x[17, 1], 1)
    with pytest.raises(CheckpointError, match="other records"):
        dpmcmc.sample(PLAN, {**DATA, "x": x}, key=3, checkpoint=tmp_path / "c")
    with pytest.raises(CheckpointError, match="known noise"):
        dpmcmc.sample(PLAN, DATA, checkpoint=tmp_path / "c")


def test_records_are_known_by_a_keyed_digest_alone(tmp_path):
    import hashlib

    for at in ("a", "b"):
        stopped(tmp_path / at, 3, key=3)
    one, two = (json.loads((tmp_path / at / "run.json").read_text())["records"] for at in ("a", "b"))
    assert one != two
    bare = {hashlib.sha256(DATA[name].tobytes()).hexdigest() for name in DATA}
    assert not bare & {one, two}


@pytest.mark.parametrize("name", ["state-0.bin", "state-1.bin", "draws-00006.bin"])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_truncated_file_costs_its_commit_and_nothing_else(tmp_path, alone, name, share):
    folder = tmp_path / "c"
    stopped(folder, 8, key=3)
    path = folder / name
    assert path.exists()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert same(dpmcmc.sample(PLAN, DATA, key=3, checkpoint=folder), alone)


def test_a_full_disk_leaves_the_commit_before(tmp_path, alone, monkeypatch):
    real, count = arrays.write_atomically, itertools.count()

    def full(path, write, mode, *last):
        if next(count) >= 12:
            path.with_name(f".{path.name}.half").write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, write, mode, *last)

    monkeypatch.setattr(arrays, "write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        dpmcmc.sample(PLAN, DATA, key=3, checkpoint=tmp_path / "c")
    monkeypatch.setattr(arrays, "write_atomically", real)
    assert same(dpmcmc.sample(PLAN, DATA, key=3, checkpoint=tmp_path / "c"), alone)
    assert not list((tmp_path / "c").glob(".*"))


@pytest.mark.parametrize("commits", [0, 3])
def test_on_another_platform_a_run_is_refused(tmp_path, alone, monkeypatch, commits):
    """The same noise would meet a query that rounds differently."""
    stopped(tmp_path / "c", commits, key=3)
    before = (tmp_path / "c" / "run.json").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "platform", lambda: "elsewhere")
        with pytest.raises(CheckpointError, match=r"another platform.* it was to spend is spent: go on where"):
            dpmcmc.sample(PLAN, DATA, key=3, checkpoint=tmp_path / "c")
    assert (tmp_path / "c" / "run.json").read_bytes() == before
    assert same(dpmcmc.sample(PLAN, DATA, key=3, checkpoint=tmp_path / "c"), alone)


def test_a_finished_run_whose_last_commit_is_lost_is_refused(tmp_path):
    """Its keys are gone, so that it cannot be the same run."""
    folder, plan = tmp_path / "c", make(chains=2)
    dpmcmc.sample(plan, DATA, checkpoint=folder)
    for path in folder.glob("state-*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="has lost the end of its run"):
        dpmcmc.sample(plan, DATA, checkpoint=folder)


@pytest.mark.slow
def test_a_plain_run_goes_on_too(tmp_path):
    plan = dpmcmc.plan(TARGET, num_records=400, sampler=dpmcmc.SGLD(step_size=0.5), steps=40, privacy=None)
    stopped(tmp_path / "c", 3, plan=plan, key=1)
    assert same(dpmcmc.sample(plan, DATA, key=1, checkpoint=tmp_path / "c"), dpmcmc.sample(plan, DATA, key=1))


def test_another_version_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"version": 99}')
    with pytest.raises(CheckpointError, match="not a checkpoint of this version"):
        Checkpoint(tmp_path)


def test_the_platform_knows_its_flags_and_its_code(monkeypatch):
    here = checkpoint.platform()
    assert here == checkpoint.platform()
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert checkpoint.platform() != here


def test_a_release_that_was_stopped_is_made_again_to_the_same_bits(tmp_path, monkeypatch):
    plan = one_shot(OutputPerturbation())

    def stop(*_):
        raise Stop

    drawn = []
    real = OutputPerturbation.draw
    monkeypatch.setattr(OutputPerturbation, "draw", lambda *a: drawn.append(real(*a)) or drawn[-1])
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "commit_stage", stop)
        for _ in range(2):
            with pytest.raises(Stop):
                dpmcmc.sample(plan, DATA, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert dpmcmc.sample(plan, DATA, checkpoint=tmp_path / "c").guarantee == plan.guarantee
    np.testing.assert_array_equal(drawn[0], drawn[2])


def test_a_release_that_was_made_is_not_drawn_again_anywhere(tmp_path, monkeypatch):
    """It may have been seen, and its keys are gone."""
    plan = one_shot(OutputPerturbation())
    first = dpmcmc.sample(plan, DATA, checkpoint=tmp_path / "c")
    assert json.loads((tmp_path / "c" / "run.json").read_text())["keys"] is None
    monkeypatch.setattr(checkpoint, "platform", lambda: "elsewhere")
    again = dpmcmc.sample(plan, DATA, checkpoint=tmp_path / "c")
    np.testing.assert_array_equal(first.draws, again.draws)
    assert again.guarantee == plan.guarantee
    (tmp_path / "c" / "stage-0.bin").write_bytes(b"lost")
    with pytest.raises(CheckpointError, match="has lost the end of its run"):
        dpmcmc.sample(plan, DATA, checkpoint=tmp_path / "c")


@pytest.fixture
def hybrid(monkeypatch):
    """A hybrid of nine chunks, whose posterior draw is quick and a function of its keys."""
    monkeypatch.setattr(OPS, "draw", lambda self, plan, data, streams: jax.random.normal(streams.noise, (1, 3)))
    start = OPS(form="gdp", draws=1)
    return one_shot(Hybrid(start=start, sampler=dpmcmc.SGLD(step_size=0.5), steps=57, chains=2, accountant="rdp"))


def stopped_hybrid(plan, folder, chunk, **arguments):
    """Start, or go on, and be killed before the result of a chunk is committed; the chunks that were computed."""
    ran, real = [], KeptDraws.add

    def add(draws, first, *rest):
        if len(ran) == chunk:
            raise Stop
        ran.append(first)
        real(draws, first, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptDraws, "add", add)
        with contextlib.suppress(Stop):
            return dpmcmc.sample(plan, DATA, checkpoint=folder, **arguments), ran
    return None, ran


def test_a_hybrid_that_was_stopped_goes_on_at_its_last_commit_to_the_same_bits(hybrid, tmp_path):
    whole = dpmcmc.sample(hybrid, DATA, key=3)
    assert stopped_hybrid(hybrid, tmp_path / "c", 4, key=3) == (None, [0, 7, 14, 21])
    result, ran = stopped_hybrid(hybrid, tmp_path / "c", None, key=3)
    assert min(ran) == 28
    np.testing.assert_array_equal(result.draws, whole.draws)
    assert json.loads((tmp_path / "c" / "run.json").read_text())["keys"] is None


def one_shot(mechanism):
    target = dpmcmc.targets.LogisticRegression(prior_scale=1.0, num_features=3, row_bound=1.0)
    return mechanism.plan(target, num_records=400, epsilon=1.0, delta=1e-4)


def test_two_holders_of_one_checkpoint_are_refused(tmp_path):
    held = Checkpoint(tmp_path / "c")
    with pytest.raises(CheckpointError, match="another process"):
        dpmcmc.sample(PLAN, DATA, key=3, checkpoint=tmp_path / "c")
    held.close()
    dpmcmc.sample(PLAN, DATA, key=3, checkpoint=tmp_path / "c")


def test_a_lock_that_a_finished_run_has_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    real, removed = checkpoint.lock, []

    def late(handle, *given):
        real(handle, *given)
        if not removed:
            removed.append((tmp_path / "c.lock").unlink())

    monkeypatch.setattr(checkpoint, "lock", late)
    first = Checkpoint(tmp_path / "c")
    with pytest.raises(CheckpointError, match="another process"):
        Checkpoint(tmp_path / "c")
    first.close()


def test_a_folder_of_ones_own_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        dpmcmc.sample(PLAN, DATA, key=3, checkpoint=tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years"


@pytest.mark.slow
def test_other_code_under_the_same_name_is_another_plan(tmp_path):
    def target(factor):
        def log_likelihood(theta, record):
            return factor * record["x"] @ theta

        return dpmcmc.targets.Custom(lambda key: np.zeros(3, np.float32), lambda t: -t @ t, log_likelihood)

    def planned(factor):
        return dpmcmc.plan(target(factor), num_records=400, sampler=dpmcmc.SGLD(step_size=0.1), steps=40, privacy=None)

    stopped(tmp_path / "c", 2, plan=planned(1.0), key=1)
    with pytest.raises(CheckpointError, match="another plan"):
        dpmcmc.sample(planned(-7.0), DATA, key=1, checkpoint=tmp_path / "c")
    dpmcmc.sample(planned(1.0), DATA, key=1, checkpoint=tmp_path / "c")


def test_numbers_that_are_one_object_count_each_time():
    def planned(x, y):
        target = dpmcmc.targets.Custom(
            lambda key: np.zeros(3, np.float32), lambda t: -t @ t, lambda t, r, at=(1, x, y, 2): at[1] * r["x"] @ t
        )
        return dpmcmc.plan(target, num_records=400, sampler=dpmcmc.SGLD(step_size=0.1), steps=40, privacy=None)

    assert plan_digest(planned(1, 2)) == plan_digest(planned(1, 2))
    assert plan_digest(planned(1, 2)) != plan_digest(planned(2, 1))
    assert plan_digest(planned(1, 2)) != plan_digest(planned(2, 2))
