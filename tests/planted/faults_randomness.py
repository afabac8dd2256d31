"""Faults of what is drawn: noise, keys and batches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.privacy.accounting.sampling import FixedSize, Poisson
from dpmcmc.privacy.query import chacha, integer_noise, query, randomness, selection
from dpmcmc.privacy.query.query import GradientQuery
from dpmcmc.privacy.query.randomness import SecretKey, Streams
from tests.planted import Fault
from tests.planted import checks_accounting as accounting
from tests.planted import checks_query as checks

Patch = pytest.MonkeyPatch


# Noise.


def scaled_noise(patch: Patch, factor: float) -> None:
    """Noise of a std that is ``factor`` times the one charged."""
    drawn = query.drawn_noise
    patch.setattr(query, "drawn_noise", lambda key, like, std, *more: drawn(key, like, factor * std, *more))


def _noise_per_record(patch: Patch) -> None:
    real = query.drawn_noise

    def summed(key: Any, like: Any, std: Any, scale: Any, levels: int) -> Any:
        rows = 4
        parts = [real(one, like, std / rows, scale, levels) for one in jax.random.split(key, rows)]
        return jax.tree.map(lambda *each: sum(each), *parts)

    patch.setattr(query, "drawn_noise", summed)


def _same_noise_for_every_leaf(patch: Patch) -> None:
    def from_the_start(like: Any, numbers: Any) -> Any:
        return jax.tree.map(lambda leaf: numbers[: leaf.size].reshape(leaf.shape), like)

    for room in (randomness, integer_noise):
        patch.setattr(room, "unraveled", from_the_start)


def _same_noise_for_both_queries(patch: Patch) -> None:
    real = GradientQuery.draw

    def draw(self: GradientQuery, params: Any, batch_key: Any, noise_key: Any, *more: Any) -> Any:
        drawn = real(self, params, batch_key, noise_key, *more)
        if self.second is None:
            return drawn
        return drawn._replace(second_noise=jax.random.split(noise_key)[0])

    patch.setattr(GradientQuery, "draw", draw)


def _coarse_noise(patch: Patch) -> None:
    real = query.drawn_noise

    def even(*arguments: Any) -> Any:
        noise = real(*arguments)
        return noise._replace(low=jax.tree.map(lambda low: low & ~1, noise.low))

    patch.setattr(query, "drawn_noise", even)


def _no_top_coefficient(patch: Patch) -> None:
    real = integer_noise.coefficients
    patch.setattr(integer_noise, "coefficients", lambda std, levels: real(std, levels).at[-1].set(0))


# Keys.


def _keys_at(patch: Patch, change: Any) -> None:
    real = Streams.at
    patch.setattr(Streams, "at", lambda self, chain, step: real(self, *change(chain, step)))


def _one_key_for_batch_and_noise(patch: Patch) -> None:
    real = Streams.at

    def at(self: Streams, chain: Any, step: Any) -> Streams:
        keys = real(self, chain, step)
        return keys._replace(batch=keys.noise)

    patch.setattr(Streams, "at", at)


def _fold_in_forgets(patch: Patch) -> None:
    def fold_in(key: Any, data: Any) -> Any:
        # A nonce of the wrong width: the counter falls off its end.
        return chacha.block(key, jnp.asarray(data).astype(jnp.uint32)[None] * np.uint32(0), (3, 0, 0))[:8, 0]

    real = Streams.at

    def at(self: Streams, chain: Any, step: Any) -> Streams:
        if not chacha.is_chacha(self.noise):
            return real(self, chain, step)
        folded = [fold_in(fold_in(jax.random.key_data(key), chain), step) for key in self]
        return Streams(*(jax.random.wrap_key_data(words, impl=chacha.CHACHA20) for words in folded))

    patch.setattr(Streams, "at", at)


def _seeded_keys(patch: Patch) -> None:
    def entropy(private: bool) -> Any:
        return chacha.new_key(bytes(32)) if private else jax.random.key(0)

    patch.setattr(randomness, "_entropy", entropy)


def _keys_used_again(patch: Patch) -> None:
    real = SecretKey.streams

    def streams(self: SecretKey, private: bool = True) -> Streams:
        self._streams = self._streams or real(self, private)
        return self._streams

    patch.setattr(SecretKey, "streams", streams)


# Batches.


def _fixed_size_for_poisson(patch: Patch) -> None:
    fixed = selection.selector.dispatch(FixedSize)
    _select_poisson_by(patch, lambda sampling, n, slots: fixed(FixedSize(int(sampling.batch_size)), n, slots))


def _select_poisson_by(patch: Patch, wrong: Any) -> None:
    """Draw the batches of Poisson sampling by ``wrong``, and those of other schemes as they are drawn."""
    real = selection.selector

    def selector(sampling: Any, n: int, slots: int) -> Any:
        return (wrong if isinstance(sampling, Poisson) else real)(sampling, n, slots)

    patch.setattr(selection, "selector", selector)


def _shuffled_epochs(patch: Patch) -> None:
    real = Streams.at

    def at(self: Streams, chain: Any, step: Any) -> Streams:
        # The words of the minibatch key say which step of which chain this is.
        words = jnp.stack([jnp.asarray(chain, jnp.uint32), jnp.asarray(step, jnp.uint32)])
        return real(self, chain, step)._replace(batch=jax.random.wrap_key_data(words, impl="threefry2x32"))

    def selector(sampling: Poisson, n: int, slots: int) -> Any:
        size = int(sampling.batch_size)
        batches = n // size

        def select(key: Any) -> Any:
            chain, step = jax.random.key_data(key)
            epoch = jax.random.fold_in(jax.random.fold_in(jax.random.key(7), chain), step // batches)
            order = jax.random.permutation(epoch, n)
            return jax.lax.dynamic_slice(order, (step % batches * size,), (size,)), jnp.ones(size, bool)

        return select

    patch.setattr(Streams, "at", at)
    _select_poisson_by(patch, selector)


def _blocks_of_the_file(patch: Patch) -> None:
    def selector(sampling: Poisson, n: int, slots: int) -> Any:
        size = round(sampling.batch_size)
        places = jnp.arange(size, dtype=jnp.int32)
        return lambda key: ((jax.random.randint(key, (), 0, n) + places) % n, jnp.ones(size, bool))

    _select_poisson_by(patch, selector)


def _no_room(patch: Patch) -> None:
    real = Poisson.capacity
    patch.setattr(Poisson, "capacity", lambda self, n, overflow: (real(self, n, 0.02)[0], 0.0))


FAULTS = (
    Fault(
        "noise halved",
        "Noise of half the std that is charged, for instance a variance taken for a std.",
        lambda patch: scaled_noise(patch, 0.5),
        (
            checks.released_noise_is_as_stated,
            accounting.an_audit_finds_no_more_than_is_claimed,
        ),
    ),
    Fault(
        "noise per record at the wrong scale",
        "Every row of a batch of b gets noise of std σ/b, and the sum of them has σ/√b.",
        _noise_per_record,
        (checks.released_noise_is_as_stated,),
    ),
    Fault(
        "same noise for two leaves",
        "One key draws the noise of every leaf of the parameters, and a difference of leaves is free of noise.",
        _same_noise_for_every_leaf,
        (checks.released_noise_is_as_stated,),
    ),
    Fault(
        "same noise for gradient and second moment",
        "Both queries of a step draw from one key.",
        _same_noise_for_both_queries,
        (checks.both_noises_are_as_stated,),
    ),
    Fault(
        "noise without tails",
        "jax.random.normal inverts a 23-bit uniform and ends at 5.42σ, where a Gaussian's guarantee relies on more.",
        lambda patch: patch.setattr(randomness, "normal", lambda key, shape: jax.random.normal(key, shape)),
        (checks.noise_reaches_its_tails,),
    ),
    Fault(
        "noise coarser than the sum",
        "Noise in one float32 has 24 bits, and beyond them the low bits of the exact sum show through.",
        _coarse_noise,
        (checks.noise_hides_the_low_bits_of_the_sum,),
    ),
    Fault(
        "hardened: top coefficient dropped",
        "The widest of the table draws that make up integer noise is left out, as an index off by one does.",
        _no_top_coefficient,
        (checks.released_noise_is_as_stated,),
    ),
    Fault(
        "key reused across chains",
        "The chain's number is not folded into the keys, so two chains' noise cancels in their difference.",
        lambda patch: _keys_at(patch, lambda chain, step: (0, step)),
        (checks.no_key_is_used_twice,),
    ),
    Fault(
        "key reused across steps",
        "The step's number is not folded into the keys.",
        lambda patch: _keys_at(patch, lambda chain, step: (chain, 0)),
        (checks.no_key_is_used_twice, checks.released_noise_is_as_stated),
    ),
    Fault(
        "hardened: key derivation ignores its data",
        "ChaCha20's fold_in loses the counter, and every chain and step has the same key.",
        _fold_in_forgets,
        (checks.no_key_is_used_twice,),
    ),
    Fault(
        "noise and minibatch share a key",
        "One key per step serves both purposes, so that who was selected tells of the noise.",
        _one_key_for_batch_and_noise,
        (checks.no_key_is_used_twice,),
    ),
    Fault(
        "keys from a fixed seed",
        "Secret keys come from a constant in place of the operating system, and anybody can subtract the noise.",
        _seeded_keys,
        (accounting.two_secret_keys_are_different,),
    ),
    Fault(
        "one secret key for two runs",
        "A key object may be used again, and the same noise on two data sets cancels in their difference.",
        _keys_used_again,
        (accounting.two_secret_keys_are_different,),
    ),
    Fault(
        "fixed-size batches accounted as Poisson",
        "A loader draws exactly b records without replacement, and the accountant's theorem is for independent ones.",
        _fixed_size_for_poisson,
        (checks.batches_follow_the_law_that_is_charged,),
    ),
    Fault(
        "shuffled epochs accounted as Poisson",
        "Batches are cut from a permutation of the data, as every training loop does, and nothing is amplified so.",
        _shuffled_epochs,
        (checks.batches_follow_the_law_that_is_charged,),
    ),
    Fault(
        "contiguous blocks accounted as Poisson",
        "A batch is a stretch of the file from a random place, so that neighbours in the file come together.",
        _blocks_of_the_file,
        (checks.batches_follow_the_law_that_is_charged,),
    ),
    Fault(
        "batch overflow not charged",
        "A padded batch has room for most draws, and the probability of truncating one is left out of δ.",
        _no_room,
        (checks.events_cover_every_query,),
    ),
)
