"""Posterior draws without privacy by NUTS, for references and for experiments whose draws are charged elsewhere.

Both functions read every record WITHOUT privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from dpmcmc.errors import InputError
from dpmcmc.mechanisms.nuts import Lengths, lengths_of, run_chains
from dpmcmc.targets import Target, record_shapes
from dpmcmc.targets.tempered import Tempered


def draws_for_many(
    posteriors: Sequence[Tempered],
    records: Any,
    draws: int,
    key: jax.Array,
    *,
    radius: float | None = None,
    steps: int | None = None,
) -> list[Any]:
    """Independent draws from many tempered posteriors of one target: one compiled program, one batch of chains.

    Args:
        posteriors: all with a prior of their own, or none.
        records: pytree, leaves (N, ...).
        draws: from each.
        key: not secret.
        radius: of the ball they are all cut to, or None.
        steps: transitions of each chain; None for 60. On logistic posteriors in 109 dimensions, 10 and 200 agreed to
            the error of 64 draws.

    Returns:
        One pytree per posterior, leaves (draws, ...) float32.

    Raises:
        ValueError: no posterior, or some with a prior of their own and some without.
        DrawError: a draw that is not finite.
    """
    if len({one.new_prior_precision is None for one in posteriors}) != 1:
        raise InputError("posteriors: at least one is needed, and all of them with a prior_precision, or none")
    start, dynamics = jax.random.split(key)
    bound = [one.bind(record_shapes(records)) for one in posteriors]
    states = run_chains(bound, records, lengths_of(steps), radius=radius, draws=draws, keys=(start, dynamics))
    return [jax.tree.map(lambda leaf: leaf[:, 0], tree) for tree in states]


def nuts_posterior(
    target: Target, records: Any, draws: int, key: jax.Array, *, chains: int = 4, warmup: int = 200, thin: int = 1
) -> Any:
    """The posterior itself, by long chains, as a reference.

    Args:
        target: the model.
        records: pytree, leaves (N, ...).
        draws: kept from each chain.
        key: not secret.
        chains: independent.
        warmup: transitions before the first draw.
        thin: transitions from one draw to the next.

    Returns:
        Pytree, leaves (chains, draws, ...) float32.

    Raises:
        DrawError: a draw that is not finite.
    """
    start, dynamics = jax.random.split(key)
    posterior = Tempered(target, 1.0).bind(record_shapes(records))
    lengths = Lengths(warmup, thin, draws)
    return run_chains([posterior], records, lengths, radius=None, draws=chains, keys=(start, dynamics))[0]
