"""How well draws predict test rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class BinaryPrediction:
    """Predictions of a two-class model on test rows.

    Attributes:
        probability: posterior predictive P(y = 1), (rows,).
        posterior_predictive: its accuracy.
        single_draw: accuracy of each draw alone, (draws,).
        log_predictive_density: mean log posterior predictive probability of the true label.
    """

    probability: np.ndarray
    posterior_predictive: float
    single_draw: np.ndarray
    log_predictive_density: float

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "accuracy": {
                "posterior_predictive": self.posterior_predictive,
                "mean": float(self.single_draw.mean()),
                "std": float(self.single_draw.std()),
            },
            "log_predictive_density": self.log_predictive_density,
        }


def binary(target: Any, flat_draws: Any, rows: dict[str, np.ndarray]) -> BinaryPrediction:
    """Predict two-class rows with every draw.

    Args:
        target: with ``predict(params, x) -> P(y = 1)``.
        flat_draws: pytree, leaves (draws, ...).
        rows: ``{"x": (rows, d), "y": (rows,)}``.
    """
    y = np.asarray(rows["y"])

    # Rows are an argument: a closure would write them into the compilation cache.
    @jax.jit
    def predict(draws: Any, x: jax.Array) -> jax.Array:
        return jax.lax.map(lambda p: target.predict(p, x), draws, batch_size=16)

    each = np.asarray(predict(jax.tree.map(jnp.asarray, flat_draws), jnp.asarray(rows["x"])))
    probability = each.mean(axis=0)
    truth = np.where(y == 1, probability, 1 - probability)
    return BinaryPrediction(
        probability=probability,
        posterior_predictive=float(np.mean((probability > 0.5) == (y == 1))),
        single_draw=np.mean((each > 0.5) == (y == 1)[None, :], axis=1),
        log_predictive_density=float(np.mean(np.log(np.maximum(truth, 1e-12)))),
    )


def calibration_curve(probability: np.ndarray, y: np.ndarray, bins: int = 10) -> np.ndarray:
    """Rows (mean predicted probability, observed share, count), one per non-empty bin of equal width."""
    index = np.minimum((probability * bins).astype(int), bins - 1)
    rows = [
        (probability[index == b].mean(), y[index == b].mean(), int((index == b).sum()))
        for b in range(bins)
        if (index == b).any()
    ]
    return np.array(rows)
