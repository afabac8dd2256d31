"""A number of accounting that the documentation states is the one that the code gives."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

import dpmcmc
from dpmcmc.config.file import load
from dpmcmc.config.plans import make_plan
from dpmcmc.privacy import Cyclic, Event, FixedSize, Poisson
from dpmcmc.privacy.accounting import correlated, pld
from dpmcmc.privacy.accounting.charging import account
from dpmcmc.privacy.accounting.events import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.ledger.filters import Renyi, best_order, split_delta
from dpmcmc.privacy.ledger.terms import BUDGET_OVERFLOW_SHARE
from experiments.calibration import scores
from experiments.panel import summary
from tests.coverage_tables import filled, results
from tests.page_tables import said

ROOT = Path(__file__).resolve().parents[1]


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
        "ε, `add_remove`, one-sided": [one.for_group(k, one_sided=True).epsilon for k in sizes],
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


def test_cyclic_batches_against_poisson_ones():
    text = page("docs/explanation/cyclic_batches.md")
    n = 10_000
    rows = re.findall(r"\| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| 1 \|", text)
    assert len(rows) == 3
    single = []
    for batch, epochs, epsilon, *variances in (map(float, row) for row in rows):
        setting = {"epsilon": epsilon, "delta": 1e-6, "steps": int(epochs * n / batch), "num_records": n}
        random = dpmcmc.privacy.calibrate(sampling=Poisson(batch), **setting)
        for phi, variance in zip((0.0, 0.5, 0.9), variances, strict=True):
            z = dpmcmc.privacy.calibrate(sampling=Cyclic(int(batch), phi), **setting)
            assert variance == pytest.approx((z * correlated.slow(phi) / random) ** 2, rel=6e-3)
        single.append((z * correlated.total(phi) / random) ** 2)
    (claim,) = re.findall(r"at φ = .9 it has (\d+ to \d+) times", text)
    assert numbers(claim) == pytest.approx([min(single), max(single)], rel=6e-3)


def test_two_queries_on_one_minibatch():
    (claim,) = re.findall(r"under-states ε \((.*?) is right\)", page("docs/concepts.md"))

    def epsilon(z, count):
        return pld.epsilon([Event("poisson_gaussian", z, 0.01, count)], Adjacency.ADD_REMOVE, 1e-6)

    assert numbers(claim) == pytest.approx([epsilon(1.0, 2000), epsilon(0.5**0.5, 1000)], abs=0.006)


def test_the_order_of_a_ledger():
    """Of a Poisson run of 100 from 10,000 records, under the default adjacency."""
    text = page("docs/ledger.md")
    (claim,) = re.findall(r"fits at order (\d+) and costs\s+some (\d+) budgets at\s+order (\d+)", text)
    best, budgets, default = (int(n) for n in claim)
    epsilon, delta = 1.0, split_delta(1.0, 1e-6, BUDGET_OVERFLOW_SHARE)[0]
    setting = {"steps": 100, "sampling": Poisson(100), "num_records": 10_000, "delta": 1e-6}
    z = dpmcmc.privacy.calibrate(epsilon=0.7, **setting)
    events = account(z, **setting).events

    def share(order):
        return Renyi(order).cost(events, Adjacency.REPLACE_ONE) / Renyi(order).budget(epsilon, delta)

    assert (best_order(epsilon, delta, events), best_order(epsilon, delta)) == (best, default)
    assert share(best) <= 1
    assert share(default) == pytest.approx(budgets, rel=0.03)


def test_private_time():
    (claim,) = re.findall(r"\(ε, δ\): (0\.\d+)/C² at ε = 1, δ = 1e-6", page("docs/explanation/private_time.md"))
    assert float(claim) == pytest.approx(gaussian_mu(1.0, 1e-6) ** 2 / 2, abs=5e-4)


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
    """Accuracy stands in docs/figures.md with the command that measures it; coverage and width in intervals.csv."""
    figures = page("docs/figures.md")
    rows = re.findall(
        r"^\| `dpmcmc run (\w+)(?: --set privacy.epsilon=([\d.]+))?` .*$", page("README.md"), re.MULTILINE
    )
    lines = [line for line in page("README.md").splitlines() if line.startswith("| `dpmcmc run ")]
    assert len(rows) == len(lines) >= 7
    measured = {(row["cell"], row["epsilon"]): row for row in results("intervals.csv") if row["design"] == "adult"}
    for (config, epsilon), line in zip(rows, lines, strict=True):
        _, _, stated, accuracy, coverage, elsewhere, width, posterior, _ = (cell.strip() for cell in line.split("|"))
        named = re.escape(f"`configs/{config}.yaml`") + (f" at `privacy.epsilon={epsilon}`" if epsilon else r"[^|`]*")
        (found,) = re.findall(rf"^\| {named} \| ε = {stated}, .*?\| (0\.\d+ ± 0\.\d+) \|", figures, re.MULTILINE)
        assert accuracy == found, line
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
    """A cell of docs/benchmark.md's table at this ε."""
    (table,) = re.findall(
        rf"^### ε = {re.escape(epsilon)}\n\n(.*?)\n\n", page("docs/benchmark.md"), re.MULTILINE | re.DOTALL
    )
    head, _, *rows = ([cell.strip() for cell in line.split("|")] for line in table.splitlines())
    (row,) = (row for row in rows if row[1] == method)
    return row[head.index(column)]


def test_the_readme_says_how_seldom_a_chain_allows_intervals_elsewhere_and_what_fit_covers():
    text = page("README.md")
    (share,) = re.findall(r"allow intervals seldom \(SGLD at ε = 1: (\d+) %\)", text)
    assert benchmark_cell("sgld", "1", "fit for intervals") == f"{share}%"
    (covered,) = re.findall(r"which covers (\.\d+) there", text)
    assert benchmark_cell("fit", "1", "coverage").lstrip("0") == covered


@pytest.mark.slow
def test_concepts_names_the_shipped_chains_that_are_for_intervals():
    (said,) = re.findall(r"The shipped chains (.*?)\ngive intervals in this way", page("docs/concepts.md"), re.DOTALL)
    plans = {path.stem: make_plan(load(path.stem)) for path in sorted((ROOT / "configs").glob("*.yaml"))}
    assert set(re.findall(r"`(\w+)`", said)) == {
        name for name, plan in plans.items() if plan.has_chains and "intervals" in plan.usable_for
    }


def test_adult_has_one_baseline():
    """README's screen and table, and the shipped configs' own; the others are named for what they are."""
    figures, readme = page("docs/figures.md"), page("README.md")
    shipped = {row["config"]: row["non_private"] for row in results("shipped_configs.csv")}
    (screen,) = re.findall(r"^accuracy .*?(0\.\d+) without privacy", readme, re.MULTILINE)
    (table,) = re.findall(r"without privacy\]\(docs/figures.md#adult-without-privacy\) \| – \| (0\.\d+) ", readme)
    assert screen == table == shipped["adult"]
    section = figures.split("## Adult without privacy")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (.*?) \| [\d.]+ \| (0\.\d+) \|$", section, re.MULTILINE))
    for names, accuracy in rows.items():
        for config in re.findall(r"`(adult\w*)`", names):
            assert shipped[config] == accuracy, config
    panel = {
        row["method"]: row["accuracy"]
        for row in results("fig3_2_adult.csv")
        if row["version"] == "non-private" and row["encoding"] == "public"
    }
    for words, method in (("NUTS", "nuts"), ("the mode (", "map"), ("*clipped*", "map_clipped")):
        (accuracy,) = (accuracy for names, accuracy in rows.items() if words in names)
        assert accuracy == f"{float(panel[method]):.4f}"
    assert f"**{screen}**" in section


def test_tables_of_coverage_are_rows_of_the_results():
    text = page("docs/uncertainty.md")
    assert filled(text) == text
    row = next(line for line in text.splitlines() if line.startswith("| logistic |") and " ± " in line)
    assert filled(text.replace(row, row.replace(" ± ", "1 ± "))) == text  # a number that is wrong is seen


def test_the_page_on_intervals_says_the_worst_coverage_too():
    (claim,) = re.findall(
        r"its (\d+ rows of a noise-aware release coverage is [\d.]+ to [\d.]+)\.", page("docs/uncertainty.md")
    )
    releases = [row for row in results("coverage.csv") if row["way"] in ("noise_aware", "noise_aware_sandwich")]
    shares = [float(row["coverage"]) for row in releases if row["truth_scale"] == "1"]
    assert numbers(claim) == [len(shares), round(min(shares), 2), round(max(shares), 2)]


def test_monte_carlo_error_of_500_tables():
    (stated,) = re.findall(
        r"For 500 independent fractions Monte Carlo error alone gives (0\.\d+)", page("docs/uncertainty.md")
    )
    assert float(stated) == pytest.approx(scores.curve_floor(500), abs=5e-4)


def test_the_readme_says_how_often_chains_cover():
    (claim,) = re.findall(r"intervals of chains cover\s+(\d+ to \d+) %", page("README.md"))
    chains = [row for row in results("coverage.csv") if row["verdict"] in ("prediction", "nothing") and row["coverage"]]
    shares = [float(row["coverage"]) for row in chains if row["task"] == "logistic"]
    assert numbers(claim) == [round(100 * min(shares)), round(100 * max(shares))]


def test_the_slope_of_a_clipped_column():
    """Values uniform on [−2, 2], a range of [−1, 1]: E[v·clip(v)] / E[clip(v)²], on a fine grid."""
    (stated,) = re.findall(r"E\[clip\(v\)²\] = ([\d.]+?)\. ", page("docs/data.md"))
    v = np.linspace(-2, 2, 400_001)
    clipped = np.clip(v, -1, 1)
    assert np.mean(v * clipped) / np.mean(clipped**2) == pytest.approx(float(stated), abs=1e-4)


def test_the_noise_of_the_file_in_plain_jax():
    """Lines that docs/from_scratch.md prints before a record is read; the library charges 0.2 % more, for rounding."""
    stated = numbers(
        re.findall(r"^noise added .*\ntemperature .*\nguarantee .*$", page("docs/from_scratch.md"), re.M)[0]
    )
    plan = make_plan(load(ROOT / "configs" / "adult_prediction.yaml"))
    own = float(plan.sampler.noise_std(0))
    temperature = float(plan.sampler.temperature_at(plan.noise_std[0], 0))
    expected = [plan.noise_std[0], own, plan.noise_std[0], plan.noise_multipliers[0], temperature]
    assert stated[:5] == pytest.approx([float(n) for n in expected], rel=3e-3)
    assert stated[5] == pytest.approx(plan.guarantee.epsilon, abs=1e-3)


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


def test_numbers_of_the_headline():
    text = page("docs/figures.md")
    stated = re.findall(r"needs (\d+) with the constant .* needs, and (\d+) as printed", text.replace("\n", " "))
    with (ROOT / "docs" / "images" / "noise_multipliers.csv").open() as file:
        at_one = next(row for row in csv.DictReader(file) if row["epsilon"] == "1")
    z = {name: float(value) for name, value in at_one.items()}
    assert stated == [(f"{z['thesis, constant 256']:.0f}", f"{z['thesis as printed, 128 (not proved)']:.0f}")]
    for name, digits in (("advanced composition, fixed size", 0), ("Rényi, fixed size", 0), ("Rényi, Poisson", 1)):
        assert re.search(rf"\b{z[name]:.{digits}f}\b", text), name
    assert f"loss distributions {z['loss distributions, Poisson']:.1f}" in text
    about = ("logistic", "10", "10000", "1", "1")
    with (ROOT / "docs" / "images" / "coverage.csv").open(encoding="utf-8") as file:
        tables = [
            row
            for row in csv.DictReader(file)
            if tuple(row[name] for name in ("task", "d", "N", "truth_scale", "epsilon")) == about
        ]
    found = {row["way"]: row for row in tables}
    flat = " ".join(text.split())
    for way, words in (
        (
            "noise_aware",
            "noise-aware intervals cover {c} at {w:.2f} times the width without privacy, and their CRPS is {s:.2f}",
        ),
        ("sgld", "cover {c} at {w:.1f} times the width, with {s:.1f} times the CRPS"),
        ("metric", "covers {c}, at {w:.1f} times the width"),
    ):
        row = found[way]
        coverage = f"{float(row['coverage']):.2f}".removeprefix("0")
        assert words.format(c=coverage, w=float(row["width"]), s=float(row["crps"])) in flat
