"""Each experiment as ``--quick`` runs it: its table has the stated columns, and its numbers are sane."""

import csv
import importlib

import pytest

from experiments import fig4_2, suggest
from experiments.two_dimensions import measures
from tests.overlaps import no_overlaps


def fig3_1_is_sane(rows):
    private = [row for row in rows if row["private"] == "True"]
    assert all(float(row["guarantee_epsilon"]) <= float(row["epsilon"]) for row in private)
    claims = {row["method"] for row in private if row["assumptions"] == "epsilon is the source's claim"}
    assert claims == {"DP-SGLD as printed"}


def suggest_is_sane(rows):
    of = {row["goal"]: row for row in rows}
    assert float(of["prediction"]["suggested"]) > 65
    assert 1 / 3 < float(of["intervals"]["predicted_width"]) / float(of["intervals"]["width"]) < 3
    assert float(of["intervals"]["coverage"]) > 0.5


def fig4_2_is_sane(rows):
    assert max(float(row["disagreement"]) for row in rows) < 5


#: (columns, picture, check of the rows).
EXPERIMENTS = {
    "fig3_1": (measures.COLUMNS, "fig3_1.png", fig3_1_is_sane),
    "fig4_2": (fig4_2.COLUMNS, "fig4_2.png", fig4_2_is_sane),
    "suggest": (suggest.COLUMNS, None, suggest_is_sane),
    "sources.already_private": (("panel", "quantity", "at", "value", "error"), "already_private.png", None),
    "sources.private_map": (("panel", "quantity", "at", "value", "error"), "private_map.png", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_quick_run(name, tmp_path):
    stated, picture, check = EXPERIMENTS[name]
    with no_overlaps():
        assert importlib.import_module(f"experiments.{name}").main(["--quick", "--out", str(tmp_path)]) == 0
    with (tmp_path / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == stated
    assert picture is None or (tmp_path / picture).stat().st_size > 10_000
    if check is not None:
        check(rows)
