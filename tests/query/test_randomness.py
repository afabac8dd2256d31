"""Noise with a Gaussian's tails, and key streams that never meet.

ChaCha20 as JAX's generator: the words of its RFC, and no block that is read twice.
"""

import copy
import math
import pickle
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import compilation, sizes
from dpmcmc.privacy.query import chacha, randomness
from dpmcmc.privacy.query.chacha import CHACHA20
from dpmcmc.privacy.query.query import GradientQuery
from dpmcmc.privacy.query.randomness import SecretKey, Streams, normal, streams_of, tree_normal
from tests.hardened import CHACHA_KEY


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
        words = jnp.array([[word], [word], [0]], jnp.uint32)
        monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype, words=words: jnp.tile(words, shape[1]))
        value = float(jnp.max(jnp.abs(normal(jax.random.key(0), (2,)))))
        assert low <= value <= high


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
    # Places that fill the lanes of several cores repeat the last chain.
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


#: RFC 8439: (key bytes, counter, nonce bytes, words), of section 2.3.2 and appendix A.1.
VECTORS = [
    (
        bytes(range(32)),
        1,
        bytes.fromhex("000000090000004a00000000"),
        "e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3"
        "466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2",
    ),
    (
        bytes(32),
        0,
        bytes(12),
        "ade0b876 903df1a0 e56a5d40 28bd8653 b819d2bd 1aed8da0 ccef36a8 c70d778b"
        "7c5941da 8d485751 3fe02477 374ad8b8 f4b8436a 1ca11815 69b687c3 8665eeb2",
    ),
    (
        bytes(32),
        1,
        bytes(12),
        "bee7079f 7a385155 7c97ba98 0d082d73 a0290fcb 6965e348 3e53c612 ed7aee32"
        "7621b729 434ee69c b03371d5 d539d874 281fed31 45fb0a51 1f0ae1ac 6f4d794b",
    ),
]


def words_of(raw: bytes) -> jax.Array:
    return jnp.asarray(np.frombuffer(raw, "<u4").astype(np.uint32))


def words_in(text: str) -> list[str]:
    return [text.replace(" ", "")[8 * i :][:8] for i in range(16)]


@pytest.mark.parametrize(("key", "counter", "nonce", "words"), VECTORS, ids=["2.3.2", "A.1-1", "A.1-2"])
def test_blocks_are_those_of_the_rfc(key, counter, nonce, words):
    found = chacha.block(words_of(key), jnp.asarray([counter], jnp.uint32), words_of(nonce))[:, 0]
    assert [f"{word:08x}" for word in np.asarray(found)] == words_in(words)


def on_an_accelerator() -> jax.Array:
    """Blocks of the RFC's keys, three of each, by the function for devices that are no CPU."""
    keys, nonces = (jnp.stack([words_of(vector[part]) for vector in VECTORS]) for part in (0, 2))
    counters = jnp.array([[vector[1] + k for k in range(3)] for vector in VECTORS], jnp.uint32)
    return chacha._word_by_word(keys, counters, nonces)


def test_an_accelerator_has_the_same_blocks():
    found = on_an_accelerator()
    for (key, counter, nonce, words), blocks in zip(VECTORS, found, strict=True):
        assert [f"{word:08x}" for word in np.asarray(blocks[:, 0])] == words_in(words)
        after = jnp.arange(counter, counter + 3, dtype=jnp.uint32)
        np.testing.assert_array_equal(blocks, chacha.block(words_of(key), after, words_of(nonce)))


def test_fewer_rounds_are_not_those_of_the_rfc(monkeypatch):
    loop = jax.lax.fori_loop
    key, counter, nonce, words = VECTORS[0]
    arguments = words_of(key)[None], jnp.asarray([[counter]], jnp.uint32), words_of(nonce)[None], "cpu"
    with (
        jax.disable_jit(),
        monkeypatch.context() as patch,
    ):  # no program that was traced with the true rounds may answer
        assert f"{int(chacha._columns(*arguments)[0, 0, 0]):08x}" == words[:8]
        patch.setattr(randomness.jax.lax, "fori_loop", lambda a, b, body, start: loop(a, b - 1, body, start))
        found = chacha._columns(*arguments)[0, :, 0]
        there = on_an_accelerator()[0, :, 0]
    assert f"{int(found[0]):08x}" != words[:8] != f"{int(there[0]):08x}"


def inputs_read(monkeypatch) -> list[tuple[int, ...]]:
    """(counter, nonce) of every block that a key's uses read."""
    read: list[tuple[int, ...]] = []
    honest = chacha.block

    def recorded(key, counter, nonce):
        read.extend((int(c), *(int(n) for n in nonce)) for c in np.asarray(counter))
        return honest(key, counter, nonce)

    with monkeypatch.context() as patch:
        patch.setattr(chacha, "block", recorded)
        key = jnp.arange(8, dtype=jnp.uint32)
        chacha._random_bits(key, 32, (40, 3))
        chacha._split(key, (9,))
        for data in (0, 1, 7, 2**32 - 1):
            chacha._fold_in(key, np.uint32(data))
        chacha.more_words(key, 40)
        for chain, step in ((0, 0), (0, 1), (1, 0), (2**32 - 1, 7)):
            randomness.at(jax.random.wrap_key_data(key, impl=CHACHA20), chain, step)
    return read


def test_bits_split_and_fold_in_never_read_the_same_block(monkeypatch):
    read = inputs_read(monkeypatch)
    assert len(read) == 8 + 5 + 4 + 3 + 4
    assert len(set(read)) == len(read)
    monkeypatch.setattr(chacha, "_SPLIT", chacha._FOLD)  # planted: one nonce for two uses
    read = inputs_read(monkeypatch)
    assert len(set(read)) < len(read)


def test_every_width_and_shape():
    key = jax.random.key(3, impl=CHACHA20)
    for dtype, shape in ((jnp.uint8, (17,)), (jnp.uint16, (0,)), (jnp.uint32, ()), (jnp.uint32, (3, 5))):
        bits = jax.random.bits(key, shape, dtype)
        assert bits.shape == shape
        assert bits.dtype == dtype
    x = np.asarray(jax.random.uniform(key, (20_000,)))
    assert abs(x.mean() - 0.5) < 4 / math.sqrt(12 * 20_000)
    assert sorted(np.asarray(jax.random.permutation(key, 10)).tolist()) == list(range(10))


def test_more_blocks_than_the_counter_has_are_refused():
    key = jax.ShapeDtypeStruct((8,), jnp.uint32)
    with pytest.raises(ValueError, match="4294967296 blocks"):
        jax.eval_shape(lambda k: chacha._random_bits(k, 32, (1 << 20, (1 << 16) + 1)), key)
    with pytest.raises(ValueError, match="4294967296 blocks"):
        jax.eval_shape(lambda k: chacha._split(k, (1 << 20, (1 << 13) + 1)), key)
    assert jax.eval_shape(lambda k: chacha._random_bits(k, 32, (1 << 20, 1 << 9)), key).size == 1 << 29


def test_seeds_and_other_keys_are_adopted():
    assert jax.random.key_data(jax.random.key(5, impl=CHACHA20)).tolist() == [5, 0, 0, 0, 0, 0, 0, 0]
    threefry = jax.random.key(5, impl="threefry2x32")
    assert randomness.is_chacha(randomness.adopted(threefry))
    assert not randomness.is_chacha(threefry)
    own = jax.random.key(5, impl=CHACHA20)
    assert randomness.adopted(own) is own
    with pytest.raises(ValueError, match="32 bytes"):
        randomness.new_key(bytes(31))


def test_words_on_the_host_are_the_generators():
    for count in (1, 15, 16, 100):
        words = chacha.words_on_host(CHACHA_KEY, count)
        np.testing.assert_array_equal(words, jax.random.bits(CHACHA_KEY, (count,), jnp.uint32))
    # Many keys: a few are computed at a time.
    keys = jax.random.split(CHACHA_KEY, (2, 6))
    found = jax.jit(jax.vmap(jax.vmap(lambda key: jax.random.bits(key, (1100,), jnp.uint32))))(keys)
    for i, j in ((0, 0), (0, 5), (1, 3)):
        np.testing.assert_array_equal(chacha.words_on_host(keys[i, j], 1100), found[i, j])
    # Keys that XLA computes on several threads each, which a small call cannot.
    words = jax.jit(jax.vmap(lambda key: jax.random.bits(key, (1 << 17,), jnp.uint32)))(keys[0, :2])
    np.testing.assert_array_equal(words[1], chacha.words_on_host(keys[0, 1], 1 << 17))
    # Blocks from a first one on go on where those before end.
    whole = chacha.words_on_host(CHACHA_KEY, 96).reshape(16, 6)
    np.testing.assert_array_equal(chacha.words_on_host(CHACHA_KEY, 64, 2).reshape(16, 4), whole[:, 2:])
    with pytest.raises(ValueError, match="4294967296 blocks"):
        chacha.words_on_host(CHACHA_KEY, 17, 2**32 - 1)
