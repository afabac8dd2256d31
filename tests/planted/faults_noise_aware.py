"""Faults of a noise-aware posterior and of the releases that it is made of."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from dpmcmc.inference import denoised_moment, normal_law
from dpmcmc.inference.bounded_score import Law
from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.curvature import ScoredRows, average_law
from dpmcmc.inference.linear_score import Huber
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.normal_law import Local
from dpmcmc.inference.softmax_score import Softmax
from dpmcmc.mechanisms.noise_aware import gradients, model_rows, regression_run
from dpmcmc.mechanisms.noise_aware.descent import Path
from dpmcmc.mechanisms.noise_aware.gradients import BoundedGradient
from dpmcmc.mechanisms.noise_aware.langevin import Chain
from dpmcmc.mechanisms.noise_aware.regression_run import State
from dpmcmc.mechanisms.noise_aware.residuals import BOUNDS_IN_STD
from dpmcmc.mechanisms.noise_aware.scale import LearntScore
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.query.gram_release import RowFacts
from dpmcmc.privacy.query.integer_rows import MOMENT_BITS
from tests.planted import Fault
from tests.planted import checks_noise_aware as checks

Patch = pytest.MonkeyPatch


def _exact_gram(patch: Patch) -> None:
    for module in (normal_law, denoised_moment):
        patch.setattr(module, "bootstrapped_error", lambda errors: np.zeros_like)


def _unsquared(patch: Patch) -> None:
    real = ScoredRows.local

    def local(self: ScoredRows, theta: np.ndarray) -> Local:
        right, variance = real(self, theta), float(theta @ self.gram @ theta) / self.num_records
        c = average_law(self.score, variance, self.limit).curvature
        return right._replace(curvature_error=lambda q: right.curvature_error(q) / c)

    patch.setattr(ScoredRows, "local", local)


def _weights_see_labels(patch: Patch) -> None:
    patch.setattr(Logistic, "residual", lambda self, eta, y, limit: np.clip(expit(eta) - y, -limit, limit))


def _clipped_without_centring(patch: Patch) -> None:
    real = Counts._clipped
    patch.setattr(Counts, "_clipped", lambda self, *given: real(self, *given)._replace(centre=np.float64(0)))


def _counts_not_clipped(patch: Patch) -> None:
    real = Counts._clipped
    patch.setattr(Counts, "_clipped", lambda self, *given: real(self, *given)._replace(bound=np.float64(np.inf)))


def _blocks_decide(patch: Patch) -> None:
    def finite(*parts: np.ndarray) -> np.ndarray:
        numbers = [part for i, part in enumerate(parts) if i != _NORMS or len(parts) != _OF_A_ROW]
        return np.all([np.isfinite(part).reshape(len(part), -1).all(axis=1) for part in numbers], axis=0)

    real = Counts.law

    def law(self: Counts, eta: np.ndarray, limit: np.ndarray) -> Law:
        return real(self, eta, np.asarray(limit) if np.isinf(limit).all() else np.where(np.isinf(limit), 1e300, limit))

    patch.setattr(model_rows, "_finite", finite)
    patch.setattr(Counts, "law", law)


#: Numbers of a row that are looked at before its law is, and the place of its norms among them.
_OF_A_ROW, _NORMS = 4, 2


def _root_two_dropped(patch: Patch) -> None:
    real = RowFacts.moved
    patch.setattr(RowFacts, "moved", lambda self, _: real(self, Adjacency.ADD_REMOVE))


def _leverage_halved(patch: Patch) -> None:
    for family in (Logistic, Softmax):
        real = family.leverage
        patch.setattr(family, "leverage", lambda self, clip, longest, real=real: real(self, clip, longest) / 2)


def _spread_without_weights(patch: Patch) -> None:
    real = BoundedGradient.added_spread

    def spread(self: BoundedGradient, columns: np.ndarray, records: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        return real(self, columns, {name: leaf for name, leaf in records.items() if name != "weight"})

    patch.setattr(BoundedGradient, "added_spread", spread)


def _scale_of_the_data(patch: Patch) -> None:
    def learn(self: State, position: np.ndarray, name: str) -> State:
        rows = self.rows.records.records  # type: ignore[attr-defined]
        sizes = np.abs(rows["y"].ravel() - rows["x"][:, 0] @ position * self.rows.metric.unit)
        score = Huber.of(float(np.quantile(sizes, 0.9)) / BOUNDS_IN_STD[0], BOUNDS_IN_STD[0])
        return dataclasses.replace(self, learnt=LearntScore(score))

    patch.setattr(State, "learn", learn)


def _whitened_rows_without_bound(patch: Patch) -> None:
    patch.setattr(gradients, "rounded_columns", lambda columns, most=1.0: np.rint(columns * 2.0**MOMENT_BITS))


def _noise_of_the_sampler(patch: Patch) -> None:
    real = regression_run.walk

    def walk(chain: Chain, path: Path, steps: range, least: np.ndarray, *more: Any) -> tuple[Chain, Path]:
        return real(chain, path, steps, 0 * least, *more)

    patch.setattr(regression_run, "walk", walk)


FAULTS = (
    Fault(
        "noise of the Gram matrix left out of the posterior",
        "The released Gram matrix is taken for the exact one, and intervals are too narrow.",
        _exact_gram,
        (checks.intervals_cover_where_the_gram_matrix_is_noisy,),
    ),
    Fault(
        "c in the place of c²",
        "The error of the curvature c·G has c² times the variance of the Gram matrix' error, and c is written.",
        _unsquared,
        (checks.the_error_of_the_curvature_is_as_long_as_stated,),
    ),
    Fault(
        "weights that see the label",
        "Residuals are clipped, so that a rare label counts less and the score at the truth has a mean.",
        _weights_see_labels,
        (checks.scores_have_mean_zero_at_the_truth,),
    ),
    Fault(
        "counts clipped without centring",
        "Counts are skew, so a clipped residual has a mean at the truth, and intervals miss once the noise is small.",
        _clipped_without_centring,
        (checks.scores_of_counts_are_bounded_and_have_mean_zero,),
    ),
    Fault(
        "a weight in the place of clipping counts",
        "A weight that does not see the label leaves a residual that has no bound, and a record moves any sum.",
        _counts_not_clipped,
        (checks.scores_of_counts_are_bounded_and_have_mean_zero,),
    ),
    Fault(
        "one branch for a whole block of records",
        "A row that is finite and whose norm is not has a limit of NaN, and all records beside it leave the family's "
        "own law.",
        _blocks_decide,
        (checks.a_row_whose_norm_overflows_counts_nowhere,),
    ),
    Fault(
        "√2 dropped from the Gram matrix' sensitivity",
        "A replaced row is charged as one that is added.",
        _root_two_dropped,
        (checks.a_replaced_row_moves_the_gram_matrix_within_its_charge,),
    ),
    Fault(
        "half the leverage of a row",
        "The bound of a curvature is taken for half of what rows at even odds have, and weights shrink all.",
        _leverage_halved,
        (checks.leverages_are_within_the_bound_of_their_family,),
    ),
    Fault(
        "whitened rows without a bound",
        "Rows of the second release are as long as the metric makes them, and one record moves their sum beyond √2.",
        _whitened_rows_without_bound,
        (checks.a_replaced_row_moves_whitened_rows_within_its_charge,),
    ),
    Fault(
        "weights left out of the variance of scores",
        "B is that of scores without the weights that gradients have, and intervals are those of another sum.",
        _spread_without_weights,
        (checks.the_spread_of_a_record_is_the_square_of_its_score,),
    ),
    Fault(
        "a scale that is read from the data",
        "The bound of residuals is their exact quantile, which one label may move, and with it all scores.",
        _scale_of_the_data,
        (checks.one_label_costs_a_run_no_more_than_it_is_charged,),
    ),
    Fault(
        "a sampler's own noise in the place of that of privacy",
        "Gradients along a path get the noise that the sampler asks for, which may be less than is charged.",
        _noise_of_the_sampler,
        (checks.a_cold_sampler_adds_no_less_noise_than_is_charged,),
    ),
)
