r"""Softmax regression on frozen features: the last layer of a network whose other layers are public.

    p(y = k | x, θ) = softmax(φ(x)·θ)_k,     φ(x) brought within ‖φ‖ <= row_bound

φ holds no parameter and sees one record at a time, so data sets are neighbours after it exactly where they were before
it. φ must be made of public things: fixed filters, a network with a public seed, weights learnt on public data. Or its
weights were released with their cost; the guarantee of both is ``first.guarantee.compose(second.guarantee)``.

A run maps every record once (:func:`on_rows`), and then is one of a softmax regression on rows. The target itself
takes records as they are, wherever it is evaluated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.query.exact_sums import Clip, FixedPoint, materialised
from dpmcmc.storage.pytree import STATIC, PyTree
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets.base import Positive, Target, TargetError, shared_by_equal_targets
from dpmcmc.targets.glm import SoftmaxRegression

#: Float32 rounds the norm of a row that was brought to its bound; this much is left for it.
_MARGIN = 1e-5
#: Rows that pass through a network at a time before a run.
_AT_ONCE = 1024


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class LastLayer(SoftmaxRegression):
    """Softmax regression on features that do not learn.

    Records are ``{"x": what the features take, "y": ()}`` with y in 0..K−1.

    Args:
        features: rows (n, ...) to features (n, p), a pure function that JAX can trace: an NNX module, or
            ``functools.partial(module.apply, variables)`` of a Linen one.
        prior_scale, num_classes: of the softmax regression.
        num_features: p, needed for a plan with a metric and for a mechanism; else taken from the records' shapes.
        row_bound: b; features of a longer norm are scaled to it, and those that are not finite become zero.

    Raises:
        ValueError: features that cannot be called; otherwise as :class:`SoftmaxRegression`.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import LastLayer
        >>> target = LastLayer(features=jnp.tanh, num_classes=3, num_features=5)
        >>> target.predict(jnp.zeros((5, 3)), jnp.ones((2, 5))).shape
        (2, 3)
    """

    #: Features of zeros may be constants.
    zeros_are_absent = False
    row_bound: Positive = dataclasses.field(default=1.0, kw_only=True, metadata=STATIC)
    features: Callable[[jax.Array], jax.Array] = dataclasses.field(kw_only=True, repr=False, metadata=STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.features):
            raise InputError(
                f"features: must be a function of rows, got {type(self.features).__name__}",
                "features",
            )
        if not isinstance(self.features, _Frozen):
            object.__setattr__(self, "features", _Frozen(self.features))

    @property
    def head(self) -> SoftmaxRegression:
        """The same model of rows that are features already."""
        return SoftmaxRegression(
            self.prior_scale,
            self.num_classes,
            num_features=self.num_features,
            row_bound=self.row_bound,
            weight_scale=self.weight_scale,
        )

    def bind(self, record_shapes: PyTree) -> LastLayer:
        """Fix ``num_features`` from one record's shapes.

        Raises:
            TargetError: features that fail on such a record, or are not as many as declared.
        """
        x = record_shapes["x"]
        try:
            found = jax.eval_shape(self._features, jax.ShapeDtypeStruct(x.shape, x.dtype))
        except Exception as error:  # a user's function may raise anything
            reason = " ".join(str(error).split())[:200]
            raise TargetError(
                f"features fail on a row of shape {tuple(x.shape)} ({type(error).__name__}: {reason})"
            ) from error
        if self.num_features not in (None, found.shape[0]):
            raise TargetError(f"target has num_features {self.num_features}, and features give {found.shape[0]}")
        return dataclasses.replace(self, num_features=found.shape[0], num_classes=self.classes)

    def rows(self, x: np.ndarray | jax.Array) -> np.ndarray:
        """Return the features of records x (N, ...), (N, p) float32.

        Each is computed by itself, so that its rounding depends on no other record and not on its place. One program
        serves every number of records.
        """
        made = _rows_program(self)
        last = np.arange(_AT_ONCE)
        found = [np.zeros((0, *jax.eval_shape(made, _some(x)).shape[1:]), np.float32)]
        for start in range(0, len(x), _AT_ONCE):
            at = np.minimum(start + last, len(x) - 1)
            found.append(np.asarray(made(np.asarray(x[at])))[: len(x) - start])
        return np.concatenate(found)

    def predictor(self, params: jax.Array, record: PyTree) -> jax.Array:
        """φ(x)·θ of one record, (K,)."""
        return super().predictor(params, self._on_row(record))

    def log_likelihood(self, params: jax.Array, record: PyTree) -> jax.Array:
        """log p_y."""
        return super().log_likelihood(params, self._on_row(record))

    def prepared(self, records: PyTree) -> PyTree:
        """Records with features in the place of x, and the squared norm of each."""
        # Blocks of rows bound what the hidden layers of a network take. A norm and the row that it bounds are of one
        # computation, also where rows are prepared within a step.
        rows = materialised(jax.lax.map(self._features, jnp.asarray(records["x"]), batch_size=_AT_ONCE))
        return super().prepared({**records, "x": rows})

    def clipped_gradient_sum(
        self,
        params: jax.Array,
        batch: PyTree,
        mask: jax.Array,
        clip: Clip,
        bits: int = 21,
        label_blind: bool = False,
    ) -> FixedPoint:
        """Σ clip(w·φ(x) ⊗ (p − e_y)) over unmasked rows, as :meth:`SoftmaxRegression.clipped_gradient_sum`."""
        if (
            "x_squares" not in batch
        ):  # features that are computed here are held by the sum, which then takes their norms
            batch = {**batch, "x": jax.vmap(self._features)(batch["x"])}
        return super().clipped_gradient_sum(params, batch, mask, clip, bits, label_blind)

    def predict(self, params: jax.Array, x: jax.Array) -> jax.Array:
        """P(y = k | x, θ), (n, K)."""
        return super().predict(params, self._each(x))

    def _on_row(self, record: PyTree) -> PyTree:
        return {**record, "x": self._features(record["x"])}

    def _each(self, x: jax.Array) -> jax.Array:
        return jax.lax.map(self._features, jnp.asarray(x))

    def _features(self, row: jax.Array) -> jax.Array:
        """Return the features of one row, (p,), within the bound."""
        found = self.features(jnp.asarray(row)[None]).reshape(-1).astype(jnp.float32)
        largest = jnp.max(jnp.abs(found), initial=0.0)
        # Divided first, so that no square overflows; the norm of what is left is 1 at least.
        unit = found / jnp.where(largest > 0, largest, 1.0)
        length = jnp.minimum(
            largest,
            self.row_bound * (1 - _MARGIN) / jnp.maximum(jnp.linalg.norm(unit), 1.0),
        )
        return jnp.where(largest < jnp.inf, unit * length, 0.0)


def _some(x: np.ndarray | jax.Array) -> jax.ShapeDtypeStruct:
    """Return the shape and type of the records that pass through at once."""
    return jax.ShapeDtypeStruct((_AT_ONCE, *x.shape[1:]), x.dtype)


@shared_by_equal_targets(maxsize=8)
def _rows_program(target: LastLayer) -> Callable[[np.ndarray], jax.Array]:
    """Return the compiled features of records."""
    return jax.jit(target._each)


@dataclass(frozen=True, eq=False)
class _Frozen:
    """A feature map, equal to itself alone: modules with other weights may be equal."""

    call: Callable[[jax.Array], jax.Array]

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.call(x)


def on_rows(target: Target, records: PyTree) -> tuple[Target, PyTree]:
    """Return (target, records) with features computed once and for all; others, and records on disk, as they are."""
    if not isinstance(target, LastLayer) or on_disk(records):
        return target, records
    return target.head, {**records, "x": target.rows(records["x"])}
