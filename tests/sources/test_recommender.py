"""A private recommender: its densities are those of the whole covariance, and it is near the truth at ε = 1."""

import jax
import numpy as np
import pytest
from scipy import stats

from experiments.sources import recommender
from experiments.sources.recommender import ITEMS, NOISE, RANK, Recommender, films

V = np.random.default_rng(1).normal(0, 0.6, (ITEMS, RANK)).astype(np.float32)
TRAIN, TEST = recommender.users()


def by_hand(v, row, y):
    """Log density of all ratings, and the mean of y given those shown, by the whole covariance in float64."""
    shown, mask, asked = np.asarray(row, np.float64).reshape(3, ITEMS)
    covariance = v.astype(np.float64) @ v.T + NOISE**2 * np.eye(ITEMS)
    known, wanted = mask > 0, asked > 0
    rated = known | wanted
    density = stats.multivariate_normal(cov=covariance[np.ix_(rated, rated)]).logpdf((shown + asked * y)[rated])
    weights = np.linalg.solve(covariance[np.ix_(known, known)], covariance[np.ix_(known, wanted)][:, 0])
    return density, weights @ shown[known]


def test_densities_and_completions_are_those_of_the_whole_covariance():
    records = {name: leaf[:12] for name, leaf in TRAIN.items()}
    wanted = [by_hand(V, row, y) for row, y in zip(records["x"], records["y"], strict=True)]
    densities = jax.vmap(Recommender().log_likelihood, (None, 0))(V, records)
    np.testing.assert_allclose(densities, [density for density, _ in wanted], rtol=2e-5, atol=1e-4)
    completed = Recommender().predict(V, records["x"])
    np.testing.assert_allclose(completed, [mean for _, mean in wanted], rtol=1e-3, atol=1e-4)


def test_the_generated_users_follow_their_own_model():
    """Squared lengths of ratings in the metric of their covariance are chi-square, one degree for each rating."""
    covariance = films() @ films().T + NOISE**2 * np.eye(ITEMS)
    total = degrees = 0
    for row, y in zip(TRAIN["x"][:500].astype(float), TRAIN["y"], strict=False):
        shown, mask, asked = row.reshape(3, ITEMS)
        rated = mask + asked > 0
        ratings = (shown + asked * y)[rated]
        total += ratings @ np.linalg.solve(covariance[np.ix_(rated, rated)], ratings)
        degrees += rated.sum()
    assert 17 < degrees / 500 < 20
    assert abs(total - degrees) < 4 * np.sqrt(2 * degrees)


@pytest.mark.filterwarnings("ignore::dpmcmc.NotForIntervals")
def test_a_private_chain_is_near_the_truth_and_far_from_the_means():
    rows = recommender.of_a_chain(1.0, 200, 1, TRAIN, TEST) + recommender.of_baselines(TRAIN, TEST)
    rmse = {row["method"]: row["rmse"] for row in rows if row["ratings"] == "all"}
    assert rows[0]["guarantee_epsilon"] <= 1
    assert rmse[recommender.TRUTH] < rmse["ε = 1"] + 0.002 < 0.3
    assert rmse[recommender.MEANS] > 0.8
