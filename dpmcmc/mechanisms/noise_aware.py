r"""Noise-aware release: a posterior whose intervals hold, from noisy sums whose noise law is part of the model.

All that leaves are Gaussian releases, so the budget μ of (ε, δ) adds up, μ² = Σ μ_i², and draws are post-processing.

Logistic regression, with ‖x‖ <= b enforced on every row:

1. the Gram matrix G = Σ x xᵀ, sensitivity √2·b² (replace_one; b² otherwise) in Frobenius norm, and its trace, b²;
2. the metric F² = Ĝ/N + (b²/d) I, made of the released Ĝ (``inference/gram.py``), and the clip norm
   C = κ √(tr(F⁻¹ĜF⁻¹)/N), half the typical whitened row: both public now;
3. K gradients of all records, each with a label-blind weight and clipped in the metric,

       g̃_k = F( Σ F⁻¹ w (p − y) x + s_k Z ),   w = min(1, C/(max(p, 1 − p)·‖F⁻¹x‖)),   p = σ(x·θ_k),

   sensitivity 2C (replace_one; C otherwise), as w max(p, 1 − p)‖F⁻¹x‖ <= C. The weight knows x and θ and not the
   label, so E[w (p − y) x] = 0 at the truth: no clip norm biases the answer. Later gradients get more of the budget,
   by ``_GROWTH`` a step, and θ_{k+1} is the posterior's mean given the last of them (``inference/noise_aware.py``).

Linear regression: G and Xᵀy, |y| <= Y, in one release (``sufficient.py``), which is the gradient at θ = 0.

Everything is float64. Sums are exact up to the rounding that each sensitivity is charged for, on either neighbour
(``_rounding``); value and noise are added on a grid (``gaussian_release.py``). A row beyond b is refused before anything
is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
from annotated_types import Ge, Gt, Lt
from scipy.special import expit

from dpmcmc.data.row_structure import RowStructure
from dpmcmc.errors import InputError, UnsupportedCombination, check_fields
from dpmcmc.inference import gram as gram_room
from dpmcmc.inference import noise_aware
from dpmcmc.inference.noise_aware import Gaussian, Local, LogisticLaw, Release
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.gaussian_release import (
    check_promise,
    gaussian_event,
    gaussian_release,
    mu_std,
    standard_normal,
)
from dpmcmc.mechanisms.linear_bounds import gram_and_moment, summing, weighted_sum
from dpmcmc.mechanisms.sufficient import sensitivity_of, split, statistics
from dpmcmc.privacy.accounting import ADJACENCIES, Event
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.targets.base import require_bound
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression

#: C in units of a typical whitened row; below 1 the weights shrink most scores, and less noise is needed.
_CLIP = 0.5
#: C is not below κ times this, whatever the release says, so that rounding relative to C has a public bound.
_LEAST = 0.1
#: Ratio of the budgets of two gradients, one after the other; part of the steps that the posterior is made of.
_GROWTH, _LAST = 1.15, 0.6
#: Share of μ² for the trace.
_TRACE_SHARE = 0.01
#: Farthest θ_k, in prior standard deviations times √d.
_RADIUS = 30.0
_BOOTSTRAPS, _ROUNDS = 24, 12
_GRAM_SHARES = (0.2, 0.3, 0.4, 0.5)
#: Candidates of ``prior_scale: evidence`` in units of the target's, and the standard deviation of the log of a scale
#: under its hyperprior.
_SCALES, _LOG_SCALE_STD = np.exp(np.linspace(-2, 2, 33)), 1.0


@dataclass(frozen=True)
class NoiseAware:
    """Posterior draws whose intervals account for the noise of privacy.

    Args:
        draws: how many; they cost nothing.
        steps: K, gradients of all records; logistic regression only.
        gram_share: of μ², for the Gram matrix; None: what makes the predicted intervals narrowest.
        prior_scale: ``target``: the target's; ``evidence``: chosen from the released numbers, with a log-normal
            hyperprior around the target's.
        structure: what is declared of all rows, or None; a wrong declaration makes intervals wrong, not less private.

    Raises:
        ValueError: a value outside these.
    """

    draws: Annotated[int, Gt(0)] = 1000
    steps: Annotated[int, Ge(4)] = 24
    gram_share: Annotated[float, Gt(0), Lt(0.95)] | None = None
    prior_scale: Literal["target", "evidence"] = "target"
    structure: RowStructure | None = None

    release = "estimate"

    def __post_init__(self) -> None:
        check_fields(self)

    def plan(
        self, target: Any, *, num_records: int, epsilon: float, delta: float, adjacency: str = "replace_one"
    ) -> MechanismPlan:
        """Settle every noise; reads no record.

        Raises:
            UnsupportedCombination: another target than logistic or linear regression.
            ValueError: a public bound that is not given, or impossible numbers.
        """
        check_promise(num_records, epsilon, delta)
        if adjacency not in ADJACENCIES:
            raise UnsupportedCombination(f"unknown adjacency {adjacency!r}; known: {', '.join(ADJACENCIES)}.")
        facts = Facts.of(target, num_records, adjacency)
        if self.structure is not None:
            self.structure.check(facts.size)
        mu = gaussian_mu(epsilon, delta) * (1 - 1e-9)
        budget = (_logistic if facts.label_bound is None else _linear)(self, facts, mu, adjacency)
        guarantee = Guarantee.from_events(
            tuple(budget.events), delta=delta, adjacency=adjacency, accountant="one_sample", release=self.release
        )
        return MechanismPlan(self, target, num_records, guarantee, budget.settings, self.draws)

    def draw(self, plan: MechanismPlan, records: Any, streams: Streams) -> Any:
        """Posterior draws, (draws, d)."""
        x, y = np.asarray(records["x"], np.float64), np.asarray(records["y"], np.float64)
        conclude = _linear_posterior if type(plan.target) is LinearRegression else _logistic_posterior
        return conclude(self, plan, x, y, streams.noise).draws(
            standard_normal(streams.dynamics, (self.draws, x.shape[1]))
        )


class Facts(NamedTuple):
    """Public facts that the noise rests on.

    Attributes:
        num_records: N.
        size: d.
        row_bound: b.
        label_bound: Y of linear regression; None for labels in {0, 1}.
        moves: largest distance of two clipped gradients' sums between neighbours, over C: 2 or 1.
        prior_scale: standard deviation of a coefficient.
        noise_scale: of a label given its row; 1 where labels are in {0, 1}.
    """

    num_records: int
    size: int
    row_bound: float
    label_bound: float | None
    moves: float
    prior_scale: float
    noise_scale: float

    @classmethod
    def of(cls, target: Any, num_records: int, adjacency: str) -> Facts:
        """Return the facts of a target.

        Raises:
            UnsupportedCombination: another target.
            ValueError: a bound that is not given.
        """
        name = type(target).__name__
        if type(target) not in (LogisticRegression, LinearRegression):
            raise UnsupportedCombination(
                f"noise_aware is derived for LogisticRegression and LinearRegression, and the target is {name}; use a "
                "sampler, whose draws are for prediction."
            )
        linear = type(target) is LinearRegression
        row = require_bound(target.row_bound, "row_bound", name)
        label = require_bound(target.label_bound, "label_bound", name) if linear else None
        if target.num_features is None:
            raise InputError(f"num_features: {name} needs it before a plan; give it", "num_features")
        moves = 2.0 if adjacency == "replace_one" else 1.0
        noise_scale = target.noise_scale if linear else 1.0
        return cls(num_records, target.num_features, row, label, moves, target.prior_scale, noise_scale)

    @property
    def radius(self) -> float:
        """Farthest θ_k from 0."""
        return _RADIUS * self.prior_scale * math.sqrt(self.size)

    @property
    def gram_moves(self) -> float:
        """Sensitivity of G in Frobenius norm: ‖xxᵀ − x'x'ᵀ‖² = ‖x‖⁴ + ‖x'‖⁴ − 2(x·x')²."""
        return self.row_bound**2 * (math.sqrt(2) if self.moves == 2 else 1.0)

    @property
    def entries(self) -> int:
        """Entries of G that differ, d(d + 1)/2."""
        return self.size * (self.size + 1) // 2


class Budget(NamedTuple):
    """Events of the releases, and the public numbers that they are drawn with."""

    events: list[Event]
    settings: dict[str, float]


def _gradient_shares(steps: int) -> np.ndarray:
    """Part of the gradients' μ² that each of them gets, (steps,); they add up to 1."""
    shares = _GROWTH ** np.arange(steps, dtype=np.float64)
    return shares / shares.sum()


def _logistic(mechanism: NoiseAware, facts: Facts, mu: float, adjacency: str) -> Budget:
    """Split the budget over Gram matrix, trace and gradients."""
    share = mechanism.gram_share
    if share is None:
        share = min(_GRAM_SHARES, key=lambda s: predicted_width(facts, mu, s, mechanism.structure))
    gram_moves, trace_moves, unsure = _sensitivities(facts)
    gram_std = mu_std(gram_moves, facts.entries, mu * math.sqrt(share))
    known = _trace_known(mechanism.structure, adjacency)
    trace_std = 0.0 if known else mu_std(trace_moves, 1, mu * math.sqrt(_TRACE_SHARE))
    left = mu * math.sqrt(1 - share - (0.0 if known else _TRACE_SHARE))
    multipliers = _multipliers(facts, left, mechanism.steps)
    events = [gaussian_event(gram_std, gram_moves, facts.entries, adjacency)]
    if not known:
        events.append(gaussian_event(trace_std, trace_moves, 1, adjacency))
    moves = facts.moves + 2 * unsure
    events += [gaussian_event(z, moves, facts.size, adjacency) for z in multipliers]
    settings = {
        "gram_share": share,
        "gram_noise_std": gram_std,
        "trace_noise_std": trace_std,
        "gradient_budget": left,
        "noise_multiplier": float(multipliers[-1]),
        "predicted_width": predicted_width(facts, mu, share, mechanism.structure),
    }
    return Budget(events, settings)


def _linear(mechanism: NoiseAware, facts: Facts, mu: float, adjacency: str) -> Budget:
    """One release of (svec G, w Xᵀy)."""
    assert facts.label_bound is not None
    weight = facts.row_bound / facts.label_bound
    largest = math.hypot(facts.row_bound**2, weight * facts.row_bound * facts.label_bound)
    moves = sensitivity_of(facts.row_bound, facts.label_bound, weight, adjacency)
    moves += 2 * summing(facts.num_records + 1) * (facts.num_records + 1) * largest
    size = facts.entries + facts.size
    noise_std = mu_std(moves, size, mu)
    event = gaussian_event(noise_std, moves, size, adjacency)
    settings = {"noise_std": noise_std, "label_weight": weight, "noise_multiplier": event.noise_multiplier}
    return Budget([event], settings)


def _trace_known(structure: RowStructure | None, adjacency: str) -> bool:
    """Whether tr G = N·b² is declared, and N public: add_remove does not tell N from N ± 1."""
    return structure is not None and structure.unit_norm and adjacency != "add_remove"


def _multipliers(facts: Facts, budget: float, steps: int) -> np.ndarray:
    """Noise multipliers s_k/C of the gradients, (steps,)."""
    moves = facts.moves + 2 * _sensitivities(facts)[2]
    return np.array([mu_std(moves, facts.size, budget * math.sqrt(part)) for part in _gradient_shares(steps)])


def _sensitivities(facts: Facts) -> tuple[float, float, float]:
    """Sensitivity of G in Frobenius norm and of its trace with their rounding; rounding of a gradient's sum over C."""
    count = facts.num_records + 1
    unsure = summing(count) * count * facts.row_bound**2
    return facts.gram_moves + 2 * unsure, facts.row_bound**2 + 2 * unsure, _rounding(facts)


def _rounding(facts: Facts) -> float:
    """How far float64 may move the sum of clipped whitened gradients, over C.

    F² >= (b²/d) I, so ‖F⁻¹‖ <= √d/b, and C >= κ·_LEAST. Then, relative to C and with e = 2^-53:

    * F⁻¹ Σ r x is off by ‖F⁻¹‖·summing·Σ|r|‖x‖ <= √d·N·summing/C, and by d·e more from the product with F⁻¹;
    * an unchanged record's margin is off by d e b R for ‖θ_k‖ <= R, and its probability by a quarter of that; as
      w‖F⁻¹x‖ <= 2C, its contribution is off by twice that, by 32e for the arithmetic of weight and residual, and by
      d^1.5·e/C where its norm, on which the weight depends, is off by d·e·‖F⁻¹‖b.
    """
    count, d, e = facts.num_records + 1, facts.size, 2.0**-53
    least = _CLIP * _LEAST
    sums = math.sqrt(d) * summing(count) / least + d * e
    records = d * e * facts.row_bound * facts.radius + 32 * e + d**1.5 * e / least
    return count * (sums + records)


def predicted_width(facts: Facts, mu: float, gram_share: float, structure: RowStructure | None = None) -> float:
    """Return the predicted width of an interval over that of the non-private posterior, mean over coordinates.

    No record is read: the Gram matrix is a public one with trace N·b² and eigenvalues ∝ 1/j², released with simulated
    noise, and what follows is what ``draw`` does.

    Args:
        facts: public facts.
        mu: Gaussian budget of all releases.
        gram_share: part of μ² for the Gram matrix.
        structure: of the rows; where blocks are declared, half of the noise is taken to contradict them.
    """
    d, prior, rng = facts.size, facts.prior_scale**2, np.random.default_rng(0)
    spectrum = 1.0 / np.arange(1.0, d + 1) ** 2
    spectrum *= facts.num_records * facts.row_bound**2 / spectrum.sum()
    std = facts.gram_moves / (mu * math.sqrt(gram_share)) * (0.5 if structure and structure.blocks else 1.0)
    noisy = np.diag(spectrum) + std * gram_room.symmetric_noise(rng, d)
    gram, error = _denoised(noisy, std, float(spectrum.sum()), None, rng, _BOOTSTRAPS // 4)
    metric = gram / facts.num_records + np.eye(d) * facts.row_bound**2 / d
    norm = math.sqrt(float(np.trace(np.linalg.solve(metric, gram))) / facts.num_records)
    law = LogisticLaw.at(prior * facts.row_bound**2 / 2, norm, _CLIP * norm)
    full = LogisticLaw.at(prior * facts.row_bound**2 / 2, norm, math.inf)
    clip = facts.moves * _CLIP * norm / (mu * math.sqrt(1 - gram_share))
    release = Release(np.zeros(d), np.zeros(d), clip**2 * metric)
    # The releases are about as far from the truth as the posterior is wide.
    local = law.local(gram, facts.num_records, np.zeros(d), lambda q: 2 * error(q))
    start = Gaussian(np.zeros(d), np.eye(d) * prior)
    now = noise_aware.posterior(release, local, np.eye(d) / prior, start, rounds=_ROUNDS // 2)
    return float(np.mean(np.sqrt(np.diag(now.covariance) * (1 / prior + full.curvature * spectrum))))


def _linear_posterior(
    mechanism: NoiseAware, plan: MechanismPlan, x: np.ndarray, y: np.ndarray, key: jax.Array
) -> Gaussian:
    """Release G and Xᵀy once; the gradient at θ = 0 is −Xᵀy/noise_scale²."""
    d, noise_std, weight = x.shape[1], plan.settings["noise_std"], plan.settings["label_weight"]
    gram, moment = split(gaussian_release(statistics(x, y, weight), noise_std, key), d, weight)
    variance = plan.target.noise_scale**2
    trace = float(np.clip(np.trace(gram), noise_std, plan.num_records * plan.target.row_bound**2))
    gram, error = _denoised(gram, noise_std, trace, mechanism.structure, np.random.default_rng(0))
    local = Local(gram / variance, gram / variance, lambda q: error(q) / variance**2)
    release = Release(np.zeros(d), -moment / variance, np.eye(d) * (noise_std / weight / variance) ** 2)
    return _concluded(mechanism, plan.target.prior_scale, release, lambda now: local)


def _logistic_posterior(
    mechanism: NoiseAware, plan: MechanismPlan, x: np.ndarray, y: np.ndarray, key: jax.Array
) -> Gaussian:
    """Release G, its trace and the gradients; each gradient is at the posterior's mean given those before it."""
    facts = Facts.of(plan.target, plan.num_records, plan.guarantee.adjacency)
    gram_key, trace_key, *keys = jax.random.split(key, mechanism.steps + 2)
    gram, trace = _released_gram(facts, plan.settings, x, gram_key, trace_key)
    gram, error = _denoised(gram, plan.settings["gram_noise_std"], trace, mechanism.structure, np.random.default_rng(0))
    rough = noise_aware.isotropic_error(plan.settings["gram_noise_std"])
    access = LabelBlindGradient.of(gram, facts, x, y)
    multipliers = _multipliers(facts, plan.settings["gradient_budget"], mechanism.steps)

    def local(now: Gaussian, error: Callable[[np.ndarray], np.ndarray] = error) -> Local:
        law = LogisticLaw.at(float(now.mean @ gram @ now.mean) / facts.num_records, access.norm, access.clip)
        return law.local(gram, facts.num_records, now.mean, error)

    positions, gradients = np.zeros((2, mechanism.steps, facts.size))
    precision = np.eye(facts.size) / facts.prior_scale**2
    now = Gaussian(np.zeros(facts.size), np.linalg.inv(precision))
    for k, z in enumerate(multipliers):
        positions[k] = now.mean * min(1.0, facts.radius / max(float(np.linalg.norm(now.mean)), 1e-300))
        gradients[k] = access.release(positions[k], z, keys[k])
        window = slice(k + 1 - math.ceil(_LAST * (k + 1)), k + 1)
        precisions = (access.clip * multipliers[window]) ** -2.0
        release = noise_aware.weighted_mean(positions[window], gradients[window], precisions, access.metric)
        now = noise_aware.posterior(release, local(now, rough), precision, now, rounds=2)
    return _concluded(mechanism, facts.prior_scale, release, local, now)


def _released_gram(
    facts: Facts, settings: dict[str, float], x: np.ndarray, gram_key: jax.Array, trace_key: jax.Array
) -> tuple[np.ndarray, float]:
    """(noisy Gram matrix, its trace as declared or released)."""
    exact, _ = gram_and_moment(x, np.zeros(len(x)))
    row, column = np.triu_indices(facts.size)
    scale = np.where(row == column, 1.0, math.sqrt(2))
    released = np.zeros_like(exact)
    released[row, column] = released[column, row] = (
        gaussian_release(exact[row, column] * scale, settings["gram_noise_std"], gram_key) / scale
    )
    largest, std = facts.num_records * facts.row_bound**2, settings["trace_noise_std"]
    if std == 0:
        return released, largest
    trace = float(gaussian_release(np.array([np.trace(exact)]), std, trace_key)[0])
    return released, float(np.clip(trace, 0.01 * largest, largest))


def _denoised(
    noisy: np.ndarray,
    noise_std: float,
    trace: float,
    structure: RowStructure | None,
    rng: np.random.Generator,
    bootstraps: int = _BOOTSTRAPS,
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """(Ĝ, Q -> covariance of its error times a vector), from released numbers alone."""
    nearest = gram_room.project(noisy, trace, structure)
    again = gram_room.errors(nearest, noise_std, trace, structure, rng, bootstraps)
    edge = float(np.mean(np.max(np.abs(np.linalg.eigvalsh(again)), axis=1)))
    return gram_room.shrink(nearest, edge), noise_aware.bootstrapped_error(again, 1.0)


def _concluded(
    mechanism: NoiseAware,
    prior_scale: float,
    release: Release,
    local: Callable[[Gaussian], Local],
    now: Gaussian | None = None,
) -> Gaussian:
    """The posterior given the last release, under the target's prior scale or one chosen from it."""
    size = len(release.position)
    now = Gaussian(np.zeros(size), np.eye(size) * prior_scale**2) if now is None else now
    for _ in range(_ROUNDS // 4):
        now = noise_aware.posterior(release, local(now), np.eye(size) / prior_scale**2, now)
    if mechanism.prior_scale == "target":
        return now

    def log_density(scale: float) -> float:
        fit = noise_aware.log_evidence(release, local(now), (prior_scale * scale) ** 2, now)
        return fit - 0.5 * (math.log(scale) / _LOG_SCALE_STD) ** 2

    chosen = prior_scale * float(max(_SCALES, key=log_density))
    for _ in range(_ROUNDS // 4):
        now = noise_aware.posterior(release, local(now), np.eye(size) / chosen**2, now)
    return now


@dataclass(frozen=True)
class LabelBlindGradient:
    """The one access to records after the Gram matrix: private gradients, clipped and noised in a released metric.

    Attributes:
        x, y: the records.
        row_norms: at least ‖F⁻¹x‖ of each row, (N,).
        root, inverse, metric: F, F⁻¹ and F², (d, d).
        norm: typical ‖F⁻¹x‖.
        clip: C.
    """

    x: np.ndarray
    y: np.ndarray
    row_norms: np.ndarray
    root: np.ndarray
    inverse: np.ndarray
    metric: np.ndarray
    norm: float
    clip: float

    @classmethod
    def of(cls, gram: np.ndarray, facts: Facts, x: np.ndarray, y: np.ndarray) -> LabelBlindGradient:
        """Make the metric of a released Gram matrix, and the records' norms in it."""
        metric = gram / facts.num_records + np.eye(facts.size) * facts.row_bound**2 / facts.size
        values, vectors = np.linalg.eigh(metric)
        values = np.maximum(values, facts.row_bound**2 / facts.size)
        root, inverse = (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T
        norm = math.sqrt(max(float(np.trace(inverse @ gram @ inverse)) / facts.num_records, _LEAST**2))
        # Rounding never makes a norm too small (``_rounding``).
        margin = facts.size**1.5 * 2.0**-52
        return cls(x, y, _row_norms(x, inverse) + margin, root, inverse, metric, norm, _CLIP * norm)

    def release(self, position: np.ndarray, noise_multiplier: float, key: jax.Array) -> np.ndarray:
        """Return g̃ = F(Σ F⁻¹ w (p − y) x + zC Z), (d,), at a public position."""
        p = expit(self.x @ position)
        weight = np.minimum(1.0, self.clip / (np.maximum(p, 1 - p) * self.row_norms))
        # The hard clip: a label beyond {0, 1} or rounding leaves no residual longer than C.
        residual = np.clip(weight * (p - self.y), -self.clip / self.row_norms, self.clip / self.row_norms)
        total = self.inverse @ weighted_sum(self.x, residual)
        return self.root @ gaussian_release(total / self.clip, noise_multiplier, key) * self.clip


def _row_norms(x: np.ndarray, inverse: np.ndarray, block: int = 1 << 14) -> np.ndarray:
    """‖F⁻¹x‖ of each row, (N,), in blocks of rows."""
    parts = (x[i : i + block] @ inverse for i in range(0, len(x), block))
    return np.concatenate([np.linalg.norm(part, axis=1) for part in parts])
