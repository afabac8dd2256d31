"""Schedules are their formulas, on host and device, in a plan, in a run, in the accounting and in a YAML."""

import itertools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpmcmc
from dpmcmc import config
from dpmcmc.config import file as config_file
from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.samplers import SCHEDULES, OptaxSchedule
from dpmcmc.samplers.schedules import AlphaPhase, Cyclical, Floor, Polynomial

BREAST = Path(__file__).resolve().parents[2] / "configs" / "breast_cancer.yaml"
N, STEPS = 1000, 60
TARGET = dpmcmc.targets.LogisticRegression(prior_scale=1.0)


def alpha_phase(t):
    """η_t = α ε²/(128 L² log(2.5k/δ) log(2/δ) t) for t from 1, times N."""
    logs = math.log(2.5 * STEPS / 1e-5) * math.log(2 / 1e-5)
    return N * 0.25 * 1.5**2 / (128 * 2.0**2 * logs * (t + 1))


#: (the schedule, its formula written once more for a plain Python number).
FORMULAS = {
    "polynomial": (Polynomial(2.0, 10.0, 0.55), lambda t: 2.0 / (10.0 + t) ** 0.55),
    "floor": (Floor(5.0, 0.4), lambda t: 5.0 / (t + 1) if t < 12 else 0.4),
    "cyclical": (Cyclical(3.0, 20, 0.1), lambda t: max(3.0 * math.cos(math.pi * (t % 20) / 40) ** 2, 0.1)),
    "alpha_phase": (AlphaPhase(0.25, 1.5, 1e-5, STEPS, N, 2.0), alpha_phase),
}
OPTAX = {
    "cosine": optax.cosine_decay_schedule(2.0, STEPS, alpha=0.1),
    "exponential": optax.exponential_decay(2.0, 50, 0.9),
    "warmup": optax.warmup_cosine_decay_schedule(0.2, 2.0, warmup_steps=10, decay_steps=STEPS, end_value=0.1),
}


def make(step_size, **changes):
    settings = {"num_records": N, "steps": STEPS, "sampler": dpmcmc.SGLD(step_size), "privacy": None}
    return dpmcmc.plan(TARGET, **(settings | changes))


def test_every_registered_schedule_is_tested_here():
    assert FORMULAS.keys() == SCHEDULES.keys()


@pytest.mark.parametrize("name", FORMULAS)
def test_schedule_is_its_formula(name):
    schedule, formula = FORMULAS[name]
    wanted = np.array([formula(t) for t in range(STEPS)])
    t = np.arange(STEPS, dtype=np.float64)
    host = schedule(t)
    assert host.dtype == np.float64
    np.testing.assert_allclose(host, wanted, rtol=1e-12)
    assert [schedule(i) for i in range(STEPS)] == pytest.approx(list(wanted), rel=1e-12)
    traced = jax.jit(jax.vmap(schedule))(jnp.arange(STEPS))
    np.testing.assert_allclose(traced, wanted, rtol=2e-6)


EVERY = [*(pair[0] for pair in FORMULAS.values()), *OPTAX.values()]
SAMPLERS = itertools.cycle([dpmcmc.SGLD, dpmcmc.SGHMC, dpmcmc.SGNHT, dpmcmc.SGFS])


@pytest.mark.parametrize(("schedule", "kind"), [(schedule, next(SAMPLERS)) for schedule in EVERY])
def test_noise_of_a_schedule_is_the_same_on_host_and_device(schedule, kind):
    sampler = kind(schedule).bind(N)
    device = jax.jit(jax.vmap(sampler.noise_std))(jnp.arange(STEPS))
    np.testing.assert_allclose(sampler.noise_std(np.arange(STEPS, dtype=np.float64)), device, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTAX)
def test_an_optax_schedule_plans_and_runs(name):
    """The noise planned on the host is that of the step taken on the device: the temperature stays 1."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3)).astype(np.float32)
    plan = make(OPTAX[name])
    values = np.array([float(OPTAX[name](t)) for t in range(STEPS)])
    np.testing.assert_allclose(plan.noise_std, np.sqrt(2 * N / values), rtol=1e-6)
    result = dpmcmc.sample(plan, {"x": x, "y": rng.integers(0, 2, N)}, key=0)
    np.testing.assert_allclose(result.info.temperature, 1.0, rtol=1e-5)
    assert np.all(np.isfinite(result.draws))


@pytest.mark.parametrize(
    "schedule",
    [
        optax.cosine_decay_schedule(2.0, STEPS // 2),
        optax.warmup_cosine_decay_schedule(0.0, 2.0, warmup_steps=10, decay_steps=2 * STEPS),
        lambda t: 1.0 - t,
        lambda t: np.nan * t,
    ],
    ids=["ends at 0", "starts at 0", "negative", "nan"],
)
def test_a_schedule_that_leaves_the_positive_numbers_is_refused(schedule):
    with pytest.raises(ValueError, match=r"step_size: .* must be positive and finite at every step"):
        make(schedule)


class TestAlphaPhase:
    """From step αk on, Langevin's own noise is at least what the thesis's formula, corrected, asks for."""

    @pytest.mark.parametrize("alpha", [0.25, 0.5, 0.9])
    @pytest.mark.parametrize(("epsilon", "clip", "batch"), [(1.0, 1.0, 100), (0.5, 3.0, 250)])
    def test_own_noise_covers_the_formula_after_the_phase_and_not_before(self, alpha, epsilon, clip, batch):
        steps = 200
        schedule = AlphaPhase(alpha, epsilon, 1e-5, steps, N, clip)
        own = dpmcmc.SGLD(schedule).bind(N).noise_std(np.arange(steps, dtype=np.float64)) * batch / (N * clip)
        asked = closed_form.formula(epsilon=epsilon, delta=1e-5, steps=steps, rate=batch / N, constant=256)
        t = np.arange(1, steps + 1)
        assert np.all(own[t < alpha * steps] < asked)
        assert np.all(own[t > alpha * steps] > asked)
        assert own[round(alpha * steps) - 1] == pytest.approx(asked, rel=1e-12)

    def test_printed_constants_would_cover_as_early_with_half_the_noise_each(self):
        """Noise η against constant 128, as printed, is noise 2η against 256: the same boundary."""
        schedule = AlphaPhase(0.5, 1.0, 1e-5, 200, N)
        own = dpmcmc.SGLD(schedule).bind(N).noise_std(np.arange(200.0)) * 0.1
        printed = closed_form.formula(epsilon=1.0, delta=1e-5, steps=200, rate=0.1, constant=128)
        assert own[99] / np.sqrt(2) == pytest.approx(printed, rel=1e-12)

    def test_plan_is_free_from_the_boundary_on(self):
        steps, alpha = 100, 0.4
        privacy = dpmcmc.Privacy(
            epsilon=1.0, delta=1e-5, clip=2.0, accountant="advanced", calibrator="closed_form", adjacency="replace_one"
        )
        plan = make(
            AlphaPhase(alpha, 1.0, 1e-5, steps, N, 2.0),
            steps=steps,
            sampling=dpmcmc.FixedSize(100),
            privacy=privacy,
        )
        asked = closed_form.formula(epsilon=1.0, delta=1e-5, steps=steps, rate=0.1) * (1 + KAPPA)
        # The query is charged 1 + κ for float32, so step αk itself is a hair short, and the next one is not.
        assert 1 + 1 / (alpha * steps) > (1 + KAPPA) ** 2
        assert plan.free_fraction == pytest.approx(1 - alpha)
        np.testing.assert_allclose(plan.noise_multipliers[:40], asked, rtol=1e-6)
        assert np.all(np.diff(plan.noise_multipliers[39:]) > 0)
        np.testing.assert_allclose(plan.temperatures[40:], 1.0, rtol=1e-6)
        assert np.all(plan.temperatures[:39] > 1)
        assert plan.guarantee.epsilon <= 1.0


class TestPrivatePlan:
    """A schedule whose own noise suffices at some steps and not at others."""

    PRIVACY = dpmcmc.Privacy(epsilon=1.0, delta=1e-5)

    def plan(self, schedule):
        return make(schedule, sampling=dpmcmc.Full(), privacy=self.PRIVACY)

    @pytest.fixture(params=[("polynomial", 0.6), ("cyclical", 1.2), ("warmup", 1.2)], ids=lambda pair: pair[0])
    def mixed(self, request):
        """A plan that is free in part: a constant step of .6 is what privacy leaves at temperature 1 here."""
        name, median = request.param
        shape = {**{k: v[0] for k, v in FORMULAS.items()}, **OPTAX}[name]
        scale = median / float(np.median(np.asarray(shape(np.arange(STEPS)))))
        return self.plan(lambda t: scale * shape(t))

    def test_noise_is_composed_step_by_step(self, mixed):
        z = mixed.noise_multipliers
        assert len(np.unique(z)) > 5
        assert 0 < mixed.free_fraction < 1
        at_floor = z <= mixed.noise.required_multiplier * (1 + 1e-6)
        assert np.mean(~at_floor) == pytest.approx(mixed.free_fraction, abs=1.5 / STEPS)

        def epsilon(multipliers):
            return account(multipliers, steps=STEPS, sampling=mixed.sampling, num_records=N, delta=1e-5).epsilon

        assert epsilon(z) == pytest.approx(mixed.guarantee.epsilon, rel=1e-6)
        assert 0.98 < mixed.guarantee.epsilon <= 1.0
        assert epsilon(z.max()) < 0.9 < 1.0 < epsilon(z.min())
        # Full batches are Gaussians, whose squared inverse multipliers add; grouping like steps costs a little.
        pooled = epsilon(np.mean(z**-2.0) ** -0.5)
        assert pooled * (1 - 1e-9) <= mixed.guarantee.epsilon < 1.02 * pooled


YAML = {
    "polynomial": "{schedule: polynomial, a: 8.0, b: 2.0, gamma: 0.75}",
    "floor": "{schedule: floor, a: 426.0, floor: 4.0}",
    "cyclical": "{schedule: cyclical, a: 16.0, period: 10, floor: 0.5}",
    "alpha_phase": "{schedule: alpha_phase, alpha: 0.5, epsilon: 3.0, delta: 1.0e-4, steps: 50, num_records: 426, "
    "lipschitz: 0.25}",
}
SAME = {
    "polynomial": Polynomial(8.0, 2.0, 0.75),
    "floor": Floor(426.0, 4.0),
    "cyclical": Cyclical(16.0, 10, 0.5),
    "alpha_phase": AlphaPhase(0.5, 3.0, 1e-4, 50, 426, 0.25),
}


def from_yaml(step_size, *overrides):
    return config.make_plan(config_file.load(BREAST, [f"sampler.step_size={step_size}", *overrides]))


class TestYaml:
    @pytest.mark.parametrize("name", SCHEDULES)
    def test_every_schedule_can_be_written(self, name):
        plan = from_yaml(YAML[name])
        assert plan.sampler.step_size == SAME[name]
        t = np.arange(plan.steps, dtype=np.float64)
        own = np.sqrt(2 * 426 / SAME[name](t))
        free = plan.noise_std <= own * (1 + 1e-6)
        np.testing.assert_allclose(plan.noise_std[free], own[free], rtol=1e-6)
        assert plan.free_fraction == pytest.approx(np.mean(free))
        assert plan.guarantee.epsilon <= 3.0

    @pytest.mark.parametrize("schedule", ["polynomial", "optax"])
    @pytest.mark.parametrize("sampler", ["sghmc", "sgnht", "sgfs"])
    def test_every_sampler_takes_one(self, sampler, schedule):
        said, same = (YAML["polynomial"], SAME["polynomial"]) if schedule == "polynomial" else (COSINE, BY_NAME)
        section = f"sampler={{name: {sampler}, step_size: {said}}}"
        plan = config.make_plan(config_file.load(BREAST, [section, "privacy=null"]))
        assert plan.sampler.step_size == same


ARGUMENTS = "init_value: 8.0, decay_steps: 200, alpha: 0.1"
COSINE = f"{{schedule: 'optax:cosine_decay_schedule', {ARGUMENTS}}}"
BY_NAME = OptaxSchedule("optax:cosine_decay_schedule", init_value=8.0, decay_steps=200, alpha=0.1)


class TestOptaxByName:
    @pytest.mark.parametrize("said", [COSINE, f"{{name: 'optax:cosine_decay_schedule', {ARGUMENTS}}}"])
    def test_a_yaml_names_a_schedule_of_optax(self, said):
        plan = from_yaml(said)
        assert plan.sampler.step_size == BY_NAME
        t = np.arange(plan.steps)
        steps = 8.0 * (0.9 * 0.5 * (1 + np.cos(np.pi * t / 200)) + 0.1)  # its formula (Loshchilov and Hutter 2017)
        np.testing.assert_allclose(plan.sampler.eta(t * 1.0) * 426, steps, rtol=1e-6)
        assert plan.guarantee.epsilon <= 3.0

    def test_a_mapping_of_steps_is_an_argument_too(self):
        said = "{schedule: 'optax:piecewise_constant_schedule', init_value: 8.0, boundaries_and_scales: {\"20\": 0.5}}"
        plan = from_yaml(said)
        np.testing.assert_allclose(plan.sampler.eta(np.array([0.0, 19.0, 20.0, 49.0])) * 426, [8, 8, 4, 4])
        assert hash(plan.sampler.step_size) == hash(plan.sampler.step_size)
        said = plan.describe().stated["config"]["sampler"]["step_size"]
        assert said["boundaries_and_scales"] == {"20": 0.5}

    @pytest.mark.parametrize(
        ("said", "path", "why"),
        [
            ("optax:cosine_decay_schedule", "init_value", "init_value is required by optax.cosine_decay_schedule"),
            ("{schedule: 'optax:cosine_decay'}", "schedule", "did you mean cosine_decay_schedule?"),
            ("{schedule: 'optax:adam', learning_rate: 0.1}", "schedule", "must be a function of optax"),
            ("{schedule: 'optax:constant_schedule', valu: 1.0}", "valu", "did you mean value?"),
            ("{schedule: 'optax:constant_schedule', value: .inf}", "value", "got inf"),
            ("{schedule: 'optax:constant_schedule', value: x}", "value", "value must be a number, got 'x'"),
            ("{schedule: cosine}", "schedule", "or a schedule of optax, optax:NAME"),
            ("{schedule: 'mine:cosine'}", "schedule", "must be a function of optax"),
            ("{schedule: 'optax:constant_schedule', value: -1.0}", "", "positive and finite at every step"),
        ],
    )
    def test_a_wrong_one_is_refused_with_its_path(self, said, path, why):
        with pytest.raises(InputError, match=why) as refusal:
            from_yaml(said)
        assert refusal.value.about == ".".join(filter(None, ("sampler.step_size", path)))


@pytest.mark.parametrize("kind", [dpmcmc.SGLD, dpmcmc.SGHMC])
def test_a_schedule_is_checked_at_temperature_zero_too(kind):
    """Without noise of its own a sampler's noise is 0 whatever its step is."""
    with pytest.raises(InputError, match=r"step_size: the schedule is -0.5 at step 11; it must be positive"):
        make(lambda t: 1.0, sampler=kind(lambda t: 10.5 - t, temperature=0.0))


def test_a_schedule_that_is_no_function_of_the_step_is_refused():
    values = itertools.count(1.0)
    with pytest.raises(InputError, match="step_size: the schedule gives one step two values"):
        make(lambda t: next(values) + 0.0 * t)
