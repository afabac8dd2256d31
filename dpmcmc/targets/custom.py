"""A target from plain functions.

    target = Custom(init=lambda key: jnp.zeros(3), log_prior=..., log_likelihood=..., predict=...)

Per-record gradients come from ``jax.grad`` of ``log_likelihood``, which sees one record at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import jax
from annotated_types import Ge

from dpmcmc.errors import InputError, check_fields
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive

_SIGNATURES = {
    "init": "(key) -> params",
    "log_prior": "(params) -> number",
    "log_likelihood": "(params, record) -> number",
}


@dataclass(frozen=True, init=False, repr=False)
class Custom:
    """Functions as a Target; two of them are equal where their functions are the same objects.

    Args:
        init: key -> params, a pytree of float32 that does not depend on records.
        log_prior: params -> log prior density up to a constant, ().
        log_likelihood: (params, ONE record) -> log-likelihood, ().
        predict: (params, x (n, ...)) -> probabilities or means, leading axis n; None where there is none.
        num_classes: K of a classifier, so that ``predict`` is read as probabilities: P(y = 1), (n,), or (n, K).
        gradient_bound: PUBLIC bound on one record's gradient norm, which you vouch for; None where none is known.
        check_records: records -> None, raising ValueError on records the target is not for.

    Raises:
        ValueError: an argument that is not a function, or a bound or number of classes that cannot be.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import Custom
        >>> target = Custom(
        ...     init=lambda key: jnp.zeros(()),
        ...     log_prior=lambda mean: -mean**2 / 2,
        ...     log_likelihood=lambda mean, record: -((record["y"] - mean) ** 2) / 2,
        ... )
        >>> float(target.log_likelihood(jnp.zeros(()), {"y": 2.0}))
        -2.0
    """

    init: Callable[[jax.Array], PyTree]
    log_prior: Callable[[PyTree], jax.Array]
    log_likelihood: Callable[[PyTree, PyTree], jax.Array]
    predictor: Callable[[PyTree, jax.Array], jax.Array] | None
    num_classes: Annotated[int, Ge(2)] | None
    gradient_bound: Positive | None
    check_records: Callable[[PyTree], None] | None

    def __init__(
        self,
        init: Callable[[jax.Array], PyTree],
        log_prior: Callable[[PyTree], jax.Array],
        log_likelihood: Callable[[PyTree, PyTree], jax.Array],
        predict: Callable[[PyTree, jax.Array], jax.Array] | None = None,
        *,
        num_classes: int | None = None,
        gradient_bound: float | None = None,
        check_records: Callable[[PyTree], None] | None = None,
    ) -> None:
        fields = {
            "init": init,
            "log_prior": log_prior,
            "log_likelihood": log_likelihood,
            "predictor": predict,
            "num_classes": num_classes,
            "gradient_bound": gradient_bound,
            "check_records": check_records,
        }
        for name, signature in _SIGNATURES.items():
            if not callable(fields[name]):
                raise InputError(f"{name} must be a function {signature}, got {fields[name]!r}")
        for name, function in (("predict", predict), ("check_records", check_records)):
            if function is not None and not callable(function):
                raise InputError(f"{name} must be a function or None, got {function!r}")
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        check_fields(self)

    @property
    def predict(self) -> Callable[[PyTree, jax.Array], jax.Array]:
        """The function that was given; ``getattr(target, "predict", None)`` is None where none was."""
        if self.predictor is None:
            raise AttributeError("this Custom target has no predict: give Custom(..., predict=f) with f(params, x)")
        return self.predictor

    def __repr__(self) -> str:
        # No addresses, so that the same plan prints the same text twice.
        functions = (self.init, self.log_prior, self.log_likelihood, self.predictor, self.check_records)
        return f"Custom({', '.join(_name(f) for f in functions if f is not None)})"


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
