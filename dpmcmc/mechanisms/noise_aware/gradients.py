r"""A regression's access to records: bounded scores, their curvature and variance, each summed in a public metric.

Everything is summed at a public position θ, in a public metric F, with public bounds. Sums leave with Gaussian noise
(``regression.py``), and nothing else of a record does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.inference import noise_aware
from dpmcmc.inference.noise_aware import Gaussian, GradientRelease, Local
from dpmcmc.inference.scores import FARTHEST_ROW, BoundedScore
from dpmcmc.privacy.query.gaussian_release import (
    gaussian_release,
    gram_of,
    summing,
    weighted_sum,
    within,
)
from dpmcmc.report import console

# ----------------------------------------------------------------------------------------------------
# Bounds. With z = F⁻¹x, ψ the family's bounded score at η = x·θ (``inference/scores``) and Λ its curvature, a record
# adds
#
#     u z ψ  to the gradient,     u² ψ² z zᵀ  to the spread,     v Λ z zᵀ  to the curvature,
#
#     ‖ψ‖ <= C/(u‖z‖),     v = u·min(1, R²/‖z‖²)·min(1, L/leverage),
#
# u in [0, 1] the row's own public-range weight, times min(1, 8c/‖z‖) with c a length at which a row's limit is the
# typical one, so that no limit is smaller than an eighth of that and rounding has a bound. So u and v see x and θ
# alone, and no label:
#
# * ‖u z ψ‖ <= C: a replaced record moves the whitened sum by 2C at most, and an added or removed one by C;
# * the spread is a Gram matrix of rows within C: it moves by √2·C² at most;
# * the curvature is one of rows within √L, where L bounds v tr(Λ)‖z‖² (``BoundedScore.leverage``, or the weight): √2·L.
#
# A hard clip stands behind each: neither rounding nor a label that the model does not know moves a record beyond them.
# B is the variance of the estimating equation Σ u z ψ = 0, and H its curvature. In rows beyond R or L it is smaller, so
# that intervals are wider. Weights v in the equation itself would move its solution where the model is wrong for long
# rows: one coefficient of a real table then had a coverage of .1. An owner's k rows have C/k each, and together add a
# curvature of trace m·L at most (``prior.py``).

#: A typical whitened row is taken for no shorter than this, whatever was released, so that rounding relative to C has a
#: public bound.
_SHORTEST = 0.1
_ROWS = 1 << 14
#: Least length of a weighted row, in units of C: a shorter one has the limit of one so long.
_LEAST_SHARE = 1e-9


class Design(NamedTuple):
    """Public facts of the rows and of the positions at which gradients are released.

    Attributes:
        num_records: the larger N of two neighbours.
        size: d.
        row_bound: b, enforced on every row.
        radius: the farthest public position from 0.
        floor: part of the identity in F²; None: b²/d, the mean eigenvalue of rows as long as their bound.
    """

    num_records: int
    size: int
    row_bound: float
    radius: float
    floor: float | None = None

    @property
    def ridge(self) -> float:
        """Part of the identity in F²."""
        return self.row_bound**2 / self.size if self.floor is None else self.floor

    @property
    def longest(self) -> float:
        """Largest ‖F⁻¹x‖ of a row, b/√floor."""
        return self.row_bound / math.sqrt(self.ridge)

    @property
    def largest_trace(self) -> float:
        """Largest trace of the Gram matrix, N·b²."""
        return self.num_records * self.row_bound**2

    def metric(self, gram: np.ndarray) -> np.ndarray:
        """Return F² = G/N + floor·I of a Gram matrix, (d, d)."""
        return gram / self.num_records + np.eye(self.size) * self.ridge

    def whitened_norm(self, gram: np.ndarray) -> float:
        """Return a typical ‖F⁻¹x‖, √(tr(F⁻²G)/N)."""
        return math.sqrt(
            max(
                np.trace(np.linalg.solve(self.metric(gram), gram)) / self.num_records,
                _SHORTEST**2,
            )
        )

    def rounding(self, score: BoundedScore) -> float:
        """Return how far float64 may move a whitened sum on one of two neighbours, over C.

        F² >= floor·I gives ‖F⁻¹‖ <= f = 1/√floor, and C >= κ·_SHORTEST = c. A product with F⁻¹ is off by d·e·‖|F⁻¹|‖ <=
        d·√d·f·e times its vector's norm, with e = 2^-53. Relative to C:

        * Σ x ψ is off by summing·Σ|ψ|‖x‖, so F⁻¹ Σ x ψ by b·f·N·summing/c, and by N·d·√d·b·f·e/c more from the product;
        * an unchanged record's predictor is off by d·e·b·R, and its limit by d²·e/c of itself. The score says how far
          both move it.
        """
        d = self.size
        e = 2.0**-53
        c = score.clip * _SHORTEST
        sums = self.longest * (summing(self.num_records) + d**1.5 * e) / c
        records = score.rounding(self.margin, d**2 * e / c)
        return self.num_records * (sums + records)

    @property
    def margin(self) -> float:
        """How far rounding may move a predictor at a position within the radius."""
        return self.size * 2.0**-53 * self.row_bound * self.radius


class Bounds(NamedTuple):
    """Public bounds in the metric.

    Attributes:
        clip: C, of a record's score.
        longest: R: the weight of a longer row in the curvature falls with its square.
        leverage: L, of v tr(Λ)‖z‖²; infinite where no curvature is released.
    """

    clip: float
    longest: float = math.inf
    leverage: float = math.inf


class Weighted(NamedTuple):
    """Some rows at one position.

    Attributes:
        z: F⁻¹x, (n, d).
        y: labels, (n,).
        eta: predictors, (n,) or (n, K).
        limit: of ‖ψ‖, (n,).
        weight: u, (n,).
        held: v, (n,).
    """

    z: np.ndarray
    y: np.ndarray
    eta: np.ndarray
    limit: np.ndarray
    weight: np.ndarray
    held: np.ndarray


@dataclass(frozen=True)
class BoundedGradient:
    """The access to records: sums of scores, curvatures and spreads in the metric of a released Gram matrix.

    Attributes:
        design: public facts.
        score: of the family.
        x, y: the records.
        row_norms: at least ‖F⁻¹x‖ of each row, (N,).
        root, inverse: F and F⁻¹, (d, d).
        norm: a typical ‖F⁻¹x‖, times a typical number of rows that share C.
        bounds: public; None: C = κ times the typical norm, and no other.
        sharers: k, number of rows that share C with each row, (N,), or 1.
        offset: added to predictors, (N,), or 0.
        own_weights: u of each row, (N,), or 1.
        present: 0 for padding of an owner's rows, (N,), or 1.
    """

    design: Design
    score: BoundedScore
    x: np.ndarray
    y: np.ndarray
    row_norms: np.ndarray
    root: np.ndarray
    inverse: np.ndarray
    norm: float
    bounds: Bounds | None = None
    sharers: np.ndarray | float = 1.0
    offset: np.ndarray | float = 0.0
    own_weights: np.ndarray | float = 1.0
    present: np.ndarray | float = 1.0

    @classmethod
    def of(
        cls,
        gram: np.ndarray,
        design: Design,
        score: BoundedScore,
        x: np.ndarray,
        y: np.ndarray,
    ) -> BoundedGradient:
        """Make the metric of a released Gram matrix, and the records' norms in it."""
        values, vectors = np.linalg.eigh(design.metric(gram))
        values = np.maximum(values, design.ridge)
        root = (vectors * np.sqrt(values)) @ vectors.T
        inverse = (vectors / np.sqrt(values)) @ vectors.T
        parts = (
            np.linalg.norm(x[i : i + _ROWS] @ inverse, axis=1)
            for i in range(0, len(x), _ROWS)
        )
        # Rounding makes no norm too small.
        norms = np.concatenate(list(parts)) + design.size**2 * 2.0**-52 * max(
            1.0, design.longest / math.sqrt(design.size)
        )
        return cls(design, score, x, y, norms, root, inverse, design.whitened_norm(gram))

    def shared(self, sharers: np.ndarray, typical: float) -> BoundedGradient:
        """Return the access to rows of owners.

        Args:
            sharers: number of rows of each row's owner, (N,).
            typical: public, at least 1.
        """
        return dataclasses.replace(self, sharers=sharers, norm=self.norm * typical)

    @property
    def public(self) -> Bounds:
        """The bounds."""
        return Bounds(self.score.clip * self.norm) if self.bounds is None else self.bounds

    @property
    def clip(self) -> float:
        """C, public."""
        return self.public.clip

    def sum(self, position: np.ndarray) -> np.ndarray:
        """Return Σ u F⁻¹ x ψ / C, (d,), or (d·K,) for K predictors. Private: it must not leave."""
        eta, limit, weight, _ = self._bounded(position, slice(None))
        residual = within_limit(self.score.residual(eta, self.y, limit), limit)
        weighted = weighted_sum(self.x, _times(weight, residual))
        return (self.inverse @ weighted / self.clip).ravel()

    def release(
        self, position: np.ndarray, noise_multiplier: float, key: jax.Array
    ) -> np.ndarray:
        """Return g̃, (d,) or (d·K,), at a public position within the radius."""
        noisy = gaussian_release(self.sum(position), noise_multiplier, key)
        return (self.clip * self.root @ self._columns(noisy)).ravel()

    def curvature(self, position: np.ndarray) -> np.ndarray:
        """Return Σ v slope ⊗ z zᵀ / L, (d·K, d·K). Private: it must not leave."""
        most = self.public.leverage
        return self._second_moment(
            position,
            lambda at: _times(at.held / most, self.score.slope(at.eta, at.y, at.limit)),
        )

    def expected_spread(self, position: np.ndarray) -> np.ndarray:
        """Return Σ u² V ⊗ z zᵀ / C², as the model says scores vary, (d·K, d·K). Private: it must not leave."""
        most = self.clip**2
        return self._second_moment(
            position,
            lambda at: _times(
                at.weight**2 / most, self.score.law(at.eta, at.limit).variance
            ),
        )

    def spread(self, position: np.ndarray, owners: int) -> np.ndarray:
        """Return Σ g gᵀ / C² over owners' summed scores g, (d·K, d·K). Private: it must not leave.

        Args:
            position: public.
            owners: N, each of as many rows of ``x`` as any other, padding included.
        """
        each = len(self.x) // owners
        size = self.design.size * self.score.size
        total = np.zeros((size, size))
        for at in self._rows(position, max(1, _ROWS // each) * each):
            psi = within_limit(self.score.residual(at.eta, at.y, at.limit), at.limit)
            scores = (at.weight / self.clip)[:, None, None] * (
                at.z[:, :, None] * psi.reshape(len(psi), 1, -1)
            )
            total += gram_of(scores.reshape(-1, each, size).sum(axis=1), 1.0)
        return total

    def labels(self, position: np.ndarray, of: Callable[..., np.ndarray]) -> np.ndarray:
        """Return Σ of(η, y), (k,), for what ``scale.py`` asks of labels. Private: it must not leave."""
        eta = self.x @ self._columns(position) + self.offset
        total: np.ndarray = np.zeros(1)
        for i in range(0, len(eta), _ROWS):
            part = of(eta[i : i + _ROWS], self.y[i : i + _ROWS])
            there = _part(self.present, slice(i, i + _ROWS)) * np.ones(len(part))
            total = total + weighted_sum(part, there)
        return total

    def _second_moment(
        self, position: np.ndarray, of: Callable[[Weighted], np.ndarray]
    ) -> np.ndarray:
        """Return Σ h ⊗ z zᵀ, of h (n,) or (n, K, K) whose v tr(h)‖z‖² is at most 1; a longer one is scaled to it."""
        size = self.design.size * self.score.size
        total = np.zeros((size, size))
        for at in self._rows(position, _ROWS):
            h = of(at)
            if h.ndim == 1:
                total += gram_of(np.sqrt(np.maximum(h, 0.0))[:, None] * at.z, 1.0)
                continue
            values, vectors = np.linalg.eigh(h)
            roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None]
            rows = np.einsum("nkr,nj->nrjk", roots, at.z)
            total += gram_of(rows.reshape(len(h), -1, size), 1.0)
        return total

    def _rows(self, position: np.ndarray, count: int) -> Iterator[Weighted]:
        """Return all rows at a position, ``count`` at once."""
        for i in range(0, len(self.x), count):
            part = slice(i, i + count)
            yield Weighted(
                self.x[part] @ self.inverse,
                self.y[part],
                *self._bounded(position, part),
            )

    def _bounded(
        self, position: np.ndarray, part: slice
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (η, limits, weights u, weights v) of some rows."""
        bounds = self.public
        norms = self.row_norms[part]
        eta = self.x[part] @ self._columns(position)
        offset = _part(self.offset, part)
        eta = eta + (offset if eta.ndim == 1 else np.reshape(offset, (-1, 1)))
        far = FARTHEST_ROW * bounds.clip / self.score.limit
        weight = _part(self.own_weights, part) * np.minimum(1.0, far / norms)
        held = weight * np.minimum(1.0, (bounds.longest / norms) ** 2)
        tiny = np.finfo(float).tiny
        # No limit is so large that a law of a score overflows, as one of a weight of 0 would be.
        least = bounds.clip * _LEAST_SHARE
        limit = bounds.clip / np.maximum(
            weight * norms * _part(self.sharers, part), least
        )
        own = self.score.leverage(bounds.clip, bounds.longest)
        if math.isinf(own) and math.isfinite(bounds.leverage):
            # The family bounds no leverage, so the weight does.
            slopes = self.score.law(eta, limit).curvature
            trace = slopes if slopes.ndim == 1 else np.trace(slopes, axis1=1, axis2=2)
            leverage = held * trace * norms**2
            held = held * np.minimum(1.0, bounds.leverage / np.maximum(leverage, tiny))
        return eta, limit, weight, held

    def _columns(self, vector: np.ndarray) -> np.ndarray:
        """Return (d,), or (d, K) for K predictors."""
        return vector if self.score.size == 1 else vector.reshape(self.design.size, -1)


def _times(weight: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return weights (n,) times scores, slopes or variances, (n, ...)."""
    return weight.reshape(-1, *[1] * (of.ndim - 1)) * of


def _part(numbers: np.ndarray | float, part: slice) -> np.ndarray | float:
    """Return numbers of some rows."""
    return numbers[part] if isinstance(numbers, np.ndarray) else numbers


def within_limit(scores: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Return scores (N,) or (N, K) of norm at most ``limit`` (N,); one that is not finite becomes zero."""
    scores = np.where(np.isfinite(scores), scores, 0.0)
    if scores.ndim == 1:
        return np.clip(scores, -limit, limit)
    norms = np.linalg.norm(scores, axis=1)
    # The margin keeps rounding of norm and product below the limit.
    shrunk = np.where(
        norms > limit * (1 - 1e-13), limit * (1 - 1e-12) / np.maximum(norms, 1e-300), 1.0
    )
    return scores * shrunk[:, None]


# ----------------------------------------------------------------------------------------------------
# Private gradients one after the other, each at the posterior's mean given those before it.
#
# Later gradients get more of the budget, since they are taken nearer to where the posterior ends. The mean of the
# latest ones is what a posterior is concluded from (``inference/noise_aware.py``).

#: Gradients that the position settles in, at least.
FEWEST_STEPS = 16


def shares(steps: int, growth: float) -> np.ndarray:
    """Return the part of all gradients' μ² that each one gets, (steps,), each ``growth`` times the one before it."""
    parts = growth ** np.arange(steps, dtype=np.float64)
    return parts / parts.sum()


def multipliers(first: float, shares: np.ndarray) -> np.ndarray:
    """Return noise multipliers of gradients with these shares, (steps,), given the first's; never less than asked."""
    return first * np.sqrt(shares[0] / shares) * (1 + 1e-12)


@dataclass(frozen=True)
class Descent:
    """Public facts of the gradients.

    Attributes:
        stds: s_k, (steps,): the noise of gradient k has covariance s_k² F².
        square: F² of the metric, (d, d).
        precision: P of the prior N(0, P⁻¹), (d, d).
        local: model of the gradients, given a posterior's mean.
        latest: after each gradient, the part of those before it that a posterior is made of, (steps,).
        radius: how far from 0 a position may lie.
    """

    stds: np.ndarray
    square: np.ndarray
    precision: np.ndarray
    local: Callable[[np.ndarray], Local]
    latest: np.ndarray
    radius: float = math.inf

    def carry_out(
        self,
        gradient: Callable[[int, np.ndarray], np.ndarray],
        now: Gaussian,
        done: int,
        steps: int,
    ) -> tuple[Gaussian, GradientRelease]:
        """Release the gradients; return the last posterior, and the mean of the latest gradients.

        Args:
            gradient: (k, position) -> gradient k, released there.
            now: the posterior to begin with.
            done: gradients before these, of the run.
            steps: gradients of the run.
        """
        positions, gradients = np.zeros((2, len(self.stds), len(now.mean)))
        for k, part in enumerate(self.latest):
            positions[k] = within(now.mean[None], self.radius)[0]
            gradients[k] = gradient(k, positions[k])
            window = slice(k + 1 - math.ceil(part * (k + 1)), k + 1)
            precisions = self.stds[window] ** -2.0
            release = noise_aware.weighted_mean(
                positions[window], gradients[window], precisions, self.square
            )
            now = noise_aware.posterior(
                release, self.local(now.mean), self.precision, now, rounds=2
            )
            console.report_steps(done + k + 1, steps)
        return now, release
