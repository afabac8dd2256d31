"""Integer noise of a query: replay on neighbours, its size, and no more numbers than were charged."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import exact_sums, integer_noise
from dpmcmc.privacy.query.query import GradientQuery
from dpmcmc.privacy.query.randomness import CHACHA20
from dpmcmc.privacy.query.second_moment import SecondMoment
from tests.hardened import D, hardened_query, make, neighbours


class Growing:
    """A target of one parameter until it has seen the data, and of as many as they have features from then on."""

    size = 1

    def init(self, key):
        return jnp.zeros(self.size)

    def log_prior(self, params):
        return -0.5 * jnp.sum(params**2)

    def log_likelihood(self, params, record):
        return -0.5 * (record["y"] - record["x"] @ params) ** 2


def test_a_query_refuses_more_numbers_than_were_charged():
    plan = make(target=Growing())
    assert plan.coordinates == 1
    key = jax.random.key(0, impl=CHACHA20)

    def release(charged, second=None):
        q = hardened_query(coordinates=charged, second=second)
        return jax.eval_shape(q, jnp.zeros(6), neighbours()[0], key, key, jnp.float32(5.0))

    release(6)
    release(None)
    with pytest.raises(ValueError, match="releases 6 numbers and the plan charged for 1"):
        release(plan.coordinates)
    moment = SecondMoment(ratio=2.0, structure="diagonal")
    release(12, moment)
    with pytest.raises(ValueError, match="releases 12 numbers"):
        release(6, moment)


def test_a_plan_counts_what_its_query_releases():
    assert make().coordinates == D
    (draw,) = (e for e in make().guarantee.events if e.mechanism == "approximate_draw")
    assert draw.count == D * 12 * 2


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
    q = hardened_query(second=SecondMoment(ratio=2.0))
    key = jax.random.key(2, impl=CHACHA20)

    @jax.jit
    def run(records):
        seen.clear()
        return q(jnp.zeros(6), records, key, jax.random.fold_in(key, 1), jnp.float32(40.0)).value, list(seen)

    def exact(total) -> np.ndarray:
        return np.asarray(total.high, np.int64) * 65536 + np.asarray(total.low)

    (value, sums), (other_value, other_sums) = (run(records) for records in neighbours())
    assert len(sums) == 2  # gradient and second moment
    for (one, noisy), (other, other_noisy) in zip(sums, other_sums, strict=True):
        np.testing.assert_array_equal(exact(noisy) - exact(one), exact(other_noisy) - exact(other))
        assert np.all(exact(noisy) != exact(one))
    moved = (exact(sums[0][0]) - exact(other_sums[0][0])) * 2.0**-21
    assert 1.99 < np.linalg.norm(moved) <= 2 * (1 + KAPPA)
    distance = np.linalg.norm(np.asarray(value - other_value, np.float64))
    assert distance == pytest.approx(np.linalg.norm(moved), rel=1e-4)


def noise_of(q: GradientQuery, draws: int, std: float) -> np.ndarray:
    """Noise in the value over s_t, (draws·size,)."""
    records = neighbours()[0]
    keys = jax.random.split(jax.random.key(4, impl=CHACHA20), draws)
    call = jax.jit(jax.vmap(lambda key: q(jnp.zeros(6), records, key, key, jnp.float32(std)).value))
    clean = exact_sums.FixedPoint.to_float64(q.clipped_sum(jnp.zeros(6), records, keys[0]), 1.0, q.bits)
    return np.ravel(np.asarray(call(keys), np.float64) - clean) / std


@pytest.mark.optimised
@pytest.mark.slow
def test_the_query_adds_the_noise_that_is_charged(monkeypatch):
    found = noise_of(hardened_query(), 3000, 5.0)
    error = math.sqrt(2 / len(found))
    assert abs(np.mean(found**2) - 1) < 4 * error
    assert abs(np.mean(found)) < 4 / math.sqrt(len(found))
    honest = integer_noise.tree_noise
    monkeypatch.setattr(integer_noise, "tree_noise", lambda key, like, std, *rest: honest(key, like, std / 2, *rest))
    assert abs(np.mean(noise_of(hardened_query(), 3000, 5.0) ** 2) - 1) > 20 * error


def test_leaves_and_entries_of_one_release_have_noise_of_their_own():
    like = {"a": jnp.zeros((4, 3), jnp.int32), "b": jnp.zeros(12, jnp.int32), "c": jnp.zeros((), jnp.int32)}
    key = jax.random.key(1, impl=CHACHA20)
    high, low = jax.jit(lambda key: integer_noise.tree_noise(key, like, jnp.float32(2.0**22), 1.0, 4))(key)
    assert jax.tree.map(jnp.shape, low) == jax.tree.map(jnp.shape, like)
    flat = [
        int(h) * 65536 + int(l)
        for h, l in zip(*(np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (high, low)), strict=True)
    ]
    assert len(set(flat)) == 25


def test_runs_of_one_program_have_the_noise_of_their_own_number_of_draws():
    like, key, std = {"a": jnp.zeros(7, jnp.int32)}, jax.random.key(1, impl=CHACHA20), jnp.float32(2.0**20)

    def noise(levels):
        return integer_noise.tree_noise(key, like, std, 1.0, levels)

    among = ((3, 4, 5), (4,))
    both = jax.jit(jax.vmap(lambda own: tuple(map(noise, integer_noise.levels_of(among, own)))))
    # Planted, a number that is not among them: it gives noise of the most draws, and not none.
    gradient, second = both(jnp.array([[3, 4], [4, 4], [5, 4], [9, 9]]))
    for at, count in enumerate((3, 4, 5, 5)):
        jax.tree.map(
            lambda found, alone, at=at: np.testing.assert_array_equal(found[at], alone), gradient, noise(count)
        )
        jax.tree.map(lambda found, alone, at=at: np.testing.assert_array_equal(found[at], alone), second, noise(4))
    assert len(np.unique(gradient[1]["a"][:3])) == 21


def test_the_noise_of_a_second_moment_has_its_scales():
    scale = np.array([1, 0.5**0.5, 1, 0.5**0.5], np.float32)
    like = jnp.zeros(4, jnp.int32)
    keys = jax.random.split(jax.random.key(6, impl=CHACHA20), 20_000)
    draw = jax.jit(jax.vmap(lambda key: integer_noise.tree_noise(key, like, jnp.float32(2.0**22), scale, 4)))
    high, low = (np.asarray(part, np.float64) for part in draw(keys))
    std = np.std((high * 65536 + low) / 2.0**22, axis=0)
    np.testing.assert_allclose(std, scale, rtol=4 / math.sqrt(2 * 20_000))
