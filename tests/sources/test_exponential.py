"""The exponential mechanism on a ball: its density is private, and what is drawn has that density."""

import itertools

import numpy as np
import pytest
from scipy import stats

from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LogisticRegression
from experiments.figure_files import read_table
from experiments.sources import exponential

TARGET = LogisticRegression(1.0, num_features=1, row_bound=1.0)
THETA = np.linspace(-exponential.RADIUS, exponential.RADIUS, 2001)


def density(x, y, coefficient):
    margins = np.outer(THETA, x) * (2 * np.asarray(y) - 1)
    p = np.exp(-coefficient * (np.logaddexp(0, -margins).sum(axis=1) + exponential.PENALTY / 2 * THETA**2))
    return p / np.trapezoid(p, THETA)


@pytest.mark.parametrize("times", [1, 4])
def test_no_log_density_on_the_ball_moves_by_more_than_epsilon(times):
    """Four times the coefficient does."""
    coefficient = times * 3.0 / (2 * TARGET.loss_bounds(exponential.RADIUS)[1])
    worst = 0.0
    for one, other in itertools.permutations([(1.0, 1), (1.0, 0), (0.0, 0), (-1.0, 1)], 2):
        laws = [density([1.0, 0.5, end[0]], [1, 0, end[1]], coefficient) for end in (one, other)]
        worst = max(worst, np.max(np.abs(np.log(laws[0] / laws[1]))))
    assert (1.0 < worst <= 3.0) == (times == 1)


def test_a_draw_from_the_ball_has_that_density():
    rng = np.random.default_rng(0)
    records = {"x": rng.uniform(-1, 1, (20, 1)).astype(np.float32), "y": rng.integers(0, 2, 20)}
    drawn = exponential.on_ball(TARGET, records, 0.7, 400, streams_of(0)[0])[:, 0]
    cumulative = np.cumsum(density(records["x"][:, 0], records["y"], 0.7)) * (THETA[1] - THETA[0])
    assert stats.kstest(np.interp(drawn, THETA, cumulative), "uniform").pvalue > 1e-3


def test_a_choice_from_the_covering_set_attains_no_more_than_epsilon(tmp_path):
    y = np.clip(np.random.default_rng(0).normal(0.3, 0.4, 200), -1, 1)
    excess, attained = exponential.on_set(y, 1 / 2)
    assert 0.5 < attained <= 1.0 < exponential.on_set(y, 1.0)[1]
    assert excess < exponential.on_set(y, 1 / 4)[0]  # the printed coefficient
    assert exponential.guarantee_of(1.0).epsilon <= 1.0


@pytest.mark.slow
def test_the_command_writes_table_and_picture(tmp_path):
    assert exponential.main(["--quick", "--out", str(tmp_path)]) == 0
    rows = read_table(tmp_path / "results.csv")
    assert all(row["guarantee_epsilon"] <= row["epsilon"] for row in rows)
    assert all(row["attained"] <= row["epsilon"] for row in rows if "attained" in row)
