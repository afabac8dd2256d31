"""The comparison around AdaOPS: what its baselines are charged is what they cost, and the figure is made."""

import csv
import math

import numpy as np
import pytest

from dpmcmc.privacy import CalibrationError
from experiments import adaops
from experiments.ridge_perturbation import Ridge, objective_std, output_std
from tests.overlaps import no_overlaps
from tests.test_adaops import both


@pytest.fixture(scope="module", autouse=True)
def _no_text_on_another():
    with no_overlaps():
        yield


FACTS = Ridge(row=1.0, label=1.0, size=1, num_records=50, ridge=60.0, adjacency="replace_one")


def column(share, last):
    """Fifty records (share, 1) but for the last; the share that makes the estimate largest has N·share² = λ."""
    x, y = np.full(50, share), np.ones(50)
    x[-1], y[-1] = last
    return x, y


@pytest.mark.parametrize("planted", [1.0, 10.0])
def test_exact_pairs_of_the_baselines_are_within_their_epsilon(planted):
    """In one dimension both releases are normal; with a tenth of the noise they are not private."""
    epsilon, delta, worst = 1.0, 1e-4, {"output": 0.0, "objective": 0.0}
    stds = {"output": output_std(FACTS, epsilon, delta), "objective": objective_std(FACTS, epsilon, delta)}
    for share in (0.2, math.sqrt(60 / 50), 1.0):
        for last, other in (((1.0, 1.0), (1.0, -1.0)), ((-1.0, 1.0), (0.0, 0.0)), ((-1.0, 1.0), (1.0, 1.0))):
            laws = {"output": [], "objective": []}
            for x, y in (column(min(share, 1.0), last), column(min(share, 1.0), other)):
                h = float(np.sum(x**2)) + FACTS.ridge
                mean = np.array([float(np.sum(x * y)) / h])
                laws["output"].append((mean, np.array([[(stds["output"] / planted) ** 2]])))
                laws["objective"].append((mean, np.array([[(stds["objective"] / planted / h) ** 2]])))
            for name, pair in laws.items():
                worst[name] = max(worst[name], both(*pair, epsilon))
    assert all((delta_found <= delta) == (planted == 1.0) for delta_found in worst.values())


def test_too_small_a_ridge_is_refused():
    with pytest.raises(CalibrationError, match="ridge"):
        objective_std(Ridge(1.0, 1.0, 3, 100, 0.5, "replace_one"), 0.1, 1e-6)


@pytest.mark.slow
def test_the_command_writes_table_and_picture(tmp_path):
    adaops.main(["--quick", "--out", str(tmp_path)])
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == adaops.COLUMNS
    assert {row["method"] for row in rows} == set(adaops.LOOKS)
    assert {row["design"] for row in rows} == {"diabetes", "isotropic", "skewed"}
    assert all(float(row["guarantee_epsilon"]) <= float(row["epsilon"]) for row in rows)
    assert (tmp_path / "adaops.png").stat().st_size > 10_000
    at_ten = {
        row["method"]: float(row["error"]) for row in rows if row["design"] == "isotropic" and row["epsilon"] == "10.0"
    }
    assert at_ten["AdaOPS"] < 0.3 * at_ten["OPS, fixed ridge"]
    assert at_ten["AdaSSP"] < at_ten["AdaOPS"]
