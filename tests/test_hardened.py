"""Hardened plans: keys of the right kind, what integer noise is charged, and what a file of it must state."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import dump, make_plan
from dpmcmc.config.file import load
from dpmcmc.engine.sweep import sample_all
from dpmcmc.mechanisms import OutputPerturbation, SufficientStatistics
from dpmcmc.planning import noise
from dpmcmc.privacy.accounting import discrete_gaussian
from dpmcmc.privacy.accounting.charging import DRAW_SHARE
from dpmcmc.privacy.query import randomness
from dpmcmc.privacy.query.randomness import SecretKey, streams_of
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.report.page import privacy_json
from tests.hardened import DATA, LINEAR, LOGISTIC, D, N, make, without


@pytest.fixture(scope="module", name="plans")
def _plans():
    return {hardened: make(hardened) for hardened in (False, True)}


@pytest.mark.slow
def test_fresh_keys_are_of_the_plans_generator(plans):
    for hardened in (False, True):
        streams, secret = streams_of(None, hardened)
        assert secret
        assert all(randomness.is_chacha(key) == hardened for key in streams)
        assert jax.random.key_data(streams.noise).size == (8 if hardened else 2)
    a, b = (dpmcmc.sample(plans[True], DATA) for _ in range(2))
    assert a.guarantee == plans[True].guarantee
    assert not np.array_equal(a.draws, b.draws)


def test_a_secret_key_of_the_other_generator_is_refused_and_stays_unused(plans):
    assert SecretKey().fits(True)
    assert SecretKey().fits(False)
    for hardened in (False, True):
        key = SecretKey(hardened=not hardened)
        with pytest.raises(ValueError, match="other generator"):
            dpmcmc.sample(plans[hardened], DATA, key=key)
        with pytest.raises(ValueError, match="other generator"):
            sample_all([plans[hardened]], DATA, keys=[key])
        key.streams()
        with pytest.raises(ValueError, match="has been used"):
            streams_of(key, not hardened)


@pytest.mark.slow
def test_seeds_reproduce_with_chacha_and_without_a_guarantee(plans):
    runs = [dpmcmc.sample(plans[True], DATA, key=key) for key in (3, 3, 4, jax.random.key(9), jax.random.key(9))]
    assert all(run.guarantee is None for run in runs)
    np.testing.assert_array_equal(runs[0].draws, runs[1].draws)
    np.testing.assert_array_equal(runs[3].draws, runs[4].draws)
    assert not np.array_equal(runs[0].draws, runs[2].draws)
    assert all(randomness.is_chacha(key) for seed in (3, jax.random.key(3)) for key in streams_of(seed, True)[0])


@pytest.mark.slow
def test_a_sweep_is_the_single_runs():
    # Full batches: a Poisson plan's draws depend on the room that its program has for a batch.
    plans = [make(epsilon=epsilon, sampling=dpmcmc.Full()) for epsilon in (2.0, 1.0)]
    together = sample_all(plans, DATA, keys=[3, 5])
    for plan, key, result in zip(plans, (3, 5), together, strict=True):
        np.testing.assert_allclose(result.draws, dpmcmc.sample(plan, DATA, key=key).draws, atol=1e-5)
    assert not np.allclose(together[0].draws, together[1].draws)


def test_integer_noise_costs_its_deviation_and_no_more(plans):
    standard, hardened = plans[False].guarantee, plans[True].guarantee
    (draw,) = (e for e in hardened.events if e.mechanism == "approximate_draw")
    assert draw.count == D * 12 * 2
    assert draw.rate >= discrete_gaussian.deviation(plans[True].levels[0])
    assert [e for e in hardened.events if e != draw] == list(standard.events)
    assert standard.epsilon <= hardened.epsilon <= min(standard.epsilon * (1 + 1e-6), 2.0)
    again = dpmcmc.Guarantee.from_json(hardened.to_json())
    assert again.epsilon == hardened.epsilon
    assert plans[False].levels == (0, 0)
    assert set(plans[True].guarantee.cross_check()) == {"advanced", "rdp", "pld"}


def test_full_batches_and_closed_form_meet_their_target():
    target = dpmcmc.targets.LogisticRegression(num_features=D)
    common = {"num_records": N, "sampler": dpmcmc.SGLD(step_size=1.0), "steps": 4}
    for sampling, privacy in (
        (dpmcmc.Full(), {}),
        (dpmcmc.FixedSize(4), {"calibrator": "closed_form", "accountant": "advanced"}),
    ):
        plans = [
            dpmcmc.plan(
                target,
                sampling=sampling,
                privacy=dpmcmc.Privacy(epsilon=0.01, delta=1e-5, hardened=hardened, **privacy),
                **common,
            )
            for hardened in (False, True)
        ]
        assert plans[1].guarantee.epsilon <= 0.01
        # Nothing but the deviation's own share of δ: no noise is spent on it.
        assert plans[1].required_multiplier == pytest.approx(plans[0].required_multiplier, rel=1e-3)


@pytest.mark.slow
def test_a_second_moment_is_charged_by_the_entry():
    sampler = dpmcmc.SGFS(step_size=0.01, fisher="query", noise_ratio=3.0)
    plan = make(sampler=sampler)
    assert isinstance(plan.second, SecondMoment)
    assert min(plan.levels) >= 3
    (draw,) = (e for e in plan.guarantee.events if e.mechanism == "approximate_draw")
    assert draw.count >= (D + D * (D + 1) // 2) * 12 * 2
    assert np.all(np.isfinite(dpmcmc.sample(plan, DATA, key=0).draws))


def test_an_epsilon_at_which_the_deviation_shows_is_taken_for_the_largest_at_which_it_does_not():
    hot = dpmcmc.SGLD(step_size=1e6)
    plan = make(epsilon=1000.0, sampler=hot)
    (draw,) = plan.schedule.deviations
    spent = discrete_gaussian.price(draw, plan.privacy.epsilon)
    assert spent == pytest.approx(DRAW_SHARE * 1e-5, rel=1e-6)
    assert 30 < plan.guarantee.epsilon <= plan.privacy.epsilon < 60
    assert "epsilon 1000 was asked for" in dict(plan.lines())["note"]
    in_metric = make(epsilon=1000.0, sampler=hot, target=LOGISTIC, metric=dpmcmc.PrivateMetric("gram"))
    assert 30 < in_metric.guarantee.epsilon <= in_metric.privacy.epsilon <= plan.privacy.epsilon
    assert "epsilon 1000 was asked for" in in_metric.note
    assert discrete_gaussian.price(*in_metric.schedule.deviations, in_metric.privacy.epsilon) <= DRAW_SHARE * 1e-5
    assert "note" not in dict(make().lines())
    assert 900 < make(False, epsilon=1000.0, sampler=hot).guarantee.epsilon <= 1000
    with pytest.raises(dpmcmc.privacy.UnsupportedCombination, match="hardened: false"):
        make(epsilon=None, sampler=hot, privacy={"calibrator": "free"})
    assert DRAW_SHARE < 1e-3


def test_left_open_it_is_integers_where_they_are_proved_and_floats_that_are_named_beyond():
    hot, common = dpmcmc.SGLD(step_size=1e6), {"num_records": N, "delta": 1e-5}
    for plan, hardened in [
        (make(None), True),
        (make(None, epsilon=1000.0, sampler=hot), False),
        (make(None, epsilon=None, sampler=hot, privacy={"calibrator": "free"}), False),
        (make(None, epsilon=1000.0), True),  # the sampler's own noise is the same either way, and enough
        (OutputPerturbation().plan(LOGISTIC, epsilon=2.0, **common), True),
        (OutputPerturbation().plan(LOGISTIC, epsilon=500.0, **common), False),
    ]:
        assert plan.hardened is hardened
        lines = dict(plan.lines())
        assert ("noise from floats" in lines.get("note", "")) == ("unproved" in lines) == (not hardened)
        assert hardened or plan.guarantee.epsilon > 60


def test_a_delta_that_integer_noise_takes_whole_is_refused_with_a_way_out():
    common = {"num_records": N, "epsilon": 2.0}
    for release in (
        lambda: make(privacy={"delta": 1e-28}),
        lambda: make(epsilon=None, privacy={"delta": 1e-28, "calibrator": "free"}),
        lambda: OutputPerturbation().plan(LOGISTIC, delta=1e-22, hardened=True, **common),
        lambda: SufficientStatistics().plan(LINEAR, delta=1e-26, hardened=True, **common),
    ):
        with pytest.raises(ValueError, match="at any epsilon; take a larger delta, or ask for hardened: false"):
            release()
    assert OutputPerturbation().plan(LOGISTIC, delta=1e-22, hardened=False, **common).guarantee.delta == 1e-22


def test_a_target_whose_shape_is_not_known_is_charged_for_a_million_numbers():
    known, unknown = make(), make(target=dpmcmc.targets.LogisticRegression())
    assert unknown.coordinates == 10**6
    assert known.guarantee.epsilon <= unknown.guarantee.epsilon <= known.guarantee.epsilon * (1 + 1e-9)


def test_verify_wants_the_deviations_of_a_hardened_run(plans, tmp_path, capsys):
    path = tmp_path / "privacy.json"
    plan = plans[True]
    body = privacy_json(plan, plan.guarantee)

    def verified(content) -> int:
        path.write_text(json.dumps(content))
        return main(["verify", str(path)])

    assert verified(body) == 0
    for mechanism in ("approximate_draw", "batch_overflow"):
        assert verified(without(body, mechanism)) == 1
        assert mechanism in capsys.readouterr().err
    for name in ("rate", "count"):
        small = json.loads(json.dumps(body))
        for event in small["events"]:
            if event["mechanism"] in ("approximate_draw", "batch_overflow"):
                event[name] = 0 if name == "count" else event[name] / 2
        assert verified(small) == 1
    for name in ("hardened", "coordinates", "sampling"):
        assert verified({key: value for key, value in body.items() if key != name}) == 2
    assert verified(body | {"sampling": body["sampling"] | {"slots": plan.slots - 5}}) == 1
    standard = plans[False]
    assert verified(privacy_json(standard, standard.guarantee)) == 0


def test_verify_refuses_a_trace_without_a_query(plans, tmp_path, capsys):
    body = plans[True].guarantee.to_json()
    nothing = {"mechanism": "approximate_draw", "noise_multiplier": 0.0, "rate": 0.0, "count": 1}
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(body | {"events": [nothing], "epsilon": 0.0}))
    assert main(["verify", str(path)]) == 1
    assert "charges no query" in capsys.readouterr().err
    path.write_text(json.dumps(body))
    assert main(["verify", str(path)]) == 0
    assert "unchecked" in capsys.readouterr().out


def test_noise_too_small_for_integers_is_refused():
    # One quiet step among loud ones, whose noise takes the grid's fine end away.
    quiet = np.array([0.002, 5.0])
    with pytest.raises(ValueError, match="too small for integer noise"):
        noise.levels(quiet, (21, 0), None)
    assert noise.levels(quiet * 50, (21, 0), None) == (5, 0)
    assert noise.levels(np.array([5.0]), (21, 19), SecondMoment(ratio=3.0)) == (4, 4)


CONFIG = """
name: hardened
data: {{name: two_normals}}
target: {{name: logistic_regression, prior_scale: 1.0}}
{how}
privacy: {{epsilon: 1.0, delta: 1.0e-6, hardened: true}}
"""


def test_a_config_makes_a_hardened_plan_of_a_sampler_and_of_a_mechanism(tmp_path):
    path = tmp_path / "c.yaml"
    how = "sampler: {name: sgld, step_size: 1.0}\nsampling: {scheme: poisson, batch_size: 50}\nrun: {steps: 10}"
    path.write_text(CONFIG.format(how=how))
    config = load(path, [])
    assert config.privacy.hardened
    assert make_plan(config).hardened
    path.write_text(dump(config, tmp_path))
    assert load(path, []) == config
    path.write_text(CONFIG.format(how="mechanism: {name: output_perturbation}"))
    config = load(path, [])
    assert make_plan(config).hardened
    path.write_text(dump(config, tmp_path))
    assert load(path, []) == config
    assert not make_plan(load(path, ["privacy.hardened=false"])).hardened


def test_plain_runs_and_mechanisms_have_no_hardened_keys():
    key = SecretKey(hardened=True)
    plain = dataclasses.replace(make(False), privacy=None, guarantee=None, noise_multipliers=None)
    assert not plain.hardened
    with pytest.raises(ValueError, match="not hardened"):
        dpmcmc.sample(plain, DATA, key=key)
    assert randomness.PURPOSES == ("batch", "noise", "dynamics", "init")
