"""Small models of one's own, as a config names them: ``target: tests.own_models:network``."""

import flax.linen as nn
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

from dpmcmc.targets import Custom, Target, from_flax, from_numpyro


class _Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(jnp.tanh(nn.Dense(3)(x)))


def network() -> Target:
    """Two classes."""
    return from_flax(_Network(), likelihood="categorical", prior_scale=1.0)


def _counts(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def counts() -> Target:
    """Log-linear counts."""
    return from_numpyro(_counts)


def line() -> Target:
    """A regression without ``predict``."""
    return Custom(
        lambda key: jnp.zeros(2),
        lambda p: -0.5 * (p @ p),
        lambda p, record: -0.5 * jnp.square(record["y"] - record["x"] @ p),
    )
