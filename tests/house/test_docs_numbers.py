"""A number of accounting that the documentation states is the one that the code gives."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine.results_table import numbers as numbers_of
from dpmcmc.privacy import FixedSize, Poisson
from dpmcmc.privacy.accounting.cost_of_run import account
from experiments.benchmark.summary import markdown, summarised
from experiments.panel import summary
from tests.coverage_tables import filled, results
from tests.page_tables import said

ROOT = Path(__file__).resolve().parents[2]


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def numbers(text):
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def test_guarantees_of_groups():
    """The page's own code for the first row, and the same call for the others."""
    text = page("docs/how-to/choosing_a_guarantee.md")
    (code,) = re.findall(r"\n    import dpmcmc\n(    one = .*?\n    \))\n", text, re.DOTALL)
    names = {"dpmcmc": dpmcmc}
    exec("\n".join(line[4:] for line in code.splitlines()), names)
    rows = dict(re.findall(r"^\| (ε, .*?|records) \| (.*) \|$", text, re.MULTILINE))
    sizes = [int(n) for n in numbers(rows["records"])]
    assert sizes == [1, 2, 3, 5, 10]
    one = names["one"]
    replaced = account(
        3.0, steps=500, sampling=Poisson(512), num_records=32561, adjacency="replace_one", delta=1e-6, accountant="pld"
    )
    given = {
        "ε, `add_remove`": [one.for_group(k).epsilon for k in sizes],
        "ε, `replace_one`": [replaced.for_group(k).epsilon for k in sizes],
    }
    for row, values in given.items():
        cells = rows[row].split(" | ")
        assert len(cells) == len(values)
        for cell, value in zip(cells, values, strict=True):
            if cell == "nothing finite":
                assert value == np.inf, row
            else:
                assert float(cell) == pytest.approx(value, abs=6e-4), row


def test_numbers_of_accountants():
    text = page("docs/trust.md")
    setting = {"steps": 2344, "num_records": 60000, "delta": 1e-5}
    (row,) = re.findall(r"\(PLD\) \| ε = (.*?) \|", text)
    expected = [
        account(1.1, sampling=Poisson(256), adjacency=a, **setting).epsilon for a in ("zero_out", "replace_one")
    ]
    assert numbers(row) == pytest.approx(expected, abs=1e-3)
    (row,) = re.findall(r"fixed size `replace_one`: `rdp` / `advanced` \| (.*?) \|", text)
    expected = [account(1.1, sampling=FixedSize(256), accountant=a, **setting).epsilon for a in ("rdp", "advanced")]
    assert numbers(row) == pytest.approx(expected, rel=1e-3)
    (row,) = re.findall(r"half the steps at 1.1, half at 2.2, Poisson `zero_out` \| (.*?)\) \|", text)
    schedule = np.repeat([1.1, 2.2], 1172)
    expected = [account(z, sampling=Poisson(256), adjacency="zero_out", **setting).epsilon for z in (schedule, 1.65)]
    assert numbers(row) == pytest.approx(expected, abs=1e-3)


#: Cell of the benchmark of intervals that measures a config on Adult.
_CELLS = {
    "adult": "SGLD on Adult",
    "adult_sghmc": "SGHMC on Adult",
    "adult_sgnht": "SGNHT on Adult",
    "adult_sgfs": "SGFS on Adult",
    "adult_noise_aware": "Adult",
}
#: Method of docs/benchmark.md that a config runs.
_METHODS = {
    "adult": "sgld",
    "adult_sghmc": "sghmc",
    "adult_sgnht": "sgnht",
    "adult_sgfs": "sgfs",
    "adult_noise_aware": "noise_aware",
}


def test_the_readme_s_table_is_that_of_the_figures():
    """Accuracy stands in shipped_configs.csv, coverage and width in intervals.csv, and elsewhere in benchmark.csv."""
    shipped = {(row["config"], row["set"]): row for row in results("shipped_configs.csv")}
    rows = re.findall(
        r"^\| `dpmcmc run (\w+)(?: --set privacy.epsilon=([\d.]+))?` .*$", page("README.md"), re.MULTILINE
    )
    lines = [line for line in page("README.md").splitlines() if line.startswith("| `dpmcmc run ")]
    assert len(rows) == len(lines) >= 7
    measured = {(row["cell"], row["epsilon"]): row for row in results("intervals.csv") if row["design"] == "adult"}
    for (config, epsilon), line in zip(rows, lines, strict=True):
        _, _, stated, accuracy, coverage, elsewhere, width, posterior, _ = (cell.strip() for cell in line.split("|"))
        found = shipped[config, f"privacy.epsilon={epsilon}" if epsilon else ""]
        assert (stated, accuracy) == (found["epsilon"], f"{found['mean']} ± {found['std']}"), line
        assert (posterior == "yes") == (config in _CELLS), line
        if config in _CELLS:
            row = measured[_CELLS[config], f"{float(epsilon or 1):g}"]
            assert coverage == f"{float(row['coverage']):.2f}".lstrip("0"), line
            assert width == f"{float(row['width']):.2f}", line
            assert elsewhere == benchmark_cell(_METHODS[config], f"{float(epsilon or 1):g}", "coverage").lstrip("0"), (
                line
            )
        else:
            assert (coverage, elsewhere, width) == ("–", "–", "–"), line


def benchmark_cell(method, epsilon, column):
    """A cell of the table that ``experiments.benchmark --report`` makes of benchmark.csv at this ε."""
    lines = markdown(summarised_benchmark(), float(epsilon))
    head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in lines)
    (row,) = (row for row in rows if row[1] == method)
    return row[head.index(column)]


@functools.cache
def summarised_benchmark():
    return summarised([numbers_of(row) for row in results("benchmark.csv")])


def test_the_table_of_the_benchmark_is_made_of_its_rows():
    assert "\n".join(markdown(summarised_benchmark(), 1.0)) in page("docs/benchmark.md")


def test_the_readme_says_how_often_a_chain_allows_intervals_elsewhere_and_what_fit_covers():
    text = page("README.md")
    (share,) = re.findall(r"\(SGLD at ε = 1: on (\d+) % of the tables\)", text)
    assert benchmark_cell("sgld", "1", "fit for intervals") == f"{share}%"
    (covered,) = re.findall(r"which covers (\.\d+) there", text)
    assert benchmark_cell("fit", "1", "coverage").lstrip("0") == covered


def test_tables_of_coverage_are_rows_of_the_results():
    text = page("docs/uncertainty.md")
    assert filled(text) == text
    row = next(line for line in text.splitlines() if line.startswith("| logistic |") and " ± " in line)
    assert filled(text.replace(row, row.replace(" ± ", "1 ± "))) == text  # a number that is wrong is seen


#: Rows of the tables of figure 3.2: version and method of each label.
METHODS_OF_TABLES = {
    "SGLD": ("tight", "sgld"),
    "SGHMC": ("tight", "sghmc"),
    "SGNHT": ("tight", "sgnht"),
    "SGFS (diagonal)": ("tight", "sgfs"),
    "SGFS": ("tight", "sgfs"),
    "hybrid (OPS, SGLD)": ("tight", "hybrid"),
    "certified OPS, one draw": ("tight", "certified_ops"),
    "certified OPS": ("tight", "certified_ops"),
    "OPS, Gaussian DP, one draw": ("tight", "ops_gdp"),
    "OPS, Gaussian DP": ("tight", "ops_gdp"),
    "OPS, range, one draw": ("tight", "ops_range"),
    "OPS, 4B, one draw": ("tight", "ops_printed"),
    "objective perturbation": ("tight", "objective_perturbation"),
    "objective perturbation, clipped loss": ("tight", "objective_clipped"),
    "output perturbation": ("tight", "output_perturbation"),
    "noisy gradient descent": ("tight", "noisy_sgd"),
    "OPS (4B)": ("printed", "ops"),
    "hybrid (OPS, DP-SGNHT)": ("printed", "hybrid"),
    "hybrid": ("printed", "hybrid"),
    "OBJPERT (KST12)": ("printed", "objective_perturbation"),
    "DP-SGLD": ("printed", "sgld"),
    "DP-SGNHT": ("printed", "sgnht"),
    "hybrid, 18 passes": ("printed", "hybrid_18"),
    "DP-SGLD, 18 passes": ("printed", "sgld_18"),
    "DP-SGNHT, 18 passes": ("printed", "sgnht_18"),
}
CELL = re.compile(r"(0\.\d+)(?: ± (0\.\d+))?(?: \(([\d.]+)\))?$")


@pytest.mark.parametrize("panel", ["adult", "abalone"])
def test_tables_of_figure_3_2_are_rows_of_its_summary(panel):
    """Pictures are drawn from the same files (``docs/images/fig3_2_*.csv``)."""
    means = summary.read(ROOT / "docs" / "images" / f"fig3_2_{panel}.csv", "docs")
    text = page("docs/figures.md")
    start = text.index("**Finding on Adult.**" if panel == "adult" else "**On Abalone**")
    part, seen = text[start : text.index("**On Abalone**" if panel == "adult" else "**On two normals**")], 0
    printed, epsilons = False, ()
    for line in part.splitlines():
        cells = [cell.strip().replace("**", "") for cell in line.split("|")[1:-1]]
        if not cells or cells[0] == "---":
            continue
        if CELL.match(cells[1]) is None:
            printed, epsilons = cells[0].startswith("as printed"), [float(cell.split()[-1]) for cell in cells[1:]]
            continue
        label, _, version = cells[0].partition(", tight") if ", tight" in cells[0] else cells[0].partition(", printed")
        version, method = METHODS_OF_TABLES[label]
        if label == "output perturbation" and (printed or ", printed" in cells[0]):
            version = "printed"
        for epsilon, cell in zip(epsilons, cells[1:], strict=True):
            at = ("public", version, method, epsilon)
            (mean,) = [m for m in means if (m.encoding, m.version, m.method, m.epsilon) == at]
            accuracy, std, proved = CELL.match(cell).groups()
            digits = len(accuracy) - 2
            assert accuracy == f"{mean.accuracy:.{digits}f}", (line, epsilon)
            assert std is None or std == f"{mean.std:.{digits}f}", (line, epsilon)
            assert proved is None or said(proved, mean.proved, up=True), (line, epsilon)
            # Where a tight run proves less than it was asked for, the table says it.
            assert proved is not None or mean.proved >= 0.99 * epsilon, (line, epsilon)
            seen += 1
    assert seen >= 15
