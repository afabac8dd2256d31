"""What a guarantee of a mechanism must say, refuse or keep secret."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.mechanisms import (
    OPS,
    CertifiedOPS,
    DrawError,
    ObjectivePerturbation,
    OutputPerturbation,
    SufficientStatistics,
)
from dpmcmc.privacy import Guarantee, UnsupportedCombination
from dpmcmc.targets import LinearRegression, LogisticRegression
from tests.cli.test_command_line import call
from tests.mechanisms.test_mechanism_commands import BASE

RNG = np.random.default_rng(5)
X = RNG.standard_normal((200, 3))
X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
DATA = {"x": X, "y": RNG.integers(0, 2, 200)}
LOGISTIC = LogisticRegression(1.0, num_features=3, row_bound=1.0)
PROMISE = {"num_records": 200, "epsilon": 1.0, "delta": 1e-4}


def test_a_start_that_no_guarantee_covers_is_refused():
    """A start can be a record; a plan that was not made after its release does not pay for it."""
    plan = dpmcmc.plan(
        LOGISTIC, num_records=200, sampler=dpmcmc.SGLD(0.1), steps=1, privacy=dpmcmc.Privacy(epsilon=0.1, delta=1e-5)
    )
    with pytest.raises(ValueError, match="after="):
        dpmcmc.sample(plan, DATA, starts=X[:1])
    # Without privacy there is nothing to pay.
    plain = dpmcmc.plan(LOGISTIC, num_records=200, sampler=dpmcmc.SGLD(0.1), steps=1, privacy=None)
    assert np.allclose(dpmcmc.sample(plain, DATA, starts=X[:1]).draws, X[:1], atol=0.3)
    with pytest.raises(ValueError, match="shapes"):
        dpmcmc.sample(plain, DATA, starts=X[:2])
    with pytest.raises(ValueError, match="finite"):
        dpmcmc.sample(plain, DATA, starts=X[:1] * np.nan)


@dataclasses.dataclass(frozen=True)
class Loud(LogisticRegression):
    """A likelihood a hundred times as loud, under the bounds of the quiet one."""

    def log_likelihood(self, params, record):
        return 100 * super().log_likelihood(params, record)


@pytest.mark.parametrize("mechanism", [CertifiedOPS(steps=3), OPS(form="gdp"), OutputPerturbation()])
def test_what_a_target_of_ones_own_declares_is_an_assumption(mechanism):
    loud = mechanism.plan(Loud(1.0, num_features=3, row_bound=1.0), **PROMISE)
    assert any("vouches" in sentence for sentence in loud.guarantee.assumptions)
    assert not any("vouches" in s for s in mechanism.plan(LOGISTIC, **PROMISE).guarantee.assumptions)


def test_proofs_of_one_target_are_not_for_its_subclasses():
    with pytest.raises(UnsupportedCombination, match="LogisticRegression"):
        ObjectivePerturbation().plan(Loud(1.0, num_features=3, row_bound=1.0), **PROMISE)

    class Other(LinearRegression):
        pass

    other = Other(num_features=3, row_bound=1.0, label_bound=1.0)
    with pytest.raises(UnsupportedCombination):
        SufficientStatistics().plan(other, **PROMISE)


@pytest.mark.parametrize(
    "mechanism", [CertifiedOPS(steps=3), OPS(form="gdp"), OutputPerturbation(), ObjectivePerturbation()]
)
@pytest.mark.parametrize(
    "bad", [{"delta": 0.5}, {"delta": 0.0}, {"epsilon": 0.0}, {"num_records": 0}, {"adjacency": "other"}]
)
def test_impossible_promises_are_refused_by_every_mechanism(mechanism, bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        mechanism.plan(LOGISTIC, **(PROMISE | bad))


@pytest.mark.parametrize("row_bound", [-1.0, 0.0, np.inf])
def test_impossible_row_bounds_are_refused(row_bound):
    with pytest.raises(ValueError, match="row_bound"):
        LogisticRegression(1.0, row_bound=row_bound)


def test_rounding_far_out_is_charged():
    """A weak prior lets positions, and with them rounding errors, grow: the same noise is charged for less."""
    plans = [
        CertifiedOPS(steps=3, temper=1e-3).plan(
            LogisticRegression(scale, num_features=3, row_bound=1.0), num_records=1_000_000, epsilon=33.0, delta=1e-7
        )
        for scale in (1.0, 1e4)
    ]
    slack = [p.settings["noise_std"] / (1e-3 * p.settings["noise_multiplier"]) - 1 for p in plans]
    assert 0 < slack[0] < 1e-4
    assert slack[1] > 10 * slack[0]


class Changing:
    """A target that is not frozen: what it means can change behind its identity."""

    gradient_bound, smoothness, prior_precision, log_concave = 1.0, 1.0, 1.0, True

    def __init__(self):
        self.centre = 1.0

    def init(self, key):
        return jnp.zeros(1)

    def log_prior(self, params):
        return -0.5 * jnp.sum(params**2)

    def log_likelihood(self, params, record):
        return -0.5 * jnp.sum((params - self.centre) ** 2)


@pytest.mark.parametrize("mechanism", [CertifiedOPS(steps=50, temper=1.0), OutputPerturbation()])
def test_compiled_programs_follow_a_target_that_changes(mechanism):
    target = Changing()
    plan = mechanism.plan(target, num_records=200, epsilon=30.0, delta=1e-4)
    found = []
    for target.centre in (1.0, -1.0):
        found.append(float(dpmcmc.sample(plan, {"x": np.zeros((200, 1))}, key=3).flat_draws()[0, 0]))
    assert found[0] > 0 > found[1]


def test_a_draw_that_fails_tells_its_holder_alone(tmp_path, capsys, monkeypatch):
    def fail(self, plan, records, streams):
        raise DrawError("radius: of 7 draws 0 lie within it. Nothing was released")

    monkeypatch.setattr(CertifiedOPS, "draw", fail)
    path, out = tmp_path / "small.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(BASE | {"mechanism": {"name": "certified_ops", "steps": 3}}))
    assert call("run", path, "--out", out) == 1
    said = capsys.readouterr()
    assert "no draw" in said.err
    assert "of 7 draws" not in said.out + said.err
    assert not (out / "draws.nc").exists()
    assert not (out / "metrics.json").exists()
    assert "of 7 draws" in (out / "confidential" / "failure.json").read_text()


@pytest.mark.slow
def test_times_of_released_files_say_nothing(tmp_path, capsys):
    path, out = tmp_path / "small.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(BASE | {"mechanism": {"name": "certified_ops", "steps": 3}}))
    assert call("run", path, "--out", out) == 0
    released = [p for p in out.rglob("*") if "confidential" not in p.parts]
    assert len({p.stat().st_mtime for p in released}) == 1
    assert json.loads((out / "confidential" / "diagnostics.json").read_text())["wall_seconds"]["run"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "doctor",
    [
        lambda b: b["events"][0].update(rate=0.0),
        lambda b: b["events"][0].update(count=0),
        lambda b: b["events"][0].update(noise_multiplier=1e6),
        lambda b: b.update(release="trace"),
        lambda b: b.update(epsilon=float("nan")),
        lambda b: b.update(epsilon=0.1),
    ],
)
def test_verify_refuses_a_doctored_release(doctor, tmp_path, capsys):
    path, out = tmp_path / "small.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(BASE | {"mechanism": {"name": "certified_ops", "steps": 3}}))
    assert call("run", path, "--out", out) == 0
    assert call("verify", out / "privacy.json") == 0
    body = json.loads((out / "privacy.json").read_text())
    doctor(body)
    (out / "privacy.json").write_text(json.dumps(body))
    assert call("verify", out / "privacy.json") != 0


def test_guarantees_of_mechanisms_survive_their_file():
    for mechanism in (CertifiedOPS(steps=3), OPS(form="range", radius=2.0), ObjectivePerturbation()):
        guarantee = mechanism.plan(LOGISTIC, **PROMISE).guarantee
        assert Guarantee.from_json(guarantee.to_json()).epsilon == pytest.approx(guarantee.epsilon, rel=1e-12)


def test_keys_are_not_reused_between_draws():
    plan = CertifiedOPS(steps=2, draws=6).plan(LOGISTIC, **PROMISE)
    drawn = dpmcmc.sample(plan, DATA, key=jax.random.key(0)).flat_draws()
    assert len(np.unique(drawn)) == drawn.size
