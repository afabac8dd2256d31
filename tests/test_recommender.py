"""A private recommender: its densities are those of SciPy, a user is one record, and ratings are completed at home."""

import csv
import warnings

import jax
import numpy as np
import pytest
from scipy import stats

import dpmcmc
from dpmcmc.data import generated
from dpmcmc.targets.shipped_models import Recommender
from dpmcmc.testing import check_target
from experiments import recommender
from tests.overlaps import no_overlaps
from tests.replay import FAST, Replay, share

ITEMS, RANK, USERS = 5, 2, 12
TARGET = Recommender(items=ITEMS, rank=RANK, noise_scale=0.3)
RNG = np.random.default_rng(1)
V = RNG.normal(0, 0.6, (ITEMS, RANK)).astype(np.float32)


def users(seed=2, scale=1.0):
    """Users who have rated one to five films."""
    rng = np.random.default_rng(seed)
    asked = np.eye(ITEMS)[rng.integers(0, ITEMS, USERS)]
    shown = (rng.random((USERS, ITEMS)) < 0.6) * (1 - asked)
    ratings = scale * rng.normal(size=(USERS, ITEMS))
    x = np.concatenate([ratings * shown, shown, asked], axis=1)
    return {"x": x.astype(np.float32), "y": (ratings * asked).sum(axis=1).astype(np.float32)}


def by_hand(row, y):
    """Log density of all ratings, and the mean of y given those shown, by the whole covariance in float64."""
    shown, mask, asked = np.asarray(row, np.float64).reshape(3, ITEMS)
    covariance = V.astype(np.float64) @ V.T + 0.3**2 * np.eye(ITEMS)
    known, wanted = mask > 0, asked > 0
    rated = known | wanted
    density = stats.multivariate_normal(cov=covariance[np.ix_(rated, rated)]).logpdf((shown + asked * y)[rated])
    weights = np.linalg.solve(covariance[np.ix_(known, known)], covariance[np.ix_(known, wanted)][:, 0])
    return density, weights @ shown[known]


def test_densities_and_completions_are_those_of_the_whole_covariance():
    records = users()
    densities = jax.vmap(TARGET.log_likelihood, (None, 0))(V, records)
    completed = TARGET.predict(V, records["x"])
    wanted = [by_hand(row, y) for row, y in zip(records["x"], records["y"], strict=True)]
    np.testing.assert_allclose(densities, [density for density, _ in wanted], rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(completed, [mean for _, mean in wanted], rtol=1e-4, atol=1e-5)


def test_a_rating_is_completed_from_v_and_the_users_own_ratings_alone():
    """Other users' rows, and the rating that is asked for, change nothing."""
    here, there = users(2), users(3)
    there["x"][4], there["y"][:] = here["x"][4], 1e3
    assert TARGET.predict(V, here["x"])[4] == TARGET.predict(V, there["x"])[4]


def test_a_user_with_all_their_ratings_moves_the_sum_by_no_more_than_is_charged():
    """Replayed with another user in the place of one, of extreme ratings."""
    plan = dpmcmc.plan(
        TARGET,
        num_records=USERS,
        sampler=dpmcmc.SGHMC(step_size=0.01),
        steps=3,
        privacy=dpmcmc.Privacy(epsilon=3.0, delta=1e-2, clip=0.5),
    )
    first, second = users(), users(7, scale=50.0)
    changed = {name: np.concatenate([second[name][:1], first[name][1:]]) for name in first}
    replay = Replay(plan, first, FAST)
    here = replay(first)
    moved = share(here, replay(changed, given=here))
    # At most twice what one user adds.
    assert np.all(moved <= 2)
    assert np.any(moved > 0.6)
    # Planted: the check finds a change of more than one user.
    assert np.all(share(here, replay(second, given=here)) > 2)


@pytest.mark.slow
def test_the_recommender_passes_the_public_check():
    check_target(TARGET, users())


def test_the_generated_users_follow_their_own_model():
    """Squared lengths of ratings in the metric of their covariance are chi-square, one degree for each rating."""
    data = dpmcmc.data.load("ratings")
    films = generated.ratings_films()
    covariance = films @ films.T + generated.RATINGS_NOISE**2 * np.eye(generated.ITEMS)
    total = degrees = 0
    for row, y in zip(data.train["x"][:500].astype(float), data.train["y"], strict=False):
        shown, mask, asked = row.reshape(3, generated.ITEMS)
        rated = mask + asked > 0
        ratings = (shown + asked * y)[rated]
        total += ratings @ np.linalg.solve(covariance[np.ix_(rated, rated)], ratings)
        degrees += rated.sum()
    assert 17 < degrees / 500 < 20
    assert abs(total - degrees) < 4 * np.sqrt(2 * degrees)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_command_beats_the_means_and_is_near_the_truth(tmp_path):
    with no_overlaps(), warnings.catch_warnings():
        assert recommender.main(["--quick", "--out", str(tmp_path)]) == 0
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["ratings"] == "all"]
    rmse = {row["method"]: float(row["rmse"]) for row in rows}
    assert rmse["ε = 1"] < 0.3
    assert rmse[recommender.TRUTH] < rmse["ε = 1"] + 0.002
    assert rmse[recommender.MEANS] > 0.8
    assert float(rows[0]["guarantee_epsilon"]) <= 1
