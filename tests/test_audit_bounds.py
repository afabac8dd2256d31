"""Bounds on ε from scores: they cover where the truth is known, and are as sharp as is said of them."""

import builtins
import importlib
import math

import numpy as np
import pytest
from scipy import stats

from dpmcmc.audit import MissingExtra, NotGaussian, bounds
from dpmcmc.audit import bounds as histogram
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon

DELTA = 1e-5


def scores(rng, mu, n):
    return rng.normal(mu, 1, n), rng.normal(0, 1, n)


def most_failures(repeats, rate):
    """Failures that a test of this rate exceeds with probability 1e-4."""
    return int(stats.binom.isf(1e-4, repeats, rate))


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0])
def test_gdp_covers_at_its_confidence_and_is_exact(mu):
    rng, repeats = np.random.default_rng(1), 400
    truth = gaussian_epsilon(mu, DELTA)
    over = refused = 0
    for _ in range(repeats):
        try:
            over += bounds.gdp(*scores(rng, mu, 200), DELTA, 0.1) > truth
        except NotGaussian:
            refused += 1
    assert over <= most_failures(repeats, 0.1)
    # Exact, not only safe: it misses at the rate that it says.
    assert over + refused >= repeats - most_failures(repeats, 0.9)
    # The tests' levels are those of large samples.
    assert refused <= most_failures(repeats, 0.01)


def test_gdp_at_a_thousand_runs_reaches_most_of_epsilon():
    rng = np.random.default_rng(2)
    for mu, share in ((0.5, 0.7), (1.0, 0.85)):
        found = np.median([bounds.gdp(*scores(rng, mu, 1000), DELTA, 0.05) for _ in range(21)])
        assert found >= share * gaussian_epsilon(mu, DELTA)


def test_gdp_refuses_scores_that_are_not_gaussian_of_one_variance():
    rng = np.random.default_rng(3)
    for inside in (rng.normal(1, 1.5, 1000), 1 + rng.standard_t(3, 1000)):
        with pytest.raises(NotGaussian, match="use clopper_pearson"):
            bounds.gdp(inside, rng.normal(0, 1, 1000), DELTA, 0.05)


def test_clopper_pearson_covers_on_randomised_response():
    # The only pair on which the bound's threshold can be exact: two outcomes, pure ε.
    pytest.importorskip("jax_privacy")
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
    pytest.importorskip("jax_privacy")
    inside, outside = scores(np.random.default_rng(6), 2.0, 2000)
    there = bounds.clopper_pearson(inside, outside, 1e-3, 0.05)
    back = bounds.clopper_pearson(-outside, -inside, 1e-3, 0.05)
    assert min(there, back) > 1


def gaussian_claims(mu):
    return [(epsilon, gaussian_delta(mu, epsilon)) for epsilon in np.linspace(0, gaussian_epsilon(mu, DELTA), 8)]


def test_a_true_curve_is_seldom_contradicted():
    rng, repeats = np.random.default_rng(7), 300
    claims = gaussian_claims(1.0)
    wrong = sum(bounds.claimed_curve(*scores(rng, 1.0, 400), claims, 0.2).violated for _ in range(repeats))
    assert wrong <= most_failures(repeats, 0.2)


def test_a_curve_of_half_the_distance_is_contradicted_where_its_own_delta_shows_nothing():
    pytest.importorskip("jax_privacy")
    rng = np.random.default_rng(8)
    for _ in range(10):
        inside, outside = scores(rng, 1.0, 1000)
        assert bounds.claimed_curve(inside, outside, gaussian_claims(0.5), 0.025).violated
        assert bounds.clopper_pearson(inside, outside, DELTA, 0.025) < gaussian_epsilon(0.5, DELTA)


def responses(rng, m, epsilon):
    coins = rng.random(m) < 0.5
    told = np.where(rng.random(m) < 1 / (1 + math.exp(-epsilon)), coins, ~coins)
    return told + 1e-3 * rng.random(m), coins


def test_one_run_covers_on_randomised_response_and_reaches_most_of_it():
    pytest.importorskip("jax_privacy")
    rng, repeats, truth = np.random.default_rng(9), 100, 1.5
    found = np.array([bounds.one_run(*responses(rng, 1000, truth), DELTA, 0.2) for _ in range(repeats)])
    assert np.sum(found > truth) <= most_failures(repeats, 0.2)
    assert np.median(found) > 0.8 * truth


def test_one_run_shows_nothing_where_there_is_nothing_and_takes_few_canaries():
    pytest.importorskip("jax_privacy")
    rng = np.random.default_rng(10)
    assert bounds.one_run(rng.random(1000), rng.random(1000) < 0.5, DELTA, 0.05) < 0.5
    assert bounds.one_run(np.array([0.0, 1.0]), np.array([False, True]), DELTA, 0.05) == 0.0


def test_scores_that_are_not_finite_and_too_few_runs_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        bounds.gdp(np.r_[np.zeros(30), np.nan], np.zeros(31), DELTA, 0.05)
    with pytest.raises(ValueError, match="at least 20"):
        bounds.gdp(np.zeros(5), np.zeros(5), DELTA, 0.05)


def test_a_missing_extra_is_one_sentence_with_the_command(monkeypatch):
    def missing(name, package=None):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match=r"pip install jax-privacy") as refused:
        bounds.clopper_pearson(np.zeros(30), np.ones(30), DELTA, 0.05)
    assert str(refused.value).count(".") == 0
    assert builtins.str(refused.value).startswith("method: clopper_pearson")


# --- histogram ------------------------------------------------------------------------------------------------------

BINS, EPSILON, ALPHA = 20, 0.5, 0.05


def profile(p, q, epsilon):
    return max(np.sum(np.maximum(0, a - math.exp(epsilon) * b)) for a, b in ((p, q), (q, p)))


@pytest.fixture
def pair():
    rng = np.random.default_rng(11)
    return rng.dirichlet(np.ones(BINS)), rng.dirichlet(np.ones(BINS))


def answer(rng, p, q, delta, **others):
    tester = histogram.Tester(EPSILON, BINS, ALPHA)
    counts = [rng.multinomial(rng.poisson(tester.expected), law) for law in (p, q)]
    return tester.judge(*counts, delta=delta, significance=0.05, **others)


def test_sample_size_is_that_of_the_corrected_algorithm():
    for bins, least in ((20, 80), (4, 24)):
        wanted = max(4 * bins, least) * (1 + math.exp(2 * EPSILON)) / ALPHA**2
        assert histogram.Tester(EPSILON, bins, ALPHA).expected == pytest.approx(wanted)
    for arguments in ((0.5, 1, 0.1), (0.5, 4, 0.0), (-1.0, 4, 0.1)):
        with pytest.raises(ValueError, match=r"^(bins|alpha|epsilon) must be"):
            histogram.Tester(*arguments)


def test_the_tester_accepts_a_true_delta_and_rejects_one_that_is_two_alpha_below(pair):
    rng, truth = np.random.default_rng(12), profile(*pair, EPSILON)
    assert truth > 2.01 * ALPHA
    answers = [answer(rng, *pair, truth) for _ in range(60)]
    assert all(found.accepted for found in answers)
    assert all(found.delta_lower <= truth for found in answers)
    assert not any(answer(rng, *pair, truth - 2.01 * ALPHA).accepted for _ in range(60))


def test_either_order_of_the_pair_is_seen():
    p = np.r_[0.5, np.full(BINS - 1, 0.5 / (BINS - 1))]
    q = np.r_[0.0, np.full(BINS - 1, 1 / (BINS - 1))]
    rng = np.random.default_rng(13)
    one, other = (answer(rng, *laws, 0.1) for laws in ((p, q), (q, p)))
    assert not one.accepted
    assert not other.accepted


def test_a_lower_bound_on_delta_gives_one_on_epsilon():
    # Randomised response of ε* = 1 at δ = 0: total variation tanh(1/2).
    found = histogram.Histogram(0.0, (1, 1), 0.0, True, math.tanh(0.5))
    assert found.epsilon_lower(0.0) == pytest.approx(1.0)
    assert found.epsilon_lower(0.99) == 0.0


def test_bins_cover_every_score():
    edges = histogram.edges_of(np.arange(100.0), 7)
    counts = histogram.bin_counts(np.array([-1e9, 50.0, 1e9]), edges)
    assert counts.shape == (7,)
    assert counts.sum() == 3
    assert counts[0] == counts[-1] == 1
