"""The panel experiment: what is finished stays finished, what is claimed is said, what is proved is the plan's."""

import copy
import csv
import dataclasses
import io
import json
import math

import numpy as np
import pytest
import yaml
from rich.console import Console

import dpmcmc
from dpmcmc.errors import InputError
from dpmcmc.inference import predictive
from dpmcmc.targets import LogisticRegression
from experiments import fig3_2
from experiments.panel import choose, compare, config, scores
from experiments.panel.methods import METHODS, named
from experiments.panel.results import COLUMNS, Results
from experiments.panel.samplers import SGLD
from experiments.panel.trial import Site

#: They share runs that take half a minute.
pytestmark = pytest.mark.slow

DELTA = 1e-4
SETTINGS = {
    "tight": {
        "sgld": {"steps": 10, "clip": 0.5, "step_size": 8},
        "noisy_sgd": {"steps": 10, "clip": 0.5, "step_size": 8},
        "sghmc": {"steps": 10, "clip": 0.5, "step_size": 4, "friction": 0.2},
        "sgnht": {"steps": 20, "clip": 0.5, "step_size": 0.05, "friction": 0.1, "temperature": 10},
        "sgfs": {"steps": 10, "clip": 0.5, "step_size": 8, "temperature": 10},
        "hybrid": {"steps": 10, "clip": 0.5, "step_size": 8, "share": 0.5, "start_precision": 1},
        "certified_ops": {"steps": 10, "prior_precision": 10, "step_fraction": 0.5},
        "objective_perturbation": {"regularisation": 10},
        "objective_clipped": {"regularisation": 10, "clip": 0.5},
        "output_perturbation": {"regularisation": 10},
        "ops_printed": {"radius": 2},
        "ops_range": {"radius": 2},
        "ops_gdp": {"prior_precision": 10},
    },
    "printed": {
        "ops": {"radius": 2},
        "hybrid": {"radius": 2, "friction": 0.5, "step_size": 1.0},
        "objective_perturbation": {"regularisation": 10},
        "output_perturbation": {"regularisation": 10},
        "sgld": {"step_size": 0.1},
        "sgnht": {"friction": 0.5, "step_size": 1.0},
    },
}
EPSILONS = [0.5, 3.0]
FEW = (named("tight", "sgld"), named("tight", "output_perturbation"))


def panel_body(**changes):
    return {
        "name": "tiny",
        "data": "two_normals",
        "encodings": ["public"],
        "delta": DELTA,
        "adjacency": "replace_one",
        "epsilons": EPSILONS,
        "repeats": 2,
        "prior_scale": 3.0,
        "seed": 1,
        "transitions": 10,
        "printed_passes": 1.0,
        "reference": {"chains": 2, "warmup": 20, "draws": 20, "thin": 1},
        "quick": {
            "epsilons": [3.0],
            "repeats": 2,
            "encodings": ["public"],
            "reference": {"chains": 2, "warmup": 20, "draws": 20},
            "transitions": 10,
            "printed_passes": 1.0,
        },
        "choosing_runs": [1, 2],
        "choosing_survivors": [1],
        "grids": {},
        "settings": {
            version: {name: {"public": dict.fromkeys(EPSILONS, body)} for name, body in methods.items()}
            for version, methods in SETTINGS.items()
        },
        **changes,
    }


CHANGED = copy.deepcopy(panel_body()["settings"])
CHANGED["tight"]["sgld"]["public"][0.5] = {"steps": 11}


def panel_of(**changes):
    return config.Panel.model_validate(panel_body(**changes))


def quiet():
    return Console(file=io.StringIO())


def rows_of(folder):
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two methods, finished."""
    folder = tmp_path_factory.mktemp("finished")
    fig3_2.figure(panel_of(), folder, quiet(), FEW)
    return folder


@pytest.mark.slow
def test_every_task_has_one_row_with_the_stated_columns(finished):
    rows = rows_of(finished)
    assert tuple(rows[0]) == COLUMNS
    tasks = {(r["version"], r["method"], r["epsilon"], r["repeat"]) for r in rows}
    assert {r["method"] for r in rows if r["version"] == "non-private"} == {"nuts", "map", "map_clipped"}
    assert len(tasks) == len(rows) == 3 + len(FEW) * len(EPSILONS) * 2
    assert all(0.5 < float(r["accuracy"]) <= 1 for r in rows)
    for suffix in ("png", "svg", "pdf"):
        assert (finished / f"tiny_public.{suffix}").stat().st_size > 10_000


@pytest.mark.slow
def test_the_guarantee_of_a_task_is_its_plans(finished):
    data = dpmcmc.data.load("two_normals")
    site = Site.of(panel_of(), data.train, data.spec.row_bound)
    for row in rows_of(finished):
        if row["method"] != "sgld":
            continue
        plan = SGLD(SETTINGS["tight"]["sgld"], float(row["epsilon"]), site)
        assert float(row["guarantee_epsilon"]) == pytest.approx(plan.guarantee.epsilon, rel=1e-6)
        assert float(row["guarantee_epsilon"]) <= float(row["epsilon"])
        assert float(row["delta"]) == DELTA


def test_a_killed_run_goes_on_after_its_finished_tasks(tmp_path):
    calls = []

    def counted(method, kill=False):
        def run(trials, site):
            calls.append((method.name, len(trials)))
            if kill:
                raise KeyboardInterrupt
            return method.run(trials, site)

        return dataclasses.replace(method, run=run)

    with pytest.raises(KeyboardInterrupt):
        fig3_2.figure(panel_of(), tmp_path, quiet(), (counted(FEW[0]), counted(FEW[1], kill=True)))
    before = rows_of(tmp_path)
    assert {r["method"] for r in before} == {"nuts", "map", "map_clipped", "sgld"}
    # As a kill in the middle of writing would leave it.
    (tmp_path / "results.tmp").write_text("method,eps")
    fig3_2.figure(panel_of(), tmp_path, quiet(), tuple(counted(m) for m in FEW))
    assert calls == [("sgld", 4), ("output_perturbation", 4), ("output_perturbation", 4)]
    assert rows_of(tmp_path)[: len(before)] == before


def test_named_methods_alone_are_run(tmp_path, capsys):
    path = tmp_path / "panel.yaml"
    path.write_text(yaml.safe_dump(panel_body()))
    line = ["--panel", str(path), "--quick", "--out", str(tmp_path / "out"), "--encodings", "public", "--methods"]
    assert fig3_2.main([*line, "tight/output_perturbation"]) == 0, capsys.readouterr().err
    assert {(r["version"], r["method"]) for r in rows_of(tmp_path / "out")} == {
        *(("non-private", name) for name in ("nuts", "map", "map_clipped")),
        ("tight", "output_perturbation"),
    }
    # A name means both versions.
    assert fig3_2.main([*line, "output_perturbation"]) == 0, capsys.readouterr().err
    assert {r["version"] for r in rows_of(tmp_path / "out")} == {"non-private", "tight", "printed"}
    assert (tmp_path / "out" / "tiny_public.svg").exists()


def test_another_configuration_is_refused_in_one_sentence(finished, tmp_path, capsys):
    path = tmp_path / "changed.yaml"
    before = rows_of(finished)
    for change, said in (
        ({"transitions": 11}, "transitions was 10, and is 11"),
        ({"prior_scale": 2.0}, "prior_scale was 3.0, and is 2.0"),
        ({"encodings": ["other", "public"]}, "first_encoding was 'public', and is 'other'"),
        ({"settings": CHANGED}, r"settings\.tight\.sgld\.public\.0\.5"),
    ):
        body = panel_body(**change)
        with pytest.raises(InputError, match=said), Results(finished, config.Panel.model_validate(body)):
            pass
    path.write_text(yaml.safe_dump(panel_body(transitions=11)))
    assert fig3_2.main(["--panel", str(path), "--out", str(finished)]) == 2
    told = capsys.readouterr().err
    assert "transitions was 10, and is 11" in told
    assert told.count("\n") == 1
    assert rows_of(finished) == before


def test_more_repeats_add_to_a_folder(finished, tmp_path):
    """Cells depend neither on how many there are nor on each other."""
    fig3_2.figure(panel_of(repeats=1), tmp_path, quiet(), FEW[1:])
    fewer = rows_of(tmp_path)
    assert max(int(r["repeat"]) for r in fewer) == 0
    fig3_2.figure(panel_of(), tmp_path, quiet(), FEW[1:])
    assert rows_of(tmp_path)[: len(fewer)] == fewer

    def numbers(folder):
        rows = [r for r in rows_of(folder) if r["method"] != "sgld"]
        key = ("method", "epsilon", "repeat")
        return sorted(({k: v for k, v in r.items() if k != "seconds"} for r in rows), key=lambda r: [r[k] for k in key])

    assert numbers(tmp_path) == numbers(finished)


def test_scores_agree_with_the_packages_diagnostics():
    rng = np.random.default_rng(0)
    rows = {"x": rng.standard_normal((50, 3)).astype(np.float32), "y": rng.integers(0, 2, 50)}
    draws = rng.standard_normal((30, 3)).astype(np.float32)
    ours, theirs = scores.predict(draws, rows), predictive.predict(LogisticRegression(num_features=3), draws, rows)
    assert ours.accuracy == theirs.posterior_predictive
    assert ours.log_predictive_density == pytest.approx(theirs.log_predictive_density, abs=1e-5)
    assert ours.single_draw_accuracy == pytest.approx(theirs.single_draw.mean())


def test_the_score_is_proper_and_one_for_the_posterior_itself():
    """W₁ gives a point at the mean .80 and one exact draw 1.13: it rewards what is too sure of itself."""
    rng = np.random.default_rng(1)
    scale = np.array([1, 2, 3, 4])
    reference = scores.Posterior(rng.standard_normal((2000, 4)) * scale)
    own = {width: reference.crps(width * scale * rng.standard_normal((2000, 4))) for width in (0.5, 1.0, 2.0)}
    assert own[1.0] == pytest.approx(1, abs=0.1)
    assert min(own[0.5], own[2.0]) > own[1.0] + 0.03
    # A point at a normal's mean has √2, and a draw of it 2.
    assert reference.crps(reference.draws.mean(axis=0, keepdims=True)) == pytest.approx(math.sqrt(2), rel=0.05)
    single = np.mean([reference.crps(reference.draws[i : i + 1]) for i in range(300)])
    assert single == pytest.approx(2, rel=0.1)


def test_grids_are_crossed_where_they_apply():
    grids = [{"steps": [1, 2], "clip": 0.5}, {"steps": 3, "least_epsilon": 1}]
    assert list(choose.combinations(grids, 0.5)) == [{"steps": 1, "clip": 0.5}, {"steps": 2, "clip": 0.5}]
    assert list(choose.combinations(grids, 1.0))[-1] == {"steps": 3}


def test_the_best_setting_is_chosen_and_written(tmp_path):
    """The worse setting releases noise: one run of twenty is as good as the other's, which six runs in a row are not.

    (1/20)⁶ at each ε is below 1e-7.
    """
    path = tmp_path / "panel.yaml"
    grids = {"tight": {"output_perturbation": [{"regularisation": [1.0e-3, 300.0]}]}}
    body = panel_body(grids=grids, settings={}, choosing_runs=[6, 7])
    path.write_text("# A comment to keep.\n" + yaml.safe_dump(body, sort_keys=False))
    said = []
    choose.choose(path, tmp_path / "choosing", say=said.append)
    chosen = config.load(path).settings["tight"]["output_perturbation"]["public"]
    assert {epsilon: s["regularisation"] for epsilon, s in chosen.items()} == {0.5: 300.0, 3.0: 300.0}
    assert path.read_text().startswith("# A comment to keep.")
    # Again: nothing left to run, nothing changed.
    text = path.read_text()
    choose.choose(path, tmp_path / "choosing", say=said.append)
    assert path.read_text() == text
    # Both settings six times, the better one once more, at two values of ε.
    assert "26 runs" in said[0]
    assert "0 runs" in said[1]


def test_ours_is_the_best_on_the_split_and_compared_in_pairs():
    body = panel_body(repeats=3, epsilons=[0.5])
    body["settings"]["tight"]["sgld"]["public"][0.5] = {"split_accuracy": 0.9}
    body["settings"]["tight"]["sghmc"]["public"][0.5] = {"split_accuracy": 0.8}
    accuracies = {"sgld": [0.9, 0.91, 0.92], "sghmc": [1.0, 1.0, 1.0], "output_perturbation": [0.89, 0.9, 0.9]}
    rows = [
        {"version": "tight", "method": m, "encoding": "public", "epsilon": "0.5", "repeat": str(i), "accuracy": str(v)}
        for m, values in accuracies.items()
        for i, v in enumerate(values)
    ]
    (line,) = compare.table(config.Panel.model_validate(body), rows)
    assert (line["ours"], line["baseline"]) == ("sgld", "tight/output_perturbation")
    assert line["difference"] == pytest.approx(0.04 / 3, abs=1e-5)
    assert line["p_two_sided"] == pytest.approx(0.0572, abs=1e-3)


@pytest.mark.parametrize("name", ["adult", "abalone", "two_normals"])
def test_shipped_panels_have_a_grid_for_every_method(name):
    panel = config.load(f"configs/figures/fig3_2_{name}.yaml")
    for method in METHODS:
        for epsilon in panel.epsilons:
            assert list(choose.combinations(panel.grids[method.version][method.name], epsilon))
    assert json.dumps(panel.to_json())


@pytest.mark.slow
def test_every_method_runs(tmp_path, capsys):
    path = tmp_path / "panel.yaml"
    path.write_text(yaml.safe_dump(panel_body()))
    assert fig3_2.main(["--panel", str(path), "--quick", "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    rows = rows_of(tmp_path / "out")
    assert {(r["version"], r["method"]) for r in rows} >= {(m.version, m.name) for m in METHODS}
    for row in rows:
        assert row["accuracy"] != "", row
        assert ("the source's claim" in row["assumptions"]) == (row["version"] == "printed")
        if row["version"] == "tight":
            assert float(row["guarantee_epsilon"]) <= float(row["epsilon"]) * (1 + 1e-9)
    assert (tmp_path / "out" / "comparison.csv").exists()
