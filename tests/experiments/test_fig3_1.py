"""Figure 3.1 against the exact posterior of its generated regression."""

import numpy as np
import pytest

from experiments import fig3_1
from experiments.figure_files import CONFIGS
from experiments.two_dimensions import measures
from experiments.two_dimensions import methods as lines
from experiments.two_dimensions.problem import make_problem


def shortened(**changes):
    """The quick settings, with changes as section=dict."""
    settings = fig3_1.load(CONFIGS / "fig3_1.yaml", fig3_1.Settings).shortened()
    return settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=change) for name, change in changes.items()}
    )


def test_samplers_spend_the_epsilon_at_temperature_one():
    settings = shortened(regression={"num_records": 900}, samples={"steps": 300, "batch_size": 630})
    spent = {one.name: one.plan for one in lines.methods(settings, make_problem(settings.regression)) if one.private}
    for name in lines.SAMPLERS:
        assert spent[name].temperatures.max() == pytest.approx(1, abs=1e-5)
        assert 0.97 * settings.privacy.epsilon < spent[name].guarantee.epsilon <= settings.privacy.epsilon


def test_printed_step_is_the_largest_without_noise_for_privacy():
    settings = shortened(regression={"num_records": 2500}, samples={"batch_size": 1250})
    plan = lines.methods(settings, make_problem(settings.regression))[0].plan
    steps, clip = 2500 * 100 // 50, 3 / 5
    variance = 128 * steps * clip**2 / 10**2 * np.log(2.5 * steps / 1e-6) * np.log(2 / 1e-6)
    eta = plan.sampler.step_size / 2500
    assert variance * eta == pytest.approx(1)
    np.testing.assert_allclose((eta * plan.noise_std) ** 2, eta, rtol=1e-5)


def test_moments_do_not_see_a_common_drift():
    settings = shortened()
    problem = make_problem(settings.regression)
    method = lines.methods(settings, problem)[0]
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(40, 500, 2))
    drift = np.linspace(5, 0, 500)[None, :, None]
    _, still = measures.moments(method, draws)
    _, moving = measures.moments(method, draws + drift)
    np.testing.assert_allclose(still, moving, atol=1e-9)
    # 8000 normals: the standard error of a variance is 1.6 %.
    np.testing.assert_allclose(still.mean(axis=0), np.eye(2), atol=0.065)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_private_sgnht_recovers_the_posterior_within_ten_per_cent():
    settings = fig3_1.load(CONFIGS / "fig3_1.yaml", fig3_1.Settings)
    problem = make_problem(settings.regression)
    few = settings.samples.model_copy(update={"repeats": 1, "small_repeats": 1})
    settings = settings.model_copy(
        update={
            "samples": few,
            "noise_seed": 3_101,
            "trajectories": settings.trajectories.model_copy(update={"repeats": 24, "plain_repeats": 2}),
        }
    )
    found = {(one.method.name, one.method.private): one.rows for one in fig3_1.run(settings, problem)}
    runs = found["SGNHT", True][:-1]
    assert np.mean([row["mean_error"] for row in runs]) <= 0.1
    assert np.mean([row["covariance_error"] for row in runs]) <= 0.1
    pooled = {name: rows[-1] for (name, private), rows in found.items() if private}
    assert (
        pooled["SGNHT"]["covariance_error"] < pooled["SGHMC"]["covariance_error"] < pooled["SGLD"]["covariance_error"]
    )
    # 24 chains of about three independent draws in two dimensions: a standard error of 12 %, plus the minibatches'.
    assert pooled[lines.PRINTED]["temperature"] == pytest.approx(0.53, abs=0.2)
    assert pooled[lines.SAME_STEP]["temperature"] == pytest.approx(1.03, abs=0.4)
    assert pooled[lines.PRINTED]["temperature"] < 0.75 * pooled[lines.SAME_STEP]["temperature"]
