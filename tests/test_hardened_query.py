"""Integer noise of a query: replay on neighbours, its size, and no more numbers than were charged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import exact_sums, integer_noise
from dpmcmc.privacy.query.randomness import CHACHA20
from dpmcmc.privacy.query.second_moment import SecondMoment
from tests.hardened import hardened_query, make, neighbours


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


def test_runs_of_one_program_have_the_noise_of_their_own_number_of_draws():
    like = {"a": jnp.zeros(7, jnp.int32)}
    key = jax.random.key(1, impl=CHACHA20)
    std = jnp.float32(2.0**20)

    def noise(levels):
        return integer_noise.tree_noise(key, like, std, 1.0, levels)

    alone = jax.jit(noise, static_argnums=0)

    among = ((3, 4, 5), (4,))
    both = jax.jit(jax.vmap(lambda own: tuple(map(noise, integer_noise.levels_of(among, own)))))
    # Planted, a number that is not among them: it gives noise of the most draws, and not none.
    gradient, second = both(jnp.array([[3, 4], [4, 4], [5, 4], [9, 9]]))
    for at, count in enumerate((3, 4, 5, 5)):
        for found, levels in ((gradient, count), (second, 4)):
            own = jax.tree.map(lambda leaf, at=at: leaf[at], found)
            jax.tree.map(np.testing.assert_array_equal, own, alone(levels))
    assert len(np.unique(gradient[1]["a"][:3])) == 21
