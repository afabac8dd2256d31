"""Noise of private runs and of one-shot releases is integers: keys, what is charged, what a file of it must state."""

import dataclasses
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import dump, make_plan
from dpmcmc.config.file import load
from dpmcmc.mechanisms import (
    OPS,
    CertifiedOPS,
    Hybrid,
    ObjectivePerturbation,
    OutputPerturbation,
    SufficientStatistics,
)
from dpmcmc.mechanisms.sums_in_blocks import float64
from dpmcmc.planning import noise
from dpmcmc.privacy.accounting import noise_tables
from dpmcmc.privacy.accounting.charging import DRAW_SHARE
from dpmcmc.privacy.calibration import asked_noise
from dpmcmc.privacy.query import chacha, integer_noise
from dpmcmc.privacy.query.gaussian_release import gaussian_release, grid, noise_on_grid
from dpmcmc.privacy.query.randomness import SecretKey, streams_of
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.report.privacy_json import privacy_json
from tests.hardened import CHACHA_KEY, DATA, LINEAR, LOGISTIC, D, N, make, without
from tests.unproved import plan_any_epsilon


def verified(path, content) -> int:
    path.write_text(json.dumps(content))
    return main(["verify", str(path)])


@pytest.fixture(scope="module", name="plan")
def _plan():
    return make()


def test_secret_keys_are_of_the_generator_of_their_run_and_used_once():
    for private in (False, True):
        fresh, secret = streams_of(None, private)
        assert secret
        assert all(chacha.is_chacha(key) == private for key in fresh)
        assert jax.random.key_data(fresh.noise).size == (8 if private else 2)
        assert all(chacha.is_chacha(key) == private for key in streams_of(3, private)[0])
        key = SecretKey()
        streams, secret = streams_of(key, private)
        assert secret
        assert all(chacha.is_chacha(each) == private for each in streams)
        with pytest.raises(ValueError, match="has been used"):
            streams_of(key, private)


@pytest.mark.parametrize("hardened", [None, True])
def test_hardened_may_be_said_of_a_private_run_and_changes_nothing(hardened, plan):
    said = make(privacy={"hardened": hardened})
    assert said.guarantee == plan.guarantee
    assert said.noise.levels == plan.noise.levels
    named = OutputPerturbation().plan(LOGISTIC, num_records=N, epsilon=2.0, delta=1e-5, hardened=hardened)
    assert named.guarantee == OutputPerturbation().plan(LOGISTIC, num_records=N, epsilon=2.0, delta=1e-5).guarantee


def test_noise_from_floats_is_refused_wherever_it_is_asked_for():
    common = {"num_records": N, "epsilon": 2.0, "delta": 1e-5, "hardened": False}
    for ask in (
        lambda: dpmcmc.Privacy(epsilon=2.0, hardened=False),
        lambda: OutputPerturbation().plan(LOGISTIC, **common),
        lambda: Hybrid(OPS(prior_precision=1.0), dpmcmc.SGLD(step_size=1.0), steps=10).plan(LOGISTIC, **common),
    ):
        with pytest.raises(dpmcmc.errors.InputError, match="hardened: false asks for noise from floats") as refusal:
            ask()
        assert refusal.value.about == "hardened"
        assert "set privacy to null" in str(refusal.value)


def test_integer_noise_costs_its_deviation_and_no_more(plan):
    (draw,) = (e for e in plan.guarantee.events if e.mechanism == "approximate_draw")
    assert draw.count == D * 12 * 2
    assert draw.rate >= noise_tables.deviation(plan.noise.levels[0])
    others = [e for e in plan.guarantee.events if e != draw]
    exact = dpmcmc.Guarantee.from_events(others, delta=1e-5, adjacency="replace_one", accountant="pld", release="trace")
    assert exact.epsilon <= plan.guarantee.epsilon <= min(exact.epsilon * (1 + 1e-6), 2.0)
    again = dpmcmc.Guarantee.from_json(plan.guarantee.to_json())
    assert again.epsilon == plan.guarantee.epsilon
    assert set(plan.guarantee.cross_check()) == {"advanced", "rdp", "pld"}


def test_a_run_without_privacy_has_no_integer_noise():
    plain = dpmcmc.plan(LOGISTIC, num_records=N, sampler=dpmcmc.SGLD(step_size=1.0), steps=12, privacy=None)
    assert plain.noise.levels == (0, 0)
    assert plain.noise.coordinates is None


def test_full_batches_and_closed_form_meet_their_target():
    target = dpmcmc.targets.LogisticRegression(num_features=D)
    common = {"num_records": N, "sampler": dpmcmc.SGLD(step_size=1.0), "steps": 4}
    for sampling, how in (
        (dpmcmc.Full(), {}),
        (dpmcmc.FixedSize(4), {"calibrator": "closed_form", "accountant": "advanced"}),
    ):
        privacy = dpmcmc.Privacy(epsilon=0.01, delta=1e-5, **how)
        made = dpmcmc.plan(target, sampling=sampling, privacy=privacy, **common)
        assert made.guarantee.epsilon <= 0.01
        # Nothing but the deviation's own share of δ: no noise is spent on it.
        uncharged = dataclasses.replace(made.schedule, coordinates=None).with_noise(np.zeros(4))
        assert made.noise.required_multiplier == pytest.approx(asked_noise(uncharged, privacy), rel=1e-3)


def test_a_second_moment_is_charged_by_the_entry():
    sampler = dpmcmc.SGFS(step_size=0.01, fisher="query", noise_ratio=3.0)
    plan = make(sampler=sampler)
    assert isinstance(plan.sampler_run.second, SecondMoment)
    assert min(plan.noise.levels) >= 3
    (draw,) = (e for e in plan.guarantee.events if e.mechanism == "approximate_draw")
    assert draw.count >= (D + D * (D + 1) // 2) * 12 * 2


@pytest.mark.parametrize("metric", [None, dpmcmc.PrivateMetric("gram")], ids=["chain", "numbers of a metric"])
def test_an_epsilon_is_taken_up_to_the_largest_that_integer_noise_is_proved_for(metric):
    asked = {"sampler": dpmcmc.SGLD(step_size=1e6), "target": LOGISTIC, "metric": metric, "end": None}
    with pytest.raises(dpmcmc.errors.InputError, match="epsilon: 1000 is more than noise in integers") as refusal:
        make(epsilon=1000.0, **asked)
    assert refusal.value.about == "epsilon"
    assert "set privacy to null" in str(refusal.value)
    (largest,) = map(float, re.findall(r"proved for, ([\d.]+) at delta", str(refusal.value)))
    plan = make(epsilon=largest, **asked)
    assert 30 < plan.guarantee.epsilon <= largest < 60
    (draw,) = plan.schedule.deviations
    # The sentence rounds down to hundredths.
    assert 0.98 * DRAW_SHARE * 1e-5 < noise_tables.price(draw, largest) <= DRAW_SHARE * 1e-5
    with pytest.raises(dpmcmc.errors.InputError, match="is more than noise in integers is proved for"):
        make(epsilon=largest + 0.02, **asked)
    assert DRAW_SHARE < 1e-3


def test_own_noise_of_a_larger_epsilon_than_integers_prove_is_refused():
    with pytest.raises(dpmcmc.errors.InputError, match="is more than noise in integers is proved for"):
        make(epsilon=None, sampler=dpmcmc.SGLD(step_size=1e6), privacy={"calibrator": "free"})


def test_a_delta_that_integer_noise_takes_whole_is_refused_with_a_way_out():
    common = {"num_records": N, "epsilon": 2.0}
    for release in (
        lambda: make(privacy={"delta": 1e-28}),
        lambda: make(epsilon=None, privacy={"delta": 1e-28, "calibrator": "free"}),
        lambda: OutputPerturbation().plan(LOGISTIC, delta=1e-22, **common),
        lambda: SufficientStatistics().plan(LINEAR, delta=1e-26, **common),
    ):
        with pytest.raises(ValueError, match=r"delta: .* at any epsilon; take a larger delta"):
            release()


def test_a_target_whose_shape_is_not_known_is_charged_for_a_million_numbers():
    known, unknown = make(), make(target=dpmcmc.targets.LogisticRegression())
    assert unknown.noise.coordinates == 10**6
    assert known.guarantee.epsilon <= unknown.guarantee.epsilon <= known.guarantee.epsilon * (1 + 1e-9)


def test_verify_wants_the_deviations_of_integer_noise(plan, tmp_path, capsys):
    path = tmp_path / "privacy.json"
    body = privacy_json(plan, plan.guarantee)

    assert verified(path, body) == 0
    for mechanism in ("approximate_draw", "batch_overflow"):
        assert verified(path, without(body, mechanism)) == 1
        assert mechanism in capsys.readouterr().err
    for name in ("rate", "count"):
        small = json.loads(json.dumps(body))
        for event in small["events"]:
            if event["mechanism"] in ("approximate_draw", "batch_overflow"):
                event[name] = 0 if name == "count" else event[name] / 2
        assert verified(path, small) == 1
    for name in ("hardened", "coordinates", "sampling"):
        assert verified(path, {key: value for key, value in body.items() if key != name}) == 2
    assert verified(path, body | {"sampling": body["sampling"] | {"slots": plan.noise.slots - 5}}) == 1
    # A file of an earlier release may say that its noise was from floats.
    capsys.readouterr()
    assert verified(path, without(body, "approximate_draw") | {"hardened": False}) == 0
    assert "noise is in floating point" in capsys.readouterr().out


def test_verify_refuses_a_trace_without_a_query(plan, tmp_path, capsys):
    body = plan.guarantee.to_json()
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


def test_a_config_that_says_hardened_is_read_and_one_that_denies_it_is_refused(tmp_path):
    path = tmp_path / "c.yaml"
    how = "sampler: {name: sgld, step_size: 1.0}\nsampling: {scheme: poisson, batch_size: 50}\nrun: {steps: 10}"
    for text in (how, "mechanism: {name: output_perturbation}"):
        path.write_text(CONFIG.format(how=text))
        config = load(path, [])
        assert make_plan(config).guarantee is not None
        path.write_text(dump(config, tmp_path))
        assert load(path, []) == config
        with pytest.raises(ValueError, match="hardened: false asks for noise from floats"):
            load(path, ["privacy.hardened=false"])


# --- one-shot mechanisms ---------------------------------------------------------------------------------------


def one_by_one(key, size: int, std: float) -> list[int]:
    """Noise on the host by whole numbers: each draw compares 115 bits at once."""
    rows, levels = noise_tables.table().words.astype(object), noise_tables.LEVELS[-1]
    factors = [1, *np.asarray(integer_noise.coefficients(jnp.float32(std), levels)).tolist()]
    words = chacha.words_on_host(key, 4 * levels * size).reshape(4, levels, size).astype(object)
    total = [0] * size
    for level, factor in enumerate(factors):
        for i in range(size):
            first, *others = (int(word) for word in words[:, level, i])
            drawn, kept = first >> 13, int(rows[0, first & 8191]) >> 13
            for at, word in enumerate(others, 1):
                drawn, kept = drawn << 32 | word, kept << 32 | int(rows[at, first & 8191])
            total[i] += factor * ((first & 8191 if drawn < kept else int(rows[0, first & 8191]) & 8191) - 4096)
    return total


def test_noise_on_the_host_is_that_of_the_tables(monkeypatch):
    assert integer_noise.on_host(CHACHA_KEY, 37, 2.0**30.7).tolist() == one_by_one(CHACHA_KEY, 37, 2.0**30.7)
    with monkeypatch.context() as patch:
        patch.setattr(integer_noise, "_AT_A_TIME", 16)  # no two parts read the same block
        several = integer_noise.on_host(CHACHA_KEY, 37, 2.0**30.7)
    assert len(np.unique(several)) == 37
    assert several[:16].tolist() == integer_noise.on_host(CHACHA_KEY, 16, 2.0**30.7).tolist()

    def z_of_variance() -> float:
        found = integer_noise.on_host(CHACHA_KEY, 40_000, 2.0**30.7) / 2.0**30.7
        return (np.mean(found**2) - 1) / math.sqrt(2 / len(found))

    assert abs(z_of_variance()) < 4
    honest = integer_noise.coefficients
    monkeypatch.setattr(integer_noise, "coefficients", lambda *given: honest(*given) // 2)  # planted: half the noise
    assert abs(z_of_variance()) > 40


def test_a_release_of_neighbours_differs_by_their_values_alone(monkeypatch):
    value, other = np.array([0.3, -7.25, 1e6]), np.array([1.3, -7.25, 1e6 + 0.5])
    unit = grid(2.0)
    released = [gaussian_release(x, 2.0, CHACHA_KEY) / unit for x in (value, other)]
    np.testing.assert_array_equal(released[1] - released[0], np.rint(other / unit) - np.rint(value / unit))
    # Planted: the last bits of the noise depend on the value, as those of a float's sum do.
    honest = integer_noise.on_host
    monkeypatch.setattr(integer_noise, "on_host", lambda key, size, std: honest(key, size, std) + len(sums.pop()))
    sums = [[1], [1, 2]]
    released = [gaussian_release(x, 2.0, CHACHA_KEY) / unit for x in (value, other)]
    assert np.any(released[1] - released[0] != np.rint(other / unit) - np.rint(value / unit))


def test_the_noise_of_a_mechanism_is_the_integers_alone(monkeypatch):
    """Without the noise in integers a release is exact: it has no other."""
    plan = SufficientStatistics().plan(LINEAR, num_records=N, epsilon=2.0, delta=1e-5)
    data = {"x": np.asarray(DATA["x"], np.float64) / 8, "y": DATA["y"].astype(np.float64)}
    noisy = [np.ravel(dpmcmc.sample(plan, data, key=key).draws) for key in (1, 2)]
    assert np.all(noisy[0] != noisy[1])
    monkeypatch.setattr(integer_noise, "on_host", lambda _, size, std: np.zeros(size, np.int64))
    quiet = [np.ravel(dpmcmc.sample(plan, data, key=key).draws) for key in (1, 2)]
    np.testing.assert_array_equal(*quiet)


def test_a_mechanism_charges_its_integer_noise():
    for mechanism, target in (
        (SufficientStatistics(), LINEAR),
        (OutputPerturbation(), LOGISTIC),
        (CertifiedOPS(steps=20), LOGISTIC),
        (ObjectivePerturbation(regularisation=10.0), LOGISTIC),
    ):
        guarantee = mechanism.plan(target, num_records=N, epsilon=2.0, delta=1e-5).guarantee
        (draws,) = noise_tables.releases_event(guarantee.events)
        assert draws in guarantee.events
        # Without that charge, δ buys the same ε: nothing is spent on it.
        with pytest.MonkeyPatch.context() as patch:
            plan_any_epsilon(patch)
            exact = mechanism.plan(target, num_records=N, epsilon=2.0, delta=1e-5).guarantee
        assert [e.mechanism for e in guarantee.events if e != draws] == [e.mechanism for e in exact.events]
        assert guarantee.delta == exact.delta
        assert exact.epsilon * (1 - 1e-9) <= guarantee.epsilon <= 2.0
        assert guarantee.epsilon == pytest.approx(exact.epsilon, rel=1e-9)
    # One that adds no Gaussian noise is charged for none.
    assert not any(e.mechanism == "approximate_draw" for e in pure(2.0).guarantee.events)


def pure(epsilon: float):
    return OPS(form="range", radius=1.0).plan(LOGISTIC, num_records=N, epsilon=epsilon, delta=1e-5)


def test_what_integer_noise_is_not_charged_for_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match=r"integer noise is charged for .* at most; release fewer"):
        integer_noise.on_host(CHACHA_KEY, noise_tables.MOST_NUMBERS + 1, 2.0**30)


def test_a_mechanism_takes_no_larger_epsilon_than_integer_noise_is_proved_for():
    common = {"num_records": N, "delta": 1e-5}
    with pytest.raises(ValueError, match="epsilon: 500 is more than noise in integers is proved for") as refusal:
        OutputPerturbation().plan(LOGISTIC, epsilon=500.0, **common)
    (largest,) = map(float, re.findall(r"proved for, ([\d.]+) at delta", str(refusal.value)))
    plan = OutputPerturbation().plan(LOGISTIC, epsilon=largest, **common)
    (draws,) = noise_tables.releases_event(plan.guarantee.events)
    assert 25 < plan.guarantee.epsilon < 45
    assert noise_tables.price(draws, plan.guarantee.epsilon) <= DRAW_SHARE * 1e-5
    assert pure(500.0).guarantee.epsilon <= 500  # a draw without Gaussian noise


def test_verify_wants_the_deviation_of_a_mechanism(tmp_path, capsys):
    path = tmp_path / "privacy.json"

    floats = pure(2.0)  # its draw is computed in floating point
    assert verified(path, privacy_json(floats, floats.guarantee)) == 0
    assert "unproved a part of this release is drawn in floating point" in " ".join(capsys.readouterr().out.split())
    plan = OutputPerturbation().plan(LOGISTIC, num_records=N, epsilon=2.0, delta=1e-5)
    body = privacy_json(plan, plan.guarantee)
    assert verified(path, body) == 0
    assert "unproved" not in capsys.readouterr().out
    assert verified(path, without(body, "approximate_draw")) == 1
    # Files of earlier releases, whose noise may have been from floats.
    for earlier in ({**body, "hardened": False}, {key: value for key, value in body.items() if key != "hardened"}):
        capsys.readouterr()
        assert verified(path, without(earlier, "approximate_draw")) == 0
        assert "unproved" in capsys.readouterr().out


def test_what_is_not_proved_is_said():
    assert "unproved" not in dict(make().describe().lines)
    assert "the draw from the posterior is computed in floating point" in str(pure(1.0))
    assert "unproved" not in str(OutputPerturbation().plan(LOGISTIC, num_records=N, epsilon=2.0, delta=1e-5))


def test_noise_on_a_grid_of_float64_is_whole_and_as_loud_as_asked():
    for key in (CHACHA_KEY, jax.random.key(3)):
        with float64():
            found = jax.jit(lambda key: noise_on_grid(key, 20_000, jnp.float64(3.0), jnp.float64(2.0**-31)))(key)
            found = np.asarray(found)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, np.rint(found))
        assert abs(np.mean((found * 2.0**-31 / 3) ** 2) - 1) < 4 * math.sqrt(2 / 20_000)
