"""Correlated noise: its cost is that of the dense matrix, and SGLD has the variance of the formula."""

import math

import numpy as np
import pytest

from experiments.sources import correlated_noise


@pytest.mark.parametrize(("phi", "k", "spacing"), [(0.0, 5, 3), (0.5, 4, 3), (0.9, 3, 8), (0.95, 6, 2)])
def test_the_distance_of_neighbours_bounds_that_of_the_dense_matrix(phi, k, spacing):
    steps = 400
    lag = np.subtract.outer(np.arange(steps), np.arange(steps))
    columns = np.where(lag >= 0, phi ** np.maximum(lag, 0), 0.0)[:, : k * spacing : spacing]
    dense = float(np.sum(columns.T @ columns))
    assert dense <= correlated_noise.sensitivity_squared(phi, k, spacing) * (1 + 1e-12)
    assert dense == pytest.approx(correlated_noise.sensitivity_squared(phi, k, spacing), rel=1e-6)


def test_the_event_costs_what_one_gaussian_of_mu_costs():
    z, phi, k, spacing = 20.0, 0.5, 10, 100
    found = correlated_noise.charged(z, phi, k, spacing, 1e-6)
    mu = 2 * math.sqrt(k / (1 - phi**2)) / z
    assert found.gdp().mu == pytest.approx(mu, rel=1e-6)


def test_every_row_meets_its_epsilon_and_slow_noise_falls_with_phi():
    found = correlated_noise.rows(((100, 10, 1.0),))
    assert all(0.99 < row["epsilon_of_event"] <= 1 for row in found)
    slow = {row["phi"]: row["slow"] for row in found}
    assert slow[0.0] == pytest.approx(99.4, rel=6e-3)
    assert slow[0.5] / slow[0.0] == pytest.approx(1 / 3, rel=1e-6)
    assert slow[0.9] / slow[0.0] == pytest.approx(0.1 / 1.9, rel=1e-3)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_sgld_has_the_variance_that_is_derived(phi):
    """4,000 chains with η = s = 1 from 0, after half of their 100 steps."""
    rng, position, kept = np.random.default_rng(0), np.zeros(4000), []
    before = rng.standard_normal(4000)
    for _ in range(100):
        fresh = rng.standard_normal(4000)
        position = 0.5 * position - (fresh - phi * before)
        before = fresh
        kept.append(np.mean(position**2))
    assert np.mean(kept[50:]) == pytest.approx(correlated_noise.sgld_variance(1.0, 1.0, 0.5, phi), rel=0.03)
