"""Models of one's own, as a config names them: ``target: {name: experiments.models:digits_network, hidden: 32}``."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from dpmcmc.targets import from_flax, from_numpyro


class Network(nn.Module):
    """One hidden layer of tanh units; rows of norm 1 are scaled up, so that units leave their linear range."""

    hidden: int
    classes: int
    scale: float = 8.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(n, d) rows to (n, classes) logits."""
        return nn.Dense(self.classes)(jnp.tanh(nn.Dense(self.hidden)(self.scale * x)))


def digits_network(hidden: int = 32, prior_scale: float = 1.0):  # type: ignore[no-untyped-def]
    """Ten classes of handwritten digits."""
    return from_flax(Network(hidden, 10), likelihood="categorical", prior_scale=prior_scale)


def poisson_model(x: jax.Array, y: jax.Array | None = None) -> None:
    """Counts with a log-linear mean: y ~ Poisson(exp(scale · x·w)), where scale > 0 is unknown as well."""
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(scale * (x @ w))), obs=y)


def poisson_regression():  # type: ignore[no-untyped-def]
    """:func:`poisson_model` as a target."""
    return from_numpyro(poisson_model)
