"""The run of a regression's plan: its releases in their order (``regression_plan.py``).

A frozen state is handed from release to release. It holds what was released so far. Records are reached through exact
sums alone (``gradients.py``), each of which gets noise before anything else sees it (:class:`Noise`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.inference import normal_law
from dpmcmc.inference.corrected_matrix import Corrected, confirmed, corrected
from dpmcmc.inference.curvature import ScoredRows
from dpmcmc.inference.normal_law import Gaussian, Local
from dpmcmc.mechanisms.noise_aware.clipping import ScoreSums, candidates, clipped_off, widest_affordable
from dpmcmc.mechanisms.noise_aware.descent import Path, descend
from dpmcmc.mechanisms.noise_aware.gradients import BoundedGradient, Bounds
from dpmcmc.mechanisms.noise_aware.langevin import Chain, Units, walk
from dpmcmc.mechanisms.noise_aware.metric import clip_of, curvature_bounds
from dpmcmc.mechanisms.noise_aware.regression_plan import (
    CURVATURE,
    SPREAD,
    RegressionPlan,
)
from dpmcmc.mechanisms.noise_aware.regression_rows import ReleasedRows, release_rows
from dpmcmc.mechanisms.noise_aware.release import FIRST_GRADIENT, Noise, multipliers
from dpmcmc.mechanisms.noise_aware.scale import LearntScore
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.gram_release import trace_of, within
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records, asked

#: Keys of releases beside the gradients, at least.
_OTHER_KEYS = 20
#: Quantiles of rows whose own bounds stand for all.
_ROW_QUANTILES = (np.arange(20) + 0.5) / 20
#: Times that the posterior given a sampler's path is taken where the one before it was: its law depends on the place.
_ROUNDS = 4
#: Steps with one setting while a path approaches the mode, where curvature may be far from that at its start.
_STEPS_OF_ONE_SETTING = 4
#: Curvatures that stand for all that a release leaves possible.
CURVATURES = 32
#: Least trace of B in units of what the model expects.
_LEAST_TRACE_RATIO = 0.1


@dataclass(frozen=True)
class State:
    """State of a run: its releases so far.

    Attributes:
        plan: public facts.
        noise: of the releases.
        rows: what was released of rows alone.
        learnt: the score, with what was learnt of its labels.
        learnt_at: position at which it was learnt from a release, (d·K,); None: from none.
    """

    plan: RegressionPlan
    noise: Noise
    rows: ReleasedRows
    learnt: LearntScore
    learnt_at: np.ndarray | None = None

    @functools.cached_property
    def known(self) -> ScoredRows:
        """Law of the score under normal rows."""
        rows = self.rows
        score = self.learnt.score
        error = rows.moment.error
        return ScoredRows(
            rows.owners.scored(score), rows.gram, rows.num_rows, rows.mean_row, score.limit, error, rows.offset
        )

    @property
    def access(self) -> BoundedGradient:
        """Access to records with the clip norm of the score."""
        metric = self.rows.metric
        clip = clip_of(self.learnt.score, self.rows.typical, metric.longest) * self.rows.owners.typical
        return dataclasses.replace(metric, score=self.learnt.score, bounds=Bounds(clip))

    @property
    def clipped_off(self) -> np.ndarray:
        """Bound of what the score clips off residuals, (d, d)."""
        return clipped_off(self.learnt.mean_beyond, self.rows.gram, self.rows.num_rows)

    def near(self, mean: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return the point toward ``mean`` that is no farther from ``at`` than predictors may move."""
        step = (mean - at).reshape(self.rows.design.size, -1)
        if self.plan.score.size > 1:  # a shift of all predictors changes no score
            step = step - step.mean(axis=1, keepdims=True)
        square = float(np.sum(step * (self.rows.gram @ step)))
        size = math.sqrt(max(0.0, square) / self.rows.num_rows)
        return at + min(1.0, self.learnt.score.step / max(size, 1e-300)) * (mean - at)

    # Releases at a public position.

    def learn(self, position: np.ndarray, name: str) -> State:
        """Return the state with a score that knows more of its labels.

        Args:
            position: public, (d·K,).
            name: of the noise of the scale that is released; "": the score has none, and the path alone says how far
                out labels can be clipped.
        """
        scale = self.plan.scale
        if scale is None:
            scores = tuple(map(LearntScore, candidates(self.plan.score)))
            return dataclasses.replace(self, learnt=self._widest(scores, position))
        noisy = self.noise.added(self.access.labels(self.rows.records, position, scale.statistic), name)
        norms = self.known.norms(self.rows.metric.inverse)
        usual = clip_of(self.learnt.score, self.rows.typical, self.rows.metric.longest)
        usual /= self.learnt.score.limit
        limits = np.quantile(np.minimum(1.0, usual / norms), _ROW_QUANTILES)
        found = scale.learnt(noisy, self.noise.settings[name], self.rows.num_rows, limits)
        return dataclasses.replace(self, learnt=self._widest(found, position), learnt_at=position)

    def _widest(self, found: tuple[LearntScore, ...], position: np.ndarray) -> LearntScore:
        """Return the score that clips labels as far out as costs little, by what was released so far."""
        z = self.plan.last_gradients(self.noise.settings)
        sums = []
        for learnt in found:
            state = dataclasses.replace(self, learnt=learnt)
            local = state.known.local(position)
            noise = (z * state.access.clip) ** 2 * self.rows.square
            if learnt.variance is not None:
                spread = learnt.variance * self.rows.gram
                sums.append(ScoreSums(local.curvature, spread, noise, state.clipped_off))
                continue
            # The spread has the shape of the curvature, which normal rows know better.
            sums.append(ScoreSums(local.curvature, trace_ratio(local) * local.curvature, noise))
        return found[widest_affordable(sums, found[-1].score, self.rows.num_rows)]

    def gradient(self, position: np.ndarray, noise_multiplier: float) -> tuple[np.ndarray, float]:
        """Release the gradient at a position within the radius, (d·K,); return it, and its noise std in the metric."""
        access = self.access
        noisy = self.noise.with_std(access.gradient(self.rows.records, position), noise_multiplier)
        columns = noisy.reshape(self.rows.design.size, -1)
        return (access.clip * access.root @ columns).ravel(), access.clip * noise_multiplier

    def posterior(self, path: Path, now: Gaussian) -> Gaussian:
        """Return the posterior given the gradients so far, no farther from the last than predictors may move."""
        count = max(1, min(math.ceil(self.plan.latest_part * len(path.stds)), self.plan.latest))
        release = path.mean(count, self.rows.square)
        if self.plan.has_curvature:
            # Where the slope changes along the path, the mean of its gradients is not that at the mean position.
            beyond = self.known.nonlinear_part(*path.last(count), now.mean)
            release = release._replace(gradient=release.gradient - beyond)
            exact = dataclasses.replace(self.known, error=np.zeros_like)
            prior = self.rows.prior.best(release, exact.local(now.mean), now)
            # A step along a direction that is not well known is short, and no gradient counts less for the error of H:
            # far from where gradients vanish it would leave the position to the prior.
            root = self.rows.metric.root
            square = self.rows.num_rows * root @ root
            local = dataclasses.replace(exact, gram=square).local(now.mean)
        else:
            error = normal_law.isotropic_error(self.rows.noisy.noise_std)
            local = dataclasses.replace(self.known, error=error).local(now.mean)
            prior = self.rows.prior.best(release, local, now)
        found = normal_law.posterior(release, local, prior.precision, now, rounds=2, prior_mean=prior.means)
        return found._replace(mean=self.near(found.mean, path.positions[-1]))

    def settled(self, path: Path, now: Gaussian) -> Gaussian:
        """Return the posterior given a path that did not follow it: the law of the path is taken where it is."""
        for _ in range(_ROUNDS):
            now = self.posterior(path, now)
        return now


def trace_ratio(local: Local) -> float:
    """Return tr B/tr H: by how much scores vary for each unit of curvature."""
    return float(np.trace(local.spread) / np.trace(local.curvature))


class Ends(NamedTuple):
    """Releases where the gradients end, in the metric.

    Attributes:
        curvature: H.
        confirmed: what the releases confirm of H, (d·K, d·K).
        spread: B.
        ratio: by how much scores vary, over what the model says of them.
        ratio_std: noise of this ratio.
    """

    curvature: Corrected
    confirmed: np.ndarray
    spread: Corrected
    ratio: float
    ratio_std: float


def release_ends(state: State, at: np.ndarray) -> Ends:
    """Release the curvature and the spread of scores at a position."""
    curvature, least = _release_curvature(state, at)
    spread, ratio, ratio_std = _release_spread(state, at, curvature)
    return Ends(curvature, least, spread, ratio, ratio_std)


def _release_curvature(state: State, at: np.ndarray) -> tuple[Corrected, np.ndarray]:
    """Release the curvature; return it, and what of it the releases confirm, (d·K, d·K), in the metric."""
    rows = state.rows
    known = state.known
    inverse = rows.inverse
    both = rows.joined
    assert both is not None
    model = inverse @ known.local(at).curvature @ inverse
    grams = both.possible(CURVATURES)
    errors = known.errors(at, grams, [rows.mean_row_of(gram) for gram in grams])
    std = state.noise.settings[CURVATURE]
    access = state.access
    trace = float(np.trace(model))
    facts = (rows.typical, rows.metric.longest, trace, rows.num_rows, len(model), std)
    longest, most = curvature_bounds(access.score, access.clip, *facts)
    access = dataclasses.replace(access, bounds=Bounds(access.clip, longest, most))
    released = most * state.noise.symmetric(access.curvature(rows.records, at), CURVATURE)
    own = normal_law.bootstrapped_error(inverse @ errors @ inverse)
    found = corrected(model, released, most * std, own)
    fewest = dataclasses.replace(known, gram=both.least, mean=rows.mean_row_of(both.least)).local(at)
    least = inverse @ fewest.curvature @ inverse
    return found, confirmed(found.matrix, released, most * std, least)


def _release_spread(state: State, at: np.ndarray, curvature: Corrected) -> tuple[Corrected, float, float]:
    """Release the spread of scores; return B in the metric, and the ratio of :class:`Ends` with its noise.

    The trace is that of the records' own scores, whichever covariance B is.
    """
    rows = state.rows
    access = state.access
    std, trace_std = (state.noise.settings[name] for name in SPREAD)
    own = access.spread(rows.records, at)
    sandwich = state.plan.options.covariance == "sandwich"
    noisy = state.noise.symmetric(own if sandwich else access.expected_spread(rows.records, at), SPREAD[0])
    trace = state.noise.added(trace_of(own), SPREAD[1])[0]
    most = access.clip**2
    # Normal rows give its shape, changed as the curvature is, F⁻¹BF⁻¹ + r·lift turned, and the release gives its trace.
    local = state.known.local(at)
    shape = rows.inverse @ local.spread @ rows.inverse + trace_ratio(local) * curvature.lift
    usual = curvature.turn @ shape @ curvature.turn.T
    if sandwich:
        expected = float(np.trace(usual))
        model = usual * max(most * trace / expected, _LEAST_TRACE_RATIO)
        found = corrected(model, most * noisy, most * std)
    else:
        found = corrected(usual, most * noisy, most * std)
        expected = float(np.trace(found.matrix))
    return found, most * trace / expected, most * trace_std / expected


class Released(NamedTuple):
    """All that a run released.

    Attributes:
        state: in which its releases ended.
        path: its gradients.
        now: the posterior given these.
        at: the position where they end, (d·K,).
        ends: releases there; None: there are none.
    """

    state: State
    path: Path
    now: Gaussian
    at: np.ndarray
    ends: Ends | None


def released(facts: RegressionPlan, plan: Plan, records: Records, streams: Streams) -> Released:
    """Release everything.

    Args:
        facts: of the regression, public.
        plan: of the run, with the noise of each release.
        records: of the data holder.
        streams: secret keys, of the noise and of a sampler's own randomness.
    """
    steps = facts.options.steps
    noise = Noise(plan.settings, iter(jax.random.split(streams.noise, steps + _OTHER_KEYS)))
    prepare = Rows(plan.target, facts.design(plan.num_records).row_bound)
    rows = release_rows(facts, plan.num_records, asked(records).prepared(prepare), prepare, noise)
    z = multipliers(plan.settings[FIRST_GRADIENT], facts.gradient_parts)
    begun = State(facts, noise, rows, LearntScore(facts.score))
    if facts.options.sampler is None:
        state, path, now = _descended(begun, z)
    else:
        state, path, now = _sampled(begun, z, streams.init)
    at = within(now.mean[None], rows.design.radius)[0]
    return Released(state, path, now, at, release_ends(state, at) if facts.has_curvature else None)


def _descended(state: State, z: np.ndarray) -> tuple[State, Path, Gaussian]:
    """Release the gradients, with noise multipliers z, each at the posterior's mean given those before it."""
    radius = state.rows.design.radius
    now = state.rows.prior.gaussian
    path = Path()
    for leg, lesson in state.plan.legs:
        now, path = descend(now, path, leg, z, state.gradient, state.posterior, radius)
        if lesson is not None:
            state = state.learn(within(now.mean[None], radius)[0], lesson)
    return state, path, now


def _sampled(state: State, z: np.ndarray, key: jax.Array) -> tuple[State, Path, Gaussian]:
    """Release the gradients, with noise multipliers z or more, along a sampler's path."""
    asked_for = state.plan.options.sampler
    assert asked_for is not None
    rows = state.rows
    radius = rows.design.radius
    now = rows.prior.gaussian
    path = Path()
    chain: Chain | None = None
    for leg, lesson in state.plan.legs:
        settled = leg.start >= len(z) - state.plan.latest
        clip = state.access.clip
        for steps in [leg] if settled else _pieces(leg):
            here = jax.random.fold_in(key, steps.start)
            position = now.mean if chain is None else chain.position
            if chain is None or isinstance(asked_for, str):
                std = clip * float(z[steps.start])
                units = Units.of(state.known.local(now.mean).curvature, rows.square, rows.prior, rows.num_rows, std)
                sampler = units.sampler(asked_for, std, settled)
                chain = Chain.begin(units, sampler, position, here, steps.start)
            chain, path = walk(chain, path, steps, z, state.gradient, clip, radius, here)
            now = state.settled(path, now)
        if lesson is not None:
            state = state.learn(within(now.mean[None], radius)[0], lesson)
    return state, path, now


def _pieces(leg: range) -> list[range]:
    """Return a leg in pieces, after each of which a chosen sampler's settings follow the curvature where it is."""
    return [leg[start : start + _STEPS_OF_ONE_SETTING] for start in range(0, len(leg), _STEPS_OF_ONE_SETTING)]
