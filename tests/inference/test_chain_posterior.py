"""Posteriors that follow from the path of a chain in a metric: coverage, samplers, files, and what is refused."""

import json
import math

import numpy as np
import pytest
from scipy.special import expit

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.data.structure import RowStructure
from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference.denoised_moment import Denoised
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.mechanisms import chain
from dpmcmc.mechanisms.noise_aware import chain_end, regression_plan
from dpmcmc.planning.path import trace_of


def logistic_table(n, d, rng):
    """(rows of norm at most 1, half of them binary, with an intercept; labels; the truth)."""
    z = rng.normal(size=(n, d - 1)) @ (np.eye(d - 1) + rng.normal(size=(d - 1, d - 1)) / d)
    half = (d - 1) // 2
    x = np.concatenate([np.ones((n, 1)), z[:, :half] > 0, np.clip(z[:, half:], -3, 3) / 3], axis=1) / math.sqrt(d)
    truth = rng.normal(size=d)
    records = {"x": x.astype(np.float32), "y": (rng.random(n) < expit(x @ truth)).astype(np.int32)}
    return records, truth


def logistic(d=4, **more):
    return dpmcmc.targets.LogisticRegression(**{"prior_scale": 1.0, "num_features": d, "row_bound": 1.0, **more})


def planned(target=None, n=800, **changes):
    """A short run of SGLD in a metric."""
    settings = {
        "num_records": n,
        "sampler": dpmcmc.SGLD(step_size=0.5),
        "sampling": dpmcmc.Poisson(100),
        "steps": 120,
        "burn_in": 40,
        "thin": 5,
        "chains": 2,
        "privacy": dpmcmc.Privacy(epsilon=8.0, delta=1e-5),
        "metric": dpmcmc.PrivateMetric(structure=RowStructure(constant=0)),
    }
    return dpmcmc.plan(target or logistic(), **settings | changes)


@pytest.fixture
def without_releases(monkeypatch):
    """Let no end release anything, as that of more than 100 coefficients does not."""
    monkeypatch.setattr(regression_plan, "MOST_RELEASED", 2)
    monkeypatch.setattr(chain, "MOST_RELEASED", 2)


@pytest.fixture(scope="module")
def records():
    return logistic_table(800, 4, np.random.default_rng(0))[0]


@pytest.fixture(scope="module")
def result(records):
    return dpmcmc.sample(planned(), records, key=1)


# Coverage.


def coverage(tables=40, n=1000, **changes):
    """Share of coefficients in 90 % intervals, and the mean square of (mean − truth)/std; truths are of the prior."""
    settings = {"sampling": dpmcmc.Full(), "steps": 80, "burn_in": 0.5, "thin": 1, "chains": 1} | changes
    plan = planned(logistic(5), n, **settings)
    assert not plan.end.share
    inside, squares = [], []
    for seed in range(tables):
        data, truth = logistic_table(n, 5, np.random.default_rng(seed))
        found = dpmcmc.sample(plan, data, key=seed, progress=False).noise_aware()
        z = (found.mean - truth) / found.std
        inside.append(np.mean(np.abs(z) < 1.645))
        squares.append(np.mean(z**2))
    return float(np.mean(inside)), float(np.mean(squares))


def holds(found):
    """Whether a coverage over 40 tables of 5 coefficients is 90 % up to three standard errors, and z² about 1."""
    return abs(found[0] - 0.9) < 3 * math.sqrt(0.09 / 200) * 1.3 and 0.7 < found[1] < 1.35


CASES = {
    "full": {},
    "hot": {"sampler": dpmcmc.SGLD(step_size=4.0), "privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-5)},
    "poisson": {"sampling": dpmcmc.Poisson(50), "steps": 400},
    "fixed_size": {
        "sampling": dpmcmc.FixedSize(50),
        "steps": 400,
        "privacy": dpmcmc.Privacy(epsilon=8.0, delta=1e-5, accountant="rdp"),
    },
}


@pytest.mark.parametrize("case", [pytest.param(k, marks=[] if k == "full" else [pytest.mark.slow]) for k in CASES])
def test_intervals_of_normal_rows_cover(without_releases, case):
    assert holds(coverage(**CASES[case]))


@pytest.mark.slow
def test_planted_the_error_of_the_gram_matrix_left_out_is_caught_by_coverage(without_releases, monkeypatch):
    hidden = {"privacy": dpmcmc.Privacy(epsilon=3.0, delta=1e-5), "metric": dpmcmc.PrivateMetric(share=0.005)}
    right = coverage(**hidden)
    real = ReleasedMetric.denoised.func
    monkeypatch.setattr(ReleasedMetric, "denoised", property(lambda self: Denoised(real(self).gram, np.zeros_like)))
    wrong = coverage(**hidden)
    assert holds(right)
    assert wrong[1] > 1.15 * right[1]  # the same tables and noise


@pytest.mark.slow
def test_planted_minibatch_noise_left_out_is_caught_by_coverage(without_releases, monkeypatch):
    quiet = {"sampling": dpmcmc.Poisson(10), "steps": 200, "privacy": dpmcmc.Privacy(epsilon=40.0, delta=1e-5)}
    quiet |= {"sampler": dpmcmc.SGLD(step_size=0.2)}
    right = coverage(20, **quiet)
    monkeypatch.setattr(chain_end.EndOfChain, "minibatch", lambda *_: np.zeros((5, 5)))
    wrong = coverage(20, **quiet)
    assert 0.7 < right[1] < 1.3 < wrong[1]


def test_coefficients_that_noise_hides_are_not_called():
    """Columns fill a tenth of their ranges, and have effects that the prior does not expect."""
    rng, n = np.random.default_rng(0), 3000
    z = np.clip([0.5, -0.3, 0.2] + [0.09, 0.12, 0.4] * rng.normal(size=(n, 3)), -1, 1)
    x = np.concatenate([np.ones((n, 1)), z], 1) / 2
    truth = np.array([0.0, 6.0, -6.0, 1.0])
    y = rng.random(n) < expit((x - x.mean(0)) @ truth)
    plan = planned(logistic(prior_scale=2.0), n, steps=80, chains=1, privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5))
    assert "intervals" in plan.usable_for
    found = dpmcmc.sample(plan, {"x": x.astype(np.float32), "y": y.astype(np.int32)}, key=3)
    uses = [one.use for one in found.evidence.uses(np.eye(4))]
    assert "intervals" not in found.usable_for or uses[1:3] != ["yes", "yes"]


# The path.


@pytest.mark.parametrize("step", [0.5, 20.0])
def test_the_spread_is_that_of_all_steps_whatever_is_kept(records, step, monkeypatch):
    """Steps of 20 overshoot: they alternate in sign, so kept draws with thin > 1 fall on one side."""
    monkeypatch.setattr("dpmcmc.engine.sizes._CHUNK_STEPS", 64)
    changes = {"steps": 400, "burn_in": 200, "chains": 1, "sampler": dpmcmc.SGLD(step_size=step)}
    one, other = (dpmcmc.sample(planned(thin=thin, **changes), records, key=0) for thin in (1, 200))
    wanted = np.cov(one.trace.positions[0].T, ddof=0)
    for found in (one, other):
        np.testing.assert_allclose(found.trace.spread, wanted, atol=1e-5 * np.abs(wanted).max())
    np.testing.assert_allclose(other.noise_aware().std, one.noise_aware().std, rtol=1e-2)


@pytest.mark.parametrize(
    "sampler", [dpmcmc.SGHMC(step_size=0.05, friction=0.3), dpmcmc.SGNHT(step_size=0.01, friction=0.3)], ids=repr
)
def test_the_path_of_any_sampler_serves(sampler, records, result):
    """Gradients are queries at public points, whatever moved them: another sampler's posterior is about the same."""
    one = result.noise_aware()
    other = dpmcmc.sample(planned(sampler=sampler), records, key=4).noise_aware()
    assert np.all(np.abs(one.mean - other.mean) < 4 * np.hypot(one.std, other.std))
    assert np.all((0.5 * one.std < other.std) & (other.std < 2.5 * one.std))


@pytest.mark.slow
def test_iterates_that_mix_stand_beside_the_posterior_that_follows_from_them(tmp_path):
    """At temperature 1 and in small steps they are draws of it, where the model is true."""
    rng, n = np.random.default_rng(0), 50_000
    x = np.column_stack([rng.uniform(-1, 1, (n, 2)), np.ones(n)]) / math.sqrt(3)
    y = rng.random(n) < expit(x @ [1.0, -1.0, 0.5])
    long = {"sampler": dpmcmc.SGLD(step_size="auto"), "sampling": dpmcmc.Full(), "steps": 40_000, "burn_in": 0.2}
    plan = planned(logistic(3), n, thin=20, chains=1, metric=dpmcmc.PrivateMetric(clip_ratio=1.5), **long)
    found = dpmcmc.sample(plan, {"x": x.astype(np.float32), "y": y.astype(np.int32)}, key=2, progress=False)
    loaded = dpmcmc.load(found.save(tmp_path / "run", public=True))
    for one in (found, loaded):
        shown = one.summary()
        path, table = shown.path, shown.to_dict()
        np.testing.assert_allclose(path.mean, shown.mean, atol=0.3 * shown.std.max())
        np.testing.assert_allclose(path.high - path.low, shown.high - shown.low, rtol=0.2)
        assert table["5 % of path"] == path.low.tolist()
        assert "iterates mix at temperature 1" in dict(shown.said)["path"]


# What a result says, and its files.


def test_a_saved_run_gives_the_same_posterior(result, tmp_path):
    found = result.noise_aware()
    result.save(tmp_path / "run", public=True)
    loaded = dpmcmc.load(tmp_path / "run")
    assert loaded.verdict == result.verdict
    for name in ("path", "draws"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(result, name))
    np.testing.assert_array_equal(loaded.noise_aware().mean, found.mean)
    assert loaded.summary().to_dict() == result.summary().to_dict()
    assert result.summary().path is None  # too short
    again = dpmcmc.inference.Trace.load(tmp_path / "run")
    np.testing.assert_array_equal(again.gradients, result.trace.gradients)
    with pytest.raises(ValueError, match=r"trace\.npz: is not there"):
        dpmcmc.inference.Trace.load(tmp_path)
    (tmp_path / "trace.npz").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="no trace of this version"):
        dpmcmc.inference.Trace.load(tmp_path)


def test_draws_and_predictions_are_those_of_the_posterior_and_not_of_the_path(result):
    found = result.noise_aware()
    assert result.draws.shape == (4, 250, 4)
    flat_draws = result.draws.reshape(-1, 4)
    assert result.path.shape == (2, 16, 4)
    np.testing.assert_allclose(flat_draws.mean(axis=0), found.mean, atol=1e-5)
    np.testing.assert_allclose(np.cov(flat_draws.T), found.covariance, rtol=1e-4, atol=1e-6)
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(result.predict(x), expit(flat_draws @ x.T).mean(axis=0), atol=1e-4)


@pytest.mark.slow
def test_the_command_writes_the_posterior(tmp_path, capsys):
    settings = ("metric={name: gram}", "run={steps: 100, burn_in: 0.5}", "sampler.step_size=0.5")
    asked = [part for one in (*settings, "target.prior_scale=1.0") for part in ("--set", one)]
    for name, change, from_path in (
        ("residual", "privacy.clipping=residual", False),
        ("none", "end=null", False),
        ("run", "privacy.clipping=label_blind", True),
    ):
        assert main(["run", "breast_cancer", *asked, "--set", change, "--out", str(tmp_path / name)]) == 0
        assert json.loads((tmp_path / name / "metrics.json").read_text())["from_path"] is from_path
        assert (tmp_path / name / "trace.npz").exists() is from_path
    capsys.readouterr()
    result = dpmcmc.load(tmp_path / "run")
    np.testing.assert_allclose(result.draws.mean(axis=(0, 1)), result.noise_aware().mean, atol=1e-4)


# Refusals.


def test_a_default_end_is_where_one_is_derived():
    assert planned().end.mechanism.covariance == "sandwich"
    assert planned(logistic(120)).end.mechanism.covariance == "model"
    assert planned(logistic(120)).label == "SGLD"  # nothing is released
    softmax = dpmcmc.targets.SoftmaxRegression(num_classes=2, num_features=4, row_bound=1.0)
    residual = dpmcmc.Privacy(epsilon=3.0, delta=1e-5, clipping="residual")
    for plan in (
        planned(metric=None),
        planned(softmax, metric=dpmcmc.PrivateMetric()),
        planned(end=None),
        planned(privacy=residual, metric=dpmcmc.PrivateMetric(clip_ratio=0.2)),
        planned(metric=dpmcmc.PrivateMetric("second_moment", clip_ratio=20.0)),
    ):
        assert plan.end is None
        assert "intervals" not in plan.usable_for
        with pytest.raises(UnsupportedCombination, match="keeps no path"):
            trace_of(plan, None, None)


@pytest.mark.parametrize(
    ("changes", "target", "said"),
    [
        ({"steps": 40, "burn_in": 30}, None, "20 steps of equal weight"),
        ({}, logistic(120, prior_scale=9.0), "take a smaller prior_scale"),
    ],
)
def test_paths_that_identify_no_posterior_are_known_before_a_record_is_read(changes, target, said):
    plan = planned(target, **changes)
    assert "intervals" not in plan.usable_for
    assert said in plan.verdict.reasons["intervals"]


def test_a_run_without_an_end_concludes_no_posterior(records):
    found = dpmcmc.sample(planned(end=None), records, key=5)
    with pytest.raises(UnsupportedCombination, match="no posterior is concluded from this run of SGLD"):
        found.noise_aware()
