"""Integer noise of one-shot mechanisms: made on the host, charged, and stated."""

import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.mechanisms import OPS, AdaOPS, CertifiedOPS, ObjectivePerturbation, OutputPerturbation, SufficientStatistics
from dpmcmc.mechanisms.minimise import float64
from dpmcmc.privacy.accounting import discrete_gaussian
from dpmcmc.privacy.accounting.charging import DRAW_SHARE
from dpmcmc.privacy.query import integer_noise, randomness
from dpmcmc.privacy.query.gaussian_release import gaussian_release, grid, noise_on_grid
from dpmcmc.report.page import privacy_json
from tests.hardened import CHACHA_KEY, DATA, LINEAR, LOGISTIC, N, make, without
from tests.unproved import plan_any_epsilon


def one_by_one(key, size: int, std: float) -> list[int]:
    """Noise on the host by whole numbers: each draw compares 115 bits at once."""
    rows, levels = discrete_gaussian.table().words.astype(object), discrete_gaussian.LEVELS[-1]
    factors = [1, *np.asarray(integer_noise.coefficients(jnp.float32(std), levels)).tolist()]
    words = randomness.words_on_host(key, 4 * levels * size).reshape(4, levels, size).astype(object)
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
        (AdaOPS(), LINEAR),
        (OutputPerturbation(), LOGISTIC),
        (CertifiedOPS(steps=20), LOGISTIC),
        (ObjectivePerturbation(regularisation=10.0), LOGISTIC),
    ):
        guarantee = mechanism.plan(target, num_records=N, epsilon=2.0, delta=1e-5).guarantee
        (draws,) = discrete_gaussian.releases_event(guarantee.events)
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
        integer_noise.on_host(CHACHA_KEY, discrete_gaussian.MOST_NUMBERS + 1, 2.0**30)


def test_a_mechanism_takes_no_larger_epsilon_than_integer_noise_is_proved_for():
    common = {"num_records": N, "delta": 1e-5}
    with pytest.raises(ValueError, match="epsilon: 500 is more than noise in integers is proved for") as refusal:
        OutputPerturbation().plan(LOGISTIC, epsilon=500.0, **common)
    (largest,) = map(float, re.findall(r"proved for, ([\d.]+) at delta", str(refusal.value)))
    plan = OutputPerturbation().plan(LOGISTIC, epsilon=largest, **common)
    (draws,) = discrete_gaussian.releases_event(plan.guarantee.events)
    assert 25 < plan.guarantee.epsilon < 45
    assert discrete_gaussian.price(draws, plan.guarantee.epsilon) <= DRAW_SHARE * 1e-5
    assert pure(500.0).guarantee.epsilon <= 500  # a draw without Gaussian noise


def test_verify_wants_the_deviation_of_a_mechanism(tmp_path, capsys):
    path = tmp_path / "privacy.json"

    def verified(content) -> int:
        path.write_text(json.dumps(content))
        return main(["verify", str(path)])

    floats = pure(2.0)  # its draw is computed in floating point
    assert verified(privacy_json(floats, floats.guarantee)) == 0
    assert "unproved     a part of this release is drawn in floating point" in capsys.readouterr().out
    plan = OutputPerturbation().plan(LOGISTIC, num_records=N, epsilon=2.0, delta=1e-5)
    body = privacy_json(plan, plan.guarantee)
    assert verified(body) == 0
    assert "unproved" not in capsys.readouterr().out
    assert verified(without(body, "approximate_draw")) == 1
    # Files of earlier releases, whose noise may have been from floats.
    for earlier in ({**body, "hardened": False}, {key: value for key, value in body.items() if key != "hardened"}):
        capsys.readouterr()
        assert verified(without(earlier, "approximate_draw")) == 0
        assert "unproved" in capsys.readouterr().out


def test_what_is_not_proved_is_said():
    assert "unproved" not in dict(make().lines())
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
