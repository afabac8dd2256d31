"""Figure 3.1 against the exact posterior of its generated regression."""

import csv

import numpy as np
import pytest

from experiments import fig3_1
from experiments.figure_files import CONFIGS
from experiments.two_dimensions import measures
from experiments.two_dimensions import methods as lines
from tests.overlaps import no_overlaps


@pytest.fixture(scope="module", autouse=True)
def _no_text_on_another():
    with no_overlaps():
        yield


#: They share runs that take half a minute.
pytestmark = pytest.mark.slow


def shortened(**changes):
    """The quick settings, with changes as section=dict."""
    settings = fig3_1.load(CONFIGS / "fig3_1.yaml", fig3_1.Settings).shortened()
    return settings.model_copy(
        update={name: getattr(settings, name).model_copy(update=change) for name, change in changes.items()}
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fig3_1")
    settings = shortened(
        regression={"num_records": 900},
        samples={"steps": 300, "batch_size": 630, "repeats": 2},
        trajectories={"repeats": 2, "plain_repeats": 2},
    )
    problem = fig3_1.make_problem(settings.regression)
    found = fig3_1.run(settings, problem)
    fig3_1.write_table(folder / "results.csv", measures.COLUMNS, [row for one in found for row in one.rows])
    fig3_1.draw(folder / "fig3_1.png", settings, problem, found, None)
    return settings, found, folder


@pytest.mark.slow
def test_table_has_a_row_per_run_and_one_of_all(tiny):
    _, found, folder = tiny
    with (folder / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == measures.COLUMNS
    assert len(rows) == sum(one.method.repeats + 1 for one in found)
    assert sum(row["repeat"] == "pooled" for row in rows) == len(found)
    assert all(np.isfinite(float(row[name])) for row in rows for name in ("mean_error", "covariance_error"))
    assert (folder / "fig3_1.png").stat().st_size > 10_000


@pytest.mark.slow
def test_every_private_row_has_a_guarantee_and_only_the_printed_one_claims(tiny):
    settings, found, _ = tiny
    for one in found:
        row = one.rows[0]
        if not row["private"]:
            assert (row["epsilon"], row["guarantee_epsilon"], row["assumptions"]) == (None, None, "no privacy")
            continue
        assert row["epsilon"] == settings.privacy.epsilon
        assert row["guarantee_epsilon"] <= settings.privacy.epsilon
        assert (row["assumptions"] == "epsilon is the source's claim") == (row["method"] == lines.PRINTED)


def test_samplers_spend_the_epsilon_at_temperature_one(tiny):
    settings, found, _ = tiny
    spent = {one.method.name: one.rows[0] for one in found if one.method.private}
    for name in lines.SAMPLERS:
        assert spent[name]["plan_temperature"] == pytest.approx(1, abs=1e-5)
        assert spent[name]["guarantee_epsilon"] > 0.97 * settings.privacy.epsilon


def test_printed_step_is_the_largest_without_noise_for_privacy():
    settings = shortened(regression={"num_records": 2500}, samples={"batch_size": 1250})
    plan = lines.methods(settings, fig3_1.make_problem(settings.regression))[0].plan
    steps, clip = 2500 * 100 // 50, 3 / 5
    variance = 128 * steps * clip**2 / 10**2 * np.log(2.5 * steps / 1e-6) * np.log(2 / 1e-6)
    eta = plan.sampler.step_size / 2500
    assert variance * eta == pytest.approx(1)
    np.testing.assert_allclose((eta * plan.noise_std) ** 2, eta, rtol=1e-5)


def test_moments_do_not_see_a_common_drift():
    settings = shortened()
    problem = fig3_1.make_problem(settings.regression)
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
    problem = fig3_1.make_problem(settings.regression)
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
