r"""A long full-batch run of our own SGNHT, without privacy of its own, on a tempered posterior.

Its numbers come from public facts: with M = N·(smoothness of a record) + (prior precision), the step η is the smaller
of 0.05/M and d·a²/16, where the thermostat's own fluctuation √(η/d) stays below a/4, and the run lasts for 40
relaxation times a/(η·prior precision), within limits. A draw is the last state of an independent chain; on a ball,
four chains are run for each, again where too few end in it, and those that do are the draws: rejection.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.mechanisms.engines.errors import DrawError
from dpmcmc.privacy.accounting.events import UnsupportedCombination
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.targets.tempered import Tempered

EXACT = False
_FRICTION = 0.2
_RELAXATIONS = 40.0
_FEWEST, _MOST = 4_000, 200_000
#: On a ball: chains for each draw, at least so many, and how often they are run.
_CHAINS_PER_DRAW, _FEWEST_CHAINS = 4, 16
_MOST_RUNS = 8


def check(target: Any, radius: float | None) -> None:
    """Raise UnsupportedCombination where no public curvature says how long a step may be."""
    for fact in ("smoothness", "prior_precision"):
        if getattr(target, fact, None) is None:
            raise UnsupportedCombination(
                f"engine sgnht takes its step size from a public {fact}, and {type(target).__name__} has none; declare "
                "a bound on the rows (row_bound), or use nuts."
            )


def draw(
    target: Tempered, records: Any, *, radius: float | None, draws: int, steps: int | None, streams: Streams
) -> Any:
    """Pytree, leaves (draws, ...) float32.

    Args:
        target: bound, with ``smoothness`` and ``prior_precision``.
        records: pytree, leaves (N, ...).
        radius: of the ball, or None.
        draws: how many, one chain each.
        steps: of each chain; None for the number above.
        streams: of which ``dynamics`` seeds the run.

    Raises:
        DrawError: a chain diverged, or was never seen in the ball.
    """
    from dpmcmc.engine.blocks import DivergedError
    from dpmcmc.engine.life import sample
    from dpmcmc.planning.plan import plan
    from dpmcmc.samplers import SGNHT

    count = len(jax.tree.leaves(records)[0])
    size = ravel_pytree(target.init(jax.random.key(0)))[0].size
    assert target.smoothness is not None
    assert target.prior_precision is not None
    eta = min(0.05 / (count * target.smoothness + target.prior_precision), size * _FRICTION**2 / 16)
    if steps is None:
        steps = int(np.clip(_RELAXATIONS * _FRICTION / (eta * target.prior_precision), _FEWEST, _MOST))
    chains = draws if radius is None else max(_FEWEST_CHAINS, _CHAINS_PER_DRAW * draws)
    run = plan(
        target,
        num_records=count,
        sampler=SGNHT(step_size=count * eta, friction=_FRICTION),
        steps=steps,
        chains=chains,
        burn_in=steps - 1,
    )
    limit = math.inf if radius is None else radius
    norms: Any = jax.vmap(lambda params: jax.numpy.linalg.norm(ravel_pytree(params)[0]))
    found: list[Any] = []
    for again in range(_MOST_RUNS):
        try:
            ends = sample(run, records, key=jax.random.fold_in(streams.dynamics, again)).positions
        except DivergedError:
            raise DrawError("engine: the SGNHT run diverged; use nuts. Nothing was released") from None
        ends = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], ends)
        inside = np.asarray(norms(ends)) <= limit
        found.append(jax.tree.map(lambda leaf, inside=inside: leaf[inside], ends))
        together = jax.tree.map(lambda *leaves: np.concatenate(leaves)[:draws], *found)
        if len(jax.tree.leaves(together)[0]) == draws:
            return together
    raise DrawError(
        f"radius: of {_MOST_RUNS * chains} SGNHT chains fewer than {draws} ended within {radius:g}; use nuts, which "
        "runs inside. Nothing was released"
    )
