"""A plan whose path is recorded, because a posterior is concluded from it, and the trace of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.inference.trace import Trace
from dpmcmc.storage.blas import on_one_blas_thread

if TYPE_CHECKING:
    from dpmcmc.planning.plan import Plan


def variances(plan: Plan) -> np.ndarray:
    """Return s_t² of the steps between kept draws, (draws, thin)."""
    kept = plan.noise_std.astype(np.float64)[plan.burn_in :]
    return (kept[: plan.num_draws * plan.thin] ** 2).reshape(plan.num_draws, plan.thin)


def equal_steps(plan: Plan) -> float:
    """Return of how many steps of equal weight the mean of a plan's path is made: (Σ 1/s_t²)²/Σ 1/s_t⁴."""
    precisions = 1 / variances(plan)
    return float(plan.chains * np.sum(precisions) ** 2 / np.sum(precisions**2))


def recorded_blocks(plan: Plan) -> tuple[int, int] | None:
    """Return (burn-in, thinning) of a plan whose path is recorded, or None."""
    return None if plan.end is None else (plan.burn_in, plan.thin)


@on_one_blas_thread
def trace_of(
    plan: Plan,
    means: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None,
    metric: ReleasedMetric | None,
) -> Trace:
    """Return the trace of a run, in the coordinates of its draws.

    Args:
        plan: what was run.
        means: of positions and of gradients over the steps from one draw to the next, (chains, draws, d) each, and the
            scatter of positions about them (``engine/recorded.py``), in units of the metric that the run released;
            None where none are kept.
        metric: that metric, or None.

    Raises:
        UnsupportedCombination: the run keeps no path.
    """
    if means is None or metric is None:
        raise UnsupportedCombination(
            f"noise_aware: {plan.label} keeps no path that a posterior is concluded from; a chain needs an end, which "
            "label-blind gradients of a logistic regression in metric gram have, or use mechanism noise_aware."
        )
    prior = plan.target_offers.prior_precision or 0.0
    scatter = np.zeros_like(metric.root) if means[2] is None else np.sum(np.asarray(means[2], np.float64), axis=0)
    positions = np.asarray(means[0], np.float64) @ metric.inverse.T
    gradients = np.asarray(means[1], np.float64) @ metric.root
    blocks = variances(plan)
    precisions = np.sum(1 / blocks, axis=1)
    return Trace(
        positions=positions,
        gradients=gradients - prior * positions,
        spread=_spread(positions, precisions, metric.inverse @ scatter @ metric.inverse.T),
        precisions=precisions,
        squares=np.sum(blocks**-2.0, axis=1),
        rate=plan.sampling.rate(plan.num_records),
        metric=metric,
    )


def _spread(positions: np.ndarray, precisions: np.ndarray, scatter: np.ndarray) -> np.ndarray:
    """Return the covariance of the positions of all steps, with weights 1/s_t²: that of draws depends on thin."""
    weights = np.broadcast_to(precisions, positions.shape[:2])
    total = weights.sum()
    away = positions - np.einsum("cb,cbi->i", weights, positions) / total
    return (np.einsum("cb,cbi,cbj->ij", weights, away, away, optimize=True) + scatter) / total
