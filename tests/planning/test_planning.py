"""A plan settles noise and guarantee without data, and charges exactly what it will add."""

import dataclasses
import math

import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine.work_table import WORK, work_of
from dpmcmc.errors import InputError
from dpmcmc.mechanisms import OPS, Hybrid
from dpmcmc.privacy import CalibrationError, UnsupportedCombination
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.samplers import Polynomial

N = 5000
TARGET = dpmcmc.targets.LogisticRegression(prior_scale=1.0)


def make(**changes):
    settings = {
        "num_records": N,
        "sampler": dpmcmc.SGLD(step_size=1.0),
        "sampling": dpmcmc.Poisson(100),
        "steps": 200,
        "burn_in": 100,
        "privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
    }
    return dpmcmc.plan(changes.pop("target", TARGET), **(settings | changes))


def test_guarantee_is_what_account_says_of_the_plans_noise():
    plan = make()
    again = account(
        plan.noise_multipliers, steps=plan.steps, sampling=plan.sampling, num_records=N, delta=1e-5, accountant="pld"
    )
    assert plan.guarantee.epsilon == pytest.approx(again.epsilon, rel=1e-6)
    assert 0.97 < plan.guarantee.epsilon <= 1.0


def test_noise_is_the_larger_of_the_samplers_and_privacys():
    plan = make()
    unit = 100 / N
    own = np.sqrt(2 / (1.0 / N))
    np.testing.assert_allclose(plan.noise_std, max(own, plan.noise.required_multiplier / unit), rtol=1e-6)
    np.testing.assert_allclose(plan.noise_multipliers, plan.noise_std.astype(np.float64) * unit, rtol=1e-12)
    # float32 noise is never below what float64 asked for
    assert np.all(plan.noise_std.astype(np.float64) * unit >= plan.noise.required_multiplier)


def test_events_hold_charged_values():
    plan = make()
    query = next(e for e in plan.guarantee.events if e.mechanism == "poisson_gaussian")
    assert query.noise_multiplier == pytest.approx(float(plan.noise_multipliers.min()) / (1 + KAPPA), rel=1e-12)
    assert 100 / N < query.rate < 100 / N * 1.001
    assert query.count == plan.steps
    overflow = next(e for e in plan.guarantee.events if e.mechanism == "batch_overflow")
    assert (1 + math.e) * overflow.rate * overflow.count <= 0.01 * 1e-5


def test_privacy_is_free_when_langevin_noise_suffices():
    plan = make(sampler=dpmcmc.SGLD(step_size=1e-4))
    assert plan.free_fraction == 1.0
    assert plan.noise.required_multiplier == 0.0
    np.testing.assert_allclose(plan.temperatures, 1.0, rtol=1e-6)
    assert plan.guarantee.epsilon < 1.0
    assert "privacy is free" in str(plan)


@pytest.mark.slow
def test_decaying_steps_are_free_from_some_step_on_and_composed_not_averaged():
    plan = make(sampler=dpmcmc.SGLD(step_size=Polynomial(a=8.0, b=1.0, gamma=1.0)), steps=300)
    assert 0 < plan.free_fraction < 1
    z = plan.noise_multipliers
    assert np.all(np.diff(z) >= 0)
    assert len(plan.guarantee.events) > 3
    averaged = account(float(z.mean()), steps=300, sampling=plan.sampling, num_records=N, delta=1e-5)
    assert averaged.epsilon < 0.9 * plan.guarantee.epsilon
    # free privacy is not paid twice: a constant floor-less calibration needs at least as much
    alone = dpmcmc.privacy.calibrate(epsilon=1.0, delta=1e-5, steps=300, sampling=plan.sampling, num_records=N)
    assert plan.noise.required_multiplier < alone


def test_auto_step_size_keeps_temperature_one_at_the_whole_budget():
    plan = make(sampler=dpmcmc.SGLD(step_size="auto"), sampling=dpmcmc.Full())
    np.testing.assert_allclose(plan.temperatures, 1.0, rtol=1e-5)
    assert plan.free_fraction == 1.0
    assert 0.99 < plan.guarantee.epsilon <= 1.0
    # the design's law: Σ η_t = μ²/(2C²) is all the time there is
    assert plan.time == pytest.approx(gaussian_mu(1.0, 1e-5) ** 2 / 2, rel=0.01)
    assert plan.time <= plan.private_time


def test_free_calibrator_reports_and_adds_nothing():
    plan = make(privacy=dpmcmc.Privacy(delta=1e-5, calibrator="free"))
    np.testing.assert_allclose(plan.noise_std, np.sqrt(2 * N), rtol=1e-6)
    assert plan.guarantee.epsilon > 0
    assert plan.free_fraction == 1.0


def test_closed_form_calibrator_meets_its_target_under_the_thesis_accountant():
    plan = make(
        sampling=dpmcmc.FixedSize(500),
        steps=2000,
        privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5, calibrator="closed_form", accountant="advanced"),
    )
    assert plan.guarantee.epsilon <= 1.0
    assert plan.noise.required_multiplier == pytest.approx(plan.thesis_multiplier[0] * (1 + KAPPA))


def test_chains_are_charged():
    one, four = make(), make(chains=4)
    assert four.noise.required_multiplier > 1.3 * one.noise.required_multiplier


def test_without_privacy_there_is_no_guarantee_and_own_noise():
    plan = make(privacy=None)
    assert plan.guarantee is None
    assert plan.noise_multipliers is None
    np.testing.assert_allclose(plan.noise_std, np.sqrt(2 * N), rtol=1e-6)


def test_a_chain_is_not_pure():
    with pytest.raises(InputError, match=r"delta 0 does not lie strictly between 0 and 1/num_records"):
        make(privacy=dpmcmc.Privacy(epsilon=1.0, delta=0.0))


@pytest.mark.parametrize("given", [{}, {"privacy": 1.0}, {"privacy": False}, {"privacy": {"epsilon": 1.0}}])
def test_a_plan_has_to_say_its_privacy(given):
    """Left out, it would run without a guarantee; None says so."""
    with pytest.raises(InputError, match=r"say privacy=dpmcmc.Privacy\(epsilon=….*or privacy=None for a run without"):
        dpmcmc.plan(TARGET, num_records=N, sampler=dpmcmc.SGLD(step_size=1.0), steps=2, **given)


class Cooling(dpmcmc.SGLD):
    """SGLD whose own temperature falls from 100 to 1."""

    def noise_std(self, t):
        return super().noise_std(t) * (1 + 99 * 0.9**t) ** 0.5


def test_a_falling_temperature_is_held_against_the_samplers_own_step_by_step():
    quick = {"sampling": dpmcmc.Full(), "privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-5, accountant="rdp")}

    def heat(sampler):
        return dict(make(sampler=sampler, **quick).describe().lines)["temperature"]

    assert "and the sampler alone has 1 to 100: privacy needs more" in heat(Cooling(step_size=100.0))
    assert "and the sampler alone has 1: privacy needs more" in heat(dpmcmc.SGLD(step_size=100.0))
    # Noise that is enough at every step is what the sampler wants, however hot it is at the start.
    assert heat(Cooling(step_size=1e-4)).startswith("1 to 100, of the noise alone")


class Heating(dpmcmc.SGLD):
    """SGLD whose own temperature goes evenly from one end to the other."""

    ends = (1.0, 1.0)

    def noise_std(self, t):
        low, high = self.ends
        return super().noise_std(t) * (low + (high - low) * t / (STEPS_OF_HEAT - 1)) ** 0.5


STEPS_OF_HEAT = 10
NARROWER, WIDER, BOTH = "mixed are narrower than the posterior", "mixed are wider than the posterior", "at times wider"


@pytest.mark.parametrize("privacy", [None, 30.0])
@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((0.1, 0.3), NARROWER),
        ((0.01, 1.0), NARROWER),
        ((0.9, 0.9), NARROWER),
        ((1.0, 1.0), ""),
        ((0.9999, 1.0001), ""),
        ((1.0, 1.5), WIDER),
        ((2.0, 2.0), WIDER),
        ((3.0, 1.0), WIDER),
        ((0.2, 3.0), BOTH),
        ((3.0, 0.2), BOTH),
    ],
)
def test_draws_are_called_narrower_below_temperature_one_and_wider_above_it(ends, said, privacy):
    """Noise that privacy needs does not change it: what counts is the temperature that is kept."""
    sampler = type("Heats", (Heating,), {"ends": ends})(step_size=1e-3)
    promise = None if privacy is None else dpmcmc.Privacy(epsilon=privacy, delta=1e-5, accountant="rdp")
    made = make(sampler=sampler, sampling=dpmcmc.Full(), steps=STEPS_OF_HEAT, burn_in=0, privacy=promise)
    line = dict(made.describe().lines)["temperature"]
    for words in (NARROWER, WIDER, BOTH):
        assert (words in line) == (words == said), line


@pytest.mark.parametrize("hottest", [0.05, 0.5, 1.0, 5.0])
def test_draws_that_privacy_heats_below_temperature_one_are_narrower_all_the_same(hottest):
    """Private noise above the sampler's own: from a thousandth to ``hottest``, as in digits_bnn."""
    step = 2 * hottest / float(make(sampler=dpmcmc.SGLD(1.0, temperature=1e-3)).noise_std[0]) ** 2
    made = make(sampler=dpmcmc.SGLD(step * N, temperature=1e-3))
    line = dict(made.describe().lines)["temperature"]
    np.testing.assert_allclose(made.temperatures, hottest, rtol=1e-3)
    assert "privacy needs more noise than the sampler injects" in line
    assert (NARROWER in line, WIDER in line) == (hottest < 1, hottest > 1)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-3)}, ValueError, "1/num_records"),
        ({"sampling": dpmcmc.Poisson(N + 1)}, ValueError, "num_records"),
        ({"sampling": dpmcmc.FixedSize(10)}, UnsupportedCombination, "rdp or advanced"),
        (
            {"privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-5, calibrator="closed_form")},
            CalibrationError,
            "fixed_size",
        ),
        (
            {
                "sampler": dpmcmc.SGLD(step_size=1.0, temperature=0.0),
                "privacy": dpmcmc.Privacy(delta=1e-5, calibrator="free"),
            },
            ValueError,
            "no noise",
        ),
        ({"steps": 0}, ValueError, "steps"),
        ({"steps": None}, ValueError, "give exactly one of passes and steps"),
        ({"passes": 4}, ValueError, "give exactly one of passes and steps"),
        ({"steps": None, "passes": 0.0}, ValueError, "passes must be a finite number > 0"),
        ({"steps": None, "passes": 1e7}, ValueError, "a run has at most 20000000"),
        ({"burn_in": 200}, ValueError, "no draw"),
        ({"burn_in": 1.0}, ValueError, r"a share of them in \[0, 1\)"),
        ({"thin": 101}, ValueError, "no draw"),
        ({"sampler": dpmcmc.SGLD("auto"), "privacy": None}, ValueError, "auto"),
    ],
)
def test_impossible_plans_are_refused_with_the_failing_condition(changes, error, message):
    with pytest.raises(error, match=message):
        make(**changes)


@pytest.mark.parametrize(
    "bad",
    [
        {"epsilon": 0.0},
        {"epsilon": -1.0},
        {"epsilon": float("inf")},
        {"delta": -1e-5},
        {"delta": 1.0},
        {"clip": 0.0},
        {"adjacency": "other"},
        {"accountant": "other"},
        {"calibrator": "other"},
        {"release": "everything"},
        {"epsilon": None},
        {"calibrator": "free"},
    ],
)
def test_impossible_privacy_is_refused(bad):
    with pytest.raises(ValueError):
        dpmcmc.Privacy(**({"epsilon": 1.0, "delta": 1e-5} | bad))


@pytest.mark.parametrize(
    ("make_sampler", "limit"),
    [
        (lambda step: dpmcmc.SGLD(step), 2.0),
        (lambda step: dpmcmc.SGHMC(step, friction=0.4), 3.2),
        (lambda step: dpmcmc.SGNHT(step, friction=0.5), 1.0),
        (lambda step: dpmcmc.SGFS(step), 2.0),
    ],
    ids=["sgld", "sghmc", "sgnht", "sgfs"],
)
def test_a_step_beyond_the_limit_of_a_known_curvature_is_refused(make_sampler, limit):
    curvature = 0.25
    make(sampler=make_sampler(0.99 * limit / curvature), privacy=None, curvature=curvature)
    with pytest.raises(ValueError, match=f"step_size .* stability limit {limit / curvature:.4g}"):
        make(sampler=make_sampler(1.01 * limit / curvature), privacy=None, curvature=curvature)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgld", "sghmc"])
def test_the_stability_limit_is_where_chains_leave(name):
    from dpmcmc.testing import gaussian_chain

    w = np.full(4, 10.0)
    for share, stays in ((0.95, True), (1.05, False)):
        sampler = dpmcmc.SGLD(1.0) if name == "sgld" else dpmcmc.SGHMC(1.0, friction=0.4)
        limit = float(sampler.bind(N).stability_limit(0.0, 0))
        sampler = sampler.bind(N).with_eta(share * limit / w[0])
        last = gaussian_chain(sampler, w, steps=2000, chains=4, start_std=np.ones(4))[-1]
        assert bool(np.all(np.abs(last) < 1e3)) == stays


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_curvature_is_refused(bad):
    with pytest.raises(ValueError, match="curvature"):
        make(curvature=bad)


def test_public_matrices_of_the_wrong_size_are_refused_before_a_record_is_read():
    target = dpmcmc.targets.LogisticRegression(num_features=5)
    for setting in ({"metric": [1.0, 2.0]}, {"fisher": "public", "public_fisher": np.eye(3)}):
        with pytest.raises(ValueError, match="parameters, and the target has 5"):
            dpmcmc.plan(target, num_records=N, sampler=dpmcmc.SGFS(1.0, **setting), steps=10, privacy=None)


def test_a_plan_is_a_list_of_stages_and_each_has_its_work():
    target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
    promise = {"num_records": N, "epsilon": 1.0, "delta": 1e-5}
    draw = OPS(prior_precision=1.0)
    hybrid = Hybrid(draw, dpmcmc.SGLD(step_size=1.0), steps=10).plan(target, **promise)
    in_metric = make(target=target, metric=dpmcmc.PrivateMetric(), end=None)
    alone = draw.plan(target, **promise)
    kinds = [[type(stage).__name__ for stage in plan.stages] for plan in (make(), in_metric, hybrid, alone)]
    assert kinds == [
        ["SamplerRun"],
        ["PlannedMetric", "SamplerRun"],
        ["MechanismRelease", "SamplerRun"],
        ["MechanismRelease"],
    ]
    for plan in (make(), in_metric, hybrid, alone):
        assert set(WORK) >= {type(stage) for stage in plan.stages}
        assert plan.guarantee is plan.stages[-1].guarantee
        work_of(plan)


def test_a_stage_may_follow_a_chain_and_nobody_carries_it_out_yet():
    target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
    draw = OPS(prior_precision=1.0).plan(target, num_records=N, epsilon=1.0, delta=1e-5)
    plan = dataclasses.replace(draw, stages=(*make(target=target).stages, *draw.stages))
    assert plan.label == "SGLD then OPS"
    with pytest.raises(UnsupportedCombination, match=r"nobody carries out SGLD then OPS in this order\.$"):
        dpmcmc.sample(plan, {"x": np.zeros((N, 2)), "y": np.zeros(N, int)})
