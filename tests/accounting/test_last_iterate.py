"""The last iterate of a noisy descent: its price, its limits, and the mechanism that it is charged for."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.mechanisms import certified_ops
from dpmcmc.mechanisms.certified_ops import CertifiedOPS
from dpmcmc.privacy import CalibrationError, Event, FixedSize, Full, Guarantee, Poisson, Problem, UnsupportedCombination
from dpmcmc.privacy.accounting import noisy_descent
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.bisection import largest
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries
from dpmcmc.targets import LinearRegression, LogisticRegression, SoftmaxRegression

M, SMOOTH, L, N = 4.0, 500.0, 1.0, 1000


def mu(z, eta, steps, adjacency="replace_one", m=M, smooth=SMOOTH, chains=1):
    event = Event("noisy_descent", z, 1.0, chains, steps=steps, contraction=noisy_descent.contraction(eta, m, smooth))
    return gaussian_parameter(queries((event,)), Adjacency(adjacency))


@pytest.mark.parametrize("steps", [1, 2, 7, 50, 1000])
@pytest.mark.parametrize("c", [0.0, 0.3, 0.9, 0.9999])
def test_exact_on_the_quadratic_that_attains_it(steps, c):
    """φ(x) = cx and φ'(x) = cx + s: both ends are Gaussian, and their μ is known without the theorem."""
    mean = sum(c**k for k in range(steps))
    variance = sum(c ** (2 * k) for k in range(steps))
    z = 3.0
    event = Event("noisy_descent", z, 1.0, 1, steps=steps, contraction=c)
    assert gaussian_parameter(queries((event,)), Adjacency.ADD_REMOVE) == pytest.approx(
        mean / math.sqrt(variance) / z, rel=1e-7
    )


@pytest.mark.parametrize(
    ("adjacency", "sensitivity"), [(Adjacency.REPLACE_ONE, 2.0), (Adjacency.ADD_REMOVE, 1.0), (Adjacency.ZERO_OUT, 1.0)]
)
def test_limits(adjacency, sensitivity):
    """G√t/s for few steps, G√((1 − ηm/2)/(mT)) for many, at temperature T = 1."""
    eta = 1e-3 * 2 / (M + SMOOTH)
    s = math.sqrt(2 / eta)
    few, many = mu(s / L, eta, 3, adjacency), mu(s / L, eta, 10**8, adjacency)
    assert few == pytest.approx(sensitivity * L * math.sqrt(3) / s, rel=1e-4)
    assert many == pytest.approx(sensitivity * L * math.sqrt((1 - eta * M / 2) / M), rel=1e-6)
    # The price of an exact draw, which small steps approach from below.
    draw = gaussian_parameter(queries((Event("posterior_draw", math.sqrt(M) / L, 1.0, 1),)), adjacency)
    assert many < draw
    assert many == pytest.approx(draw, rel=1e-4)


def test_chains_are_releases_of_their_own():
    """Two chains of t steps are not one of 2t: the latter is cheaper."""
    one = account(50.0, steps=100, sampling=Full(), num_records=N, delta=1e-5, **last(), chains=2)
    assert one.events[0].count == 2
    assert one.events[0].steps == 100
    assert gaussian_parameter(queries(one.events), Adjacency.REPLACE_ONE) == pytest.approx(
        math.sqrt(2) * mu(50.0 / (1 + 2.0**-15), 1e-3, 100), rel=1e-6
    )
    again = Guarantee.from_json(one.to_json())
    assert again.epsilon == one.epsilon
    assert one.compose(one).events[0].count == 4


def last(**changes):
    problem = {"step_size": 1e-3 * N, "strong_convexity": M, "smoothness": SMOOTH, "lipschitz": L, "clip": L} | changes
    return {"release": "last_iterate", "accountant": "last_iterate", "problem": Problem(**problem)}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"sampling": Poisson(10)}, "full batches"),
        ({"sampling": FixedSize(10)}, "full batches"),
        ({"problem": None}, "problem"),
        ({"accountant": "last_iterate", "release": "trace"}, "release last_iterate"),
        ({"noise_multiplier": np.linspace(1, 2, 10)}, "same noise"),
    ],
)
def test_a_condition_that_fails_is_named(changes, names):
    arguments = {"noise_multiplier": 10.0, "steps": 10, "sampling": Full(), "num_records": N, "delta": 1e-5} | last()
    with pytest.raises(UnsupportedCombination, match=names):
        account(**(arguments | changes))


def test_clipping_that_can_be_active_is_refused():
    with pytest.raises(UnsupportedCombination, match="never active"):
        last(clip=0.5)


@pytest.mark.parametrize("changes", [{"strong_convexity": 0.0}, {"smoothness": 1.0}, {"step_size": 2 * N / SMOOTH}])
def test_impossible_problems_are_refused(changes):
    with pytest.raises(ValueError, match=r"strong_convexity|smoothness|step_size"):
        account(10.0, steps=10, sampling=Full(), num_records=N, delta=1e-5, **last(**changes))


def logistic(size=3, prior_scale=0.5):
    return LogisticRegression(prior_scale, num_features=size, row_bound=1.0)


def rows(count=200, size=3, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, size))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    return {"x": x, "y": random.integers(0, 2, count)}


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
def test_plan_meets_its_target_and_assumes_nothing(adjacency):
    plan = CertifiedOPS(steps=300).plan(logistic(), num_records=200, epsilon=1.0, delta=1e-4, adjacency=adjacency)
    assert plan.guarantee.epsilon <= 1.0
    assert plan.guarantee.epsilon == pytest.approx(1.0, rel=1e-6) or plan.settings["temper"] == 1.0
    assert plan.guarantee.assumptions == ()
    assert plan.guarantee.release == "last_iterate"
    # Against the closed form, from the settings alone.
    s, rho = plan.settings, plan.settings["temper"]
    assert s["noise_std"] == pytest.approx(math.sqrt(2 / s["step"]))
    direct = mu(s["noise_std"] / rho, s["step"], 300, adjacency, m=4.0, smooth=4.0 + rho * 200 / 4)
    assert plan.guarantee.epsilon >= gaussian_epsilon(direct, 1e-4)
    assert plan.guarantee.epsilon == pytest.approx(gaussian_epsilon(direct, 1e-4), rel=1e-3)


def chain(data, key, steps, plan):
    """Position after ``steps`` steps under a known key."""
    single = plan.with_last(mechanism=CertifiedOPS(steps=steps))
    return certified_ops.last_iterates([single], data, jax.random.split(jax.random.key(key), 1))[0]


@pytest.mark.optimised
@pytest.mark.parametrize("steps", [1, 5, 60])
def test_replay_on_worst_case_neighbours(steps):
    """Same keys on neighbours: the ends differ by at most ηG(1 − cᵗ)/(1 − c), and on a bad pair by nearly that."""
    data = rows()
    worst, bound = 0.0, 0.0
    for direction in np.eye(3):
        plan = CertifiedOPS(steps=steps).plan(logistic(), num_records=200, epsilon=1.0, delta=1e-4)
        c, eta, rho = plan.settings["contraction"], plan.settings["step"], plan.settings["temper"]
        z = plan.settings["noise_multiplier"]
        # What is charged, as a distance: 2/z noise stds a step.
        charged = 2 / z * plan.settings["noise_std"] * eta
        bound = charged * (1 - c**steps) / (1 - c)
        assert charged >= 2 * rho * eta
        one = {k: v.copy() for k, v in data.items()}
        other = {k: v.copy() for k, v in data.items()}
        # Confidently wrong rows, pulling opposite ways.
        one["x"][0], one["y"][0] = direction, 1
        other["x"][0], other["y"][0] = direction, 0
        distance = np.linalg.norm(chain(one, 7, steps, plan) - chain(other, 7, steps, plan))
        assert distance <= bound * (1 + 1e-12)
        worst = max(worst, distance)
    if steps == 1:  # at θ = 0 both residuals are 1/2: half of the bound is attained
        assert worst > 0.49 * bound


@pytest.mark.optimised
def test_replay_catches_a_record_counted_twice(monkeypatch):
    """A planted bug: the likelihood doubled, with the sensitivity of one."""
    target = logistic()
    plan = CertifiedOPS(steps=1).plan(target, num_records=200, epsilon=1.0, delta=1e-4)
    data = rows()
    other = {k: v.copy() for k, v in data.items()}
    data["x"][0], data["y"][0] = [1, 0, 0], 1
    other["x"][0], other["y"][0] = [1, 0, 0], 0
    bound = 2 / plan.settings["noise_multiplier"] * plan.settings["noise_std"] * plan.settings["step"]

    class Loud(LogisticRegression):
        def log_likelihood(self, params, record):
            return 4 * super().log_likelihood(params, record)

    loud = dataclasses.replace(plan, target=Loud(0.5, num_features=3, row_bound=1.0))
    assert np.linalg.norm(chain(data, 7, 1, loud) - chain(other, 7, 1, loud)) > bound


def test_the_law_is_langevin_s_on_a_quadratic():
    """No likelihood to speak of: the prior's variance 1/m, inflated by the step, 1/(1 − ηm/2)."""
    target = LogisticRegression(1.0, num_features=2, row_bound=1e-3)
    data = {"x": np.full((4, 2), 1e-4), "y": np.array([0, 1, 0, 1])}
    plan = CertifiedOPS(steps=60, draws=4000, temper=1.0).plan(target, num_records=4, epsilon=31.0, delta=1e-3)
    eta = plan.settings["step"]
    assert eta == pytest.approx(0.5, rel=1e-3)
    drawn = dpmcmc.sample(plan, data, key=0).flat_draws()
    assert np.var(drawn) == pytest.approx(1 / (1 - eta / 2), rel=0.05)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.06


def test_secret_keys_carry_the_guarantee_and_others_do_not():
    plan = CertifiedOPS(steps=3).plan(logistic(), num_records=200, epsilon=1.0, delta=1e-4)
    assert dpmcmc.sample(plan, rows()).guarantee is plan.guarantee
    assert dpmcmc.sample(plan, rows(), key=3).guarantee is None
    first, second = (dpmcmc.sample(plan, rows()).flat_draws() for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.array_equal(
        dpmcmc.sample(plan, rows(), key=3).flat_draws(), dpmcmc.sample(plan, rows(), key=3).flat_draws()
    )


def test_draws_cost_more_and_differ():
    one, four = (
        CertifiedOPS(steps=50, draws=k, temper=0.1).plan(logistic(), num_records=200, epsilon=5.0, delta=1e-4)
        for k in (1, 4)
    )
    mus = [gaussian_parameter(queries(p.guarantee.events), Adjacency.REPLACE_ONE) for p in (one, four)]
    assert mus[1] == pytest.approx(2 * mus[0])
    drawn = dpmcmc.sample(four, rows(), key=0).flat_draws()
    assert drawn.shape == (4, 3)
    assert len(np.unique(drawn[:, 0])) == 4
    assert gaussian_delta(mus[0], 1.0) > 0


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (LogisticRegression(num_features=3), "row_bound"),
        (LinearRegression(num_features=3, row_bound=1.0), "gradient_bound"),
        (type("Mine", (), {"gradient_bound": 1.0})(), "convex"),
    ],
)
def test_targets_that_fail_a_condition_are_refused(target, names):
    with pytest.raises(UnsupportedCombination, match=names):
        CertifiedOPS().plan(target, num_records=100, epsilon=1.0, delta=1e-4)


def test_several_classes_are_covered():
    target = SoftmaxRegression(0.5, num_features=3, num_classes=3, row_bound=1.0)
    plan = CertifiedOPS(steps=20).plan(target, num_records=200, epsilon=1.0, delta=1e-4)
    assert dpmcmc.sample(plan, {**rows(), "y": np.arange(200) % 3}).flat_draws().shape == (1, 3, 3)


def test_a_given_temper_must_meet_the_target():
    with pytest.raises(CalibrationError, match="temper"):
        CertifiedOPS(temper=1.0, steps=3000).plan(logistic(), num_records=200, epsilon=0.1, delta=1e-4)


def test_the_largest_temper_is_private_and_the_next_float_is_not():
    for limit in (0.3, 1e-9):
        found = largest(lambda temper, limit=limit: temper <= limit, 0.0, 1.0)
        assert found <= limit < np.nextafter(found, 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0},
        {"draws": 0},
        {"step_fraction": 0.0},
        {"step_fraction": 1.5},
        {"temper": 2.0},
        {"prior_precision": -1.0},
    ],
)
def test_impossible_settings_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        CertifiedOPS(**changes)


def test_records_beyond_the_public_bounds_are_refused():
    plan = CertifiedOPS(steps=3).plan(logistic(), num_records=200, epsilon=1.0, delta=1e-4)
    data = rows()
    data["x"][5] *= 100
    with pytest.raises(ValueError, match="some rows have a norm beyond the public row_bound"):
        dpmcmc.sample(plan, data)
    data["x"][5] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        dpmcmc.sample(plan, data)
