"""Noise with a Gaussian's tails, and key streams that never meet."""

import copy
import pickle
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import compilation, sizes
from dpmcmc.privacy.query import chacha, randomness
from dpmcmc.privacy.query import random_words as words_room
from dpmcmc.privacy.query.query import GradientQuery
from dpmcmc.privacy.query.randomness import SecretKey, Streams, normal, streams_of, tree_normal


@pytest.mark.optimised
def test_turns_have_their_cosine_and_sine():
    words = np.random.default_rng(0).integers(0, 1 << 32, 1_000_000, dtype=np.uint32)
    edges = np.array([(k << 29) + step for k in range(8) for step in (-2, -1, 0, 1, 2)]) % (1 << 32)
    words = np.concatenate([words, edges.astype(np.uint32)])
    angle = 2 * np.pi * (words + 0.5) / (1 << 32)
    cosine, sine = (np.asarray(part, np.float64) for part in jax.jit(randomness._cos_sin)(jnp.asarray(words)))
    assert max(np.max(np.abs(cosine - np.cos(angle))), np.max(np.abs(sine - np.sin(angle)))) < 2.0**-22


@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (0,)])
def test_noise_has_the_shape_that_is_asked(shape):
    assert jax.eval_shape(lambda key: normal(key, shape), jax.random.key(0)).shape == shape


def test_extreme_words_give_finite_far_noise(monkeypatch):
    # The smallest uniform behind the radius is 2^-65, the largest 1 − 2^-65.
    for word, low, high in ((0, 9.3, 9.6), (2**32 - 1, 0.0, 1e-9)):
        words = [word, word, 0]
        monkeypatch.setattr(
            randomness,
            "random_words",
            lambda key, rows, count, words=words: jnp.tile(jnp.array(words, jnp.uint32)[:rows, None], count),
        )
        value = float(jnp.max(jnp.abs(normal(jax.random.key(0), (2,)))))
        assert low <= value <= high


@pytest.mark.parametrize(
    ("of", "rows", "count"),
    [("threefry2x32", 2, 304), ("threefry2x32", 3, 55), (chacha.CHACHA20, 1, 1), (chacha.CHACHA20, 3, 55)],
)
def test_words_are_those_of_the_generator(of, rows, count):
    keys = jax.random.split(jax.random.key(3, impl=of), 4)

    @jax.jit
    def words(keys):
        wanted = jax.vmap(lambda key: jax.random.bits(key, (rows, count), jnp.uint32))(keys)
        together = jax.vmap(lambda key: words_room.random_words(key, rows, count))(keys)
        return wanted, together, words_room.random_words(keys[1], rows, count)

    wanted, together, alone = words(keys)
    np.testing.assert_array_equal(together, wanted)
    np.testing.assert_array_equal(alone, wanted[1])


def test_words_follow_the_settings_of_jax():
    with jax.threefry_partitionable(False):
        wanted = jax.random.bits(jax.random.key(0), (2, 8), jnp.uint32)
        np.testing.assert_array_equal(words_room.random_words(jax.random.key(0), 2, 8), wanted)


def test_leaves_of_one_pytree_get_different_noise():
    like = {"a": jnp.zeros((4, 3)), "b": jnp.zeros(12), "c": jnp.zeros(())}
    trees = jax.jit(lambda key: tree_normal(key, like, copies=2))(jax.random.key(1))
    flat = np.concatenate([np.ravel(leaf) for tree in trees for leaf in jax.tree.leaves(tree)])
    assert jax.tree.structure(trees[0]) == jax.tree.structure(like)
    assert len(np.unique(flat)) == 2 * 25


def keys_used(monkeypatch, private: bool) -> list[tuple[str, tuple[int, ...]]]:
    """(purpose, words) of every key that a run of the engine hands to its query, its sampler and its start."""
    used: list[tuple[str, tuple[int, ...]]] = []

    def note(purpose: str, key) -> None:
        jax.debug.callback(lambda words: used.append((purpose, tuple(words.tolist()))), jax.random.key_data(key))

    query, step, start = GradientQuery.draw, dpmcmc.SGLD.step, dpmcmc.targets.LogisticRegression.init

    def noted_query(self, params, batch_key, noise_key, noise_std, *more):
        note("batch", batch_key)
        note("noise", noise_key)
        return query(self, params, batch_key, noise_key, noise_std, *more)

    def noted_step(self, key, state, gradient, t):
        note("dynamics", key)
        return step(self, key, state, gradient, t)

    def noted_start(self, key):
        note("init", key)
        return start(self, key)

    plan = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(num_features=3),
        num_records=60,
        sampler=dpmcmc.SGLD(step_size=1.0),
        sampling=dpmcmc.Full(),
        steps=STEPS,
        chains=CHAINS,
        privacy=dpmcmc.Privacy(epsilon=2.0, delta=1e-5) if private else None,
    )
    data = {"x": np.ones((60, 3), np.float32), "y": np.arange(60) % 2}
    # Cells that fill a block up to its cores repeat the last one.
    monkeypatch.setattr(sizes, "cores", lambda platform: 1)
    # What is compiled with these must not serve another test, nor the other way round.
    compilation._compile_cached.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(GradientQuery, "draw", noted_query)
        patch.setattr(dpmcmc.SGLD, "step", noted_step)
        patch.setattr(dpmcmc.targets.LogisticRegression, "init", noted_start)
        dpmcmc.sample(plan, data, key=5)
        jax.effects_barrier()
    compilation._compile_cached.cache_clear()
    # Before the run, a target is tried out on a public key.
    return [(purpose, words) for purpose, words in used if words != (0, 0)]


STEPS, CHAINS = 7, 3


@pytest.mark.slow
@pytest.mark.parametrize("private", [False, True])
def test_a_run_uses_no_key_twice(monkeypatch, private):
    used = keys_used(monkeypatch, private)
    counts = Counter(purpose for purpose, _ in used)
    assert counts == {"batch": STEPS * CHAINS, "noise": STEPS * CHAINS, "dynamics": STEPS * CHAINS, "init": CHAINS}
    assert len({words for _, words in used}) == len(used)
    assert all(len(words) == (8 if private else 2) for _, words in used)


@pytest.mark.slow
def test_a_key_that_serves_two_purposes_is_found(monkeypatch):
    """Planted fault; ``tests/planted`` has keys that chains or steps share."""
    honest = Streams.at

    def at(self, chain, step):
        keys = honest(self, chain, step)
        return keys._replace(dynamics=keys.noise)

    monkeypatch.setattr(Streams, "at", at)
    used = keys_used(monkeypatch, False)
    assert len({words for _, words in used}) < len(used)


def test_seeds_reproduce_and_entropy_does_not():
    data = [np.asarray(jax.random.key_data(streams_of(3)[0].noise)) for _ in range(2)]
    np.testing.assert_array_equal(*data)
    np.testing.assert_array_equal(data[0], jax.random.key_data(streams_of(jax.random.key(3))[0].noise))
    fresh = [streams_of(None) for _ in range(2)]
    assert all(secret for _, secret in fresh)
    assert not np.array_equal(*(np.asarray(jax.random.key_data(s.noise)) for s, _ in fresh))


def test_a_secret_key_cannot_be_shown_copied_or_pickled():
    key = SecretKey()
    assert "hidden" in repr(key)
    for act in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="subtract the noise"):
            act(key)


def test_other_keys_are_refused():
    for key in (1.5, "seed", True):
        with pytest.raises(TypeError, match="key must be"):
            streams_of(key)
