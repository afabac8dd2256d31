"""Sparse posteriors of a noise-aware release, and best-subset selection by the exponential mechanism beside them."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import yaml
from scipy.stats import multivariate_normal

from dpmcmc.data.schema import RowStructure
from dpmcmc.errors import InputError
from dpmcmc.inference import Evidence, sparse
from dpmcmc.inference.noise_aware import isotropic_error
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression
from experiments import sparsity
from experiments.figure_files import CONFIGS, read_table
from experiments.sparsity import ball_minimiser, coefficient_of, probabilities_of, subset_losses

D = 4
PHI = 0.5


def regression(d=D, n=40, seed=0):
    """Rows, labels, and the evidence of their sums without noise: u = Xᵀy/φ and H = 𝒞 = XᵀX/φ."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) + 0.5 * rng.normal(size=(n, 1))
    theta = np.zeros(d)
    theta[:2] = (0.4, -0.25)
    y = x @ theta + math.sqrt(PHI) * rng.normal(size=n)
    gram = x.T @ x / PHI
    return x, y, Evidence(gram, x.T @ y / PHI, gram, np.ones(d), n)


def test_enumeration_is_the_closed_form_of_a_regression_without_noise():
    """Marginal likelihoods of all labels, under slabs, means and inclusion probabilities that differ."""
    x, y, evidence = regression()
    means = np.array([0.0, -0.3, 0.2, 0.0])
    slab = np.array([1.0, 0.5, 2.0, 0.7])
    inclusion = np.array([0.3, 0.6, 1.0, 0.2])
    posterior = dataclasses.replace(evidence, means=means).sparse_posterior(inclusion, slab=slab)
    assert posterior.enumerated
    assert len(posterior.supports) == 8
    logs = []
    for support, given in zip(posterior.supports, posterior.means, strict=True):
        own = x[:, support]
        centre = own @ means[support]
        spread = PHI * np.eye(len(y)) + (own * slab[support] ** 2) @ own.T
        logs.append(
            multivariate_normal(centre, spread).logpdf(y)
            + np.sum(np.log(inclusion[support]))
            + np.sum(np.log1p(-inclusion[~support]))
        )
        gain = (slab[support] ** 2)[:, None] * own.T
        ridge = means[support] + gain @ np.linalg.solve(spread, y - centre)
        np.testing.assert_allclose(given[support], ridge, rtol=1e-9)
        assert not given[~support].any()
    expected = np.exp(np.array(logs) - max(logs))
    expected /= expected.sum()
    np.testing.assert_allclose(posterior.probabilities, expected, rtol=1e-9)
    assert posterior.inclusion[2] == pytest.approx(1.0, rel=1e-12)
    assert np.all(np.diff(posterior.probabilities) <= 0)
    # A Bayes factor of the evidence is a ratio of these.
    ratio = evidence.log_bayes_factor([3])
    flat = evidence.sparse_posterior(0.5)
    without = flat.probability(np.array([True, True, True, False]))
    assert ratio == pytest.approx(math.log(without / flat.probability(np.full(D, True))), rel=1e-8)


def test_draws_have_the_posteriors_mean_and_zeros():
    posterior = regression()[2].sparse_posterior(0.3)
    draws = posterior.draws(20_000, seed=1)
    error = draws.std(axis=0) / math.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - posterior.mean) < 5 * error)
    chance = posterior.inclusion
    error = np.sqrt(chance * (1 - chance) / len(draws))
    assert np.all(np.abs((draws != 0).mean(axis=0) - chance) <= 5 * error)


def test_full_conditional_odds_are_differences_of_the_joint_law():
    evidence = regression(6)[2]
    law = dataclasses.replace(evidence, means=np.linspace(-0.2, 0.3, 6)).sparse_posterior(0.3, slab=0.7).law
    for support in np.random.default_rng(0).random((10, 6)) < 0.5:
        odds = law.log_odds(support)
        for place in range(6):
            both = np.array([support, support])
            both[:, place] = (False, True)
            out, there = law.given(both)[0]
            assert odds[place] == pytest.approx(there - out, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("size", [None, 2])
def test_gibbs_sampling_visits_supports_as_often_as_enumeration_says(size, monkeypatch):
    evidence = regression(7)[2]
    exact = evidence.sparse_posterior(0.3, size=size)
    monkeypatch.setattr(sparse, "_ENUMERATED", 0)
    sweeps = 800

    def furthest():
        found = evidence.sparse_posterior(0.3, size=size, sweeps=sweeps, seed=2)
        assert not found.enumerated
        return np.max(np.abs(found.inclusion - exact.inclusion))

    # Five standard errors of a share, with half as many independent visits as sweeps.
    allowed = 5 * math.sqrt(0.25 / (sweeps / 2))
    assert furthest() < allowed
    # Planted: the prior is forgotten, or precisions of others that are integrated out.
    right = sparse.SparseLaw.log_odds
    wrong = (lambda law, support: 0.3 * right(law, support)) if size else (lambda law, support: right(law, support) + 1)
    monkeypatch.setattr(sparse.SparseLaw, "log_odds", wrong)
    assert furthest() > allowed


def test_many_coefficients_are_sampled_and_the_planted_ones_are_found():
    x, _, _ = regression(40, n=300, seed=3)
    theta = np.zeros(40)
    theta[[3, 17, 31]] = (0.6, -0.5, 0.5)
    y = x @ theta + math.sqrt(PHI) * np.random.default_rng(4).normal(size=300)
    gram = x.T @ x / PHI
    found = Evidence(gram, x.T @ y / PHI, gram, np.ones(40), 300).sparse_posterior(0.1, sweeps=200)
    assert not found.enumerated
    assert np.all(found.inclusion[[3, 17, 31]] > 0.95)
    assert np.mean(np.delete(found.inclusion, [3, 17, 31])) < 0.1


def simulated(count):
    """Truths and evidence of private releases, all by the mechanism itself; coefficients are drawn from the prior."""
    n, d, slab, inclusion = 500, 6, 0.5, 0.3
    target = LinearRegression(prior_scale=slab, noise_scale=0.3, num_features=d, row_bound=1.0, label_bound=3.0)
    plan = NoiseAware(draws=1).plan(target, num_records=n, epsilon=3.0, delta=1e-5)
    for seed in range(count):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        there = rng.random(d) < inclusion
        theta = np.where(there, slab * rng.normal(size=d), 0.0)
        y = np.clip(x @ theta + 0.3 * rng.normal(size=n), -3, 3)
        yield there, plan.mechanism.drawn(plan, {"x": x, "y": y}, streams_of(seed)[0]).evidence


def z_scores(truths, said):
    """Standard scores of the number of inclusions and of their slope on the log odds, if probabilities are right."""
    said = np.clip(np.array(said), 1e-12, 1 - 1e-12)
    odds = np.log(said) - np.log1p(-said)
    away = np.array(truths) - said
    variance = said * (1 - said)
    return away.sum() / math.sqrt(variance.sum()), (away * odds).sum() / math.sqrt((variance * odds**2).sum())


def test_inclusion_probabilities_hold_and_do_not_if_the_noise_of_the_release_is_ignored():
    truths, right, wrong = [], [], []
    for there, evidence in simulated(60):
        truths.append(there)
        right.append(evidence.sparse_posterior(0.3, slab=0.5).inclusion)
        ignored = dataclasses.replace(evidence, covariance=evidence.curvature)
        wrong.append(ignored.sparse_posterior(0.3, slab=0.5).inclusion)
    # 𝒞 is rather too large, so there may be somewhat more inclusions than said.
    assert np.all(np.abs(z_scores(truths, right)) < 4)
    # The releases say something: a prior alone would have a variance of .21.
    assert np.mean((np.array(truths) - right) ** 2) < 0.12
    assert np.max(np.abs(z_scores(truths, wrong))) > 15


def integrated(h, noise, std, u, slab):
    """Probabilities of the four supports of two coefficients, by quadrature over θ with 𝒞(θ) at each θ."""
    grid = np.linspace(-4 * slab, 4 * slab, 161)
    prior = np.exp(-0.5 * (grid / slab) ** 2)
    point = np.zeros(1), np.ones(1)
    sums = {}
    for support in itertools.product((False, True), repeat=2):
        (a, p), (b, q) = ((grid, prior / prior.sum()) if there else point for there in support)
        theta = np.stack(np.meshgrid(a, b, indexing="ij"), axis=-1)
        square = theta[..., :, None] * theta[..., None, :]
        length = np.sum(theta**2, axis=-1)[..., None, None]
        covariance = h + noise**2 * np.eye(2) + std**2 / 2 * (length * np.eye(2) + square)
        away = (u - theta @ h)[..., None]
        misfit = np.sum(away * np.linalg.solve(covariance, away), axis=(-2, -1))
        density = np.exp(-0.5 * misfit) / np.sqrt(np.linalg.det(covariance))
        sums[support] = p @ density @ q
    return {support: value / sum(sums.values()) for support, value in sums.items()}


def test_one_covariance_for_all_supports_is_near_the_integral_over_coefficients():
    """The stated approximation against quadrature; Ĥ has noise of a tenth and of a third of its least eigenvalue."""
    h = np.array([[300.0, 90.0], [90.0, 200.0]])
    truths = ((0.0, 0.0), (0.6, 0.0), (0.3, -0.4), (0.0, 1.0), (1.5, 0.2))
    for std, most in ((15.0, 0.015), (45.0, 0.4)):
        apart, too_many, ignored = [], [], []
        for truth in truths:
            u = h @ truth + std * np.array([1.3, -1.0])
            exact = integrated(h, std, std, u, 1.0)
            # 𝒞 as the mechanism takes it, at the posterior under the normal prior.
            second = np.eye(2)
            for _ in range(12):
                covariance = h + std**2 * np.eye(2) + isotropic_error(std)(second)
                dense = Evidence(h, u, covariance, np.ones(2), 100).posterior()
                second = dense.covariance + np.outer(dense.mean, dense.mean)
            found = Evidence(h, u, covariance, np.ones(2), 100).sparse_posterior(0.5)
            planted = Evidence(h, u, h, np.ones(2), 100).sparse_posterior(0.5)
            for support, value in exact.items():
                apart.append(abs(found.probability(np.array(support)) - value))
                ignored.append(abs(planted.probability(np.array(support)) - value))
            too_many.append(found.inclusion - sum(np.array(s) * value for s, value in exact.items()))
        assert max(apart) < most
        # Where it is off, it names rather too few coefficients.
        assert np.max(too_many) < 0.03
        # Planted: the noise of the release is ignored.
        assert std < 20 or max(ignored) > 0.3


def test_a_declared_intercept_stays_and_refusals_name_what_is_wrong():
    evidence = dataclasses.replace(regression()[2], structure=RowStructure(constant=D - 1))
    assert evidence.sparse_posterior(0.1).inclusion[D - 1] == pytest.approx(1.0)
    assert evidence.sparse_posterior(np.full(D, 0.1)).inclusion[D - 1] < 0.5
    # Two predictors: coefficients of the intercept lie one after the other.
    twice = dataclasses.replace(evidence, structure=RowStructure(constant=1), gram=NoisyGram(np.eye(2), 1.0, 2.0, 0.0))
    np.testing.assert_allclose(twice.sparse_posterior(0.1).inclusion[2:], 1.0)
    assert len(evidence.sparse_posterior(0.1, size=1).supports) == D - 1
    assert len(evidence.sparse_posterior(1.0).supports) == 1
    wrong = (
        ({"inclusion": 1.5}, "inclusion: must be probabilities"),
        ({"inclusion": np.full(D + 1, 0.5)}, "inclusion: must be one number, or 4 numbers"),
        ({"slab": 0.0}, "slab: must be finite"),
        ({"slab": np.ones(2)}, "slab: must be one number"),
        ({"size": 4}, "size: must be a whole number from 0 to 3"),
        ({"size": 1.5}, "size: must be a whole number"),
        ({"sweeps": 0}, "sweeps: must be at least 1"),
    )
    for change, said in wrong:
        with pytest.raises(InputError, match=said):
            evidence.sparse_posterior(**change)


def test_the_true_support_is_far_more_probable_than_under_the_exponential_mechanism():
    """n = 5,000, d = 10, s = 3, ε = .3."""
    n, d = 5000, 10
    target = LinearRegression(prior_scale=0.5, noise_scale=0.3, num_features=d, row_bound=1.0, label_bound=1.0)
    plan = NoiseAware(draws=1).plan(target, num_records=n, epsilon=0.3, delta=1e-6)
    said, baseline = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        theta = np.zeros(d)
        theta[rng.choice(d, 3, replace=False)] = 0.37 * rng.choice([-1.0, 1.0], 3)
        x = rng.normal(size=(n, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = np.clip(x @ theta + 0.3 * rng.normal(size=n), -1, 1)
        supports, losses = subset_losses(x, y, 3, 1.0)
        true = np.all(supports == (theta != 0), axis=1)
        baseline.append(probabilities_of(losses, coefficient_of(0.3))[true][0])
        evidence = plan.mechanism.drawn(plan, {"x": x, "y": y}, streams_of(seed)[0]).evidence
        said.append(evidence.sparse_posterior(0.3, size=3).probability(theta != 0))
    assert np.mean(said) > 0.9
    assert 0.25 < np.mean(baseline) < 0.45


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_no_supports_probability_moves_by_more_than_epsilon(adjacency):
    """The range of min F is that of one loss; planted, a coefficient twice as large exceeds ε."""
    epsilon = 1.0
    pinned = 60
    base = np.concatenate([np.tile(np.eye(2)[:1], (pinned, 1)), np.tile(np.eye(2)[1:], (pinned // 2, 1))])
    labels = np.ones(len(base))
    worst = {1: 0.0, 2: 0.0}
    rows = [(row, label) for row in (np.eye(2)[0], np.eye(2)[1], np.ones(2) / math.sqrt(2)) for label in (-1.0, 1.0)]
    removed = [(np.zeros(2), 0.0)]
    for one, other in itertools.product(rows, rows if adjacency == "replace_one" else removed):
        both = [
            subset_losses(np.vstack([base, row]), np.append(labels, label), 1, 1.0)[1] + 0.5 * label**2
            for row, label in (one, other)
        ]
        for times in worst:
            first, second = (np.log(probabilities_of(f, times * coefficient_of(epsilon, adjacency))) for f in both)
            worst[times] = max(worst[times], np.max(np.abs(first - second)))
    assert 0.5 * epsilon < worst[1] <= epsilon
    assert worst[2] > epsilon


def test_a_best_subset_lies_within_the_ball():
    for values, pull in ((np.array([1.0, 2.0]), np.array([0.3, 0.4])), (np.array([1.0, 2.0]), np.array([5.0, -4.0]))):
        theta = ball_minimiser(values, pull, 1.0)
        assert np.linalg.norm(theta) <= 1 + 1e-9

        def loss(t, values=values, pull=pull):
            return 0.5 * values @ t**2 - pull @ t

        angles = np.linspace(0, 2 * np.pi, 400)
        around = [r * np.array([np.cos(a), np.sin(a)]) for a in angles for r in (0.3, 0.6, 1.0)]
        assert loss(theta) <= min(loss(t) for t in around) + 1e-12


def test_evidence_that_was_saved_says_the_same(tmp_path):
    ((_, evidence),) = simulated(1)
    (tmp_path / "evidence.npz").write_bytes(evidence.content())
    again = Evidence.load(tmp_path).sparse_posterior(0.3)
    np.testing.assert_array_equal(again.inclusion, evidence.sparse_posterior(0.3).inclusion)


def test_the_experiment_writes_table_and_picture(tmp_path, capsys):
    body = yaml.safe_load((CONFIGS / "sparsity.yaml").read_text(encoding="utf-8"))
    body |= {"num_records": 300, "dimension": 4, "nonzero": 2, "epsilons": [0.5, 3.0], "repeats": 3, "delta": 1e-4}
    body["calibration"] = {"epsilon": 3.0, "repeats": 3, "bins": 2}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")
    assert sparsity.main(["--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path)]) == 0
    rows = read_table(tmp_path / "results.csv")
    assert {row["panel"] for row in rows} == {"support", "calibration"}
    assert all(0 <= row["found"] <= 1 and 0 <= row["said"] <= 1 for row in rows)
    assert sum(row["count"] for row in rows if row["method"] == sparsity.WITH) == 3 * 4
    assert (tmp_path / "sparsity.svg").stat().st_size > 10_000
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(body | {"nonzero": 5}), encoding="utf-8")
    assert sparsity.main(["--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path)]) == 2
    assert "nonzero: must be at most dimension, 4, got 5" in capsys.readouterr().err
