"""Built-in targets against brute force.

The checks that guard targets find what is planted.

Plain functions as a target.
"""

import contextlib
import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import dpmcmc
from dpmcmc.errors import DataError
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import exact_sums
from dpmcmc.targets import (
    TARGETS,
    Custom,
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    OrdinalRegression,
    PoissonRegression,
    SoftmaxRegression,
    TargetError,
    bind,
    check,
)
from dpmcmc.targets.base import check_bound, check_rows
from dpmcmc.targets.checks import check_target

N, D, K = 200, 4, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
Y = {
    "logistic_regression": RNG.integers(2, size=N),
    "linear_regression": (X @ np.arange(D) + RNG.normal(size=N)).astype(np.float32),
    "softmax_regression": RNG.integers(K, size=N),
    "ordinal_regression": RNG.integers(K, size=N),
    "poisson_regression": RNG.poisson(2.0, size=N),
    "negative_binomial_regression": RNG.poisson(2.0, size=N),
}
BUILT_IN = {
    "logistic_regression": LogisticRegression(0.7, row_bound=1.0),
    "linear_regression": LinearRegression(2.0, 0.5),
    "softmax_regression": SoftmaxRegression(0.7, num_classes=K, row_bound=1.0),
    "ordinal_regression": OrdinalRegression(0.7, num_classes=K, row_bound=1.0),
    "poisson_regression": PoissonRegression(0.7),
    "negative_binomial_regression": NegativeBinomialRegression(0.7, 0.5),
}
NAMES = sorted(BUILT_IN)


def records(name):
    return {"x": X, "y": Y[name]}


def bound(name):
    return bind(BUILT_IN[name], {"x": X[0], "y": Y[name][0]})


def random_params(target, seed=0, scale=1.0):
    start = jax.eval_shape(target.init, jax.random.key(0))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), jnp.float32), start)


def private_run(target, data):
    """Return the result of a few private steps on N records, and see that it has the plan's guarantee."""
    plan = dpmcmc.plan(
        target,
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=0.1),
        sampling=dpmcmc.Poisson(20),
        steps=5,
        chains=2,
        privacy=dpmcmc.Privacy(epsilon=2.0, delta=1e-4),
    )
    result = dpmcmc.sample(plan, data)
    assert isinstance(result.guarantee, dpmcmc.Guarantee)
    assert result.guarantee == plan.guarantee
    return result


def log_likelihood64(name, theta, x, y):
    """Σ log p(y | x, θ) in float64, from SciPy's densities."""
    if name == "linear_regression":
        return stats.norm.logpdf(y, x @ theta, 0.5).sum()
    if name == "poisson_regression":
        return stats.poisson.logpmf(y, np.exp(x @ theta)).sum()
    if name == "negative_binomial_regression":
        return stats.nbinom.logpmf(y, 2, 2 / (2 + np.exp(x @ theta))).sum()
    if name == "ordinal_regression":
        above = special.expit((x @ theta[:D])[:, None] + np.array([0.0, theta[D] / 2]))
        chances = np.c_[np.ones(len(x)), above] - np.c_[above, np.zeros(len(x))]
        return np.log(np.maximum(chances[np.arange(len(x)), y], 1e-6)).sum()
    logits = np.stack([np.zeros(len(x)), x @ theta], axis=1) if name == "logistic_regression" else x @ theta
    logits = logits - logits.max(axis=1, keepdims=True)
    return (logits[np.arange(len(x)), y] - np.log(np.exp(logits).sum(axis=1))).sum()


def test_every_built_in_is_tested_here():
    assert set(NAMES) == set(TARGETS)


@pytest.mark.parametrize("name", NAMES)
def test_log_likelihoods_are_normalised_densities(name):
    target, data = bound(name), records(name)
    params = random_params(target)
    each = jax.jit(jax.vmap(target.log_likelihood, (None, 0)))(params, data)
    wanted = log_likelihood64(name, np.asarray(params, np.float64), X.astype(np.float64), data["y"])
    np.testing.assert_allclose(each.sum(), wanted, rtol=1e-5)


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "features", "aligned"),
    [
        ("logistic_regression", 8, None),
        ("linear_regression", 9, None),
        ("linear_regression", 15, 16),
        ("logistic_regression", 109, 112),
    ],
)
def test_prepared_rows_have_the_sums_of_the_rows(name, features, aligned):
    """9 is not worth 16; NaN rows stay out."""
    x = RNG.normal(size=(N, features)).astype(np.float32)
    x[3, 0] = np.nan
    target, batch = dataclasses.replace(BUILT_IN[name], num_features=features), {"x": x, "y": Y[name]}
    prepared, mask = target.prepared(batch), jnp.arange(N) % 3 != 1
    assert ("x_aligned" not in prepared) if aligned is None else prepared["x_aligned"].table.shape == (N, aligned)
    theta = jnp.asarray(RNG.normal(size=features), jnp.float32)
    plain, ready = (
        jax.jit(target.clipped_gradient_sum)(theta, rows, mask, 0.5).to_float64(0.5, 21) for rows in (batch, prepared)
    )
    assert plain.shape == ready.shape == (features,)
    np.testing.assert_allclose(ready, plain, atol=N * 2.0**-20)
    assert np.abs(plain).max() > 0.1


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "value", "features"), [(np.uint8, 16, 64), (np.int8, 127, 109), (np.int32, 1 << 16, 64)]
)
def test_integer_features_are_clipped_like_floats(dtype, value, features):
    """Squared in their own type they would wrap to nothing: 16² is 256."""
    rows = {"x": np.full((3, features), value, dtype), "y": np.array([0, 1, 0])}
    floats = {"x": rows["x"].astype(np.float32), "y": rows["y"]}
    theta, mask = jnp.full(features, 1e-3), jnp.array([True, False, False])
    target = LogisticRegression(num_features=features)
    sums = [
        target.clipped_gradient_sum(theta, batch, mask, 1.0).to_float64(1.0, 21)
        for batch in (rows, target.prepared(rows), floats)
    ]
    assert 0.9 < np.linalg.norm(sums[0]) <= 1 + KAPPA
    for other in sums[1:]:
        np.testing.assert_allclose(other, sums[0], atol=2.0**-19)


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_built_ins_pass_the_public_check(name):
    check_target(BUILT_IN[name], records(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax_regression", "poisson_regression", "negative_binomial_regression"])
def test_built_ins_run_privately(name):
    assert private_run(BUILT_IN[name], records(name)).draws.shape[:2] == (2, 5)


def test_the_linear_posterior_matches_integration_on_a_grid():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(12, 2))
    y = x @ [1.0, -0.5] + 0.8 * rng.normal(size=12)
    target = LinearRegression(1.5, 0.8)
    mean, covariance = target.posterior({"x": x, "y": y})
    assert mean.dtype == covariance.dtype == np.float64
    axes = [np.linspace(m - 7 * s, m + 7 * s, 301) for m, s in zip(mean, np.sqrt(np.diag(covariance)), strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    log_joint = stats.norm.logpdf(grid, 0, 1.5).sum(1) + stats.norm.logpdf(y, grid @ x.T, 0.8).sum(1)
    weight = np.exp(log_joint - log_joint.max())
    weight /= weight.sum()
    brute_mean = weight @ grid
    centred = grid - brute_mean
    np.testing.assert_allclose(mean, brute_mean, atol=1e-9)
    np.testing.assert_allclose(covariance, (centred * weight[:, None]).T @ centred, rtol=1e-6)


def test_softmax_gradients_reach_their_bound_but_do_not_pass_it():
    target = bind(SoftmaxRegression(num_classes=2, row_bound=2.0), {"x": X[0], "y": Y["softmax_regression"][0]})
    assert target.gradient_bound == pytest.approx(2 * np.sqrt(2))
    record = {"x": jnp.array([2.0, 0, 0, 0]), "y": jnp.int32(1)}
    wrong = jnp.zeros((D, 2)).at[0].set(jnp.array([50.0, -50.0]))
    norm = np.linalg.norm(jax.jit(jax.grad(target.log_likelihood))(wrong, record))
    assert norm == pytest.approx(target.gradient_bound)
    assert SoftmaxRegression(num_classes=2).gradient_bound is None
    assert LinearRegression().gradient_bound is None


@pytest.mark.parametrize(
    ("name", "label", "message"),
    [
        ("logistic_regression", 2, "y: logistic_regression takes labels 0 and 1, and some rows have others"),
        ("logistic_regression", 0.5, "some rows have others"),
        ("softmax_regression", K, f"y: softmax_regression takes labels 0 to {K - 1}, and some rows"),
        ("softmax_regression", -1, "recode the labels"),
    ],
)
def test_labels_that_are_no_class_are_refused_and_their_rows_kept(name, label, message):
    data = {"x": X, "y": Y[name].astype(float) if label == 0.5 else Y[name].copy()}
    data["y"][7] = label
    with pytest.raises(DataError, match=message) as caught:
        check(BUILT_IN[name], data)
    assert caught.value.rows == (7,)
    assert "7" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "data", "message"),
    [
        (SoftmaxRegression(), records("softmax_regression"), "^num_classes is not known: declare the public number"),
        (LogisticRegression(), {"x": np.zeros((N, 5, 5)), "y": Y["logistic_regression"]}, "^x must be a row of feat"),
        (LinearRegression(num_features=3), records("linear_regression"), "num_features 3 but records have 4"),
        (
            Custom(lambda key: jnp.zeros(D, jnp.int32), lambda p: 0.0, lambda p, r: 0.0),
            records("linear_regression"),
            "float32 arrays, and it returns int32 ones",
        ),
        (Custom(lambda key: {}, lambda p: 0.0, lambda p, r: 0.0), records("linear_regression"), "returns no array"),
    ],
)
def test_targets_that_do_not_fit_the_records_are_refused(target, data, message):
    with pytest.raises(TargetError, match=message):
        check(target, data)


@pytest.mark.parametrize("value", [1e160, -1.7976931348623157e308, 5e-324, -0.0])
@pytest.mark.parametrize("leaf", ["x", "y"])
def test_no_number_of_a_record_makes_numpy_warn(leaf, value):
    """A warning is printed, and would tell of one row; a refusal keeps its rows to itself."""
    records = {"x": X.astype(np.float64), "y": Y["linear_regression"].astype(np.float64)}
    records[leaf][7] = value
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in BUILT_IN:
            for dtype in (None, np.float32):
                with contextlib.suppress(DataError):
                    check_rows(records, N, dtype)
            with contextlib.suppress(DataError):
                check(BUILT_IN[name], records)
        with contextlib.suppress(DataError):
            check_bound(records["x"], 1.0, "the guarantee")
    assert [str(warning.message) for warning in caught] == []


class Forgets(LogisticRegression):
    """Rows are summed unclipped."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        return super().clipped_gradient_sum(params, batch, mask, clip * 64, bits + 6)


class ForgetsTheMask(LogisticRegression):
    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        return super().clipped_gradient_sum(params, batch, jnp.ones_like(mask), clip, bits)


class FloatSum(LogisticRegression):
    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        return super().clipped_gradient_sum(params, batch, mask, clip, bits).to_float(clip, bits)


class CentresTheBatch(LinearRegression):
    """A record moves every other one."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        centred = {**batch, "x": batch["x"] - batch["x"].mean(axis=0)}
        return super().clipped_gradient_sum(params, centred, mask, clip, bits)


class OtherSign(LinearRegression):
    """The gradient of the log-likelihood, not of the potential."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        negative = {"x": -batch["x"], "y": -batch["y"]}
        residual = batch["x"] @ params - batch["y"]
        return exact_sums.linear_sum(residual / self.noise_scale**2, negative["x"], mask, clip, bits)


class NaNSpreads(LinearRegression):
    """A bad row is replaced by the largest one there is."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        x = jnp.nan_to_num(batch["x"], posinf=1e3, nan=1e3)
        return super().clipped_gradient_sum(params, {"x": x, "y": batch["y"]}, mask, clip, bits)


class SmallBound(LogisticRegression):
    @property
    def gradient_bound(self):
        return 0.3


class NoProbability(LogisticRegression):
    def predict(self, params, x):
        return x @ params


class OneForAll(LogisticRegression):
    def predict(self, params, x):
        return jax.nn.sigmoid(x @ params).mean()


class Impure(LogisticRegression):
    def init(self, key):
        return super().init(key) + np.random.normal()  # noqa: NPY002


class VectorPrior(LogisticRegression):
    def log_prior(self, params):
        return -0.5 * params**2


class Infinite(LogisticRegression):
    def log_likelihood(self, params, record):
        return super().log_likelihood(params, record) + jnp.log(jnp.sum(params**2))


class Averages(LinearRegression):
    """Agrees with the sum on all records, and moves every record when one is replaced by a huge one."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        size = jnp.max(jnp.abs(batch["y"]))
        y = jnp.where(size > 100, -batch["y"], batch["y"])
        return super().clipped_gradient_sum(params, {**batch, "y": y}, mask, clip, bits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Forgets(), "record moves the clipped sum by"),
        (ForgetsTheMask(), "clipped_gradient_sum is off by"),
        (FloatSum(), "must return an exact FixedPoint sum"),
        (CentresTheBatch(), "clipped_gradient_sum is off by"),
        (Averages(), r"(adding|replacing) a record moves the clipped sum by"),
        (OtherSign(), "from the sum of clipped jax.grad"),
        (NaNSpreads(), "not finite must contribute zero"),
        (SmallBound(), "gradient_bound is 0.3, and record"),
        (NoProbability(), "returns no probabilities"),
        (OneForAll(), r"predict returns shape \(\) for 200 rows"),
        (Impure(), "init is not a function of its key"),
        (VectorPrior(), "must return one number each"),
        (Infinite(), "log_likelihood at init is not finite"),
        (object(), "lacks init, log_prior, log_likelihood of the Target protocol"),
    ],
)
def test_planted_faults_are_found(target, message):
    name = "linear_regression" if isinstance(target, LinearRegression) else "logistic_regression"
    with pytest.raises(AssertionError, match=message):
        check_target(target, records(name))


def test_a_target_that_may_change_is_asked_again():
    """One whose equality says nothing of what it computes."""

    class Changing:
        scale = 1.0

        def init(self, key):
            return jnp.zeros(2)

        def log_prior(self, params):
            return -jnp.sum(params**2)

        def log_likelihood(self, params, record):
            return self.scale * (record["x"] @ params)

    target, data = Changing(), {"x": np.ones((5, 2), np.float32)}
    check(target, data)
    target.scale = np.nan
    with pytest.raises(TargetError, match="NaN at the starting point"):
        check(target, data)


def start(key):
    return {"w": jnp.zeros(D), "log_scale": jnp.zeros(())}


def log_prior(params):
    return -0.5 * jnp.sum(params["w"] ** 2) - 0.5 * params["log_scale"] ** 2


def log_likelihood(params, record):
    """Student-t regression: its gradient is bounded and not linear in x."""
    scale = jnp.exp(params["log_scale"])
    return jax.scipy.stats.t.logpdf(record["y"], 3.0, record["x"] @ params["w"], scale)


def predict(params, x):
    return x @ params["w"]


@pytest.mark.optimised
@pytest.mark.slow
def test_functions_make_a_target_that_runs_privately():
    target = Custom(start, log_prior, log_likelihood, predict)
    check_target(target, records("linear_regression"))
    assert private_run(target, records("linear_regression")).draws["w"].shape == (2, 5, D)


def test_the_same_functions_are_the_same_target():
    one, two = (Custom(start, log_prior, log_likelihood, predict, gradient_bound=3.0) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Custom(start, log_prior, log_likelihood)
    assert repr(one) == "Custom(start, log_prior, log_likelihood, predict)"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": None}, r"init must be a function \(key\) -> params"),
        ({"log_likelihood": 3}, r"log_likelihood must be a function \(params, record\)"),
        ({"predict": 3}, "predict must be a function or None"),
        ({"num_classes": 1}, "num_classes must be a whole number >= 2"),
        ({"gradient_bound": -1.0}, "gradient_bound must be a finite number > 0"),
    ],
)
def test_arguments_that_make_no_target_are_refused(changes, message):
    arguments = {"init": start, "log_prior": log_prior, "log_likelihood": log_likelihood} | changes
    with pytest.raises(ValueError, match=f"^{message}"):
        Custom(**arguments)


def test_own_checks_of_records_are_asked():
    def positive(records):
        if (records["y"] < 0).any():
            raise ValueError("y: must be positive")

    with pytest.raises(ValueError, match=r"^y: must be positive"):
        check(Custom(start, log_prior, log_likelihood, check_records=positive), records("linear_regression"))
