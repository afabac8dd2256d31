r"""Forecast of what a budget buys a chain and costs any answer, from public facts, if the model is true.

**Relaxations.** At temperature 1 a private chain may run for a time τ (``Plan.private_time``), whatever its steps. A
direction of curvature λ relaxes in 1/λ, so the budget buys n = τ λ relaxations of it. Nominal 90 % intervals of draws
that span n of them cover .76 of the slowest direction at 7 and .86 at 25 (``obstacles.py``). R-hat is below
1.3 from 25 on.

* Identity metric: the records may say nothing of some direction, whose curvature is that of the prior, m.
* Private metric, before it is released: as if all directions were alike in it. A typical whitened vector has norm C/κ,
  so the records give each of p directions the curvature h = c N (C/κ)²/p. With τ = μ²/(2C²·chains), where μ² is what
  the metric leaves, that is n = μ² c N/(2κ² p·chains) (``replace_one``).
* Private metric that has been released: the smallest eigenvalue of F⁻¹(cĜ + m I)F⁻¹.

c is the mean curvature of a record's loss in x·θ, label-blind weights included, with θ from the prior.

**Width.** ``predicted_width`` is that of ``inference/normal_law.py``, of an ideal answer from the run's gradients. All
gradients of a run together carry noise of variance 2/(τ·chains), as full batches of the same budget do. Those after
burn-in, with a part k of Σ 1/s_t², carry s² = 2/(k τ·chains). So a gradient has the noise s² F², the curvature H = c G,
the score's variance H/l² and, in a private metric of rows, the error of the released Gram matrix.

* Before the run G has the spectrum of rows that stand in for the real ones, and F follows from it and from the noise of
  its release. A metric of gradients makes all directions alike, so one direction stands for all.
* After a run in a metric of rows G is the released Gram matrix, and F the released metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmcmc.inference.bounded_score import LabelBlind
from dpmcmc.inference.curvature import average_law
from dpmcmc.inference.linear_score import Linear
from dpmcmc.inference.normal_law import Local
from dpmcmc.inference.predicted_width import noise_left, predicted, usual_spectrum
from dpmcmc.inference.released_metric import ReleasedMetric, metric_floor, metric_roots
from dpmcmc.inference.scores import score_of
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.targets.generalised_linear import GeneralisedLinear

if TYPE_CHECKING:
    from dpmcmc.planning.plan import Plan


class Law(NamedTuple):
    """Effect of label-blind weights on the curvature that a record gives.

    Attributes:
        curvature: c.
        widening: width of intervals of draws at temperature 1 over the right one. Under label-blind weights w draws
            have the covariance H⁻¹ and their centre H⁻¹BH⁻¹, H = E[w h] and B = E[w² h] of a record's curvature h, so
            it is √(H/B) >= 1.
        weighted: part of the records' curvature that the weights leave, at most 1.
    """

    curvature: float = 1.0
    widening: float = 1.0
    weighted: float = 1.0


class Curvatures(NamedTuple):
    """Curvatures of the potential in the units of a run; None where public facts leave them unknown.

    Attributes:
        law: of a record.
        slowest: the least one.
        records: that the records give a typical direction.
        prior: that the prior gives it.
        largest: the largest one.
    """

    law: Law = Law()
    slowest: float | None = None
    records: float | None = None
    prior: float | None = None
    largest: float | None = None


@on_one_blas_thread
def curvatures(plan: Plan, released: ReleasedMetric | None = None) -> Curvatures:
    """Return what is known of a plan's curvatures.

    Args:
        plan: of a sampler.
        released: metric that its run has released, or None before that.
    """
    if plan.metric is not None:
        found = _in_private_metric(plan, plan.metric, released)
    else:
        found = Curvatures() if plan.in_metric else _in_own_units(plan)
    # Where the likelihood is not log-concave, it may leave a direction with less than the slowest.
    return found if plan.target_offers.log_concave else found._replace(slowest=None)


def _in_own_units(plan: Plan) -> Curvatures:
    offers = plan.target_offers
    prior = offers.prior_precision
    law = _law(plan, offers.row_bound)
    records = None
    if law is not None and offers.row_bound is not None and offers.num_features is not None:
        records = law.curvature * plan.num_records * offers.row_bound**2 / offers.num_features
    largest = None
    declared = plan.sampler_run.curvature
    if declared is not None:
        largest = declared * plan.num_records
    elif offers.smoothness is not None and prior is not None:
        largest = offers.smoothness * plan.num_records * _steepening(plan) + prior
    return Curvatures(law or Law(), prior, records, prior, largest)


def _in_private_metric(plan: Plan, metric: PlannedMetric, released: ReleasedMetric | None) -> Curvatures:
    offers = plan.target_offers
    typical = metric.typical_norm
    rows = metric.release.rows
    prior = offers.prior_precision or 0.0
    each = plan.num_records * typical**2 / rows.size
    if not metric.asked.of_rows:
        # A logistic gradient is about half as long as its row.
        law = (_law(plan, 2 * typical) or Law())._replace(curvature=1.0)
        slowest = each if released is None else float(released.curvatures(1.0, prior)[0])
        return Curvatures(law, slowest, each, 0.0)
    found = _law(plan, typical)
    if found is None:
        return Curvatures()
    # F² is a multiple of the rows' second moment where directions are alike, and so is F⁻² of the identity.
    own = prior * (typical / rows.row_bound) ** 2
    most = offers.curvature_bound
    steepest = None if most is None else (offers.weight_scale or 1.0) * most * _steepening(plan)

    def reach(curvature: float, end: int) -> float:
        if released is None:
            return curvature * each + own
        return float(released.curvatures(curvature, prior)[end])

    largest = None if steepest is None else reach(steepest, -1)
    return Curvatures(found, reach(found.curvature, 0), found.curvature * each, own, largest)


def _law(plan: Plan, norm: float | None) -> Law | None:
    """Law of rows of a norm in the units of the run; None where the model is another or has no bound."""
    offers = plan.target_offers
    if offers.offset_bound is not None or offers.weight_scale is not None:
        return None  # no law is derived of records with an offset or a weight
    score = score_of(plan.target)
    if isinstance(score, Linear):
        return Law(1 / score.dispersion)
    # Chains weight scores blindly to labels or not at all.
    if not isinstance(score, LabelBlind) or not isinstance(plan.target, GeneralisedLinear) or norm is None:
        return None
    if plan.target.row_bound is None:
        return None
    predictors = (plan.target.prior_scale * plan.target.row_bound) ** 2 / 2
    law, free = (average_law(score, predictors, clip / norm) for clip in (_clip(plan), math.inf))
    if not (law.curvature > 0 and law.variance > 0 and free.curvature > 0):
        return None  # predictors so far out that float64 holds no curvature of theirs
    return Law(law.curvature, math.sqrt(law.curvature / law.variance), law.curvature / free.curvature)


def _clip(plan: Plan) -> float:
    """C of label-blind weights; infinite where gradients are not weighted."""
    return plan.privacy.clip if plan.privacy is not None and plan.label_blind else math.inf


def gradient_bound(plan: Plan) -> float | None:
    """Return the target's bound on a record's gradient; None in a metric, where that is the bound of another norm."""
    return None if plan.in_metric else plan.target_offers.gradient_bound


def _steepening(plan: Plan) -> float:
    """Most that label-blind weights multiply a record's curvature by (``query/per_record_gradients.py``)."""
    bound = gradient_bound(plan)
    unweighted = bound is not None and _clip(plan) >= bound
    return 2.0 if plan.label_blind and not unweighted else 1.0


def bought(plan: Plan, known: Curvatures) -> float | None:
    """Return the relaxations of the slowest direction that the budget buys each chain at temperature 1."""
    return None if plan.private_time is None or known.slowest is None else plan.private_time * known.slowest


@on_one_blas_thread
def predicted_width(plan: Plan, known: Curvatures, released: ReleasedMetric | None = None) -> float | None:
    """Return the predicted width of intervals of an ideal answer from a run's gradients over that without privacy.

    None where public facts do not tell it. A real answer is wider.

    Args:
        plan: of a sampler.
        known: its curvatures.
        released: metric that its run has released, or None before that.
    """
    time = plan.private_time
    if time is None or known.records is None or known.prior is None:
        return None
    noise = gradient_variance(plan, time)
    prior = plan.target_offers.prior_precision or 0.0
    if released is not None and released.name == "gram":
        square = released.root @ released.root
        alike = prior * np.eye(len(square))
        return _width(known.law, released.gram, alike, noise * square, released.denoised.error)
    if plan.metric is not None and not plan.metric.asked.of_rows:
        return _width(known.law, _directions(known.records), _directions(known.prior), _directions(noise))
    return _width_of_usual_rows(plan, known.law, prior, noise)


def gradient_variance(plan: Plan, time: float) -> float:
    """Return s², the variance of all gradients after burn-in together; ``time`` is the plan's ``private_time``."""
    if not math.isfinite(time):
        return 0.0
    weights = plan.noise_std.astype(np.float64) ** -2.0
    return 2 * float(weights.sum() / weights[plan.burn_in :].sum()) / (time * plan.chains)


def _width_of_usual_rows(plan: Plan, law: Law, prior: float, noise: float) -> float:
    """Return the width for rows that stand in for the real ones, in directions that do not depend on each other."""
    size = plan.target_offers.num_features
    bound = plan.target_offers.row_bound
    assert size is not None
    assert bound is not None
    gram = usual_spectrum(size, plan.num_records * bound**2)
    square = np.ones(size)
    std = 0.0
    if plan.metric is not None:
        assert plan.privacy is not None
        std = noise_left(plan.metric.release.noise_std, plan.metric.asked.structure)
        floor = metric_floor(bound**2, std, plan.num_records, size)
        square = metric_roots(gram / plan.num_records, floor, plan.privacy.clip, plan.metric.asked.ratio) ** 2
    return _width(
        law,
        _directions(gram),
        _directions(np.full(size, prior)),
        _directions(noise * square),
        # Noise off the diagonal moves a direction's error by the variances of all.
        lambda q: std**2 / 2 * (np.sum(q) + q),
    )


def _directions(values: np.ndarray | float) -> np.ndarray:
    """Return a number for each of independent directions as matrices of one entry, (d, 1, 1)."""
    return np.reshape(values, (-1, 1, 1))


def _width(
    law: Law,
    gram: np.ndarray,
    precision: np.ndarray,
    noise: np.ndarray,
    error: Callable[[np.ndarray], np.ndarray] = np.zeros_like,
) -> float:
    """Return the width from a second moment of rows, the prior's precision, the gradients' noise and the error of G."""
    curvature = law.curvature * gram
    local = Local(curvature, curvature / law.widening**2, lambda q: law.curvature**2 * error(q))
    alone = np.linalg.inv(precision + curvature / law.weighted)
    return predicted(local, noise, precision, alone).width()
