"""One row at the end of its dtype moves no release of a noise-aware mechanism beyond what is charged."""

import numpy as np
import pytest

from dpmcmc.mechanisms import NoiseAware
from dpmcmc.targets import (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
    SoftmaxRegression,
    bind,
    from_numpyro,
    record_shapes,
)
from tests import extreme_rows
from tests.one_shot_replay import charged, measured

N, D = 60, 3
REGRESSION = {"prior_scale": 1.0, "num_features": D, "row_bound": 1.0}
FAMILIES = {
    "logistic": LogisticRegression(**REGRESSION),
    "softmax": SoftmaxRegression(**REGRESSION, num_classes=3),
    "poisson": PoissonRegression(**REGRESSION),
    "negative binomial": NegativeBinomialRegression(**REGRESSION, dispersion=0.5),
    "linear": LinearRegression(**REGRESSION, noise_scale=0.5, label_bound=1e6),
}
#: Labels of a family, of the dtypes that it takes.
LABELS = {
    "logistic": [np.int8, [0, 1]],
    "softmax": [np.int64, [0, 1, 2]],
    "poisson": [np.float64, [0.0, 1.7976931348623157e308, 2.0**53 + 2, 1.0]],
    "negative binomial": [np.int64, [0, 2**63 - 1, 1]],
    "linear": [np.float64, [1e6, -1e6, 5e-324, -0.0]],
}
#: Rows within 1: at the bound, denormals, signed zeros, and what squares to zero.
ROWS = [[1.0, 0, 0], [-0.6, 0.8, 0], [5e-324, -5e-324, 0], [1e-45, 0, -1e-40], [-0.0, 0.0, -0.0], [1e-200, 0, 0]]


#: Every model takes a real and a whole number, and one takes every dtype: what follows is float64 for all of them.
MODELS = [(model, dtype) for model in extreme_rows.MODELS for dtype in ("float64", "int64")]
MODELS += [("straight", dtype) for dtype in extreme_rows.EXTREMES if dtype not in ("float64", "int64")]


@pytest.mark.parametrize(("model", "dtype"), MODELS)
def test_an_extreme_row_moves_no_sum_of_a_numpyro_model_beyond_what_is_charged(model, dtype):
    """Norms that overflow, largest finite numbers, denormals and signed zeros; distances over what is charged."""
    found = extreme_rows.farthest(model, dtype)
    assert {name: share for name, share in found.items() if not share <= 1} == {}


@pytest.mark.parametrize(
    ("model", "dtype", "value"), [("counted", "float64", 1e160), ("twice_exponential", "float32", None)]
)
def test_a_row_whose_norm_overflows_costs_no_more_than_a_plan_charges(model, dtype, value):
    """Its norm is no number of float64: it counts nowhere, and the curvature of all others stays as it was."""
    records = extreme_rows.table(dtype)
    found = extreme_rows.reading(model, dtype)
    other = {name: leaf.copy() for name, leaf in records.items()}
    # exp(b·x) with b where the run begins: x = −10,961, or near it.
    other["x"][extreme_rows.AT] = 360 / found.centre[-1] if value is None else value
    target = bind(from_numpyro(extreme_rows.MODELS[model]), record_shapes(records))
    plan = NoiseAware(draws=4, steps=4).plan(target, num_records=extreme_rows.N, epsilon=0.1, delta=1e-5)
    assert measured(plan, records, other) <= charged(plan)
    alone = {name: leaf[extreme_rows.AT : extreme_rows.AT + 1] for name, leaf in other.items()}
    sums = extreme_rows.Sums(found, alone, np.zeros(len(found.centre)))
    assert all(not np.any(part.floats) for part in vars(sums).values())


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((name, np.float64) for name in FAMILIES),
        ("softmax", np.float32),
        ("linear", np.float32),
        ("linear", np.float16),
    ],
)
def test_an_extreme_row_of_a_regression_costs_no_more_than_a_plan_charges(family, dtype):
    rng = np.random.default_rng(0)
    kind, labels = LABELS[family]
    records = {"x": (rng.normal(size=(N, D)) / 4).astype(dtype), "y": rng.choice(labels[:2], size=N).astype(kind)}
    records["x"] /= np.maximum(1, np.linalg.norm(records["x"].astype(float), axis=1) * 1.01)[:, None].astype(dtype)
    records["y"][1:] = np.asarray(np.clip(records["y"][1:], 0, 1), kind)
    neighbours = []
    for row in ROWS:
        for label in labels:
            neighbours.append({name: leaf.copy() for name, leaf in records.items()})
            neighbours[-1]["x"][0] = np.asarray(row, dtype)
            neighbours[-1]["y"][0] = label
    for covariance in ("model", "sandwich") if family == "linear" else ("model",):
        way = NoiseAware(draws=4, steps=4, covariance=covariance)
        plan = way.plan(FAMILIES[family], num_records=N, epsilon=0.5, delta=1e-5)
        assert measured(plan, records, *neighbours) <= charged(plan)
