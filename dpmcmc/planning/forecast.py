r"""Forecast of what a budget buys a chain and costs any answer, from public facts, if the model is true.

**Relaxations.** At temperature 1 a private chain may run for a time τ (``Plan.private_time``), whatever its steps. A
direction of curvature λ relaxes in 1/λ, so the budget buys n = τ λ relaxations of it. Chains need about 7 of the
slowest direction for 90 % intervals to cover 85 %, and 25 for R-hat below 1.3.

* Identity metric: the records may say nothing of some direction, whose curvature is that of the prior, m.
* Private metric, before it is released: as if all directions were alike in it. A typical whitened vector has norm C/κ,
  so the records give each of p directions the curvature h = c N (C/κ)²/p. With τ = μ²/(2C²·chains), where μ² is what
  the metric leaves, that is n = μ² c N/(2κ² p·chains) (``replace_one``).
* Private metric that has been released: the smallest eigenvalue of F⁻¹(cĜ + m I)F⁻¹.

c is the mean curvature of a record's loss in x·θ, label-blind weights included, with θ from the prior.

**Inflation.** All gradients of a run together carry noise of variance s² = 2/(τ·chains), as full batches of the same
budget do. One direction with curvature h from the records then tells h²/(h + s²) of θ in place of h, so any honest
answer has (m + h)/(m + h²/(h + s²)) times the variance of the non-private posterior: 1 + s²/h where the prior says
little. Here h is that of a typical direction, as if the row's squared bound were shared by all d directions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpmcmc.inference.metric import ReleasedMetric
from dpmcmc.inference.noise_aware import LogisticLaw
from dpmcmc.targets.base import Target
from dpmcmc.targets.glm import LinearRegression, LogisticRegression

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
    """

    slowest: float | None = None
    records: float | None = None
    prior: float | None = None
    largest: float | None = None
    widening: float = 1.0


def curvatures(plan: Plan, released: ReleasedMetric | None = None) -> Curvatures:
    """Return what is known of a plan's curvatures.

    Args:
        plan: of a sampler.
        released: metric that its run has released, or None before that.
    """
    if plan.metric is not None:
        return _in_private_metric(plan, released)
    if plan.in_metric:
        return Curvatures()
    prior, bound = _fact(plan.target, "prior_precision"), _fact(plan.target, "row_bound")
    smoothness, size = _fact(plan.target, "smoothness"), _fact(plan.target, "num_features")
    law, records, largest = _law(plan, bound), None, None
    if law is not None and bound is not None and size is not None:
        records = law[0] * plan.num_records * bound**2 / size
    if plan.curvature is not None:
        largest = plan.curvature * plan.num_records
    elif smoothness is not None and prior is not None:
        largest = smoothness * plan.num_records * _steepening(plan) + prior
    return Curvatures(_if_log_concave(plan, prior), records, prior, largest, 1.0 if law is None else law[1])


def _in_private_metric(plan: Plan, released: ReleasedMetric | None) -> Curvatures:
    assert plan.metric is not None
    assert plan.privacy is not None
    asked, target = plan.metric.asked, plan.target
    typical, prior = plan.privacy.clip / asked.ratio, _fact(target, "prior_precision") or 0.0
    # A logistic gradient is about half as long as its row.
    law = _law(plan, typical if asked.of_rows else 2 * typical)
    most = _fact(target, "curvature_bound") if asked.of_rows else None
    each = plan.num_records * typical**2 / plan.metric.release.rows.size
    # F² is a multiple of the rows' second moment where directions are alike, and so is F⁻² of the identity.
    own = prior * (typical / plan.metric.release.rows.row_bound) ** 2 if asked.of_rows else 0.0
    if law is None and asked.of_rows:
        return Curvatures()
    mean, widening = (1.0 if law is None or not asked.of_rows else law[0]), 1.0 if law is None else law[1]
    slowest, largest = mean * each + own, None if most is None else most * _steepening(plan) * each + own
    if released is not None:
        slowest = float(released.curvatures(mean, prior)[0])
        largest = None if most is None else float(released.curvatures(most * _steepening(plan), prior)[-1])
    return Curvatures(_if_log_concave(plan, slowest), mean * each, own, largest, widening)


def _law(plan: Plan, norm: float | None) -> tuple[float, float] | None:
    """(c, widening) of rows of a norm in the units of the run; None where the model is another or has no bound."""
    target, bound = plan.target, _fact(plan.target, "row_bound")
    if isinstance(target, LinearRegression):
        return target.curvature_bound, 1.0
    if not isinstance(target, LogisticRegression) or bound is None or norm is None:
        return None
    law = LogisticLaw.at(0.0, (target.prior_scale * bound) ** 2 / 2, norm, _clip(plan))
    return law.curvature, math.sqrt(law.curvature / law.score)


def _clip(plan: Plan) -> float:
    """C of label-blind weights; infinite where gradients are not weighted."""
    return plan.privacy.clip if plan.privacy is not None and plan.label_blind else math.inf


def _steepening(plan: Plan) -> float:
    """Most that label-blind weights multiply a record's curvature by (``query/label_blind.py``)."""
    bound = None if plan.in_metric else _fact(plan.target, "gradient_bound")
    return 1.0 if bound is not None and _clip(plan) >= bound else 2.0 if plan.label_blind else 1.0


def _if_log_concave(plan: Plan, slowest: float | None) -> float | None:
    """The least curvature, where the likelihood leaves no direction with less."""
    return slowest if getattr(plan.target, "log_concave", False) else None


def _fact(target: Target, name: str) -> float | None:
    return getattr(target, name, None)


def bought(plan: Plan, known: Curvatures) -> float | None:
    """Return the relaxations of the slowest direction that the budget buys each chain at temperature 1."""
    return None if plan.private_time is None or known.slowest is None else plan.private_time * known.slowest


def inflation(plan: Plan, known: Curvatures) -> float | None:
    """Return the predicted variance of an honest answer in a typical direction over that of the non-private one."""
    time, h, m = plan.private_time, known.records, known.prior
    if time is None or h is None or m is None:
        return None
    return (m + h) / (m + h**2 / (h + 2 / (time * plan.chains)))
