r"""A target whose records are people: all rows of one owner are one record.

    log p(owner | θ) = Σ over the owner's rows of log p(row | θ)

The query clips the gradient of that SUM to C, samples owners, and N is the number of owners. So whatever a guarantee
says of one record, it says of one owner and all their rows (:func:`dpmcmc.data.by_owner` arranges them). The
posterior is that of the rows: prior and likelihood are the inner target's.

Padding contributes exactly zero, value and gradient, whatever the likelihood makes of it: a padded place is evaluated
at the owner's first row, and an owner without rows at parameters that are not differentiated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from jax.flatten_util import ravel_pytree

from dpmcmc.data.owners import MASK
from dpmcmc.errors import Checked, InputError, check_fields
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.storage.pytree import STATIC, PyTree, rebuilt
from dpmcmc.targets.base import (
    Positive,
    Target,
    TargetError,
    TargetOffers,
    bind,
    target_offers,
)
from dpmcmc.targets.glm import (
    LEAST_DISPERSION,
    GeneralisedLinear,
    LinearRegression,
    NegativeBinomialRegression,
    PoissonRegression,
)

if TYPE_CHECKING:
    from jaxtyping import Float


class _OfInner:
    """An attribute that is the inner target's, or its default."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, outer: Any, owner: type) -> Any:
        return self if outer is None else getattr(target_offers(outer.target), self.name)


def _of_inner() -> Any:
    """Declare an attribute of a class that has the inner ``target``'s value."""
    return _OfInner()


# ----------------------------------------------------------------------------------------------------
# A target whose likelihood is raised to a power.
#
#     log p(x|θ)  →  temper · log p(x|θ),     log π(θ)  →  prior_temper · log π(θ)
#
# One record's gradient is multiplied by ``temper``, and so is everything that bounds it. clip_C(ρg) = ρ clip_{C/ρ}(g),
# so an exact clipped sum of the target at clip C/ρ, in units of its grid (C/ρ)·2^-p, is the tempered one in units of
# C·2^-p: the same integers.


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tempered(TargetOffers):
    """A target at a temper, with its own prior or another one.

    Args:
        target: the model.
        temper: ρ > 0, the power of each record's likelihood.
        prior_temper: > 0, the power of the prior.
        new_prior_precision: m > 0: the prior is N(0, I/m), before its power is taken, in place of the target's own.

    Raises:
        ValueError: a number that is not finite and positive.
    """

    target: Any
    temper: Positive
    prior_temper: Positive = 1.0
    new_prior_precision: Positive | None = None

    predict = _of_inner()
    check_records = _of_inner()
    prepared = _of_inner()
    constrain = _of_inner()
    num_classes = _of_inner()
    log_concave = _of_inner()
    linear_predictor = _of_inner()
    bounded_labels = _of_inner()
    longest_labels = _of_inner()
    predictor = _of_inner()
    row_bound = _of_inner()
    label_bound = _of_inner()
    offset_bound = _of_inner()
    weight_scale = _of_inner()
    takes_every_leaf = _of_inner()

    def __post_init__(self) -> None:
        if not rebuilt(self):
            check_fields(self)

    def bind(self, record_shapes: PyTree) -> Tempered:
        """The same around the bound target."""
        return Tempered(
            bind(self.target, record_shapes),
            self.temper,
            self.prior_temper,
            self.new_prior_precision,
        )

    @property
    def gradient_bound(self) -> float | None:
        """temper · L."""
        return self._scaled(self._offers.gradient_bound)

    @property
    def gradient_bound_within(self) -> Callable[[float], float | None] | None:  # type: ignore[override]
        """radius -> temper · L on ‖θ‖ <= radius; None where the target has none."""
        within = self._offers.gradient_bound_within
        return None if within is None else lambda radius: self._scaled(within(radius))

    @property
    def smoothness(self) -> float | None:
        """temper · the largest curvature of one record's loss."""
        return self._scaled(self._offers.smoothness)

    @property
    def loss_bounds(self) -> Callable[[float], tuple[float, float]] | None:  # type: ignore[override]
        """radius -> temper · the target's; None where it has none."""
        bounds = self._offers.loss_bounds
        if bounds is None:
            return None

        def scaled(radius: float) -> tuple[float, float]:
            largest, difference = bounds(radius)
            return self.temper * largest, self.temper * difference

        return scaled

    @property
    def clipped_gradient_sum(self) -> Callable[..., FixedPoint] | None:
        """The target's at clip C/temper; None where it has none."""
        own_sum = self._offers.clipped_gradient_sum
        if own_sum is None:
            return None

        def total(
            params: PyTree,
            batch: PyTree,
            mask: jax.Array,
            clip: float,
            bits: int = 21,
            **how: bool,
        ) -> FixedPoint:
            return own_sum(params, batch, mask, clip / self.temper, bits, **how)

        return total

    @property
    def prior_precision(self) -> float | None:
        """Curvature the prior gives every direction; None where the target's prior states none."""
        own = self.new_prior_precision
        precision = self._offers.prior_precision if own is None else own
        return None if precision is None else self.prior_temper * precision

    def init(self, key: jax.Array) -> PyTree:
        """The target's starting point."""
        return self.target.init(key)

    def log_prior(self, params: PyTree) -> jax.Array:
        """prior_temper · (the target's own, or −m‖θ‖²/2), up to a constant."""
        if self.new_prior_precision is None:
            return self.prior_temper * self.target.log_prior(params)
        squares = sum(
            (jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params)),
            jnp.float32(0),
        )
        return -0.5 * self.prior_temper * self.new_prior_precision * squares

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """temper · log p(x|θ)."""
        return self.temper * self.target.log_likelihood(params, record)

    def posterior(self, records: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance, exact, float64, of a tempered :class:`LinearRegression`: N(y; x·θ, σ²)^ρ ∝ N(σ²/ρ).

        Reads every record WITHOUT privacy.

        Raises:
            ValueError: another target.
        """
        if not isinstance(self.target, LinearRegression):
            raise InputError(f"target: {type(self.target).__name__} has no posterior in closed form")
        assert self.prior_precision is not None
        return dataclasses.replace(
            self.target,
            prior_scale=self.prior_precision**-0.5,
            noise_scale=self.target.noise_scale * self.temper**-0.5,
        ).posterior(records)

    @property
    def _offers(self) -> TargetOffers:
        return target_offers(self.target)

    def _scaled(self, value: float | None) -> float | None:
        return None if value is None else self.temper * value


def untempered(target: Target) -> Target:
    """Return the model inside any number of tempers."""
    while isinstance(target, Tempered):
        target = target.target
    return target


# ----------------------------------------------------------------------------------------------------
# A target in the coordinates φ = Fθ of a public, invertible metric F.
#
#     log p(x | φ) = log p(x | θ = F⁻¹φ),     ∇_φ = F⁻ᵀ ∇_θ
#
# A query that clips ‖∇_φ‖ and adds isotropic noise there clips and noises in the metric F. It needs to know nothing of
# F, nor does a sampler: its law holds in φ, and F is constant, so that there is no drift to correct. Draws are mapped
# back.
#
# :class:`WhitenedRows` is a generalised linear model. Its parameters meet a record in x·θ = (F⁻ᵀx)·φ alone, so it is
# the same model on rows F⁻ᵀx, which :func:`whitened_rows` computes once; only its prior is written in φ.
# :class:`Whitened` is any other target, whose parameters are raveled into one vector.
#
# F must be public: released with its cost, or known beforehand. ``root`` is F and ``inverse`` F⁻¹, both float32, and
# ``inverse`` is what the model is evaluated with, so draws are mapped back with that.

#: A matrix, of NumPy or traced.
Matrix = np.ndarray | jax.Array
#: Rows that are whitened at a time, all blocks alike, so that a row's rounding does not depend on its place.
_ROWS = 1 << 13


@dataclass(frozen=True, eq=False)
class _InMetric(TargetOffers):
    """Fields and methods of both kinds."""

    target: Target
    root: Matrix
    inverse: Matrix
    #: The metric decides.
    gradient_bound = None

    def at(self, root: np.ndarray, inverse: np.ndarray) -> Self:
        """Return the same target in another metric."""
        return type(self)(self.target, root.astype(np.float32), inverse.astype(np.float32))

    def own(self, params: jax.Array) -> PyTree:
        """Return θ = F⁻¹φ, the model's own parameters."""
        return jnp.asarray(self.inverse) @ params

    def log_prior(self, params: jax.Array) -> jax.Array:
        """The model's log prior at F⁻¹φ, up to a constant."""
        return self.target.log_prior(self.own(params))

    def predict(self, params: jax.Array, x: jax.Array) -> jax.Array:
        """The model's prediction at F⁻¹φ for rows of its own."""
        return self.target.predict(self.own(params), x)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class WhitenedRows(_InMetric):
    """A generalised linear model on whitened rows; its parameters φ have the shape of θ, with F on the first axis.

    Args:
        target: the model in its own coordinates, bound to the shapes of the records.
        root, inverse: F and F⁻¹, (d, d) float32.
    """

    clipped_gradient_sum = _of_inner()
    prepared = _of_inner()
    longest_labels = _of_inner()
    bounded_labels = _of_inner()
    predictor = _of_inner()

    def init(self, key: jax.Array) -> jax.Array:
        """F times the model's starting point."""
        return jnp.asarray(self.root) @ self.target.init(key)

    def log_likelihood(self, params: jax.Array, record: PyTree) -> jax.Array:
        """The model's log-likelihood of a whitened record."""
        return self.target.log_likelihood(params, record)

    def before(self, records: PyTree) -> PyTree:
        """Return the records with rows of the type of whitened ones, which the program is compiled for."""
        return {**records, "x": records["x"].astype(np.float32)}

    def records(self, records: PyTree) -> PyTree:
        """Return the records with whitened rows."""
        return {**records, "x": whitened_rows(records["x"], np.asarray(self.inverse))}

    def positions(self, positions: PyTree) -> np.ndarray:
        """Return θ = F⁻¹φ, (chains, draws, d, ...), of positions of the chains."""
        inverse = np.asarray(self.inverse, np.float64)
        return np.einsum("ij,cnj...->cni...", inverse, np.asarray(positions, np.float64)).astype(np.float32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Whitened(_InMetric):
    """Any target in raveled parameters φ, (p,).

    Args:
        target: the model in its own coordinates, bound to the shapes of the records.
        root, inverse: F and F⁻¹, (p, p) float32.
    """

    def init(self, key: jax.Array) -> Float[jax.Array, " p"]:
        """F times the raveled starting point."""
        return jnp.asarray(self.root) @ ravel_pytree(self.target.init(key))[0]

    def own(self, params: Float[jax.Array, " p"]) -> PyTree:
        """Return θ = F⁻¹φ, the model's own parameters."""
        return self._unraveled(super().own(params))

    def log_likelihood(self, params: Float[jax.Array, " p"], record: PyTree) -> Float[jax.Array, ""]:
        """The model's log-likelihood of one record at F⁻¹φ."""
        return self.target.log_likelihood(self.own(params), record)

    bounded_labels = _of_inner()

    def predictor(self, params: Float[jax.Array, " p"], record: PyTree) -> jax.Array:
        """The model's linear predictor of one record at F⁻¹φ."""
        return self.target.predictor(self.own(params), record)  # type: ignore[attr-defined]

    def longest_labels(self, predictor: jax.Array, whitened: bool = True) -> jax.Array:
        """The model's labels one of which has the longest gradient in any metric."""
        return self.target.longest_labels(predictor, True)  # type: ignore[attr-defined]

    def before(self, records: PyTree) -> PyTree:
        """Return the records as they are."""
        return records

    def records(self, records: PyTree) -> PyTree:
        """Return the records as they are."""
        return records

    def positions(self, positions: PyTree) -> PyTree:
        """Return θ = F⁻¹φ, a pytree like the model's parameters, leaves (chains, draws, ...)."""
        flat = np.asarray(positions, np.float64) @ np.asarray(self.inverse, np.float64).T
        return jax.tree.map(
            np.asarray,
            jax.vmap(jax.vmap(self._unraveled))(jnp.asarray(flat, jnp.float32)),
        )

    def _unraveled(self, flat: jax.Array) -> PyTree:
        # The key is made inside, so that no trace of a step makes one.
        shapes = jax.eval_shape(lambda: self.target.init(jax.random.key(0)))
        return ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))[1](flat)


def in_metric(target: Target, rows: bool) -> WhitenedRows | Whitened:
    """Return a bound target in a stand-in metric of the right shape, which no axis is special to.

    Args:
        target: bound to the shapes of its records.
        rows: whether the metric is one of rows (d, d), of a generalised linear model; else of raveled parameters.
    """
    params = jax.eval_shape(target.init, jax.random.key(0))
    size = params.shape[0] if rows else sum(leaf.size for leaf in jax.tree.leaves(params))
    root = np.eye(size) + np.ones((size, size)) / size
    kind = WhitenedRows if rows else Whitened
    return kind(target, root.astype(np.float32), np.linalg.inv(root).astype(np.float32))


def metric_of_rows(target: Target) -> bool:
    """Return whether a metric of raveled parameters is one of rows: those of a model of one linear predictor."""
    return isinstance(target, GeneralisedLinear) and target.linear_predictor


def whitened_rows(x: np.ndarray | jax.Array, inverse: np.ndarray) -> np.ndarray:
    """Return F⁻ᵀx of rows (N, d), float32, each a function of the row and of F alone.

    The product is taken in float64 over blocks of one size, the last one filled with zeros, so that a row's rounding
    does not depend on its place.
    """
    x = np.asarray(x)
    matrix = np.asarray(inverse, np.float64)
    out = np.empty((len(x), matrix.shape[1]), np.float32)
    # A row that overflows contributes zero to the query; a warning of it would tell of the row.
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(0, len(x), _ROWS):
            rows = np.zeros((_ROWS, x.shape[1]))
            part = x[i : i + _ROWS]
            rows[: len(part)] = part
            out[i : i + len(part)] = (rows @ matrix)[: len(part)]
    return out


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PerOwner(Checked, TargetOffers):
    """A target of rows as one of owners.

    Args:
        target: the model of one row.
        records_per_owner: m, public; None until the data's shape is known.

    Raises:
        ValueError: m is not a whole number >= 1.

    Example:
        >>> from dpmcmc.targets import LogisticRegression, PerOwner
        >>> target = PerOwner(LogisticRegression(num_features=2), records_per_owner=3)
        >>> target.records_per_owner
        3
    """

    target: Target
    records_per_owner: Annotated[int, Ge(1)] | None = dataclasses.field(default=None, metadata=STATIC)

    predict = _of_inner()
    constrain = _of_inner()
    num_classes = _of_inner()
    prior_precision = _of_inner()
    num_features = _of_inner()
    offset_bound = _of_inner()
    weight_scale = _of_inner()
    takes_every_leaf = _of_inner()

    @property
    def unit(self) -> str:
        """Whom a guarantee speaks of."""
        return "owner" if self.records_per_owner is None else f"owner (at most {self.records_per_owner} rows)"

    @property
    def gradient_bound(self) -> float | None:
        """m·L, where both are known."""
        bound = target_offers(self.target).gradient_bound
        return None if bound is None or self.records_per_owner is None else self.records_per_owner * bound

    def bind(self, record_shapes: PyTree) -> PerOwner:
        """The same around the inner target bound to one row, with m from the records.

        Raises:
            TargetError: records that are not those of ``dpmcmc.data.by_owner``, or of another m.
        """
        if not isinstance(record_shapes, dict) or MASK not in record_shapes:
            raise TargetError("records have no owners; gather their rows with dpmcmc.data.by_owner")
        (places,) = record_shapes[MASK].shape
        if self.records_per_owner not in (None, places):
            raise TargetError(f"target has records_per_owner {self.records_per_owner} but records have {places}")
        row = {
            name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
            for name, leaf in record_shapes.items()
            if name != MASK
        }
        return PerOwner(bind(self.target, row), places)

    def init(self, key: jax.Array) -> PyTree:
        """The inner target's starting point."""
        return self.target.init(key)

    def log_prior(self, params: PyTree) -> jax.Array:
        """The inner target's."""
        return self.target.log_prior(params)

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """Σ over the rows of ONE owner.

        Args:
            params: of the inner target.
            record: the owner's rows, leaves (m, ...), and ``mask`` (m,).
        """
        mask = record[MASK]
        first = jnp.argmax(mask)
        # 0 · NaN is NaN, so what is masked must be a row that counts anyway, or not be differentiated at all.
        params = jax.tree.map(
            lambda leaf: jnp.where(jnp.any(mask), leaf, jax.lax.stop_gradient(leaf)),
            params,
        )

        def filled(leaf: jax.Array) -> jax.Array:
            return jnp.where(mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, leaf[first])

        rows = {name: filled(leaf) for name, leaf in record.items() if name != MASK}
        each = jax.vmap(lambda row: self.target.log_likelihood(params, row))(rows)
        return jnp.sum(jnp.where(mask, each, 0.0))

    def check_records(self, records: PyTree) -> None:
        """Check the rows as the inner target does."""
        own = target_offers(self.target).check_records
        if own is not None:
            own(rows_of(records))


def rows_of(records: PyTree) -> dict[str, np.ndarray]:
    """The rows of all owners one after another, padding left out: leaves (rows, ...)."""
    mask = np.asarray(records[MASK])
    return {name: np.asarray(leaf)[mask] for name, leaf in records.items() if name != MASK}


def by_row(target: Target, records: PyTree) -> tuple[Target, PyTree]:
    """(target, records) as they predict: one row at a time, whoever the rows belong to.

    Predictions have no weight, and take an offset as the last column of x (:class:`OffsetColumn`).
    """
    if isinstance(target, PerOwner):
        records = rows_of(records) if MASK in records else records
        target = target.target
    return _with_offset_column(_unweighted(target), records)


def with_label_scale(target: Target, scale: float | None) -> Target:
    """Return a regression whose labels vary about their means as a release tells; another target as it is.

    Args:
        target: of the release; its parameters stay the same.
        scale: standard deviation of a linear regression's residuals, or α of counts, Var[y] = μ + αμ²; None: as the
            target supposes.
    """
    if scale is None:
        return target
    if isinstance(target, PerOwner):
        return dataclasses.replace(target, target=with_label_scale(target.target, scale))
    if type(target) is LinearRegression:
        return dataclasses.replace(target, noise_scale=scale)
    if type(target) is PoissonRegression and scale >= LEAST_DISPERSION:
        return NegativeBinomialRegression(**vars(target), dispersion=scale)
    return target


def _unweighted(target: Target) -> Target:
    """Return a regression whose records have no weight; another target as it is."""
    if isinstance(target, Tempered):
        return dataclasses.replace(target, target=_unweighted(target.target))
    if isinstance(target, GeneralisedLinear) and target.weight_scale is not None:
        return dataclasses.replace(target, weight_scale=None)
    return target


def _with_offset_column(target: Target, records: PyTree) -> tuple[Target, PyTree]:
    inner = untempered(target)
    if not isinstance(inner, GeneralisedLinear):
        return target, records
    rows = {name: leaf for name, leaf in records.items() if name != "weight"}
    if inner.offset_bound is None or "offset" not in rows:
        return target, rows
    offset = np.asarray(rows.pop("offset"), np.float32)[:, None]
    x = np.concatenate([np.asarray(rows["x"], np.float32), offset], axis=1)
    return OffsetColumn(target), {**rows, "x": x}


@dataclass(frozen=True)
class OffsetColumn(TargetOffers):
    """A regression with an offset, whose rows have the offset as their last column; for predictions alone.

    Args:
        target: the regression, bound to the shapes of its records.
    """

    target: Any

    num_classes = _of_inner()

    def init(self, key: jax.Array) -> PyTree:
        """The regression's starting point."""
        return self.target.init(key)

    def log_prior(self, params: PyTree) -> jax.Array:
        """The regression's log prior."""
        return self.target.log_prior(params)

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """The regression's log-likelihood of one record."""
        x = record["x"]
        return self.target.log_likelihood(params, {**record, "x": x[:-1], "offset": x[-1]})

    def predict(self, params: PyTree, x: jax.Array) -> jax.Array:
        """The regression's predictions of rows x (n, d + 1)."""
        return self.target.predict(params, x[:, :-1], x[:, -1])
