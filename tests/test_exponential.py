"""The exponential mechanism: exact probabilities, an attained ε, and no more than that on neighbours."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpmcmc.mechanisms import Exponential, release
from dpmcmc.mechanisms.exponential import LEVELS, choice, level_sums, weights_of
from dpmcmc.privacy import UnsupportedCombination
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression, LogisticRegression

POINTS = np.linspace(-1.0, 1.0, 5)
TARGET = LogisticRegression(1.0, num_features=1, row_bound=1.0)
BUDGET = {"num_records": 6, "epsilon": 1.0, "delta": 1e-4}
FACTOR = {"replace_one": 2.0, "add_remove": 1.0, "zero_out": 1.0}


def absolute(params, record):
    """|θ − y|, on points of [−1, 1]."""
    return jnp.abs(params[0] - record["y"])


def finite(**changes):
    return Exponential(
        **({"hypotheses": POINTS[:, None], "loss": absolute, "loss_bound": 2.0, "regularisation": 0.0} | changes)
    )


def records(*y):
    return {"x": np.ones((len(y), 1)), "y": np.array(y, np.float64)}


def probabilities(weights):
    return [Fraction(w, sum(weights)) for w in weights]


def largest_loss(mechanism, adjacency, plan=None):
    """Largest |log ratio| of an outcome's probabilities over pairs of neighbours, in whole numbers."""
    plan = plan or mechanism.plan(TARGET, adjacency=adjacency, **BUDGET)
    worst = 0.0
    for base in ((0.2, -0.7), (-1.0, -1.0), (1.0, 0.5)):
        for one, other in itertools.permutations((-1.0, -0.4, 0.0, 1.0), 2):
            first = records(*base, one)
            second = records(*base, other) if adjacency == "replace_one" else records(*base)
            both = [probabilities(mechanism.weights(plan, data)) for data in (first, second)]
            worst = max(worst, *(abs(math.log(p / q)) for p, q in zip(*both, strict=True)))
    return worst


@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
def test_no_outcome_s_probability_moves_by_more_than_epsilon(adjacency):
    """And little is left: a coefficient twice as large would exceed it."""
    mechanism = finite()
    plan = mechanism.plan(TARGET, adjacency=adjacency, **BUDGET)
    found = largest_loss(mechanism, adjacency, plan)
    assert 0.5 < found <= 1.0
    assert plan.settings["coefficient"] == pytest.approx(1.0 / (FACTOR[adjacency] * 2.0), rel=1e-9)
    plan.settings["coefficient"] *= 2
    assert largest_loss(mechanism, adjacency, plan) > 1.0


def test_epsilon_is_attained_where_two_records_disagree_everywhere():
    """One hypothesis among very many: its loss moves by B one way, all others' by B the other way."""

    def votes(params, record):
        return jnp.where(record["y"] > 0, params[0], 1.0 - params[0])

    mechanism = finite(hypotheses=np.eye(1, 4000).T, loss=votes, loss_bound=1.0)
    plan = mechanism.plan(TARGET, **BUDGET)
    weights = [mechanism.weights(plan, records(y)) for y in (-1.0, 1.0)]
    first, second = (Fraction(w[0], sum(w)) for w in weights)
    assert 0.999 < abs(math.log(first / second)) <= 1.0
    # The source's coefficient for losses in [0, 1] is ε/4: half the ε is left unused.
    assert plan.settings["coefficient"] == pytest.approx(2 * 1.0 / 4, rel=1e-9)


def test_probabilities_are_those_of_the_penalised_losses():
    penalty = np.array([0.0, 3.0, 0.5, 0.0, 1.0])
    mechanism = finite(penalty=penalty, regularisation=0.8)
    plan = mechanism.plan(TARGET, **BUDGET)
    y = [0.25, -0.5, 1.0]
    energy = np.abs(POINTS[:, None] - y).sum(1) + penalty + 0.4 * POINTS**2
    expected = np.exp(-plan.settings["coefficient"] * energy)
    got = np.array([float(p) for p in probabilities(mechanism.weights(plan, records(*y)))])
    np.testing.assert_allclose(got, expected / expected.sum(), rtol=1e-5)


def test_choices_have_their_probabilities():
    weights = [1, 5, 0, 10**40, 2 * 10**40, 3 * 10**40]
    drawn = [choice(weights, jax.random.fold_in(jax.random.key(1), i)) for i in range(1200)]
    counts = np.bincount(drawn, minlength=6)
    assert np.all(counts[:3] == 0)
    assert stats.chisquare(counts[3:], 1200 * np.array([1, 2, 3]) / 6).pvalue > 1e-3
    assert stats.chisquare(counts[3:], 1200 * np.array([1, 1, 1]) / 3).pvalue < 1e-6


@pytest.mark.parametrize("low", [-3.0, -700.0, -2500.0])
def test_weights_are_as_exact_as_is_charged(low):
    """Against exact rational exponentials, far below where a float's exp is 0."""
    from mpmath import exp, mp, mpf

    mp.dps = 60
    scores = np.array([0.0, low / 3, low])
    weights = weights_of(scores)
    for score, weight in zip(scores[1:], weights[1:], strict=True):
        assert abs(mpf(weight) / weights[0] / exp(mpf(float(score))) - 1) < 2.0**-36
    # Below the floor all weights are the floor's, and none is 0.
    least = weights_of(np.array([0.0, -1e7, -1e9]))
    assert least[1] == least[2] > 0


def test_sums_do_not_depend_on_order_and_losses_are_clipped():
    def wild(params, record):
        return params[0] * record["y"]

    y = np.random.default_rng(0).normal(size=50) * 100
    y[7] = np.nan
    points = POINTS[:, None]
    first = level_sums(wild, points, records(*y), 3.0)
    np.testing.assert_array_equal(first, level_sums(wild, points, records(*y[::-1]), 3.0))
    each = sum(level_sums(wild, points, records(one), 3.0) for one in y)
    np.testing.assert_array_equal(first, each)
    assert np.all(level_sums(wild, points, records(np.nan), 3.0) == LEVELS)
    assert np.all((level_sums(wild, points, records(1e9), 3.0) == LEVELS) == (POINTS > 0))
    assert first.max() <= 50 * LEVELS


def test_released_hypotheses_are_of_the_set_and_near_the_best_one():
    mechanism, target = finite(), LinearRegression(num_features=1)
    plan = mechanism.plan(target, num_records=60, epsilon=20.0, delta=1e-4)
    data = records(*np.full(60, 0.5))
    found = [float(release(plan, data, key=k).flat_draws()[0, 0]) for k in range(5)]
    assert found == [0.5] * 5
    assert release(plan, data).guarantee == plan.guarantee
    assert plan.guarantee.epsilon <= 20.0


def test_a_tree_of_parameters_is_sliced():
    mechanism = Exponential(
        hypotheses={"a": np.arange(3.0), "b": np.ones((3, 2))},
        loss=lambda params, record: jnp.abs(params["a"] - record["y"]),
        loss_bound=2.0,
    )
    plan = mechanism.plan(TARGET, **(BUDGET | {"epsilon": 400.0}))
    drawn = mechanism.draw(plan, records(2.0, 2.0, 2.0, 2.0, 2.0, 2.0), streams_of(0)[0])
    assert drawn["a"].tolist() == [2.0]
    assert drawn["b"].shape == (1, 2)


# ---- a ball ----


def test_the_ball_s_density_is_private_and_drawn_from():
    """One coefficient, on a grid: no log density moves by more than ε; draws have that density."""
    target = LinearRegression(1.0, 1.0, label_bound=1.0, num_features=1, row_bound=1.0)
    mechanism = Exponential(radius=1.0, engine="closed_form", regularisation=0.5)
    plan = mechanism.plan(target, num_records=6, epsilon=3.0, delta=1e-4)
    theta = np.linspace(-1, 1, 2001)

    def density(x, y):
        energy = np.sum(0.5 * (np.outer(theta, x) - y) ** 2, axis=1) + 0.25 * theta**2
        p = np.exp(-plan.settings["coefficient"] * energy)
        return p / np.trapezoid(p, theta)

    worst = 0.0
    for one, other in itertools.permutations([(1.0, 1.0), (1.0, -1.0), (0.0, 0.0), (-1.0, 0.3)], 2):
        first = density(*np.array([(1.0, 1.0), (0.5, -1.0), one]).T)
        worst = max(worst, np.max(np.abs(np.log(first / density(*np.array([(1.0, 1.0), (0.5, -1.0), other]).T)))))
    assert 1.0 < worst <= 3.0
    x, y = np.array([1.0, 0.5, 1.0, 1.0, -1.0, 0.2]), np.array([1.0, -1.0, 0.5, 0.5, 0.0, 1.0])
    drawn = [mechanism.draw(plan, {"x": x[:, None], "y": y}, streams_of(k)[0])[0, 0] for k in range(250)]
    cumulative = np.cumsum(density(x, y)) * (theta[1] - theta[0])
    assert stats.kstest(np.interp(drawn, theta, cumulative), "uniform").pvalue > 1e-3


def test_a_ball_is_ops_of_form_range_at_any_temper():
    from dpmcmc.mechanisms import OPS

    for adjacency in FACTOR:
        promise = {"num_records": 200, "epsilon": 0.3, "delta": 1e-4, "adjacency": adjacency}
        ours = Exponential(radius=2.0).plan(TARGET, **promise)
        ops = OPS(form="range", radius=2.0).plan(TARGET, **promise)
        assert ours.settings["coefficient"] == pytest.approx(ops.settings["temper"], rel=1e-9)
        assert ours.guarantee.assumptions == ops.guarantee.assumptions
    assert Exponential(radius=2.0).plan(TARGET, **(BUDGET | {"epsilon": 40.0})).settings["coefficient"] > 1


def test_impossible_requests_are_refused_with_a_remedy():
    for arguments, said in (
        ({}, "radius"),
        ({"radius": 1.0, "hypotheses": POINTS, "loss_bound": 1.0}, "radius"),
        ({"radius": -1.0}, "radius"),
        ({"radius": 1.0, "engine": "other"}, "engine"),
        ({"radius": 1.0, "loss_bound": 1.0}, "loss_bound"),
        ({"radius": 1.0, "regularisation": 0.0}, "regularisation"),
        ({"hypotheses": POINTS}, "loss_bound"),
        ({"hypotheses": POINTS, "loss_bound": 1.0, "penalty": [1.0]}, "penalty"),
        ({"hypotheses": {"a": POINTS, "b": POINTS[:2]}, "loss_bound": 1.0}, "hypotheses"),
    ):
        with pytest.raises(ValueError, match=said):
            Exponential(**arguments)
    with pytest.raises(UnsupportedCombination, match="adjacency"):
        finite().plan(TARGET, adjacency="other", **BUDGET)
    with pytest.raises(ValueError, match="epsilon"):
        finite().plan(TARGET, **(BUDGET | {"epsilon": 1e-12}))

    class Unbounded(LogisticRegression):
        loss_bounds = None

    with pytest.raises(UnsupportedCombination, match="loss_bounds"):
        Exponential(radius=1.0).plan(Unbounded(num_features=1), **BUDGET)
