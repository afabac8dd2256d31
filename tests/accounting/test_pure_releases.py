"""Pure releases beside others, against closed forms and an independent accountant."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as independent

from dpmcmc.cli.commands import main
from dpmcmc.errors import InputError
from dpmcmc.mechanisms import (
    OPS,
    CertifiedOPS,
    NoiseAware,
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateSelection,
)
from dpmcmc.privacy import Event, Guarantee, Poisson, UnsupportedCombination
from dpmcmc.privacy.accounting import pure
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.gaussian import gaussian_delta
from dpmcmc.targets import LogisticRegression


def guarantee(*events, accountant="pld", delta=1e-5):
    drawn = {"pure", "posterior_draw"} & {e.mechanism for e in events}
    release = "one_sample" if drawn else "estimate"
    return Guarantee.from_events(events, delta=delta, adjacency="replace_one", accountant=accountant, release=release)


def one(epsilon, count=1):
    return Event("pure", 0.0, 1.0, count, epsilon=epsilon)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "advanced", "one_sample", "last_iterate"])
def test_alone_it_costs_its_epsilon(accountant):
    value = guarantee(one(1.5), accountant=accountant).epsilon
    assert value <= 1.5
    # What δ buys: p(1 − e^{ε − ε₁}) = δ.
    assert value == pytest.approx(1.5 + math.log1p(-1e-5 * (1 + math.exp(-1.5))), rel=1e-5)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_several_against_an_independent_accountant(count, epsilon):
    from dp_accounting.pld import common

    losses = independent.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, 0.0), value_discretization_interval=1e-4
    ).self_compose(count)
    for at in (0.05, 0.3 * epsilon * count, 0.8 * epsilon * count):
        expected = losses.get_delta_for_epsilon(at)
        assert guarantee(one(epsilon, count)).delta_at(at) == pytest.approx(expected, rel=2e-3, abs=1e-9)


@pytest.mark.parametrize("z", [1.0, 8.0])
def test_beside_a_gaussian_against_an_independent_accountant(z):
    from dp_accounting.pld import common

    interval = 1e-4
    losses = independent.from_gaussian_mechanism(z / 2, value_discretization_interval=interval).compose(
        independent.from_privacy_parameters(
            common.DifferentialPrivacyParameters(0.7, 0.0), value_discretization_interval=interval
        )
    )
    both = guarantee(Event("gaussian", z, 1.0, 1), one(0.7))
    for at in (0.2, 1.0, 2.0):
        assert both.delta_at(at) == pytest.approx(losses.get_delta_for_epsilon(at), rel=5e-3, abs=1e-9)
    assert both.epsilon <= guarantee(Event("gaussian", z, 1.0, 1)).epsilon + 0.7


def test_beside_minibatch_steps():
    run = account(2.0, steps=200, sampling=Poisson(50), num_records=10_000, delta=1e-5)
    both = guarantee(one(0.5)).compose(run)
    assert both.release == "one_sample + trace"
    assert run.epsilon < both.epsilon < run.epsilon + 0.5 + 1e-6
    assert both.delta_at(both.epsilon) <= 1e-5 * (1 + 1e-6)
    again = Guarantee.from_json(both.to_json())
    assert again.epsilon == pytest.approx(both.epsilon)


def test_negative_epsilon_of_the_rest_is_used():
    """A mixture without it would be too large: at ε = ε₁ half of the mass asks for δ(0) and more."""
    rest = lambda e: gaussian_delta(1.0, e)  # noqa: E731
    value = pure.mixed([one(2.0)], rest, 1.0)
    p = math.exp(2) / (1 + math.exp(2))
    assert value == pytest.approx(p * (1 - math.exp(-1) * (1 - rest(1.0))) + (1 - p) * rest(3.0))


def test_too_many_different_losses_are_summed():
    events = [one(0.01 * (1 + k / 7), 20) for k in range(6)]
    assert guarantee(*events).epsilon == pytest.approx(pure.total(events), rel=1e-4)


def test_deviation_costs_as_batch_overflow_does():
    alone = guarantee(Event("posterior_draw", 10.0, 1.0, 1))
    off = guarantee(Event("posterior_draw", 10.0, 1.0, 1), Event("approximate_draw", 0.0, 1e-6, 1))
    e = alone.epsilon
    assert off.delta_at(e) == pytest.approx(1e-5 + (1 + math.exp(e)) * 1e-6, rel=1e-3)
    assert off.epsilon > e


def test_draws_compose_as_gaussians():
    four = guarantee(Event("posterior_draw", 10.0, 1.0, 4))
    assert four.delta_at(0.5) == pytest.approx(gaussian_delta(2 * 2 / 10.0, 0.5), rel=1e-6)


def test_objective_perturbation_needs_its_own_accountant():
    with pytest.raises(UnsupportedCombination, match="one_sample"):
        guarantee(Event("objective_perturbation", 10.0, 1.0, 1, epsilon=0.1))


@pytest.mark.parametrize("bad", [{"epsilon": None}, {"epsilon": -1.0}, {"epsilon": math.inf}])
def test_impossible_events_are_refused(bad):
    with pytest.raises(ValueError, match="epsilon"):
        Event("pure", 0.0, 1.0, 1, **bad)
    with pytest.raises(ValueError, match="contraction"):
        Event("noisy_descent", 1.0, 1.0, 1, steps=3, contraction=1.0)


@pytest.mark.parametrize(
    ("event", "release", "says"),
    [
        (Event("posterior_draw", 1.0, 1.0, 1), "trace", "one_sample"),
        (Event("noisy_descent", 1.0, 1.0, 1, steps=3, contraction=0.5), "trace", "last_iterate"),
        (Event("gaussian", 1.0, 1.0, 1), "one_sample", "no posterior draw"),
        (Event("gaussian", 1.0, 1.0, 1), "last_iterate", "no descent"),
        (Event("approximate_draw", 0.0, 1e-6, 1), "one_sample", "no posterior draw"),
    ],
)
def test_a_label_that_does_not_fit_the_events_is_refused(event, release, says):
    with pytest.raises(UnsupportedCombination, match=says):
        Guarantee.from_events((event,), delta=1e-5, adjacency="replace_one", accountant="pld", release=release)


@pytest.mark.parametrize("mechanism", ["gaussian", "posterior_draw"])
@pytest.mark.parametrize("bad", [{"rate": 0.0}, {"rate": 0.5}, {"count": 0.5}])
def test_events_that_would_be_dropped_are_refused(mechanism, bad):
    fields = {"noise_multiplier": 1.0, "rate": 1.0, "count": 1} | bad
    with pytest.raises(ValueError, match=next(iter(bad))):
        Event(mechanism, **fields)


# Mechanisms whose release is pure keep a promise at δ = 0, and say so; all others refuse it by name.

ASKED = {"num_records": 500, "epsilon": 1.0, "delta": 0.0}
LOGISTIC = LogisticRegression(num_features=2, row_bound=1.0)
PURE = {
    "ops_range": OPS(form="range", radius=2.0, draws=3),
}
NOT_PURE = {
    "ops_gdp": OPS(form="gdp", prior_precision=1.0),
    "near": OPS(form="range", radius=2.0, total_variation=1e-9),
    "noise_aware": NoiseAware(),
    "certified_ops": CertifiedOPS(steps=3),
    "objective": ObjectivePerturbation(),
    "output": OutputPerturbation(),
    "selection": PrivateSelection([OPS(form="range", radius=2.0)] * 2, loss_bound=1.0),
}


@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
@pytest.mark.parametrize("name", PURE)
def test_a_pure_mechanism_keeps_its_promise_at_delta_0(name, adjacency):
    plan = PURE[name].plan(LOGISTIC, adjacency=adjacency, **ASKED)
    assert plan.guarantee.delta == 0.0
    assert 0.99 < plan.guarantee.epsilon <= 1.0 + 1e-12
    assert str(plan.guarantee).startswith("(1, 0)-DP, ")
    again = Guarantee.from_json(json.loads(json.dumps(plan.guarantee.to_json())))
    assert (again.epsilon, again.delta) == (plan.guarantee.epsilon, 0.0)
    assert plan.guarantee.compose(plan.guarantee).epsilon == pytest.approx(2.0)
    assert plan.usable_for == ["prediction"]
    at_delta = PURE[name].plan(LOGISTIC, adjacency=adjacency, **ASKED | {"delta": 1e-6})
    assert at_delta.settings == plan.settings  # δ buys nothing


@pytest.mark.parametrize("name", NOT_PURE)
def test_a_mechanism_that_is_not_pure_refuses_delta_0_by_name(name):
    with pytest.raises(InputError, match=rf"^delta: 0 .*{type(NOT_PURE[name]).__name__}") as refused:
        NOT_PURE[name].plan(LOGISTIC, **ASKED)
    assert refused.value.about == "delta"


def test_a_pure_guarantee_has_a_gaussian_trade_off_below_it():
    for total in (0.1, 1.0, 3.0):
        pure = guarantee(one(total / 2, 2), accountant="one_sample", delta=0.0)
        found = pure.gdp()
        assert (found.slack, found.deviation) == (0.0, 0.0)
        # The largest δ of ε-DP, 1 − (1 + e^e)/(1 + e^ε), at one release; it is attained by no other.
        for e in np.linspace(0, 1.2 * total, 50):
            assert pure.delta_at(float(e)) <= max(0.0, 1 - (1 + math.exp(e)) / (1 + math.exp(total))) + 1e-12
            assert pure.delta_at(float(e)) <= gaussian_delta(found.mu, float(e)) + 1e-12
    less = guarantee(one(1.0), accountant="one_sample", delta=0.0)
    assert any(less.delta_at(e) > gaussian_delta(0.98 * less.gdp().mu, e) for e in np.linspace(0, 1, 50))


@pytest.mark.slow
def test_a_pure_run_is_charged_verified_and_shown_at_delta_0(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("pure.yaml").write_text(
        "name: pure\ndata: {name: two_normals}\ntarget: {name: logistic_regression}\n"
        "mechanism: {name: ops, form: range, radius: 2.0}\nprivacy: {epsilon: 1.0, delta: 0, ledger: budget}\n"
    )
    assert main(["ledger", "init", "budget", "--epsilon", "2", "--delta", "1e-5"]) == 0
    assert main(["run", "pure.yaml", "--out", "run", "--quiet"]) == 0
    assert json.loads(Path("run/privacy.json").read_text())["delta"] == 0.0
    assert "at δ = 0" in Path("run/report.html").read_text()
    capsys.readouterr()
    for more in ([], ["--group", "2"], ["--delta", "1e-5"]):
        assert main(["verify", "run", *more]) == 0
        assert "(1, 0)-DP" in capsys.readouterr().out
    assert main(["run", "pure.yaml", "--out", "again", "--quiet"]) == 2
    assert "budget" in capsys.readouterr().err
