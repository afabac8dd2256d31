"""Synthetic tables of a noise-aware release: moments of the rows, and intervals from several of them."""

import math

import numpy as np
import pytest

from experiments.sources import synthetic_tables as source


def test_rows_have_the_structure_and_the_moments_that_they_are_made_of():
    rng, n = np.random.default_rng(0), 200_000
    gram = (x := source.real_rows(n, rng)).T @ x
    made = source.rows_of_moments(gram, n, rng)
    np.testing.assert_allclose(made.T @ made / n, gram / n, atol=1.5e-3)
    assert np.all(np.isclose(made[:, :6], 0) | np.isclose(made[:, :6], 1 / math.sqrt(5)))
    np.testing.assert_allclose(made[:, 1:4].sum(1), made[:, 0])
    # Planted: columns that are made without each other have other moments.
    apart = np.diag(np.diag(gram))
    apart[0] = apart[:, 0] = gram[0]
    alone = source.rows_of_moments(apart, n, rng)
    assert np.abs(alone.T @ alone / n - gram / n).max() > 0.01


def test_rules_recover_the_variance_of_the_posterior():
    """θ_l ~ N(1, 4), estimates q_l ~ N(θ_l, 9): T is 4, and 13 if variances of tables are added, not taken off."""
    rng = np.random.default_rng(3)
    found = source.rubin(1 + math.sqrt(13) * rng.normal(size=(20_000, 2)), np.full((20_000, 2), 9.0))
    np.testing.assert_allclose(found.variance, 4, rtol=0.1)
    half = np.diff(found.intervals(0.9), axis=1)[:, 0] / 2
    np.testing.assert_allclose(half, 1.645 * np.sqrt(found.variance), rtol=1e-2)
    # Equal estimates tell nothing of the spread: T is the variance within, with a normal quantile.
    equal = source.rubin(np.ones((5, 1)), np.full((5, 1), 4.0))
    np.testing.assert_allclose(equal.intervals(0.9), [[1 - 3.2897, 1 + 3.2897]], rtol=1e-4)


@pytest.mark.slow
def test_intervals_hold_by_the_rules_and_not_if_one_table_is_taken_for_real(tmp_path):
    """40 repeats gave .963 ± .013 of the coefficients at 90 %, and .964 ± .015 of the means."""
    rows = {(r["analysis"], r["way"], r["level"]): r["coverage"] for r in source.coverage(8, 12)}
    for analysis in ("coefficients", "column means"):
        assert rows[analysis, "Rubin's rules", 0.9] > 0.85
        assert abs(rows[analysis, "Rubin's rules", 0.5] - 0.5) < 0.24
        assert rows[analysis, "one table as if real", 0.9] < 0.85
    assert source.main(["--quick", "--out", str(tmp_path)]) == 0
