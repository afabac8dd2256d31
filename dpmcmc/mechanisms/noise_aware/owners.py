"""Owners with several records: what they move releases by, how many rows they have, and how these share a clip norm.

One owner's rows are one record of the guarantee. An owner has at most m rows, m public, each with ‖x‖ <= b.

**Sensitivity.** An owner adds A = Σ_j x_j x_jᵀ to the Gram matrix, positive semi-definite with ‖A‖ <= tr A <= m b².
Two such matrices have ⟨A, A'⟩ >= 0, so a replaced owner moves the sum by ‖A − A'‖ <= √2·m·b², and the trace by m b²
(``together``). An owner's rows share the clip norm C: with k rows each has the limit C/(k ‖F⁻¹x‖), so they add
‖Σ_j F⁻¹x_j ψ_j‖ <= Σ_j C/k = C to a whitened gradient, whatever the family's bounded score is. A replaced owner moves
it by 2C. The number k depends on the owner's rows and on no label, so each score keeps mean zero at the parameter
that made the labels: no sum of an owner's scores is clipped.

**How many rows.** Their number n = Σ k is private, and formulas need it. So the owners with k rows are counted, k = 1
to m, with Gaussian noise: an owner is in one count, and a replaced one moves the counts by √2 at most. Then n is
public, and C = κ·k̄·(a typical ‖F⁻¹x‖) with k̄ the mean of k over rows. A row of an owner with k rows has k̄/k times the
limit of a typical one, and the law of a score is averaged over these limits (:class:`SharedLimits`).

**Supposed.** Given θ an owner's records are independent, as those of different owners are: then the variance of an
owner's score is the sum of its records'. If owners have effects that the model leaves out (a random intercept, say),
scores of one owner vary together and intervals are too narrow. Effects also draw coefficients of a logistic
regression toward zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference.bounded_score import BoundedScore, Law
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.targets.base import Target
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.ordinal import OrdinalRegression
from dpmcmc.targets.per_owner import PerOwner


def row_model(target: Target) -> tuple[Target, int]:
    """Return the model of one row, and m; a target whose records are rows is its own, with m = 1.

    Raises:
        ValueError: m is not given.
        UnsupportedCombination: owners with several rows, of another model than a regression.
    """
    if isinstance(target, OrdinalRegression):
        return target.question, target.classes - 1
    if not isinstance(target, PerOwner):
        return target, 1
    if target.records_per_owner is None:
        raise InputError(
            "records_per_owner: PerOwner needs it before a plan; give it",
            "records_per_owner",
        )
    model = target.target
    if not isinstance(model, GeneralisedLinear):
        raise UnsupportedCombination(
            f"noise_aware takes owners with several rows for regressions, and the model of a "
            f"row is {type(model).__name__}; keep one record of each owner, or use a sampler, whose draws are for "
            "prediction."
        )
    return model, target.records_per_owner


class RowsOfOwners(NamedTuple):
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
    def of(cls, counts: np.ndarray) -> RowsOfOwners:
        """Return what counts of owners, noisy or guessed, say."""
        sizes = np.arange(1, len(counts) + 1)
        rows = np.maximum(counts, 0.0) * sizes
        if not rows.sum() >= 1:
            rows = np.eye(len(counts))[0]
        shares = rows / rows.sum()
        return cls(max(1, round(float(rows.sum()))), float(shares @ sizes), shares)

    def scored(self, score: BoundedScore) -> BoundedScore:
        """Return the score whose law is averaged over rows."""
        if len(self.shares) == 1:
            return score
        return cast(
            BoundedScore,
            SharedLimits(score, self.typical / np.arange(1, len(self.shares) + 1), self.shares),
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
        return Law(*map(self._averaged, zip(*laws, strict=True)))

    def shifted(self, eta: np.ndarray, limit: float) -> np.ndarray:
        """Return how the mean of ψ follows what the score learns of labels, averaged over the limits."""
        parts = [
            self.score.shifted(eta, limit * multiple)  # type: ignore[attr-defined]
            for multiple in self.multiples
        ]
        return self._averaged(parts)

    def _averaged(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the mean over rows of what rows with each limit have."""
        return np.tensordot(self.shares, np.stack(parts), 1)


def counts_moved(adjacency: Adjacency) -> float:
    """Return how far neighbours' counts of owners with 1 to m rows lie apart."""
    return math.sqrt(2) if adjacency == Adjacency.REPLACE_ONE else 1.0
