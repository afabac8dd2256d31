r"""Forecast of what a budget buys a chain and costs any answer, from public facts, if the model is true.

**Relaxations.** At temperature 1 a private chain may run for a time τ (``Plan.private_time``), whatever its steps. A
direction of curvature λ relaxes in 1/λ, so the budget buys n = τ λ relaxations of it. Nominal 90 % intervals of draws
that span n of them cover .76 of the slowest direction at 7 and .86 at 25 (``verdict.py``). R-hat is below
1.3 from 25 on.

* Identity metric: the records may say nothing of some direction, whose curvature is that of the prior, m.
* Private metric, before it is released: as if all directions were alike in it. A typical whitened vector has norm C/κ,
  so the records give each of p directions the curvature h = c N (C/κ)²/p. With τ = μ²/(2C²·chains), where μ² is what
  the metric leaves, that is n = μ² c N/(2κ² p·chains) (``replace_one``).
* Private metric that has been released: the smallest eigenvalue of F⁻¹(cĜ + m I)F⁻¹.

c is the mean curvature of a record's loss in x·θ, label-blind weights included, with θ from the prior.

**Inflation.** All gradients of a run together carry noise of variance 2/(τ·chains), as full batches of the same budget
do. Those after burn-in, with a part k of Σ 1/s_t², carry s² = 2/(k τ·chains). One direction with curvature h from the
records, h/l² the variance of its score and h₀ the curvature without weights then has the variance q in place of
1/(m + h₀) under an ideal answer from these gradients:

    1/q = m + h²/(h/l² + s² + e q).

The term e q is the error of the curvature. In a private metric that comes from a noisy Gram matrix, and noise of std σ
in units of the metric gives e = c²σ²(p + 1)/2. Elsewhere it is 0. Before the run h is that of a typical direction,
as if the row's squared bound were shared by all d directions. After a run in a metric of rows, Ĝ and F replace it. Then
(P + H(B + V + E)⁻¹H)⁻¹ is compared with (P + H₀)⁻¹, and the width is the mean over coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmcmc.inference.noise_aware import AverageLaw, Gaussian, Local, Release, ReleasedMetric, posterior
from dpmcmc.inference.scores import LabelBlind, Linear, score_of
from dpmcmc.planning.metric import PlannedMetric
from dpmcmc.planning.plan import Plan
from dpmcmc.targets.glm import GeneralisedLinear


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
        error: e, so that e q is the variance of a gradient from the error of a released Gram matrix.
    """

    slowest: float | None = None
    records: float | None = None
    prior: float | None = None
    largest: float | None = None
    widening: float = 1.0
    likelihood: float = 1.0
    weighted: float = 1.0
    error: float = 0.0


class _Law(NamedTuple):
    """c of a record, the widening of :class:`Curvatures`, and the part of the curvature that weights leave."""

    curvature: float = 1.0
    widening: float = 1.0
    weighted: float = 1.0


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
    offers, prior = plan.target_offers, plan.target_offers.prior_precision
    bound, smoothness, size = offers.row_bound, offers.smoothness, offers.num_features
    law, records, largest = _law(plan, bound), None, None
    if law is not None and bound is not None and size is not None:
        records = law.curvature * plan.num_records * bound**2 / size
    if plan.curvature is not None:
        largest = plan.curvature * plan.num_records
    elif smoothness is not None and prior is not None:
        largest = smoothness * plan.num_records * _steepening(plan) + prior
    c, widening, weighted = law or _Law()
    return Curvatures(_if_log_concave(plan, prior), records, prior, largest, widening, c, weighted)


def _in_private_metric(plan: Plan, metric: PlannedMetric, released: ReleasedMetric | None) -> Curvatures:
    asked, offers, rows = metric.asked, plan.target_offers, metric.release.rows
    typical, prior = metric.typical_norm, offers.prior_precision or 0.0
    # A logistic gradient is about half as long as its row.
    law = _law(plan, typical if asked.of_rows else 2 * typical)
    most = offers.curvature_bound if asked.of_rows else None
    each = plan.num_records * typical**2 / rows.size
    # F² is a multiple of the rows' second moment where directions are alike, and so is F⁻² of the identity.
    own = prior * (typical / rows.row_bound) ** 2 if asked.of_rows else 0.0
    if law is None and asked.of_rows:
        return Curvatures()
    mean, widening, weighted = law or _Law()
    mean = mean if asked.of_rows else 1.0
    error = _gram_error(metric, mean) if asked.of_rows else 0.0
    slowest, largest = mean * each + own, None if most is None else most * _steepening(plan) * each + own
    if released is not None:
        slowest = float(released.curvatures(mean, prior)[0])
        largest = None if most is None else float(released.curvatures(most * _steepening(plan), prior)[-1])
    return Curvatures(_if_log_concave(plan, slowest), mean * each, own, largest, widening, mean, weighted, error)


def _gram_error(metric: PlannedMetric, likelihood: float) -> float:
    """e, in units of the metric, as if all directions were alike."""
    release, structure, typical = metric.release, metric.asked.structure, metric.typical_norm
    # Half of the noise contradicts declared blocks, and projecting takes it off (``gradients.py``).
    std = release.noise_std * (0.5 if structure and structure.blocks else 1.0)
    return (likelihood * std * (typical / release.rows.row_bound) ** 2) ** 2 * (release.rows.size + 1) / 2


def _law(plan: Plan, norm: float | None) -> _Law | None:
    """Law of rows of a norm in the units of the run; None where the model is another or has no bound."""
    score = score_of(plan.target)
    if isinstance(score, Linear):
        return _Law(1 / score.dispersion)
    # Chains weight scores blindly to labels or not at all.
    if not isinstance(score, LabelBlind) or not isinstance(plan.target, GeneralisedLinear) or norm is None:
        return None
    if plan.target.row_bound is None:
        return None
    predictors = (plan.target.prior_scale * plan.target.row_bound) ** 2 / 2
    law, free = (AverageLaw.at(score, 0.0, predictors, clip / norm) for clip in (_clip(plan), math.inf))
    return _Law(law.curvature, math.sqrt(law.curvature / law.score), law.curvature / free.curvature)


def _clip(plan: Plan) -> float:
    """C of label-blind weights; infinite where gradients are not weighted."""
    return plan.privacy.clip if plan.privacy is not None and plan.label_blind else math.inf


def _steepening(plan: Plan) -> float:
    """Most that label-blind weights multiply a record's curvature by (``query/label_blind.py``)."""
    bound = None if plan.in_metric else plan.target_offers.gradient_bound
    return 1.0 if bound is not None and _clip(plan) >= bound else 2.0 if plan.label_blind else 1.0


def _if_log_concave(plan: Plan, slowest: float | None) -> float | None:
    """The least curvature, where the likelihood leaves no direction with less."""
    return slowest if plan.target_offers.log_concave else None


def bought(plan: Plan, known: Curvatures) -> float | None:
    """Return the relaxations of the slowest direction that the budget buys each chain at temperature 1."""
    return None if plan.private_time is None or known.slowest is None else plan.private_time * known.slowest


def inflation(plan: Plan, known: Curvatures, released: ReleasedMetric | None = None) -> float | None:
    """Return the predicted variance of an ideal answer from a run's gradients over that of the non-private posterior.

    A real answer is wider.

    Args:
        plan: of a sampler.
        known: its curvatures.
        released: metric that its run has released, or None before that: then a typical direction stands for all.
    """
    time, h, m = plan.private_time, known.records, known.prior
    if time is None or h is None or m is None:
        return None
    noise = 0.0
    if math.isfinite(time):
        weights = plan.noise_std.astype(np.float64) ** -2.0
        noise = 2 * float(weights.sum() / weights[plan.burn_in :].sum()) / (time * plan.chains)
    if released is not None and released.name == "gram":
        return _width_in(released, known, plan.target_offers.prior_precision or 0.0, noise) ** 2
    # 1/q = m + h²/(a + e q), solved for q.
    a, e = h / known.widening**2 + noise, known.error
    half = (m * a + h**2 - e) / 2
    return (m + h / known.weighted) * a / (half + math.sqrt(half**2 + m * a * e))


def _width_in(released: ReleasedMetric, known: Curvatures, prior: float, noise: float) -> float:
    """Mean over coordinates of the predicted width over that of the non-private posterior."""
    c, size = known.likelihood, len(released.root)
    gram, precision = c * released.gram, prior * np.eye(size)
    local = Local(gram, gram / known.widening**2, lambda q: c**2 * released.denoised.error(q))
    release = Release(np.zeros(size), np.zeros(size), noise * released.root @ released.root)
    alone = np.linalg.inv(precision + gram / known.weighted)
    honest = posterior(release, local, precision, Gaussian(np.zeros(size), alone), rounds=12)
    return float(np.mean(np.sqrt(np.diag(honest.covariance) / np.diag(alone))))
