"""Models to which a record of zeros adds up to C, and records of people of whom some are absent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

import dpmcmc
from dpmcmc.data import by_owner
from dpmcmc.targets import Custom, from_flax, from_numpyro

N, D = 12, 2


def with_intercept(x: Any, y: Any = None) -> None:
    """A NumPyro model with a site that every record meets."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + x @ w), obs=y)


#: Models to which a record of zeros adds up to C.
CONSTANT = {
    "network": from_flax(nn.Dense(2), likelihood="categorical"),
    "site": from_numpyro(with_intercept),
    "custom": Custom(
        lambda key: jnp.zeros(()), lambda p: -0.5 * p**2, lambda p, record: -0.5 * (record["y"] + 9.0 - p) ** 2
    ),
}


def rows() -> dict[str, np.ndarray]:
    """Rows of one person each, and all others opposite to the last."""
    x = np.tile(np.array([0.5, -0.5], np.float32), (N, 1))
    return {"x": x, "y": (np.arange(N) == N - 1).astype(np.int32)}


def people(absent: Sequence[int] = ()) -> dict[str, np.ndarray]:
    """The same rows, of owners with at most one; those of some owners are left out."""
    here = ~np.isin(np.arange(N), absent)
    kept = {name: leaf[here] for name, leaf in rows().items()}
    return by_owner(kept, np.arange(N)[here], num_owners=N, records_per_owner=1)


def chain(target: Any) -> dpmcmc.Plan:
    """A short full-batch run under add_remove, with a clip that binds."""
    return dpmcmc.plan(
        target,
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=0.1),
        steps=2,
        privacy=dpmcmc.Privacy(epsilon=5.0, delta=1e-3, clip=0.1, adjacency="add_remove"),
    )
