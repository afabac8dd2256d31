"""One noisy vector: the grid is fine, the noise is Gaussian to its tails, and both are charged."""

import math

import jax
import numpy as np
import pytest
from scipy import stats

from dpmcmc.privacy import CalibrationError, Guarantee
from dpmcmc.privacy.accounting import ADJACENCIES
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query import integer_noise, randomness
from dpmcmc.privacy.query.gaussian_release import (
    GRID,
    calibrated_std,
    gaussian_event,
    gaussian_release,
    grid,
    mu_std,
    standard_normal,
)


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
    noise = integer_noise.on_host(randomness.adopted(key), 3, 0.7 / unit) * unit
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
