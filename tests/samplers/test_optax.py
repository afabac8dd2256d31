"""Rules of optax as samplers: the update is optax's, the query alone is charged, and a resumed run has its moments."""

import itertools

import jax
import numpy as np
import optax
import pytest
from scipy.stats import norm

import dpmcmc
from dpmcmc import config
from dpmcmc.config import file as config_file
from dpmcmc.engine import sizes, steps
from dpmcmc.errors import InputError
from dpmcmc.planning.verdict import of_result
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.samplers import Optax, OptaxSchedule
from dpmcmc.samplers.optax import _rules
from dpmcmc.storage import checkpoint
from tests.planted import faults_query
from tests.replay import FAST, Replay, same_bits, share

N, D, STEPS, RATE = 40, 3, 12, 0.1
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
X /= np.linalg.norm(X, axis=1, keepdims=True)
RECORDS = {"x": X, "y": (X[:, 0] > 0).astype(np.int32)}
TARGET = dpmcmc.targets.LogisticRegression(prior_scale=1.0, num_features=D, row_bound=1.0)
SCHEDULE = OptaxSchedule("exponential_decay", init_value=RATE, transition_steps=10, decay_rate=0.5)
ADAM = Optax("adam", learning_rate=RATE, b1=0.8)


def make(sampler=ADAM, **changes):
    settings = {
        "num_records": N,
        "sampling": dpmcmc.Poisson(10.0),
        "steps": STEPS,
        "privacy": dpmcmc.Privacy(epsilon=5.0, delta=1e-3, accountant="rdp"),
    }
    return dpmcmc.plan(TARGET, sampler=sampler, **(settings | changes))


@pytest.fixture(scope="module")
def replayed():
    """(replay, what it saw) of Adam."""
    replay = Replay(make(), RECORDS, FAST)
    return replay, replay(RECORDS)


def by_hand(gradients):
    """Positions of Adam from 0 in float64, as Kingma and Ba (2015), algorithm 1, have it."""
    first, second, position, out = np.zeros(D), np.zeros(D), np.zeros(D), []
    for t, g in enumerate(np.asarray(gradients, np.float64), start=1):
        first, second = 0.8 * first + 0.2 * g, 0.999 * second + 0.001 * g**2
        position = position - RATE * first / (1 - 0.8**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        out.append(position)
    return np.array(out)


def by_optax(rule, gradients):
    position = jax.numpy.zeros(D)
    state, out = rule.init(position), []
    for gradient in gradients:
        change, state = rule.update(gradient, state, position)
        position = optax.apply_updates(position, change)
        out.append(position)
    return np.array(out)


def test_adam_is_optax_s_on_the_noisy_gradients_of_the_mean_loss(replayed):
    trace = replayed[1]
    gradients = trace.calls[0].released.value[0] / N
    positions = trace.states.position[0]
    np.testing.assert_allclose(positions, by_hand(gradients), rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(positions, by_optax(optax.adam(RATE, b1=0.8), gradients), rtol=1e-5, atol=1e-7)
    assert np.abs(positions[-1]).max() > RATE
    # The sum's own noise is there: a gradient without it would give other positions.
    exact = trace.sum_of()[0] * N / 10.0
    assert np.abs(by_hand(-exact / N) - positions).max() > RATE


@pytest.mark.parametrize(
    ("sampler", "rule"),
    [
        (Optax("sgd", 8.0), None),
        (Optax("sgd", SCHEDULE, momentum=0.9), optax.sgd(SCHEDULE, momentum=0.9)),
        (Optax("adamw", RATE, weight_decay=5.0), optax.adamw(RATE, weight_decay=5.0)),
        (Optax("optimistic_gradient_descent", RATE, beta=1.5), optax.optimistic_gradient_descent(RATE, beta=1.5)),
        (Optax(optax.chain(optax.trace(0.9), optax.scale(-RATE))), optax.sgd(RATE, momentum=0.9)),
    ],
    ids=["sgd", "schedule", "position", "factor", "python"],
)
def test_a_rule_steps_on_the_mean_of_the_noisy_gradients(replayed, sampler, rule):
    gradients = replayed[1].calls[0].released.value[0]
    bound = sampler.bind(N)
    state, out = bound.init(jax.random.key(0), jax.numpy.zeros(D)), []
    for t, gradient in enumerate(gradients):
        state, _ = bound.step(jax.random.key(t), state, PrivateGradient(gradient, jax.numpy.float32(1)), t)
        out.append(state.position)
    wanted = -8.0 / N * np.cumsum(gradients, axis=0) if rule is None else by_optax(rule, gradients / N)
    np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
    assert np.abs(wanted[-1]).max() > RATE


@pytest.mark.slow
def test_sgd_is_langevin_s_at_temperature_zero():
    plans = [make(one, sampling=dpmcmc.Full()) for one in (Optax("sgd", 8.0), dpmcmc.SGLD(8.0, temperature=0.0))]
    ours, langevin = (dpmcmc.sample(plan, RECORDS, key=0) for plan in plans)
    np.testing.assert_array_equal(plans[0].noise_std, plans[1].noise_std)
    assert plans[0].guarantee == plans[1].guarantee
    np.testing.assert_allclose(ours.released, langevin.released, rtol=1e-5, atol=1e-6)


def test_the_charge_is_that_of_the_noise_that_privacy_needs():
    """Full batches: one Gaussian of μ = 2√steps/z, whose curve is known (Balle and Wang 2018)."""
    plan = make(sampling=dpmcmc.Full(), privacy=dpmcmc.Privacy(epsilon=2.0, delta=1e-3))
    assert np.all(plan.sampler.noise_std(np.arange(STEPS)) == 0)
    assert plan.free_fraction == 0
    mu = 2 * np.sqrt(STEPS) / plan.noise_multipliers.min()
    epsilon = plan.guarantee.epsilon
    exact = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert 0.99e-3 < exact <= 1e-3
    assert 1.99 < epsilon <= 2.0


def farthest(replay, trace):
    """(run on a neighbour at the same positions, the largest distance of its sums in units of C)."""
    indices, mask = trace.calls[0].selections[0]
    at = int(indices[0, 0][mask[0, 0]][0])  # one that takes part in the first step
    records = {name: leaf.copy() for name, leaf in RECORDS.items()}
    records["x"][at] *= -1
    other = replay(records, given=trace)
    return other, share(trace, other).max()


def test_neighbours_move_the_query_alone(replayed):
    replay, trace = replayed
    other, moved = farthest(replay, trace)
    assert 0.5 < moved <= 2
    assert same_bits((trace.states, trace.infos), (other.states, other.infos))
    keys = [(one.batch_key, one.noise_key, one.noise_std, one.params) for one in (trace.calls[0], other.calls[0])]
    assert same_bits(*keys)


def test_a_missing_clip_is_caught(monkeypatch):
    """Planted fault."""
    faults_query.no_clip(monkeypatch)
    plan = make(privacy=dpmcmc.Privacy(epsilon=5.0, delta=1e-3, accountant="rdp", clip=0.1, clipping="residual"))
    replay = Replay(plan, RECORDS, FAST)
    assert farthest(replay, replay(RECORDS))[1] > 2


def test_an_optimiser_predicts_and_has_neither_temperature_nor_intervals():
    for plan in (make(), make(privacy=None)):
        assert plan.usable_for == ["prediction"]
        said = "the iterates of an optimiser gather near the mode, and are no draws of the posterior"
        assert plan.verdict.reasons["intervals"] == f"Do not report intervals: {said}."
        body = plan.describe().stated
        assert body["temperature"] is body["temperature_per_step"] is body["time"] is body["private_time"] is None
        assert not {"temperature", "time", "free"} & {label for label, _ in plan.describe().lines}
        assert np.isnan(plan.temperatures).all()
    for found in ({"ess": None, "rhat": None}, {"ess": 1e9, "rhat": 1.0}):
        assert of_result(make(), found).reasons["intervals"] == f"Do not report intervals: {said}."
    assert make().describe().stated["config"]["sampler"] == {
        "name": "optax",
        "rule": "adam",
        "learning_rate": RATE,
        "b1": 0.8,
        "num_records": N,
    }


class Stop(BaseException):
    """A kill."""


def stopped_and_resumed(folder, plan):
    count = itertools.count()

    def progress(done, total):
        if next(count) == 1:
            raise Stop

    with pytest.raises(Stop):
        dpmcmc.sample(plan, RECORDS, key=3, checkpoint=folder, progress=progress)
    return dpmcmc.sample(plan, RECORDS, key=3, checkpoint=folder)


@pytest.mark.slow
@pytest.mark.optimised
def test_a_stopped_run_goes_on_with_its_moments_to_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 4)
    monkeypatch.setattr(checkpoint, "_OVERHEAD", 1e9)
    plan = make(chains=2)
    alone = dpmcmc.sample(plan, RECORDS, key=3)
    resumed = stopped_and_resumed(tmp_path / "kept", plan)
    np.testing.assert_array_equal(resumed.released, alone.released)
    restored = steps.restored

    def forgetful(leaves, like):
        found = restored(leaves, like)
        return found._replace(rule=jax.tree.map(jax.numpy.zeros_like, found.rule)) if hasattr(found, "rule") else found

    monkeypatch.setattr(steps, "restored", forgetful)
    forgot = stopped_and_resumed(tmp_path / "forgot", plan)
    assert not np.array_equal(forgot.released, alone.released)  # planted fault: without its moments it is another run


def test_every_rule_of_optax_that_needs_a_gradient_alone_is_a_sampler():
    names = set(_rules())
    assert {"adam", "adamw", "sgd", "rmsprop", "adagrad", "lion", "nadam", "yogi"} <= names
    assert not {"noisy_sgd", "dpsgd", "scale_by_adam"} & names
    refused = []
    for name in names:
        try:
            Optax(name, learning_rate=RATE)
        except InputError:
            refused.append(name)
    assert set(refused) <= {"optimistic_adam"}  # it asks for one more argument


@pytest.mark.parametrize(
    ("arguments", "about", "said"),
    [
        ({"rule": "adm", "learning_rate": 0.1}, "rule", "did you mean adam?"),
        ({"rule": "noisy_sgd", "learning_rate": 0.1}, "rule", "rule must be a function of optax"),
        ({"rule": "adam"}, "learning_rate", "learning_rate is required by optax.adam"),
        ({"rule": "adam", "learning_rate": -1.0}, "learning_rate", "> 0"),
        ({"rule": "adam", "learning_rate": 0.1, "esp_root": 0.5}, "esp_root", "did you mean eps_root?"),
        ({"rule": "adam", "learning_rate": 0.1, "b1": float("inf")}, "b1", "b1 must be a finite number"),
        ({"rule": "adam", "learning_rate": 0.1, "b1": "x"}, "b1", "b1 must be a number, got 'x'"),
        ({"rule": "adam", "learning_rate": 0.1, "b1": 7}, "b1", r"b1 must lie in \[0, 1\)"),
        ({"rule": "sgd", "learning_rate": 0.1, "momentum": 1.0}, "momentum", r"must lie in \[0, 1\)"),
        ({"rule": "rmsprop", "learning_rate": 0.1, "decay": -0.1}, "decay", "keeps that share"),
        ({"rule": "lbfgs"}, "rule", "must be a function of optax that steps on a gradient alone"),
        ({"rule": 3}, "rule", "or a GradientTransformation, got 3"),
        ({"rule": optax.sgd(0.1), "momentum": 0.9}, "momentum", "this one is made already"),
    ],
)
def test_a_wrong_rule_or_argument_is_refused(arguments, about, said):
    with pytest.raises(InputError, match=said) as refusal:
        Optax(**arguments)
    assert refusal.value.about == about


@pytest.mark.parametrize(
    ("section", "path", "said"),
    [
        ("{name: optax, learning_rate: 0.1}", "sampler.rule", "this key is required"),
        ("{name: optax, rule: adm, learning_rate: 0.1}", "sampler.rule", "did you mean adam?"),
        ("{name: optax, rule: adam, learning_rat: 0.1}", "sampler.learning_rat", "did you mean learning_rate?"),
        ("{name: optax, rule: adam, learning_rate: 0.1, b1: .nan}", "sampler.b1", "got nan"),
        ("{name: optax, rule: adam, learning_rate: fast}", "sampler.learning_rate", "valid number"),
        (
            "{name: optax, rule: adam, learning_rate: {schedule: 'optax:linear_schedule', init_value: 0.1, "
            "end_value: 0.0, transition_steps: 20}}",
            "sampler.learning_rate",
            "the schedule is 0 at step 20",
        ),
    ],
)
def test_a_wrong_yaml_is_refused_with_its_path(section, path, said):
    with pytest.raises(InputError, match=said) as refusal:
        config.make_plan(config_file.load("breast_cancer", [f"sampler={section}"]))
    assert refusal.value.about == path


def test_a_yaml_names_rule_and_arguments():
    changes = ["sampler={name: optax, rule: adam, learning_rate: 0.1, b1: 0.8}"]
    loaded = config_file.load("breast_cancer", changes)
    assert config.make_plan(loaded).sampler == ADAM.bind(426)
    assert loaded.model_dump()["sampler"] == {"name": "optax", "rule": "adam", "learning_rate": 0.1, "b1": 0.8}
