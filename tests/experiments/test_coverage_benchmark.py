"""The coverage benchmark: scores against closed forms and planted faults, the command, and verdicts of configs."""

import csv
import math

import numpy as np
import pytest

from dpmcmc.targets import LinearRegression
from experiments import coverage
from experiments.calibration import predictive, scores
from experiments.calibration.cells import COLUMNS
from experiments.calibration.reference import laplace
from experiments.calibration.tasks import CLASSES, TASKS, Cell, simulated
from experiments.calibration.ways import WAYS
from experiments.figure_files import read_table
from tests.overlaps import no_overlaps


@pytest.fixture(scope="module", autouse=True)
def _no_text_on_another():
    with no_overlaps():
        yield


TABLES, DRAWS, D = 600, 99, 3


def conjugate(spread=1.0, shift=0.0, truths=1.0):
    """(draws, truth) of many tables: θ ~ N(0, 1), y ~ N(θ, 1); draws of N(y/2, 1/2), made wider or shifted."""
    rng = np.random.default_rng(5)
    for _ in range(TABLES):
        truth = truths * rng.normal(size=D)
        mean = (truth + rng.normal(size=D)) / 2 + shift
        yield mean + spread * math.sqrt(0.5) * rng.normal(size=(DRAWS, D)), truth


@pytest.mark.parametrize(
    ("fault", "right"), [({}, True), ({"spread": 0.7}, False), ({"spread": 1.4}, False), ({"shift": 0.4}, False)]
)
def test_curves_tell_the_posterior_from_laws_that_are_not(fault, right):
    rng = np.random.default_rng(0)
    pairs = list(conjugate(**fault))
    for curve in (scores.rank_fractions, scores.tarp_fractions):
        error = scores.curve_error(np.array([curve(draws, truth, rng) for draws, truth in pairs]))
        assert (error < 1.5 * scores.curve_floor(TABLES)) == right, (curve.__name__, error)


def test_the_prior_passes_the_ranks_and_tarp_and_crps_prefers_the_posterior():
    """Draws that ignore the records are calibrated too: width and proper scores tell them apart."""
    rng = np.random.default_rng(1)
    pairs = list(conjugate())
    prior = [(rng.normal(size=(DRAWS, D)), truth) for _, truth in pairs]
    error = scores.curve_error(np.array([scores.rank_fractions(*pair, rng) for pair in prior]))
    assert error < 1.5 * scores.curve_floor(TABLES)
    mean = [np.mean([scores.crps(*pair) for pair in those]) for those in (pairs, prior)]
    # The CRPS of N(m, s²) at a truth of that law is s/√π.
    assert mean == pytest.approx([math.sqrt(0.5 / math.pi), math.sqrt(1 / math.pi)], rel=0.06)


def test_crps_of_draws_is_that_of_their_law_whatever_their_number():
    rng = np.random.default_rng(3)
    mean, std, truth = np.array([1.0, -2.0]), np.array([0.5, 3.0]), np.array([1.4, 2.0])
    exact = scores.normal_crps(mean, std, truth)
    few = np.mean([scores.crps(mean + std * rng.normal(size=(4, 2)), truth) for _ in range(5000)], axis=0)
    np.testing.assert_allclose(few, exact, rtol=0.04)
    many = scores.crps(mean + std * rng.normal(size=(40_000, 2)), truth)
    np.testing.assert_allclose(many, exact, rtol=0.02)


def test_the_reference_is_the_exact_posterior_of_a_linear_regression():
    cell = Cell("statistics", "noise_aware", 2, 200, 1.0, 1.0)
    target = LinearRegression(prior_scale=1.0, noise_scale=math.sqrt(0.5 / 19), num_features=2)
    records, _ = simulated(cell, target, 0)
    mean, covariance = target.posterior(records)
    found = laplace(target, records)
    np.testing.assert_allclose(found[1], covariance, rtol=2e-3, atol=1e-4 * covariance.max())
    np.testing.assert_allclose(found[0], mean, atol=0.02 * np.sqrt(covariance.min(initial=1, where=np.eye(2) > 0)))


def test_tables_are_the_same_for_every_way_and_within_their_bounds():
    for name, d, n in (("logistic", 6, 50), ("linear", 11, 4000), ("statistics", 2, 50)):
        cell = Cell(name, "noise_aware", d, n, 1.0, 2.0)
        target = WAYS["noise_aware"].plan(cell).target
        records, truth = simulated(cell, target, 3)
        again, same = simulated(cell._replace(way="sgld", epsilon=3.0), target, 3)
        assert np.array_equal(records["x"], again["x"])
        assert np.array_equal(truth, same)
        assert np.linalg.norm(records["x"].astype(np.float64), axis=1).max() <= TASKS[name].row_bound * (1 + 1e-6)


def test_contrasts_of_classes_forget_what_softmax_does_not_tell():
    """Adding one vector to every class changes no contrast; the map is symmetric and leaves contrasts as they are."""
    identified, size = TASKS["softmax"].identified, 4 * CLASSES
    rng = np.random.default_rng(6)
    theta, common = rng.normal(size=(5, 4, CLASSES)), rng.normal(size=(5, 4, 1))
    found = identified(theta.reshape(5, size))
    np.testing.assert_allclose(identified((theta + common).reshape(5, size)), found, atol=1e-12)
    np.testing.assert_allclose(identified(found), found, atol=1e-12)
    np.testing.assert_allclose(identified(np.eye(size)), identified(np.eye(size)).T)


def test_binned_error_is_the_shift_of_probabilities():
    rng = np.random.default_rng(4)
    p = rng.uniform(0.2, 0.8, size=50_000)
    y = rng.random(50_000) < p
    assert predictive.binned_error(p, y) < 0.01
    assert predictive.binned_error(p + 0.1, y) == pytest.approx(0.1, abs=0.01)


SMALL = """
name: small
grids:
  - {task: logistic, ways: [noise_aware, noise_aware_evidence], dimensions: [5], records: [300], epsilons: [1.0],
     truth_scales: [1.0], tables: 2}
  - {task: logistic, ways: [ops, sgnht], dimensions: [10], records: [10000], epsilons: [1.0], truth_scales: [1.0],
     tables: 0}
predictive: null
quick: {grids: [{task: logistic, ways: [ops], dimensions: [5], records: [300], epsilons: [1.0], truth_scales: [1.0],
  tables: 0}], predictive: null}
"""


def table_of(folder):
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_a_row_per_cell_and_a_picture_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    path, out = tmp_path / "small.yaml", tmp_path / "out"
    path.write_text(SMALL)
    assert not coverage.main(["--config", str(path), "--out", str(out)])
    rows = table_of(out)
    assert list(rows[0]) == list(COLUMNS)
    found = [(row["way"], row["truth_scale"], row["verdict"], bool(row["coverage"])) for row in rows]
    assert found == [
        ("noise_aware", "1", "intervals", True),
        ("noise_aware_evidence", "1", "intervals", True),
        ("ops", "1", "prediction", False),
        ("sgnht", "1", "refused", False),
    ]
    assert (out / "small.png").stat().st_size > 5000
    before = (out / "results.csv").read_bytes()
    monkeypatch.setattr(coverage, "measured", None)  # nothing is measured again
    assert not coverage.main(["--config", str(path), "--out", str(out)])
    assert (out / "results.csv").read_bytes() == before


@pytest.mark.slow
def test_shipped_configs_are_for_what_the_benchmark_finds(tmp_path):
    """Ways whose plans say intervals cover; chains and single draws are marked, and a marked chain scores badly."""
    assert not coverage.main(["--quick", "--out", str(tmp_path)])
    rows = read_table(tmp_path / "results.csv")
    assert {str(row["way"]) for row in rows} >= {
        way for way in WAYS if not way.startswith(("sgfs_", "sgnht_planned"))
    } - {*("noise_aware_evidence", "metric_path", "sgld_planned_path")}
    for row in rows:
        aware = str(row["way"]).startswith(("noise_aware", "randomised_labels"))
        # The plan of a chain in a metric promises the posterior of its path; some ways measure its iterates.
        of_path = WAYS[str(row["way"])].config == "adult"
        assert (row["verdict"] == "intervals") == (aware or of_path), row["way"]
        if aware and "coverage" in row:
            assert coverage.covers(row), row
            assert float(row["tarp_error"]) < 1.5 * float(row["floor"])
    (chain,) = (row for row in rows if row["way"] == "sgld")
    assert float(chain["crps"]) > 1.5
