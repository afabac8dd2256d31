"""The one noisy query: exact sums, sensitivity on neighbouring data, and noise of the declared size."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpmcmc import targets
from dpmcmc.engine import sizes
from dpmcmc.privacy.accounting import noise_tables
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.sampling import FixedSize, Poisson
from dpmcmc.privacy.query import exact_sums, platforms, rows_in_place
from dpmcmc.privacy.query.chacha import CHACHA20
from dpmcmc.privacy.query.exact_sums import FixedPoint, fraction_bits
from dpmcmc.privacy.query.query import GradientQuery, drawn_noise
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.privacy.query.selection import selector
from tests.hardened import make
from tests.pairs import slow_pairs

BITS = 21


class Regression:
    """Generic target: gradient per record by vmap. residual = y − θ·x, gradient of −log-lik = −residual·x."""

    def log_prior(self, params):
        return -0.5 * jnp.sum(params**2)

    def log_likelihood(self, params, record):
        return -0.5 * (record["y"] - record["x"] @ params) ** 2


class Growing(Regression):
    """A target of one parameter until it has seen the data, and of as many as they have features from then on."""

    def init(self, key):
        return jnp.zeros(1)


class LinearRegression(Regression):
    """The same with norms in closed form."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        residual = batch["x"] @ params - batch["y"]
        return exact_sums.linear_sum(residual, batch["x"], mask, clip, bits)


class Tree:
    """Several leaves of different shapes."""

    def log_prior(self, params):
        return -0.5 * sum(jnp.sum(p**2) for p in jax.tree.leaves(params))

    def log_likelihood(self, params, record):
        hidden = jnp.tanh(record["x"] @ params["w"] + params["b"])
        return -0.5 * (record["y"] - hidden @ params["v"]) ** 2


def query(target, n, clip=1.0, select=None, b=None, **kwargs) -> GradientQuery:
    return GradientQuery(target, n, float(n if b is None else b), clip, select, **kwargs)


#: Equal queries share a program, which ``jax.jit(q.clipped_sum)`` would trace and compile at every call.
_clipped_sum = jax.jit(GradientQuery.clipped_sum, static_argnums=0)


def exact_sum(q: GradientQuery, params, records, key=None) -> np.ndarray:
    """The exact clipped sum, flat float64."""
    key = jax.random.key(0) if key is None else key
    total = _clipped_sum(q, params, records, key)
    return np.concatenate([np.ravel(v) for v in jax.tree.leaves(total.to_float64(q.clip, q.bits))])


def residual_data(kind: str, n: int, d: int, rng) -> dict[str, np.ndarray]:
    """θ = 0, so the gradient of a record is −y·x."""
    x = rng.normal(size=(n, d)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    if kind == "random":
        y = rng.normal(size=n) * 2
    elif kind == "one_sided":
        x = np.abs(x)
        y = 1 + np.abs(rng.normal(size=n))
    else:  # antipodal: everybody clipped, all in one direction; the changed record points the other way
        x = np.tile(x[:1], (n, 1))
        y = np.full(n, 3.0)
    return {"x": x, "y": y.astype(np.float32)}


def neighbour(records, at: int, kind: str, zero: bool):
    other = {k: v.copy() for k, v in records.items()}
    if zero:
        other["x"][at] = 0
    elif kind == "antipodal":
        other["y"][at] *= -1
    else:
        other["x"][at] = -other["x"][at][::-1]
        other["y"][at] = 5.0
    return other


def replay(target, n, d, kind, zero, rng, tries=3, select=None, b=None) -> float:
    """Largest distance of the clipped sums on neighbouring data, under the same keys, over the sensitivity."""
    records = residual_data(kind, n, d, rng)
    q = query(target, n, select=select, b=b)
    params = jnp.zeros(d)
    worst = 0.0
    for t in range(tries):
        key = jax.random.key(t)
        at = int(rng.integers(n))
        if select is not None:
            indices, mask = jax.jit(select)(key)
            at = int(indices[0])
            assert mask[0]
        first = exact_sum(q, params, records, key)
        second = exact_sum(q, params, neighbour(records, at, kind, zero), key)
        worst = max(worst, float(np.linalg.norm(first - second)) / (1.0 if zero else 2.0))
    return worst


KINDS = ("random", "antipodal", "one_sided")
TARGETS = {"linear": LinearRegression(), "vmapped": Regression()}
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


CASES = [
    *((n, "linear", kind, zero) for n in (512, 32_561) for kind in KINDS for zero in (False, True)),
    *((512, "vmapped", kind, kind == "one_sided") for kind in KINDS),
    *slow_pairs(
        [
            (n, name, kind, zero)
            for n, name in ((32_561, "vmapped"), (1_000_000, "linear"))
            for kind in KINDS
            for zero in (False, True)
        ]
    ),
]


@pytest.mark.optimised
@pytest.mark.parametrize(("n", "name", "kind", "zero"), CASES)
def test_neighbours_differ_by_at_most_the_sensitivity(n, name, kind, zero):
    tries = 3 if n < 1000 else 1
    worst = replay(TARGETS[name], n, 12, kind, zero, np.random.default_rng(n), tries=tries)
    assert worst <= 1 + KAPPA
    if kind == "antipodal":
        # Each coordinate lost at most a grid step to truncation, so this worst case is nearly attained.
        assert worst >= 1 - 2 * math.sqrt(12) * 2.0**-BITS - KAPPA


@pytest.mark.optimised
@pytest.mark.parametrize(("scheme", "target"), [(Poisson(200.0), Regression()), (FixedSize(200), LinearRegression())])
def test_neighbours_in_a_minibatch_differ_by_at_most_the_sensitivity(scheme, target):
    n = 5000
    select = selector(scheme, n, scheme.capacity(n, 1e-12)[0])
    worst = replay(target, n, 12, "antipodal", False, np.random.default_rng(1), 1, select, 200)
    assert 0.99 < worst <= 1 + KAPPA


def test_replay_catches_a_float32_sum():
    """Planted fault: the usual float32 accumulation moves by more than KAPPA allows at a million rows."""
    rng = np.random.default_rng(0)
    rows = np.abs(rng.normal(size=(1_000_000, 4))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    other = rows.copy()
    other[0] = -rows[0]
    first, second = (np.cumsum(table, axis=0, dtype=np.float32)[-1].astype(np.float64) for table in (rows, other))
    distance = np.linalg.norm(first - second)
    assert distance / 2 > 1 + KAPPA or distance / 2 < 1 - 1e-3


@pytest.mark.optimised
@pytest.mark.parametrize("d", [1, 255, 257, 1000, 65_536, 70_001])
def test_the_norm_of_every_clipped_row_is_within_kappa(d):
    rng = np.random.default_rng(d)
    n = 8
    rows = (rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-6, 6, size=(n, 1))).astype(np.float32)
    rows[0] = 1.0  # equal squares: the worst case for a long float32 sum
    factor = jax.jit(lambda r: exact_sums.unit_factor(jnp.sqrt(exact_sums.squared_norms(r)), jnp.ones(n, bool), 1.0))
    norm = np.linalg.norm(rows.astype(np.float64), axis=1) * np.asarray(factor(rows), np.float64)
    assert norm.max() <= 1 + KAPPA
    large = np.linalg.norm(rows.astype(np.float64), axis=1) > 1 + 1e-3
    assert (norm[large] >= 1 - KAPPA).all()


@pytest.mark.optimised
def test_the_compiled_norm_keeps_its_blocks():
    """A compiler that merges the levels into one long float32 sum would void the bound behind KAPPA."""
    compiled = jax.jit(exact_sums.squared_norms).lower(jnp.ones((4, 65_536))).compile().as_text()
    reduces = [line for line in compiled.splitlines() if " reduce(" in line and "f32[" in line]
    assert len(reduces) >= 2


@pytest.mark.optimised
def test_a_pytree_of_many_leaves_keeps_its_norm():
    leaves = [jnp.full((3, 5), 0.1) for _ in range(301)]
    squared = exact_sums.squared_norms(leaves)
    np.testing.assert_allclose(squared, 301 * 5 * 0.1**2, rtol=KAPPA)


def mixed_rows(rng, n=64, d=9) -> np.ndarray:
    rows = rng.normal(size=(n, d)) * 10.0 ** rng.uniform(-30, 30, size=(n, d))
    rows[0] = 1e30
    rows[1] = 1e-30
    rows[2, :] = [1e30, 1e-30, 0, 1e-38, 1e38, -1e38, 1e19, -1e19, 1e-45]
    rows[3] = 1.8e19 / 3
    rows[4] = 0
    return rows.astype(np.float32)


@pytest.mark.optimised
@pytest.mark.parametrize("of", ["rows", "residuals and rows"])
def test_huge_and_tiny_magnitudes_never_break_the_bound(of):
    rows = mixed_rows(np.random.default_rng(5))
    residuals = np.float32(np.tile([1e30, 1e-30, -1e38, 1e-38, 1.0, 0.0, 3e19, -1e-19], 8))

    @jax.jit
    def alone(residual, row, clip):
        if of == "rows":
            return exact_sums.clipped_sum(row, jnp.ones(1, bool), clip, BITS)
        return exact_sums.linear_sum(residual, row, jnp.ones(1, bool), clip, BITS)

    for clip in (1.0, 1e-6, 1e6):
        for i in range(len(rows)):
            total = alone(residuals[i : i + 1], rows[i : i + 1], np.float32(clip))
            assert np.linalg.norm(total.to_float64(clip, BITS)) <= clip * (1 + KAPPA)


@pytest.mark.optimised
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@each_target
def test_rows_that_are_not_finite_contribute_exactly_zero(target, bad):
    rng = np.random.default_rng(2)
    records = residual_data("random", 512, 12, rng)
    clean = {k: v.copy() for k, v in records.items()}
    records["x"][7, 2] = bad
    records["y"][11] = bad
    for at in (7, 11):
        clean["x"][at] = 0
        clean["y"][at] = 0
    q = query(target, 512)
    params = jnp.ones(12)
    np.testing.assert_array_equal(exact_sum(q, params, records), exact_sum(q, params, clean))


@pytest.mark.optimised
@pytest.mark.parametrize(("name", "n"), [("linear", 32_561), ("vmapped", 512)])
def test_sums_do_not_depend_on_row_order(name, n):
    rng = np.random.default_rng(3)
    records = residual_data("random", n, 12, rng)
    order = rng.permutation(n)
    shuffled = {k: v[order] for k, v in records.items()}
    # θ = 0: a row's own gradient is then the same number wherever the row stands.
    q = query(TARGETS[name], n)
    np.testing.assert_array_equal(exact_sum(q, jnp.zeros(12), records), exact_sum(q, jnp.zeros(12), shuffled))


@pytest.mark.optimised
@pytest.mark.parametrize("options", [sizes.ONE_THREAD, sizes.VECTORS], ids=["one thread", "threads"])
@pytest.mark.parametrize("features", [8, 24, 64, 112, 520])
def test_the_rounding_of_a_row_does_not_depend_on_its_place(features, options):
    """Rooms of a batch are multiples of eight, so a vector of sixteen numbers may have a remainder of eight."""
    rng = np.random.default_rng(features)
    table, theta = (rng.normal(size=of).astype(np.float32) for of in ((3000, features), features))

    @functools.partial(jax.jit, compiler_options=options)
    def of_rows(at):
        with platforms.traced_for("cpu"):
            margin = rows_in_place.Rows(jnp.asarray(table), at).margins(jnp.asarray(theta))
        return jnp.stack([margin, jax.nn.sigmoid(margin), jnp.exp(margin / 8)])

    seen = np.full((3, len(table)), np.nan, np.float32)
    for room in (1024, 8, 24, 40, 184, 264, 520, 1032):
        at = rng.permutation(len(table))[:room]
        found = np.asarray(of_rows(jnp.asarray(at, jnp.int32)))
        known = ~np.isnan(seen[0, at])
        np.testing.assert_array_equal(found[:, known], seen[:, at[known]])
        seen[:, at] = found
    assert known.mean() > 0.3


# Margins of 8 features are a product, and those of 109 are summed by lanes.
@pytest.mark.optimised
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(("features", "rows"), [(8, 512), (8, 1501), (109, 513)])
def test_a_sum_in_blocks_is_that_of_its_rows_in_integers(features, rows, platform):
    """Dyadic numbers, whose margins are exact in any order; the last block is filled up, and a NaN row stays out."""
    rng = np.random.default_rng(rows)
    table = (rng.integers(-4, 5, (700, features)) / 8).astype(np.float32)
    table[5, 1] = np.nan
    y = rng.integers(-2, 3, 700).astype(np.float32)
    at, mask = np.sort(rng.integers(0, 700, rows)).astype(np.int32), rng.random(rows) < 0.8
    theta = (rng.integers(-2, 3, features) / 4).astype(np.float32)
    target = targets.LinearRegression(num_features=features)
    q = query(target, 700, select=lambda key: (jnp.asarray(at), jnp.asarray(mask)))
    prepared = target.prepared({"x": table, "y": y})
    norm, residual = np.asarray(prepared["x_norm"])[at], (table @ theta - y)[at]
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = np.minimum(np.float32(1), np.float32(1) / (np.abs(residual) * norm))
    weight = np.where(mask & np.isfinite(factor), residual * factor, 0) * np.float32(2.0**BITS)
    wanted = np.trunc(np.nan_to_num(table[at]) * weight[:, None]).astype(np.int64).sum(axis=0)
    with platforms.traced_for(platform):
        found = exact_sum(q, jnp.asarray(theta), prepared)
    np.testing.assert_array_equal(found * 2.0**BITS, wanted)
    assert np.abs(wanted).max() > 2**BITS


@pytest.mark.optimised
def test_sums_do_not_depend_on_the_microbatch():
    # Clipping 2·e_j to e_j is exact in float32, so compilations of other shapes cannot round it differently.
    rng = np.random.default_rng(4)
    records = {"x": np.eye(7, dtype=np.float32)[rng.integers(7, size=1000)], "y": np.full(1000, 2.0, np.float32)}
    sums = [exact_sum(query(Regression(), 1000, microbatch=m), jnp.zeros(7), records) for m in (7, 333)]
    np.testing.assert_array_equal(*sums)


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("name", "n"),
    [("linear", 512), ("linear", 32_561), ("vmapped", 512), pytest.param("vmapped", 32_561, marks=pytest.mark.slow)],
)
def test_the_exact_sum_matches_float64_within_the_grid(name, n):
    d = 12
    records = residual_data("random", n, d, np.random.default_rng(n))
    rows = -(records["y"][:, None].astype(np.float64) * records["x"])
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    reference = (rows * np.minimum(1, 1 / norms)).sum(0)
    got = exact_sum(query(TARGETS[name], n), jnp.zeros(d), records)
    # At most one grid step per row from truncation, and KAPPA of each row from float32.
    assert np.abs(got - reference).max() <= n * (2.0**-BITS + KAPPA)
    # Truncation averages half a step toward zero and the float32 errors average out.
    assert np.abs(got - reference).max() <= n * 2.0**-BITS


def test_a_tree_of_parameters_is_clipped_as_one_vector():
    rng = np.random.default_rng(8)
    n, d, h = 400, 5, 3
    x = rng.normal(size=(n, d)).astype(np.float32)
    y = rng.normal(size=n).astype(np.float32)
    params = {
        "w": jnp.asarray(rng.normal(size=(d, h)), jnp.float32),
        "b": jnp.zeros(h),
        "v": jnp.asarray(rng.normal(size=h), jnp.float32),
    }
    target = Tree()
    gradient = jax.grad(lambda p, r: -target.log_likelihood(p, r))
    each = jax.jit(jax.vmap(gradient, (None, 0)))(params, {"x": x, "y": y})
    flat = np.concatenate([np.asarray(v, np.float64).reshape(n, -1) for v in jax.tree.leaves(each)], axis=1)
    reference = (flat * np.minimum(1, 0.5 / np.linalg.norm(flat, axis=1, keepdims=True))).sum(0)
    got = exact_sum(query(target, n, clip=0.5), params, {"x": x, "y": y})
    np.testing.assert_allclose(got, reference, atol=n * 0.5 * 2.0**-BITS)


def released(q: GradientQuery, z: float, draws: int, d: int, records, seed=0) -> np.ndarray:
    """(draws, d) released values without the prior and the exact sum, over the clip: pure noise, nominal std z."""
    scale = q.num_records / q.batch_size
    std = jnp.float32(z * q.clip * scale)
    params = jnp.arange(d, dtype=jnp.float32)  # and the prior's gradient
    batch = jax.random.key(99)

    records = jax.tree.map(jnp.asarray, records)

    def one(key):
        return q(params, records, batch, key, std).value

    values = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=64))(jax.random.split(jax.random.key(seed), draws))
    base = exact_sum(q, params, records, batch) * scale + np.arange(d)
    return (np.asarray(values, np.float64) - base) / (q.clip * scale)


def variance_z(noise: np.ndarray, z: float) -> float:
    return (np.mean((noise / z) ** 2) - 1) / math.sqrt(2 / noise.size)


STDS = [(1.0, 640), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0.3, 64), (1000.0, 64), (1e6, 640)))]


@pytest.mark.parametrize(("z", "b"), STDS)
def test_released_values_carry_noise_of_the_declared_std(z, b):
    n, d = 640, 20
    records = residual_data("one_sided", n, d, np.random.default_rng(0))
    select = None if b == n else selector(FixedSize(b), n, b)
    q = query(LinearRegression(), n, clip=0.7, select=select, b=b, bits=fraction_bits(z))
    noise = released(q, z, 2000, d, records).ravel()
    assert abs(variance_z(noise, z)) < 5
    assert abs(noise.mean()) < 5 * z / math.sqrt(noise.size)
    assert stats.kstest(noise / z, "norm").pvalue > 1e-4
    # Planted faults: twice and half the noise.
    assert abs(variance_z(2 * noise, z)) > 50
    assert abs(variance_z(noise / 2, z)) > 50


def drawn(std, zero, levels):
    """Integer noise like ``zero``."""
    return jax.jit(drawn_noise, static_argnums=(3, 4))(jax.random.key(1), zero, jnp.float32(std), 1.0, levels)


@pytest.mark.parametrize("z", [1.0, 1e6, 1e9])
def test_the_grid_leaves_room_for_the_noise(z):
    bits = fraction_bits(z)
    std = z * 2.0**bits
    zero = jnp.zeros(4000, jnp.int32)
    levels = noise_tables.levels_for(std, std)
    stds = (FixedPoint(zero, zero) + drawn(std, zero, levels)).to_float64(1.0, 0) / std
    assert abs(np.std(stds) - 1) < 5 * math.sqrt(0.5 / 4000)
    assert np.max(np.abs(stds)) < 6
    assert 10 * std < 2.0**46  # so that the high limb fits an int32


def test_noise_beyond_any_grid_is_refused():
    with pytest.raises(ValueError, match="too large"):
        fraction_bits(1e12)


def test_partial_sums_add_exactly_with_carry():
    rng = np.random.default_rng(0)
    values = rng.integers(-(2**40), 2**40, size=(50, 3))
    total = FixedPoint(jnp.zeros(3, jnp.int32), jnp.zeros(3, jnp.int32))
    for v in values:
        total = total + FixedPoint(jnp.asarray(v >> 16, jnp.int32), jnp.asarray(v & 0xFFFF, jnp.int32))
    np.testing.assert_array_equal(total.to_float64(1.0, 0), values.sum(0).astype(np.float64))


def test_a_fast_path_that_sums_in_float_is_refused():
    class Float(Regression):
        def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
            return jnp.sum(batch["x"], axis=0)

    records = residual_data("random", 30, 4, np.random.default_rng(0))
    with pytest.raises(TypeError, match="exact FixedPoint"):
        query(Float(), 30).clipped_sum(jnp.zeros(4), records, jax.random.key(0))


def test_records_of_another_length_are_refused():
    records = residual_data("random", 30, 4, np.random.default_rng(0))
    with pytest.raises(ValueError, match="30 rows"):
        query(Regression(), 31).clipped_sum(jnp.zeros(4), records, jax.random.key(0))


def test_the_query_without_clip_is_the_plain_gradient():
    n, d = 500, 4
    records = residual_data("random", n, d, np.random.default_rng(0))
    q = query(Regression(), n, clip=None)
    params = jnp.ones(d)
    got = jax.jit(q)(params, records, jax.random.key(0), jax.random.key(1), jnp.float32(0.0)).value
    residual = records["x"] @ np.ones(d) - records["y"]
    np.testing.assert_allclose(got, residual @ records["x"] + 1, rtol=1e-4)


def test_rows_that_a_target_computes_are_held_as_its_residuals_are():
    """A norm must be that of the numbers that are scaled, and XLA computes again what is cheap."""

    def total(residual, x):
        return exact_sums.linear_sum(residual, x * x - x, jnp.ones(8, bool), 1.0, BITS)

    assert str(jax.make_jaxpr(total)(jnp.ones(8), jnp.ones((8, 3)))).count("scan[") == 2


def test_a_query_refuses_more_numbers_than_were_charged():
    plan = make(target=Growing())
    assert plan.noise.coordinates == 1
    records = residual_data("antipodal", 64, 6, np.random.default_rng(5))
    key = jax.random.key(0, impl=CHACHA20)

    def release(charged, second=None):
        q = query(TARGETS["vmapped"], 64, levels=(4, 4), coordinates=charged, second=second)
        return jax.eval_shape(q, jnp.zeros(6), records, key, key, jnp.float32(5.0))

    release(6)
    release(None)
    with pytest.raises(ValueError, match="releases 6 numbers and the plan charged for 1"):
        release(plan.noise.coordinates)
    moment = SecondMoment(ratio=2.0, structure="diagonal")
    release(12, moment)
    with pytest.raises(ValueError, match="releases 12 numbers"):
        release(6, moment)


@pytest.mark.optimised
def test_neighbours_under_the_same_keys_differ_by_their_sums_alone(monkeypatch):
    """In integers: not one unit of the noise depends on the data."""
    seen = []
    honest = exact_sums.FixedPoint.__add__

    def recorded(total, noise):
        noisy = honest(total, noise)
        seen.append((total, noisy))
        return noisy

    monkeypatch.setattr(exact_sums.FixedPoint, "__add__", recorded)
    q = query(TARGETS["vmapped"], 64, levels=(4, 4), second=SecondMoment(ratio=2.0))
    records = residual_data("antipodal", 64, 6, np.random.default_rng(5))
    neighbours = records, neighbour(records, 7, "antipodal", False)
    key = jax.random.key(2, impl=CHACHA20)

    @jax.jit
    def run(records):
        seen.clear()
        return q(jnp.zeros(6), records, key, jax.random.fold_in(key, 1), jnp.float32(40.0)).value, list(seen)

    def exact(total) -> np.ndarray:
        return np.asarray(total.high, np.int64) * 65536 + np.asarray(total.low)

    (value, sums), (other_value, other_sums) = map(run, neighbours)
    assert len(sums) == 2  # gradient and second moment
    for (one, noisy), (other, other_noisy) in zip(sums, other_sums, strict=True):
        np.testing.assert_array_equal(exact(noisy) - exact(one), exact(other_noisy) - exact(other))
        assert np.all(exact(noisy) != exact(one))
    moved = (exact(sums[0][0]) - exact(other_sums[0][0])) * 2.0**-21
    assert 1.99 < np.linalg.norm(moved) <= 2 * (1 + KAPPA)
    distance = np.linalg.norm(np.asarray(value - other_value, np.float64))
    assert distance == pytest.approx(np.linalg.norm(moved), rel=1e-4)
