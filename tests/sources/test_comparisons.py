"""Two estimators of on-average KL agree on exact draws; the two-sample test has its known laws."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from experiments.sources import on_average, two_sample


@pytest.mark.parametrize("shift", [1e-4, 0.3, 5.0])
def test_laplace_divergence_by_quadrature(shift):
    first, second = stats.laplace(0, 0.7), stats.laplace(shift, 0.7)

    def integrand(u):
        return first.pdf(u) * (first.logpdf(u) - second.logpdf(u))

    expected = quad(integrand, -25, 30, points=[0.0, shift], limit=400, epsabs=1e-12)[0]
    assert on_average.laplace_kl(-shift, 0.7) == pytest.approx(expected, rel=1e-4, abs=1e-11)


@pytest.mark.parametrize(("gamma", "value"), [(1, 0.0073), (10, 0.459), (100, 9.05), (1000, 98.9)])
def test_numbers_of_figure_4_2(gamma, value):
    """Monte Carlo figures of 20,000 repeats, whose relative standard error is at most 2.2 %/√2."""
    assert on_average.mean_release_kl(gamma, np.sqrt(0.0154748)) == pytest.approx(value, rel=0.03)


def test_the_risk_gap_is_the_divergence_and_twice_gamma_is_not():
    gammas = (0.1, 1.0)
    setting = {"num_records": 20, "ridge": 2.0, "repeats": 20_000}
    kls = on_average.ridge_divergence(on_average.normal_records, gammas, seed=1, **setting)
    gaps = on_average.ridge_risk_gap(on_average.normal_records, gammas, seed=2, **setting)
    for kl, gap in zip(kls, gaps, strict=True):
        assert kl.standard_error < 0.02 * kl.value
        assert on_average.disagreement(kl, gap) < 3.3
        twice = gap._replace(value=2 * gap.value, standard_error=2 * gap.standard_error)
        assert on_average.disagreement(kl, twice) > 3.3


def dense(points, order):
    """The falling factorial basis, column by column."""
    n = len(points)
    columns = [np.prod(points[:, None] - points[:j], axis=1) for j in range(order + 1)]
    for j in range(n - order - 1):
        product = np.prod(points[:, None] - points[j + 1 : j + order + 1], axis=1)
        columns.append(product * (np.arange(n) >= j + order + 1))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("order", [0, 1, 3])
def test_the_product_is_that_of_the_dense_basis(order):
    rng = np.random.default_rng(order)
    points, weights = np.sort(rng.uniform(size=30)), rng.normal(size=30)
    expected = dense(points, order).T @ weights
    np.testing.assert_allclose(two_sample.transposed_product(weights, points, order), expected, rtol=1e-10)


def test_order_0_is_the_classical_statistic():
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=40).round(1), rng.normal(0.3, size=60).round(1)
    expected = stats.ks_2samp(first, second).statistic
    assert two_sample.two_sample(first, second, 0, 0).statistic == pytest.approx(expected)


def test_chains_that_depend_on_themselves_are_rejected_as_often_as_they_should():
    def walks(rng):
        steps = rng.normal(size=(16, 50)).cumsum(axis=1)
        return steps[:8], steps[8:]

    assert two_sample.power(walks, 1, 100) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)
    # Planted: the draws exchanged one by one, as if they did not depend on each other.
    assert two_sample.power(lambda rng: tuple(part.ravel() for part in walks(rng)), 1, 40) > 0.3
