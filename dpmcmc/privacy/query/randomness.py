"""Secret randomness: keys from OS entropy, one stream per purpose, and Gaussian noise with its tails.

Whoever knows a key can subtract the noise, so keys come from the operating system, have no printable form,
cannot be pickled and are never written to a released folder. Streams are separated by purpose (which
records, which noise, a sampler's own dynamics, starting points), then by chain, then by step.

Two generators. A private run has ChaCha20 with 256-bit keys for every purpose, and its noise is drawn in integers
(``integer_noise.py``). A run without privacy has ``threefry2x32``, JAX's own (counter-based, 64-bit keys, not
claimed to be cryptographic), and its noise is :func:`normal`, as is the noise that a sampler adds of itself.

Claim: No key serves twice, whatever the purpose, chain and step.
Proof: the nonce of a block says what it is for, and a call has at most as many blocks as the counter.
Held by: test_bits_split_and_fold_in_never_read_the_same_block, test_a_run_uses_no_key_twice,
test_secret_keys_are_of_the_generator_of_their_run_and_used_once, test_keys_are_not_reused_between_draws,
"key reused across chains", "key reused across steps", "hardened: key derivation ignores its data",
"noise and minibatch share a key", "one secret key for two runs"
"""

from __future__ import annotations

import os
import secrets
import threading
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.storage.pytree import PyTree, size_of

if TYPE_CHECKING:
    from jaxtyping import Float, Num
from dpmcmc.privacy.query.chacha import adopted, at, is_chacha, new_key

PURPOSES = ("batch", "noise", "dynamics", "init")
#: Held while a key is taken, so that of two threads one gets it.
_TAKING = threading.Lock()


class Streams(NamedTuple):
    """One JAX key per purpose."""

    batch: jax.Array
    noise: jax.Array
    dynamics: jax.Array
    init: jax.Array

    def at(self, chain: jax.Array | int, step: jax.Array | int) -> Streams:
        """The four keys of one (chain, step)."""

        def here_of(key: jax.Array) -> jax.Array:
            if is_chacha(self.noise):
                return at(key, chain, step)
            return jax.random.fold_in(jax.random.fold_in(key, chain), step)

        # Side by side: four times the work of one key costs hardly more than one.
        here = jax.vmap(here_of)(jnp.stack(self))
        return Streams(*(here[i] for i in range(len(PURPOSES))))


def _entropy(private: bool) -> jax.Array:
    """A key from the operating system, of ChaCha20 for a private run."""
    if private:
        return new_key(secrets.token_bytes(32))
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(secrets.token_bytes(8), np.uint32)), impl="threefry2x32")


class SecretKey:
    """Keys drawn from OS entropy, for ONE run. A run needs one of these to carry a Guarantee.

    ``dpmcmc.sample`` draws one itself where it is given none.

    Example:
        >>> import dpmcmc
        >>> import jax
        >>> import numpy as np
        >>> plan = dpmcmc.plan(
        ...     dpmcmc.targets.LogisticRegression(),
        ...     num_records=100,
        ...     sampler=dpmcmc.SGLD(step_size=1.0),
        ...     steps=10,
        ...     privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
        ... )
        >>> records = {"x": np.zeros((100, 2)), "y": np.zeros(100, int)}
        >>> dpmcmc.sample(plan, records, key=dpmcmc.SecretKey()).guarantee is None  # as with key=None
        False
        >>> dpmcmc.sample(plan, records, key=jax.random.key(0)).guarantee is None
        True
    """

    __slots__ = ("_process", "_streams", "_used")

    def __init__(self) -> None:
        self._process = os.getpid()
        self._used = False
        self._streams: Streams | None = None

    @classmethod
    def _of(cls, streams: Streams) -> SecretKey:
        """Return a key of streams that were derived from another's, for a part of that one's run."""
        key = cls()
        key._streams = streams
        return key

    def streams(self, private: bool = True) -> Streams:
        """Return the per-purpose keys. Never print, log or save them.

        Args:
            private: of ChaCha20, as every private run's are; else of JAX's own generator, threefry2x32.

        Raises:
            ValueError: taken before, or made in the process that this one was forked from. The same noise on two data
                sets cancels in the difference of their outputs.
        """
        if self._process != os.getpid():
            raise InputError(
                "a SecretKey is for one run, and a forked process has a copy of its parent's; make another here"
            )
        with _TAKING:
            used = self._used
            self._used = True
        if used:
            raise InputError("a SecretKey is for one run, and this one has been used; make another")
        streams = self._streams
        self._streams = None
        if streams is None:
            streams = Streams(*(_entropy(private) for _ in PURPOSES))
        return streams

    def __repr__(self) -> str:
        return "SecretKey(<hidden>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecretKey cannot be pickled or copied: whoever has it can subtract the noise")


def is_secret(key: object) -> bool:
    """Whether :func:`streams_of` makes secret streams of this."""
    return key is None or isinstance(key, SecretKey)


def streams_of(key: SecretKey | jax.Array | int | None, private: bool = True) -> tuple[Streams, bool]:
    """(streams, secret?). A plain JAX key or an int seed gives reproducible streams that are not secret.

    Args:
        key: None for fresh OS entropy.
        private: of ChaCha20, which a plain JAX key or an int seeds; else of JAX's own generator, threefry2x32.

    Raises:
        TypeError: for anything else.
        ValueError: a SecretKey that has been used.
    """
    if key is None:
        key = SecretKey()
    if isinstance(key, SecretKey):
        return key.streams(private), True
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        key = jax.random.key(int(key))
    if isinstance(key, jax.Array):
        if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.wrap_key_data(key)
        if private:
            key = adopted(jnp.asarray(key))
        return Streams(*jax.random.split(jnp.asarray(key), len(PURPOSES))), False
    raise TypeError(f"key must be None, a SecretKey, a JAX key or an int, got {type(key).__name__}")


def normal(key: jax.Array, shape: tuple[int, ...]) -> Float[jax.Array, ...]:
    """Independent standard normals, float32, with tails to 9.4σ.

    ``jax.random.normal`` inverts a 23-bit uniform and so never exceeds 5.42σ: beyond it lies mass 6e-8 a
    coordinate that a Gaussian guarantee relies on. Here Box–Muller takes its radius from a 64-bit uniform
    kept at full float32 relative precision at both ends, which leaves out mass 2^-65.

    Args:
        key: a JAX key.
        shape: of the result.
    """
    size = int(np.prod(shape)) if shape else 1
    pairs = (size + 1) // 2
    words = jax.random.bits(key, (3, pairs), jnp.uint32)
    high = words[0]
    low = words[1]
    turn = words[2]
    small = jnp.float32(2.0**-32), jnp.float32(2.0**-64)
    near_zero = high.astype(jnp.float32) * small[0] + (low.astype(jnp.float32) + 0.5) * small[1]
    near_one = (~high).astype(jnp.float32) * small[0] + ((~low).astype(jnp.float32) + 0.5) * small[1]
    # −log U, from whichever of U and 1 − U is small: neither end is rounded away.
    exponential = jnp.where(high < jnp.uint32(1 << 31), -jnp.log(near_zero), -jnp.log1p(-near_one))
    radius = jnp.sqrt(2 * exponential)
    cosine, sine = _cos_sin(turn)
    # Moved on by one, so that in two copies of a vector no coordinate has both halves of a pair (a vector of one has).
    return jnp.concatenate([radius * cosine, jnp.roll(radius * sine, 1)])[:size].reshape(shape)


def _cos_sin(turn: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(cos, sin) of 2π·(turn + 1/2)·2^-32, within 2^-22: in vector instructions, unlike the library's on a CPU.

    Args:
        turn: uint32.
    """
    octant = turn >> 29
    within = turn & ((1 << 29) - 1)
    # Every other octant from its end, so that the angle lies in (0, π/4).
    within = jnp.where(octant % 2 == 1, ((1 << 29) - 1) - within, within)
    angle = (within.astype(jnp.float32) + 0.5) * jnp.float32(np.pi / 4 * 2.0**-29)
    square = angle * angle

    def series(*coefficients: float) -> jax.Array:
        total = jnp.full_like(square, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = total * square + jnp.float32(coefficient)
        return total

    # Minimax polynomials of the Cephes library (sinf, cosf).
    sine = angle + angle * square * series(-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
    cosine = 1 - 0.5 * square + square**2 * series(4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)
    steep = (octant + 1) % 4 >= 2
    cosine, sine = jnp.where(steep, sine, cosine), jnp.where(steep, cosine, sine)
    return jnp.where((octant >= 2) & (octant < 6), -cosine, cosine), jnp.where(octant >= 4, -sine, sine)


def tree_normal(key: jax.Array, like: PyTree, copies: int = 1) -> list[PyTree]:
    """Standard normals shaped like a pytree, from one draw so that no two leaves or copies share a key."""
    return [unraveled(like, part) for part in normal(key, (copies, size_of(like)))]


def unraveled(like: PyTree, numbers: Num[jax.Array, " size"]) -> PyTree:
    """A vector as a pytree of these shapes."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1].tolist()
    parts = [part.reshape(leaf.shape) for part, leaf in zip(jnp.split(numbers, ends), leaves, strict=True)]
    return jax.tree.unflatten(structure, parts)
