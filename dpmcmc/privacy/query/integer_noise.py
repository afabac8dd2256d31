"""Gaussian noise in integers alone, drawn from the tables whose proof is in ``accounting/gaussian.py``.

Claim: Noise has at least the std that is charged, and its tails.
Proof: coefficients are chosen such that the variance of the draws together is at least the asked one.
Held by: test_coefficients_reach_the_asked_std_and_keep_the_smoothing, test_noise_passes_kolmogorov_smirnov,
test_the_tails_have_their_mass, test_the_noise_of_a_mechanism_is_the_integers_alone, "noise halved",
"noise per record at the wrong scale", "noise without tails", "same noise for two leaves",
"same noise for gradient and second moment", "hardened: top coefficient dropped"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.noise_tables import BASE, HALF, INDEX_BITS, LEVELS, MOST_NUMBERS, RATIO, SLACK, table
from dpmcmc.privacy.query import chacha
from dpmcmc.privacy.query.chacha import Words
from dpmcmc.privacy.query.exact_sums import in_one_row
from dpmcmc.privacy.query.randomness import unraveled
from dpmcmc.storage.pytree import PyTree, size_of

_COLUMN = (1 << INDEX_BITS) - 1
#: Numbers that the host draws at a time.
_AT_A_TIME = 1 << 15
#: Keys that are settled at a time: one in so many, and at least ``_FEWEST``. On average 27 of 32,768 keys of 436 draws
#: tie.
_KEYS_A_TIE = 512
_FEWEST = 8
#: Name of the loop over them in what a compiler has made of a program.
TIES = "keys_that_tie"


def coefficients(std: Words, levels: int, xp: ModuleType = jnp) -> Words:
    """Return c_2, …, c_L for a noise of at least this std.

    Args:
        std: any shape, float32, in grid units, at most ``reach(levels)``.
        levels: L.
        xp: where to compute: jax.numpy or numpy.

    Returns:
        (levels − 1, *shape) int32.
    """
    share = np.float32(math.sqrt(1 - RATIO**-2))
    asked = std * np.float32((1 + SLACK) / BASE)
    # From the largest down, each as large as leaves the ones before it wide enough to smooth it.
    top = xp.floor(asked * share)
    # a² − c² without cancellation; a − c is exact.
    rest = (asked - top) * (asked + top)
    found = [top]
    for _ in range(levels - 3):
        here = xp.floor(xp.sqrt(rest) * share)
        rest = xp.maximum(rest - here * here, 0)
        found.append(here)
    last = xp.floor(xp.sqrt(rest))
    found.append(xp.where(last * last < rest, last + 1, last))
    return xp.stack(found[::-1]).astype(xp.int32)


def draw(
    key: jax.Array,
    shape: tuple[int, ...],
    then: Callable[..., PyTree] = lambda draws: draws,
    *given: jax.Array,
) -> PyTree:
    """Return independent draws of the table, int32, or what ``then`` makes of them.

    The 19 upper bits of a threshold settle a draw, unless the drawn bits equal them: once in 2^19 draws. Only for a key
    where that happens are the other 96 bits drawn and compared, for all draws of the key alike. Whether it happens does
    not depend on the column.

    Args:
        key: used for nothing else; one of another generator is adopted (``chacha.adopted``).
        shape: of the draws.
        then: (draws, *given) -> integers, with no array from outside.
        given: further arrays that it takes.
    """

    def first(words: jax.Array) -> tuple[jax.Array, ...]:
        """(column, its threshold's upper bits and alias, whether each draw is below the threshold, whether it ties)."""
        column = words & np.uint32(_COLUMN)
        entry = jnp.asarray(table().words[0])[column]
        top = words >> np.uint32(INDEX_BITS)
        threshold = entry >> np.uint32(INDEX_BITS)
        return column, entry, top < threshold, top == threshold

    def made(
        column: jax.Array,
        entry: jax.Array,
        below: jax.Array,
        given: tuple[jax.Array, ...],
    ) -> PyTree:
        chosen = jnp.where(below, column, entry & np.uint32(_COLUMN))
        return then((chosen.astype(jnp.int32) - HALF).reshape(shape), *given)

    def unless_tied(_: jax.Array, words: jax.Array, *given: jax.Array) -> tuple[jax.Array, PyTree]:
        column, entry, less, tied = first(words)
        return jnp.any(tied), made(column, entry, less, given)

    def settled(key: jax.Array, words: jax.Array, *given: jax.Array) -> PyTree:
        column, entry, less, tied = first(words)
        lower = table().words[1:]
        more = chacha.more_words(key, len(lower) * column.size).reshape(len(lower), -1)
        below = _settled(less, tied, more, (jnp.asarray(row)[column] for row in lower))
        return made(column, entry, below, given)

    # One row of keys, so that one question is asked for all of them.
    @in_one_row
    def of_keys(*rows: jax.Array) -> PyTree:
        return _each(jax.vmap(unless_tied), jax.vmap(settled), rows)

    key = chacha.adopted(key)
    words = jax.random.bits(key, shape, jnp.uint32).reshape(-1)
    row = (jax.random.key_data(key), words, *given)
    found = of_keys(*(leaf[None] for leaf in row))
    return jax.tree.map(lambda leaf: leaf[0], found)


def _each(
    quick: Callable[..., tuple[jax.Array, PyTree]],
    exact: Callable[..., PyTree],
    rows: tuple[jax.Array, ...],
) -> PyTree:
    """Return what ``quick`` makes of each row, or ``exact`` where that leaves a row open, some rows at a time.

    Args:
        quick: rows -> (which are open, (n,) bool; results).
        exact: rows -> results.
        rows: arrays of n rows.
    """
    some = min(len(rows[0]), max(_FEWEST, len(rows[0]) // _KEYS_A_TIE))

    def mended(state: tuple[jax.Array, PyTree]) -> tuple[jax.Array, PyTree]:
        left, found = state
        # Beside those that are left may be others, whose results stay what they are.
        at = jax.lax.top_k(left.astype(jnp.int32), some)[1]
        settled = exact(*(row[at] for row in rows))
        found = jax.tree.map(lambda old, new: old.at[at].set(new, unique_indices=True), found, settled)
        return left.at[at].set(jnp.zeros(some, bool), unique_indices=True), found

    found = quick(*rows)
    with jax.named_scope(TIES):
        return jax.lax.while_loop(lambda state: jnp.any(state[0]), mended, found)[1]


def _settled(less: Words, tied: Words, words: Iterable[Words], thresholds: Iterable[Words]) -> Words:
    """Return whether drawn bits are below a threshold, going on from what their upper bits say; NumPy or JAX."""
    for word, threshold in zip(words, thresholds, strict=True):
        less = less | (tied & (word < threshold))
        tied = tied & (word == threshold)
    return less


def on_host(key: jax.Array, size: int, std: float) -> np.ndarray:
    """Return integer noise of at least this std, (size,) int64, in NumPy, where nothing has to be compiled.

    Args:
        key: of ChaCha20, used for nothing else.
        size: number of coordinates, at most ``MOST_NUMBERS``.
        std: in grid units, at most the reach of the most levels.
    """
    check_numbers(size)
    rows = table().words
    factors = np.array([1, *coefficients(np.asarray(std, np.float32), LEVELS[-1], np).tolist()])
    total = np.zeros(size, np.int64)
    for start in range(0, size, _AT_A_TIME):
        part = total[start : start + _AT_A_TIME]
        shape = (len(rows), len(factors), part.size)
        # A block has 16 words, and those before this part have taken as many as this part may.
        first = start * len(rows) * len(factors) // 16
        words = chacha.words_on_host(key, math.prod(shape), first).reshape(shape)
        column = words[0] & np.uint32(_COLUMN)
        entry = rows[0][column]
        top = words[0] >> np.uint32(INDEX_BITS)
        threshold = entry >> np.uint32(INDEX_BITS)
        below = _settled(
            top < threshold,
            top == threshold,
            words[1:],
            (row[column] for row in rows[1:]),
        )
        chosen = np.where(below, column, entry & np.uint32(_COLUMN))
        part[:] = factors @ (chosen.astype(np.int64) - HALF)
    return total


def check_numbers(size: int) -> None:
    """Refuse a release of more numbers than a mechanism is charged for."""
    if size > MOST_NUMBERS:
        raise InputError(
            f"a release has {size} numbers, and integer noise is charged for {MOST_NUMBERS} at most; release fewer"
        )


def noise(key: jax.Array, size: int, std: jax.Array, levels: int) -> tuple[jax.Array, jax.Array]:
    """Integer noise of at least this std, as ``high·2^16 + low``.

    Args:
        key: used for nothing else.
        size: number of coordinates.
        std: (), or (size,), float32, in grid units.
        levels: of :func:`levels_for`.

    Returns:
        (high, low), (size,) int32 each; |low| < 2^28.
    """

    def limbs(each: jax.Array, factors: jax.Array) -> tuple[jax.Array, jax.Array]:
        factors = jnp.broadcast_to(factors, (levels - 1, size))
        high, low = _times(each[1:], factors)
        return jnp.sum(high, axis=0), jnp.sum(low, axis=0) + each[0]

    return draw(key, (levels, size), limbs, coefficients(std, levels).reshape(levels - 1, -1))


def _times(draws: jax.Array, factors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return draws times factors below 2^25 as (high, low), int32."""
    # A product may have 37 bits: the factor's upper bits, then its lower twelve.
    upper = draws * (factors >> 12)
    lower = draws * (factors & 0xFFF)
    return upper >> 4, ((upper & 0xF) << 12) + lower


def tree_noise(
    key: jax.Array,
    like: PyTree,
    std: jax.Array,
    scale: float | np.ndarray,
    levels: int,
) -> tuple[PyTree, PyTree]:
    """Integer noise shaped like a pytree, from one draw, so that no two leaves share a key.

    Args:
        key: used for nothing else.
        like: pytree of arrays.
        std: (), float32, in grid units.
        scale: factor on ``std``: a number, or a NumPy array like the only leaf.
        levels: of :func:`levels_for`.

    Returns:
        (high, low), pytrees of int32, value ``high·2^16 + low``.
    """
    if np.ndim(scale):
        values, which = np.unique(np.ravel(scale), return_inverse=True)
        stds = (std * jnp.asarray(values))[which]
    else:
        stds = std * np.float32(scale)
    high, low = noise(key, size_of(like), stds, levels)
    return unraveled(like, high), unraveled(like, low)
