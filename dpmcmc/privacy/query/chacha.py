"""ChaCha20 as a JAX random generator: a private run's keys and bits (RFC 8439, 20 rounds, 256-bit keys).

The block function maps (key, 32-bit counter, 96-bit nonce) to 16 words of 32 bits. The nonce's first word says what
a block is for, so that no two uses of a key read the same block:

    random_bits   nonce (1, 0, 0)       counter 0, 1, …      every word of the output is used once
    split         nonce (2, 0, 0)       counter ⌊child/2⌋    each half of a block is one child key
    fold_in       nonce (3, 0, 0)       counter = data       the first half is the new key
    at            nonce (4, chain, 0)   counter = step       the first half is the new key
    more_words    nonce (5, 0, 0)       counter 0, 1, …      every word of the output is used once

A call has 2^32 blocks: at most 2^36 words, or 2^33 children; more is refused. ``fold_in`` takes 32 bits of data. As
with any JAX key, a key is to be used once: twice the same call gives twice the same bits. ``more_words`` belongs to
the ``random_bits`` of the same key, where the first words did not settle everything.

**What it gives.** Keys form a tree in which every node is an output of its parent's function (Goldreich, Goldwasser &
Micali 1986). If the block function is a pseudorandom function, no efficient observer tells the words that a run uses
from independent uniform ones. So a mechanism that is (ε, δ)-DP with uniform words is computationally so with these:
no efficient observer tells its output from that of the private one (SIM-CDP: Mironov, Pandey, Reingold & Vadhan 2009;
McMillan 2018, section 7.2, for pseudorandom noise). A generator with a seed gives no more. Threefry, JAX's own, has
64-bit keys and is not claimed to be cryptographic.

**What it does not give.** Keys are not erased: they stay in memory for as long as the run lasts, so whoever reads
that memory can recompute the noise of past steps too. The arithmetic is additions, rotations and exclusive ors,
without branches or addresses that depend on a secret; what a compiler makes of it is not checked.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.random import define_prng_impl

from dpmcmc.errors import InputError
from dpmcmc.privacy.query.exact_sums import in_one_row
from dpmcmc.privacy.query.platforms import by_platform, traced_platform
from dpmcmc.storage.pytree import PyTree, map_in_groups

#: Words in NumPy or in JAX; four rows of them.
Words = TypeVar("Words", np.ndarray, jax.Array)
WordRows = tuple[Words, Words, Words, Words]
_CONSTANTS = np.frombuffer(b"expand 32-byte k", "<u4").astype(np.uint32)
_KEY_WORDS = 8
_BLOCK_WORDS = 16
_MOST_BLOCKS = 1 << 32
_DOUBLE_ROUNDS = 10
#: Double rounds that an accelerator computes in one operation, after the first.
_AT_ONCE = 3
#: Blocks whose state a CPU's nearest cache holds.
_IN_CACHE = 256
#: Blocks of one key that XLA computes on one thread, with room (it was seen to take several from 4,096 on).
_ONE_THREAD = 1024
_BITS, _SPLIT, _FOLD, _AT, _MORE = 1, 2, 3, 4, 5


def block(
    key: jax.Array,
    counter: jax.Array,
    nonce: jax.Array | np.ndarray | tuple[int | jax.Array, ...],
) -> jax.Array:
    """ChaCha20 blocks (RFC 8439, section 2.3), one per counter.

    Args:
        key: (8,) uint32.
        counter: (n,) uint32.
        nonce: (3,) uint32.

    Returns:
        (16, n) uint32, word by word.
    """
    if isinstance(nonce, tuple):
        known = all(isinstance(word, int) for word in nonce)
        nonce = np.array(nonce, np.uint32) if known else jnp.stack([jnp.asarray(word, jnp.uint32) for word in nonce])
    return _of_key(key, counter, nonce, traced_platform())


# Where it is traced, it is as if it were written there; elsewhere it is one call, and not ten.
@functools.partial(jax.jit, static_argnums=3, inline=True)
def _of_key(key: jax.Array, counter: jax.Array, nonce: jax.Array, platform: str | None) -> jax.Array:
    """Return what :func:`block` does; ``platform`` is what it is traced for."""
    return _of_keys(key[None], counter.astype(jnp.uint32)[None], nonce.astype(jnp.uint32)[None])[0]


# Batched as they are, blocks would be many short rows, which a CPU computes at half the speed.
@in_one_row
def _of_keys(keys: jax.Array, counters: jax.Array, nonces: jax.Array) -> jax.Array:
    """Return the blocks of several keys: (keys, 8), (keys, n) and (keys, 3) -> (keys, 16, n)."""
    return _columns(keys, counters, nonces, traced_platform())


# Compiled as one function, so that blocks of one shape are traced once in a process for a platform.
@functools.partial(jax.jit, static_argnums=3)
def _columns(keys: jax.Array, counters: jax.Array, nonces: jax.Array, platform: str | None) -> jax.Array:
    """Return what :func:`_of_keys` does, a few keys at a time on a CPU, so that their state stays in its cache."""
    count, each = counters.shape
    together = max(
        (size for size in range(1, count + 1) if count % size == 0 and size * each <= _IN_CACHE),
        default=1,
    )

    def in_groups(*inputs: jax.Array) -> jax.Array:
        if each == 1 or together == count:
            return _side_by_side(*inputs)
        # XLA on a CPU makes one function of such a call: nothing is dispatched for each round. It has one thread, and a
        # program that wants several in it cannot be compiled.
        small = {"xla_cpu_small_call": "true", "inlineable": "false"} if each <= _ONE_THREAD else {}
        with set_xla_metadata(**small):
            return map_in_groups(lambda its: _side_by_side(*its), inputs, together)

    return by_platform(keys, counters, nonces, cpu=in_groups, default=_word_by_word)


@jax.jit
def _word_by_word(keys: jax.Array, counters: jax.Array, nonces: jax.Array) -> jax.Array:
    """Return what :func:`_of_keys` does, for an accelerator; each of a state's words is an array of its own.

    So a double round asks for nothing but numbers of its own block, and stays in a core's registers. The compiler takes
    too long over many of them at once.
    """
    columns = (*_CONSTANTS, *keys.T[:, :, None], counters, *nonces.T[:, :, None])
    start = [jnp.broadcast_to(word, counters.shape) for word in columns]

    def rounds(_: jax.Array | int, words: list[jax.Array]) -> list[jax.Array]:
        for _ in range(_AT_ONCE):
            words = _double_round_by_word(words)
        return words

    # The first is before the loop, which can then overwrite what it is given.
    end = jax.lax.fori_loop(0, (_DOUBLE_ROUNDS - 1) // _AT_ONCE, rounds, _double_round_by_word(start))
    return jnp.stack([x + y for x, y in zip(start, end, strict=True)], axis=1)


@jax.jit
def _double_round_by_word(words: list[jax.Array]) -> list[jax.Array]:
    words = list(words)
    for off in (0, 1):  # columns, then diagonals
        for k in range(4):
            places = [4 * row + (k + off * row) % 4 for row in range(4)]
            for at, word in zip(places, _quarter_round(*(words[at] for at in places)), strict=True):
                words[at] = word
    return words


@jax.jit
def _side_by_side(keys: jax.Array, counters: jax.Array, nonces: jax.Array) -> jax.Array:
    """Return what :func:`_of_keys` does; a column of the state is one block."""
    count, each = counters.shape
    columns = count * each

    def across(words: jax.Array) -> jax.Array:
        return jnp.broadcast_to(words.T[:, :, None], (words.shape[1], count, each)).reshape(words.shape[1], columns)

    last = jnp.concatenate([counters.reshape(1, columns), across(nonces)])
    constants = jnp.broadcast_to(_CONSTANTS[:, None], (4, columns))
    start = (constants, across(keys[:, :4]), across(keys[:, 4:]), last)
    # A loop: unrolled, XLA on a CPU computes the rounds again for every word of the output.
    end = jax.lax.fori_loop(0, _DOUBLE_ROUNDS, lambda _, rows: _double_round(rows, _moved), start)
    words = jnp.concatenate([x + y for x, y in zip(start, end, strict=True)])
    return words.reshape(_BLOCK_WORDS, count, each).swapaxes(0, 1)


def words_on_host(key: jax.Array, count: int, first: int = 0) -> np.ndarray:
    """Return ``count`` words of a key's random bits from block ``first`` on, uint32, in NumPy: nothing is compiled."""
    blocks = -(-count // _BLOCK_WORDS)
    if first + blocks > _MOST_BLOCKS:
        raise InputError(f"a ChaCha20 key gives {_MOST_BLOCKS} blocks for one use, and {first + blocks} were asked for")
    column = [
        _CONSTANTS,
        np.asarray(jax.random.key_data(key)),
        np.array([0, _BITS, 0, 0], np.uint32),
    ]
    state = np.repeat(np.concatenate(column)[:, None], blocks, axis=1)
    state[12] = np.arange(first, first + blocks)
    start = (state[:4], state[4:8], state[8:12], state[12:])
    end = start
    for _ in range(_DOUBLE_ROUNDS):
        end = _double_round(end, lambda rows, by: np.roll(rows, -by, 0))
    return np.concatenate([x + y for x, y in zip(start, end, strict=True)]).reshape(-1)[:count]


def _double_round(rows: WordRows, moved: Callable[[Words, int], Words]) -> WordRows:
    a, b, c, d = _quarter_rounds(*rows)
    # The diagonals become columns, and columns again.
    a, b, c, d = _quarter_rounds(a, moved(b, 1), moved(c, 2), moved(d, 3))
    return a, moved(b, 3), moved(c, 2), moved(d, 1)


def _moved(rows: jax.Array, by: int) -> jax.Array:
    """Return four rows moved up by so many, the first ones to the end."""
    parts = (jax.lax.slice_in_dim(rows, by, 4), jax.lax.slice_in_dim(rows, 0, by))
    return jax.lax.concatenate(parts, 0)


def _quarter_rounds(a: Words, b: Words, c: Words, d: Words) -> WordRows:
    """Four quarter rounds side by side, one per column (RFC 8439, section 2.1)."""
    for turns in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(d ^ a, turns[0])
        c = c + d
        b = _rotated(b ^ c, turns[1])
    return a, b, c, d


#: One quarter round, traced once for words of one shape.
_quarter_round = jax.jit(_quarter_rounds)


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _blocks(key: jax.Array, count: int, purpose: int) -> jax.Array:
    """(16, count) words of the first ``count`` blocks for a purpose."""
    if count > _MOST_BLOCKS:
        raise InputError(f"a ChaCha20 key gives {_MOST_BLOCKS} blocks for one use, and {count} were asked for")
    return block(key, jnp.arange(count, dtype=jnp.uint32), (purpose, 0, 0))


def _seed(seed: jax.Array) -> jax.Array:
    """A reproducible key from a seed of 32 or 64 bits: its words, then zeros."""
    low = seed.astype(jnp.uint32)
    high = jnp.zeros((), jnp.uint32)
    if seed.dtype.itemsize == 8:
        high = jax.lax.shift_right_logical(seed, jnp.asarray(32, seed.dtype)).astype(jnp.uint32)
    return jnp.concatenate([jnp.stack([low, high]), jnp.zeros(_KEY_WORDS - 2, jnp.uint32)])


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    size = math.prod(shape)
    halves = _blocks(key, -(-size // 2), _SPLIT).T.reshape(-1, _KEY_WORDS)
    return halves[:size].reshape((*shape, _KEY_WORDS))


def _fold_in(key: jax.Array, data: PyTree) -> jax.Array:
    return block(key, jnp.asarray(data).astype(jnp.uint32)[None], (_FOLD, 0, 0))[:_KEY_WORDS, 0]


def at(key: jax.Array, chain: jax.Array | int, step: jax.Array | int) -> jax.Array:
    """Return the key of one (chain, step), both of 32 bits, from that of a stream."""
    words = block(jax.random.key_data(key), jnp.asarray(step, jnp.uint32)[None], (_AT, chain, 0))[:_KEY_WORDS, 0]
    return jax.random.wrap_key_data(words, impl=CHACHA20)


def more_words(key: jax.Array, count: int) -> jax.Array:
    """Return further words, (count,) uint32, of a key (8,) uint32 whose first words were drawn as random bits."""
    return _blocks(key, -(-count // _BLOCK_WORDS), _MORE).reshape(-1)[:count]


def _random_bits(key: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    if bit_width not in (8, 16, 32, 64):
        raise TypeError(f"random bits come 8, 16, 32 or 64 wide, not {bit_width}")
    size = math.prod(shape)
    words = size * 2 if bit_width == 64 else size
    flat = _blocks(key, -(-words // _BLOCK_WORDS), _BITS).reshape(-1)[:words]
    if bit_width == 64:
        high, low = (part.astype(jnp.uint64) for part in (flat[:size], flat[size:]))
        return ((high << np.uint64(32)) | low).reshape(shape)
    # Narrow numbers take the low bits of a word of their own.
    return flat.astype(jnp.dtype(f"uint{bit_width}")).reshape(shape)


#: Generator for ``jax.random.key(seed, impl=...)`` and ``jax.random.wrap_key_data``. Keys are (8,) uint32.
CHACHA20 = define_prng_impl(
    key_shape=(_KEY_WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="cc20",
)


def new_key(entropy: bytes) -> jax.Array:
    """A key of 32 bytes of entropy.

    Raises:
        ValueError: fewer or more bytes.
    """
    if len(entropy) != 4 * _KEY_WORDS:
        raise InputError(f"a ChaCha20 key has {4 * _KEY_WORDS} bytes, got {len(entropy)}")
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(entropy, "<u4").astype(np.uint32)), impl=CHACHA20)


def is_chacha(key: jax.Array) -> bool:
    """Whether a JAX key is one of this generator's."""
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and jax.random.key_impl(key) == CHACHA20


def adopted(key: jax.Array) -> jax.Array:
    """A key of this generator with the words of a JAX key of another; its own keys as they are.

    Raises:
        ValueError: a key of more than 8 words.
    """
    if is_chacha(key):
        return key
    words = jax.random.key_data(key).reshape(-1)
    if words.size > _KEY_WORDS:
        raise InputError(f"a key of {words.size} words does not fit one of ChaCha20, which has {_KEY_WORDS}")
    return jax.random.wrap_key_data(jnp.pad(words, (0, _KEY_WORDS - words.size)), impl=CHACHA20)
