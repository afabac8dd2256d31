"""A tempered target is the target with a likelihood raised to a power, in densities, bounds and exact sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.targets import Custom, LinearRegression, LogisticRegression, SoftmaxRegression, bind, record_shapes
from dpmcmc.targets.tempered import Tempered
from dpmcmc.testing import check_target

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
X /= np.linalg.norm(X, axis=1, keepdims=True)
RECORDS = {
    "logistic": {"x": X, "y": RNG.integers(0, 2, 60).astype(np.int32)},
    "softmax": {"x": X, "y": RNG.integers(0, 3, 60).astype(np.int32)},
    "linear": {"x": X, "y": RNG.normal(size=60).clip(-2, 2).astype(np.float32)},
}
FEW = {name: leaf[:12] for name, leaf in RECORDS["logistic"].items()}
TARGETS = {
    "logistic": LogisticRegression(0.7, row_bound=1.0),
    "softmax": SoftmaxRegression(0.7, num_classes=3, row_bound=1.0),
    "linear": LinearRegression(0.7, 0.5, 2.0, row_bound=1.0),
}


@pytest.mark.slow
def test_protocol_sums_and_bounds_hold():
    check_target(Tempered(TARGETS["logistic"], 0.03, 0.5), FEW)


@pytest.mark.slow
def test_check_target_sees_a_clip_that_is_not_rescaled(monkeypatch):
    monkeypatch.setattr(Tempered, "clipped_gradient_sum", property(lambda self: self.target.clipped_gradient_sum))
    with pytest.raises(AssertionError, match="clipped_gradient_sum is off"):
        check_target(Tempered(TARGETS["logistic"], 0.3), FEW)


def test_clipped_sum_is_the_same_integers_at_the_rescaled_clip():
    target = bind(TARGETS["logistic"], record_shapes(RECORDS["logistic"]))
    params, mask = jnp.full(4, 0.3), jnp.ones(60, bool)
    ours = jax.jit(Tempered(target, 0.25).clipped_gradient_sum)(params, RECORDS["logistic"], mask, 0.1)
    base = jax.jit(target.clipped_gradient_sum)(params, RECORDS["logistic"], mask, 0.4)
    np.testing.assert_array_equal(ours.high, base.high)
    np.testing.assert_array_equal(ours.low, base.low)
    np.testing.assert_allclose(ours.to_float64(0.1, 21), 0.25 * base.to_float64(0.4, 21), rtol=1e-12)


@pytest.mark.parametrize("name", TARGETS)
def test_densities_and_bounds_are_multiplied(name):
    base = bind(TARGETS[name], record_shapes(RECORDS[name]))
    tempered = Tempered(base, 0.3, 0.5)
    params = jax.tree.map(lambda leaf: leaf + 0.4, base.init(jax.random.key(0)))
    record = {"x": X[3], "y": RECORDS[name]["y"][3]}
    assert np.isclose(tempered.log_likelihood(params, record), 0.3 * base.log_likelihood(params, record))
    assert np.isclose(tempered.log_prior(params), 0.5 * base.log_prior(params))
    assert tempered.smoothness == pytest.approx(0.3 * base.smoothness)
    assert tempered.gradient_bound_within(2.0) == pytest.approx(0.3 * base.gradient_bound_within(2.0))
    assert tempered.loss_bounds(2.0) == pytest.approx(tuple(0.3 * b for b in base.loss_bounds(2.0)))
    assert tempered.prior_precision == pytest.approx(0.5 * 0.7**-2)
    assert (tempered.gradient_bound is None) == (base.gradient_bound is None)


def test_prior_is_replaced_and_its_precision_is_its_curvature():
    base = bind(TARGETS["logistic"], record_shapes(RECORDS["logistic"]))
    tempered = Tempered(base, 0.3, 0.5, new_prior_precision=8.0)
    assert tempered.prior_precision == 4.0
    hessian = jax.jit(jax.hessian(lambda p: -tempered.log_prior(p)))(jnp.ones(4))
    np.testing.assert_allclose(hessian, 4.0 * np.eye(4), rtol=1e-6)


def test_facts_and_methods_of_the_target_pass_through():
    tempered = Tempered(TARGETS["logistic"], 0.3)
    assert (tempered.num_classes, tempered.row_bound, tempered.log_concave) == (2, 1.0, True)
    assert tempered.bind(record_shapes(RECORDS["logistic"])).target.num_features == 4
    assert isinstance(tempered.bind(record_shapes(RECORDS["logistic"])), Tempered)
    with pytest.raises(ValueError, match="label"):
        tempered.check_records({"x": X, "y": np.full(60, 7)})
    plain = Tempered(Custom(lambda key: jnp.zeros(2), lambda p: -p @ p, lambda p, r: -r["x"] @ p), 0.3)
    assert plain.predict is None
    assert not plain.log_concave
    assert plain.clipped_gradient_sum is None
    assert plain.constrain is None
    assert plain.prior_precision is None
    assert plain.gradient_bound is None
    assert hash(tempered) == hash(Tempered(TARGETS["logistic"], 0.3))
    assert tempered != Tempered(TARGETS["logistic"], 0.31)


@pytest.mark.parametrize(
    ("name", "value"), [("temper", 0.0), ("temper", np.nan), ("prior_temper", np.inf), ("new_prior_precision", -1.0)]
)
def test_impossible_powers_are_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name}"):
        Tempered(TARGETS["logistic"], **{"temper": 1.0, name: value})
