"""Clipped sums of networks without a matrix per record: the plain route's sums, and never longer than C a record."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import exact_sums, outer_products
from dpmcmc.privacy.query.outer_products import Outer
from dpmcmc.targets import bind, from_flax
from dpmcmc.targets.flax import ghost_norms
from dpmcmc.targets.tempered import Tempered

BITS = 21
K = 3


class MLP(nn.Module):
    sizes: tuple
    use_bias: bool = True

    @nn.compact
    def __call__(self, x):
        for size in self.sizes:
            x = jnp.tanh(nn.Dense(size, use_bias=self.use_bias)(x))
        return nn.Dense(K, use_bias=self.use_bias)(x)


class Mixed(nn.Module):
    """Convolution, LayerNorm and dense layers."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(2, (3, 3))(x[..., None])).reshape(x.shape[0], -1)
        return nn.Dense(K)(nn.LayerNorm()(nn.relu(nn.Dense(6)(x))))


class Words(nn.Module):
    """Embedding, and a dense layer at each position before one on the whole record."""

    @nn.compact
    def __call__(self, x):
        x = jnp.tanh(nn.Dense(5)(nn.Embed(10, 4)(x)))
        return nn.Dense(K)(x.mean(axis=1))


class Shared(nn.Module):
    """One layer that is used twice, between two that are not."""

    @nn.compact
    def __call__(self, x):
        twice = nn.Dense(5)
        x = nn.Dense(5)(x)
        return nn.Dense(K)(jnp.tanh(twice(jnp.tanh(twice(x)))))


class Penalised(nn.Module):
    """A kernel that the outputs depend on past its layer as well."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(K)
        return layer(x) + jnp.sum(jnp.square(layer.variables["params"]["kernel"]), axis=0)


class Jitted(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(K)(nn.jit(nn.Dense)(5)(x))


class NNXMLP(nnx.Module):
    def __init__(self, *, rngs):
        self.first, self.second = nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, K, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


ROW = {Mixed: (4, 4), Words: (7,)}
#: A network, its matrices that are used once on one vector, and why not all are.
NETWORKS = {
    "mlp": (MLP((6,)), {"Dense_0/kernel", "Dense_1/kernel"}, None),
    "no bias": (MLP((6,), use_bias=False), {"Dense_0/kernel", "Dense_1/kernel"}, None),
    "nnx": (lambda rngs: NNXMLP(rngs=rngs), {"first/kernel", "second/kernel"}, None),
    "mixed": (Mixed(), {"Dense_0/kernel", "Dense_1/kernel"}, "Conv_0/kernel enters conv_general_dilated"),
    "words": (Words(), {"Dense_1/kernel"}, "Dense_0/kernel enters a product with other operands"),
    "shared": (Shared(), {"Dense_1/kernel", "Dense_2/kernel"}, "Dense_0/kernel enters 2 operations"),
    "penalised": (Penalised(), set(), "Dense_0/kernel enters 2 operations"),
    "jitted": (Jitted(), {"Dense_0/kernel"}, None),
}


def records(network, n=40, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    shape = (n, *ROW.get(type(network), (4,)))
    x = rng.integers(10, size=shape) if isinstance(network, Words) else rng.normal(size=shape) * scale
    x = jnp.asarray(x, jnp.int32 if isinstance(network, Words) else jnp.float32)
    return {"x": x, "y": jnp.asarray(rng.integers(K, size=n), jnp.int32)}


@functools.cache
def bound(name, per_record="auto"):
    network = NETWORKS[name][0]
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), records(network, 1))
    return bind(from_flax(network, num_classes=K, per_record=per_record), shapes)


def random_params(target, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(target.init, jax.random.key(0))
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) * scale, jnp.float32), shapes)


@functools.cache
def compiled(name):
    """(ghost sum, (rows of the plain route, their sum)) of one network, of (params, batch, mask, clip)."""
    target = bound(name)

    def plain(params, batch, mask, clip):
        rows = jax.vmap(jax.grad(lambda p, r: -target.log_likelihood(p, r)), (None, 0))(params, batch)
        return rows, exact_sums.clipped_sum(rows, mask, clip, BITS)

    ghost = jax.jit(lambda p, b, m, c: ghost_norms.clipped_gradient_sum(target.log_likelihood, p, b, m, c, BITS))
    return ghost, jax.jit(plain)


def integers(total):
    """Grid units, raveled, float64."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(total.to_float64(2.0**BITS, BITS))])


def difference(name, params, batch, mask, clip):
    """Largest coordinate of ghost − plain, over what it may be.

    A row's coordinate v is rounded in one and truncated in the other (1.5 grid steps), is shorter by η, and has another
    float32 norm and gradient: 2^-18 of C (eight grid steps) a row here, where one would be 2^-21.
    """
    ghost, plain = compiled(name)
    rows, wanted = plain(params, batch, mask, np.float32(clip))
    each = [np.asarray(leaf, np.float64).reshape(len(mask), -1) for leaf in jax.tree.leaves(rows)]
    each = np.concatenate(each, axis=1)
    norm = np.linalg.norm(each, axis=1)
    good = np.asarray(mask) & np.isfinite(norm)
    clipped = np.abs(each[good]) * (2.0**BITS * np.minimum(1 / clip, 1 / norm[good])[:, None])
    off = 0.5 * math.sqrt(each.shape[1]) * 2.0**-BITS
    allowed = good.sum() * (1.5 + 8) + (off * clipped).sum(axis=0)
    got = integers(ghost(params, batch, mask, np.float32(clip)))
    return np.max(np.abs(got - integers(wanted)) / allowed), got


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_sums_are_those_of_the_plain_route(name):
    batch = records(NETWORKS[name][0])
    params = random_params(bound(name))
    for clip in (0.1, 1.0, 1e3):
        for mask in (np.ones(40, bool), np.arange(40) % 3 > 0):
            worst, total = difference(name, params, batch, jnp.asarray(mask), clip)
            assert worst <= 1
            assert np.abs(total).max() > 100


def test_nothing_is_summed_of_an_empty_batch():
    target = bound("mlp")
    total = compiled("mlp")[0](random_params(target), records(None), jnp.zeros(40, bool), 1.0)
    assert not integers(total).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_rows_that_are_not_finite_contribute_exactly_zero(bad):
    ghost, _ = compiled("mlp")
    params, batch = random_params(bound("mlp")), records(None)
    broken = {**batch, "x": batch["x"].at[7, 2].set(bad)}
    every = jnp.ones(40, bool)
    np.testing.assert_array_equal(
        integers(ghost(params, broken, every, 1.0)), integers(ghost(params, batch, every.at[7].set(False), 1.0))
    )


@pytest.mark.slow
def test_blocks_add_up(monkeypatch):
    n = 1100
    monkeypatch.setattr(ghost_norms, "_NUMBERS", 40_000)
    target, batch = bound("mlp"), records(None, n)
    params = random_params(target)
    every = jnp.ones(n, bool)
    total = jax.jit(lambda p, b: target.clipped_gradient_sum(p, b, every, 1.0, BITS))(params, batch)
    _, plain = compiled("mlp")[1](params, batch, every, 1.0)
    np.testing.assert_allclose(integers(total), integers(plain), atol=9.5 * n)


def test_a_tempered_target_has_its_own_clipped_gradients():
    ghost = Tempered(bound("mlp"), 0.25)
    params, batch, every = random_params(ghost), records(None), jnp.ones(40, bool)

    @jax.jit
    def both(params):
        rows = jax.vmap(jax.grad(lambda p, r: -ghost.log_likelihood(p, r)), (None, 0))(params, batch)
        fast = ghost.clipped_gradient_sum(params, batch, every, 0.1, BITS)
        return fast, exact_sums.clipped_sum(rows, every, 0.1, BITS)

    np.testing.assert_allclose(*(integers(total) for total in both(params)), atol=9.5 * 40)


def reach(name, scale, clip, n=16, ghost=None):
    """(largest change by a replaced record, largest norm of one record alone), in units of C."""
    target, network = bound(name), NETWORKS[name][0]
    ghost = compiled(name)[0] if ghost is None else ghost
    params = random_params(target, scale=scale)
    every, most, alone = jnp.ones(n, bool), 0.0, 0.0
    for seed, of_inputs in enumerate((1e-6, 1.0, 1e6)):
        batch = records(network, n, seed, of_inputs)
        other = records(network, n, seed + 9, -of_inputs)
        for j in (0, n - 1):
            replaced = jax.tree.map(lambda a, b, j=j: a.at[j].set(b[j]), batch, other)
            first, second = (integers(ghost(params, data, every, np.float32(clip))) for data in (batch, replaced))
            most = max(most, np.linalg.norm(first - second) * 2.0**-BITS)
            one = integers(ghost(params, batch, every & (jnp.arange(n) == j), np.float32(clip)))
            alone = max(alone, np.linalg.norm(one) * 2.0**-BITS)
    return most, alone


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "clip"),
    [
        *((name, 1e-2) for name in ("mlp", "mixed", "no bias", "nnx", "words", "shared")),
        *((name, clip) for name in ("mlp", "mixed") for clip in (1e-6, 1e6)),
    ],
)
def test_neighbours_differ_by_at_most_the_sensitivity(name, clip):
    reached = [reach(name, scale, clip) for scale in (1e-6, 1.0, 1e6)]
    assert max(most for most, _ in reached) <= 2 * (1 + KAPPA)
    assert max(alone for _, alone in reached) <= 1 + KAPPA
    if clip < 1:
        assert max(alone for _, alone in reached) >= 0.999  # the bound is reached, so that the test could fail


def test_replay_catches_a_norm_without_the_bias(monkeypatch):
    """Planted fault: the norm of the matrices alone."""
    real = outer_products.squared_norms
    monkeypatch.setattr(
        outer_products, "squared_norms", lambda g: real([leaf for leaf in g if isinstance(leaf, Outer)])
    )
    log_likelihood = bound("mlp").log_likelihood
    ghost = jax.jit(lambda p, b, m, c: ghost_norms.clipped_gradient_sum(log_likelihood, p, b, m, c, BITS))
    assert reach("mlp", 1.0, 1e-2, ghost=ghost)[1] > 1.1


@pytest.mark.slow
def test_comparison_catches_a_second_use_that_is_missed(monkeypatch):
    """Planted fault: what a parameter does after its first use is not looked at."""
    real = ghost_norms._users
    monkeypatch.setattr(ghost_norms, "_users", lambda jaxpr, variable: real(jaxpr, variable)[:1])
    compiled.cache_clear()
    worst, _ = difference("shared", random_params(bound("shared")), records(None), jnp.ones(40, bool), 1.0)
    compiled.cache_clear()
    assert worst > 100


def product_sum(a, b, clip=1.0, bits=BITS, mask=None):
    mask = np.ones(len(a), bool) if mask is None else mask
    total = jax.jit(lambda a, b: outer_products.clipped_sum([Outer(a, b)], mask, clip, bits))(a, b)
    return integers_of(total, bits)


def integers_of(total, bits):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(total.to_float64(2.0**bits, bits))])


@pytest.mark.optimised
def test_huge_and_tiny_magnitudes_never_break_the_bound():
    rng = np.random.default_rng(5)
    n = 256
    a, b = (rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-30, 30, size=(n, d)) for d in (9, 5))
    for i, (of_a, of_b) in enumerate([(1e30, 1e-30), (1e19, 1e19), (1e-45, 1e38), (0, 1e38), (1e-19, 1e-19), (1, 1)]):
        a[i], b[i] = of_a, of_b
    a, b = a.astype(np.float32), b.astype(np.float32)
    one = jax.jit(lambda mask, clip: outer_products.clipped_sum([Outer(a, b)], mask, clip, BITS))
    for clip in np.float32([1.0, 1e-6, 1e6]):
        norms = [np.linalg.norm(integers(one(np.arange(n) == i, clip))) * 2.0**-BITS for i in range(n)]
        assert 0.999 < max(norms) <= 1 + KAPPA


@pytest.mark.optimised
@pytest.mark.parametrize(("j", "k"), [(1, 1), (65, 255), (5000, 3), (1, 70_001)])
def test_the_norm_of_every_product_is_within_kappa(j, k):
    rng = np.random.default_rng(j)
    a, b = (rng.normal(size=(8, d)).astype(np.float32) for d in (j, k))
    a[0], b[0] = 1.0, 1.0  # equal squares: the worst case for a long float32 sum
    found = np.sqrt(np.asarray(jax.jit(lambda a, b: outer_products.squared_norms([Outer(a, b)]))(a, b), np.float64))
    true = np.linalg.norm(a.astype(np.float64), axis=1) * np.linalg.norm(b.astype(np.float64), axis=1)
    # Half of what KAPPA allows: the rest is for what the norm is used with.
    np.testing.assert_allclose(found, true, rtol=KAPPA / 2)


@pytest.mark.optimised
def test_rounding_to_the_nearest_does_not_lengthen_a_row(monkeypatch):
    """Every product falls just above a half; without η the row would be longer than KAPPA allows."""
    a, b = np.ones((1, 250), np.float32), np.ones((1, 250), np.float32)
    assert np.linalg.norm(product_sum(a, b)) * 2.0**-BITS <= 1 + KAPPA
    assert outer_products.taken_off([Outer(a, b)], BITS) > KAPPA
    monkeypatch.setattr(outer_products, "taken_off", lambda gradients, bits: 1e-12)  # planted fault
    assert np.linalg.norm(product_sum(a, b)) * 2.0**-BITS > 1 + KAPPA


@pytest.mark.optimised
def test_a_coarse_grid_is_truncated_to():
    a, b = np.float32([[3.0, 4.0]]), np.float32([[1.0, -0.9]])
    np.testing.assert_array_equal(product_sum(a, b, clip=8.0, bits=2), [1, -1, 2, -1])  # of 1.5, −1.35, 2, −1.8
    assert outer_products.taken_off([Outer(a, b)], 2) == 0


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "nearest"), [((1, 3, 5), True), ((37, 7, 2), False), ((1100, 4, 6), True), ((1100, 4, 6), False)]
)
def test_both_ways_of_adding_give_the_integers_of_numpy(shape, nearest):
    n, j, k = shape
    rng = np.random.default_rng(n)
    # Few bits, so that products are exact in float32; halves among them.
    a, w = rng.integers(-400, 400, (n, j)) / 8, rng.integers(-4000, 4000, (n, k)) / 16
    each = np.einsum("nj,nk->njk", a, w)
    wanted = (np.round(each) if nearest else np.trunc(each)).sum(axis=0)
    pairs = [(jnp.float32(a), jnp.float32(w)), (jnp.float32(w), jnp.float32(a))]
    for add in (outer_products._row_by_row, outer_products._all_rows):
        total = jax.jit(lambda pairs, add=add: add(pairs, nearest))(pairs)
        first, second = total.to_float64(2.0**BITS, BITS)
        np.testing.assert_array_equal(first, wanted)
        np.testing.assert_array_equal(second, wanted.T)
        cells = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), pairs[:1])
        both = jax.jit(jax.vmap(lambda pairs, add=add: add(pairs, nearest)))(cells)
        np.testing.assert_array_equal(both.to_float64(2.0**BITS, BITS)[0], np.stack([wanted, wanted]))


@pytest.mark.optimised
def test_sums_of_many_full_rows_do_not_overflow():
    n = 2000
    a, b = np.ones((n, 1), np.float32), np.full((n, 1), 5, np.float32)
    total = product_sum(a, b)
    assert n * (2**BITS - 2) <= total[0] <= n * 2**BITS
