"""Target: a prior, the log-likelihood of ONE record, and a few public facts.

The protocol is small on purpose. ``init``, ``log_prior``, ``log_likelihood`` and ``predict`` are enough; the
query takes per-record gradients by ``vmap`` and clips them. All that a target may offer beside them stands in
:class:`TargetOffers`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeVar, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt
from jax.typing import DTypeLike

from dpmcmc.data.checks import Marked
from dpmcmc.errors import InputError
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.storage.compiled_programs import RUN_ONCE
from dpmcmc.storage.completed import completed
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.record_blocks import blocks
from dpmcmc.storage.structure import Structure, immutable

#: A function that builds something from a target.
Built = TypeVar("Built", bound=Callable[..., Any])
#: A target, bound or not.
Bindable = TypeVar("Bindable")
#: (name, shape, dtype) of each leaf of one record, sorted by name.
Leaves = tuple[tuple[str, tuple[int, ...], str], ...]
#: Rows of float32 that were normalised may exceed their bound by rounding; more than this is another bound.
_ROUNDING = 1e-5


@runtime_checkable
class Target(Protocol):
    """A Bayesian model whose records are conditionally independent given the parameters.

    Example:
        >>> from dpmcmc.targets import LogisticRegression, Target
        >>> isinstance(LogisticRegression(), Target)
        True
    """

    @property
    def gradient_bound(self) -> float | None:
        """Public bound L on one record's gradient norm, or None where none is known."""

    def init(self, key: jax.Array) -> PyTree:
        """A starting point, a pytree of float32 that does not depend on records."""

    def log_prior(self, params: PyTree) -> jax.Array:
        """Log prior density up to a constant, ()."""

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """Log-likelihood of one record (a pytree without the leading axis), ()."""

    def predict(self, params: PyTree, x: jax.Array) -> jax.Array:
        """Prediction for rows x (n, d): class probabilities or means."""


class TargetOffers:
    """All that a target may offer beside the methods of :class:`Target`; None is not offered.

    A target may inherit these defaults. One that does not is completed with them (:func:`target_offers`). You vouch for
    the facts that your target states.
    """

    #: Number of features d of a row.
    num_features: int | None = None
    #: Bound on the norm of a row, and on the size of a label.
    row_bound: float | None = None
    label_bound: float | None = None
    #: Bound on the size of a record's offset, or None where the target knows no offset.
    offset_bound: float | None = None
    #: Public constant that a record's weight within 0 and 1 is multiplied by, or None where the target knows no weight.
    weight_scale: float | None = None
    #: Whether the target's own code is given every array of a record by name, and refuses one that it does not know.
    takes_every_leaf: bool = False
    #: Whether each record's likelihood is log-concave in the parameters.
    log_concave: bool = False
    #: Whether a record enters through one number, x·θ.
    linear_predictor: bool = False
    #: Whether a record of zeros adds zero to every sum, at all parameters (``targets/checks.py``).
    zeros_are_absent: bool = False

    #: shapes of one record -> the target with its shapes known.
    bind: Callable[[Any], Any] | None = None
    #: records -> None; raises ValueError on records that the target is not for.
    check_records: Callable[[Any], None] | None = None
    #: params -> a draw in the model's own coordinates.
    constrain: Callable[[Any], Any] | None = None
    #: records -> records with what is computed of each alone, once for all steps.
    prepared: Callable[[Any], Any] | None = None
    #: radius -> ``gradient_bound`` on the ball of that radius; None: the bound holds everywhere.
    gradient_bound_within: Callable[[float], float | None] | None = None
    #: radius -> (largest loss, largest difference of two losses) on the ball.
    loss_bounds: Callable[[float], tuple[float, float]] | None = None
    #: rows -> features that do not learn.
    features: Callable[[Any], Any] | None = None

    @property
    def unit(self) -> str | None:
        """Whom a guarantee speaks of; None is one record."""
        return None

    @property
    def num_classes(self) -> int | None:
        """Number of classes K of a classifier."""
        return None

    @property
    def gradient_bound(self) -> float | None:
        """Bound on the norm of one record's gradient."""
        return None

    @property
    def smoothness(self) -> float | None:
        """Largest curvature of one record's loss in the parameters."""
        return None

    @property
    def curvature_bound(self) -> float | None:
        """Largest curvature of one record's loss in x·θ."""
        return None

    @property
    def prior_precision(self) -> float | None:
        """Curvature that the prior gives every direction."""
        return None

    @property
    def bounded_labels(self) -> bool:
        """Whether ``longest_labels`` is there, which label-blind clipping needs."""
        return False

    @property
    def predict(self) -> Callable[..., jax.Array] | None:
        """(params, x) -> probabilities or means."""
        return None

    @property
    def clipped_gradient_sum(self) -> Callable[..., FixedPoint] | None:
        """The exact sum of clipped gradients, with norms in closed form."""
        return None


def predicts(target: object) -> bool:
    """Whether a target has predictions; one that cannot may say why in an AttributeError of ``predict``."""
    return getattr(target, "predict", None) is not None


#: Methods that a target must have.
REQUIRED = ("init", "log_prior", "log_likelihood")


def missing_of_target(target: object) -> list[str]:
    """Return what an object lacks of the :class:`Target` protocol."""
    return [name for name in REQUIRED if not hasattr(target, name)]


def target_offers(target: object) -> TargetOffers:
    """Return a target with a default in the place of everything that it does not offer."""
    return completed(target, TargetOffers)


#: A scale, or a public bound.
Positive = Annotated[float, Gt(0)]


def shared_by_equal_targets(maxsize: int) -> Callable[[Built], Built]:
    """Decorator: what a function builds from a target, its first argument, is built once for all equal targets.

    A target that may change behind its hash, or has none, shares nothing.

    Args:
        maxsize: results that are kept.
    """

    def decorate(build: Built) -> Built:
        kept = functools.lru_cache(maxsize)(build)

        @functools.wraps(build)
        def built(target: Any, *rest: Any) -> Any:
            return kept(target, *rest) if immutable(target) else build(target, *rest)

        return cast("Built", built)

    return decorate


def require_classes(num_classes: int | None, model: str) -> int:
    """Return the number of classes.

    Raises:
        TargetError: it was not declared.
    """
    if num_classes is None:
        raise TargetError(
            f"num_classes is not known: declare the public number of classes, for example {model}(num_classes=10)"
        )
    return num_classes


def require_bound(value: float | None, name: str, target: str) -> float:
    """A public bound that a target needs for what is asked of it.

    Raises:
        ValueError: it was not given.
    """
    if value is None:
        raise InputError(
            f"{name}: {target} needs this public bound for a one-shot mechanism; give it",
            name,
        )
    return value


class TargetError(InputError):
    """A target that cannot be evaluated on the records it is given.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.targets import LogisticRegression, bind
        >>> bind(LogisticRegression(num_features=3), {"x": np.zeros((4, 2)), "y": np.zeros(4)})
        Traceback (most recent call last):
            ...
        dpmcmc.targets.base.TargetError: x must be a row of features, and its shape in one record is (4, 2)
    """


def check(target: Target, records: PyTree) -> None:
    """Refuse a target that does not fit the records, before anything is computed from them.

    Only shapes are evaluated; values are looked at by the target's own ``check_records`` where it has one.

    Raises:
        TargetError: naming the method that fails.
        ValueError: from ``check_records``.
    """
    check_not_forked()
    shapes = record_shapes(records)
    doing = "bind"
    try:
        bound = bind(target, shapes)
        doing = "init"
        params = jax.eval_shape(bound.init, jax.random.key(0))
        doing = "log_prior"
        scalars = [jax.eval_shape(bound.log_prior, params)]
        doing = "log_likelihood"
        scalars.append(jax.eval_shape(bound.log_likelihood, params, shapes))
        doing = "constrain"
        offers = target_offers(bound)
        if offers.constrain is not None:
            jax.eval_shape(offers.constrain, params)
    except TargetError:  # already a sentence
        raise
    except Exception as error:  # a user's code may raise anything
        reason = " ".join(str(error).split())[:200]
        raise TargetError(
            f"{type(target).__name__}.{doing} fails on records of shapes {_shapes(shapes)} "
            f"({type(error).__name__}: {reason})"
        ) from error
    if any(s.shape != () for s in scalars):
        raise TargetError(f"{type(target).__name__}: log_prior and log_likelihood must return one number each")
    wrong = [str(leaf.dtype) for leaf in jax.tree.leaves(params) if leaf.dtype != jnp.float32]
    if wrong or not jax.tree.leaves(params):
        raise TargetError(
            f"{type(target).__name__}.init must return a pytree of float32 arrays, and it returns "
            f"{wrong[0] + ' ones' if wrong else 'no array'}"
        )
    _check_number(bound, shapes)
    if offers.check_records is not None:
        offers.check_records(records)


def check_bound(x: np.ndarray, row_bound: float, resting: str) -> None:
    """Refuse rows, (N, ...), beyond a public bound on their norm; ``resting`` is what rests on it.

    Raises:
        DataError: there are some; its ``rows`` say which.
    """
    beyond = Marked()
    # A warning of NumPy would tell of a record.
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(np.asarray(x, np.float64).reshape(len(x), -1), axis=1)
        beyond.add(0, norms > row_bound * (1 + _ROUNDING))
    beyond.refuse(
        f"data['x']: some rows have a norm beyond the public row_bound {row_bound:g}: {resting} rests on it; scale or "
        "clip rows to it."
    )


def check_rows(data: PyTree, num_records: int, dtype: DTypeLike | None = None) -> None:
    """Refuse data of another length than planned, or with rows that are not finite.

    Args:
        data: pytree of arrays.
        num_records: N that leading axes must have.
        dtype: float type that must hold the rows; None for their own.

    Raises:
        InputError: naming the array and how to mend it; a DataError, whose ``rows`` say which, of rows not finite.
    """
    leaves = jax.tree_util.tree_leaves_with_path(data)
    if not leaves:
        raise InputError("data has no arrays; pass a pytree such as {'x': (N, d), 'y': (N,)}")
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        # np.asarray would make one array of a memory-mapped one, to be looked at as a whole.
        array = leaf if isinstance(leaf, (jax.Array, np.memmap)) else np.asarray(leaf)
        if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool) or np.iscomplexobj(array):
            raise InputError(f"data{name} has values of type {array.dtype}, and records are real numbers; convert them")
        if array.ndim == 0 or array.shape[0] != num_records:
            raise InputError(
                f"data{name} has shape {array.shape}, and the plan is for num_records {num_records}: "
                "plan again with the public number of records"
            )
        if jnp.issubdtype(array.dtype, jnp.floating):
            bad = Marked()
            # A warning of NumPy would tell of a record.
            with np.errstate(all="ignore"):
                for start, part in blocks(array):
                    bad.add(start, ~_finite_rows(np.asarray(part, dtype)))
            bad.refuse(f"data{name}: some rows are not finite; remove or impute them.")


def _finite_rows(rows: np.ndarray) -> np.ndarray:
    return np.isfinite(rows).reshape(len(rows), -1).all(axis=1)


def features_of(record_shapes: PyTree, declared: int | None = None) -> int:
    """Number of features d of records ``{"x": (d,), ...}``.

    Raises:
        TargetError: x is not a row, or not of the declared length.
    """
    shape = tuple(record_shapes["x"].shape)
    if len(shape) != 1:
        raise TargetError(f"x must be a row of features, and its shape in one record is {shape}")
    if declared not in (None, shape[0]):
        raise TargetError(f"target has num_features {declared} but records have {shape[0]} features")
    return shape[0]


def _check_number(target: Target, shapes: PyTree) -> None:
    """Refuse a log-likelihood that is NaN on all of a few made-up records; the real ones are not looked at."""
    # Compiled, so asked once of a target that stays as it is.
    if not _is_number(target, facts_of(shapes)):
        raise TargetError(
            f"{type(target).__name__}.log_likelihood is NaN at the starting point on each of 7 made-up records, so no "
            "record would count; dpmcmc.testing.check_target shows more"
        )


@shared_by_equal_targets(maxsize=128)
def _is_number(target: Any, facts: tuple) -> bool:
    """Whether the log-likelihood at the start is one on any made-up record of a structure, shapes and dtypes."""
    structure = Structure.of(target)
    trial = _trial if structure.steady else _trial.__wrapped__
    # Minus infinity may be a support that the made-up records miss; NaN is nobody's likelihood.
    return not bool(jnp.all(jnp.isnan(trial(structure, facts)(structure.numbers(target)))))


def facts_of(shapes: PyTree) -> tuple:
    """Return the structure of a record, and the shape and dtype of each leaf."""
    leaves, structure = jax.tree.flatten(shapes)
    return (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))


def made_up(facts: tuple) -> PyTree:
    """Return 7 records that are made up, leaves (7, ...), of a structure and the shape and dtype of each leaf."""
    rng = np.random.default_rng(0)

    # On the host: what JAX computes outside a function of its own stays compiled for as long as the process lives.
    def values(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if jnp.issubdtype(dtype, jnp.floating):
            return np.concatenate([np.zeros((1, *shape)), rng.uniform(size=(6, *shape))]).astype(np.float32)
        labels = (np.arange(7) % 2).astype(dtype).reshape(-1, *[1] * len(shape))
        return np.broadcast_to(labels, (7, *shape))

    return jax.tree.unflatten(facts[0], [values(*leaf) for leaf in facts[1:]])


@functools.lru_cache(maxsize=128)
def _trial(structure: Structure, facts: tuple) -> Callable[[Any], jax.Array]:
    """Return the log-likelihood of each of 7 made-up records at the start, as a function of the target's numbers."""
    records = made_up(facts)

    def evaluate(numbers: Any) -> jax.Array:
        target = structure.fill(numbers)
        params = target.init(jax.random.key(0))
        return jax.vmap(lambda record: target.log_likelihood(params, record))(records)

    return jax.jit(evaluate, compiler_options=RUN_ONCE)


def model_name(model: Callable) -> str:
    """Return the name of a model's function."""
    return getattr(model, "__name__", type(model).__name__)


def record_shapes(records: PyTree) -> PyTree:
    """``jax.ShapeDtypeStruct`` of ONE record: what :func:`bind` takes."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf)[1:], jnp.result_type(leaf)),
        records,
    )


def parameter_shapes(target: Target) -> PyTree | None:
    """``jax.ShapeDtypeStruct`` of the parameters; None where only the data tell."""
    try:
        return jax.eval_shape(target.init, jax.random.key(0))
    except Exception:  # a user's code may raise anything where it lacks the data's shape
        return None


def _shapes(tree: PyTree) -> str:
    return str(jax.tree.map(lambda s: tuple(s.shape), tree))


def bind(target: Bindable, record_shapes: PyTree) -> Bindable:
    """The target with its shapes known.

    Args:
        target: a Target; one whose parameters depend on the record's shape has a ``bind`` method.
        record_shapes: pytree of ``jax.ShapeDtypeStruct`` of ONE record.

    Returns:
        The same target, or what its ``bind`` returns.
    """
    method = target_offers(target).bind
    return target if method is None else method(record_shapes)
