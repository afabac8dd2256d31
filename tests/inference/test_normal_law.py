"""Laws of releases that more than one mechanism rests on."""

import numpy as np
import pytest

from dpmcmc.inference.corrected_matrix import corrected
from dpmcmc.inference.curvature import ScoredRows
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.normal_law import GradientRelease, Local, error_of_curvatures
from dpmcmc.inference.softmax_score import Softmax


@pytest.mark.parametrize("wide", [False, True])
def test_curvatures_that_are_all_alike_add_no_error(wide):
    """Whatever the prior's precision, also one that is not diagonal."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 4))
    curvature = rows.T @ rows
    towards = rng.normal(size=(4, 4))
    precision = np.diag([1.0, 4.0, 0.1, 2.0]) + (30 * towards.T @ towards if wide else 0.0)
    release = GradientRelease(rng.normal(size=4), rng.normal(size=4), 5.0 * np.eye(4))
    local = Local(curvature, curvature, np.zeros_like)
    # Where all posteriors are one, so is the typical one.
    added = error_of_curvatures(release, local, np.stack([curvature] * 8), precision)
    np.testing.assert_allclose(added, 0.0, atol=1e-6 * np.trace(curvature))


def test_rounding_where_rows_declare_nothing_is_no_direction_of_a_matrix():
    """A direction that holds 1e-9 of the largest is rounding, and would be known to nothing."""
    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    model = turn @ np.diag([5e-9, 1.0, 1.0, 1.0]) @ turn.T
    noise = 0.01 * rng.normal(size=(4, 4))
    found = corrected(model, model + (noise + noise.T) / 2, 0.01, lambda q: 1e-16 * np.trace(q) * np.eye(4))
    assert found.held.tolist() == [False, True, True, True]


@pytest.mark.parametrize("classes", [1, 3])
def test_where_a_path_ran_away_a_matrix_is_still_finite(classes):
    """Slopes are 0 there, to rounding; the release then says nothing, and the run is told so, and not ended."""
    score = Softmax(classes) if classes > 1 else Logistic()
    rows = ScoredRows(score, 1000 * np.eye(3), 1000, np.eye(3)[0], 5.0, lambda q: np.trace(q) * np.eye(3))
    theta = 5000.0 * np.eye(3 * classes)[0]  # of the intercept
    local = rows.local(theta)
    assert np.trace(local.spread) / np.trace(local.curvature) == pytest.approx(1.0)
    for model in (local.curvature, 1e-160 * np.eye(len(theta))):
        found = corrected(model, model, 1.0, local.curvature_error)
        assert np.all(np.isfinite([found.matrix, found.turn, found.least, found.error(np.eye(len(theta)))]))


def evidence(**more):
    """Two coefficients that the records tell, and one that they hardly do."""
    curvature = np.diag([400.0, 100.0, 0.5])
    settings = {"curvature": curvature, "statistic": curvature @ [0.3, -0.2, 0.1], "covariance": curvature + 0.1}
    return Evidence(**settings | {"scales": np.ones(3), "num_records": 1000} | more)


def test_every_interval_is_judged_by_itself():
    assert [use.use for use in evidence().uses(np.eye(3))] == ["yes", "yes", "prior"]
    assert not evidence().objections
    rare = evidence(rare=np.array([False, True, False]))
    assert [use.use for use in rare.uses(np.eye(3))] == ["yes", "no", "prior"]
    hidden = evidence(least=np.diag([400.0, 1.0, 0.5]))
    assert [use.use for use in hidden.uses(np.eye(3))] == ["yes", "no", "prior"]
    # A sum of two is judged with both, and one without weights has nothing wrong.
    sums = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert [use.use for use in rare.uses(sums)] == ["prior", "yes", "yes"]


def test_a_prior_that_is_not_supposed_to_be_true_may_not_speak_for_many_coefficients():
    curvature = np.diag([400.0, 0.2, 0.2])
    little = {"curvature": curvature, "statistic": curvature @ [0.3, -0.2, 0.1], "covariance": curvature + np.eye(3)}
    assert not evidence(**little, supposed=True).objections  # where it is supposed to be true, it may
    for chosen in (False, True):
        (said,) = evidence(**little, chosen=chosen).objections
        assert "too little of 67%" in said
