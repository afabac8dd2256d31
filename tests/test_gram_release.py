"""The release of a Gram matrix: its bound is enforced by the access, and what it adds is what it is charged for."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.query.gaussian_release import GramRelease, Rows, gram_of, svec, symmetric, within

ROWS = Rows(num_records=50, size=3, row_bound=2.0)


def rows(seed=0):
    x = np.random.default_rng(seed).normal(size=(50, 3))
    return 2 * x / np.linalg.norm(x, axis=1)[:, None]


@pytest.mark.parametrize("bad", [[1e9, 0, 0], [0, 1e300, 1e300], [np.nan, 1, 0], [0, np.inf, 0]])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_row_moves_the_gram_matrix_or_its_trace_beyond_the_charge(bad, adjacency):
    """A row that breaks the declared bound is brought within it by the access itself."""
    x = rows()
    other = x.copy()
    other[0], x[0] = bad, [0, 0, 2]
    if adjacency != "replace_one":
        x[0] = 0
    one, two = (gram_of(part, ROWS.row_bound) for part in (x, other))
    moves, trace_moves = ROWS.moved(adjacency)
    assert np.linalg.norm(svec(one) - svec(two)) <= moves
    assert abs(np.trace(one) - np.trace(two)) <= trace_moves


def test_the_charge_is_attained():
    x, other = rows(), rows()
    x[0], other[0] = [2, 0, 0], [0, 2, 0]
    moved = np.linalg.norm(svec(gram_of(x, 2.0)) - svec(gram_of(other, 2.0)))
    assert moved == pytest.approx(ROWS.moved(Adjacency.REPLACE_ONE)[0], rel=1e-6)
    assert moved == pytest.approx(4 * math.sqrt(2), rel=1e-6)


def test_rows_within_the_bound_keep_their_bits():
    x = within(rows(), 2.0)
    np.testing.assert_array_equal(within(x, 2.0), x)
    np.testing.assert_array_equal(within(np.float32(x) / 2, 2.0), np.float64(np.float32(x) / 2))


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("unit_norm", [False, True])
def test_events_are_those_of_the_noise(adjacency, unit_norm):
    """A declared trace costs nothing, but add_remove does not tell N from N ± 1."""
    facts = ROWS._replace(unit_norm=unit_norm)
    settled = GramRelease.settle(facts, adjacency, 0.4, 0.1)
    stds = [settled.noise_std] if unit_norm and adjacency != "add_remove" else [settled.noise_std, settled.trace_std]
    events = settled.events(adjacency)
    assert len(events) == len(stds)
    assert (settled.trace_std > 0) == (len(stds) == 2)
    for event, std, moves, mu in zip(events, stds, facts.moved(adjacency), (0.4, 0.1), strict=False):
        assert adjacency.sensitivity / event.noise_multiplier == pytest.approx(mu, rel=1e-6)
        assert moves / std == pytest.approx(mu, rel=2e-4)


def test_released_noise_is_symmetric_with_its_std():
    settled = GramRelease.settle(ROWS, Adjacency.REPLACE_ONE, 0.4, 0.4)
    x = rows()
    released = [settled.release(x, jax.random.key(k)) for k in range(400)]
    noise = np.array([one.gram for one in released]) - gram_of(x, 2.0)
    np.testing.assert_array_equal(noise, noise.transpose(0, 2, 1))
    assert noise[:, 0, 0].std() == pytest.approx(settled.noise_std, rel=0.15)
    assert noise[:, 0, 1].std() == pytest.approx(settled.noise_std / math.sqrt(2), rel=0.15)
    assert 0 < released[0].trace_std < settled.trace_std
    declared = GramRelease.settle(ROWS._replace(unit_norm=True), Adjacency.REPLACE_ONE, 0.4, 0.4)
    assert declared.release(x, jax.random.key(0))[2:] == (50.0, 0.0)


def test_svec_keeps_the_norm_and_is_undone():
    gram = gram_of(rows(), 2.0)
    assert np.linalg.norm(svec(gram)) == pytest.approx(np.linalg.norm(gram))
    np.testing.assert_allclose(symmetric(svec(gram), 3), gram)
