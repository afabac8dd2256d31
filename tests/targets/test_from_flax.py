"""Flax networks as targets: Linen and NNX give the densities written by hand, and what holds state is refused."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from dpmcmc.errors import DataError
from dpmcmc.targets import TargetError, bind, check, from_flax
from tests.targets.test_targets import N, private_run

D, H, K = 4, 5, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = {
    "categorical": RNG.integers(K, size=N),
    "bernoulli": RNG.integers(2, size=N),
    "gaussian": RNG.normal(size=N).astype(np.float32),
}
OUTPUTS = {"categorical": K, "bernoulli": 1, "gaussian": 1}


class LinenMLP(nn.Module):
    sizes: Any

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(self.sizes[0])(x))
        return nn.Dense(self.sizes[1])(x)


class NNXMLP(nnx.Module):
    def __init__(self, outputs, *, rngs):
        self.layers = nnx.List([nnx.Linear(D, H, rngs=rngs), nnx.Linear(H, outputs, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](nnx.tanh(self.layers[0](x)))


def module(style, outputs):
    return {
        "linen": LinenMLP((H, outputs)),
        "linen_list": LinenMLP([H, outputs]),
        "nnx": NNXMLP(outputs, rngs=nnx.Rngs(3)),
        "nnx_factory": functools.partial(NNXMLP, outputs),
    }[style]


def records(kind):
    return {"x": X, "y": Y[kind]}


def bound(made, kind="categorical", **options):
    target = from_flax(made, likelihood=kind, **options)
    return bind(target, jax.tree.map(lambda leaf: leaf[0], records(kind)))


def layers(params):
    """((kernel, bias), (kernel, bias)) in float64, of either library."""
    of = params["layers"] if "layers" in params else {0: params["Dense_0"], 1: params["Dense_1"]}
    return [(np.asarray(of[i]["kernel"], np.float64), np.asarray(of[i]["bias"], np.float64)) for i in (0, 1)]


def by_hand(params, kind, x, y):
    """(log-likelihood of each record, prediction) in float64."""
    (w1, b1), (w2, b2) = layers(params)
    out = np.tanh(x @ w1 + b1) @ w2 + b2
    if kind == "categorical":
        p = np.exp(out) / np.exp(out).sum(axis=1, keepdims=True)
        return np.log(p[np.arange(len(y)), y]), p
    if kind == "bernoulli":
        p = 1 / (1 + np.exp(-out[:, 0]))
        return np.log(np.where(y == 1, p, 1 - p)), p
    return stats.norm.logpdf(y, out[:, 0], 0.3), out[:, 0]


def random_params(target, seed=0):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(target.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "kind"),
    [("linen", "categorical"), ("linen", "gaussian"), ("nnx", "categorical"), ("nnx", "bernoulli")],
)
def test_networks_give_the_densities_written_by_hand(style, kind):
    target = bound(module(style, OUTPUTS[kind]), kind, prior_scale=0.5, noise_scale=0.3)
    params = random_params(target)
    each = jax.jit(jax.vmap(target.log_likelihood, (None, 0)))(params, jax.tree.map(jnp.asarray, records(kind)))
    wanted, prediction = by_hand(params, kind, X.astype(np.float64), Y[kind])
    np.testing.assert_allclose(each, wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(jax.jit(target.predict)(params, X), prediction, rtol=1e-3, atol=1e-5)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]).astype(np.float64)
    np.testing.assert_allclose(target.log_prior(params), -0.5 * (flat @ flat) / 0.25, rtol=1e-5)
    assert target.prior_precision == 4
    assert target.num_classes == {"categorical": K, "bernoulli": 2, "gaussian": None}[kind]


@pytest.mark.slow
def test_convolutions_take_images_and_integers_take_embeddings():
    class Convolution(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(2, (3, 3))(x[..., None]))
            return nn.Dense(K)(nn.LayerNorm()(x.reshape(x.shape[0], -1)))

    class Words(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(K)(nn.Embed(10, 4)(x).mean(axis=1))

    y = Y["categorical"][:20]
    check(from_flax(Convolution()), {"x": RNG.normal(size=(20, 6, 6)), "y": y})
    check(from_flax(Words()), {"x": RNG.integers(10, size=(20, 7)), "y": y})


@pytest.mark.slow
@pytest.mark.parametrize(("style", "varies"), [("linen", True), ("nnx_factory", True), ("nnx", False)])
def test_chains_start_where_the_module_puts_them(style, varies):
    made = module(style, K)
    target = bound(made)
    first, again, other = (jax.jit(target.init)(jax.random.key(seed)) for seed in (0, 0, 1))
    kernel = layers(first)[0][0]
    np.testing.assert_array_equal(kernel, layers(again)[0][0])
    assert (kernel != layers(other)[0][0]).all() == varies
    if style == "linen":
        wanted = made.init(jax.random.key(0), X[:1])["params"]
        np.testing.assert_allclose(kernel, wanted["Dense_0"]["kernel"], rtol=1e-6)
    elif style == "nnx_factory":
        np.testing.assert_allclose(kernel, made(rngs=nnx.Rngs(jax.random.key(0))).layers[0].kernel[...], rtol=1e-6)
    else:
        np.testing.assert_array_equal(kernel, made.layers[0].kernel[...])


def test_training_a_module_later_does_not_move_its_target():
    made = module("nnx", K)
    target = bound(made)
    before = layers(target.init(jax.random.key(0)))[0][0]
    made.layers[0].kernel[...] = made.layers[0].kernel[...] + 1
    np.testing.assert_array_equal(layers(target.init(jax.random.key(0)))[0][0], before)


class Fixed(NNXMLP):
    def __init__(self, rngs):
        super().__init__(K, rngs=rngs)


@pytest.mark.slow
def test_a_network_runs_privately():
    result = private_run(from_flax(module("linen_list", K)), records("categorical"))
    assert layers(result.draws)[0][0].shape == (2, 5, D, H)


class LinenBatchNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(K)(nn.BatchNorm(use_running_average=True)(x))


class LinenDropout(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(K)(nn.Dropout(0.5, deterministic=False)(x))


class LinenCache(nn.Module):
    @nn.compact
    def __call__(self, x):
        self.variable("cache", "calls", lambda: jnp.zeros(()))
        return nn.Dense(K)(x)


class LinenTrain(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(K)(x)


class LinenHalf(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(K, param_dtype=jnp.bfloat16)(x)


class LinenCentres(nn.Module):
    """Batch normalisation without a collection that would give it away."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(K)(x - x.mean(axis=0))


class LinenPair(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(K)(x), x


REFUSED = [
    (LinenBatchNorm(), {}, "LinenBatchNorm has batch_stats, which mix records"),
    (LinenDropout(), {}, "LinenDropout needs random numbers .*remove dropout"),
    (LinenCache(), {}, r"LinenCache has state beside its parameters \(collection cache\)"),
    (LinenTrain(), {}, "LinenTrain fails on 3 rows of shape .4,., given x alone .*train"),
    (LinenHalf(), {}, "LinenHalf has bfloat16 parameters: dpmcmc samples float32"),
    (LinenCentres(), {}, "LinenCentres mixes rows"),
    (LinenPair(), {}, "must return one array with a leading axis"),
    (nn.Dense(1), {}, r"likelihood categorical takes one logit a class, and Dense gives shape \(1,\)"),
    (nn.Dense(2), {"likelihood": "bernoulli"}, r"likelihood bernoulli takes one output a row, and Dense gives shape"),
    (nn.Dense(K), {"num_classes": 7}, "num_classes is 7, and Dense gives 3 logits"),
    (
        lambda rngs: nnx.Sequential(nnx.Linear(D, K, rngs=rngs), nnx.BatchNorm(K, rngs=rngs)),
        {},
        r"Sequential has batch statistics \(layers.1.mean, an nnx.BatchStat\), which mix records",
    ),
    (
        lambda rngs: nnx.Sequential(nnx.Linear(D, K, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)),
        {},
        r"Sequential holds random numbers \(layers.1.rngs.count\): remove dropout",
    ),
]


@pytest.mark.parametrize(("made", "options", "reason"), REFUSED)
def test_networks_that_cannot_be_a_target_are_refused_in_one_sentence(made, options, reason):
    with pytest.raises(TargetError, match=reason) as caught:
        check(from_flax(made, **options), records("categorical"))
    assert "\n" not in str(caught.value)


def test_an_nnx_module_with_other_state_is_refused():
    counting = NNXMLP(K, rngs=nnx.Rngs(0))
    counting.calls = nnx.Cache(jnp.zeros(()))
    with pytest.raises(TargetError, match=r"state beside its parameters \(calls, an nnx.Cache\)"):
        from_flax(counting)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (X, "must be a dict"),
        ({"x": X}, "must be a dict"),
        ({"x": X, "y": np.zeros((N, 2), int)}, r"y must be one number a record, and its shape is \(2,\)"),
    ],
)
def test_records_of_another_form_are_refused(data, reason):
    with pytest.raises(TargetError, match=reason):
        check(from_flax(LinenMLP((H, K))), data)


@pytest.mark.parametrize(("kind", "classes"), [("categorical", f"0 to {K - 1}"), ("bernoulli", "0 and 1")])
def test_labels_that_are_no_class_are_refused_and_their_rows_kept(kind, classes):
    y = Y[kind].copy()
    y[7] = 9
    with pytest.raises(DataError, match=f"^y: likelihood {kind} takes labels {classes}, and some rows") as caught:
        check(from_flax(LinenMLP((H, OUTPUTS[kind])), likelihood=kind), {"x": X, "y": y})
    assert caught.value.rows == (7,)


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        (LinenMLP, {}, "module must be an instance: write LinenMLP"),
        (3, {}, "module must be a Linen module, an NNX module, or a function"),
        (NNXMLP, {}, "module must be a function of rngs alone, and NNXMLP also needs outputs: use functools.partial"),
        (lambda: 3, {}, "module must make an nnx.Module, and it makes int"),
        (nn.Dense(K), {"likelihood": "poisson"}, "likelihood must be one of categorical, bernoulli, gaussian"),
        (nn.Dense(K), {"prior_scale": 0.0}, "prior_scale must be a finite number > 0, got 0"),
        (
            nn.Dense(1),
            {"likelihood": "gaussian", "noise_scale": -1.0},
            "noise_scale must be a finite number > 0, got -1",
        ),
        (nn.Dense(1), {"likelihood": "gaussian", "num_classes": 2}, "num_classes must be None under"),
        (nn.Dense(1), {"likelihood": "bernoulli", "num_classes": 3}, "num_classes must be 2 under"),
        (nn.Dense(K), {"num_classes": 1}, "num_classes must be a whole number >= 2"),
    ],
)
def test_wrong_arguments_are_named(made, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        from_flax(made, **options)


def test_a_target_that_is_not_bound_says_so():
    with pytest.raises(TargetError, match="shape of x is not known"):
        from_flax(LinenMLP((H, K))).init(jax.random.key(0))
