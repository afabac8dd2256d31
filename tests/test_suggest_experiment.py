"""The experiment of suggested plans: a row for each goal, and what it says of them."""

import csv

import pytest

from experiments import suggest


@pytest.mark.slow
def test_a_quick_run_writes_both_goals(tmp_path):
    assert suggest.main(["--quick", "--out", str(tmp_path)]) == 0
    with (tmp_path / "results.csv").open() as file:
        rows = {row["goal"]: row for row in csv.DictReader(file)}
    assert float(rows["prediction"]["suggested"]) > 65
    assert 1 / 3 < float(rows["intervals"]["predicted_width"]) / float(rows["intervals"]["width"]) < 3
    assert float(rows["intervals"]["coverage"]) > 0.5


def test_the_summary_counts_cells_by_their_own_errors():
    good = {"goal": "prediction", "difference": -0.9, "error": 0.5}
    bad = good | {"difference": -1.1}
    held = {"goal": "intervals", "coverage": 0.8, "error": 0.03, "width": 1.0, "predicted_width": 1.4}
    missed = held | {"coverage": 0.79, "predicted_width": 1.6}
    lines = suggest.summary([good, bad, held, missed])
    assert lines[0].startswith("prediction: 1 of 2")
    assert "1 of 2 cells cover" in lines[1]
    assert "and 1 have a predicted width" in lines[1]
