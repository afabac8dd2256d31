"""How well draws predict rows: accuracy or root mean squared error, and log predictive density.

:func:`predict` serves every kind of target. The predictive distribution is an average over draws, so it is accumulated
over blocks of draws and memory stays bounded however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from dpmcmc.errors import InputError
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, TargetError, predicts, target_offers
from dpmcmc.targets.predicting import by_row

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped


#: Least probability in a log predictive density, since float32 may round a probability to zero.
LEAST_PROBABILITY = 1e-12
#: Draws times rows evaluated at once on the device, and numbers fetched from it at once, so that memory is bounded.
ROWS_AT_ONCE = 2**16
NUMBERS_AT_ONCE = 2**22


#: A target's method: (parameters, records) -> a value for each record.
Evaluate = Callable[[PyTree, PyTree], jax.Array]


class Predicts(Protocol):
    """A target with its way of predicting."""

    @property
    def predict(self) -> Evaluate:
        """(params, rows) -> class probabilities or mean of each row."""


@dataclass(frozen=True)
class Prediction:
    """Predictions of rows by the average over draws, and how good they are.

    Attributes:
        measure: what the scores are: ``"accuracy"``, ``"rmse"``, or None where a target only has a likelihood.
        posterior_predictive: score of the average over draws.
        single_draw: score of each draw alone, (draws,).
        log_predictive_density: mean over rows of the log of the mean over draws of p(y | x, draw).
        probability: posterior predictive P(y = 1), (rows,), or class probabilities, (rows, K); classifiers only.
        mean: posterior predictive mean, (rows,); regression only.
        calibration_error: :func:`expected_calibration_error` of the average; classifiers only.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.inference import predictive
        >>> from dpmcmc.targets import LogisticRegression
        >>> rows = {"x": np.array([[1.0], [-1.0]]), "y": np.array([1, 0])}
        >>> prediction = predictive.predict(LogisticRegression(num_features=1), np.array([[1.0], [2.0]]), rows)
        >>> prediction.measure, prediction.posterior_predictive
        ('accuracy', 1.0)
    """

    measure: str | None
    posterior_predictive: float | None
    single_draw: np.ndarray | None
    log_predictive_density: float
    probability: np.ndarray | None = None
    mean: np.ndarray | None = None
    calibration_error: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; always the keys ``accuracy``, ``rmse`` and ``log_predictive_density``.

        Classifiers have ``expected_calibration_error`` too.
        """
        body: dict[str, Any] = dict.fromkeys(("accuracy", "rmse"))
        if self.measure is not None and self.single_draw is not None:
            body[self.measure] = {
                "posterior_predictive": self.posterior_predictive,
                "mean": float(self.single_draw.mean()),
                "std": float(self.single_draw.std()),
            }
        if self.calibration_error is not None:
            body["expected_calibration_error"] = self.calibration_error
        return body | {"log_predictive_density": self.log_predictive_density}


def measure(target: object) -> str | None:
    """``"accuracy"`` for classifiers, ``"rmse"`` for other targets that predict, None for those that do not."""
    if not predicts(target):
        return None
    return "rmse" if _classes(target) is None else "accuracy"


def predict(target: Target, flat_draws: PyTree, rows: dict[str, np.ndarray]) -> Prediction:
    """Predict rows with every draw, in the way that fits the target.

    Args:
        target: with ``log_likelihood(params, record)`` and, for more than a density, ``predict(params, x)``: class
            probabilities (rows, num_classes), or P(y = 1) (rows,), or without ``num_classes`` the mean (rows,).
        flat_draws: pytree of parameters, leaves (draws, ...).
        rows: ``{"x": (rows, d), "y": (rows,)}``; those of owners are taken one by one.

    Raises:
        TargetError: ``predict`` returns something of another shape.
    """
    target, rows = by_row(target, rows)
    if measure(target) is None:
        return Prediction(None, None, None, log_predictive_density(target, flat_draws, rows))
    return (_regression if measure(target) == "rmse" else _classification)(target, flat_draws, rows)


def mean(target: Predicts, flat_draws: PyTree, x: PyTree) -> np.ndarray:
    """Return the posterior predictive mean of rows, float64.

    Args:
        target: with ``predict``.
        flat_draws: pytree of parameters, leaves (draws, ...).
        x: (rows, d), or whatever pytree ``predict`` takes, leaves (rows, ...).

    Returns:
        P(y = 1), (rows,), of two classes; class probabilities (rows, K) of more; else the mean of y, (rows,).

    Raises:
        TargetError: the target has no ``predict``, or it returns something of another shape.
    """
    if not predicts(target):
        raise TargetError(f"{type(target).__name__} has no predict, so its draws predict nothing; give it one")
    if not len(jax.tree.leaves(x)[0]):
        raise InputError("predict: x has no row: give one that has", "x")
    _tried(target, jax.tree.map(lambda leaf: leaf[0], flat_draws), x)
    found, _ = _over_draws(target, flat_draws, x, lambda p: np.zeros(len(p)))
    return found[..., 1] if _classes(target) == 2 and found.ndim == 2 else found


def check(target: Target, rows: dict[str, np.ndarray]) -> None:
    """Refuse a target whose ``predict`` does not fit the rows; only shapes are evaluated.

    Raises:
        TargetError: naming the reason, or the shape that was found and the one that is wanted.
    """
    target, rows = by_row(target, rows)
    if measure(target) is None:
        return
    found = _tried(target, jax.eval_shape(target.init, jax.random.key(0)), rows["x"])
    _check_shape(target, found, len(rows["x"]))


def _tried(target: Predicts, params: PyTree, x: PyTree) -> tuple[int, ...]:
    """Return the shape of predictions; only shapes are evaluated.

    Raises:
        TargetError: ``predict`` fails.
    """
    check_not_forked()
    x = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), x)
    try:
        return jax.eval_shape(target.predict, params, x).shape
    except Exception as error:  # a user's code may raise anything
        reason = " ".join(str(error).split())[:200]
        shapes = jax.tree.map(lambda leaf: leaf.shape, x)
        raise TargetError(
            f"{type(target).__name__}.predict fails on rows of shape {shapes} ({type(error).__name__}: {reason})"
        ) from error


def _classification(target: Target, flat_draws: PyTree, rows: dict[str, np.ndarray]) -> Prediction:
    """Classes, from probabilities (rows, K), or P(y = 1), (rows,), of two; otherwise as :func:`predict`."""
    y = np.asarray(rows["y"]).astype(int)

    def by_class(probability: np.ndarray, leading: int) -> np.ndarray:
        if probability.ndim > leading:
            return probability
        return np.stack([1 - probability, probability], axis=-1)

    mean, each = _over_draws(
        target, flat_draws, rows["x"], lambda p: np.mean(by_class(p, 2).argmax(axis=2) == y, axis=1)
    )
    probability = by_class(mean, 1)
    known = np.clip(y, 0, probability.shape[1] - 1)
    # A class that is not in the model has probability zero.
    truth = np.where(known == y, probability[np.arange(len(y)), known], 0.0)
    return Prediction(
        measure="accuracy",
        posterior_predictive=float(np.mean(probability.argmax(axis=1) == y)),
        single_draw=each,
        log_predictive_density=float(np.mean(np.log(np.maximum(truth, LEAST_PROBABILITY)))),
        probability=probability[:, 1] if _classes(target) == 2 else probability,
        calibration_error=expected_calibration_error(probability, y),
    )


def _regression(target: Target, flat_draws: PyTree, rows: dict[str, np.ndarray]) -> Prediction:
    """Real labels or counts, from the mean (rows,); otherwise as :func:`predict`."""
    y = np.asarray(rows["y"], np.float64)
    mean, each = _over_draws(
        target,
        flat_draws,
        rows["x"],
        lambda m: np.sqrt(np.mean(np.square(m - y), axis=1)),
    )
    return Prediction(
        measure="rmse",
        posterior_predictive=float(np.sqrt(np.mean(np.square(mean - y)))),
        single_draw=each,
        log_predictive_density=log_predictive_density(target, flat_draws, rows),
        mean=mean,
    )


def _over_draws(
    target: Predicts,
    flat_draws: PyTree,
    x: PyTree,
    score: Callable[[np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """(prediction of each row averaged over draws, float64; score of each draw, of predictions (draws, rows, ...))."""
    total = np.zeros(())
    each = []
    for block in _blocks(_predict(target, len(jax.tree.leaves(x)[0])), flat_draws, x):
        total = total + block.sum(axis=0, dtype=np.float64)
        each.append(score(block))
    scores = np.concatenate(each)
    return total / len(scores), scores


def log_predictive_density(target: Target, flat_draws: PyTree, records: PyTree) -> float:
    """Mean over records of log (1/draws) Σ exp(log-likelihood), for any target.

    A constant that the likelihood leaves out shifts the result.

    Args:
        target: with ``log_likelihood(params, record)``.
        flat_draws: pytree of parameters, leaves (draws, ...).
        records: pytree, leaves (rows, ...).
    """

    def each(params: PyTree, records: PyTree) -> jax.Array:
        return jax.vmap(lambda record: target.log_likelihood(params, record))(records)

    log_sum = np.asarray(-np.inf)
    count = 0
    for block in _blocks(each, flat_draws, records):
        log_sum = np.logaddexp(log_sum, logsumexp(block.astype(np.float64), axis=0))
        count += len(block)
    return float(np.mean(log_sum - np.log(count)))


#: Least rows of a bin that is shown, since a share of fewer rows is too noisy.
FEWEST_IN_BIN = 10


def calibration_curve(
    probability: Float[np.ndarray, " rows"],
    outcome: Shaped[np.ndarray, " rows"],
    bins: int = 10,
) -> Float[np.ndarray, "filled 3"]:
    """Rows (mean predicted probability, observed share, count), one per bin of equal width with at least 10 rows."""
    index = np.minimum((probability * bins).astype(int), bins - 1)
    count = np.bincount(index, minlength=bins)
    sums = [np.bincount(index, weights=of_row, minlength=bins) for of_row in (probability, outcome)]
    filled = count >= FEWEST_IN_BIN
    return np.column_stack([*(each[filled] / count[filled] for each in sums), count[filled]])


def expected_calibration_error(
    probability: Float[np.ndarray, "rows k"],
    y: Shaped[np.ndarray, " rows"],
    bins: int = 15,
) -> float:
    """Return ``Σ_b (n_b/n)·|share of bin b that is right − its mean confidence|`` (Guo et al. 2017), within [0, 1].

    Confidence is the largest class probability; bins have equal width, and none is left out. It is positive for a
    calibrated model too, since bins hold few rows.
    """
    confidence = probability.max(axis=1)
    right = probability.argmax(axis=1) == y
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = np.bincount(index, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(y))


def reliability(probability: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (predicted probability, outcome) for a reliability diagram, each (rows,).

    Two classes: P(y = 1) and whether y is 1. More: the largest class probability and whether that class is right.
    """
    if probability.ndim == 1:
        return probability, y == 1
    return probability.max(axis=1), probability.argmax(axis=1) == y


def _classes(target: object) -> int | None:
    """Return K of a classifier; None for another target."""
    return target_offers(target).num_classes


def _predict(target: Predicts, num_rows: int) -> Evaluate:
    def checked(params: PyTree, x: PyTree) -> jax.Array:
        out = target.predict(params, x)
        _check_shape(target, out.shape, num_rows)
        return out

    return checked


def _check_shape(target: object, found: tuple[int, ...], num_rows: int) -> None:
    classes = _classes(target)
    allowed: list[tuple[int, ...]] = [(num_rows,)] if classes in (None, 2) else []
    if classes is not None:
        allowed.append((num_rows, classes))
    if found not in allowed:
        raise TargetError(
            f"{type(target).__name__}.predict gives shape {found} for {num_rows} rows; with num_classes {classes} it "
            f"must give {' or '.join(map(str, allowed))}"
        )


def _blocks(evaluate: Evaluate, flat_draws: PyTree, records: PyTree) -> Iterator[np.ndarray]:
    """``evaluate(params, records)`` at every draw, in blocks (draws of the block, ...) of bounded size."""
    check_not_forked()
    # Records are an argument: a closure would write them into the compilation cache.
    records = jax.tree.map(jnp.asarray, records)
    flat_draws = jax.tree.map(np.asarray, flat_draws)  # NumPy picks those of a block, without a program of its own
    num_rows = len(jax.tree.leaves(records)[0])
    at_once = max(1, min(16, ROWS_AT_ONCE // max(1, num_rows)))

    @jax.jit
    def over_draws(draws: PyTree, records: PyTree) -> jax.Array:
        return jax.lax.map(lambda params: evaluate(params, records), draws, batch_size=at_once)

    count = len(jax.tree.leaves(flat_draws)[0])
    one = jax.eval_shape(evaluate, jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), flat_draws), records)
    size = max(1, min(count, NUMBERS_AT_ONCE // max(one.size, 1)))
    for start in range(0, count, size):
        # The last block is filled up with repeated draws, so that one shape is compiled.
        index = np.arange(start, start + size) % count
        draws = jax.tree.map(lambda leaf, index=index: jnp.asarray(leaf[index]), flat_draws)
        yield np.asarray(over_draws(draws, records))[: count - start]
