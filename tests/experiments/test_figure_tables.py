"""Each table of docs/figures.md that reports a figure's numbers is made of the results beside the picture.

``docs/images/NAME.csv`` is the ``results.csv`` of the run that drew ``NAME.svg``.
"""

import importlib.util
import math
import re

import numpy as np
import pytest
from scipy.stats import ttest_ind_from_stats

from dpmcmc.config.file import load
from dpmcmc.config.plans import make_plan
from dpmcmc.privacy.accounting.cost_of_run import account
from experiments import efficiency
from experiments.panel import config, summary
from tests.page_tables import ROOT, number, results, said, section, tables, with_error


def test_planted_fault_a_cell_that_is_off_by_one_digit_is_seen():
    assert said("0.455", 0.4553)
    assert not said("0.456", 0.4553)
    assert said("2.64", 2.6304, up=True)
    assert not said("2.63", 2.6304, up=True)
    assert said("5,740", 5736.0)
    assert not with_error("8.99 ± 0.02", 8.993, 0.03)


def test_the_time_of_each_figure():
    """A quick run of all takes five minutes at most on two cores, and a full one an hour."""
    rows = {row["figure"]: row for row in results("figure_times")}
    spec = importlib.util.spec_from_file_location("reproduce_figures", ROOT / "scripts" / "reproduce_figures.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert set(rows) == {"fig3_2_adult", "fig3_2_abalone", *script.NAMES, "headline"}
    flat = " ".join(section("All figures at once").split())
    (minutes,) = re.findall(r"a quick run takes (\d+) minutes and a full one about (\d+)", flat)
    missing = sum(row["full_measured"] == "0" for row in rows.values())
    assert f"{missing} of {len(rows)} were not timed" in flat
    for stated, kind, most in zip(minutes, ("quick", "full"), (5, 60), strict=True):
        seconds = sum(int(row[kind]) for row in rows.values())
        assert int(stated) == round(seconds / 120) <= most


def test_figure_4_2():
    rows = {(row["panel"], float(row["gamma"])): row for row in results("fig4_2")}
    lines = {
        "On-average KL, closed form of each pair": ("kl", "kl_error"),
        "γ × gap, training and fresh risks": ("gap", "gap_error"),
        "DP of the data set, 4γ": ("dp_printed",),
        "DP of one person, 4γ/100": ("dp_record",),
        "DP of one person as printed, 64γ": ("dp_printed",),
    }
    shown = tables(section("Figure 4.2"))
    assert [len(table) for table in shown] == [5, 4]
    for panel, (header, *body) in zip(("mean", "regression"), shown, strict=True):
        for label, *cells in body:
            for gamma, cell in zip(header[1:], cells, strict=True):
                row = rows[panel, number(gamma)]
                values = [float(row[name]) for name in lines[label]]
                if lines[label][0] == "gap":
                    values = [number(gamma) * value for value in values]
                assert (with_error if len(values) == 2 else said)(cell, *values), (label, gamma)
    most = max(float(row["disagreement"]) for row in rows.values())
    assert said(re.findall(r"differ by no more than ([\d.]+) standard errors", section("Figure 4.2"))[0], most)


def test_figure_3_1():
    """Below, means over runs; above, all chains together, with the error that three independent draws a chain have."""
    names = {
        "SGLD at a fifth of the step": "SGLD at a smaller step",
        "SGLD, same step, temperature 1": "SGLD at the printed step",
        "SGLD, same step, not private": "SGLD at the printed step",
    }
    below, above = tables(section("Figure 3.1"))
    for pooled, body in ((False, below[1:]), (True, above[1:])):
        for label, epsilon, runs, *cells in body:
            private = epsilon != "none"
            rows = [
                r
                for r in results("fig3_1")
                if r["method"] == names.get(label, label) and (r["private"] == "True") == private
            ]
            together, apart = [r for r in rows if r["repeat"] == "pooled"], [r for r in rows if r["repeat"] != "pooled"]
            assert len(apart) == int(runs), label
            assert not private or said(epsilon.partition(" / ")[2], float(rows[0]["guarantee_epsilon"]), up=True), label
            shown = zip(("mean_error", "covariance_error", "temperature"), cells, strict=True)
            for column, cell in shown:
                values = [float(r[column]) for r in (together if pooled else apart)]
                if "±" in cell:
                    error = values[0] / math.sqrt(3 * int(runs)) if pooled else np.std(values, ddof=1)
                    assert with_error(cell, np.mean(values), error), (label, column, values, error)
                else:
                    assert said(cell, np.mean(values)), (label, column, values)


PANELS = ("adult", "abalone", "two_normals")
#: Fewest runs of a cell that a table may show.
_FEWEST = 3


def panel_of(name):
    """A panel of figure 3.2, and the means that the page and its pictures show."""
    means = summary.read(ROOT / "docs" / "images" / f"fig3_2_{name}.csv", "docs")
    return config.load(ROOT / "configs" / "figures" / f"fig3_2_{name}.yaml"), means


def missing(panel, means):
    """Return the methods that have settings, and lack some ε in the table."""
    expected = {
        (encoding, version, method)
        for encoding in panel.encodings
        for version, methods in panel.settings.items()
        for method in methods
    }
    epsilons = {}
    for mean in means:
        if mean.runs >= _FEWEST:
            epsilons.setdefault((mean.encoding, mean.version, mean.method), set()).add(mean.epsilon)
    return expected - {which for which, found in epsilons.items() if found == set(panel.epsilons)}


@pytest.mark.parametrize("name", PANELS)
def test_every_method_of_figure_3_2_is_in_its_table(name):
    panel, means = panel_of(name)
    assert not missing(panel, means)
    assert missing(panel, [mean for mean in means if (mean.method, mean.epsilon) != ("sgfs", 10.0)])


def test_the_page_says_whose_settings_linear_has():
    own = [
        (name, version, method)
        for name in PANELS
        for version, methods in panel_of(name)[0].settings.items()
        for method, encodings in methods.items()
        if "linear" in encodings
    ]
    flat = " ".join(section("Figure 3.2").split())
    assert ("All methods of `linear` run with the settings that were chosen for `public`" in flat) == (not own)
    few = {(m.version, m.method) for name in PANELS for m in panel_of(name)[1] if 1 < m.runs < 10}
    assert few == {("printed", name) for name in ("sgld", "sgnht", "hybrid")}
    assert flat.count("DP-SGLD, DP-SGNHT and the printed hybrid") == 2


def test_what_the_page_says_of_abalone_and_of_linear():
    """Means of ten runs are held against each other by Welch's test."""
    flat = " ".join(section("Figure 3.2").split())
    tables_of = {name: {(m.encoding, m.version, m.method, m.epsilon): m for m in panel_of(name)[1]} for name in PANELS}

    def p_value(first, second):
        arguments = (x for m in (first, second) for x in (m.accuracy, m.std, m.runs))
        return ttest_ind_from_stats(*arguments, equal_var=False).pvalue

    def p_of(version, first, second, epsilon):
        those = (tables_of["abalone"]["public", version, name, epsilon] for name in (first, second))
        return p_value(*those)

    (least,) = re.findall(r"cannot be told apart up to ε = 3 \(p is at least ([\d.]+) at each ε\)", flat)
    printed = {e: p_of("printed", "ops", "objective_perturbation", e) for e in (0.1, 0.3, 1.0, 3.0, 10.0)}
    assert min(printed[e] for e in (0.1, 0.3, 1.0, 3.0)) >= float(least)
    assert printed[10.0] < 0.001
    for name in ("sgld", "sghmc", "sgnht", "sgfs", "hybrid"):
        assert min(p_of("tight", name, "objective_perturbation", e) for e in (0.1, 0.3, 1.0)) > 0.05
        assert p_of("tight", name, "objective_perturbation", 10.0) < 0.001
        assert tables_of["abalone"]["public", "tight", name, 10.0].proved < 10
    stated = re.findall(r"\((0\.\d+) against (0\.\d+)\)", flat.split("**The encoding `linear`**")[1])
    adult = tables_of["adult"]
    for (ours, other), epsilon in zip(stated, (0.1, 10.0), strict=True):
        sgld, objective = (adult["linear", "tight", name, epsilon] for name in ("sgld", "objective_perturbation"))
        assert said(ours, sgld.accuracy)
        assert said(other, objective.accuracy)
        assert p_value(sgld, objective) < 0.001
    behind = re.findall(
        r"is ([\d.]+) points behind SGLD at ε = 0.1, ([\d.]+) at ε = 0.3 and 1, and level from ε = 3", flat
    )
    for epsilon, stated in zip((0.1, 0.3, 1.0), (behind[0][0], behind[0][1], behind[0][1]), strict=True):
        sgld, clipped = (adult["public", "tight", name, epsilon] for name in ("sgld", "objective_clipped"))
        assert said(stated, 100 * (sgld.accuracy - clipped.accuracy))
    for epsilon in (3.0, 10.0):
        assert p_value(*(adult["public", "tight", name, epsilon] for name in ("sgld", "objective_clipped"))) > 0.05


def test_two_normals():
    rows = results("fig3_2_two_normals")
    found = {(r["version"], r["method"], float(r["epsilon"])): (float(r["accuracy"]), float(r["std"])) for r in rows}
    text = " ".join(section("Figure 3.2").split("**On two normals**")[1].split("![")[0].split())
    at_one = [
        accuracy for (version, _, epsilon), (accuracy, _) in found.items() if (version, epsilon) == ("tight", 1.0)
    ]
    samplers = ("sgld", "noisy_sgd", "sghmc", "sgnht", "sgfs", "hybrid")
    at_a_tenth = [found["tight", name, 0.1][0] for name in samplers]
    ranges = re.findall(r"(0\.\d+) to (0\.\d+)", text)
    for (least, most), values in zip(ranges, (at_one, at_a_tenth), strict=True):
        assert said(least, min(values)), min(values)
        assert said(most, max(values)), max(values)
    named = ("printed", "sgld", 1.0), ("tight", "objective_perturbation", 0.1), ("tight", "ops_printed", 0.1)
    for cell, which in zip(re.findall(r"0\.\d+ ± 0\.\d+", text), named, strict=True):
        assert with_error(cell, *found[which]), (cell, found[which])


def test_figure_5_1():
    columns = {
        "differential privacy": "dp",
        "anyone who could join these data": "for_all",
        "mean of the people in the data": "data_mean",
        "differential privacy of the draw": "dp",
        "exponential mechanism, pure DP": "pure_dp",
        "excess risk": "excess_risk",
    }
    rows = results("fig5_1")

    def mean(panel, level, column):
        return np.mean([float(r[column]) for r in rows if (r["panel"], float(r["level"])) == (panel, level)])

    for panel, (header, *body) in zip(("left", "right"), tables(section("Figure 5.1")), strict=True):
        for label, *cells in body:
            for level, cell in zip(header[1:], cells, strict=True):
                at = panel, number(level)
                if label == "DP over that mean":
                    assert number(cell) == pytest.approx(mean(*at, "dp") / mean(*at, "data_mean"), rel=0.01)
                else:
                    value, epsilon = mean(*at, columns[label]), columns[label] != "excess_risk"
                    assert said(cell, value, up=epsilon), (label, level, value)
    pure, people = re.findall(r"pure ε of the ball, ([\d.]+), is hardly .*\n?([\d.]+): the", section("Figure 5.1"))[0]
    assert said(pure, mean("right", 0.03, "pure_dp"))
    assert said(people, mean("right", 0.03, "data_mean"), up=True)


def test_the_figure_of_per_instance_privacy():
    found = {}
    for row in results("fig_pdp_1"):
        found.setdefault(row["level"], []).append(float(row["epsilon"]))
    ((_, dp, everybody, people, most),) = tables(section("Figure 1 of the per-instance DP paper"))
    levels = (dp, "differential privacy"), (everybody, "for all, proved"), (people, "in the data, mean")
    for cells, level in (*levels, (most, "in the data, largest")):
        assert said(cells[1], found[level][0], up=True), cells
        if level != "differential privacy":
            ratios = np.array(found["differential privacy"]) / found[level]
            assert said(cells[2], ratios[0]), (cells, ratios[0])
            ends = cells[3].split(" to ") if cells[3] else ()
            assert not ends or (said(ends[0], ratios.min()) and said(ends[1], ratios.max())), (cells, ratios)
    attained = re.findall(r"\(([\d.]+) attained\)", everybody[1])[0]
    assert said(attained, found["for all, attained"][0])


def test_efficiency():
    rows = {(r["method"], r["epsilon"], float(r["num_records"])): r for r in results("efficiency")}
    for (method, _, size), row in rows.items():
        if size == 1e6 and (method.startswith("OPS") or method == efficiency.NOT_PRIVATE):
            assert float(row["ratio"]) == pytest.approx(float(row["limit"]), abs=4 * float(row["ratio_error"]))
    near = [(method, n) for (method, epsilon, n), r in rows.items() if epsilon == "1" and float(r["ratio"]) < 1.5]
    for name, least in (("sufficient statistics", 3e4), ("AdaOPS", 1e5)):
        assert min(n for method, n in near if method == name) == least


def test_cost_to_each_record():
    text, rows = section("Cost of a private run on Adult to each record"), results("fig_per_record")
    minibatches = rows[0]
    ((_, *shown),) = tables(text)
    for cells, row in zip(shown, rows, strict=True):
        columns = ("promised", "worst_case", "mean", "median", "smallest")
        for cell, name in zip(cells[1:6], columns, strict=True):
            assert said(cell, float(row[name]), up=True), (cells[0], name)
        for cell, name in zip(cells[6:], ("below_0.2", "above_promised"), strict=True):
            assert said(cell, 100 * float(row[name])), (cells[0], name)
    flat = " ".join(text.split())
    rare, others = re.findall(r"lose ([\d.]+) on average with minibatches, the others ([\d.]+)\.", flat)[0]
    assert said(rare, float(minibatches["mean_label_1"]))
    assert said(others, float(minibatches["mean_label_0"]))
    larger = float(minibatches["worst_case"]) / float(minibatches["promised"])
    assert said(re.findall(r"(\d+) % larger here", flat)[0], 100 * (larger - 1))


def test_one_step_of_the_run_whose_records_are_shown():
    plan = make_plan(load(ROOT / "configs" / "adult_prediction.yaml", ["privacy.adjacency=zero_out"]))
    flat = " ".join(section("Cost of a private run on Adult to each record").split())
    renyi, pld = re.findall(r"one step costs ([\d.]+) by Rényi divergences, ([\d.]+) by", flat)[0]
    for cell, accountant in ((renyi, "rdp"), (pld, "pld")):
        one = account(
            plan.noise_multipliers[0], steps=1, sampling=plan.sampling, num_records=plan.num_records, delta=1e-6,
            adjacency="zero_out", accountant=accountant,
        )  # fmt: skip
        assert float(cell) == pytest.approx(one.epsilon, abs=6e-4)
    steps, batch, times = re.findall(r"([\d,]+) Poisson batches of (\d+)\).*computes (\d+) times as many", flat)[0]
    assert (number(steps), float(batch)) == (plan.steps, plan.batch_size)
    assert float(times) == round(plan.num_records / plan.batch_size)
