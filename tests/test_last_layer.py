"""Softmax regression on frozen features: the run is that on rows that are features, and the target keeps its bound."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.errors import InputError
from dpmcmc.inference import predictive
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.targets import LastLayer, SoftmaxRegression, TargetError
from dpmcmc.targets.last_layer import on_rows

N, D, P, K = 40, 6, 4, 3


def embed(x):
    """(n, 6) to (n, 2, 2), whose norms are anything."""
    return jnp.tanh(x[:, :4] * x[:, 1:5]).reshape(-1, 2, 2) * 3


TARGET = LastLayer(features=embed, num_classes=K, num_features=P, prior_scale=2.0)


def records(seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(N, D)).astype(np.float32), "y": rng.integers(0, K, N).astype(np.int32)}


def plan_of(target, **given):
    return dpmcmc.plan(
        target,
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=0.5),
        sampling=dpmcmc.Full(),
        steps=6,
        burn_in=2,
        privacy=dpmcmc.Privacy(epsilon=4.0, delta=1e-3),
        **given,
    )


def test_run_in_a_metric_is_that_of_softmax_regression_on_the_features():
    data, metric = records(), dpmcmc.PrivateMetric()
    run = functools.partial(dpmcmc.sample, key=3)
    result = run(plan_of(TARGET, metric=metric), data)
    on_features = run(plan_of(TARGET.head, metric=metric), {**data, "x": TARGET.rows(data["x"])})
    assert np.array_equal(result.draws, on_features.draws)
    # Features are no columns, even where there are as many.
    assert dataclasses.replace(result, columns=tuple("abcd")).columns is None
    assert result.plan.guarantee is not None
    assert result.plan.guarantee.epsilon == on_features.plan.guarantee.epsilon


def test_target_takes_records_as_they_are_and_predicts_as_on_features():
    data = records()
    params = jnp.asarray(np.random.default_rng(1).normal(size=(P, K)), jnp.float32)
    rows = {**data, "x": TARGET.rows(data["x"])}
    for i in range(3):
        one, mapped = (jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), each) for each in (data, rows))
        expected = TARGET.head.log_likelihood(params, mapped)
        assert TARGET.log_likelihood(params, one) == pytest.approx(float(expected), rel=1e-5)
    found = predictive.predict(TARGET, params[None], data)
    expected = predictive.predict(TARGET.head, params[None], rows)
    assert np.allclose(found.probability, expected.probability, atol=1e-6)
    assert np.allclose(TARGET.predict(params, data["x"]), expected.probability, atol=1e-6)


def test_features_keep_the_bound_whatever_a_record_holds():
    x = np.array([[1e30] * D, [1.0] * D, [0.0] * D, [np.float32(3e38)] * D], np.float32)
    for scale in (1.0, 1e30):
        target = LastLayer(features=lambda x, scale=scale: x * scale, num_classes=K, num_features=D, row_bound=0.5)
        rows = target.rows(x)
        assert np.all(np.isfinite(rows))
        norms = np.linalg.norm(rows.astype(np.float64), axis=1)
        assert np.all(norms <= 0.5)
        assert norms[1] == pytest.approx(0.5, rel=1e-4)
        gradient = jax.grad(target.log_likelihood)(jnp.zeros((D, K)), {"x": x[0], "y": jnp.int32(1)})
        assert float(jnp.linalg.norm(gradient)) <= target.gradient_bound


def test_features_of_a_record_depend_on_no_other_and_not_on_its_place():
    def mixing(x):
        return x - x.mean(axis=0)  # a batch norm: of one row it is zero

    assert np.all(
        LastLayer(features=mixing, num_classes=K).bind(dpmcmc.targets.record_shapes(records())).rows(records()["x"])
        == 0
    )
    x = records()["x"]
    order = np.random.default_rng(0).permutation(N)
    assert np.array_equal(TARGET.rows(x)[order], TARGET.rows(x[order]))
    assert np.array_equal(TARGET.rows(x)[:-1], TARGET.rows(x[:-1]))


def test_layers_of_a_flax_module_are_frozen_with_their_weights():
    class Body(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.relu(nn.Dense(P)(x))

    body, x = Body(), records()["x"]
    one, other = (body.init(jax.random.key(seed), x[:1]) for seed in (0, 1))
    first, second = (LastLayer(features=functools.partial(body.apply, v), num_classes=K) for v in (one, other))
    assert first != second
    rows = first.rows(x)
    expected = np.asarray(body.apply(one, x))
    longest = np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1.0)
    assert np.allclose(rows, expected / longest, atol=1e-4)
    assert not np.allclose(rows, second.rows(x))


def test_wrong_features_are_refused_with_a_reason():
    with pytest.raises(InputError, match="features"):
        LastLayer(features=3, num_classes=K)
    with pytest.raises(TargetError, match="num_features 7, and features give 4"):
        dpmcmc.sample(plan_of(LastLayer(features=embed, num_classes=K, num_features=7)), records(), key=0)
    with pytest.raises(TargetError, match="fail on a row of shape"):
        LastLayer(features=lambda x: x @ jnp.ones((9, 2)), num_classes=K).bind(dpmcmc.targets.record_shapes(records()))


def test_facts_of_columns_are_not_told_of_features():
    columns = {f"x{j}": Range(-1, 1) for j in range(D)}
    schema = Schema({**columns, "y": Levels(list("abc"))}, label="y")
    target = schema.with_public_facts(LastLayer(features=embed))
    assert (target.num_classes, target.num_features) == (K, None)
    mechanism = NoiseAware().plan(TARGET, num_records=10_000, epsilon=4.0, delta=1e-5, schema=schema).mechanism
    assert mechanism.structure is None
    assert schema.with_public_facts(NoiseAware(), SoftmaxRegression()).structure == schema.structure
    metric = plan_of(TARGET, schema=schema, metric=dpmcmc.PrivateMetric("gram", share=0.5)).metric
    assert metric.asked.structure is None


def test_targets_of_other_kinds_keep_their_records():
    target, data = SoftmaxRegression(num_classes=K), records()
    assert on_rows(target, data) == (target, data)


# Calibration.


def test_calibration_error_by_hand():
    # Bins of width 1/15: .95 and .97 are in the last, .5 is in the eighth.
    confident, unsure = [0.95, 0.05], [0.5, 0.5]
    probability = np.array([confident, confident, [0.03, 0.97], unsure])
    y = np.array([0, 1, 1, 0])
    expected = (abs(2 - (0.95 + 0.95 + 0.97)) + abs(1 - 0.5)) / 4
    assert predictive.expected_calibration_error(probability, y) == pytest.approx(expected)


def test_calibration_error_tells_a_calibrated_classifier_from_a_confident_one():
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(20_000, K))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1)
    sharper = p**2 / (p**2).sum(axis=1, keepdims=True)
    assert predictive.expected_calibration_error(p, y) < 0.02
    assert predictive.expected_calibration_error(sharper, y) > 0.04


def test_a_loaded_result_says_and_predicts_what_the_fresh_one_does(tmp_path):
    fresh = dpmcmc.sample(plan_of(TARGET), records())
    fresh.save(tmp_path / "run")
    loaded = dpmcmc.Result.load(tmp_path / "run", TARGET)
    x = records(1)["x"][:5]
    np.testing.assert_allclose(loaded.predict(x), fresh.predict(x), rtol=1e-5)
    # A loaded result counts no runs of this process.
    assert str(loaded.summary()) == str(fresh.summary())
    assert loaded.columns is None
    np.testing.assert_array_equal(loaded.path, fresh.path)
    alone = dpmcmc.Result.load(tmp_path / "run")
    with pytest.raises(InputError, match=r"target: .* is not in the folder; give it"):
        alone.predict(x)
