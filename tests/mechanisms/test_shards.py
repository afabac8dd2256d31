"""Mechanisms and hybrids on a mesh release what they release on one device, on one process and on two."""

import sys

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import integer_words
from dpmcmc.engine.shards import shards_of
from dpmcmc.mechanisms import AdaSSP, ObjectivePerturbation, SufficientStatistics
from dpmcmc.privacy.query.record_sums import Whole
from tests.engine.test_distributed import launched, started

RNG = np.random.default_rng(0)
N, D = 203, 3  # 203: the shards are not of one size
X = RNG.normal(size=(N, D))
X = (X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1)).astype(np.float32)
LINEAR = {"x": X, "y": np.clip(X @ np.ones(D) + RNG.normal(size=N) / 9, -1, 1).astype(np.float32)}
LOGISTIC = {"x": X, "y": (X[:, 0] > 0).astype(np.int32)}


@pytest.mark.parametrize("number", [0, 1, -1, 2**31, -(2**31), 2**62, -(2**62) * N, 2**126, -(2**126)])
def test_an_integer_survives_its_words(number):
    assert integer_words.number_of(integer_words.words_of(number)) == number


class Large:
    """A sum whose total is beyond 64 bits."""

    def __call__(self, records):
        return (np.full((2, 2), -(2**62), np.int64), np.array([len(records["x"])], np.int64))


@pytest.mark.parametrize("devices", [1, 2, 5, 300])
def test_shards_hold_each_record_once_and_add_up_to_the_whole(devices, monkeypatch):
    ours = jax.devices()[0]
    mesh = type("Mesh", (), {"shape": {"data": devices}, "devices": np.array([[ours] * devices])})
    made = shards_of(LINEAR, mesh)
    rows = np.concatenate([one.records["x"] for one in made.own])
    np.testing.assert_array_equal(rows, X)
    assert len(made.own) == devices
    assert made.num_records == N
    assert made.shapes == Whole(LINEAR).shapes
    total = made.prepared(lambda records: {"x": records["x"][:, :1]}).total(Large())
    assert total[0].tolist() == [[-(2**62) * devices] * 2] * 2
    assert total[1].tolist() == [N]


def test_a_mechanism_that_reads_records_otherwise_names_those_that_take_a_mesh():
    target = dpmcmc.targets.LogisticRegression(num_features=D, row_bound=1.0)
    plan = ObjectivePerturbation(regularisation=10.0).plan(target, num_records=N, epsilon=1.0, delta=1e-4)
    with pytest.raises(ValueError, match=r"mesh: ObjectivePerturbation .*\(NoiseAware .* hybrids; leave it out"):
        dpmcmc.sample(plan, LOGISTIC, mesh=dpmcmc.mesh(1, 1))


def release(mesh=None):
    """Draws of each mechanism, of a hybrid, and of a chain in a private metric, under known keys."""
    linear = dpmcmc.targets.LinearRegression(num_features=D, row_bound=1.0, label_bound=1.0, noise_scale=0.3)
    logistic = dpmcmc.targets.LogisticRegression(num_features=D, row_bound=1.0)
    terms = {"num_records": N, "epsilon": 3.0, "delta": 1e-4}
    found = {}
    for mechanism, target, records in (
        (SufficientStatistics(), linear, LINEAR),
        (AdaSSP(), linear, LINEAR),
        (dpmcmc.mechanisms.NoiseAware(draws=50), linear, LINEAR),
        (dpmcmc.mechanisms.NoiseAware(draws=50), logistic, LOGISTIC),
    ):
        plan = mechanism.plan(target, **terms)
        draws = dpmcmc.sample(plan, records, key=3, mesh=mesh).flat_draws()
        found[f"{type(mechanism).__name__} of {type(target).__name__}"] = draws
    return found


def kept_plans():
    """Yield (name, plan, records) of a mechanism and of a hybrid."""
    linear = dpmcmc.targets.LinearRegression(num_features=D, row_bound=1.0, label_bound=1.0, noise_scale=0.3)
    terms = {"num_records": N, "epsilon": 3.0, "delta": 1e-4}
    yield "SufficientStatistics of LinearRegression", SufficientStatistics().plan(linear, **terms), LINEAR
    yield "hybrid", chain_plans()["hybrid"], LOGISTIC


def chain_plans():
    """Plans of a hybrid, and of a chain in a private metric."""
    logistic = dpmcmc.targets.LogisticRegression(num_features=D, row_bound=1.0)
    sgld = dpmcmc.SGLD(step_size=0.5)
    start = dpmcmc.mechanisms.OPS(prior_precision=1.0)
    terms = {"num_records": N, "epsilon": 3.0, "delta": 1e-4}
    hybrid = dpmcmc.mechanisms.Hybrid(start, sgld, steps=20).plan(logistic, **terms)
    privacy = dpmcmc.Privacy(epsilon=3.0, delta=1e-4)
    metric = dpmcmc.PrivateMetric()
    whitened = dpmcmc.plan(logistic, num_records=N, sampler=sgld, steps=20, privacy=privacy, metric=metric)
    return {"hybrid": hybrid, "metric": whitened}


def chains(mesh):
    """Draws of these plans, on a mesh."""
    found = {}
    for name, plan in chain_plans().items():
        found[name] = dpmcmc.sample(plan, LOGISTIC, key=3, mesh=mesh).flat_draws()
    return found


PROGRAM = """
import sys
import numpy as np
import dpmcmc
if len(sys.argv) > 2:
    dpmcmc.processes.connect()
import jax
from tests.mechanisms import test_shards
mesh = dpmcmc.mesh(1, 2)
found = test_shards.release(mesh) | test_shards.chains(mesh)
np.savez(f"{sys.argv[1]}/{jax.process_index()}-{len(sys.argv)}.npz", **found)
# What a mechanism and a hybrid have committed is released again.
kept = f"{sys.argv[1]}/kept-{len(sys.argv)}"
for name, plan, records in test_shards.kept_plans():
    for _ in range(2):
        draws = dpmcmc.sample(plan, records, key=3, mesh=mesh, checkpoint=f"{kept}-{name}").flat_draws()
        np.testing.assert_array_equal(draws, found[name])
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_processes_and_two_devices_release_the_bits_of_one(tmp_path):
    done = launched([sys.executable, "-c", PROGRAM, str(tmp_path), "distributed"])
    assert done.returncode == 0, done.stderr
    done = started([sys.executable, "-c", PROGRAM, str(tmp_path)], devices=2)
    assert done.returncode == 0, done.stderr
    one, first, second = (np.load(tmp_path / name) for name in ("0-2.npz", "0-3.npz", "1-3.npz"))
    assert len(one) == 6
    for name, draws in {**one}.items():
        np.testing.assert_array_equal(first[name], draws, err_msg=name)
        np.testing.assert_array_equal(second[name], draws, err_msg=name)
        assert np.ptp(draws) > 0.01, name
    # Sums are the same to the last bit without a mesh, too.
    for name, draws in release().items():
        np.testing.assert_array_equal(one[name], draws, err_msg=name)
