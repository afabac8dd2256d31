"""The posterior that follows from a regression's releases, and why its intervals may not hold; no record is read.

The mean of the last gradients has the law of ``inference/normal_law.py`` about the posterior's mean. Its curvature and
spread are those of normal rows, changed as they were seen to differ from the releases where the gradients end.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from dpmcmc.inference.corrected_matrix import Corrected
from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.evidence import Evidence, prior_covariance
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local
from dpmcmc.inference.rare_levels import rare_levels
from dpmcmc.mechanisms.noise_aware.prior import Concluded, Mixture
from dpmcmc.mechanisms.noise_aware.regression_run import CURVATURES, Ends, Released, State
from dpmcmc.mechanisms.noise_aware.residuals import Residuals

#: Posterior standard deviations between the mean position of the gradients that the posterior is made of, and the
#: position where it is taken to be, beyond which it does.
_MOST_AWAY_IN_STD = 4.0
#: Posterior standard deviations by which slopes that change along the path may move the mean. On public tables,
#: intervals of larger ones covered a third: what normal rows say of the change is then no small correction.
_MAX_SHIFT_IN_STD = 1.0
#: Relative deviation of the spread from the curvature beyond which errors differ so much from row to row that those
#: beyond Huber's bound may all be of a few rows.
_UNEVEN_SPREAD = 0.35
#: Largest noise of the ratio of scores' variance to what a model says of it.
_MOST_RATIO_NOISE = 1.0
#: Stds of this noise by which the ratio has to be above the first number, or below the second, to be told from 1. Where
#: columns separate the labels of a logistic regression, the ratio is .2 to .6.
_RATIO_STDS, _LARGE_RATIO, _SMALL_RATIO = 2.0, 1.25, 0.85
#: Mean of counts that their score may leave out, over the mean itself, and over the posterior's standard deviation of
#: its logarithm. Where the law of the counts is not that of the score, the estimate is off by some of it.
_MOST_LEFT_OUT, _MOST_LEFT_OUT_IN_STD = 0.05, 1.0
#: Largest root mean square of logits over rows where no curvature is released. A table with .3 % of one label has 7,
#: and chains covered .25 to .6 there; Adult has 2.9.
_LARGEST_LOGIT = 4.0
#: Part of the radius beyond which a position stands at its edge: a path is brought back to just within.
_EDGE = 1 - 1e-9
#: Draws that stand for a posterior.
_DRAWS = 200

_MORE = "take a larger epsilon, more records or fewer columns"


def concluded(found: Released) -> Concluded:
    """Return the posterior that follows from all releases, with its evidence."""
    state = found.state
    rows = state.rows
    law = _Law.of(found)
    concluded = rows.prior.concluded(law, found.now, rows.num_rows)
    posterior = concluded.posterior
    evidence = dataclasses.replace(
        concluded.evidence,
        gram=rows.noisy,
        structure=state.plan.options.structure,
        supposed=state.plan.options.supposed,
        doubts=tuple(_doubts(law, concluded.evidence, posterior)),
        label_scale=_label_scale(state, concluded.mixture),
        least=None if found.ends is None else rows.root @ found.ends.confirmed @ rows.root,
        rare=_rare(state, posterior),
    )
    return concluded._replace(evidence=evidence)


@dataclass(frozen=True)
class _Law:
    """The law of the mean of the last gradients, given where the posterior is.

    Attributes:
        found: all that was released.
        release: the mean of the last gradients, corrected for what is known of the mean of scores at the truth.
        spread: B, for each unit of what normal rows make of it; None: none was released.
    """

    found: Released
    release: GradientRelease
    spread: np.ndarray | None = None

    @classmethod
    def of(cls, found: Released) -> _Law:
        """Return the law after all releases."""
        state = found.state
        rows = state.rows
        release = found.path.mean(state.plan.latest, rows.square)
        if found.ends is None:
            return cls(found, release)
        usual = _size(state, state.known.local(found.at).spread)
        spread = rows.root @ (found.ends.spread.matrix / usual) @ rows.root
        return cls(found, _with_shift(state, found.at, release), spread)

    def __call__(self, posterior: Gaussian) -> tuple[GradientRelease, Local]:
        """Return the release and the model of it about a posterior's mean."""
        state, _, _, at, ends = self.found
        # Farther away a law of normal rows is no guide.
        near = state.near(posterior.mean, at)
        local = state.known.local(near)
        release = self.release
        if self.bends:
            release = release._replace(gradient=release.gradient - self.bend(near))
        if ends is None or self.spread is None:
            return release, local
        # By as much as they differed from normal rows where they were released, they differ here.
        spread = _size(state, local.spread) * self.spread
        return release, _as_released(state, ends.curvature, spread, local.curvature)

    @property
    def bends(self) -> bool:
        """Whether the mean gradient is corrected for slopes that change along the path.

        A descent of many coefficients has no such correction: it takes long, and the last steps are near the posterior.
        """
        return self.found.ends is not None or self.found.path.spread is not None

    def bend(self, near: np.ndarray) -> np.ndarray:
        """Return by how much the mean gradient exceeds the linear one about a point, (d·K,)."""
        state = self.found.state
        return state.known.nonlinear_part(*self.found.path.last(state.plan.latest), near)


def _with_shift(state: State, at: np.ndarray, release: GradientRelease) -> GradientRelease:
    """Return the mean gradient less what is known of the mean of scores at the truth, with what is not as noise."""
    learnt = state.learnt
    if learnt.variance is not None:
        release = release._replace(noise=release.noise + state.clipped_off / state.rows.typical**2)
    if learnt.shift_variance:
        along = state.known.shifted(at)
        release = release._replace(
            gradient=release.gradient - learnt.shift * along,
            noise=release.noise + learnt.shift_variance * np.outer(along, along),
        )
    return release


def _as_released(state: State, found: Corrected, spread: np.ndarray, curvature: np.ndarray) -> Local:
    """Return a model whose curvature differs from normal rows' one as it does where it was released.

    Args:
        state: of the run.
        found: where it was released.
        spread: B, of scores.
        curvature: normal rows' one.
    """
    rows = state.rows
    lifted = curvature + rows.root @ found.lift @ rows.root
    turns = rows.root @ np.stack([found.turn, *found.turns(CURVATURES)]) @ rows.inverse
    matrices = turns @ lifted @ turns.swapaxes(-1, -2)
    return Local(matrices[0], spread, np.zeros_like, matrices[1:])


def _size(state: State, matrix: np.ndarray) -> float:
    """Return the trace of a matrix in the metric."""
    return float(np.trace(state.rows.inverse @ matrix @ state.rows.inverse))


# Why intervals may not hold, clauses.


def _doubts(law: _Law, evidence: Evidence, posterior: Gaussian) -> list[str]:
    """Return all doubts of a posterior."""
    state, _, _, at, ends = law.found
    doubts = [*state.learnt.doubts]
    if ends is not None:
        doubts += _doubts_of_ends(state, ends)
    elif law.bends and isinstance(state.learnt.score, Logistic):
        doubts += _of_large_logits(state, posterior)
    # Where the releases tell nothing, the gradient is the same everywhere.
    prior = np.linalg.inv(prior_covariance(evidence.scales, evidence.predictors))
    told = np.linalg.inv(posterior.covariance) - prior
    distance = law.release.position - at
    away = math.sqrt(max(0.0, float(distance @ told @ distance)) / len(distance))
    places, _ = law.found.path.last(state.plan.latest)
    if np.linalg.norm(places, axis=1).max() > _EDGE * state.rows.design.radius:
        doubts.append(
            "the sampler left the region that gradients are taken in, and they say little of the mode; take a smaller "
            f"step_size, or {_MORE}"
        )
    if away > _MOST_AWAY_IN_STD:
        doubts.append(
            f"gradients end {away:.2g} posterior standard deviations from where they were on average; take "
            "a larger epsilon or more steps"
        )
    if law.bends:
        shift = shift_in_stds(evidence, law.bend(state.near(posterior.mean, at)))
        if shift > _MAX_SHIFT_IN_STD:
            doubts.append(
                f"slopes that change along the path of gradients move the posterior by {shift:.2g} standard "
                f"deviations; {_MORE}"
            )
    return doubts + _left_out(state, posterior)


def _doubts_of_ends(state: State, ends: Ends) -> list[str]:
    """Return doubts that curvature and spread tell."""
    learnt = state.learnt
    doubts = _of_ratio(state, ends.ratio, ends.ratio_std)
    if learnt.variance is not None:
        # All that is clipped, were it of one direction, against what sampling moves it by.
        most = state.rows.num_rows * learnt.mean_beyond**2
        if ends.spread.deviation > _UNEVEN_SPREAD and most > learnt.variance:
            doubts.append(
                "errors of some rows are far larger than those of others, and the largest are clipped, so that "
                "coefficients are those of Huber's fit and not of the mean; transform the label (scale='log1p')"
            )
    return doubts


def _of_ratio(state: State, ratio: float, std: float) -> list[str]:
    """Return doubts where scores vary by another factor than 1 of what the model says.

    Args:
        state: of the run.
        ratio: the released factor.
        std: noise of it.
    """
    if std > _MOST_RATIO_NOISE:
        return [f"how much scores vary is mostly noise; {_MORE}"]
    by_model = state.plan.options.covariance == "model"
    if by_model and ratio - _RATIO_STDS * std > _LARGE_RATIO:
        return [f"scores vary {ratio:.2g} times as much as the model says; take covariance sandwich"]
    if state.plan.scale is None and ratio + _RATIO_STDS * std < _SMALL_RATIO:
        return [
            f"scores vary {max(ratio, 0.0):.2g} times as much as the model says, as where columns separate the "
            "labels, whose best-fitting coefficients have no end; leave out what nearly is the label, or give "
            "coefficients priors"
        ]
    return []


def _of_large_logits(state: State, posterior: Gaussian) -> list[str]:
    """Return doubts of a chain's end where logits are so large that a curvature of normal rows is wrong."""
    square = float(posterior.mean @ state.rows.gram @ posterior.mean) / state.rows.num_rows
    logit = math.sqrt(max(square, 0.0))
    if logit <= _LARGEST_LOGIT:
        return []
    return [
        f"logits of rows have a root mean square of {logit:.2g}, where rows taken as normal tell a curvature up to "
        f"{_LARGEST_LOGIT:g}; take fewer columns, or mechanism noise_aware"
    ]


def _left_out(state: State, posterior: Gaussian) -> list[str]:
    """Return doubts where the score of counts leaves out much of them."""
    score = state.learnt.score
    if not isinstance(score, Counts):
        return []
    known = state.known
    mean, left_out = score.left_out(known.predictors(posterior.mean), known.limit)
    part = float(np.mean(left_out) / np.mean(mean))
    std = math.sqrt(float(known.mean @ posterior.covariance @ known.mean))
    if part <= _MOST_LEFT_OUT or part <= _MOST_LEFT_OUT_IN_STD * std:
        return []
    return [
        f"the score of counts is clipped where {part:.0%} of their mean lies beyond, so that the estimate rests on "
        "the law of the counts; take a larger epsilon or more records"
    ]


# Further facts of the evidence.


def _rare(state: State, posterior: Gaussian) -> np.ndarray:
    """Return which coefficients are of a level where some label is too rare, (d·K,)."""
    rows = state.rows
    structure = state.plan.options.structure
    found = rare_levels(state.learnt.score, structure, rows.gram, rows.num_rows, posterior)
    # Effects of groups have a prior that all groups tell.
    return found & (rows.prior.family <= 0)


def _label_scale(state: State, posterior: Mixture) -> float | None:
    """Return how labels vary about their means, where that was learnt; see ``Evidence.label_scale``."""
    scale = state.plan.scale
    learnt = state.learnt
    if isinstance(scale, Residuals) and learnt.residuals is not None:
        # Public: these draws stand for the posterior alone.
        noise = np.random.default_rng(0).normal(size=(_DRAWS, state.rows.prior.size))
        away = posterior.draws(noise) - state.learnt_at
        squares = np.sum((away @ state.rows.gram) * away, axis=1) / state.rows.num_rows
        return scale.label_std(*learnt.residuals, squares)
    return learnt.score.dispersion if scale is not None and isinstance(learnt.score, Counts) else None


def shift_in_stds(evidence: Evidence, change: np.ndarray) -> float:
    """Return by how many posterior stds a change of the gradient, (d·K,), moves the mean, root mean square."""
    here = evidence.posterior()
    changed = dataclasses.replace(evidence, statistic=evidence.statistic + change)
    return in_posterior_stds(changed.posterior().mean - here.mean, here.covariance)


def in_posterior_stds(away: np.ndarray, covariance: np.ndarray) -> float:
    """Return a distance in standard deviations of a posterior, root mean square over directions."""
    return math.sqrt(float(away @ np.linalg.solve(covariance, away)) / len(away))
