"""Figures: no text lies on another, the same numbers give the same bytes, and the style is one."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from dpmcmc.cli.refusals import CommandError
from dpmcmc.inference import names
from dpmcmc.inference.predictive import calibration_curve
from dpmcmc.privacy import Event, Guarantee
from dpmcmc.report import figures
from experiments import coverage, headline, pictures
from experiments.calibration import picture as coverage_picture
from experiments.figure_files import load, read_table
from experiments.panel import config, draw, summary
from experiments.panel.methods import METHODS
from experiments.panel.summary import Mean
from tests.overlaps import no_overlaps, overlapping

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def saved():
    with no_overlaps(write=False) as figures:
        yield figures


def test_figures_of_a_run_folder_have_no_text_on_another(saved, tmp_path):
    rng = np.random.default_rng(0)
    note = "generated stand-in for adult: not the real data"
    draws = names.few({"a very long name of a layer of a network": 1e5 * rng.standard_normal((2, 50, 3, 4))}, None)
    figures.traces(tmp_path / "traces.png", draws, (500, 10), "Draws of adult: ε = 1, δ = 1e-6, replace_one", note)
    figures.traces(tmp_path / "one.png", {"θ": rng.standard_normal((1, 50))}, (5, 1), "Draws", None)
    chance = rng.random(400)
    curve = calibration_curve(chance, rng.random(400) < chance)
    curves = dict.fromkeys(("private", "not private, by Laplace"), (curve, chance))
    figures.calibration(tmp_path / "calibration.png", curves, "income above 50,000", "Calibration of adult", note)
    labels = rng.standard_normal(100)
    figures.predictions(tmp_path / "predictions.png", {"private": labels + 0.1}, labels, "Predictions", note)
    for noise in (None, np.full(300, 8.25), np.geomspace(1, 1e3, 300)):
        figures.temperature(tmp_path / "temperature.png", np.geomspace(1, 7.3, 300), noise, "Temperature", note)
    guarantee = Guarantee.from_events(
        (Event("gaussian", 4.0, 1.0, 1),), delta=1e-6, adjacency="replace_one", accountant="pld", release="trace"
    )
    figures.epsilon_delta(tmp_path / "privacy.png", guarantee, "Privacy of all that leaves the run", note)
    assert len(saved) == 8


LONG = "a_column_with_a_name_that_never_ends_" * 3


def test_names_on_pictures_are_short_and_columns_keep_theirs():
    assert figures.readable("theta[3,4]") == "θ[3, 4]"
    assert figures.readable("params.Dense_0.kernel[3,12]") == "Dense_0 kernel[3, 12]"
    assert figures.readable("theta_power.of age") == "theta_power.of age"
    assert figures.readable("5 to 6 $") == r"5 to 6 \$"
    assert len(figures.readable(LONG, 40)) == 40
    assert "…" in figures.readable(LONG, 40)


def means_of(epsilons):
    """Results of every method, some level with each other and some better than the non-private fit."""
    rng, none = np.random.default_rng(1), float("inf")
    means = [
        Mean("public", m.version, m.name, e, 3, 0.848 - 0.01 * rng.integers(0, 3) / (1 + e) ** 2, 0.001, 0.37 * e, 1.0)
        for m in METHODS
        for e in epsilons
    ]
    fits = {"nuts": 0.8468, "map": 0.847, "map_clipped": 0.848}
    return means + [Mean("public", "non-private", name, none, 1, fit, 0.0, none, 1.0) for name, fit in fits.items()]


@pytest.mark.parametrize("epsilons", [[0.1, 0.3, 1, 3, 10], [1.0]], ids=["all", "quick"])
def test_figure_3_2_has_no_text_on_another(saved, tmp_path, epsilons):
    panel = config.load(ROOT / "configs/figures/fig3_2_adult.yaml")
    draw.panel_figure(tmp_path / "a.png", panel, means_of(epsilons), "public", "generated stand-in: not the real data")
    assert saved


def test_the_headline_and_the_noise_have_no_text_on_another(saved, tmp_path):
    settings = load(ROOT / "configs/figures/headline.yaml", headline.Headline)
    tables = read_table(ROOT / "docs/images/coverage.csv")
    headline.headline(tmp_path / "headline.png", settings, means_of([0.1, 1, 10]), tables)
    multipliers = {e: {name: 3.0 ** (i // 2) / e for i, name in enumerate(headline.ACCOUNTS)} for e in (0.1, 1, 10)}
    headline.noise_figure(tmp_path / "noise.png", settings, multipliers)
    coverage_picture.draw(tmp_path / "coverage.png", tables, coverage.BAND)
    assert len(saved) == 9


def test_a_summary_is_read_as_it_was_written(tmp_path):
    rows = [
        {"encoding": "public", "version": "tight", "method": "sgld", "epsilon": "0.3", "accuracy": str(0.8 + 0.01 * i),
         "guarantee_epsilon": "0.2999", "crps": "1.25"}
        for i in range(3)
    ]  # fmt: skip
    (mean,) = summary.summarised(rows)
    # An ε is never rounded down.
    (close,) = summary.summarised([{**rows[0], "guarantee_epsilon": "3.822096"}])
    assert close.proved == 3.823
    assert mean == Mean("public", "tight", "sgld", 0.3, 3, 0.81, 0.01, 0.2999, 1.25)
    summary.write(tmp_path / "summary.csv", [mean])
    assert summary.read(tmp_path / "summary.csv", "--results") == [mean]
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(CommandError, match=r"other\.csv is no summary of a panel"):
        summary.read(tmp_path / "other.csv", "--results")


def test_planted_fault_a_legend_on_a_title_is_found():
    figure = Figure()
    axis = figure.subplots()
    axis.set_title("a title")
    axis.plot([0, 1], label="a line")
    assert overlapping(figure) == []
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), borderpad=0)
    assert ("a title", "a line") in overlapping(figure)
    axis.text(5, 0.5, "far away")
    assert ("far away", "the edge") in overlapping(figure)


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        with pictures.saved(tmp_path / f"{name}.png", (4, 3), "A sentence", "about") as figure:
            figure.subplots().plot([0, 1, 4], "o-")
    for suffix in ("svg", "pdf"):
        assert (tmp_path / f"first.{suffix}").read_bytes() == (tmp_path / f"second.{suffix}").read_bytes()


def test_names_are_moved_apart_and_no_farther_than_needed():
    apart = pictures.spread(np.array([0.1, 0.11, 0.12, 0.5]), 0.1)
    np.testing.assert_allclose(apart, [0.01, 0.11, 0.21, 0.5])
    assert np.diff(pictures.spread(np.sort(np.random.default_rng(0).random(12)), 0.05)).min() > 0.05 - 1e-9
    np.testing.assert_array_equal(pictures.spread(np.array([0.2, 0.9]), 0.1), [0.2, 0.9])
    assert pictures.spread(np.array([]), 0.1).size == 0
