r"""OPS keeps the constants it states, on posteriors summed on a grid, and pays the variance that tempering must cost.

**Exact constants.** In one dimension the posterior a plan draws from is summed on a grid, for neighbours that pull as
far apart as records may. Pure forms: the largest |log density ratio|. Form gdp: the hockey-stick divergence in both
orders, below that of μ = 2ρL/√m (ρL/√m for one record more) at every ε. Each check is seen to fail for a mechanism with
one mistake. The densities are those of ``OPS.posterior``, from which NUTS draws.
"""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

import dpmcmc
from dpmcmc.mechanisms.ops import OPS
from dpmcmc.mechanisms.sums_in_blocks import float64
from dpmcmc.privacy import CalibrationError, UnsupportedCombination
from dpmcmc.privacy.accounting.gaussian import gaussian_delta
from dpmcmc.targets import Custom, LinearRegression, LogisticRegression, SoftmaxRegression
from dpmcmc.targets.checks import check_target
from dpmcmc.targets.tempered import Tempered
from experiments.panel.printed import ops_plan
from tests.pairs import covering

LOGISTIC = LogisticRegression(1.0, row_bound=1.0)
LINEAR = LinearRegression(0.1, 1.0, 10.0, row_bound=1.0)
ORDERS = ("replace_one", "add_remove", "zero_out")


def records(x, y):
    return {"x": np.asarray(x, np.float64)[:, None], "y": np.asarray(y, np.float64)}


def neighbours(left, right, adjacency, more=None):
    """(records, neighbouring records): ``more`` common ones, and ``left`` against ``right`` or against nothing."""
    x, y = ([], []) if more is None else more
    second = ([*x, right[0]], [*y, right[1]]) if adjacency == "replace_one" else (x, y)
    return records([*x, left[0]], [*y, left[1]]), records(*second)


def log_mass(posterior, data, grid):
    """Log mass of each cell of an even grid, float64."""

    def one(theta, data):
        params = jnp.full(1, theta)
        each = jax.vmap(lambda record: posterior.log_likelihood(params, record))(data)
        return jnp.sum(each) + posterior.log_prior(params)

    with float64():
        logs = np.asarray(jax.jit(jax.vmap(one, (0, None)))(jnp.asarray(grid), jax.tree.map(jnp.asarray, data)))
    return logs - logsumexp(logs)


def plan_of(ops, target, adjacency, epsilon, num_records=20):
    return ops.plan(target, num_records=num_records, epsilon=epsilon, delta=1e-6, adjacency=adjacency)


def pure_loss(posterior, pair, half):
    """Largest |log density ratio| of two neighbours on [−half, half]."""
    grid = np.linspace(-half, half, 4001)
    first, second = (log_mass(posterior, data, grid) for data in pair)
    return float(np.max(np.abs(first - second)))


def excess(posterior, pair, mu, half):
    """Largest hockey-stick divergence beyond that of μ-GDP, over both orders and many ε, relative to it + 1e-9."""
    grid = np.linspace(-half, half, 20001)
    masses = [np.exp(log_mass(posterior, data, grid)) for data in pair]
    worst = -np.inf
    for p, q in (masses, masses[::-1]):
        for epsilon in np.linspace(0, 4 * mu + mu**2, 25):
            claim = gaussian_delta(mu, epsilon)
            worst = max(worst, (np.maximum(p - np.exp(epsilon) * q, 0).sum() - claim) / (claim + 1e-9))
    return worst


# Pulled to −R by 60 records, a replaced one weighs in full at +R.
PULLED = ([1.0] * 60, [0.0] * 60)


@pytest.mark.slow
@pytest.mark.parametrize(("adjacency", "epsilon"), covering(list(itertools.product(ORDERS, (0.5, 40.0)))))
def test_pure_loss_on_worst_neighbours_is_within_what_is_charged(adjacency, epsilon):
    plan = plan_of(OPS("range", radius=2.0), LOGISTIC, adjacency, epsilon)
    posterior = plan.mechanism.posterior(plan)
    for more in (None, PULLED):
        loss = pure_loss(posterior, neighbours((1.0, 1.0), (1.0, 0.0), adjacency, more), 2.0)
        assert loss <= plan.settings["epsilon_per_draw"] * (1 + 1e-9)
        assert loss <= epsilon


@pytest.mark.slow
@pytest.mark.parametrize(("adjacency", "epsilon"), covering(list(itertools.product(ORDERS, (0.5, 40.0)))))
def test_the_printed_form_keeps_its_constant(adjacency, epsilon):
    """4ρB for a replaced record, and a prior that is tempered too (``experiments/panel/printed.py``)."""
    plan = ops_plan(2.0, LOGISTIC, epsilon, num_records=20, delta=1e-6, adjacency=adjacency)
    temper = min(1.0, epsilon / ((4 if adjacency == "replace_one" else 1) * np.logaddexp(0, 2)))
    assert plan.settings["temper"] == plan.settings["prior_temper"] == pytest.approx(temper)
    for more in (None, PULLED):
        pair = neighbours((1.0, 1.0), (1.0, 0.0), adjacency, more)
        assert pure_loss(Tempered(LOGISTIC, temper, temper), pair, 2.0) <= plan.settings["epsilon_per_draw"] <= epsilon


def test_range_constant_is_attained():
    plan = plan_of(OPS("range", radius=2.0), LOGISTIC, "replace_one", 4.0)
    loss = pure_loss(plan.mechanism.posterior(plan), neighbours((1.0, 1.0), (1.0, 0.0), "replace_one", PULLED), 2.0)
    assert 0.9 * 4.0 <= loss <= 4.0


def test_pure_check_sees_a_missing_ball_or_temper():
    plan = plan_of(OPS("range", radius=2.0), LOGISTIC, "replace_one", 4.0)
    pair = neighbours((1.0, 1.0), (1.0, 0.0), "replace_one", PULLED)
    assert plan.settings["temper"] == 1.0
    assert (
        pure_loss(plan.mechanism.posterior(plan), pair, 2.0)
        <= 4.0
        < pure_loss(plan.mechanism.posterior(plan), pair, 6.0)
    )
    plan = plan_of(OPS("range", radius=2.0), LOGISTIC, "replace_one", 1.0)
    assert pure_loss(Tempered(LOGISTIC, 1.0), pair, 2.0) > 1.0


GDP_CASES = [
    (LOGISTIC, OPS("gdp"), (1.0, 1.0), (1.0, 0.0), 8.0),
    (LOGISTIC, OPS("gdp", radius=0.7, prior_precision=5.0), (1.0, 1.0), (-1.0, 1.0), 0.7),
    (LINEAR, OPS("gdp", radius=1.0), (1.0, 10.0), (1.0, -10.0), 1.0),
]


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ORDERS)
@pytest.mark.parametrize(("target", "ops", "left", "right", "half"), GDP_CASES)
def test_hockey_stick_of_neighbours_is_within_gdp(target, ops, left, right, half, adjacency):
    for epsilon in (0.3, 3.0):
        plan = plan_of(ops, target, adjacency, epsilon)
        for more in (None, ([1.0, -1.0, 0.5], [1.0, 0.0, 1.0])):
            pair = neighbours(left, right, adjacency, more)
            assert excess(plan.mechanism.posterior(plan), pair, plan.settings["mu"], half) <= 1e-6


def test_hockey_stick_check_sees_planted_mistakes():
    plan = plan_of(OPS("gdp", radius=1.0), LINEAR, "replace_one", 1.0)
    pair = neighbours((1.0, 10.0), (1.0, -10.0), "replace_one")
    temper, mu = plan.settings["temper"], plan.settings["mu"]
    assert excess(Tempered(LINEAR, temper), pair, mu, 1.0) <= 1e-6
    for posterior, claimed in (
        (Tempered(LINEAR, temper, new_prior_precision=1e-6), mu),  # prior dropped
        (Tempered(LINEAR, 1.0), mu),  # temper not applied
        (Tempered(LINEAR, temper), mu / 2),  # L where replacing needs 2L
    ):
        assert excess(posterior, pair, claimed, 1.0) > 0.1
    # and the gradient's bound on a ball says nothing outside it
    outside = LinearRegression(1.0, 1.0, 0.1, row_bound=1.0)
    plan = plan_of(OPS("gdp", radius=0.5), outside, "add_remove", 3.0)
    pair = neighbours((1.0, 0.1), None, "add_remove")
    assert excess(Tempered(outside, 1.0), pair, plan.settings["mu"], 0.5) <= 1e-6
    assert excess(Tempered(outside, 1.0), pair, 0.3 * plan.settings["mu"], 6.0) > 0.1


@pytest.mark.parametrize("draws", [1, 9])
@pytest.mark.parametrize("adjacency", ORDERS)
def test_tempers_are_the_largest_that_the_target_allows(adjacency, draws):
    n, bound = 32561, np.logaddexp(0, 5)
    replaced = adjacency == "replace_one"
    temper = {
        ops.form: ops.plan(LOGISTIC, num_records=n, epsilon=1.0, delta=1e-6, adjacency=adjacency).settings["temper"]
        for ops in (OPS("range", radius=5.0, draws=draws), OPS(draws=draws))
    }
    assert temper["range"] == pytest.approx(1 / ((10 if replaced else bound) * draws))
    mu = 0.23670438 / np.sqrt(draws)
    assert temper["gdp"] == pytest.approx(mu / (2 if replaced else 1), rel=1e-6)


@pytest.mark.parametrize("ops", [OPS("range", radius=5.0, draws=3), OPS(draws=3)])
@pytest.mark.parametrize("tau", [None, 1e-9])
def test_guarantee_meets_the_target_and_says_what_it_assumes(ops, tau):
    ops = OPS(ops.form, radius=ops.radius, draws=ops.draws, total_variation=tau)
    plan = ops.plan(LOGISTIC, num_records=1000, epsilon=0.7, delta=1e-6)
    assert 0.999 * 0.7 < plan.guarantee.epsilon <= 0.7
    assert plan.guarantee.delta == 1e-6
    assert plan.guarantee.release == "one_sample"
    (sentence,) = plan.guarantee.assumptions
    assert "no finite run certifies" in sentence
    assert ("user's claim" in sentence) == (tau is not None)
    json.dumps(plan.settings)
    without = OPS(ops.form, radius=ops.radius, draws=ops.draws).plan(
        LOGISTIC, num_records=1000, epsilon=0.7, delta=1e-6
    )
    if ops.form == "gdp" and tau is not None:
        assert plan.settings["temper"] < without.settings["temper"]


def test_temper_is_one_where_the_posterior_is_private_already():
    plan = OPS(prior_precision=100.0).plan(LOGISTIC, num_records=50, epsilon=1.0, delta=1e-6)
    assert plan.settings["temper"] == 1.0
    assert plan.guarantee.epsilon < 1.0
    lower = OPS(temper=0.05).plan(LOGISTIC, num_records=50, epsilon=1.0, delta=1e-6)
    assert lower.settings["temper"] == 0.05
    assert lower.guarantee.epsilon < 0.5


def test_release_holds_the_draws_and_nothing_else():
    target = LinearRegression(1.0, 1.0, 2.0, row_bound=1.0)
    ops = OPS("gdp", radius=1.0, draws=3)
    data = records(np.linspace(-1, 1, 40), np.linspace(-1, 1, 40))
    plan = ops.plan(target, num_records=40, epsilon=5.0, delta=1e-6)
    released = dpmcmc.sample(plan, data)
    assert released.positions.shape == (1, 3, 1)
    assert released.guarantee is plan.guarantee
    assert dpmcmc.sample(plan, data, key=0).guarantee is None
    with pytest.raises(ValueError, match="label_bound"):
        dpmcmc.sample(plan, {**data, "y": data["y"] + 2})
    with pytest.raises(ValueError, match="row_bound"):
        dpmcmc.sample(plan, {**data, "x": 3 * data["x"]})


@pytest.mark.slow
def test_release_of_nuts_draws_on_a_ball():
    data = {"x": np.eye(3)[np.arange(30) % 3], "y": np.arange(30) % 2}
    plan = OPS("range", radius=2.0, draws=2, steps=10).plan(LOGISTIC, num_records=30, epsilon=5.0, delta=1e-6)
    released = dpmcmc.sample(plan, data)
    assert released.flat_draws().shape == (2, 3)
    assert np.all(np.linalg.norm(released.flat_draws(), axis=1) <= 2.0 * (1 + 1e-6))


PLAIN = Custom(lambda key: jnp.zeros(1), lambda p: -p @ p, lambda p, r: -r["x"] @ p)


@pytest.mark.parametrize(
    ("ops", "target", "error", "match"),
    [
        (OPS("range", radius=2.0), PLAIN, UnsupportedCombination, "loss_bounds"),
        (OPS("gdp"), PLAIN, UnsupportedCombination, "log_concave"),
        (OPS("range", radius=2.0), LogisticRegression(), ValueError, "^row_bound"),
        (OPS("gdp"), LogisticRegression(), ValueError, "^row_bound"),
        (OPS("gdp"), LINEAR, ValueError, "^radius"),
        (OPS("gdp", radius=1.0), LinearRegression(row_bound=1.0), ValueError, "^row_bound.*labels"),
        (OPS("range", radius=1.0), LinearRegression(row_bound=1.0), ValueError, "^label_bound"),
        (OPS("range", radius=1.0), LinearRegression(label_bound=1.0), ValueError, "^row_bound"),
        (OPS("gdp", temper=0.5), LOGISTIC, CalibrationError, "^temper"),
        (OPS("range", radius=5.0, temper=0.2), LOGISTIC, CalibrationError, "^temper"),
        (OPS("range", radius=5.0, draws=2, temper=0.1), LOGISTIC, CalibrationError, "^temper"),
        (OPS("gdp", total_variation=1e-6), LOGISTIC, CalibrationError, "^total_variation"),
    ],
)
def test_plans_that_nothing_proves_are_refused(ops, target, error, match):
    with pytest.raises(error, match=match):
        ops.plan(target, num_records=100, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("form", "exact"), ("form", "printed"),
        ("radius", 0.0), ("radius", np.inf), ("temper", 1.5), ("temper", 0.0),
        ("prior_precision", -1.0), ("draws", 0), ("total_variation", 1.0), ("steps", 1),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        OPS(**{name: value})


def test_a_ball_without_its_radius_is_refused():
    with pytest.raises(ValueError, match=r"^radius"):
        OPS("range")


def test_softmax_has_the_pure_forms():
    target = SoftmaxRegression(1.0, num_classes=3, row_bound=1.0)
    plan = OPS("range", radius=2.0).plan(target, num_records=100, epsilon=1.0, delta=1e-6)
    assert plan.settings["temper"] == pytest.approx(1 / (2 * target.loss_bounds(2.0)[1]))


# Bounded losses that are none of the library's models (thesis, section 3.3.4).


def bounded_loss(loss, largest, **facts):
    """A target of records |x| <= 1, 0 <= y <= 1 with the prior N(0, 1) of one coefficient, from a loss (x·θ, y)."""
    return Custom(
        lambda key: jnp.zeros(1),
        lambda theta: -theta @ theta / 2,
        lambda theta, record: -loss(record["x"] @ theta, record["y"]),
        loss_bounds=lambda radius: (largest(radius), largest(radius)),
        log_concave=True,
        gradient_bound=1.0,
        prior_precision=1.0,
        **facts,
    )


HINGE = bounded_loss(lambda u, y: jnp.maximum(0.0, 1 - (2 * y - 1) * u), lambda radius: 1 + radius)
ABSOLUTE = bounded_loss(lambda u, y: jnp.abs(y - u), lambda radius: 1 + radius)
HUBER = bounded_loss(
    lambda u, y: jnp.where(jnp.abs(y - u) <= 1, (y - u) ** 2 / 2, jnp.abs(y - u) - 0.5),
    lambda radius: radius + 0.5,
    smoothness=1.0,
)
BOUNDED = {"hinge": HINGE, "absolute": ABSOLUTE, "huber": HUBER}


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
def test_bounded_losses_have_the_pure_forms_and_gdp(name, adjacency):
    pair = neighbours((1.0, 1.0), (1.0, 0.0), adjacency, PULLED)
    plan = plan_of(OPS("range", radius=2.0), BOUNDED[name], adjacency, 1.0)
    assert any("vouches" in sentence for sentence in plan.guarantee.assumptions)
    assert 0 < pure_loss(plan.mechanism.posterior(plan), pair, 2.0) <= plan.settings["epsilon_per_draw"] <= 1.0
    plan = plan_of(OPS("gdp"), BOUNDED[name], adjacency, 1.0)
    assert excess(plan.mechanism.posterior(plan), pair, plan.settings["mu"], 8.0) <= 1e-6


def test_what_bounded_losses_declare_is_held_against_records():
    random = np.random.default_rng(0)
    data = records(random.uniform(-1, 1, 20), random.uniform(0, 1, 20))
    check_target(HUBER, data)
    for fact, value in (
        ("loss_bounds", lambda radius: (0.1, 0.1)),
        ("loss_bounds", lambda radius: (9.0, 0.1)),
        ("smoothness", 0.1),
        ("gradient_bound", 0.1),
    ):
        with pytest.raises(AssertionError, match=fact):
            check_target(dataclasses.replace(HUBER, **{fact: value}), data)
    concave = dataclasses.replace(HUBER, log_likelihood=lambda theta, record: jnp.abs(record["x"] @ theta) ** 1.5)
    with pytest.raises(AssertionError, match="log_concave"):
        check_target(dataclasses.replace(concave, gradient_bound=None, loss_bounds=None), data)


@pytest.mark.slow
def test_a_draw_with_the_hinge_loss_separates_two_classes():
    random = np.random.default_rng(1)
    x = random.uniform(-1, 1, 400)
    data = records(x, (x > 0).astype(float))
    plan = OPS("range", radius=4.0, steps=200).plan(HINGE, num_records=400, epsilon=2.0, delta=1e-6)
    assert dpmcmc.sample(plan, data).flat_draws()[0, 0] > 0.5
