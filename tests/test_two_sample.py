"""The test of two laws: its product is that of the dense basis, order 0 is scipy's, and higher orders see tails."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dpmcmc.diagnostics import two_sample as room
from dpmcmc.diagnostics.two_sample import transposed_product, two_sample
from dpmcmc.errors import InputError


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
    random = np.random.default_rng(order)
    points = np.sort(random.uniform(size=30))
    weights = random.normal(size=30)
    np.testing.assert_allclose(transposed_product(weights, points, order), dense(points, order).T @ weights, rtol=1e-10)


def test_dividing_by_gaps_as_printed_is_caught():
    points = np.sort(np.random.default_rng(0).uniform(size=30))
    weights = np.ones(30)
    printed = weights.copy()
    for i in range(4):
        if i:
            printed[i:] /= points[i:] - points[: 30 - i]
        printed[i:] = np.cumsum(printed[i:][::-1])[::-1]
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(printed, dense(points, 3).T @ weights, rtol=1e-3)


@pytest.mark.parametrize("ties", [False, True])
def test_order_0_is_the_classical_statistic(ties):
    random = np.random.default_rng(1)
    first = random.normal(size=40)
    second = random.normal(0.3, size=60)
    if ties:
        first = first.round(1)
        second = second.round(1)
    assert two_sample(first, second, 0, 0).statistic == pytest.approx(stats.ks_2samp(first, second).statistic)


def rejected(draw, order, count=60, at=0.05):
    """Share of pairs of sets that the test rejects."""
    found = [two_sample(*draw(np.random.default_rng([order, i])), order, 99, i).p_value <= at for i in range(count)]
    return np.mean(found)


def test_chains_that_depend_on_themselves_are_rejected_as_often_as_they_should():
    def walks(random):
        steps = random.normal(size=(16, 50)).cumsum(axis=1)
        return steps[:8], steps[8:]

    share = rejected(walks, 1, 100)
    assert share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 100)
    # Planted: the draws exchanged one by one, as if they did not depend on each other.
    alone = rejected(lambda random: tuple(part.ravel() for part in walks(random)), 1, 40)
    assert alone > 0.3


@pytest.mark.slow
def test_power_against_tails_rises_with_the_order_and_against_a_shift_falls():
    """The source's Figures 8.3 to 8.6: N(0, 1) against t₃, and Laplace against a shifted one."""

    def tails(random):
        return random.normal(size=200), random.standard_t(3, size=200)

    def shift(random):
        return random.laplace(size=100), random.laplace(0.5, size=100)

    powers = [[rejected(pair, order, 100) for order in (0, 1, 3)] for pair in (tails, shift)]
    assert powers[0][2] > powers[0][0] + 0.1
    assert powers[1][0] > powers[1][2] + 0.1


@pytest.mark.parametrize(
    ("first", "second", "order", "said"),
    [
        (np.zeros((2, 3)), np.zeros((2, 4)), 1, "same number of draws"),
        (np.array([np.nan]), np.zeros(1), 1, "finite"),
        (np.zeros(3), np.zeros(3), room.MOST_ORDER + 1, "order must lie"),
        (np.zeros(0), np.zeros(3), 1, "shape"),
    ],
)
def test_what_is_no_pair_of_sets_is_refused(first, second, order, said):
    with pytest.raises(InputError, match=said):
        two_sample(first, second, order)
