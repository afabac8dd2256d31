"""Effects of a release: ratios, marginal effects and contrasts are those of its draws."""

import numpy as np
import pytest
from scipy.special import expit

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.errors import InputError, UnsupportedCombination

SCHEMA = Schema(
    {"age": Range(17, 90), "job": Levels(("none", "some")), "y": Levels(("0", "1"))}, label="y", formula="y ~ age + job"
)
TRUTH = {"age": 0.03, "job": -0.8}


@pytest.fixture(scope="module")
def fitted():
    """A release of 40,000 rows at an ε that leaves little noise, and its table."""
    rng = np.random.default_rng(0)
    age, job = rng.uniform(17, 90, 40_000), rng.integers(0, 2, 40_000)
    eta = TRUTH["age"] * (age - 50) + TRUTH["job"] * job
    y = (rng.random(len(eta)) < expit(eta)).astype(int)
    table = {"age": age, "job": np.array(["none", "some"])[job], "y": y.astype(str)}
    return dpmcmc.fit(None, table, SCHEMA, 8.0, progress=False), eta


def test_ratios_and_marginal_effects_contain_the_truth(fitted):
    result, eta = fitted
    found = result.effects(level=0.999)
    slope = float(np.mean(expit(eta) * expit(-eta)))
    truths = {
        ("age", "odds ratio, per unit"): np.exp(TRUTH["age"]),
        ("age", "odds ratio, from 17 to 90"): np.exp(TRUTH["age"] * 73),
        ("job=some", "odds ratio, per unit"): np.exp(TRUTH["job"]),
        ("age", "average marginal effect"): TRUTH["age"] * slope,
        ("job=some", "average marginal effect"): TRUTH["job"] * slope,
    }
    named = dict(zip(zip(found.names, found.kinds, strict=True), found.intervals, strict=True))
    assert set(named) == set(truths)
    for key, truth in truths.items():
        low, high = named[key]
        assert low < truth < high, key
        assert high - low < 0.6 * abs(truth), key
    assert list(found.to_dict()) == ["name", "kind", "mean", "sd", "0.05 %", "99.95 %"]
    assert "odds ratio, from 17 to 90" in str(found)


def test_a_contrast_has_the_spread_of_its_draws(fitted):
    result, _ = fitted
    draws = SCHEMA.to_original_units(result.flat_draws())
    names = list(SCHEMA.own_names)
    expected = 10 * draws[:, names.index("age")] - draws[:, names.index("job=some")]
    found = result.effects({"age": 10.0, "job=some": -1.0})
    np.testing.assert_allclose(found.draws[:, 0], expected)
    assert found.intervals.shape == (1, 2)


def test_what_has_no_effects_is_refused(fitted):
    result, _ = fitted
    with pytest.raises(InputError, match="'agee' is no coefficient; the names are age"):
        result.effects({"agee": 1.0})
    with pytest.raises(InputError, match="level must be in"):
        result.effects(level=1.0)
    target = dpmcmc.targets.LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
    x = np.random.default_rng(0).uniform(-0.7, 0.7, size=(1000, 2))
    bare = dpmcmc.sample(dpmcmc.suggest(target, num_records=1000, epsilon=1.0), {"x": x, "y": x[:, 0]}, progress=False)
    with pytest.raises(UnsupportedCombination, match="the plan has no schema"):
        bare.effects()
