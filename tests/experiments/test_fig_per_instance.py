"""The figures of what a guarantee means for people: quick runs, and what they must show."""

import csv

import numpy as np
import pytest

from experiments import fig4_2, fig5_1, fig_pdp_1
from experiments.sources import on_average
from tests.overlaps import no_overlaps


@pytest.fixture(scope="module", autouse=True)
def _no_text_on_another():
    with no_overlaps():
        yield


FIGURES = {"fig4_2": fig4_2, "fig5_1": fig5_1, "fig_pdp_1": fig_pdp_1}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = {}
    for name, figure in FIGURES.items():
        out[name] = tmp_path_factory.mktemp(name)
        assert figure.main(["--quick", "--out", str(out[name])]) == 0
    return out


def table(folder):
    with (folder / "results.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_quick_run_writes_table_and_picture(name, folders):
    rows = table(folders[name])
    assert tuple(rows[0]) == FIGURES[name].COLUMNS
    assert (folders[name] / f"{name}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_on_average_kl_overlays_the_generalisation_gap(folders):
    rows = table(folders["fig4_2"])
    assert {row["panel"] for row in rows} == {"mean", "regression"}
    for row in rows:
        assert float(row["disagreement"]) < 4.5
    # The CLT's closed form: the truncated variance is 0.77374.
    for row in rows[:8]:
        exact = on_average.mean_release_kl(float(row["gamma"]), np.sqrt(2 * 0.77374 / 100))
        assert float(row["kl"]) == pytest.approx(exact, abs=4.5 * float(row["kl_error"]))
        assert float(row["dp_printed"]) == pytest.approx(4 * float(row["gamma"]))
        assert float(row["dp_record"]) == pytest.approx(0.04 * float(row["gamma"]))
        assert "of the data set" in row["dp_label"]
    assert all(float(row["dp_printed"]) > 30 * float(row["kl"]) for row in rows)


def test_regression_has_the_closed_form_of_its_gap(folders):
    """(1/3)(1/3 + 1/(2γ))E[1/A] + 1/(3n) − 1/(2γn), with E[1/A] = .030244 at n = 100 (200,000 repeats)."""
    for row in table(folders["fig4_2"])[8:]:
        gamma = float(row["gamma"])
        gap = (1 / 3 + 1 / (2 * gamma)) * 0.030244 / 3 + 1 / 300 - 1 / (200 * gamma)
        assert float(row["kl"]) == pytest.approx(gamma * gap, abs=4.5 * float(row["kl_error"]) + 0.002 * gamma * gap)
        excess = (1 / 3 + 1 / (2 * gamma)) * 0.030244 / 3
        assert float(row["excess_risk"]) == pytest.approx(excess, rel=0.02)


def test_three_levels_are_in_order_and_far_apart(folders):
    rows = [{**row, "epsilon": float(row["epsilon"])} for row in table(folders["fig_pdp_1"])]
    level = {name: fig_pdp_1.of_level(rows, name) for name in {row["level"] for row in rows}}
    mean, anyone, worst = (level[k] for k in ("in the data, mean", "for all, proved", "differential privacy"))
    assert (mean < level["for all, attained"]).all()
    assert (level["for all, attained"] <= anyone).all()
    assert (anyone < worst).all()
    # The paper: more than ten times, and about six.
    assert (worst / mean > 10).all()
    assert 3 < np.median(worst / anyone) < 12
    assert worst[0] == pytest.approx(2.63, abs=0.005)


def test_per_instance_lines_lie_below_the_worst_case(folders):
    rows = table(folders["fig5_1"])
    for row in rows:
        mean, anyone, dp = (float(row[key]) for key in ("data_mean", "for_all", "dp"))
        assert mean < float(row["for_all_attained"]) <= anyone < dp
        assert dp > 100 * mean
        if row["panel"] == "left":
            # "Several orders of magnitude"
            assert dp > 1000 * mean
    right = [row for row in rows if row["panel"] == "right" and row["repeat"] == "0"]
    risk = [float(row["excess_risk"]) for row in right]
    assert risk == sorted(risk, reverse=True)
    # Where the ball holds nearly all of the posterior, the two draws are one.
    for row in right:
        if float(row["inside_ball"]) == 1:
            assert float(row["pure_excess_risk"]) == pytest.approx(float(row["excess_risk"]), rel=0.2)


def test_pure_privacy_of_the_ball_is_never_exceeded():
    """log of a ratio of densities on the ball, by brute force in one dimension."""
    radius, gamma = 2.0, 3.0
    grid = np.linspace(-radius, radius, 4001)
    x, y = np.array([0.5, -1.0, 1.0]), np.array([1.0, -0.2, 0.4])
    base = -gamma / 2 * (((y[:, None] - x[:, None] * grid) ** 2).sum(axis=0) + grid**2)
    for new_x, new_y in ((1.0, -1.0), (-1.0, -1.0), (0.3, 1.0), (0.0, 1.0)):
        joined = base - gamma / 2 * (new_y - new_x * grid) ** 2
        ratio = (base - np.log(np.exp(base).sum())) - (joined - np.log(np.exp(joined).sum()))
        assert np.abs(ratio).max() <= gamma / 2 * (1 + radius) ** 2
