"""A target from plain functions.

    target = Custom(init=lambda key: jnp.zeros(3), log_prior=..., log_likelihood=..., predict=...)

Per-record gradients come from ``jax.grad`` of ``log_likelihood``, which sees one record at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import jax
from annotated_types import Ge

from dpmcmc.errors import InputError, check_fields
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, TargetOffers


@dataclass(frozen=True, repr=False)
class Custom(TargetOffers):
    """Functions as a Target; two of them are equal where their functions are the same objects.

    Args:
        init: key -> params, a pytree of float32 that does not depend on records.
        log_prior: params -> log prior density up to a constant, ().
        log_likelihood: (params, ONE record) -> log-likelihood, ().
        predict: (params, x (n, ...)) -> probabilities or means, leading axis n; None where there is none.
        num_classes: K of a classifier, so that ``predict`` is read as probabilities: P(y = 1), (n,), or (n, K).
        gradient_bound: PUBLIC bound on one record's gradient norm; None where none is known. You vouch for this and for
            the facts below, and a guarantee that rests on them says so.
        loss_bounds: radius R -> (largest ``|log-likelihood|`` of a record, largest difference of two records' at the
            same parameters) on ‖params‖ <= R.
        log_concave: whether each record's likelihood is log-concave in the parameters.
        smoothness: largest curvature of one record's loss in the parameters.
        prior_precision: curvature that the prior gives every direction, or less.
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
    predict: Callable[[PyTree, jax.Array], jax.Array] | None = None
    num_classes: Annotated[int, Ge(2)] | None = field(default=None, kw_only=True)
    gradient_bound: Positive | None = field(default=None, kw_only=True)
    loss_bounds: Callable[[float], tuple[float, float]] | None = field(default=None, kw_only=True)
    log_concave: bool = field(default=False, kw_only=True)
    smoothness: Positive | None = field(default=None, kw_only=True)
    prior_precision: Positive | None = field(default=None, kw_only=True)
    check_records: Callable[[PyTree], None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name, function, signature in (
            ("init", self.init, "(key) -> params"),
            ("log_prior", self.log_prior, "(params) -> number"),
            ("log_likelihood", self.log_likelihood, "(params, record) -> number"),
        ):
            if not callable(function):
                raise InputError(f"{name} must be a function {signature}, got {function!r}")
        for name, optional in (
            ("predict", self.predict),
            ("check_records", self.check_records),
            ("loss_bounds", self.loss_bounds),
        ):
            if optional is not None and not callable(optional):
                raise InputError(f"{name} must be a function or None, got {optional!r}")
        check_fields(self)

    def __repr__(self) -> str:
        # No addresses, so that the same plan prints the same text twice.
        functions = (
            self.init,
            self.log_prior,
            self.log_likelihood,
            self.predict,
            self.check_records,
        )
        return f"Custom({', '.join(_name(f) for f in functions if f is not None)})"


def _name(function: object) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
