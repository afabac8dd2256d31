r"""Upper bounds on the norm of every record's gradient at every step, from checks every few steps.

At a check the gradient is computed. At a step in between, whose position lies D from the check's,

    ‖g(θ')‖ <= ‖g(θ)‖ + L_i D,

L_i the largest curvature of the record's loss; D = 0 at the check itself. For a linear predictor m = x·θ the
residual is what can change, by at most what |m' − m| <= ‖x‖D allows:

* logistic: |σ(m) − y| = σ(s), s = ±m, so at most σ(s + ‖x‖D); never above the bound by L_i = ‖x‖²/4;
  Label-blind weights make the norm min(σ(s)‖x‖, C) for s >= 0 and min(σ(s)‖x‖, C e^s) for s < 0, since
  σ(s)/σ(−s) = e^s; it increases with s too;
* linear: |m − y|/σ² at most (|m − y| + ‖x‖D)/σ², the bound by L_i = ‖x‖²/σ².

Softmax regression has L_i = ‖x‖²/2 (diag(p) − ppᵀ <= 1/2), another target its ``smoothness``. In a public metric F the
gradient is F⁻¹g, and L_i is divided by the smallest singular value of F. A weight only shortens a gradient, so a bound
between checks is that without weights.

*Rounding.* The run computed its margins in float32, and so does this. Each is within 2dU‖x‖‖θ‖ of x·θ, U the unit
roundoff, in whatever order it is summed, so D is enlarged by 2dU(‖θ‖ + ‖θ'‖). The norm of another target is enlarged by
a part in 2^15 of C; that this covers the rounding of two gradients is not proved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.float_excess import KAPPA
from dpmcmc.privacy.query.fixed_point import row_norms
from dpmcmc.privacy.query.label_blind import label_blind_weight
from dpmcmc.privacy.query.metric import PublicMatrix
from dpmcmc.privacy.query.per_record_gradients import PerRecordGradients
from dpmcmc.storage.pytree import PyTree, size_of
from dpmcmc.targets.base import Target, shared_by_equal_targets
from dpmcmc.targets.glm import LinearRegression, LogisticRegression, SoftmaxRegression
from dpmcmc.targets.tempered import Tempered

_UNIT = 2.0**-24
#: Rounding error of a product on an accelerator, whose matrix products may round to 10 bits.
_PRODUCT = 2.0**-10
#: Rounding error of a sigmoid or a difference.
_ELEMENT = 2.0**-21


class Norms(NamedTuple):
    """The functions that bound norms; both functions are jitted and take the records as an argument.

    Attributes:
        check: (positions (J, ...), rows (n, ...)) -> what is kept of each check, (n, J).
        bound: (kept (n, S), rows (n, ...), D (S,)) -> upper bounds on the norms, (n, S).
        rounding: what D is enlarged by, per unit of ‖θ‖ at the check and at the step.
        row_bytes: memory that one record takes in a check.
    """

    check: Callable[[PyTree, PyTree], jax.Array]
    bound: Callable[[jax.Array, PyTree, jax.Array], jax.Array]
    rounding: float
    row_bytes: int


def norms_of(target: Target, metric: PublicMatrix | None, clip: float, every: int, label_blind: bool = False) -> Norms:
    """Return the sharpest bounds known of a target.

    Args:
        target: bound to the records' shapes.
        metric: in which gradients are clipped, or None.
        clip: C.
        every: steps between checks.
        label_blind: whether the run weights gradients before it clips them.

    Raises:
        ValueError: steps without a check, and no bound on the target's curvature.
    """
    return _norms_of(target, metric, clip, every > 1, label_blind)


@shared_by_equal_targets(maxsize=8)
def _norms_of(target: Target, metric: PublicMatrix | None, clip: float, between: bool, label_blind: bool) -> Norms:
    inner, temper = (target.target, target.temper) if isinstance(target, Tempered) else (target, 1.0)
    if isinstance(inner, (LogisticRegression, LinearRegression)):
        return _linear_predictor(inner, temper, metric, clip if label_blind else None)
    rows = PerRecordGradients(target, 1, 1, clip, None, metric=metric, label_blind=label_blind and not between)
    return _any_target(rows, target, inner, temper, between)


def _linear_predictor(
    inner: LogisticRegression | LinearRegression, temper: float, metric: PublicMatrix | None, weighted: float | None
) -> Norms:
    """Bounds of a linear predictor; ``weighted`` is C where weights are label-blind."""
    assert inner.num_features is not None
    variance = inner.noise_scale**2 if isinstance(inner, LinearRegression) else None

    @jax.jit
    def check(positions: PyTree, rows: PyTree) -> jax.Array:
        margin = jnp.matmul(rows["x"], positions.T, precision="highest")
        y = rows["y"][:, None]
        return jnp.where(y > 0, -margin, margin) if variance is None else jnp.abs(margin - y)

    @jax.jit
    def bound(kept: jax.Array, rows: PyTree, moved: jax.Array) -> jax.Array:
        length = row_norms(rows["x"])
        farthest = kept + length[:, None] * moved
        residual = jax.nn.sigmoid(farthest) + _ELEMENT if variance is None else farthest * (1 + _ELEMENT) / variance
        outer = length if metric is None else row_norms(jax.vmap(metric.whiten)(rows["x"]))
        norm = temper * residual * outer[:, None]
        if weighted is None:
            return norm
        longest = temper * (jax.nn.sigmoid(jnp.abs(farthest)) - _ELEMENT) * outer[:, None]
        return norm * label_blind_weight(longest, weighted)

    unit = _UNIT * inner.num_features + (0.0 if jax.default_backend() == "cpu" else _PRODUCT)
    return Norms(check, bound, 2 * unit, 4 * inner.num_features)


def _any_target(rows_of: PerRecordGradients, target: Target, inner: Target, temper: float, between: bool) -> Norms:
    metric, clip = rows_of.metric, rows_of.clip
    assert clip is not None
    softmax = type(inner) is SoftmaxRegression  # a subclass may map its rows first
    smoothness = None if softmax else getattr(target, "smoothness", None)
    if between and not softmax and smoothness is None:
        raise InputError(
            f"every: {type(target).__name__} states no bound on its curvature (smoothness), so nothing is known of a "
            "norm between two checks; use every=1"
        )
    stretch = 1.0 if metric is None else metric.stretch()

    @jax.jit
    def check(positions: PyTree, rows: PyTree) -> jax.Array:
        def at(params: PyTree) -> jax.Array:
            return row_norms(rows_of.scores(params, rows))

        return jax.lax.map(at, positions).T

    @jax.jit
    def bound(kept: jax.Array, rows: PyTree, moved: jax.Array) -> jax.Array:
        curvature: float | jax.Array = smoothness or 0.0
        if softmax:
            curvature = temper * jnp.square(row_norms(rows["x"])) / 2
        drift = jnp.broadcast_to(jnp.asarray(curvature / stretch, jnp.float32), kept.shape[:1])
        return kept + drift[:, None] * moved + KAPPA * clip

    size = size_of(jax.eval_shape(target.init, jax.random.key(0)))
    return Norms(check, bound, 0.0, 8 * size)
