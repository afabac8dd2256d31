"""Families of generalised linear models: linear, logistic and softmax regression, and two regressions of counts.

``linear_predictor.py`` has what they share.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from jax.scipy.special import gammaln

from dpmcmc.errors import InputError
from dpmcmc.privacy.query import outer_products
from dpmcmc.privacy.query.exact_sums import Clip, FixedPoint, as_float
from dpmcmc.privacy.query.outer_products import Outer, squared_norm
from dpmcmc.privacy.query.per_record_gradients import label_blind_weight
from dpmcmc.storage.pytree import STATIC, PyTree
from dpmcmc.targets.base import (
    Positive,
    check_counts,
    check_labels,
    require_bound,
    require_classes,
)
from dpmcmc.targets.linear_predictor import GeneralisedLinear as GeneralisedLinear
from dpmcmc.targets.linear_predictor import LinearPredictor as LinearPredictor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Num


# ----------------------------------------------------------------------------------------------------
# Bayesian linear regression with known noise.
#
#     θ ~ N(0, prior_scale² I),   y = x·θ + N(0, noise_scale²)
#
# One record's gradient is ((x·θ − y)/noise_scale²)·x. The residual has no public bound, so neither has the gradient.
# The posterior is Gaussian (Bishop 2006, eqs. 3.53–3.54):
#
#     Σ⁻¹ = I/prior_scale² + XᵀX/noise_scale²,   mean = Σ Xᵀy/noise_scale²


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class LinearRegression(LinearPredictor):
    """Linear regression with a Gaussian prior on every coefficient and Gaussian noise of known size.

    Records are ``{"x": (d,), "y": ()}``. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        noise_scale: standard deviation of y given x, a public constant.
        label_bound: public bound on ``|y|``, for one-shot mechanisms, which refuse more; no prediction is larger.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for one-shot mechanisms.

    Raises:
        ValueError: a scale that is not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import LinearRegression
        >>> target = LinearRegression(noise_scale=0.5, num_features=2)
        >>> target.predict(jnp.array([1.0, 2.0]), jnp.ones((3, 2)))
        Array([3., 3., 3.], dtype=float32)
    """

    noise_scale: Positive = 1.0
    label_bound: Positive | None = dataclasses.field(default=None, metadata=STATIC)

    def log_density(self, margin: Float[jax.Array, ""], y: Num[jax.Array, ""]) -> Float[jax.Array, ""]:
        """log N(y; m, noise_scale²), normalised."""
        return jax.scipy.stats.norm.logpdf(y, margin, self.noise_scale)

    def residual(self, margin: Float[jax.Array, " n"], y: Num[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """(m − y)/noise_scale²."""
        return (margin - y) / self.noise_scale**2

    def mean(self, margin: Float[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """E[y] = m, within the public bound of labels where one is declared."""
        if self.label_bound is None:
            return margin
        return jnp.clip(margin, -self.label_bound, self.label_bound)

    @property
    def curvature_bound(self) -> float:
        """1/noise_scale²."""
        return 1 / self.noise_scale**2

    def gradient_bound_within(self, radius: float) -> float | None:
        """L on ‖θ‖ <= radius: row_bound·(row_bound·radius + label_bound)/noise_scale²; None without the bounds.

        An offset adds its bound to label_bound, and a weight multiplies all by its scale.
        """
        if self.row_bound is None or self.label_bound is None or not np.isfinite(radius):
            return None
        farthest = self.row_bound * radius + self.label_bound + (self.offset_bound or 0.0)
        return self._strength * self.row_bound * farthest / self.noise_scale**2

    def loss_bounds(self, radius: float) -> tuple[float, float]:
        """(largest ``|log-likelihood|`` of a record, difference between any two records') on ‖θ‖ <= radius.

        Raises:
            ValueError: no row_bound or no label_bound.
        """
        label_bound = require_bound(self.label_bound, "label_bound", type(self).__name__)
        farthest = self._needed_row_bound * radius + label_bound
        worst = (farthest + (self.offset_bound or 0.0)) ** 2 / (2 * self.noise_scale**2)
        constant = 0.5 * np.log(2 * np.pi * self.noise_scale**2)
        largest, difference = self._loss_range(constant, constant + worst)
        return largest, worst if self.weight_scale is None else difference

    def posterior(self, records: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """The exact posterior. Reads every record WITHOUT privacy: for tests and confidential diagnostics.

        Args:
            records: ``{"x": (N, d), "y": (N,)}``, with offsets and weights where the target declares them.

        Returns:
            (mean (d,), covariance (d, d)), float64.
        """
        x = np.asarray(records["x"], np.float64)
        y = np.asarray(records["y"], np.float64)
        if self.offset_bound is not None:
            y = y - np.asarray(records["offset"], np.float64)
        if self.weight_scale is not None:
            weight = self.weight_scale * np.asarray(records["weight"], np.float64)
            root = np.sqrt(weight)
            x, y = x * root[:, None], y * root
        precision = np.eye(x.shape[1]) / self.prior_scale**2 + x.T @ x / self.noise_scale**2
        covariance = np.linalg.inv(precision)
        covariance = (covariance + covariance.T) / 2
        return covariance @ (x.T @ y) / self.noise_scale**2, covariance


# ----------------------------------------------------------------------------------------------------
# Bayesian logistic regression.
#
#     θ ~ N(0, prior_scale² I),   P(y = 1 | x, θ) = σ(x·θ),   y in {0, 1}
#
# One record's gradient is (σ(x·θ) − y)·x, so its norm is |σ(x·θ) − y|·‖x‖ <= ‖x‖: with rows of norm at most 1 the
# gradient bound is L = 1.


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class LogisticRegression(LinearPredictor):
    """Logistic regression with a Gaussian prior on every coefficient.

    Records are ``{"x": (d,), "y": ()}`` with y in {0, 1}. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for ``gradient_bound``.

    Raises:
        ValueError: prior_scale not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(prior_scale=2.0, num_features=2, row_bound=1.0)
        >>> target.gradient_bound
        1.0
        >>> target.predict(jnp.zeros(2), jnp.ones((3, 2)))
        Array([0.5, 0.5, 0.5], dtype=float32)
    """

    num_classes = 2
    #: ``|σ − y| <= 1`` for y in {0, 1}, and σ(1 − σ) <= 1/4.
    residual_bound = 1.0
    curvature_bound = 1 / 4
    bounded_labels = True

    def check_records(self, records: PyTree) -> None:
        """Raise ValueError unless every label is 0 or 1, and offsets and weights are within their bounds."""
        super().check_records(records)
        check_labels(records["y"], 2, "logistic_regression")

    def longest_labels(self, predictor: jax.Array, whitened: bool = False) -> jax.Array:
        """The less likely label, (1, ...): its residual has size max(σ, 1 − σ)."""
        return (predictor < 0).astype(np.int32)[None]

    def log_density(self, margin: Float[jax.Array, ""], y: Num[jax.Array, ""]) -> Float[jax.Array, ""]:
        """y·m − log(1 + e^m)."""
        return y * margin - jax.nn.softplus(margin)

    def residual(self, margin: Float[jax.Array, " n"], y: Num[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """σ(m) − y."""
        return jax.nn.sigmoid(margin) - y

    def mean(self, margin: Float[jax.Array, " n"]) -> Float[jax.Array, " n"]:
        """P(y = 1) = σ(m)."""
        return jax.nn.sigmoid(margin)

    def loss_bounds(self, radius: float) -> tuple[float, float]:
        """(largest loss of a record, difference between any two records' losses) on ‖θ‖ <= radius.

        ``|x·θ + o|`` is at most r R + offset_bound.

        Raises:
            ValueError: no row_bound.
        """
        margin = self._needed_row_bound * radius + (self.offset_bound or 0.0)
        largest, difference = self._loss_range(0.0, float(np.logaddexp(0.0, margin)))
        return largest, margin if self.weight_scale is None else difference


# ----------------------------------------------------------------------------------------------------
# Bayesian softmax (multinomial logistic) regression.
#
#     θ_jk ~ N(0, prior_scale²),   P(y = k | x, θ) = p_k = exp(x·θ_k) / Σ_l exp(x·θ_l),   y in 0..K−1
#
# One record's gradient is x ⊗ (p − e_y), so its norm is ‖x‖·‖p − e_y‖ and ‖p − e_y‖² <= 2(1 − p_y)²: with rows of norm
# at most R the gradient bound is L = √2·R. All K columns are free; the prior decides between the θ that differ by a
# constant across classes.


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class SoftmaxRegression(GeneralisedLinear):
    """Softmax regression with a Gaussian prior on every coefficient.

    Records are ``{"x": (d,), "y": ()}`` with y in 0..K−1. Give the intercept as a constant column.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        num_classes: K, a public constant, never counted in the records; a registered data set brings its own.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, for ``gradient_bound``.

    Raises:
        ValueError: prior_scale not positive, or fewer than two classes.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import SoftmaxRegression
        >>> target = SoftmaxRegression(num_classes=4, num_features=2, row_bound=1.0)
        >>> target.predict(jnp.zeros((2, 4)), jnp.ones((3, 2))).shape
        (3, 4)
    """

    num_classes: Annotated[int, Ge(2)] | None = dataclasses.field(default=None, metadata=STATIC)

    #: ‖p − e_y‖ <= √2, and diag(p) − ppᵀ <= 1/2.
    residual_bound = math.sqrt(2)
    curvature_bound = 1 / 2
    bounded_labels = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offset_bound is not None:
            raise InputError(
                "offset_bound: an offset adds to all classes alike, which changes no probability; leave it out",
                "offset_bound",
            )

    def bind(self, record_shapes: PyTree) -> Self:
        """Fix ``num_features`` from one record's shapes; ``num_classes`` is no shape, and must be known."""
        return dataclasses.replace(super().bind(record_shapes), num_classes=self.classes)

    def check_records(self, records: PyTree) -> None:
        """Raise ValueError unless every label is in 0..K−1, and weights are within their bounds."""
        super().check_records(records)
        check_labels(records["y"], self.classes, "softmax_regression")

    def longest_labels(self, predictor: jax.Array, whitened: bool = False) -> jax.Array:
        """The least likely label of one record, (1,), since ‖p − e_y‖² = ‖p‖² + 1 − 2p_y; whitened, all K."""
        return jnp.arange(self.classes) if whitened else jnp.argmin(predictor)[None]

    def loss_bounds(self, radius: float) -> tuple[float, float]:
        """(largest loss of a record, difference between any two records' losses) on ‖θ‖ <= radius.

        Two logits differ by at most √2·row_bound·radius, and no loss is negative.

        Raises:
            ValueError: no row_bound.
        """
        gap = math.sqrt(2) * self._needed_row_bound * radius
        return self._loss_range(0.0, float(np.logaddexp(0.0, math.log(self.classes - 1) + gap)))

    def log_likelihood(self, params: Float[jax.Array, "d k"], record: PyTree) -> Float[jax.Array, ""]:
        """log p_y."""
        logits = record["x"] @ params
        chosen = jax.nn.one_hot(record["y"].astype(jnp.int32), params.shape[1])
        return self.weighted(chosen @ jax.nn.log_softmax(logits), record)

    def prepared(self, records: PyTree) -> PyTree:
        """Records with ``x_squares`` (N,), the squared norm of each row of x (N, d)."""
        return {**records, "x_squares": squared_norm(jnp.asarray(records["x"]))}

    def clipped_gradient_sum(
        self,
        params: Float[jax.Array, "d k"],
        batch: PyTree,
        mask: Bool[jax.Array, " n"],
        clip: Clip,
        bits: int = 21,
        label_blind: bool = False,
    ) -> FixedPoint:
        """Σ clip(v·s·w·x ⊗ (p − e_y)) over unmasked rows, exactly summed.

        Args:
            params: θ, (d, K).
            batch: ``{"x": (n, d), "y": (n,)}``, or what :meth:`prepared` makes of it.
            mask: (n,) bool.
            clip: C.
            bits: grid exponent; ``result.to_float(clip, bits)`` has shape (d, K).
            label_blind: whether v is ``label_blind_weight`` of ``privacy/query/per_record_gradients.py``; otherwise 1.
        """
        x = as_float(batch["x"])
        squares = batch.get("x_squares")
        chances = jax.nn.softmax(x @ params)
        classes = jnp.arange(params.shape[1])
        residual = chances - (batch["y"][:, None] == classes)
        if self.weight_scale is not None:
            residual *= (self.weight_scale * batch["weight"])[:, None]
        if label_blind:
            unlikely = jnp.argmin(chances, axis=1)  # the label with the longest gradient, as in longest_labels
            squares = squared_norm(x) if squares is None else squares
            longest = jnp.sqrt(squares * squared_norm(chances - (unlikely[:, None] == classes)))
            residual *= label_blind_weight(self.weighted(longest, batch), clip)[:, None]
        (high,), (low,) = outer_products.clipped_sum([Outer(x, residual, squares)], mask, clip, bits)
        return FixedPoint(high, low)

    def predict(self, params: Float[jax.Array, "d k"], x: Num[jax.Array, "n d"]) -> Float[jax.Array, "n k"]:
        """P(y = k | x, θ), (n, K)."""
        return jax.nn.softmax(x @ params)

    def _shape(self, features: int) -> tuple[int, ...]:
        return features, self.classes

    @property
    def classes(self) -> int:
        """K.

        Raises:
            TargetError: it was not declared.
        """
        return require_classes(self.num_classes, "SoftmaxRegression")


# ----------------------------------------------------------------------------------------------------
# Bayesian regression of counts with a log link: Poisson and negative binomial.
#
#     θ ~ N(0, prior_scale² I),   μ = exp(x·θ),   E[y | x] = μ,   Var[y | x] = μ + dispersion·μ²,   y in 0, 1, 2, …
#
# A Poisson regression has the dispersion 0. The negative binomial one is the form NB2 (Cameron and Trivedi 2013): the
# number 1/dispersion of failures is known, a public constant. One record's gradient is (μ − y)/(1 + dispersion·μ)·x.
# Neither counts nor means have a bound, and so neither have gradients nor curvatures: samplers clip residuals, and the
# mechanism ``noise_aware`` bounds scores without bias.


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


__all__ = [
    "LinearRegression",
    "LogisticRegression",
    "NegativeBinomialRegression",
    "PoissonRegression",
    "SoftmaxRegression",
]
