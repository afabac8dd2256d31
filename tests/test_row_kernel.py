"""The kernel that sums a batch in one pass, interpreted on a CPU: bit for bit the sums of the plain path."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine.hardware import query_class
from dpmcmc.privacy.query import exact_sums, row_kernel
from dpmcmc.privacy.query.metric import PublicMatrix
from dpmcmc.privacy.query.query import GradientQuery, StepRandomness

RECORDS, CHAINS, BITS = 300, 3, 21
MODELS = {
    "logistic": dpmcmc.targets.LogisticRegression,
    "linear": dpmcmc.targets.LinearRegression,
    "poisson": dpmcmc.targets.PoissonRegression,
}


def made(name, features, clip, bad=False, label_blind=False):
    """(plain sums and the kernel's, of three batches); rows and θ are multiples of 1/64, so that margins are exact."""
    target, rng = MODELS[name](prior_scale=1.0, num_features=features), np.random.default_rng(0)
    x = (rng.integers(-16, 17, (RECORDS, features)) / 64).astype(np.float32)
    y = rng.integers(0, 2, RECORDS).astype(np.int32 if name != "linear" else np.float32)
    if bad:
        x[:9] = np.nan
        x[9:14, 0] = np.inf
    records = jax.tree.map(jnp.asarray, target.prepared({"x": x, "y": y}))
    theta = jnp.asarray((rng.integers(-32, 33, (CHAINS, features)) / 16).astype(np.float32))
    # 140 rows are more than a thread block takes at 128 columns, and no multiple of what it takes.
    indices = jnp.asarray(rng.integers(0, RECORDS, (CHAINS, 140)).astype(np.int32))
    batch = indices, jnp.asarray(rng.random((CHAINS, 140)) < 0.7)

    residual = functools.partial(target.weighted_residual, clip=clip if label_blind else None)
    how = {"label_blind": True} if label_blind else {}

    def plain(theta, indices, mask):
        rows = jax.tree.map(lambda leaf: leaf[indices], records)
        return target.clipped_gradient_sum(theta, rows, mask, clip, BITS, **how)

    def kernel(theta, *batch):
        return row_kernel.linear_sum(residual, theta, records, batch, clip, BITS, interpret=True)

    return [jax.jit(jax.vmap(function))(theta, *batch) for function in (plain, kernel)]


@pytest.mark.parametrize("clip", [0.25, 8.0])
@pytest.mark.parametrize(("name", "features"), [("logistic", 109), ("logistic", 5), ("linear", 16), ("poisson", 12)])
def test_sums_are_bit_for_bit_those_of_the_plain_path(name, features, clip):
    plain, kernel = made(name, features, clip)
    assert np.any(plain.low)
    jax.tree.map(np.testing.assert_array_equal, kernel, plain)


def test_label_blind_sums_are_too():
    plain, kernel = made("logistic", 16, 0.25, label_blind=True)
    assert not np.array_equal(plain.low, made("logistic", 16, 0.25)[0].low)
    jax.tree.map(np.testing.assert_array_equal, kernel, plain)


def test_rows_that_are_not_finite_contribute_nothing_either_way():
    plain, kernel = made("logistic", 12, 0.25, bad=True)
    jax.tree.map(np.testing.assert_array_equal, kernel, plain)


def test_the_comparison_sees_a_kernel_that_clips_by_another_norm(monkeypatch):
    factor = exact_sums.unit_factor
    plain, same = made("logistic", 16, 0.25)
    np.testing.assert_array_equal(plain.low, same.low)
    monkeypatch.setattr(exact_sums, "unit_factor", lambda norm, mask, clip: factor(norm * 1.001, mask, clip))
    _, planted = made("logistic", 16, 0.25)
    assert not np.array_equal(plain.low, planted.low)


def test_the_kernel_is_off_unless_it_is_asked_for_and_on_a_gpu_alone(monkeypatch):
    assert query_class("gpu") is GradientQuery
    monkeypatch.setenv("DPMCMC_ROW_KERNEL", "1")
    assert query_class("cpu") is GradientQuery
    assert query_class("gpu") is row_kernel.RowKernelQuery


def test_what_the_kernel_cannot_sum_takes_the_plain_path(monkeypatch):
    monkeypatch.setattr(row_kernel, "linear_sum", None)  # which fails where it is called
    target = MODELS["logistic"](prior_scale=1.0, num_features=4)
    x = np.random.default_rng(0).normal(size=(RECORDS, 4)).astype(np.float32)
    records = {"x": jnp.asarray(x), "y": jnp.arange(RECORDS) % 2}
    some, every = (jnp.arange(8), jnp.ones(8, bool)), (None, jnp.ones(RECORDS, bool))
    whitening = PublicMatrix(np.full(4, 2.0))
    for rows, batch, metric in (
        (records, some, None),
        (target.prepared(records), every, None),
        (target.prepared(records), some, whitening),
    ):
        draws = StepRandomness(batch, None, None, None)
        found = [
            kind(target, RECORDS, 8, 0.25, None, BITS, metric=metric).gradient_sum(jnp.ones(4), rows, draws)
            for kind in (GradientQuery, row_kernel.RowKernelQuery)
        ]
        jax.tree.map(np.testing.assert_array_equal, *found)
