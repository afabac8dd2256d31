"""Measured numbers of pages stand in a committed table, and follow from plans.

A run that takes minutes is not repeated here: ``docs/images/NAME.csv`` has what it measured, and its page the command.
"""

import re

import numpy as np
import pytest
from scipy import stats

from dpmcmc.audit.bounds import clopper_pearson, gdp
from dpmcmc.config.file import load
from dpmcmc.config.plans import make_plan
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from tests.page_tables import ROOT, page, results, section, tables


def shipped():
    """(cells of a row of the page, row of the table) of every shipped config."""
    rows = {(row["config"], row["set"]): row for row in results("shipped_configs")}
    for _, *body in tables(section("Shipped configs")):
        for cells in body:
            sets = " ".join(re.findall(r"`((?:privacy|run)\.[^`]+)`", cells[0]))
            yield cells, rows.pop((re.findall(r"configs/(\w+)\.yaml", cells[0])[0], sets))
    assert not rows


def test_results_of_shipped_configs():
    for (label, _, result, plain, _), row in shipped():
        measure = "" if row["measure"] == "accuracy" else f"{row['measure']} "
        assert result.removeprefix("accuracy ") == f"{measure}{row['mean']} ± {row['std']}", label
        assert plain.split()[0] == row["non_private"]
        assert row["runs"] == (re.findall(r"(\d+) runs", label) or ["10"])[0], label
        # Three runs gave a deviation of .0002 where thirty give .0012.
        assert int(row["runs"]) >= 10, label


@pytest.mark.slow
def test_guarantees_and_temperatures_of_shipped_configs():
    for (label, guarantee, _, _, temperature), row in shipped():
        plan = make_plan(load(ROOT / "configs" / f"{row['config']}.yaml", row["set"].split()))
        epsilon, delta = (float(n) for n in re.findall(r"ε = ([\d.]+), δ = ([\d.e-]+)", guarantee)[0])
        assert plan.guarantee.delta == delta, label
        assert plan.guarantee.epsilon <= epsilon * (1 + 1e-9), label
        assert plan.guarantee.epsilon >= 0.97 * epsilon, label
        stated = re.findall(r"[\d.]+", temperature)
        if stated:
            assert float(stated[0]) == pytest.approx(float(plan.temperatures.max()), rel=0.06), label


def test_audits_of_shipped_configs():
    rows = {row["config"]: row for row in results("audits")}
    for label, claimed, runs, bound in tables(page("audit"))[2][1:]:
        row = rows[re.findall(r"`(\w+)`", label)[0]]
        assert (claimed, runs.replace(",", "")) == (row["claimed_epsilon"], row["runs"])
        assert bound == row["lower_bound"] or (not row["lower_bound"] and bound.startswith("refused"))
        assert not row["lower_bound"] or float(row["lower_bound"]) < float(claimed)


def test_power_of_the_default_audit():
    """Scores at the quantiles of their law have the mean and the spread that are expected: a median bound."""
    rows = tables(page("audit"))[1]
    reached = {}
    for epsilon, runs, stated, _ in rows[1:]:
        n = int(runs.replace(",", ""))
        scores = stats.norm.ppf((np.arange(n) + 0.5) / n)
        scores /= scores.std(ddof=1)
        bound = gdp(scores + gaussian_mu(float(epsilon), 1e-5), scores, 1e-5, 0.05)
        assert float(stated) == pytest.approx(bound, abs=0.01), (epsilon, n, bound)
        reached[epsilon, n] = bound / float(epsilon)
    flat = " ".join(page("trust").split())
    few, many = re.findall(r"reaches (\d+) % of it at 10³ \+ 10³ runs and (\d+) % at", flat)[0]
    assert (float(few), float(many)) == pytest.approx(
        (100 * reached["1.01", 1000], 100 * reached["1.01", 10_000]), abs=1
    )


@pytest.mark.slow
def test_power_of_the_proved_audit():
    pytest.importorskip("jax_privacy")
    rng = np.random.default_rng(0)
    for epsilon, runs, _, stated in tables(page("audit"))[1][1:]:
        n, mu = int(runs.replace(",", "")), gaussian_mu(float(epsilon), 1e-5)
        bounds = [clopper_pearson(rng.normal(mu, 1, n), rng.normal(0, 1, n), 1e-5, 0.05) for _ in range(9)]
        # Four standard errors of a median of nine, and its digits.
        assert float(stated) == pytest.approx(np.median(bounds), abs=4 * 1.25 * np.std(bounds) / 3 + 0.01), (epsilon, n)
