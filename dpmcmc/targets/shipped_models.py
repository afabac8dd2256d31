"""Models that shipped configs name, written as you would write your own: a NumPyro model and a Flax network.

A config names one as ``target: {name: dpmcmc.targets.shipped_models:digits_network, hidden: 32}``. The return
annotation says that a function makes a target; a config calls no function without it. Nothing else imports this file,
which loads Flax and NumPyro.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from dpmcmc.targets.base import Target
from dpmcmc.targets.flax import from_flax
from dpmcmc.targets.numpyro import from_numpyro


def edges_of(x: jax.Array, directions: int) -> jax.Array:
    """Return how strong the edges of 8x8 images (n, 64 or more) are in each direction, (n, 8, 8, directions)."""
    image = jnp.pad(x[:, :64].reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)), mode="edge")
    across = image[:, 1:-1, 2:] - image[:, 1:-1, :-2]
    down = image[:, 2:, 1:-1] - image[:, :-2, 1:-1]
    angle = 2 * jnp.pi * jnp.arange(directions, dtype=jnp.float32) / directions
    return jax.nn.relu(across[..., None] * jnp.cos(angle) + down[..., None] * jnp.sin(angle))


class EdgeNetwork(nn.Module):
    """8x8 images to ten logits: fixed edge features, then one hidden layer of tanh units.

    Noise is added to every weight that learns, so what need not be learnt is better fixed (Tramèr and Boneh 2021): the
    first layer takes differences of neighbouring pixels in eight directions, pools them, and scales each image's
    features to norm ``scale``. All of it is constant, and treats images one by one.
    """

    hidden: int
    scale: float = 4.0
    directions: int = 8

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(n, 65) rows of pixels and intercept to (n, 10) logits."""
        features = nn.avg_pool(edges_of(x, self.directions), (3, 3), (2, 2), padding="SAME").reshape(x.shape[0], -1)
        features = features - features.mean(axis=1, keepdims=True)
        norm = jnp.sqrt(jnp.sum(jnp.square(features), axis=1, keepdims=True) + 1e-6)
        return nn.Dense(10)(jnp.tanh(nn.Dense(self.hidden)(self.scale * features / norm)))


def digits_network(hidden: int = 64, prior_scale: float = 1.0) -> Target:
    """Ten classes of handwritten digits."""
    return from_flax(EdgeNetwork(hidden), likelihood="categorical", prior_scale=prior_scale)


def poisson_model(x: jax.Array, y: jax.Array | None = None) -> None:
    """Counts with a log-linear mean: y ~ Poisson(exp(scale · x·w)), where scale > 0 is unknown as well."""
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(scale * (x @ w))), obs=y)


def poisson_regression() -> Target:
    """:func:`poisson_model` as a target."""
    return from_numpyro(poisson_model)
