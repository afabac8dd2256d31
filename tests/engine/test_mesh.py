"""Devices share the work, and neither the guarantee, nor the law of the draws, nor the noise knows how many."""

import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from scipy import stats

from dpmcmc import mesh as mesh_function
from dpmcmc.engine.mesh import checked, sizes
from dpmcmc.privacy.accounting.sampling import FixedSize, Full, Poisson, gap_tables, shard_rows
from dpmcmc.privacy.query.selection import shard_selector
from tests.compiling import flags
from tests.on_devices import DISK


def on_devices(group, folder):
    """What a group of ``tests/on_devices.py`` found on 8 simulated devices."""
    path = folder / f"{group}.npz"
    options = f"--xla_force_host_platform_device_count=8 {flags()}"
    subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-m", "tests.on_devices", str(path), group],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": options},
        cwd=Path(__file__).resolve().parents[2],
        check=True,
        timeout=600,
    )
    with np.load(path) as file:
        return dict(file)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return on_devices("quick", tmp_path_factory.mktemp("devices"))


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    return on_devices("slow", tmp_path_factory.mktemp("devices"))


def assert_close(one, other, rtol=1e-5):
    np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * np.abs(other).max())


N, SHARDS, RATE, KEYS = 41, 4, 11 / 41, 20_000


def selected(sampling, shards=SHARDS, num_records=N, num_keys=KEYS):
    """How often each record is selected by the shards together, (keys, N); padding is never."""
    slots, _ = sampling.capacity(num_records, 1e-9)
    rows = shard_rows(num_records, shards)
    select = shard_selector(sampling, num_records, shards, sampling.shard_slots(num_records, shards, slots))

    def of_shard(key, shard):
        indices, mask = select(key, shard)
        places = jnp.arange(rows) if indices is None else indices
        return jnp.zeros(rows + 1, jnp.int32).at[jnp.where(mask, places, rows)].add(1)[:rows]

    every = jax.vmap(lambda key: jax.vmap(lambda shard: of_shard(key, shard))(jnp.arange(shards)))
    counts = np.asarray(jax.jit(every)(jax.random.split(jax.random.key(7), num_keys))).reshape(num_keys, -1)
    assert not counts[:, num_records:].any()
    return counts[:, :num_records]


def assert_independent(counts):
    """Every record takes part with probability RATE, each pair independently, and the batch size is binomial.

    At false alarm 1e-4 each, by χ² for the records and the sizes, and by the largest of all pairs' z for the pairs.
    """
    keys, n = counts.shape
    assert counts.max() == 1
    each = (counts.sum(axis=0) - keys * RATE) ** 2 / (keys * RATE * (1 - RATE))
    assert each.sum() < stats.chi2.isf(1e-4, n)
    centred = (counts - RATE) / math.sqrt(RATE * (1 - RATE))
    pairs = (centred.T @ centred / math.sqrt(keys))[np.triu_indices(n, 1)]
    assert np.abs(pairs).max() < stats.norm.isf(1e-4 / 2 / len(pairs))
    size = counts.sum(axis=1)
    lowest, highest = 5, 18
    probability = stats.binom.pmf(np.arange(n + 1), n, RATE)
    binned = lambda p: np.concatenate([[p[:lowest].sum()], p[lowest:highest], [p[highest:].sum()]])  # noqa: E731
    observed = binned(np.bincount(size, minlength=n + 1))
    assert stats.chisquare(observed, keys * binned(probability)).pvalue > 1e-4


@pytest.mark.slow
def test_poisson_batches_of_shards_are_the_poisson_batch_of_all_records():
    assert_independent(selected(Poisson(11)))


def test_shards_that_shared_a_key_would_be_caught(monkeypatch):
    monkeypatch.setattr(jax.random, "fold_in", lambda key, data: key)
    counts = selected(Poisson(11))
    # Record by record nothing is wrong.
    assert abs(counts.mean() - RATE) < 0.01
    with pytest.raises(AssertionError):
        assert_independent(counts)


@pytest.mark.slow
@pytest.mark.parametrize("size", [7, 20, 21, 30, 41])
def test_a_fixed_size_batch_has_its_size_over_all_shards(size):
    counts = selected(FixedSize(size), num_keys=4000)
    assert counts.max() == 1
    np.testing.assert_array_equal(counts.sum(axis=1), size)
    rate = size / N
    each = (counts.mean(axis=0) - rate) * math.sqrt(4000 / max(rate * (1 - rate), 1e-9))
    # The N frequencies add up to b, which takes a degree of freedom and 1/N of the variance.
    assert (each**2).sum() * (N - 1) / N < stats.chi2.isf(1e-4, N - 1)


def test_full_batches_leave_padding_out():
    for shards in (1, 3, 8, 40):
        np.testing.assert_array_equal(selected(Full(), shards=shards, num_keys=1), 1)


@pytest.mark.parametrize(("num_records", "batch"), [(41, 11), (41, 40.5), (1000, 10), (1000, 900), (32561, 180)])
@pytest.mark.parametrize("overflow", [1e-6, 1e-12])
def test_rooms_of_shards_overflow_no_more_often_than_is_charged(num_records, batch, overflow):
    scheme = Poisson(batch)
    slots, charged = scheme.capacity(num_records, overflow)
    assert scheme.truncation(num_records, slots) <= charged
    for shards in (2, 8, 64):
        rows = shard_rows(num_records, shards)
        own = scheme.shard_slots(num_records, shards, slots)
        # Of the shard alone, at the rate of all.
        alone = Poisson(scheme.rate(num_records) * rows).truncation(rows, own)
        assert shards * alone <= scheme.truncation(num_records, slots) * (1 + 1e-6)
        assert shards * alone <= charged
        assert gap_tables(scheme.rate(num_records)).charged_rate <= scheme.charged_rate(num_records)


def test_shards_of_a_batch_that_cannot_overflow_cannot_either():
    scheme = Poisson(11)
    slots, charged = scheme.capacity(N, 0.0)
    assert charged == 0
    assert Poisson(RATE * 11).truncation(11, scheme.shard_slots(N, SHARDS, slots)) == 0


def test_a_mesh_has_no_more_devices_than_there_are():
    count = jax.device_count()
    assert sizes(mesh_function()) == (1, count)
    assert sizes(None) == (1, 1)
    for chain, data in ((count + 1, 1), (1, count + 1), (0, None), (-1, 1)):
        with pytest.raises(ValueError, match="devices are wanted"):
            mesh_function(chain, data)
    with pytest.raises(ValueError, match=r"must be \('chain', 'data'\)"):
        checked(Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "chain")))


@pytest.mark.slow
def test_full_batches_on_devices_are_full_batches_on_one(found):
    assert_close(found["full/mesh"], found["full/none"])
    assert np.ptp(found["full/mesh"]) > 0.1


@pytest.mark.slow
def test_without_shards_of_the_data_a_mesh_changes_no_bit(found):
    np.testing.assert_array_equal(found["poisson/mesh"], found["poisson/none"])


def variance_over_planned(gradients, std):
    """(gradient variance about its mean / s², its standard error); (chains, steps, p) at one position."""
    count = gradients.shape[0] * gradients.shape[1]
    values = gradients.reshape(count, -1) / std
    return values.var(axis=0, ddof=1).mean(), math.sqrt(2 / (count - 1) / values.shape[1])


def test_noise_is_added_once(found):
    assert found["noise/same_guarantee"]
    (std,) = set(found["noise/std"])
    measured, error = variance_over_planned(found["noise/once"], std)
    assert abs(measured - 1) < 4 * error
    # Noise on every shard before the sum has 8 times the variance.
    planted, error = variance_over_planned(found["noise/planted"], std)
    assert abs(planted / 8 - 1) < 4 * error
    assert abs(planted - 1) > 4 * error


@pytest.mark.parametrize("scheme", ["full", "poisson", "small", "large"])
def test_sums_over_shards_are_the_sums_of_the_same_records_on_one_device(found, scheme):
    counts, total = found[f"sums/{scheme}/counts"], found[f"sums/{scheme}/total"]
    assert counts.max() == 1
    assert not counts[:, N:].any()
    np.testing.assert_array_equal(counts, found[f"sums/{scheme}/wanted"])
    np.testing.assert_array_equal(total, found[f"sums/{scheme}/alone"])
    size = {"full": 41, "small": 7, "large": 30}.get(scheme)
    if size is not None:
        np.testing.assert_array_equal(counts.sum(axis=1), size)
    assert np.abs(total).min() > 0


@pytest.mark.parametrize("scheme", ["full", "poisson", "small", "large"])
def test_what_lies_beyond_the_last_record_is_never_looked_at(found, scheme):
    np.testing.assert_array_equal(found[f"sums/{scheme}/again"], found[f"sums/{scheme}/total"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgld", "sghmc", "sgnht", "sgfs", "tight clip", "plain"])
def test_every_kind_of_run_is_on_devices_what_it_is_on_one(more, kind):
    shapes = [name for name in more if name.startswith(f"kinds/{kind}/") and not name.endswith("none")]
    assert len(shapes) == (2 if kind == "sgld" else 1)
    for name in shapes:
        assert_close(more[name], more[f"kinds/{kind}/none"])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["poisson", "fixed_size"])
def test_a_run_on_devices_carries_the_plans_guarantee(more, scheme):
    assert more[f"kinds/{scheme}/same_guarantee"]
    draws, alone = more[f"kinds/{scheme}/draws"], more[f"kinds/{scheme}/none"]
    assert np.isfinite(draws).all()
    if scheme == "fixed_size":
        assert_close(draws, alone)
    else:
        # Other batches of the same law.
        assert not np.allclose(draws, alone)


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "shape"), [(scheme, shape) for scheme, shapes in DISK.items() for shape in shapes])
def test_records_on_disk_draw_what_those_in_memory_do(more, scheme, shape):
    """Three chains, and 41 records that no mesh here divides."""
    name = f"disk/{scheme}/{shape[0]}x{shape[1]}"
    assert_close(more[f"{name}/disk"], more[f"{name}/memory"])
    assert np.std(more[f"{name}/disk"]) > 0


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_bits_on_the_same_mesh_and_on_another_is_refused(more):
    np.testing.assert_array_equal(more["resumed/same"], more["resumed/whole"])
    spent, planned = more["resumed/same/epsilon"]
    assert spent == planned
    assert "another platform" in str(more["resumed/refused"])
