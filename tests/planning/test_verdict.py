"""Uses that draws permit, as every plan and every result says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import dpmcmc
from dpmcmc import config
from dpmcmc.config import file as config_file
from dpmcmc.mechanisms import MECHANISMS, OPS, Chain, Hybrid, PrivateSelection
from dpmcmc.planning import verdict
from dpmcmc.samplers import SAMPLERS
from dpmcmc.targets import TARGETS, LinearRegression, LogisticRegression, PerOwner, from_numpyro
from dpmcmc.targets.shipped_models import digits_network, poisson_model
from dpmcmc.targets.tempered import Tempered
from tests.long_runs import BURN_IN, CUSTOM, LOGISTIC, STEP, STEPS, N, check_sentences, long_run, loose

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_for_prediction_and_noise_aware_ones_for_intervals_too(path):
    made = config.make_plan(config_file.load(path))
    check_sentences(made.verdict)
    posterior = "noise_aware" in path.stem or path.stem in (
        "adult",
        "adult_sghmc",
        "adult_sgnht",
        "adult_sgfs",
        "adult_labels",
    )
    uses = ["prediction", "intervals"] if posterior else ["prediction"]
    assert made.usable_for == uses
    body = made.describe().stated
    assert body["usable_for"] == uses
    assert set(body["usable_for_reasons"]) == {"prediction", "intervals"}
    text = dict(made.describe().lines)
    assert text["usable for"] == " and ".join(uses)
    assert text["intervals"] == made.verdict.reasons["intervals"]
    assert "as asked" not in str(made) or made.verdict.from_path  # a hot path leads to a posterior that is not


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", TARGETS)
def test_every_registered_target_and_sampler_has_a_verdict(name, sampler):
    sizes = {"num_classes": 3} if name == "softmax_regression" else {}
    target = TARGETS[name](num_features=3, row_bound=1.0, **sizes)
    chosen = SAMPLERS[sampler](*(("adam", 0.1) if sampler == "optax" else (0.1,)))
    for privacy in (None, dpmcmc.Privacy(epsilon=1.0, delta=1e-5, accountant="rdp", clip=1.0)):
        made = dpmcmc.plan(target, num_records=1000, sampler=chosen, steps=200, privacy=privacy)
        check_sentences(made.verdict)
        assert made.usable_for == ["prediction"]


@pytest.mark.parametrize(
    "target",
    [CUSTOM, PerOwner(LOGISTIC, 2), from_numpyro(poisson_model), digits_network()],
    ids=["custom", "per_owner", "numpyro", "flax"],
)
def test_a_target_whose_facts_are_unknown_is_not_for_intervals(target):
    for privacy in (None, loose(epsilon=35.0)):
        made = long_run(target, privacy)
        check_sentences(made.verdict)
        assert made.usable_for == ["prediction"]
        assert "unknown, since" in made.verdict.reasons["intervals"]


LINEAR = LinearRegression(num_features=3, row_bound=1.0, label_bound=1.0)
CANDIDATES = [Chain(dpmcmc.SGLD(s), steps=10) for s in (1.0, 4.0)]
MADE = {
    "ops": OPS(draws=200),
    "hybrid": Hybrid(OPS(), dpmcmc.SGLD(1.0), steps=20, accountant="rdp"),
    "selection": PrivateSelection(CANDIDATES, loss_bound=2.0),
}
_LINEAR = ("sufficient_statistics", "adassp")


@pytest.mark.parametrize("name", [*(name for name in MECHANISMS if name != "noise_aware"), "hybrid", "selection"])
def test_no_mechanism_but_the_noise_aware_one_is_for_intervals(name):
    mechanism = MADE[name] if name in MADE else MECHANISMS[name]()
    target = LINEAR if name in _LINEAR else LOGISTIC
    made = mechanism.plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
    check_sentences(made.verdict)
    assert made.usable_for == ["prediction"]
    assert made.describe().stated["usable_for"] == ["prediction"]
    assert [label for label, _ in made.describe().lines].count("usable for") == 1


@pytest.mark.parametrize("privacy", [None, loose()], ids=["plain", "private"])
@pytest.mark.parametrize(
    ("sampler", "times"),
    [(dpmcmc.SGLD(STEP), 1), (dpmcmc.SGHMC(STEP / 20, friction=0.1), 2)],
    ids=["sgld", "sghmc"],
)
def test_a_long_unclipped_run_at_temperature_one_is_for_intervals(sampler, times, privacy):
    run = long_run(sampler=sampler, privacy=privacy, steps=times * STEPS, burn_in=times * BURN_IN)
    check_sentences(run.verdict)
    assert run.usable_for == ["prediction", "intervals"]
    if privacy is not None:
        assert "1, as asked" in dict(run.describe().lines)["temperature"]


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


def test_more_records_or_budget_never_take_prediction_away():
    said = np.array(
        [
            [
                verdict._signal(dpmcmc.privacy.account(z, steps=1, sampling=dpmcmc.Full(), num_records=n, delta=1e-6,
                                                       accountant="rdp"), n, LOGISTIC).usable
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
    assert dict(made.describe().lines)["usable for"] == "nothing"


def test_longer_runs_never_lose_intervals():
    said = ["intervals" in long_run(privacy=None, steps=BURN_IN + k * 300).usable_for for k in range(1, 8)]
    assert said == sorted(said)
    assert {False, True} == set(said)


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
