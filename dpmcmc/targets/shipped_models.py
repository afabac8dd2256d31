"""Models that shipped configs name, written as you would write your own: a NumPyro model, two Flax networks and a
recommender.

A config names one as ``target: {name: dpmcmc.targets.shipped_models:digits_network, hidden: 32}``. The return
annotation says that a function makes a target; a config calls no function without it. Nothing else imports this file,
which loads Flax and NumPyro.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from annotated_types import Ge
from jax.scipy.linalg import cho_solve, solve_triangular

from dpmcmc.errors import check_fields
from dpmcmc.targets.base import Positive, Target
from dpmcmc.targets.flax import from_flax
from dpmcmc.targets.last_layer import LastLayer
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


class EdgeFeatures(nn.Module):
    """8x8 images to features of norm 1: histograms of edge directions (Dalal and Triggs 2005); nothing is learnt.

    Edges in eight directions are averaged about a grid of ``places`` by ``places`` points, with normal weights. Each
    histogram is scaled to norm 1, its root is taken, and an image's features are centred and scaled to norm 1.
    """

    places: int = 4
    width: float = 1.2
    directions: int = 8

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(n, 65) rows of pixels and intercept to (n, places²·directions)."""
        edges = edges_of(x, self.directions)
        away = (jnp.arange(8.0)[:, None] - jnp.linspace(0.5, 6.5, self.places)) / self.width
        near = jnp.exp(-0.5 * jnp.square(away))
        histograms = jnp.einsum("nijd,ia,jb->nabd", edges, near, near)
        histograms /= jnp.sqrt(jnp.sum(jnp.square(histograms), axis=-1, keepdims=True) + 0.02)
        features = jnp.sqrt(histograms).reshape(x.shape[0], -1)
        features -= features.mean(axis=1, keepdims=True)
        return features / jnp.sqrt(jnp.sum(jnp.square(features), axis=1, keepdims=True) + 1e-6)


def edge_features(x: jax.Array) -> jax.Array:
    """Return :class:`EdgeFeatures` of images (n, 64 or more), (n, 128)."""
    return jnp.asarray(EdgeFeatures().apply({}, x))


def digits_last_layer(prior_scale: float = 1.0) -> LastLayer:
    """Ten classes of handwritten digits, from features that are made from no record."""
    return LastLayer(features=edge_features, prior_scale=prior_scale, num_classes=10, num_features=128)


def poisson_model(x: jax.Array, y: jax.Array | None = None) -> None:
    """Counts with a log-linear mean: y ~ Poisson(exp(scale · x·w)), where scale > 0 is unknown as well."""
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 0.5))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(scale * (x @ w))), obs=y)


def poisson_regression() -> Target:
    """:func:`poisson_model` as a target."""
    return from_numpyro(poisson_model)


@dataclass(frozen=True)
class Recommender:
    """Ratings of one user: r ~ N(0, VVᵀ + noise_scale² I) on the items that the user rated.

    V, (items, rank), is learnt; each user's own vector ~ N(0, I) is integrated out, so a record is a user with all of
    their ratings. Integrals and inverses are of size rank (Woodbury).

    Records are ``{"x": (3·items,), "y": ()}``: the ratings that are shown (0 elsewhere), 1 where one is shown, 1 at the
    one further item that the user rated, whose rating is y. ``predict`` completes y from V and x alone.

    Args:
        items: number of items.
        rank: length of a user's vector.
        noise_scale: standard deviation of a rating about what V and the user's vector say, a public constant.
        prior_scale: prior standard deviation of each entry of V.
    """

    items: Annotated[int, Ge(1)]
    rank: Annotated[int, Ge(1)] = 3
    noise_scale: Positive = 0.25
    prior_scale: Positive = 0.5

    gradient_bound = None

    def __post_init__(self) -> None:
        check_fields(self)

    def init(self, key: jax.Array) -> jax.Array:
        """Return random directions: V = 0 is a stationary point, which no gradient leaves."""
        start: jax.Array = 0.6 * self.prior_scale * jax.random.normal(key, (self.items, self.rank))
        return start

    def log_prior(self, v: jax.Array) -> jax.Array:
        """Log density up to a constant, ()."""
        return -0.5 * jnp.sum(jnp.square(v / self.prior_scale))

    def log_likelihood(self, v: jax.Array, record: dict[str, jax.Array]) -> jax.Array:
        """log N(r; 0, VVᵀ + noise_scale² I) of all ratings of a user, ()."""
        shown, mask, asked = self._parts(record["x"])
        ratings = shown + asked * record["y"]
        root, moment = self._reduced(v, mask + asked, ratings)
        explained = jnp.sum(jnp.square(solve_triangular(root, moment, lower=True)))
        count = jnp.sum(mask + asked)
        variance = self.noise_scale**2
        log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(root))) + (count - self.rank) * jnp.log(variance)
        squares = (jnp.sum(jnp.square(ratings)) - explained) / variance
        return -0.5 * (squares + log_determinant + count * jnp.log(2 * jnp.pi))

    def predict(self, v: jax.Array, x: jax.Array) -> jax.Array:
        """Mean of the asked rating given those shown, (n,) of rows (n, 3·items)."""
        return jax.vmap(self._complete, (None, 0))(v, x)

    def _complete(self, v: jax.Array, row: jax.Array) -> jax.Array:
        shown, mask, asked = self._parts(row)
        root, moment = self._reduced(v, mask, shown)
        return (asked @ v) @ cho_solve((root, True), moment)

    def _parts(self, row: jax.Array) -> jax.Array:
        return row.reshape(3, self.items)

    def _reduced(self, v: jax.Array, rated: jax.Array, ratings: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the Cholesky factor of noise_scale² I + VᵀV, V on rated items, and Vᵀr."""
        factors = rated[:, None] * v
        inner = self.noise_scale**2 * jnp.eye(self.rank) + factors.T @ factors
        return jnp.linalg.cholesky(inner), factors.T @ ratings
