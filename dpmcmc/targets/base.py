"""What a target is: a prior, the log-likelihood of ONE record, and a few public facts.

The protocol is small on purpose. ``init``, ``log_prior``, ``log_likelihood`` and ``predict`` are enough; the
query takes per-record gradients by ``vmap`` and clips them. A generalised linear model may add
``clipped_gradient_sum``, which has closed-form norms.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import jax


@runtime_checkable
class Target(Protocol):
    """A Bayesian model whose records are conditionally independent given the parameters."""

    @property
    def gradient_bound(self) -> float | None:
        """Public bound L on one record's gradient norm, or None where none is known."""

    def init(self, key: jax.Array) -> Any:
        """A starting point, a pytree of float32 that does not depend on records."""

    def log_prior(self, params: Any) -> jax.Array:
        """Log prior density up to a constant, ()."""

    def log_likelihood(self, params: Any, record: Any) -> jax.Array:
        """Log-likelihood of one record (a pytree without the leading axis), ()."""

    def predict(self, params: Any, x: jax.Array) -> jax.Array:
        """Prediction for rows x (n, d): class probabilities or means."""


def bind(target: Any, record_shapes: Any) -> Any:
    """The target with its shapes known.

    Args:
        target: a Target; one whose parameters depend on the record's shape has a ``bind`` method.
        record_shapes: pytree of ``jax.ShapeDtypeStruct`` of ONE record.

    Returns:
        The same target, or what its ``bind`` returns.
    """
    method = getattr(target, "bind", None)
    return target if method is None else method(record_shapes)
