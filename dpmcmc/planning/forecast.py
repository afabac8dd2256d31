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
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Curvatures:
    """Curvatures of the potential in the units of a run; None where public facts leave them unknown.

    Attributes:
        slowest: the least one.
        records: that the records give a typical direction.
        prior: that the prior gives it.
        largest: the largest one.
        widening: width of intervals of draws at temperature 1 over the right one. Under label-blind weights w draws
            have the covariance H⁻¹ and their centre H⁻¹BH⁻¹, H = E[w h] and B = E[w² h] of a record's curvature h, so
            it is √(H/B) >= 1.
        likelihood: c.
        weighted: part of the records' curvature that label-blind weights leave, at most 1.
    """

    slowest: float | None = None
    records: float | None = None
    prior: float | None = None
    largest: float | None = None
    widening: float = 1.0
    likelihood: float = 1.0
    weighted: float = 1.0


class _Law(NamedTuple):
    """c of a record, the widening of :class:`Curvatures`, and the part of the curvature that weights leave."""

    curvature: float = 1.0
    widening: float = 1.0
    weighted: float = 1.0


@on_one_blas_thread
def curvatures(plan: Plan, released: ReleasedMetric | None = None) -> Curvatures:
    """Return what is known of a plan's curvatures.

    Args:
        plan: of a sampler.
        released: metric that its run has released, or None before that.
    """
    if plan.metric is not None:
        return _in_private_metric(plan, plan.metric, released)
    if plan.in_metric:
        return Curvatures()
    offers = plan.target_offers
    prior = offers.prior_precision
    law = _law(plan, offers.row_bound)
    records = None
    if law is not None and offers.row_bound is not None and offers.num_features is not None:
        records = law.curvature * plan.num_records * offers.row_bound**2 / offers.num_features
    largest = None
    if plan.curvature is not None:
        largest = plan.curvature * plan.num_records
    elif offers.smoothness is not None and prior is not None:
        largest = offers.smoothness * plan.num_records * _steepening(plan) + prior
    return _known(plan, law or _Law(), prior, records, prior, largest)


def _in_private_metric(plan: Plan, metric: PlannedMetric, released: ReleasedMetric | None) -> Curvatures:
    typical = metric.typical_norm
    rows = metric.release.rows
    prior = plan.target_offers.prior_precision or 0.0
    each = plan.num_records * typical**2 / rows.size
    if not metric.asked.of_rows:
        # A logistic gradient is about half as long as its row.
        law = (_law(plan, 2 * typical) or _Law())._replace(curvature=1.0)
        slowest = each if released is None else float(released.curvatures(1.0, prior)[0])
        return _known(plan, law, slowest, each, 0.0, None)
    found = _law(plan, typical)
    if found is None:
        return Curvatures()
    # F² is a multiple of the rows' second moment where directions are alike, and so is F⁻² of the identity.
    own = prior * (typical / rows.row_bound) ** 2
    slowest = found.curvature * each + own
    most = plan.target_offers.curvature_bound
    weight = plan.target_offers.weight_scale or 1.0
    steepest = None if most is None else weight * most * _steepening(plan)
    largest = None if steepest is None else steepest * each + own
    if released is not None:
        slowest = float(released.curvatures(found.curvature, prior)[0])
        largest = None if steepest is None else float(released.curvatures(steepest, prior)[-1])
    return _known(plan, found, slowest, found.curvature * each, own, largest)


def _known(
    plan: Plan,
    law: _Law,
    slowest: float | None,
    records: float | None,
    prior: float | None,
    largest: float | None,
) -> Curvatures:
    # Where the likelihood is not log-concave, it may leave a direction with less than the slowest.
    slowest = slowest if plan.target_offers.log_concave else None
    return Curvatures(slowest, records, prior, largest, law.widening, law.curvature, law.weighted)


def _law(plan: Plan, norm: float | None) -> _Law | None:
    """Law of rows of a norm in the units of the run; None where the model is another or has no bound."""
    offers = plan.target_offers
    if offers.offset_bound is not None or offers.weight_scale is not None:
        return None  # no law is derived of records with an offset or a weight
    score = score_of(plan.target)
    if isinstance(score, Linear):
        return _Law(1 / score.dispersion)
    # Chains weight scores blindly to labels or not at all.
    if not isinstance(score, LabelBlind) or not isinstance(plan.target, GeneralisedLinear) or norm is None:
        return None
    if plan.target.row_bound is None:
        return None
    predictors = (plan.target.prior_scale * plan.target.row_bound) ** 2 / 2
    law, free = (average_law(score, predictors, clip / norm) for clip in (_clip(plan), math.inf))
    if not (law.curvature > 0 and law.variance > 0 and free.curvature > 0):
        return None  # predictors so far out that float64 holds no curvature of theirs
    return _Law(
        law.curvature,
        math.sqrt(law.curvature / law.variance),
        law.curvature / free.curvature,
    )


def _clip(plan: Plan) -> float:
    """C of label-blind weights; infinite where gradients are not weighted."""
    return plan.privacy.clip if plan.privacy is not None and plan.label_blind else math.inf


def _steepening(plan: Plan) -> float:
    """Most that label-blind weights multiply a record's curvature by (``query/per_record_gradients.py``)."""
    bound = None if plan.in_metric else plan.target_offers.gradient_bound
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
        return _width(
            known,
            released.gram,
            prior * np.eye(len(square)),
            noise * square,
            released.denoised.error,
        )
    if plan.metric is not None and not plan.metric.asked.of_rows:
        return _width(
            known,
            _directions(known.records),
            _directions(known.prior),
            _directions(noise),
        )
    return _width_of_usual_rows(plan, known, prior, noise)


def gradient_variance(plan: Plan, time: float) -> float:
    """Return s², the variance of all gradients after burn-in together; ``time`` is the plan's ``private_time``."""
    if not math.isfinite(time):
        return 0.0
    weights = plan.noise_std.astype(np.float64) ** -2.0
    return 2 * float(weights.sum() / weights[plan.burn_in :].sum()) / (time * plan.chains)


def _width_of_usual_rows(plan: Plan, known: Curvatures, prior: float, noise: float) -> float:
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
        known,
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
    known: Curvatures,
    gram: np.ndarray,
    precision: np.ndarray,
    noise: np.ndarray,
    error: Callable[[np.ndarray], np.ndarray] = np.zeros_like,
) -> float:
    """Return the width from a second moment of rows, the prior's precision, the gradients' noise and the error of G."""
    curvature = known.likelihood * gram
    local = Local(curvature, curvature / known.widening**2, lambda q: known.likelihood**2 * error(q))
    alone = np.linalg.inv(precision + curvature / known.weighted)
    return predicted(local, noise, precision, alone).width()
