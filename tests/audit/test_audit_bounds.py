"""Bounds on ε from scores: they cover where the truth is known, and are as sharp as is said of them."""

import math

import numpy as np
import pytest
from scipy import stats

from dpmcmc.audit import bounds
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon

DELTA = 1e-5


def scores(rng, mu, n):
    return rng.normal(mu, 1, n), rng.normal(0, 1, n)


def most_failures(repeats, rate):
    """Failures that a test of this rate exceeds with probability 1e-4."""
    return int(stats.binom.isf(1e-4, repeats, rate))


def test_clopper_pearson_covers_on_randomised_response():
    # The only pair on which the bound's threshold can be exact: two outcomes, pure ε.
    rng, repeats, truth = np.random.default_rng(5), 300, 1.0
    p = 1 / (1 + math.exp(-truth))
    found = np.array(
        [
            bounds.clopper_pearson((rng.random(600) < p) * 1.0, (rng.random(600) < 1 - p) * 1.0, 0.0, 0.2)
            for _ in range(repeats)
        ]
    )
    assert np.sum(found > truth) <= most_failures(repeats, 0.2)
    assert np.median(found) > 0.6 * truth


def test_clopper_pearson_sees_either_direction():
    inside, outside = scores(np.random.default_rng(6), 2.0, 2000)
    there = bounds.clopper_pearson(inside, outside, 1e-3, 0.05)
    back = bounds.clopper_pearson(-outside, -inside, 1e-3, 0.05)
    assert min(there, back) > 1


def test_a_true_variation_is_seldom_contradicted_and_mostly_shown():
    rng, repeats = np.random.default_rng(7), 300
    truth = gaussian_delta(1.0, 0.0)
    found = np.array([bounds.advantage(*scores(rng, 1.0, 1000), 0.2) for _ in range(repeats)])
    assert np.sum(found > truth) <= most_failures(repeats, 0.2)
    assert np.median(found) > 0.8 * truth


def test_twice_the_distance_is_seen_where_the_claim_s_own_delta_shows_nothing():
    rng = np.random.default_rng(8)
    for _ in range(10):
        inside, outside = scores(rng, 1.0, 1000)
        assert bounds.advantage(inside, outside, 0.025) > gaussian_delta(0.5, 0.0)
        assert bounds.clopper_pearson(inside, outside, DELTA, 0.025) < gaussian_epsilon(0.5, DELTA)


def responses(rng, m, epsilon):
    coins = rng.random(m) < 0.5
    told = np.where(rng.random(m) < 1 / (1 + math.exp(-epsilon)), coins, ~coins)
    return told + 1e-3 * rng.random(m), coins


def test_one_run_covers_on_randomised_response_and_reaches_most_of_it():
    rng, repeats, truth = np.random.default_rng(9), 100, 1.5
    found = np.array([bounds.one_run(*responses(rng, 1000, truth), DELTA, 0.2) for _ in range(repeats)])
    assert np.sum(found > truth) <= most_failures(repeats, 0.2)
    assert np.median(found) > 0.8 * truth


@pytest.mark.parametrize(("guesses", "right", "delta"), [(200, 160, 1e-5), (100, 70, 1e-9), (50, 50, 1e-3)])
def test_one_run_agrees_with_another_library(guesses, right, delta):
    module = pytest.importorskip("jax_privacy.auditing")
    guessed, wrong = (np.r_[np.ones(n), np.zeros(50)] for n in (right, guesses - right))
    other = module.CanaryScoreAuditor(guessed, wrong).epsilon_one_run(
        0.05, delta, threshold_strategy=module.Explicit(0.5)
    )
    assert bounds._p_value(guesses + 100, guesses, right, other, delta) == pytest.approx(0.05, rel=1e-6)


def test_one_run_shows_nothing_where_there_is_nothing_and_takes_few_canaries():
    rng = np.random.default_rng(10)
    assert bounds.one_run(rng.random(1000), rng.random(1000) < 0.5, DELTA, 0.05) < 0.5
    assert bounds.one_run(np.array([0.0, 1.0]), np.array([False, True]), DELTA, 0.05) == 0.0


def test_scores_that_are_not_finite_and_too_few_runs_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        bounds.clopper_pearson(np.r_[np.zeros(30), np.nan], np.zeros(31), DELTA, 0.05)
    with pytest.raises(ValueError, match="at least 2"):
        bounds.clopper_pearson(np.zeros(1), np.zeros(5), DELTA, 0.05)
