"""One noisy vector: the grid is fine, the noise is Gaussian to its tails, and both are charged."""

import math

import jax
import numpy as np
import pytest
from scipy import stats

from dpmcmc.privacy import CalibrationError, Guarantee
from dpmcmc.privacy.accounting import ADJACENCIES, Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query import chacha, integer_noise
from dpmcmc.privacy.query.gaussian_release import (
    GRID,
    calibrated_std,
    gaussian_event,
    gaussian_release,
    grid,
    mu_std,
    standard_normal,
)
from dpmcmc.privacy.query.gram_release import GramRelease, RowFacts, gram_of, svec, within


def test_standard_normals_are_standard_normal():
    draws = standard_normal(jax.random.key(0), (100_000,))
    assert draws.dtype == np.float64
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(draws[::2], draws[1::2])[0, 1]) < 5 / math.sqrt(50_000)
    assert abs(np.mean(draws**4) - 3) < 5 * math.sqrt(96 / 100_000)
    assert standard_normal(jax.random.key(0), (3, 5)).shape == (3, 5)
    assert standard_normal(jax.random.key(0), ()).shape == ()


@pytest.mark.parametrize(("word", "radius"), [(0, math.sqrt(2 * 65 * math.log(2))), (2**32 - 1, 0.0)])
def test_standard_normals_reach_both_ends_of_the_radius(monkeypatch, word, radius):
    """The smallest uniform is 2^-65: 9.49σ. The largest leaves a radius of 2^-32, not of 0 or NaN."""
    bits = np.zeros((4, 1), np.uint32)
    bits[:2] = word
    monkeypatch.setattr(jax.random, "bits", lambda *_: bits)
    x, y = standard_normal(jax.random.key(0), (2,))
    assert math.hypot(x, y) == pytest.approx(radius, abs=1e-9)
    assert math.hypot(x, y) > 0


@pytest.mark.parametrize("noise_std", [1e-9, 0.3, 1.0, 1.5, 2.0, 3e7])
def test_releases_lie_on_a_fine_grid(noise_std):
    unit = grid(noise_std)
    assert GRID / 2 < unit / noise_std <= GRID
    assert math.log2(unit) == round(math.log2(unit))
    released = gaussian_release(np.linspace(-5, 5, 40) * noise_std, noise_std, jax.random.key(1))
    assert np.all(released / unit == np.rint(released / unit))


def test_noise_is_added_to_the_rounded_value_as_integers():
    """Two values that round alike are released alike under one key: nothing of a value's low bits is left."""
    value = np.array([1.0, -3.5, 100.0])
    key, unit = jax.random.key(2), grid(0.7)
    first = gaussian_release(value, 0.7, key)
    np.testing.assert_array_equal(first, gaussian_release(value + 0.4 * unit, 0.7, key))
    np.testing.assert_allclose(gaussian_release(value + 8 * unit, 0.7, key) - first, 8 * unit, rtol=1e-12)
    noise = integer_noise.on_host(chacha.adopted(key), 3, 0.7 / unit) * unit
    np.testing.assert_allclose(first, value + noise, atol=unit)


def test_a_release_has_the_declared_std():
    """Half of it would be refused."""
    released = gaussian_release(np.full(20_000, 5.0), 0.25, jax.random.key(3))
    assert stats.kstest((released - 5.0) / 0.25, "norm").pvalue > 1e-3
    assert stats.kstest((released - 5.0) / 0.5, "norm").pvalue < 1e-9


def test_huge_values_are_clamped_and_bad_ones_refused():
    released = gaussian_release(np.array([1e300, -1e300, 0.0]), 1.0, jax.random.key(4))
    assert 2.0**30 < released[0] <= 2.0**32
    assert released[1] < -(2.0**30)
    assert abs(released[2]) < 10
    with pytest.raises(ValueError, match=r"^value: .*nothing was released"):
        gaussian_release(np.array([np.nan]), 1.0, jax.random.key(4))
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"^noise_std: "):
            gaussian_release(np.zeros(1), bad, jax.random.key(4))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("size", [1, 6_000_000])
def test_calibrated_noise_meets_the_budget_with_rounding_charged(adjacency, size):
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-5), (20.0, 1e-9)):
        noise_std = calibrated_std(0.3, size, epsilon=epsilon, delta=delta)
        charged = gaussian_event(noise_std, 0.3, size, adjacency)
        guarantee = Guarantee.from_events(
            (charged,), delta=delta, adjacency=adjacency, accountant="one_sample", release="estimate"
        )
        assert 0.99 * epsilon < guarantee.epsilon <= epsilon
        moved = 0.3 + math.sqrt(size) * grid(noise_std)
        assert (2 if adjacency == "replace_one" else 1) / charged.noise_multiplier >= moved / noise_std
        assert noise_std > 0.3 / gaussian_mu(epsilon, delta)


def test_a_budget_that_the_grid_would_show_is_refused():
    with pytest.raises(CalibrationError, match=r"^epsilon: "):
        mu_std(1.0, 100, 1e-9)


# The release of a Gram matrix: its bound is enforced by the access, and what it adds is what it is charged for.

ROWS = RowFacts(num_records=50, size=3, row_bound=2.0)


def rows(seed=0):
    x = np.random.default_rng(seed).normal(size=(50, 3))
    return 2 * x / np.linalg.norm(x, axis=1)[:, None]


@pytest.mark.parametrize("bad", [[1e9, 0, 0], [0, 1e300, 1e300], [np.nan, 1, 0], [0, np.inf, 0]])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_row_moves_the_gram_matrix_or_its_trace_beyond_the_charge(bad, adjacency):
    """A row that breaks the declared bound is brought within it by the access itself."""
    x = rows()
    other = x.copy()
    other[0], x[0] = bad, [0, 0, 2]
    if adjacency != "replace_one":
        x[0] = 0
    one, two = (gram_of(part, ROWS.row_bound).floats for part in (x, other))
    moves, trace_moves = ROWS.moved(adjacency)
    assert np.linalg.norm(svec(one) - svec(two)) <= moves
    assert abs(np.trace(one) - np.trace(two)) <= trace_moves


def test_the_charge_is_attained():
    x, other = rows(), rows()
    x[0], other[0] = [2, 0, 0], [0, 2, 0]
    moved = np.linalg.norm(svec(gram_of(x, 2.0).floats) - svec(gram_of(other, 2.0).floats))
    assert moved == pytest.approx(ROWS.moved(Adjacency.REPLACE_ONE)[0], rel=1e-6)
    assert moved == pytest.approx(4 * math.sqrt(2), rel=1e-6)


def test_rows_within_the_bound_keep_their_bits():
    x = within(rows(), 2.0)
    np.testing.assert_array_equal(within(x, 2.0), x)
    np.testing.assert_array_equal(within(np.float32(x) / 2, 2.0), np.float64(np.float32(x) / 2))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("unit_norm", [False, True])
def test_events_are_those_of_the_noise(adjacency, unit_norm):
    """A declared trace costs nothing, but add_remove does not tell N from N ± 1."""
    facts = ROWS._replace(unit_norm=unit_norm)
    settled = GramRelease.calibrate(facts, adjacency, 0.4, 0.1)
    stds = [settled.noise_std] if unit_norm and adjacency != "add_remove" else [settled.noise_std, settled.trace_std]
    events = settled.events(adjacency)
    assert len(events) == len(stds)
    assert (settled.trace_std > 0) == (len(stds) == 2)
    for event, std, moves, mu in zip(events, stds, facts.moved(adjacency), (0.4, 0.1), strict=False):
        assert adjacency.sensitivity / event.noise_multiplier == pytest.approx(mu, rel=1e-6)
        assert moves / std == pytest.approx(mu, rel=2e-4)


def test_released_noise_is_symmetric_with_its_std():
    settled = GramRelease.calibrate(ROWS, Adjacency.REPLACE_ONE, 0.4, 0.4)
    x = rows()
    released = [settled.release(x, jax.random.key(k)) for k in range(400)]
    noise = np.array([one.gram for one in released]) - gram_of(x, 2.0).floats
    np.testing.assert_array_equal(noise, noise.transpose(0, 2, 1))
    assert noise[:, 0, 0].std() == pytest.approx(settled.noise_std, rel=0.15)
    assert noise[:, 0, 1].std() == pytest.approx(settled.noise_std / math.sqrt(2), rel=0.15)
    assert 0 < released[0].trace_std < settled.trace_std
    declared = GramRelease.calibrate(ROWS._replace(unit_norm=True), Adjacency.REPLACE_ONE, 0.4, 0.4)
    assert declared.release(x, jax.random.key(0))[2:] == (50.0, 0.0)
