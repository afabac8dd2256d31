"""What draws may be used for: told by every plan and every result, and true where it says intervals."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc import config
from dpmcmc.config import file as config_file
from dpmcmc.engine.result import Result
from dpmcmc.inference import noise_aware
from dpmcmc.inference.metric import ReleasedMetric
from dpmcmc.mechanisms import MECHANISMS, OPS, Chain, Exponential, Hybrid, PrivateSelection
from dpmcmc.planning import forecast, interval_conditions, verdict
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.samplers import SAMPLERS
from dpmcmc.targets import TARGETS, Custom, LinearRegression, LogisticRegression, PerOwner, from_numpyro
from dpmcmc.targets.shipped_models import digits_network, poisson_model
from dpmcmc.targets.tempered import Tempered

CONFIGS = sorted((Path(__file__).resolve().parents[1] / "configs").glob("*.yaml"))
N, PRECISION = 20, 4.0
LOGISTIC = LogisticRegression(prior_scale=PRECISION**-0.5, num_features=3, row_bound=1.0)
#: At .047 of SGLD's stability limit; as many steps as the conditions ask for.
STEP = 0.094 * N / (N / 4 + PRECISION)
BURN_IN, STEPS = 80, 1400
CUSTOM = Custom(
    lambda key: jnp.zeros(3), lambda p: -2 * jnp.sum(p**2), lambda p, r: r["y"] * (r["x"] @ p), gradient_bound=1
)


def long_run(target=LOGISTIC, privacy="loose", **changes):
    """A plan that says intervals, with changes; a private one needs an ε that promises little."""
    if privacy == "loose":
        privacy = loose()
    settings = {"num_records": N, "sampler": dpmcmc.SGLD(STEP), "steps": STEPS, "burn_in": BURN_IN, "thin": 5} | changes
    return dpmcmc.plan(target, privacy=privacy, **settings)


def loose(**changes):
    return dpmcmc.Privacy(
        **({"epsilon": 150.0, "delta": 1e-3, "accountant": "rdp", "clip": 1.0, "hardened": False} | changes)
    )


def check_sentences(found):
    """A verdict of the form that files and people are promised."""
    assert set(found.usable_for) <= {"prediction", "intervals"}
    assert set(found.reasons) == {"prediction", "intervals"}
    for name, why in found.reasons.items():
        assert why[0].isupper()
        assert why.endswith(".")
        assert why.count(". ") == 0
        assert why.startswith("Yes") == (name in found.usable_for)
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    costs = {"relaxations", "predicted_inflation", "predicted_width", "clip_bias"}
    assert body.keys() == {"usable_for", "usable_for_reasons", *costs}
    assert (tuple(body["usable_for"]), body["usable_for_reasons"]) == (found.usable_for, found.reasons)
    assert verdict.Verdict.of_json(body) == found
    labels = {"relaxations": "relaxations", "predicted_inflation": "width", "clip_bias": "clip bias"}
    assert dict(found.lines()).keys() - {"usable for", "prediction", "intervals"} == {
        label for name, label in labels.items() if body[name] is not None
    }


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_for_prediction_and_noise_aware_ones_for_intervals_too(path):
    made = config.make_plan(config_file.load(path))
    check_sentences(made.verdict)
    uses = ["prediction", "intervals"] if "noise_aware" in path.stem else ["prediction"]
    assert made.usable_for == uses
    body = made.to_json()
    assert body["usable_for"] == uses
    assert set(body["usable_for_reasons"]) == {"prediction", "intervals"}
    text = dict(made.lines())
    assert text["usable for"] == " and ".join(uses)
    assert text["intervals"] == made.verdict.reasons["intervals"]
    assert "as asked" not in str(made)


def test_a_short_private_run_tells_its_relaxation_times():
    made = config.make_plan(config_file.load(next(p for p in CONFIGS if p.stem == "adult_temperature_one")))
    why = made.verdict.reasons["intervals"]
    assert f"{made.times[: made.burn_in].sum() / 0.19**2:.3g} relaxation times" in why
    assert "3 and 50 are needed" in why
    assert f"the budget buys {made.private_time / 0.19**2:.3g}" in why
    assert made.verdict.relaxations == pytest.approx(made.private_time / 0.19**2)
    assert made.verdict.clip_bias == "none"
    by_residual = config_file.load("adult_temperature_one", ["privacy.clipping=residual"])
    said = config.make_plan(by_residual).verdict
    assert "clipping at 0.5 biases" in said.reasons["intervals"]
    assert said.clip_bias == "likely"


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", TARGETS)
def test_every_registered_target_and_sampler_has_a_verdict(name, sampler):
    sizes = {"num_classes": 3} if name == "softmax_regression" else {}
    target = TARGETS[name](num_features=3, row_bound=1.0, **sizes)
    for privacy in (None, dpmcmc.Privacy(epsilon=1.0, delta=1e-5, accountant="rdp", clip=1.0)):
        made = dpmcmc.plan(target, num_records=1000, sampler=SAMPLERS[sampler](0.1), steps=200, privacy=privacy)
        check_sentences(made.verdict)
        assert made.usable_for == ["prediction"]


@pytest.mark.parametrize(
    "target",
    [CUSTOM, PerOwner(LOGISTIC, 2), from_numpyro(poisson_model), digits_network()],
    ids=["custom", "per_owner", "numpyro", "flax"],
)
def test_a_target_whose_facts_are_unknown_is_not_for_intervals(target):
    for privacy in (None, loose()):
        made = long_run(target, privacy)
        check_sentences(made.verdict)
        assert made.usable_for == ["prediction"]
        assert "unknown, since" in made.verdict.reasons["intervals"]


LINEAR = LinearRegression(num_features=3, row_bound=1.0, label_bound=1.0)
CANDIDATES = [Chain(dpmcmc.SGLD(s), steps=10) for s in (1.0, 4.0)]
MADE = {
    "ops": OPS(draws=200),
    "exponential": Exponential(radius=2.0),
    "hybrid": Hybrid(OPS(), dpmcmc.SGLD(1.0), steps=20, accountant="rdp"),
    "selection": PrivateSelection(CANDIDATES, loss_bound=2.0),
}
_LINEAR = ("sufficient_statistics", "adassp", "adaops")


@pytest.mark.parametrize("name", [*(name for name in MECHANISMS if name != "noise_aware"), "hybrid", "selection"])
def test_no_mechanism_but_the_noise_aware_one_is_for_intervals(name):
    mechanism = MADE[name] if name in MADE else MECHANISMS[name]()
    target = LINEAR if name in _LINEAR else LOGISTIC
    made = mechanism.plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
    check_sentences(made.verdict)
    assert made.usable_for == ["prediction"]
    assert made.to_json()["usable_for"] == ["prediction"]
    assert [label for label, _ in made.lines()].count("usable for") == 1


# Conditions for intervals, one at a time.


@pytest.mark.parametrize("privacy", [None, loose()], ids=["plain", "private"])
@pytest.mark.parametrize("sampler", [dpmcmc.SGLD(STEP), dpmcmc.SGHMC(STEP / 20, friction=0.1)], ids=["sgld", "sghmc"])
def test_a_long_unclipped_run_at_temperature_one_is_for_intervals(sampler, privacy):
    run = long_run(sampler=sampler, privacy=privacy, steps=2 * STEPS, burn_in=2 * BURN_IN)
    check_sentences(run.verdict)
    assert run.usable_for == ["prediction", "intervals"]
    if privacy is not None:
        assert "1, as asked" in dict(run.lines())["temperature"]


class Unknown(dpmcmc.SGLD):
    """A sampler whose author cannot say what temperature it keeps."""

    def temperature_at(self, noise_std, t):
        return np.nan * noise_std


WRONG = {
    "short": ({"steps": 3 * BURN_IN}, "relaxation times"),
    "burn-in": ({"burn_in": BURN_IN // 6}, "relaxation times"),
    "clip": ({"privacy": loose(clip=0.9, clipping="residual")}, "clipping at 0.9 biases"),
    "no gradient bound": (
        {
            "target": LogisticRegression(0.5, num_features=3),
            "curvature": 0.3,
            "privacy": loose(clipping="residual"),
        },
        "clipping at 1 may",
    ),
    "hot": ({"sampler": dpmcmc.SGLD(STEP, temperature=1.2)}, "temperature 1.2"),
    "cold": ({"sampler": dpmcmc.SGLD(STEP, temperature=0.8)}, "temperature 0.8"),
    "minibatches": ({"sampling": dpmcmc.Poisson(N / 2)}, "minibatches"),
    "long step": ({"sampler": dpmcmc.SGLD(2 * STEP)}, "stability limit"),
    "large curvature": ({"curvature": 1.0}, "stability limit"),
    "few draws": ({"thin": 100}, "13 draws"),
    "tempered": ({"target": Tempered(LOGISTIC, 0.5)}, "tempered"),
    "tempered within": ({"target": Tempered(Tempered(LOGISTIC, 0.5), 1.0)}, "tempered"),
    "unknown temperature": ({"sampler": Unknown(STEP)}, "temperature nan"),
    "thermostat": ({"sampler": dpmcmc.SGNHT(STEP / 20, friction=0.1), "steps": 4 * STEPS}, "finds its temperature"),
    "Fisher scoring": ({"sampler": dpmcmc.SGFS(STEP, fisher="public", public_fisher=0.1)}, "finds its temperature"),
    "metric": ({"sampler": dpmcmc.SGFS(STEP, metric=1.0)}, "metric"),
    "estimated noise": ({"sampler": dpmcmc.SGHMC(STEP, friction=0.9, minibatch_variance=0.1)}, "estimate"),
    "slow momentum": ({"sampler": dpmcmc.SGHMC(0.4 * STEP, friction=1e-3)}, "relaxation times"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_condition_alone_takes_intervals_away(name):
    changes, word = WRONG[name]
    made = long_run(**changes)
    check_sentences(made.verdict)
    assert "intervals" not in made.usable_for
    assert word in made.verdict.reasons["intervals"]
    assert "as asked" not in str(made)


def test_minibatches_of_a_bounded_gradient_are_allowed_for_where_their_noise_is_small():
    target = dataclasses.replace(LOGISTIC, row_bound=0.05)
    made = long_run(target, None, sampling=dpmcmc.Poisson(N / 2))
    assert "intervals" in made.usable_for


# Laws.


def test_more_records_or_budget_never_take_prediction_away():
    said = np.array(
        [
            [
                verdict._signal(dpmcmc.privacy.account(z, steps=1, sampling=dpmcmc.Full(), num_records=n, delta=1e-6,
                                                       accountant="rdp"), n, LOGISTIC)[0]
                for z in (1e4, 1e3, 1e2, 10.0, 1.0)
            ]
            for n in (3, 30, 300, 3000)
        ]
    )  # fmt: skip
    assert not said.all()
    assert said.any()
    assert np.all(np.diff(said.astype(int), axis=0) >= 0)
    assert np.all(np.diff(said.astype(int), axis=1) >= 0)


def test_hotter_draws_never_gain_prediction():
    said = ["prediction" in long_run(privacy=None, sampler=dpmcmc.SGLD(STEP, temperature=t)).usable_for
            for t in (1.0, 10.0, 100.0, 399.0, 401.0, 1e4)]  # fmt: skip
    assert said == [True, True, True, True, False, False]


def test_hopeless_plans_are_for_nothing():
    made = dpmcmc.plan(
        LOGISTIC, num_records=30, sampler=dpmcmc.SGLD(1.0), steps=10,
        privacy=dpmcmc.Privacy(epsilon=0.01, delta=1e-3, accountant="rdp"),
    )  # fmt: skip
    check_sentences(made.verdict)
    assert made.usable_for == []
    assert dict(made.lines())["usable for"] == "nothing"


def test_longer_runs_never_lose_intervals():
    said = ["intervals" in long_run(privacy=None, steps=BURN_IN + k * 300).usable_for for k in range(1, 8)]
    assert said == sorted(said)
    assert {False, True} == set(said)


# Results: what released draws add.

MIXED = {"ess": 100.0, "rhat": 1.01}


@pytest.mark.parametrize(
    ("shown", "word"),
    [
        ({"ess": 100.0, "rhat": 1.11}, "split R-hat is 1.11"),
        ({"ess": 19.0, "rhat": 1.0}, "effective sample size is 19"),
        ({"ess": None, "rhat": None}, "too few"),
    ],
)
def test_draws_that_have_not_mixed_take_intervals_away(shown, word):
    made = long_run()
    assert verdict.of_result(made, MIXED).usable_for == ("prediction", "intervals")
    found = verdict.of_result(made, shown)
    check_sentences(found)
    assert found.usable_for == ("prediction",)
    assert word in found.reasons["intervals"]


def test_draws_never_give_a_private_plan_intervals_that_it_did_not_have():
    for changes in (
        {"privacy": loose(clip=0.9, clipping="residual")},
        {"steps": 3 * BURN_IN},
        {"target": CUSTOM, "curvature": 0.4},
    ):
        made = long_run(**changes, chains=2)
        assert verdict.of_result(made, MIXED).usable_for == tuple(made.usable_for) == ("prediction",)


def test_without_privacy_several_chains_that_agree_show_the_mixing():
    one, two = (long_run(CUSTOM, None, curvature=0.4, chains=chains) for chains in (1, 2))
    assert one.usable_for == two.usable_for == ["prediction"]
    assert verdict.of_result(two, MIXED).usable_for == ("prediction", "intervals")
    assert verdict.of_result(two, MIXED | {"rhat": 1.5}).usable_for == ("prediction",)
    alone = verdict.of_result(one, MIXED)
    check_sentences(alone)
    assert "several chains" in alone.reasons["intervals"]
    # They show nothing of the step's own error.
    assert verdict.of_result(long_run(CUSTOM, None, chains=2), MIXED).usable_for == ("prediction",)


def test_results_and_plans_show_their_verdict_in_notebooks():
    made = dpmcmc.plan(LOGISTIC, num_records=1000, sampler=dpmcmc.SGLD(1.0), steps=8)
    draws = np.random.default_rng(0).normal(size=(1, 8, 3)).cumsum(axis=1)
    result = Result(made, draws, draws, None, None, {"compile": 1.0, "run": 1.0})
    check_sentences(result.verdict)
    assert result.usable_for == ["prediction"]
    for shown in (made._repr_html_(), result._repr_html_(), OPS().plan(
        LOGISTIC, num_records=1000, epsilon=1.0, delta=1e-5)._repr_html_()):  # fmt: skip
        assert shown.startswith("<table>")
        assert "usable for" in shown
        assert "<module>" not in shown
    hostile = dpmcmc.plan(Custom(init, CUSTOM.log_prior, CUSTOM.log_likelihood), num_records=9,
                          sampler=dpmcmc.SGLD(1.0), steps=8)  # fmt: skip
    assert "&lt;b&gt;" in hostile._repr_html_()
    assert "<b>" not in hostile._repr_html_()


def init(key):
    return jnp.zeros(3)


init.__qualname__ = "<b>"


# Costs of privacy, from public facts.


def test_a_chain_on_adult_buys_few_relaxations_of_the_prior():
    """facts of a scratch prototype: at ε = 1, C = 1 the budget buys .028 of a direction of curvature 1."""
    made = config.make_plan(config_file.load("adult", ["privacy.clip=1.0"]))
    assert made.verdict.relaxations == pytest.approx(0.028, rel=0.02)
    four = config.make_plan(config_file.load("adult", ["privacy.clip=1.0", "run.chains=4"]))
    assert four.verdict.relaxations == pytest.approx(made.verdict.relaxations / 4)
    assert four.verdict.predicted_inflation == pytest.approx(made.verdict.predicted_inflation)


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_relaxations_in_a_private_metric_follow_the_law(adjacency):
    """n = μ²(1 − g) c N/(2κ² d·chains), four times as much where a record only comes or goes."""
    count, size, chains, metric = 100_000, 10, 3, dpmcmc.PrivateMetric(share=0.2, clip_ratio=0.8)
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-6, clip=7.0, accountant="rdp", adjacency=adjacency)
    target = LinearRegression(prior_scale=1e3, num_features=size, row_bound=1.0, label_bound=1.0)
    made = long_run(target, privacy, num_records=count, chains=chains, metric=metric)
    mu = gaussian_mu(1.0, 1e-6) * (2 if adjacency == "add_remove" else 1)
    law = mu**2 * 0.8 * count / (2 * 0.8**2 * size * chains)
    assert made.verdict.relaxations == pytest.approx(law, rel=1e-4)


def test_relaxations_are_those_of_the_metric_that_was_released():
    rng, count, size = np.random.default_rng(0), 20_000, 4
    privacy = dpmcmc.Privacy(epsilon=3.0, delta=1e-6, accountant="rdp")
    target = LogisticRegression(num_features=size, row_bound=1.0)
    made = long_run(target, privacy, num_records=count, steps=8, burn_in=4, thin=1, metric=dpmcmc.PrivateMetric())
    found = []
    for spread in (np.ones(size), np.array([1.0, 1.0, 1.0, 0.01])):
        x = rng.normal(size=(count, size)) * spread
        x = (x / np.linalg.norm(x, axis=1, keepdims=True) * (1 - 1e-6)).astype(np.float32)
        result = dpmcmc.sample(made, {"x": x, "y": (rng.random(count) < 0.5).astype(np.int32)}, key=1)
        body = result.verdict.to_json()
        assert body["relaxations"] == pytest.approx(
            made.private_time * forecast.curvatures(made, result.metric).slowest
        )
        found.append(body["relaxations"])
    # The prediction supposes a metric in which all directions are alike. One that the rows do not have is slower.
    assert found[0] == pytest.approx(made.verdict.relaxations, rel=0.1)
    assert found[1] < 0.7 * found[0]


def test_predicted_inflation_is_that_of_the_noise_aware_posterior():
    size, target = 5, LinearRegression(prior_scale=0.5, num_features=5, row_bound=2.0, label_bound=1.0)
    made = long_run(target, dpmcmc.Privacy(epsilon=0.5, delta=1e-6, accountant="rdp"), num_records=400, chains=2)
    # Gradients of burn-in tell nothing.
    h, noise = 400 * 4.0 / size, 4 / gaussian_mu(0.5, 1e-6) ** 2 * STEPS / (STEPS - BURN_IN)
    local = noise_aware.Local(h * np.eye(size), h * np.eye(size), np.zeros_like)
    release = noise_aware.Release(np.zeros(size), np.zeros(size), noise * np.eye(size))
    start = noise_aware.Gaussian(np.zeros(size), np.eye(size))
    honest = noise_aware.posterior(release, local, 4.0 * np.eye(size), start).covariance[0, 0]
    assert made.verdict.predicted_inflation == pytest.approx(honest * (4.0 + h), rel=1e-6)
    assert made.verdict.predicted_width == pytest.approx(made.verdict.predicted_inflation**0.5)
    assert made.verdict.predicted_inflation > 1.5


def test_predicted_width_in_a_released_metric_is_that_of_its_posterior():
    """(P + H(B + V + E)⁻¹H)⁻¹ beside (P + H₀)⁻¹, and for directions that are alike the plan's law of one of them."""
    rng, count, size = np.random.default_rng(0), 20_000, 4
    target = LogisticRegression(num_features=size, row_bound=1.0)
    settings = {"num_records": count, "steps": 8, "burn_in": 4, "thin": 1, "metric": dpmcmc.PrivateMetric()}
    made = long_run(target, dpmcmc.Privacy(epsilon=0.3, delta=1e-6, accountant="rdp"), **settings)
    std, clip = made.metric.release.noise_std, made.privacy.clip
    known = forecast.curvatures(made)
    gram = count / size * np.eye(size) + std * noise_aware.symmetric_noise(rng, size)
    noisy = NoisyGram(gram, std, float(np.trace(gram)), 0.0)
    metric = ReleasedMetric("gram", noisy, count, 1.0, clip, made.metric.asked.ratio)
    found = forecast.inflation(made, known, metric)
    assert found == pytest.approx(made.verdict.predicted_inflation, rel=0.05)
    assert found > 1.2
    # A direction that the records say nothing of keeps its prior, private or not.
    rare = noisy._replace(gram=np.diag([1.0, 1.0, 1.0, 1e-9]) * count / 3)
    with_rare = ReleasedMetric("gram", rare, count, 1.0, clip, made.metric.asked.ratio)
    assert forecast.inflation(made, known, with_rare) < found
    assert "about" in dict(made.verdict.lines())["width"]
    assert "ideal" in dict(made.verdict.lines())["width"]


def test_more_budget_or_records_never_cost_more():
    def cost(epsilon, count):
        privacy = dpmcmc.Privacy(epsilon=epsilon, delta=1e-7, accountant="rdp")
        return long_run(privacy=privacy, num_records=count).verdict.predicted_inflation

    costs = np.array([[cost(epsilon, count) for epsilon in (0.1, 1.0, 10.0)] for count in (100, 10_000, 1_000_000)])
    assert np.all(np.diff(costs, axis=1) < 0)
    assert np.all(np.diff(costs[1:], axis=0) < 0)
    # At few records the prior is all that anybody has.
    assert np.all(costs >= 1)


def test_label_blind_weights_take_no_intervals_away():
    made = long_run(privacy=loose(clip=0.9), sampler=dpmcmc.SGLD(STEP / 2), steps=2 * STEPS, burn_in=2 * BURN_IN)
    assert made.label_blind
    assert "intervals" in made.usable_for
    by_residual = dataclasses.replace(made, privacy=loose(clip=0.9, clipping="residual"))
    assert "intervals" not in by_residual.usable_for


# A warning of its own.


SMALL = {"x": np.full((N, 3), 0.5, np.float32), "y": np.arange(N) % 2}


@pytest.mark.slow
def test_sampling_warns_once_where_a_private_run_is_not_for_intervals():
    short = long_run(privacy=loose(epsilon=1.0), steps=10, burn_in=0, thin=1)
    with pytest.warns(dpmcmc.NotForIntervals) as seen:
        dpmcmc.sample(short, SMALL, key=0)
    assert [warning.filename for warning in seen] == [__file__]
    said = str(seen[0].message)
    for words in (short.verdict.reasons["intervals"], "mechanism noise_aware", "dpmcmc.PrivateMetric()"):
        assert words in said
    custom = long_run(CUSTOM, loose(), steps=10, burn_in=0, thin=1)
    with pytest.warns(dpmcmc.NotForIntervals, match="no private intervals of Custom are offered yet") as seen:
        dpmcmc.sample(custom, SMALL, key=0)
    assert "PrivateMetric" not in str(seen[0].message)
    hybrid = Hybrid(OPS(), dpmcmc.SGLD(1.0), steps=20, accountant="rdp")
    with pytest.warns(dpmcmc.NotForIntervals) as seen:
        dpmcmc.sample(hybrid.plan(LOGISTIC, num_records=N, epsilon=1.0, delta=1e-3), SMALL, key=0)
    assert len(seen) == 1


def test_the_warning_names_the_path_only_where_it_leads_to_intervals():
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-6, accountant="rdp")
    linear = LinearRegression(num_features=3, row_bound=1.0, label_bound=1.0)
    logistic = LogisticRegression(num_features=3, row_bound=1.0)
    second = dpmcmc.PrivateMetric("second_moment")
    cases = (
        (logistic, dpmcmc.PrivateMetric(), "or this run's result.noise_aware()."),
        (logistic, second, "or this run's result.noise_aware(gram=...)"),
        (logistic, None, "(metric=dpmcmc.PrivateMetric()) and then result.noise_aware()."),
        (linear, dpmcmc.PrivateMetric(), "NoiseAware)."),
        (linear, None, "NoiseAware)."),
    )
    for target, metric, said in cases:
        made = long_run(target, privacy, num_records=10_000, steps=40, burn_in=0, thin=1, metric=metric)
        with pytest.warns(dpmcmc.NotForIntervals) as seen:
            verdict.warn_unless_for_intervals(made)
        assert said in str(seen[0].message)


def test_the_warning_comes_before_a_record_is_read():
    short = long_run(privacy=loose(epsilon=1.0), steps=10, burn_in=0, thin=1)
    with pytest.warns(dpmcmc.NotForIntervals), pytest.raises(ValueError, match="num_records 20"):
        dpmcmc.sample(short, {"x": SMALL["x"][:3], "y": SMALL["y"][:3]})


def test_runs_that_need_no_warning_give_none():
    long = long_run(steps=2 * STEPS, burn_in=2 * BURN_IN)
    plain, one_draw = long_run(privacy=None, steps=10, burn_in=0, thin=1), long_run(steps=10, burn_in=0, thin=10)
    exact = OPS().plan(LOGISTIC, num_records=N, epsilon=1.0, delta=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (long, plain, one_draw, exact):
            verdict.warn_unless_for_intervals(made)
        noise_aware_plan = MECHANISMS["noise_aware"]().plan(LOGISTIC, num_records=1000, epsilon=1.0, delta=1e-5)
        verdict.warn_unless_for_intervals(noise_aware_plan)


# A verdict for intervals is true.


def simulate(made, repeats):
    """Data sets drawn from prior and model: (coverage of 90 % intervals, mean width, share said to be for intervals).

    The coverage is that of the results that are said to be for intervals, of all where none is.
    """
    rng, hit, width, said = np.random.default_rng(0), [], [], []
    count, scale = made.num_records, made.target.prior_scale
    for repeat in range(repeats):
        theta = rng.normal(size=3) * scale
        x = rng.normal(size=(count, 3))
        x = (x / np.linalg.norm(x, axis=1, keepdims=True) * (1 - 1e-6)).astype(np.float32)
        y = (rng.random(count) < 1 / (1 + np.exp(-x @ theta))).astype(np.int32)
        result = dpmcmc.sample(made, {"x": x, "y": y}, key=repeat)
        draws = np.asarray(result.draws).reshape(-1, 3)
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        hit.append((low <= theta) & (theta <= high))
        width.append(high - low)
        said.append("intervals" in result.usable_for)
    counted = np.array(hit)[said] if any(said) else np.array(hit)
    return float(np.mean(counted)), float(np.mean(width)), float(np.mean(said))


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [None, loose()], ids=["plain", "private"])
@pytest.mark.parametrize("sampler", [dpmcmc.SGLD(STEP), dpmcmc.SGHMC(STEP / 20, friction=0.1)], ids=["sgld", "sghmc"])
def test_intervals_cover_where_a_plan_says_so(sampler, privacy):
    """.88 is due at the edge of the conditions; 180 intervals of 60 data sets have a standard error of .024."""
    steps = interval_conditions.BURN_IN + interval_conditions.SPAN
    probe = long_run(sampler=sampler, privacy=privacy, steps=2 * STEPS)
    per_step = float(probe.times[0]) * PRECISION
    burn_in = int(interval_conditions.BURN_IN / per_step) + 1
    made = long_run(sampler=sampler, privacy=privacy, steps=burn_in + int(steps / per_step), burn_in=burn_in)
    assert "intervals" in made.usable_for
    coverage, width, said = simulate(made, 60)
    assert said > 0.6
    assert 0.83 <= coverage <= 0.96
    # The prior alone would cover too, at this width.
    assert width < 0.97 * 2 * 1.645 * PRECISION**-0.5


@pytest.mark.optimised  # most of it is steps
@pytest.mark.slow
@pytest.mark.parametrize(("clip", "usable"), [(0.5, True), (0.3, False)])
def test_label_blind_weights_make_intervals_as_wide_as_is_said(clip, usable):
    """Every weight is below 1 at either clip. 120 intervals have a standard error of .027 at .9."""
    wide, count = LogisticRegression(prior_scale=2.0, num_features=3, row_bound=1.0), 60
    settings = {"num_records": count, "sampler": dpmcmc.SGLD(0.18), "steps": 71_000, "burn_in": 4_000, "thin": 134}
    made = long_run(
        wide, dpmcmc.Privacy(epsilon=400.0, delta=1e-3, accountant="rdp", clip=clip, hardened=False), **settings
    )
    assert ("intervals" in made.usable_for) == usable
    if not usable:
        assert "times too wide" in made.verdict.reasons["intervals"]
    coverage, _, _ = simulate(made, 40)
    assert (0.86 if usable else 0.95) <= coverage <= (0.98 if usable else 1.0)


@pytest.mark.exhaustive
def test_intervals_cover_where_only_the_draws_show_the_mixing():
    """Data that say much about every direction: a plan cannot know that, and R-hat of two chains shows it."""
    wide, count = LogisticRegression(prior_scale=3.0, num_features=3, row_bound=1.0), 400
    made = long_run(wide, None, num_records=count, sampler=dpmcmc.SGLD(0.35), steps=12000, burn_in=500, chains=2)
    assert made.usable_for == ["prediction"]
    coverage, _, said = simulate(made, 60)
    assert said > 0.6
    assert 0.83 <= coverage <= 0.96


@pytest.mark.slow
def test_intervals_do_not_cover_where_a_plan_warns():
    hot = long_run(sampler=dpmcmc.SGLD(STEP, temperature=9.0), steps=2000)
    short = long_run(steps=BURN_IN, burn_in=0, thin=1, sampler=dpmcmc.SGLD(STEP / 30))
    for made, low, high in ((hot, 0.98, 1.0), (short, 0.0, 0.7)):
        assert "intervals" not in made.usable_for
        assert low <= simulate(made, 20)[0] <= high
