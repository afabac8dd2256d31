"""The prior of a noise-aware posterior, and how a posterior is concluded under it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, Protocol, cast

import jax
import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.data.schema import RowStructure
from dpmcmc.data.user_file import MASK
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import noise_aware
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.noise_aware import Gaussian, GradientRelease, Local
from dpmcmc.inference.scores import BoundedScore, Law
from dpmcmc.mechanisms.base import MechanismPlan, PrivacySpec, ReleasedDraws
from dpmcmc.privacy.accounting import Adjacency, Event
from dpmcmc.privacy.query.gaussian_release import (
    gaussian_release,
    mu_std,
    standard_normal,
)
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, Target
from dpmcmc.targets.glm import GeneralisedLinear
from dpmcmc.targets.last_layer import LastLayer
from dpmcmc.targets.transformed import PerOwner

# ----------------------------------------------------------------------------------------------------
# Options of the noise-aware release, which each of its ways reads.


@dataclass(frozen=True)
class Options:
    """Options of :class:`dpmcmc.mechanisms.NoiseAware`, which says what each one is."""

    draws: Annotated[int, Gt(0)] = 1000
    steps: Annotated[int, Ge(4), Le(100)] = 48
    gram_share: Annotated[float, Gt(0), Lt(0.95)] | None = None
    prior_scale: Literal["target", "evidence"] = "target"
    covariance: Literal["model", "sandwich"] = "model"
    intercept_scale: Positive | None = None
    structure: RowStructure | None = field(default=None, kw_only=True, repr=False)


# ----------------------------------------------------------------------------------------------------
# Owners with several records: what they move releases by, how many rows they have, and how these share a clip norm.
#
# One owner's rows are one record of the guarantee. An owner has at most m rows, m public, each with ‖x‖ <= b.
#
# **Sensitivity.** An owner adds A = Σ_j x_j x_jᵀ to the Gram matrix, positive semi-definite with ‖A‖ <= tr A <= m b².
# Two such matrices have ⟨A, A'⟩ >= 0, so a replaced owner moves the sum by ‖A − A'‖ <= √2·m·b², and the trace by m b²
# (``together``). An owner's rows share the clip norm C: with k rows each has the limit C/(k ‖F⁻¹x‖), so they add
# ‖Σ_j F⁻¹x_j ψ_j‖ <= Σ_j C/k = C to a whitened gradient, whatever the family's bounded score is. A replaced owner moves
# it by 2C. The number k depends on the owner's rows and on no label, so each score keeps mean zero at the parameter
# that made the labels: no sum of an owner's scores is clipped.
#
# **How many rows.** Their number n = Σ k is private, and formulas need it. So the owners with k rows are counted, k = 1
# to m, with Gaussian noise: an owner is in one count, and a replaced one moves the counts by √2 at most. Then n is
# public, and C = κ·k̄·(a typical ‖F⁻¹x‖) with k̄ the mean of k over rows. A row of an owner with k rows has k̄/k times the
# limit of a typical one, and the law of a score is averaged over these limits (:class:`SharedLimits`).
#
# **Supposed.** Given θ an owner's records are independent, as those of different owners are: then the variance of an
# owner's score is the sum of its records'. If owners have effects that the model leaves out (a random intercept, say),
# scores of one owner vary together and intervals are too narrow. Effects also draw coefficients of a logistic
# regression toward zero.

#: Share of μ² for the counts.
COUNT_SHARE = 0.01


def row_model(target: Target) -> tuple[Target, int]:
    """Return the model of one row, and m; a target whose records are rows is its own, with m = 1.

    Raises:
        ValueError: m is not given.
        UnsupportedCombination: owners with several rows, of another model than a regression.
    """
    if not isinstance(target, PerOwner):
        return target, 1
    if target.records_per_owner is None:
        raise InputError(
            "records_per_owner: PerOwner needs it before a plan; give it",
            "records_per_owner",
        )
    model = target.target
    if isinstance(model, LastLayer) or not isinstance(model, GeneralisedLinear):
        raise UnsupportedCombination(
            f"noise_aware takes owners with several rows for regressions whose features are in the rows, and the model "
            f"of a row is {type(model).__name__}; keep one record of each owner, or use a sampler, whose draws are for "
            "prediction."
        )
    return model, target.records_per_owner


class Read(NamedTuple):
    """Rows of all owners, one after the other; padding is zero.

    Attributes:
        x: (N·m, d).
        y: (N·m,).
        sizes: number of rows of each owner, (N,).
    """

    x: np.ndarray
    y: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, records: PyTree) -> Read:
        """Return the rows of records, or of owners."""
        x, y = (np.asarray(records[name], np.float64) for name in ("x", "y"))
        if MASK not in records:
            return cls(x, y, np.ones(len(x), int))
        mask = np.asarray(records[MASK], bool)
        x = np.where(mask[..., None], x, 0.0)
        y = np.where(mask, y, 0.0)
        return cls(x.reshape(-1, x.shape[-1]), y.ravel(), mask.sum(axis=1))

    @property
    def sharers(self) -> np.ndarray:
        """Number of rows of each row's owner, (N·m,)."""
        return np.repeat(
            np.maximum(self.sizes, 1), len(self.x) // len(self.sizes)
        ).astype(np.float64)

    def of_owners(self, rows: np.ndarray) -> np.ndarray:
        """Return sums over the rows (N·m, d) of each owner, (N, d)."""
        return rows.reshape(len(self.sizes), -1, rows.shape[1]).sum(axis=1)


class Sharing(NamedTuple):
    """How rows share the clip norms of their owners: public.

    Attributes:
        num_rows: n.
        typical: k̄, the mean over rows of the number of rows of their owner.
        shares: of all rows, those of owners with k = 1 to m rows, (m,).
    """

    num_rows: int
    typical: float
    shares: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray) -> Sharing:
        """Return what counts of owners, noisy or guessed, say."""
        sizes = np.arange(1, len(counts) + 1)
        rows = np.maximum(counts, 0.0) * sizes
        if not rows.sum() >= 1:
            rows = np.eye(len(counts))[0]
        shares = rows / rows.sum()
        return cls(max(1, round(float(rows.sum()))), float(shares @ sizes), shares)

    @classmethod
    def guessed(cls, num_owners: int, most: int) -> Sharing:
        """Return what is planned with: every number of rows is as likely."""
        return cls.of(np.full(most, num_owners / most))

    def scored(self, score: BoundedScore) -> BoundedScore:
        """Return the score whose law is averaged over rows."""
        if len(self.shares) == 1:
            return score
        return cast(
            BoundedScore,
            SharedLimits(
                score, self.typical / np.arange(1, len(self.shares) + 1), self.shares
            ),
        )


@dataclass(frozen=True)
class SharedLimits:
    """A family's score whose typical limit differs from row to row.

    Attributes:
        score: of the family.
        multiples: of the limit, (m,).
        shares: of the rows that have them, (m,).
    """

    score: BoundedScore
    multiples: np.ndarray
    shares: np.ndarray

    @property
    def size(self) -> int:
        """Number of predictors of a record."""
        return self.score.size

    def law(self, eta: np.ndarray, limit: float) -> Law:
        """Return Λ and V, averaged over the limits."""
        laws = [self.score.law(eta, limit * multiple) for multiple in self.multiples]
        curvature, variance = (
            np.tensordot(self.shares, np.stack(leaves), 1)
            for leaves in zip(*laws, strict=True)
        )
        return Law(curvature, variance)


def calibrate_counts(most: int, spec: PrivacySpec, mu: float) -> tuple[Event, float]:
    """Return the cost of counting owners with 1 to m rows, and the std of each count's noise; it spends ``mu``."""
    moved = math.sqrt(2) if spec.adjacency == Adjacency.REPLACE_ONE else 1.0
    noise_std = mu_std(moved, most, mu)
    return spec.gaussian(noise_std, moved, most), noise_std


def release_counts(read: Read, most: int, noise_std: float, key: jax.Array) -> Sharing:
    """Count the owners with 1 to m rows, and return what the noisy counts say."""
    counts = np.bincount(read.sizes, minlength=most + 1)[1:]
    return Sharing.of(gaussian_release(counts.astype(np.float64), noise_std, key))


#: Iterations of the posterior given the last release, and those under one law of it.
_ROUNDS, _INNER = 12, 4
#: Farthest position, in prior standard deviations times √d.
_RADIUS = 30.0
#: Candidates of ``prior_scale: evidence`` in units of the target's, and the standard deviation of the log of a scale
#: under its hyperprior.
_SCALES, _LOG_SCALE_STD = np.exp(np.linspace(-2, 2, 33)), 1.0


class Concluded(NamedTuple):
    """A posterior of the coefficients, and the law of the release that it was concluded from."""

    posterior: Gaussian
    evidence: Evidence

    def draws(self, count: int, streams: Streams) -> np.ndarray:
        """Return draws from the posterior, (count, d)."""
        return self.posterior.draws(
            standard_normal(streams.dynamics, (count, len(self.posterior.mean)))
        )


@dataclass(frozen=True)
class Prior:
    """N(0, diag(scales²)), or the multiple of it that released numbers favour.

    Attributes:
        scales: standard deviations of the coefficients, (d,); those of K predictors one row after the other, (d·K,).
        by_evidence: whether a multiple is chosen.
    """

    scales: np.ndarray
    by_evidence: bool

    @classmethod
    def of(
        cls, options: Options, target: GeneralisedLinear, predictors: int = 1
    ) -> Prior:
        """Return the prior of a regression with K predictors, with a scale of its own for the declared intercept.

        Raises:
            ValueError: num_features is not known.
        """
        if target.num_features is None:
            raise InputError(
                f"num_features: {type(target).__name__} needs it before a plan; give it",
                "num_features",
            )
        scales = np.full((target.num_features, predictors), target.prior_scale)
        constant = None if options.structure is None else options.structure.constant
        if options.intercept_scale is not None and constant is not None:
            scales[constant] = options.intercept_scale
        return cls(scales.ravel(), options.prior_scale == "evidence")

    @property
    def radius(self) -> float:
        """How far from 0 a public position may lie."""
        return _RADIUS * float(np.max(self.scales)) * math.sqrt(len(self.scales))

    @property
    def precision(self) -> np.ndarray:
        """P, (d, d)."""
        return np.diag(self.scales**-2)

    @property
    def gaussian(self) -> Gaussian:
        """The prior itself."""
        return Gaussian(np.zeros(len(self.scales)), np.diag(self.scales**2))

    def concluded(
        self,
        release: GradientRelease,
        local: Callable[[Gaussian], Local],
        at: Gaussian,
        num_records: int,
    ) -> Concluded:
        """Return what follows from the last release.

        Args:
            release: of the gradient.
            local: model of the gradient, given a posterior.
            at: first guess of the posterior.
            num_records: N.
        """
        at = noise_aware.conclude(
            lambda now: (release, local(now)),
            self.precision,
            at,
            rounds=_ROUNDS // _INNER,
            inner=_INNER,
        )
        here = local(at)
        statistic = here.curvature @ release.position - release.gradient
        covariance = noise_aware.total_covariance(release, here, at)
        found = Evidence(here.curvature, statistic, covariance, self.scales, num_records)
        if not self.by_evidence:
            return Concluded(at, found)

        def log_density(factor: float) -> float:
            return (
                found.log_density(scales=factor * self.scales)
                - 0.5 * (math.log(factor) / _LOG_SCALE_STD) ** 2
            )

        chosen = Prior(
            self.scales * float(max(_SCALES, key=log_density)), by_evidence=False
        )
        return chosen.concluded(release, local, at, num_records)


# ------------------------------------------------------------------------------------
# Strategy of a family: how its records are released, and how a posterior follows from the releases.
#
# A new strategy is one file with a class of the protocol :class:`Strategy`, and one line of ``strategy_of`` in
# ``mechanism.py``.


#: Events and settings.
Calibrated = tuple[tuple[Event, ...], dict[str, float]]


class Strategy(Protocol):
    """How records of a family are released, and what follows from it."""

    def calibrate(self, spec: PrivacySpec) -> Calibrated:
        """Return what the releases cost, and public numbers that they rest on; reads no record."""

    def draw(
        self, plan: MechanismPlan, records: PyTree, streams: Streams
    ) -> ReleasedDraws:
        """Release, and return posterior draws like the target's parameters, leaves (draws, ...)."""

    def refusal(self, plan: MechanismPlan) -> str | None:
        """Return why intervals of the draws do not hold, a clause, or None where they do."""
