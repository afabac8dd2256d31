"""A sparse posterior by enumeration, and best-subset selection by the exponential mechanism."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dpmcmc.inference import Evidence
from experiments.figure_files import read_table
from experiments.sources import sparsity
from experiments.sources.sparsity import coefficient_of, probabilities_of, sparse_posterior, subset_losses


def test_enumeration_is_the_closed_form_of_a_regression_without_noise():
    """Marginal likelihoods of all labels, φ = .5: u = Xᵀy/φ and H = 𝒞 = XᵀX/φ."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)) + 0.5 * rng.normal(size=(40, 1))
    y = x @ [0.4, -0.25, 0, 0] + math.sqrt(0.5) * rng.normal(size=40)
    gram = x.T @ x / 0.5
    evidence = Evidence(gram, x.T @ y / 0.5, gram, np.full(4, 0.7), 40)
    posterior = sparse_posterior(evidence, 0.3, 0.7)
    logs = []
    for support, given in zip(posterior.supports, posterior.means, strict=True):
        own = x[:, support]
        spread = 0.5 * np.eye(40) + 0.49 * own @ own.T
        odds = support.sum() * math.log(0.3) + (~support).sum() * math.log(0.7)
        logs.append(multivariate_normal(np.zeros(40), spread).logpdf(y) + odds)
        np.testing.assert_allclose(given[support], 0.49 * own.T @ np.linalg.solve(spread, y), rtol=1e-9)
    expected = np.exp(np.array(logs) - max(logs))
    np.testing.assert_allclose(posterior.probabilities, expected / expected.sum(), rtol=1e-9)
    # A Bayes factor of the evidence is a ratio of these.
    flat = sparse_posterior(evidence, 0.5, 0.7)
    without, whole = (flat.probability(np.array([True, True, True, last])) for last in (False, True))
    assert evidence.log_bayes_factor([3]) == pytest.approx(math.log(without / whole), rel=1e-8)
    assert len(sparse_posterior(evidence, 0.3, 0.7, size=2).supports) == 6


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_no_supports_probability_moves_by_more_than_epsilon(adjacency):
    """The range of min F is that of one loss; planted, a coefficient twice as large exceeds ε."""
    base = np.repeat(np.eye(2), (60, 30), axis=0)
    worst = {1: 0.0, 2: 0.0}
    rows = [(row, label) for row in (*np.eye(2), np.ones(2) / math.sqrt(2)) for label in (-1.0, 1.0)]
    removed = [(np.zeros(2), 0.0)]
    for pair in itertools.product(rows, rows if adjacency == "replace_one" else removed):
        both = [
            subset_losses(np.vstack([base, row]), np.append(np.ones(90), label), 1, 1.0)[1] + 0.5 * label**2
            for row, label in pair
        ]
        for times in worst:
            first, second = (np.log(probabilities_of(f, times * coefficient_of(1.0, adjacency))) for f in both)
            worst[times] = max(worst[times], np.max(np.abs(first - second)))
    assert 0.5 < worst[1] <= 1.0 < worst[2]


def test_a_best_subset_lies_within_the_ball():
    values = np.array([1.0, 2.0])
    for pull in (np.array([0.3, 0.4]), np.array([5.0, -4.0])):
        theta = sparsity.ball_minimiser(values, pull, 1.0)
        assert np.linalg.norm(theta) <= 1 + 1e-9
        around = [r * np.array([np.cos(a), np.sin(a)]) for a in np.linspace(0, 6.3, 400) for r in (0.3, 0.6, 1.0)]
        losses = [0.5 * values @ t**2 - pull @ t for t in (theta, *around)]
        assert losses[0] <= min(losses) + 1e-12


def test_the_true_support_is_far_more_probable_than_under_the_exponential_mechanism():
    """n = 5,000, d = 10, s = 3, ε = .3."""
    rows = {row["method"]: row for row in sparsity.named(0.3, 8)}
    assert rows[sparsity.KNOWN]["said"] > 0.9
    assert 0.25 < rows[sparsity.EXPONENTIAL]["found"] < 0.45


@pytest.mark.slow
def test_the_command_writes_table_and_picture(tmp_path):
    assert sparsity.main(["--quick", "--out", str(tmp_path)]) == 0
    rows = read_table(tmp_path / "results.csv")
    assert {row["panel"] for row in rows} == {"support", "calibration"}
    top = {row["method"]: row for row in rows if row["panel"] == "calibration"}
    # Inclusion probabilities hold, and do not if the noise of the release is ignored.
    assert abs(top[sparsity.WITH]["said"] - top[sparsity.WITH]["found"]) < 0.1
    assert top[sparsity.WITHOUT]["said"] - top[sparsity.WITHOUT]["found"] > 0.2
