"""The benchmark of intervals: its non-private fit, its estimands, its findings with planted faults, the command."""

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize
from scipy.special import expit
from scipy.stats import norm

import dpmcmc
from experiments import glm
from experiments.figure_files import CONFIGS, load, read_table
from experiments.intervals import __main__ as intervals
from experiments.intervals import designs, measure, simulators, table

LABELS = {
    "binary": lambda rng, eta: (rng.random(len(eta)) < expit(eta)).astype(float),
    "count": lambda rng, eta: rng.poisson(np.exp(eta) * rng.exponential(size=len(eta))).astype(float),
    "real": lambda rng, eta: eta + rng.standard_t(4, size=len(eta)) * (1 + np.abs(eta)),
}


@pytest.mark.parametrize("precision", [0.0, 3.0])
@pytest.mark.parametrize("family", glm.LAWS)
def test_the_non_private_fit_is_the_optimum_and_its_errors_those_of_the_sandwich(family, precision):
    rng = np.random.default_rng(1)
    x = np.append(rng.uniform(-1, 1, (400, 2)), np.ones((400, 1)), axis=1)
    y = LABELS[family](rng, x @ [1.0, -2.0, 0.5])
    of = glm.LAWS[family]

    def loss(theta):
        return np.sum(of.cumulant(x @ theta) - y * (x @ theta)) + precision * theta @ theta / 2

    def gradient(theta):
        return x.T @ (of.mean(x @ theta) - y) + precision * theta

    best = optimize.minimize(loss, np.zeros(3), jac=gradient, tol=1e-10)
    found = glm.fitted(x, y, family, precision=precision, ridge=0.0)
    np.testing.assert_allclose(found.theta, best.x, atol=1e-4)
    numeric = optimize.approx_fprime(best.x, gradient, 1e-6)
    bread = np.linalg.inv((numeric + numeric.T) / 2)
    scores = np.array([(y[i] - of.mean(x[i] @ best.x)) * x[i] for i in range(len(y))])
    covariance = bread if precision else bread @ sum(np.outer(s, s) for s in scores) @ bread
    np.testing.assert_allclose(found.errors(precision), np.sqrt(np.diag(covariance)), rtol=1e-3)


def test_separated_classes_have_no_non_private_fit():
    x = np.linspace(-1, 1, 50)[:, None]
    with pytest.raises(np.linalg.LinAlgError):
        glm.fitted(x, (x[:, 0] > 0).astype(float), "binary", ridge=0.0)


def test_best_fitting_coefficients_of_an_omitted_square_solve_the_expected_score():
    """The score E[(p(x) − σ(x·θ)) x] by a grid of Gauss and Legendre, against fits of a million rows."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    x = np.array(np.meshgrid(nodes, nodes, nodes, indexing="ij")).reshape(3, -1).T
    weight = np.einsum("i,j,k->ijk", weights, weights, weights).ravel() / 8
    z = np.append(x, np.ones((len(x), 1)), axis=1)
    p = expit(z @ [1.5, -1.0, 0.5, 0.3] + simulators.SQUARE * (x[:, 0] ** 2 - 1 / 3))
    exact = optimize.root(lambda theta: z.T @ (weight * (p - expit(z @ theta))), np.zeros(4), tol=1e-12).x
    found = designs.design("omitted_square").best_fitting()
    np.testing.assert_allclose(found, exact, atol=0.01)
    assert abs(exact[0] - 1.5) > 0.04  # the truth is another number


def test_every_table_fits_its_schema():
    for name in designs.NAMES:
        if name == "adult":
            continue
        of = designs.design(name)
        rows = of.simulate(np.random.default_rng(0), 60)
        assert not any(of.schema.encode_counted(rows)[1].values()), name
        assert len(of.truth or of.names) == len(of.names)
        assert of.reference(rows)[0].shape == (len(of.names),)


def test_designs_are_what_they_are_called():
    rng = np.random.default_rng(2)
    n = 200_000
    eight = designs.design("eight_1x").simulate(rng, n)
    logits = sum(slope * eight[f"x{j + 1}"] for j, slope in enumerate(designs.design("eight_1x").truth[:-1]))
    assert np.std(logits) == pytest.approx(1, abs=0.03)
    x = simulators.correlated(0.95)(rng, n, 3)
    np.testing.assert_allclose(np.corrcoef(x.T), 0.05 * np.eye(3) + 0.95, atol=0.005)
    np.testing.assert_allclose(np.quantile(x, [0.25, 0.75]), [-0.5, 0.5], atol=0.01)
    for name, error in simulators.ERRORS.items():
        values = error(rng, rng.uniform(-1, 1, (n, 2)))
        assert (np.mean(values), np.std(values)) == pytest.approx((0, 1), abs=0.1 if name == "t3" else 0.02), name
    assert np.mean(designs.design("rare_0.05").simulate(rng, n)["y"]) == pytest.approx(0.05, abs=0.003)
    squares = designs.design("counts_2")
    rows = squares.simulate(rng, n)
    mean = np.exp(np.column_stack([rows[k] for k in ("x1", "x2", "x3")]) @ squares.truth[:3] + squares.truth[3])
    assert np.mean((rows["y"] - mean) ** 2 - mean) == pytest.approx(2 * np.mean(mean**2), rel=0.1)


SMALL = """
tables: 30
cells:
  - {name: cell, designs: [one_uniform_1, linear_5_0_normal], records: 800, epsilons: [1.0], goal: {GOAL}}
quick: {tables: 2, cells: [{name: cell, designs: [one_uniform_1], records: 800, epsilons: [1.0]}]}
"""


def stand_in(scale=1.0, shift=0.0, usable=("prediction", "intervals"), error=None):
    """A ``dpmcmc.fit`` whose intervals are those of the non-private fit, scaled, and its last coefficient shifted."""

    def fit(formula, rows, schema, epsilon, **settings):
        assert settings == {"delta": None, "progress": False}
        if error is not None:
            raise error("words of the library")
        names = [name for name in schema.columns if name != "y"]
        x = np.column_stack([*(rows[name] for name in names), np.ones(len(rows["y"]))])
        kind = "real" if schema.outcome.kind == "real" else "binary"
        found = glm.fitted(x, rows["y"], kind, ridge=0.0)
        theta = found.theta + shift * found.errors(0.0) * (np.arange(x.shape[1]) == len(names))

        def summary(level):
            half = scale * norm.ppf((1 + level) / 2) * found.errors(0.0)
            # The order of the parameters is the library's own affair.
            ends = {"5 %": (theta - half)[::-1], "95 %": (theta + half)[::-1]}
            return SimpleNamespace(to_dict=lambda: {"name": [*names, "intercept"][::-1], **ends})

        plan, verdict = SimpleNamespace(release=None), SimpleNamespace(predicted_width=None)
        return SimpleNamespace(summary=summary, usable_for=list(usable), plan=plan, verdict=verdict)

    return fit


def rows_of(tmp_path, monkeypatch, goal="width: [1.2]", **fault):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL.replace("GOAL", goal))
    monkeypatch.setattr(dpmcmc, "fit", stand_in(**fault))
    assert not intervals.main(["--config", str(path), "--workers", "1", "--out", str(tmp_path / "out")])
    return read_table(tmp_path / "out" / "results.csv")


def test_right_intervals_hold(tmp_path, monkeypatch):
    rows = rows_of(tmp_path, monkeypatch)
    assert [row["finding"] for row in rows] == ["holds", "holds"]
    for row in rows:
        assert row["width"] == pytest.approx(1)
        assert row["coverage"] == row["reference_coverage"]
        assert row["mean_width"] == pytest.approx(row["reference_mean_width"])
        assert (row["usable"], row["failed"], row["measured"]) == (1, 0, 30)


@pytest.mark.parametrize(
    ("goal", "fault", "finding"),
    [
        ("or_flagged: true", {"scale": 0.5}, "covers too little"),
        ("or_flagged: true", {"scale": 0.5, "usable": ["prediction"]}, "flagged where it misses"),
        ("width: [1.2]", {"shift": 4.0}, "covers too little"),  # of the intercept alone
        ("width: [1.2]", {"scale": 1.3}, "too wide"),
        ("intervals: 0.8", {"usable": ["prediction"]}, "not called intervals"),
        ("false_alarms: 0.05", {"usable": ["prediction"]}, "false alarms"),
        ("width: [1.2]", {"error": dpmcmc.estimators.suggestion.NotAchievable}, "refused"),
        ("width: [1.2]", {"error": KeyError}, "failed"),
    ],
)
def test_planted_faults_are_found(goal, fault, finding, tmp_path, monkeypatch):
    for row in rows_of(tmp_path, monkeypatch, goal, **fault):
        assert str(row["finding"]).split("; ")[0] == finding
        if "error" in fault:
            assert (row["failed"], row["failures"]) == (30, f"{fault['error'].__name__}:30")
        if "shift" in fault:
            assert row["coverage"] == row["reference_coverage"]
            assert row["intercept_coverage"] < 0.3


def test_rows_are_kept_and_goals_read_anew(tmp_path, monkeypatch):
    before = rows_of(tmp_path, monkeypatch, scale=1.3)
    after = rows_of(tmp_path, monkeypatch, "coverage: [0.5, 1], width: [2]", error=KeyError)  # nothing is fitted
    assert {str(row["finding"]).split("; ")[0] for row in before} == {"too wide"}
    assert {row["finding"] for row in after} == {"holds"}
    for old in before:
        (new,) = (row for row in after if row["design"] == old["design"])
        assert new == old | {"finding": "holds", "width_goal": 2}


def test_the_monte_carlo_error_is_clustered_by_table():
    """Coefficients that are all inside or all outside say no more than one."""
    rng = np.random.default_rng(3)
    whole = np.repeat(rng.random((400, 1)) < 0.9, 8, axis=1)
    each = rng.random((400, 8)) < 0.9
    assert measure.monte_carlo_error(whole, 0.9) == pytest.approx(0.3 / 20, rel=0.2)
    assert measure.monte_carlo_error(each, 0.9) == pytest.approx(0.3 / 20 / np.sqrt(8), rel=0.2)
    assert measure.monte_carlo_error(np.ones((4, 1), bool), 0.9) == pytest.approx(0.15)


def test_the_shipped_cells_are_those_of_the_benchmark():
    settings = load(CONFIGS / "intervals.yaml", table.Settings)
    asked = intervals.asked_rows(settings, None, None)
    assert {row.design for row in asked} == set(designs.NAMES)
    chains = [row for row in asked if row.chain is not None]
    assert {row.chain.config for row in chains} == {"adult", "adult_sghmc", "adult_sgnht", "adult_sgfs"}
    assert {(row.chain.config, row.epsilon) for row in chains if row.design == "adult"} == {
        (row.chain.config, row.epsilon) for row in chains if row.design == "eight_1x"
    }
    assert len({tuple(row.facts[name] for name in table.KEY) for row in asked}) == len(asked)
    assert settings.tables >= 40
    assert sum(row.design == "awan_wang" for row in asked) == 25
    (first, *_) = (row for row in asked if row.mu == 0.5)
    assert first.epsilon == pytest.approx(1.993, abs=0.001)
    assert [row.design for row in intervals.asked_rows(settings, ["strong"], 7)] == ["strong"]


def test_the_quick_run_measures_the_library_itself(tmp_path):
    assert not intervals.main(["--quick", "--out", str(tmp_path)])
    rows = read_table(tmp_path / "results.csv")
    assert {row["design"] for row in rows} == {"one_uniform_2", "linear_5_0_normal", "groups_8"}
    assert all(row["tables"] == 2 for row in rows)
    for row in rows:
        if row["design"] != "groups_8":  # which may be refused
            assert row["measured"] == 2
            assert 0.5 < row["width"] < 20
            assert 0 < row["seconds"] < 300
            assert row["predicted_width"] > 0


@pytest.mark.parametrize("name", ["intervals", "benchmark"])
def test_workers_are_given_functions_that_another_process_finds(name):
    """A process that ``python -m`` of a package starts does not run its ``__main__`` file again."""
    main = importlib.import_module(f"experiments.{name}.__main__")
    given = re.findall(r"outcomes\((\w+),", Path(main.__file__).read_text())
    assert given
    assert all(getattr(main, one).__module__ != main.__name__ for one in given)
