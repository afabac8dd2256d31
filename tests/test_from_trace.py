"""Posteriors from the trace of a chain: the law of its mean gradient, simulated; coverage; refusals.

The second moment that a release and a path tell: its equation, its error, and coefficients that noise hides.
"""

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy.special import expit

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.data.structure import RowStructure
from dpmcmc.engine import recorded
from dpmcmc.errors import NotForIntervals, UnsupportedCombination
from dpmcmc.inference import path_law
from dpmcmc.inference import trace as from_trace
from dpmcmc.inference.denoised_moment import Denoised, denoised
from dpmcmc.inference.linear_score import Linear
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.normal_law import Gaussian, Local, isotropic_error, symmetric_noise
from dpmcmc.inference.path_curvature import Differences, refined
from dpmcmc.inference.path_law import PathGradients, PathLaw, Score, lost
from dpmcmc.planning.path import trace_of
from dpmcmc.privacy.query.gram_release import NoisyGram
from tests.unproved import plan_any_epsilon

#: Clips residuals.
RESIDUAL = dpmcmc.Privacy(epsilon=3.0, delta=1e-5, clipping="residual")


def exact(gram):
    """A second moment without an error."""
    return Denoised(gram, np.zeros_like)


def path_of(positions, gradients, noise_std):
    """Mean of steps with one noise."""
    count = len(positions)
    spread = np.cov(positions.T).reshape(positions.shape[1], -1)
    return PathGradients(positions.mean(0), gradients.mean(0), spread, count / noise_std**2, 1 / count)


def test_a_path_of_exact_gradients_gives_the_conjugate_posterior_of_linear_regression():
    rng, n, d, noise = np.random.default_rng(0), 300, 3, 0.5
    x = rng.normal(size=(n, d))
    y = x @ rng.normal(size=d) + noise * rng.normal(size=n)
    positions = 2 + rng.normal(size=(40, d))
    gradients = np.stack([x.T @ (x @ theta - y) / noise**2 for theta in positions])
    path = path_of(positions, gradients, 1e-6)
    score = Score(Linear(noise**2))
    found = path_law.conclude(path, PathLaw(n, np.eye(d), np.eye(d), exact(x.T @ x), score))
    precision = np.eye(d) + x.T @ x / noise**2
    np.testing.assert_allclose(found.covariance, np.linalg.inv(precision), rtol=1e-6)
    np.testing.assert_allclose(found.mean, np.linalg.solve(precision, x.T @ y / noise**2), rtol=1e-6)


@pytest.mark.parametrize("spread", [0.003, 0.3])
@pytest.mark.parametrize("clip", [math.inf, 0.6])
@pytest.mark.parametrize("mean_row", [0.0, 0.7])
def test_the_mean_gradient_of_a_path_is_that_of_a_simulated_one(spread, clip, mean_row):
    """Normal rows; each meets a point of its own of a path, about a centre that is away from the truth."""
    rng, n, d = np.random.default_rng(1), 400_000, 8
    row, truth, centre = np.zeros(d), np.zeros(d), np.zeros(d)
    row[[0, 4]], truth[:3], centre[:3] = mean_row, (1.2, -0.5, 0.3), (1.4, -0.4, 0.0)
    x = row + rng.normal(size=(n, d))
    p, noise, h = expit(x @ truth), rng.normal(size=n), 0.0
    total, squares = np.zeros(d), np.zeros((d, d))
    for sign in (1, -1):  # antithetic
        margin = x @ centre + sign * math.sqrt(spread / d) * np.linalg.norm(x, axis=1) * noise
        weight = np.minimum(1.0, clip / np.maximum(expit(margin), expit(-margin)))
        gap = weight * (expit(margin) - p)
        total += x.T @ gap / 2
        squares += (x * (gap**2 + weight**2 * p * (1 - p))[:, None]).T @ x / 2
        h += weight * p * (1 - p) / 2
    path = PathGradients(centre, np.zeros(d), spread / d * np.eye(d), 1.0, 1.0)
    gram = exact(n * (np.eye(d) + np.outer(row, row)))
    law = PathLaw(n, np.eye(d), np.eye(d), gram, Score(Logistic(), clip=clip, norm=1.0), mean_row=row)
    found = path_law.expected(path, truth, law)
    np.testing.assert_allclose(found.gradient / n, total / n, atol=1.5e-3)
    np.testing.assert_allclose(found.local.curvature / n, (x * h[:, None]).T @ x / n, atol=6e-3)
    np.testing.assert_allclose(found.squares / n, squares / n, atol=0.02)
    if spread > 0.1 and not mean_row:
        narrow = path_law.expected(path._replace(spread=0 * path.spread), truth, law)
        assert np.abs(narrow.gradient - total).max() > 5e-3 * n, "the path's spread shows nothing"


def test_a_path_where_no_score_has_a_slope_is_refused():
    path = PathGradients(np.array([5e4]), np.zeros(1), np.zeros((1, 1)), 1.0, 1.0)
    law = PathLaw(1000, np.eye(1), np.eye(1), exact(1000 * np.eye(1)), Score(Logistic()), mean_row=np.ones(1))
    with pytest.raises(UnsupportedCombination, match="no record's score has a slope"):
        path_law.expected(path, np.array([5e4]), law)


def logistic_table(n, d, rng):
    """(rows of norm at most 1, half of them binary, with an intercept; labels; the truth)."""
    z = rng.normal(size=(n, d - 1)) @ (np.eye(d - 1) + rng.normal(size=(d - 1, d - 1)) / d)
    half = (d - 1) // 2
    x = np.concatenate([np.ones((n, 1)), z[:, :half] > 0, np.clip(z[:, half:], -3, 3) / 3], axis=1) / math.sqrt(d)
    truth = rng.normal(size=d)
    return x, (rng.random(n) < expit(x @ truth)).astype(float), truth


def coverage(tables, conclude, *, gram_std=10.0, noise_std=30.0, rate=1.0, steps=100, burn_in=50, step=0.5):
    """Share of coefficients in 90 % intervals, and the mean square of (mean − truth)/std; SGLD in a private metric."""
    inside, squares, n, d = [], [], 1000, 5
    for seed in range(tables):
        rng = np.random.default_rng(seed)
        x, y, truth = logistic_table(n, d, rng)
        noisy = x.T @ x + gram_std * symmetric_noise(rng, d)
        gram = denoised(NoisyGram(noisy, gram_std, float(np.sum(x**2)), 0.0), None)
        metric = gram.gram / n + np.eye(d) / d
        root = np.linalg.cholesky(metric)
        white = np.linalg.solve(root, x.T).T
        norms = np.linalg.norm(white, axis=1)
        norm = math.sqrt(np.trace(np.linalg.solve(metric, gram.gram)) / n)
        eta = step / (0.25 * np.linalg.norm(white.T @ white, 2))
        phi, positions, gradients = np.zeros(d), [], []
        for _ in range(steps):
            theta = np.linalg.solve(root.T, phi)
            chosen = rng.random(n) < rate
            p = expit(x[chosen] @ theta)
            weight = np.minimum(1, 0.5 * norm / (np.maximum(p, 1 - p) * norms[chosen]))
            g = (weight * (p - y[chosen])) @ white[chosen] / rate + noise_std * rng.normal(size=d)
            positions.append(theta)
            gradients.append(root @ g)
            phi = phi - eta * (g + np.linalg.solve(root, theta))
        path = path_of(np.array(positions[burn_in:]), np.array(gradients[burn_in:]), noise_std)
        score, scheme = Score(Logistic(), 0.5 * norm, norm), "full" if rate == 1 else "poisson"
        mean, covariance = conclude(path, PathLaw(n, metric, np.eye(d), gram, score, scheme, rate))
        z = (mean - truth) / np.sqrt(np.diag(covariance))
        inside.append(np.mean(np.abs(z) < 1.645))
        squares.append(np.mean(z**2))
    return float(np.mean(inside)), float(np.mean(squares))


def within(found):
    """Whether a coverage over 60 tables of 5 coefficients is 90 % up to three standard errors, and z² about 1."""
    return abs(found[0] - 0.9) < 3 * math.sqrt(0.09 / 300) * 1.3 and 0.75 < found[1] < 1.3


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"noise_std": 100.0, "steps": 200},
        {"rate": 0.05, "steps": 200},
        {"gram_std": 60.0, "burn_in": 0, "step": 0.05},
    ],
    ids=["full batches", "hot", "Poisson", "a metric of little budget, on the way"],
)
def test_intervals_from_a_simulated_path_cover(case):
    assert within(coverage(60, path_law.conclude, **case))


def test_planted_the_error_of_the_gram_matrix_left_out_is_caught_by_coverage():
    def faulty(path, law):
        return path_law.conclude(path, law._replace(gram=exact(law.gram.gram)))

    assert not within(coverage(60, faulty, gram_std=60.0, burn_in=0, step=0.05))


def test_planted_minibatch_noise_left_out_is_caught_by_coverage():
    def faulty(path, law):
        return path_law.conclude(path, law._replace(scheme="full", rate=1.0))

    assert not within(coverage(60, faulty, noise_std=3.0, rate=0.01))


def test_planted_a_centred_minibatch_variance_is_caught_by_coverage():
    """The mean of one number, a hot path, Poisson batches: scores have a mean wherever the path is."""

    def z_squared(scheme):
        found, n, rate, steps, rng = [], 500, 0.02, 64, np.random.default_rng(3)
        for _ in range(200):
            truth = rng.normal()
            y = truth + rng.normal(size=n)
            theta = truth + 4 * rng.normal(size=(steps, 1))
            gradients = np.array([[np.sum(t - y[rng.random(n) < rate]) / rate] for (t,) in theta])
            gradients += rng.normal(size=(steps, 1))
            law = PathLaw(n, np.eye(1), np.eye(1), exact(n * np.eye(1)), Score(Linear()), scheme, rate)
            mean, covariance = path_law.conclude(path_of(theta, gradients, 1.0), law)
            found.append((mean[0] - truth) ** 2 / covariance[0, 0])
        return np.mean(found)

    assert 0.7 < z_squared("poisson") < 1.35
    assert z_squared("fixed_size") > 3


def planned(target, n, **changes):
    """A short run of SGLD in a metric with room for every gradient."""
    arguments = {
        "num_records": n,
        "sampler": dpmcmc.SGLD(step_size=0.5),
        "sampling": dpmcmc.Poisson(100),
        "steps": 120,
        "burn_in": 40,
        "thin": 5,
        "chains": 2,
        "privacy": dpmcmc.Privacy(epsilon=3.0, delta=1e-5),
        "metric": dpmcmc.PrivateMetric(clip_ratio=4.0),
        **changes,
    }
    return dpmcmc.plan(target, **arguments)


def logistic(d=4, **changes):
    return dpmcmc.targets.LogisticRegression(**{"prior_scale": 1.0, "num_features": d, "row_bound": 1.0, **changes})


@pytest.fixture(scope="module")
def records():
    x, y, _ = logistic_table(800, 4, np.random.default_rng(0))
    return {"x": x.astype(np.float32), "y": y.astype(np.int32)}


@pytest.fixture(scope="module")
def result(records):
    return dpmcmc.sample(planned(logistic(), 800), records, key=1)


@pytest.mark.parametrize("step", [pytest.param(0.5, marks=pytest.mark.slow), 20.0])
def test_the_spread_is_that_of_all_steps_whatever_is_kept(step, monkeypatch):
    """Steps of 20 overshoot: they alternate in sign, so kept draws with thin > 1 fall on one side.

    Fewer gradients, averages, tell a little less of the second moment of rows.
    """
    monkeypatch.setattr("dpmcmc.engine.sizes._CHUNK_STEPS", 64)
    x, y, _ = logistic_table(5000, 5, np.random.default_rng(0))
    data, changes = {"x": x.astype(np.float32), "y": y.astype(np.int32)}, {"steps": 400, "burn_in": 200, "chains": 1}
    changes |= {"sampler": dpmcmc.SGLD(step_size=step), "sampling": dpmcmc.Full(), "metric": dpmcmc.PrivateMetric()}
    results = [dpmcmc.sample(planned(logistic(5), 5000, thin=thin, **changes), data, key=0) for thin in (1, 2, 200)]
    wanted = np.cov(results[0].trace.positions[0].T, ddof=0)
    by_draws = []
    for found in results:
        np.testing.assert_allclose(found.trace.spread, wanted, atol=1e-5 * np.abs(wanted).max())
        if step < 1:
            np.testing.assert_allclose(found.noise_aware().std, results[0].noise_aware().std, rtol=1e-2)
            continue
        with pytest.raises(UnsupportedCombination, match="noise_aware: the path is 5"):
            found.noise_aware()
        # Planted: the spread of kept draws, of which there may be one.
        draws = found.draws[0]
        faulty = dataclasses.replace(found.trace, spread=np.cov(draws.T, ddof=0).reshape(5, 5))
        try:
            by_draws.append(bool(faulty.posterior()))
        except UnsupportedCombination:
            by_draws.append(False)
    assert by_draws in ([], [False, True, True]), "the fault shows nothing"


def test_a_path_whose_spread_is_not_recorded_is_refused(records, monkeypatch):
    monkeypatch.setattr(recorded, "LARGEST", 3)
    found = dpmcmc.sample(planned(logistic(), 800, steps=100), records, key=1)
    with pytest.raises(UnsupportedCombination, match="plan it with thin=1"):
        found.noise_aware()


def test_a_saved_run_gives_the_same_posterior(result, tmp_path):
    found = result.noise_aware()
    result.save(tmp_path / "run", public=True)
    loaded, source = dpmcmc.load(tmp_path / "run"), "the posterior given the whole released path accounts"
    for one in (result, loaded):  # one truth, wherever it stands
        shown = one.summary()
        assert shown.intervals
        for said in (one.verdict.reasons["intervals"], str(shown), one._repr_html_(), one.page()):
            assert said.count(source) == 1
        assert "Do not report" not in one.page()
    assert loaded.verdict == result.verdict
    np.testing.assert_array_equal(loaded.path, result.path)
    np.testing.assert_array_equal(loaded.draws, result.draws)
    np.testing.assert_array_equal(loaded.posterior.draws, result.posterior.draws)
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(loaded.predict(x), result.predict(x))
    again = dpmcmc.inference.Trace.load(tmp_path / "run").posterior()
    np.testing.assert_array_equal(again.mean, found.mean)
    np.testing.assert_array_equal(again.covariance, found.covariance)
    with pytest.raises(ValueError, match=r"trace\.npz: is not there"):
        dpmcmc.inference.Trace.load(tmp_path)
    (tmp_path / "trace.npz").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="no trace of this version"):
        dpmcmc.inference.Trace.load(tmp_path)


def test_draws_and_predictions_are_those_of_the_posterior_and_not_of_the_path(result):
    found = result.noise_aware()
    assert result.usable_for == ["prediction", "intervals"]
    assert result.draws.shape == (4, 250, 4)
    flat_draws = result.draws.reshape(-1, 4)
    assert result.path.shape == (2, 16, 4)
    np.testing.assert_allclose(flat_draws.mean(axis=0), found.mean, atol=1e-5)
    np.testing.assert_allclose(np.cov(flat_draws.T), found.covariance, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.posterior.intervals(), found.intervals(), atol=0.15 * found.std.max())
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_allclose(result.predict(x), expit(flat_draws @ x.T).mean(axis=0), atol=1e-4)
    assert result.posterior["theta[2]"].shape == (1000,)
    with pytest.raises(KeyError, match=r"theta\[9\]: no parameter has this name"):
        result.posterior["theta[9]"]


@pytest.mark.slow
def test_the_command_writes_the_posterior(tmp_path, capsys):
    asked = [
        "--set",
        "metric={name: gram}",
        "--set",
        "run={steps: 100, burn_in: 0.5}",
        "--set",
        "sampler.step_size=0.5",
    ]
    asked += ["--set", "target.prior_scale=1.0"]
    assert main(["run", "breast_cancer", *asked, "--out", str(tmp_path / "residual")]) == 0
    assert "✗ intervals: " in capsys.readouterr().out
    said = json.loads((tmp_path / "residual" / "metrics.json").read_text())["usable_for_reasons"]["intervals"]
    assert "no posterior follows from the path: clip 0.25 shrinks residuals" in said
    assert not (tmp_path / "residual" / "trace.npz").exists()
    asked += ["--set", "privacy.clipping=label_blind"]
    assert main(["run", "breast_cancer", *asked, "--out", str(tmp_path / "run")]) == 0
    assert "✓ intervals, if the model and its prior are true" in capsys.readouterr().out
    said = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert said["from_path"]
    posterior = dpmcmc.inference.Trace.load(tmp_path / "run").posterior()
    result = dpmcmc.load(tmp_path / "run")
    np.testing.assert_allclose(result.posterior.mean, posterior.mean, atol=1e-5)
    np.testing.assert_allclose(result.posterior.std, posterior.std, rtol=1e-2)


@pytest.mark.parametrize(
    "sampler", [dpmcmc.SGHMC(step_size=0.05, friction=0.3), dpmcmc.SGNHT(step_size=0.01, friction=0.3)], ids=repr
)
def test_the_path_of_any_sampler_serves(sampler, records, result):
    """Gradients are queries at public points, whatever moved them: another sampler's posterior is about the same."""
    one = result.noise_aware()
    other = dpmcmc.sample(planned(logistic(), 800, sampler=sampler), records, key=4).noise_aware()
    assert np.all(np.abs(one.mean - other.mean) < 4 * np.hypot(one.std, other.std))
    assert np.all((0.5 * one.std < other.std) & (other.std < 2.5 * one.std))


def test_a_public_metric_needs_a_public_second_moment(records):
    sampler = dpmcmc.SGFS(step_size=0.1, metric=0.5)
    made = planned(logistic(), 800, sampler=sampler, metric=None, privacy=dpmcmc.Privacy(3.0, 1e-5, clip=4.0))
    found = dpmcmc.sample(made, records, key=5)
    with pytest.raises(UnsupportedCombination, match=r"noise_aware\(gram="):
        found.noise_aware()
    x = records["x"].astype(np.float64)
    assert np.all(found.noise_aware(x.T @ x / 800).std < 1)
    with pytest.raises(ValueError, match="second moment"):
        found.noise_aware(np.eye(3))
    with pytest.raises(ValueError, match="divide Σ x xᵀ by N = 800"):
        found.noise_aware(x.T @ x)


@pytest.mark.parametrize(
    ("changes", "target", "said"),
    [
        ({"metric": None}, logistic(), "the run has no metric"),
        ({"steps": 40, "burn_in": 30}, logistic(), "20 steps of equal weight"),
        ({"metric": dpmcmc.PrivateMetric(clip_ratio=0.2), "privacy": RESIDUAL}, logistic(), "shrinks residuals"),
        ({"metric": dpmcmc.PrivateMetric("second_moment", clip_ratio=20.0)}, logistic(), "released none"),
        ({}, logistic(prior_scale=9.0), "take a smaller prior_scale"),
    ],
    ids=["no metric", "few steps", "residual clipping", "metric of gradients", "strong prior"],
)
def test_paths_that_identify_no_posterior_are_refused(changes, target, said, result):
    """The path of one run, as that of others."""
    plan = planned(target, 800, **changes)
    draws, means = result.draws[:, : plan.num_draws], [part[:, : plan.num_draws] for part in result.means[:2]]
    means = (*means, result.means[2]) if plan.metric else None
    metric = None
    if plan.metric:
        asked = {"name": plan.metric.asked.name, "clip": plan.privacy.clip, "clip_ratio": plan.metric.asked.ratio}
        metric = dataclasses.replace(result.metric, **asked, root=None)
    with pytest.raises(UnsupportedCombination, match=said):
        trace_of(plan, draws, means, metric).posterior()


def test_a_path_that_is_still_on_its_way_is_refused(result):
    far = dataclasses.replace(result.trace, positions=result.trace.positions + 40.0)
    with pytest.raises(UnsupportedCombination, match="take a smaller step_size, a longer burn_in"):
        far.posterior()


def test_a_quiet_path_that_is_still_on_its_way_is_refused(records, result):
    """Gradients of many records with little noise: a logit away is many posterior standard deviations."""
    trace, x = result.trace, records["x"].astype(np.float64)
    gram = 25 * x.T @ x
    towards = 0.2 * gram @ np.array([2.0, 0.0, 0.0, 0.0])
    quiet = {"precisions": 1e4 * trace.precisions, "squares": 1e8 * trace.squares, "num_records": 20_000, "rate": 1.0}
    still = np.zeros_like(trace.positions)
    far = dataclasses.replace(trace, positions=still, gradients=still + towards, scheme="full", **quiet)
    with pytest.raises(UnsupportedCombination, match="posterior standard deviations from the posterior's mean"):
        far.posterior(gram / 20_000)


def test_other_targets_and_mechanisms_are_refused():
    softmax = dpmcmc.targets.SoftmaxRegression(num_classes=2, num_features=4, row_bound=1.0)
    one_shot = dpmcmc.mechanisms.NoiseAware(draws=2, steps=4).plan(logistic(), num_records=800, epsilon=1.0, delta=1e-4)
    for plan, said in ((planned(softmax, 800), "the target is SoftmaxRegression"), (one_shot, "keeps no path")):
        with pytest.raises(UnsupportedCombination, match=said):
            trace_of(plan, np.zeros((1, 2, 4)), None, None)


def test_linear_regression_with_room_for_every_gradient(records, monkeypatch):
    plan_any_epsilon(monkeypatch)  # hardly any noise
    rng, x = np.random.default_rng(9), records["x"]
    truth = rng.normal(size=4)
    y = np.clip(x @ truth + 0.5 * rng.normal(size=800), -4, 4).astype(np.float32)
    target = dpmcmc.targets.LinearRegression(1.0, 0.5, 4.0, num_features=4, row_bound=1.0)
    clip = dpmcmc.PrivateMetric(clip_ratio=200.0)
    made = planned(target, 800, metric=clip, privacy=dpmcmc.Privacy(1e4, 1e-5), sampling=dpmcmc.Full())
    found = dpmcmc.sample(made, {"x": x, "y": y}, key=10).noise_aware()
    mean, covariance = target.posterior({"x": x, "y": y})
    assert np.all(np.abs(found.mean - mean) < 3 * found.std)
    assert np.all(found.std > 0.97 * np.sqrt(np.diag(covariance)))


@pytest.mark.parametrize(("truth", "scale", "refused"), [(0.0, 0.0, False), (2.0, 1.0, False), (9.0, 0.0, True)])
def test_a_release_that_contradicts_a_prior_with_a_pull_is_refused(truth, scale, refused):
    """Conjugate: θ̂ ~ N(θ, s²) under a prior N(0, 1); a truth of nine standard deviations is drawn to zero."""
    rng, size, variance = np.random.default_rng(0), 6, 0.5
    theta = truth + scale * rng.normal(size=size)
    estimate = theta + math.sqrt(variance) * rng.normal(size=size)
    covariance = np.eye(size) / (1 + 1 / variance)
    found = from_trace.Gaussian(covariance @ estimate / variance, covariance)
    if refused:
        with pytest.raises(UnsupportedCombination, match=r"contradicts the prior \(p \de-\d+\), which draws"):
            from_trace.check_pull(found, 1.0)
    else:
        from_trace.check_pull(found, 1.0)


def test_a_contradicted_prior_that_does_not_pull_is_kept():
    """So much is told that the prior moves nothing."""
    covariance = np.eye(4) / (1 + 1e8)
    from_trace.check_pull(from_trace.Gaussian(np.full(4, 9.0), covariance), 1.0)


def test_p_values_of_truths_from_the_prior_are_uniform():
    """Hardly anything is refused where the prior is true: one in a thousand would contradict it."""
    rng, refused = np.random.default_rng(3), 0
    covariance = np.eye(5) / (1 + 1 / 0.3)
    for _ in range(2000):
        estimate = rng.normal(size=5) + math.sqrt(0.3) * rng.normal(size=5)
        try:
            from_trace.check_pull(from_trace.Gaussian(covariance @ estimate / 0.3, covariance), 1.0)
        except UnsupportedCombination:
            refused += 1
    assert refused <= 8


_STD, _SLOPE = 5.0, 0.2
_METRIC = np.diag([400.0, 9.0, 4.0]) + 1.0
_GRAM = np.diag([900.0, 60.0, 40.0]) + 5.0


def _told(rng, steps=40):
    """Return a release, and the differences of a linear path, as ``refined`` takes them."""
    positions = rng.normal(size=(steps, 3)) * [1.0, 4.0, 6.0]
    positions -= positions.mean(0)
    noise = rng.normal(size=(steps, 3)) @ np.linalg.cholesky(_METRIC).T
    gradients = _SLOPE * positions @ _GRAM + noise - noise.mean(0)
    released = _GRAM + _STD * symmetric_noise(rng, 3)
    noisy = NoisyGram(gram=released, noise_std=_STD, trace=float(np.trace(_GRAM)), trace_std=1e-9)
    return noisy, Differences(positions, gradients, np.ones(steps), _METRIC)


def test_the_estimate_is_the_generalised_least_squares_one():
    noisy, path = _told(np.random.default_rng(0))
    pairs = [(i, j) for i in range(3) for j in range(i, 3)]
    units = [(np.eye(3)[[i]].T @ np.eye(3)[[j]] + np.eye(3)[[j]].T @ np.eye(3)[[i]]) / (1 + (i == j)) for i, j in pairs]
    whiten = np.linalg.inv(np.linalg.cholesky(_METRIC)).T
    moved = np.stack([(_SLOPE * path.positions @ unit @ whiten).ravel() for unit in units], 1)
    beyond = ((path.gradients - _SLOPE * path.positions @ noisy.gram) @ whiten).ravel()
    before = np.diag([(1 if i == j else 2) / _STD**2 for i, j in pairs])
    found = np.linalg.solve(moved.T @ moved + before, moved.T @ beyond)
    wanted = noisy.gram + sum(one * unit for one, unit in zip(found, units, strict=True))
    wanted += np.eye(3) * (np.trace(_GRAM) - np.trace(wanted)) / 3  # the projection knows the trace
    got = refined(noisy, None, path, _SLOPE * noisy.gram, _SLOPE).gram
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_its_error_is_the_bootstrapped_one_and_smaller_than_the_release_s():
    rng, direction = np.random.default_rng(1), np.array([0.0, 0.6, 0.8])
    squares, said, released = [], [], []
    for _ in range(150):
        noisy, path = _told(rng)
        found = refined(noisy, None, path, _SLOPE * noisy.gram, _SLOPE)
        squares.append(float(np.sum(((found.gram - _GRAM) @ direction) ** 2)))
        released.append(float(np.sum(((noisy.gram - _GRAM) @ direction) ** 2)))
        said.append(float(np.trace(found.error(np.outer(direction, direction)))))
    # Means of 150 squares with about two degrees of freedom vary by 8 %, those of 24 bootstraps by 2 %.
    assert np.mean(squares) == pytest.approx(np.mean(said), rel=0.3)
    assert np.mean(squares) < 0.75 * np.mean(released)


@pytest.mark.parametrize(
    ("curvature", "error", "noise", "share"),
    [
        ([50.0, 50.0], 0.0, 1.0, 0.0),  # the records tell both
        ([50.0, 0.3], 0.0, 1.0, 0.0),  # the prior's without privacy too
        ([50.0, 0.3], 8.0, 1.0, 0.5),  # the curvature is lost in noise
        ([50.0, 50.0], 0.0, 1e5, 1.0),  # the gradient is
    ],
)
def test_coefficients_are_lost_where_noise_and_not_the_records_leave_them_to_the_prior(curvature, error, noise, share):
    h = np.diag(curvature)
    local, prior, noise = Local(h, h, isotropic_error(error)), np.eye(2), noise * np.eye(2)
    covariance = np.eye(2)
    for _ in range(20):
        total = h + noise + local.curvature_error(covariance)
        covariance = np.linalg.inv(prior + h @ np.linalg.solve(total, h))
    assert lost(Gaussian(np.zeros(2), covariance), local, 1.0, noise, prior) == share


@pytest.fixture(scope="module")
def narrow():
    """A run on columns that fill a tenth of their ranges, with effects that the prior does not expect."""
    rng, n = np.random.default_rng(0), 3000
    z = np.clip([0.5, -0.3, 0.2] + [0.09, 0.12, 0.4] * rng.normal(size=(n, 3)), -1, 1)
    x = np.concatenate([np.ones((n, 1)), z], 1) / 2
    truth = np.array([0.0, 6.0, -6.0, 1.0])
    y = rng.random(n) < expit((x - x.mean(0)) @ truth)
    target = dpmcmc.targets.LogisticRegression(num_features=4, row_bound=1.0, prior_scale=2.0)
    plan = dpmcmc.plan(
        target,
        num_records=n,
        sampler=dpmcmc.SGLD(step_size=4.0),
        steps=80,
        burn_in=40,
        privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
        metric=dpmcmc.PrivateMetric("gram", structure=RowStructure(constant=0)),
    )
    assert "intervals" in plan.usable_for
    with pytest.warns(NotForIntervals, match="leaves .* of the coefficients to the prior"):
        return dpmcmc.sample(plan, {"x": x.astype(np.float32), "y": y.astype(np.int32)}, key=3)


def test_a_run_whose_coefficients_noise_hides_predicts_from_its_posterior_and_claims_no_intervals(narrow, tmp_path):
    xarray = pytest.importorskip("xarray")
    assert narrow.usable_for == ["prediction"]
    assert narrow.posterior is None
    narrow.save(tmp_path / "run", public=True)
    for one in (narrow, dpmcmc.load(tmp_path / "run")):
        assert "of the coefficients to the prior" in one.verdict.reasons["intervals"]
        np.testing.assert_allclose(np.std(one.flat_draws(), axis=0), one.noise_aware().std, rtol=0.05)
    assert "the posterior given all that its path released" in narrow.page()
    with xarray.open_datatree(tmp_path / "run" / "draws.nc", engine="h5netcdf") as tree:
        assert set(tree.children) == {"draws", "path", "path_stats", "metric"}
        assert math.isclose(float(tree["draws"]["theta"].std()), float(np.std(narrow.draws)), rel_tol=1e-5)
