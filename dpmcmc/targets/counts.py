"""Bayesian regression of counts with a log link: Poisson and negative binomial.

    θ ~ N(0, prior_scale² I),   μ = exp(x·θ),   E[y | x] = μ,   Var[y | x] = μ + dispersion·μ²,   y in 0, 1, 2, …

A Poisson regression has the dispersion 0. The negative binomial one is the form NB2 (Cameron and Trivedi 2013): the
number 1/dispersion of failures is known, a public constant. One record's gradient is (μ − y)/(1 + dispersion·μ)·x.
Neither counts nor means have a bound, and so neither have gradients nor curvatures: samplers clip residuals, and the
mechanism ``noise_aware`` bounds scores without bias.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import jax
import jax.numpy as jnp
from annotated_types import Ge
from jax.scipy.special import gammaln

from dpmcmc.storage.pytree import STATIC, PyTree
from dpmcmc.targets.base import Positive
from dpmcmc.targets.labels import check_counts
from dpmcmc.targets.linear_predictor import LinearPredictor

if TYPE_CHECKING:
    from jaxtyping import Float, Num


#: Smallest dispersion of a negative binomial law; below it counts are Poisson's.
LEAST_DISPERSION = 1e-3


class CountRegression(LinearPredictor):
    """Facts that both families share."""

    curvature_bound = math.inf

    def check_records(self, records: PyTree) -> None:
        """Raise ValueError unless every label is a count, and offsets and weights are within their bounds."""
        super().check_records(records)
        check_counts(records["y"], type(self).__name__)

    def mean(self, margin: Float[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """E[y] = exp(m), and no more than the largest count where one is declared."""
        mean = jnp.exp(margin)
        return mean if self.label_bound is None else jnp.minimum(mean, self.label_bound)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class PoissonRegression(CountRegression):
    """Poisson regression with a log link and a Gaussian prior on every coefficient.

    Records are ``{"x": (d,), "y": ()}`` with y in 0, 1, 2, …. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for one-shot mechanisms.
        label_bound: public largest count, which labels were clipped to; no prediction is larger.

    Raises:
        ValueError: prior_scale not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import PoissonRegression
        >>> target = PoissonRegression(num_features=2)
        >>> target.predict(jnp.zeros(2), jnp.ones((3, 2)))
        Array([1., 1., 1.], dtype=float32)
    """

    label_bound: Positive | None = dataclasses.field(default=None, metadata=STATIC)

    def log_density(self, margin: Float[jax.Array, ""], y: Num[jax.Array, ""]) -> Float[jax.Array, ""]:
        """y·m − exp(m) − log y!."""
        return y * margin - jnp.exp(margin) - gammaln(y + 1.0)

    def residual(self, margin: Float[jax.Array, " n"], y: Num[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """exp(m) − y."""
        return jnp.exp(margin) - y


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class NegativeBinomialRegression(CountRegression):
    """Negative binomial regression (NB2) with a log link and a Gaussian prior on every coefficient.

    Records are ``{"x": (d,), "y": ()}`` with y in 0, 1, 2, …. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        dispersion: α of Var[y] = μ + αμ², a public constant, never estimated from the records; below 1e-3 use
            PoissonRegression.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for one-shot mechanisms.
        label_bound: public largest count, which labels were clipped to; no prediction is larger.

    Raises:
        ValueError: prior_scale not positive, or a dispersion below 1e-3.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import NegativeBinomialRegression
        >>> target = NegativeBinomialRegression(dispersion=0.5, num_features=2)
        >>> target.predict(jnp.zeros(2), jnp.ones((3, 2)))
        Array([1., 1., 1.], dtype=float32)
    """

    dispersion: Annotated[float, Ge(LEAST_DISPERSION)] = dataclasses.field(default=1.0, metadata=STATIC)
    label_bound: Positive | None = dataclasses.field(default=None, metadata=STATIC)

    def log_density(self, margin: Float[jax.Array, ""], y: Num[jax.Array, ""]) -> Float[jax.Array, ""]:
        """log Γ(y + r)/(Γ(r) y!) + y log(αμ/(1 + αμ)) − r log(1 + αμ), r = 1/α."""
        size = 1 / self.dispersion
        odds = margin + math.log(self.dispersion)
        choices = gammaln(y + size) - gammaln(size) - gammaln(y + 1.0)
        return choices + y * odds - (y + size) * jax.nn.softplus(odds)

    def residual(self, margin: Float[jax.Array, " n"], y: Num[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """(exp(m) − y)/(1 + α exp(m))."""
        odds = margin + math.log(self.dispersion)
        return jax.nn.sigmoid(odds) / self.dispersion - y * jax.nn.sigmoid(-odds)
