"""A plan whose path is recorded, and the facts of it that a posterior from the path rests on (``inference/trace.py``).

A path is recorded of a regression in a metric: one that the run releases, or a public one of the sampler.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, cast

import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference.bounded_score import LabelBlind
from dpmcmc.inference.path_law import Scheme, Score
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.inference.scores import score_of
from dpmcmc.inference.trace import NO_SECOND_MOMENT, Trace, check_prior, check_steps
from dpmcmc.privacy.accounting.sampling import FixedSize, Full, Poisson
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.targets.generalised_linear import GeneralisedLinear

if TYPE_CHECKING:
    from dpmcmc.planning.plan import Plan

_SCHEMES: dict[type, Scheme] = {Full: "full", Poisson: "poisson", FixedSize: "fixed_size"}
#: A bound that holds within so many times the longest draw is taken to hold on the path between draws too.
_BETWEEN_DRAWS = 1.5


_NO_METRIC = (
    "noise_aware: the run has no metric, so the curvature of its model is not known, and intervals from such a path "
    "were seen to cover .04 of a nominal .90; plan it with metric=dpmcmc.PrivateMetric(), or use mechanism noise_aware."
)


def check_path(plan: Plan) -> None:
    """Refuse a plan whose path is known to give no posterior before a record is read.

    A path that passes may still be refused once it has been released: it may be too wide or too far away.

    Raises:
        UnsupportedCombination: the reason, and what would be needed.
    """
    target, _ = _regression(plan)
    if not plan.in_metric:
        raise UnsupportedCombination(_NO_METRIC)
    if plan.metric is None or not plan.metric.asked.of_rows:
        raise UnsupportedCombination(NO_SECOND_MOMENT)
    if plan.privacy is not None and not plan.label_blind:
        raise UnsupportedCombination(
            "noise_aware: whether clipping shrinks residuals is known once the path has been released."
        )
    noise = variances(plan)
    check_steps(plan.chains * np.sum(1 / noise) ** 2 / np.sum(noise**-2.0))
    check_prior(target.prior_precision, target.row_bound)


def variances(plan: Plan) -> np.ndarray:
    """Return s_t² of the steps between kept draws, (draws, thin).

    Raises:
        UnsupportedCombination: a step without noise.
    """
    kept = plan.noise_std.astype(np.float64)[plan.burn_in :]
    noise = kept[: plan.num_draws * plan.thin] ** 2
    if not noise.all():
        raise UnsupportedCombination("noise_aware: gradients without noise have no noise law; give the run privacy.")
    return noise.reshape(plan.num_draws, plan.thin)


def recorded_blocks(plan: Plan) -> tuple[int, int] | None:
    """Return (burn-in, thinning) of a plan whose path is recorded, or None."""
    return (plan.burn_in, plan.thin) if plan.in_metric and isinstance(score_of(plan.target), LabelBlind) else None


@on_one_blas_thread
def trace_of(
    plan: Plan,
    draws: np.ndarray,
    means: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None,
    metric: ReleasedMetric | None,
) -> Trace:
    """Return the trace of a run, in the coordinates of its draws.

    Args:
        plan: what was run.
        draws: (chains, draws, d).
        means: of positions and of gradients over the steps from one draw to the next, (chains, draws, d) each, and the
            scatter of positions about them (``engine/program.py``), in units of the metric that the run released, if
            any; None where none are kept.
        metric: that metric, or None.

    Raises:
        UnsupportedCombination: no posterior follows from such a run; the reason, and what would be needed.
    """
    if plan.run is None:
        raise UnsupportedCombination(
            f"noise_aware: {plan.label} keeps no path of gradients; use a sampler in a metric, or mechanism "
            "noise_aware, whose draws are such a posterior already."
        )
    target, _ = _regression(plan)
    if means is None:
        raise UnsupportedCombination(_NO_METRIC)
    positions, gradients = (np.asarray(leaf, np.float64) for leaf in means[:2])
    scatter = _scatter(plan, means[2], positions.shape[-1])
    root = _root(plan, metric, positions.shape[-1])
    if metric is not None:
        positions = positions @ metric.inverse.T
        gradients = gradients @ root
        scatter = metric.inverse @ scatter @ metric.inverse.T
    flat = np.asarray(draws, np.float64).reshape(-1, positions.shape[-1])
    blocks = variances(plan)
    precisions = np.sum(1 / blocks, axis=1)
    centre, spread = _spread(positions, precisions, scatter)
    return Trace(
        positions=positions,
        gradients=gradients - target.prior_precision * positions,
        spread=spread,
        precisions=precisions,
        squares=np.sum(blocks**-2.0, axis=1),
        root=root,
        num_records=plan.num_records,
        scheme=_SCHEMES[type(plan.sampling)],
        rate=plan.sampling.rate(plan.num_records),
        prior_precision=target.prior_precision,
        row_bound=target.row_bound,
        score=_score(plan, root, _radius(flat, centre, spread)),
        metric=metric,
    )


def _scatter(plan: Plan, found: np.ndarray | None, size: int) -> np.ndarray:
    """Return the scatter of positions about the means of their blocks, of all chains and steps, (d, d).

    Raises:
        UnsupportedCombination: none was recorded, so that draws may hide how hot the path is.
    """
    if found is not None:
        return np.sum(np.asarray(found, np.float64), axis=0)
    if plan.thin > 1:
        raise UnsupportedCombination(
            f"noise_aware: keeps no spread of the path between draws of {size} coefficients; plan it with thin=1."
        )
    return np.zeros((size, size))


def _spread(positions: np.ndarray, precisions: np.ndarray, scatter: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of the positions of all steps, with weights 1/s_t²: that of draws depends on thin."""
    weights = np.broadcast_to(precisions, positions.shape[:2])
    total = weights.sum()
    centre = np.einsum("cb,cbi->i", weights, positions) / total
    away = positions - centre
    return centre, (np.einsum("cb,cbi,cbj->ij", weights, away, away, optimize=True) + scatter) / total


def _radius(draws: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> float:
    """Return a distance from 0 that a path keeps within: beyond its draws, or 3 standard deviations if that is more."""
    variances = np.linalg.eigvalsh(spread).clip(min=0)
    far = np.linalg.norm(centre) + math.sqrt(variances.sum()) + 3 * math.sqrt(variances[-1])
    return max(_BETWEEN_DRAWS * float(np.max(np.linalg.norm(draws, axis=1))), float(far))


def _regression(plan: Plan) -> tuple[GeneralisedLinear, LabelBlind]:
    """Return the target of a plan, and its score.

    Raises:
        UnsupportedCombination: none that a posterior from a path is derived for.
    """
    score = score_of(plan.target)
    offers = plan.target_offers
    if offers.offset_bound is not None or offers.weight_scale is not None:
        raise UnsupportedCombination(
            "noise_aware: no posterior from a path is derived for records with an offset or a weight."
        )
    if isinstance(score, LabelBlind):
        return cast(GeneralisedLinear, plan.target), score
    raise UnsupportedCombination(
        "noise_aware: a path is concluded from for LogisticRegression and LinearRegression, and the target is "
        f"{type(plan.target).__name__}" + (". Use mechanism noise_aware." if score is not None else ".")
    )


def _root(plan: Plan, released: ReleasedMetric | None, size: int) -> np.ndarray:
    """Return F, (d, d)."""
    if released is not None:
        return released.root
    public = plan.sampler_run.offers.metric
    if public is None:
        return np.eye(size)
    return public.array if public.array.ndim == 2 else np.diag(np.broadcast_to(public.array, (size,)))


def _score(plan: Plan, root: np.ndarray, radius: float) -> Score:
    """Return the law of a record's score on a path within this distance from 0.

    Raises:
        UnsupportedCombination: clipping that biases it.
    """
    target, family = _regression(plan)
    score = Score(family)
    if plan.privacy is None:
        return score
    if plan.label_blind:
        return dataclasses.replace(score, clip=plan.privacy.clip)
    bound = target.gradient_bound_within(radius)
    longest = math.inf if bound is None else bound / float(np.linalg.svd(root, compute_uv=False).min())
    if plan.privacy.clip < longest:
        raise UnsupportedCombination(
            f"noise_aware: clip {plan.privacy.clip:g} shrinks residuals, which biases the gradient; use clipping "
            f"label_blind where labels are bounded, or a clip of at least the longest gradient, {longest:.3g}."
        )
    return score
