"""Memory-mapped records give the draws of records in memory, and only the rows of a batch are read."""

import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import rows_on_disk as records_on_disk
from dpmcmc.engine import sizes
from dpmcmc.errors import DataError
from dpmcmc.storage.fingerprint import fingerprint
from dpmcmc.targets import check_rows
from dpmcmc.targets.labels import check_labels

N, D = 3000, 7
rng = np.random.default_rng(3)
#: As files often are: float64 and int64.
X, Y = rng.normal(size=(N, D)) / D**0.5, rng.integers(0, 2, N)
TARGET = dpmcmc.targets.LogisticRegression(prior_scale=1.0)


def mapped(folder, **arrays):
    found = {}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
        found[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
    return found


def make(sampling=None, **more):
    privacy = dpmcmc.Privacy(epsilon=5.0, delta=1e-5, accountant="rdp")
    given = {"steps": 90, "chains": 3, "thin": 4, "privacy": privacy, "sampler": dpmcmc.SGLD(step_size=0.5)} | more
    return dpmcmc.plan(TARGET, num_records=N, sampling=sampling or dpmcmc.Poisson(40), **given)


PLANS = {
    "fixed_size": {"sampling": dpmcmc.FixedSize(40)},
    "momentum": {"sampler": dpmcmc.SGHMC(step_size=0.1, friction=0.2)},
    "plain": {"privacy": None},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_draws_are_those_of_records_in_memory(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 32)  # several chunks, so that rows are read ahead
    plan = make(**PLANS[name])
    inside = dpmcmc.sample(plan, {"x": X, "y": Y}, key=5).draws
    outside = dpmcmc.sample(plan, mapped(tmp_path, x=X, y=Y), key=5).draws
    # Another program may round otherwise.
    np.testing.assert_allclose(outside, inside, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_only_selected_rows_are_read_and_only_before_their_chunk(tmp_path, monkeypatch):
    read = []
    selected = records_on_disk._selected

    def spy(leaf, indices, mask):
        if leaf.ndim == 2:
            read.append(indices[mask])
        return selected(leaf, indices, mask)

    monkeypatch.setattr(records_on_disk, "_selected", spy)
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 32)
    plan = make(chains=1)
    dpmcmc.sample(plan, mapped(tmp_path, x=X, y=Y), key=5)
    assert len(read) == 3
    # 90 steps and a few of padding, of 40 rows each in the mean.
    rows = sum(map(len, read))
    assert 0.9 * 90 * 40 < rows < 1.2 * 96 * 40


@pytest.mark.slow
def test_a_resumed_run_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 16)
    plan, records = make(), mapped(tmp_path, x=X, y=Y)
    alone = dpmcmc.sample(plan, records, key=5).draws

    class Stopped(Exception):
        pass

    def stop(done, steps):
        if done > 40:
            raise Stopped

    with pytest.raises(Stopped):
        dpmcmc.sample(plan, records, key=5, checkpoint=tmp_path / "c", progress=stop)
    np.testing.assert_array_equal(dpmcmc.sample(plan, records, key=6, checkpoint=tmp_path / "c").draws, alone)


def test_what_cannot_be_had_is_refused_by_name(tmp_path):
    records = mapped(tmp_path, x=X, y=Y)
    with pytest.raises(ValueError, match="sampling: memory-mapped records need minibatches"):
        dpmcmc.sample(make(dpmcmc.Full(), steps=4), records, key=0)
    second = dpmcmc.SGFS(step_size=0.5, fisher="query", own_batch=True)
    with pytest.raises(ValueError, match="own_batch: not with memory-mapped records"):
        dpmcmc.sample(make(sampler=second, privacy=None), records, key=0)
    most = dpmcmc.Privacy(epsilon=1.0, delta=1e-5, accountant="rdp")
    with pytest.raises(ValueError, match="sampling: memory-mapped records need minibatches"):
        dpmcmc.sample(make(dpmcmc.FixedSize(N // 2 + 1), steps=4, privacy=most), records, key=0)


def test_blocks_see_every_row(tmp_path, monkeypatch):
    monkeypatch.setattr("dpmcmc.storage.record_blocks._BLOCK_BYTES", 1000)
    records = mapped(tmp_path, x=X, y=Y)
    assert fingerprint(b"k" * 32, records) == fingerprint(b"k" * 32, {"x": X, "y": Y})
    bad = X.copy()
    bad[[1234, 2999], [3, 0]] = np.nan, np.inf
    with pytest.raises(DataError, match="some rows are not finite") as caught:
        check_rows(mapped(tmp_path, bad=bad), N)
    assert caught.value.rows == (1234, 2999)
    labels = Y.copy()
    labels[2999] = 2
    with pytest.raises(DataError, match="some rows have others") as caught:
        check_labels(mapped(tmp_path, labels=labels)["labels"], 2, "t")
    assert caught.value.rows == (2999,)
