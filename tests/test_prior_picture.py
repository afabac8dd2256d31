"""The picture of prior and draws: which parameters it has, under which prior, and of which models there is none."""

import dataclasses

import numpy as np
import pytest

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.inference.evidence import Evidence
from dpmcmc.report.prior import BesidePrior
from tests.test_result import COLUMNS, chain, released


def of(result, evidence=None):
    return BesidePrior.of(result.plan, result.released, result.columns, evidence)


def evidence(size, **more):
    return Evidence(np.eye(size), np.ones(size), np.eye(size), np.linspace(1, 2, size), 5000, **more)


def test_the_prior_is_that_of_the_target_or_of_the_release():
    result = released()
    plain = of(result)
    assert [row[0] for row in plain.rows] == list(COLUMNS)
    assert {row[2:] for row in plain.rows} == {(0.0, 1.0)}
    np.testing.assert_allclose(plain.rows[1][1], result.draws[..., 1].ravel())
    own = of(result, evidence(3, means=np.array([0.5, 0.0, 0.0])))
    assert [row[2:] for row in own.rows] == [(0.5, 1.0), (0.0, 1.5), (0.0, 2.0)]
    assert "chosen from the released numbers" not in own.caption
    assert "chosen from the released numbers" in of(result, evidence(3, chosen=True)).caption
    assert of(result, evidence(2)) is None
    assert of(released(result.draws[:, :99])) is None


def test_up_to_six_parameters_evenly_spread_and_none_of_groups():
    draws = np.random.default_rng(0).normal(size=(2, 50, 40)).astype(np.float32)
    many = of(released(draws, columns=None))
    assert [row[0] for row in many.rows] == [f"theta[{j}]" for j in (0, 7, 15, 23, 31, 39)]
    columns = {"age": Range(0, 9), "clinic": Levels(("a", "b", "c")), "y": Levels(("no", "yes"))}
    schema = Schema(columns, label="y", formula="y ~ age + (1|clinic)")
    target = dpmcmc.targets.LogisticRegression()
    facts = {"num_records": 5000, "epsilon": 1.0, "delta": 1e-6}
    plan = dpmcmc.mechanisms.NoiseAware(draws=100).plan(target, schema=schema, **facts)
    draws = np.zeros((1, 100, 5), np.float32)
    grouped = dpmcmc.Result(plan, draws, draws, None, plan.guarantee, {"run": 1.0})
    assert [row[0] for row in of(grouped).rows] == ["age", "intercept"]
    assert "a range is within [-1, 1]" in of(grouped).units


@pytest.mark.parametrize("target", [dpmcmc.targets.SoftmaxRegression(1.0, 3, num_features=3, row_bound=1.0), object()])
def test_models_without_one_normal_prior_for_each_number_have_no_picture(target):
    result = released()
    assert of(dataclasses.replace(result, plan=dataclasses.replace(result.plan, target=target))) is None


def test_mixing_is_that_of_every_number_and_of_chains_alone():
    result = chain()
    ess, rhat = result.mixing
    assert ess.shape == rhat.shape == (3,)
    assert result.diagnostics == {"ess": pytest.approx(ess.min()), "rhat": pytest.approx(rhat.max())}
    assert released().mixing is None
