r"""Ordinal regression: ordered levels with proportional odds (McCullagh 1980).

    P(y > k | x, θ) = σ(x·β + t_k),   k = 0 … K − 2,   t_0 = 0,   θ = (β, τ),   t_k = s·τ_k,   θ ~ N(0, prior_scale² I)

s is half the rows' bound, a public constant. Thresholds fall, 0 > t_1 > t_2 …: where they do not, a level's probability
is taken for :data:`LEAST`.

**Questions.** A record answers K − 1 questions, whether y > k, each a logistic regression of the row (x, s·e_k). At the
parameter that made y all of their scores have mean zero, so a noise-aware release (``mechanisms/noise_aware/``) sums
them as the rows of one owner. They depend on each other, so only a sandwich variance, which is of a record's summed
scores, is right (Varin, Reid and Firth 2011).
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

from dpmcmc.data.owners import MASK
from dpmcmc.data.structure import THRESHOLD
from dpmcmc.errors import InputError
from dpmcmc.storage.pytree import STATIC, PyTree
from dpmcmc.targets.base import require_bound, require_classes
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.labels import check_labels
from dpmcmc.targets.logistic import LogisticRegression

if TYPE_CHECKING:
    from jaxtyping import Float, Num

#: Least probability of a level.
LEAST = 1e-6


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class OrdinalRegression(GeneralisedLinear):
    """Ordinal logistic regression with a Gaussian prior on every coefficient and threshold.

    Records are ``{"x": (d,), "y": ()}`` with y in 0..K−1, in order. The intercept, a constant column, is that of y > 0.

    Args:
        prior_scale: prior standard deviation of each coefficient.
        num_classes: K, a public constant, never counted in the records.
        num_features: d; None until the data's shape is known.
        row_bound: public bound on ‖x‖, which the scale of thresholds follows.

    Raises:
        ValueError: prior_scale not positive, or fewer than three levels.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import OrdinalRegression
        >>> target = OrdinalRegression(num_classes=3, num_features=2, row_bound=1.0)
        >>> target.predict(jnp.array([0.0, 0.0, -2.0]), jnp.ones((5, 2))).shape
        (5, 3)
    """

    num_classes: Annotated[int, Ge(3)] | None = dataclasses.field(default=None, metadata=STATIC)

    zeros_are_absent = False
    log_concave = False

    @property
    def curvature_bound(self) -> float:
        """Infinite, since none is derived."""
        return math.inf

    def bind(self, record_shapes: PyTree) -> Self:
        """Fix ``num_features`` from one record's shapes; ``num_classes`` is no shape, and must be known."""
        return dataclasses.replace(super().bind(record_shapes), num_classes=self.classes)

    def check_records(self, records: PyTree) -> None:
        """Raise ValueError unless every label is in 0..K−1, and offsets and weights are within their bounds."""
        super().check_records(records)
        check_labels(records["y"], self.classes, "ordinal_regression")

    def log_likelihood(self, params: Float[jax.Array, " p"], record: PyTree) -> Float[jax.Array, ""]:
        """log p_y."""
        predictor = self.predictor(params[: record["x"].shape[0]], record)
        chances = self._chances(predictor[None], params)[0]
        return self.weighted(jnp.log(chances[record["y"].astype(jnp.int32)]), record)

    def predict(
        self,
        params: Float[jax.Array, " p"],
        x: Num[jax.Array, "n d"],
        offset: Num[jax.Array, " n"] | None = None,
    ) -> Float[jax.Array, "n k"]:
        """P(y = k | x, θ), (n, K); ``offset`` (n,) where the target has an ``offset_bound``."""
        predictor = self.with_offset(x @ params[: x.shape[1]], offset)
        chances = self._chances(predictor, params)
        return chances / chances.sum(axis=1, keepdims=True)

    def _chances(self, predictor: jax.Array, params: jax.Array) -> jax.Array:
        """Return the probability of each level, (n, K), at least :data:`LEAST`."""
        thresholds = jnp.append(0.0, self.threshold_scale * params[-(self.classes - 2) :])
        above = jax.nn.sigmoid(predictor[:, None] + thresholds)
        ones = jnp.ones((len(above), 1))
        return jnp.maximum(jnp.hstack([ones, above]) - jnp.hstack([above, 0 * ones]), LEAST)

    def _shape(self, features: int) -> tuple[int, ...]:
        return (features + self.classes - 2,)

    @property
    def classes(self) -> int:
        """K.

        Raises:
            TargetError: it was not declared.
        """
        return require_classes(self.num_classes, "OrdinalRegression")

    @property
    def threshold_scale(self) -> float:
        """The number s.

        Raises:
            ValueError: no row_bound.
        """
        return THRESHOLD * require_bound(self.row_bound, "row_bound", "OrdinalRegression")

    @property
    def question(self) -> LogisticRegression:
        """The model of one question.

        Raises:
            ValueError: num_features is not known.
        """
        if self.num_features is None:
            raise InputError(
                "num_features: OrdinalRegression needs it before a plan; give it",
                "num_features",
            )
        return LogisticRegression(
            self.prior_scale,
            num_features=self.num_features + self.classes - 2,
            row_bound=math.hypot(self._needed_row_bound, self.threshold_scale),
            offset_bound=self.offset_bound,
            weight_scale=self.weight_scale,
        )

    def questions(self, records: PyTree) -> dict[str, np.ndarray]:
        """Return each record's K − 1 questions as the rows of one owner: x (N, K − 1, d + K − 2), y (N, K − 1)."""
        x, y = np.asarray(records["x"]), np.asarray(records["y"])
        count, asked = len(x), self.classes - 1
        marks = np.zeros((asked, asked - 1), x.dtype)
        marks[1:] = self.threshold_scale * np.eye(asked - 1)
        rows = np.broadcast_to(x[:, None], (count, asked, x.shape[1]))
        out = {
            "x": np.concatenate([rows, np.broadcast_to(marks, (count, *marks.shape))], axis=2),
            "y": (y[:, None] > np.arange(asked)).astype(np.int32),
            MASK: np.ones((count, asked), bool),
        }
        for leaf in ("offset", "weight"):
            if leaf in records:
                out[leaf] = np.repeat(np.asarray(records[leaf])[:, None], asked, axis=1)
        return out
