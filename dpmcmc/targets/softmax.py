"""Bayesian softmax (multinomial logistic) regression.

    θ_jk ~ N(0, prior_scale²),   P(y = k | x, θ) = p_k = exp(x·θ_k) / Σ_l exp(x·θ_l),   y in 0..K−1

One record's gradient is x ⊗ (p − e_y), so its norm is ‖x‖·‖p − e_y‖ and ‖p − e_y‖² <= 2(1 − p_y)²: with rows of norm
at most R the gradient bound is L = √2·R. All K columns are free; the prior decides between the θ that differ by a
constant across classes.
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

from dpmcmc.errors import InputError
from dpmcmc.privacy.query import outer_products
from dpmcmc.privacy.query.exact_sums import Clip, FixedPoint, as_float
from dpmcmc.privacy.query.label_blind import label_blind_weight
from dpmcmc.privacy.query.outer_products import Outer, squared_norm
from dpmcmc.storage.pytree import STATIC, PyTree
from dpmcmc.targets.base import require_classes
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.labels import check_labels

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Num


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
