r"""Coefficients that are 0: a spike-and-slab posterior of a noise-aware release, at no further cost to privacy.

A coefficient is 0 or normal (Mitchell and Beauchamp 1988), and the released u has the law of ``evidence.py``:

    θ_j = 0 with probability 1 − π_j, else θ_j ~ N(m_j, v_j²);      u = Hθ + e,   e ~ N(0, 𝒞)                     (1)

The support S is the set of coefficients that are not 0. With A = H𝒞⁻¹H, b = H𝒞⁻¹u, V = diag(v²) and r = b + V⁻¹m the
density of u given S is, up to a constant,

    log p(u|S) = ½ r_Sᵀ(A_SS + V_S⁻¹)⁻¹r_S − ½ log|V_S A_SS + I| − ½ m_Sᵀ V_S⁻¹ m_S,                               (2)

and given S the coefficients are N((A_SS + V_S⁻¹)⁻¹r_S, (A_SS + V_S⁻¹)⁻¹). Supports are enumerated where there are at
most 2¹⁵; then their probabilities are those of (1) up to rounding. More of them are visited by Gibbs sampling, with θ
integrated out (George and McCulloch 1997).

**Approximation.** 𝒞 holds the variance of the score, the noise of privacy, and that of the error of Ĥ, which multiplies
θ. The last part is taken at the posterior under the normal prior and is the same for all supports, so e is taken for
normal and independent of θ. For a linear regression without noise in Ĥ nothing is approximated. With noise, the normal
prior's posterior is wider than the sparse one, so 𝒞 is rather too large, and a coefficient that the noise nearly hides
gets rather too small an inclusion probability (``tests/test_sparse.py`` compares with the integral over θ).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import logit, softmax

from dpmcmc.errors import InputError
from dpmcmc.storage.blas import on_one_blas_thread

#: Most supports that are enumerated.
_ENUMERATED = 1 << 15
#: Part of the sweeps that is left out before them, while the chain forgets its start.
_BURN_IN = 0.1


@dataclass(frozen=True, eq=False)
class SparseLaw:
    """Law (1), as far as the posterior needs it.

    Attributes:
        precision: A, (d, d).
        shift: b, (d,).
        means: m, (d,).
        scales: v, (d,).
        inclusion: π, (d,).
    """

    precision: np.ndarray
    shift: np.ndarray
    means: np.ndarray
    scales: np.ndarray
    inclusion: np.ndarray

    @classmethod
    def of(
        cls,
        curvature: np.ndarray,
        statistic: np.ndarray,
        covariance: np.ndarray,
        means: np.ndarray,
        scales: np.ndarray,
        inclusion: np.ndarray,
    ) -> Self:
        """Return the law of u = Hθ + e; arguments are H, u, 𝒞, m, v and π."""
        informed = np.linalg.solve(covariance, curvature)
        precision = curvature @ informed
        symmetric = (precision + precision.T) / 2
        return cls(symmetric, informed.T @ statistic, means, scales, inclusion)

    @functools.cached_property
    def undecided(self) -> np.ndarray:
        """Numbers of the coefficients that may be 0 or not."""
        return np.flatnonzero((self.inclusion > 0) & (self.inclusion < 1))

    def given(self, supports: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (log p(u|S) + log p(S) up to a constant, (k,), and the means of θ given S, (k, d)).

        Args:
            supports: (k, d), bool.
        """
        logs = np.zeros(len(supports))
        means = np.zeros(supports.shape)
        sizes = supports.sum(axis=1)
        for size in np.unique(sizes[sizes > 0]):
            rows = np.flatnonzero(sizes == size)
            places = np.nonzero(supports[rows])[1].reshape(len(rows), size)
            root = np.linalg.cholesky(self.posterior_precision(places))
            half = np.linalg.solve(root, self._pull[places][..., None])
            diagonal = np.diagonal(root, axis1=1, axis2=2)
            logs[rows] = (
                0.5 * np.sum(half[..., 0] ** 2, axis=1)
                - np.sum(np.log(diagonal), axis=1)
                + np.sum(self._apart[places], axis=1)
            )
            found = np.linalg.solve(root.swapaxes(1, 2), half)[..., 0]
            means[rows[:, None], places] = found
        return logs, means

    def log_odds(self, support: np.ndarray) -> np.ndarray:
        """Return the log odds that each coefficient is not 0 given which others are, (d,).

        Adding j to S adds ½q²/s − ½log s to (2), with q and s the pull and the precision of θ_j where those of S are
        integrated out. For a member of S they follow from the inverse: s is 1/Σ_jj, and q is s times the mean of θ_j.

        Args:
            support: (d,), bool.
        """
        places = np.flatnonzero(support)
        covariance = np.linalg.inv(self.posterior_precision(places))
        mean = covariance @ self._pull[places]
        cross = self.precision[:, places]
        left = np.diag(self.precision) + 1 / self.scales**2
        left = left - np.sum((cross @ covariance) * cross, axis=1)
        pull = self._pull - cross @ mean
        left[places] = 1 / np.diag(covariance)
        pull[places] = mean * left[places]
        return self._apart + 0.5 * pull**2 / left - 0.5 * np.log(left)

    @functools.cached_property
    def _apart(self) -> np.ndarray:
        """Part of (2) and of log p(S) that each coefficient adds by itself, (d,)."""
        odds = np.zeros(len(self.scales))
        own = self.inclusion[self.undecided]
        odds[self.undecided] = np.log(own) - np.log1p(-own)
        return odds - np.log(self.scales) - 0.5 * (self.means / self.scales) ** 2

    @functools.cached_property
    def _pull(self) -> np.ndarray:
        """r, (d,)."""
        return self.shift + self.means / self.scales**2

    def posterior_precision(self, places: np.ndarray) -> np.ndarray:
        """Return A_SS + V_S⁻¹ of the coefficients in ``places``, (..., k) -> (..., k, k)."""
        own = np.eye(places.shape[-1]) / self.scales[places][..., None] ** 2
        return self.precision[places[..., :, None], places[..., None, :]] + own


@dataclass(frozen=True, eq=False)
class SparsePosterior:
    """Posterior of the coefficients that are not 0, and of their values.

    Attributes:
        supports: which coefficients are not 0, (k, d), bool; the most probable one first.
        probabilities: of the supports, (k,). Gibbs sampling has those that it visited, and the shares of its visits.
        means: of the coefficients given each support, (k, d).
        law: that it follows from.
        enumerated: whether these are all supports.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.inference import Evidence
        >>> evidence = Evidence(  # or result.evidence
        ...     curvature=np.diag([900.0, 400.0]),
        ...     statistic=np.array([700.0, 30.0]),
        ...     covariance=np.diag([1500.0, 800.0]),
        ...     scales=np.ones(2),
        ...     num_records=10_000,
        ... )
        >>> sparse = evidence.sparse_posterior(inclusion=0.3)
        >>> sparse.inclusion.round(3), sparse.supports[0]
        (array([1.  , 0.05]), array([ True, False]))
    """

    supports: np.ndarray
    probabilities: np.ndarray
    means: np.ndarray
    law: SparseLaw
    enumerated: bool

    @property
    def inclusion(self) -> np.ndarray:
        """Posterior probability that each coefficient is not 0, (d,)."""
        return np.minimum(self.probabilities @ self.supports, 1.0)

    @property
    def mean(self) -> np.ndarray:
        """Posterior mean of the coefficients, (d,)."""
        return self.probabilities @ self.means

    def probability(self, support: np.ndarray) -> float:
        """Return the posterior probability of a support, (d,) bool."""
        return float(self.probabilities[np.all(self.supports == support, axis=1)].sum())

    @on_one_blas_thread
    def draws(self, count: int, seed: int = 0) -> np.ndarray:
        """Return draws of the coefficients, (count, d); they cost nothing, and the seed may be public."""
        rng = np.random.default_rng(seed)
        out = np.zeros((count, self.supports.shape[1]))
        chosen = rng.choice(len(self.probabilities), count, p=self.probabilities)
        for number in np.unique(chosen):
            rows = np.flatnonzero(chosen == number)
            places = np.flatnonzero(self.supports[number])
            root = np.linalg.cholesky(self.law.posterior_precision(places))
            noise = rng.normal(size=(len(places), len(rows)))
            out[np.ix_(rows, places)] = self.means[number, places] + np.linalg.solve(root.T, noise).T
        return out

    def __repr__(self) -> str:
        how = "all" if self.enumerated else "visited"
        return f"SparsePosterior({how} {len(self.supports)} supports of {self.supports.shape[1]} coefficients)"


def sparse_posterior(law: SparseLaw, size: int | None = None, *, sweeps: int = 2000, seed: int = 0) -> SparsePosterior:
    """Return the posterior under a spike and slab.

    Args:
        law: of the release and the prior.
        size: how many of the coefficients that may be 0 are not, where that is known.
        sweeps: of Gibbs sampling, where supports are too many.
        seed: of Gibbs sampling; it may be public.

    Raises:
        InputError: an inclusion probability, a scale, a size or a number of sweeps that is impossible.
    """
    _check(law, size, sweeps)
    undecided = law.undecided
    if size is None:
        number = 2 ** len(undecided)
    else:
        number = math.comb(len(undecided), size)
    if number <= _ENUMERATED:
        supports = _all(law, size)
        logs, means = law.given(supports)
        probabilities = softmax(logs)
    else:
        rng = np.random.default_rng(seed)
        chain = np.array(list(_visits(law, size, sweeps, rng)))
        supports, counts = np.unique(chain, axis=0, return_counts=True)
        probabilities = counts / counts.sum()
        means = law.given(supports)[1]
    order = np.argsort(-probabilities, kind="stable")
    return SparsePosterior(
        supports[order],
        probabilities[order],
        means[order],
        law,
        number <= _ENUMERATED,
    )


def _check(law: SparseLaw, size: int | None, sweeps: int) -> None:
    if not np.all((law.inclusion >= 0) & (law.inclusion <= 1)):
        raise InputError("inclusion: must be probabilities within [0, 1]", "inclusion")
    if not np.all((law.scales > 0) & np.isfinite(law.scales)):
        raise InputError("slab: must be finite standard deviations > 0", "slab")
    most = len(law.undecided)
    whole = size is None or isinstance(size, int | np.integer)
    if not whole or (size is not None and not 0 <= size <= most):
        raise InputError(
            f"size: must be a whole number from 0 to {most}, the coefficients that may be 0 or not, got {size}",
            "size",
        )
    if sweeps < 1:
        raise InputError(f"sweeps: must be at least 1, got {sweeps}", "sweeps")


def _all(law: SparseLaw, size: int | None) -> np.ndarray:
    """Return every support, (k, d)."""
    undecided = law.undecided
    if size is None:
        chosen = np.array(list(itertools.product((False, True), repeat=len(undecided))))
    else:
        chosen = np.zeros((math.comb(len(undecided), size), len(undecided)), bool)
        for row, places in zip(chosen, itertools.combinations(range(len(undecided)), size), strict=True):
            row[list(places)] = True
    supports = np.tile(law.inclusion == 1, (len(chosen), 1))
    supports[:, undecided] = chosen
    return supports


def _visits(law: SparseLaw, size: int | None, sweeps: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the support after each sweep of Gibbs sampling, (d,).

    A step draws whether one coefficient is 0 given all others; where the size is known, which coefficient takes the
    place of one that is not 0. Each is a draw from its full conditional law, so the posterior stays as it is.
    """
    undecided = law.undecided
    now = law.inclusion == 1
    now[undecided[: size or 0]] = True
    left_out = math.ceil(_BURN_IN * sweeps)
    for sweep in range(left_out + sweeps):
        now = _switched(law, now, rng) if size is None else _replaced(law, now, rng)
        if sweep >= left_out:
            yield now


def _switched(law: SparseLaw, now: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the support after whether each coefficient is 0 was drawn in turn, (d,)."""
    order = rng.permutation(law.undecided)
    points = logit(rng.random(len(order)))
    start = 0
    while start < len(order):
        # The odds hold until a coefficient changes.
        rest = order[start:]
        changes = (points[start:] < law.log_odds(now)[rest]) != now[rest]
        if not changes.any():
            break
        first = int(np.argmax(changes))
        now = now.copy()
        now[rest[first]] ^= True
        start = start + first + 1
    return now


def _replaced(law: SparseLaw, now: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the support after a substitute, maybe itself, was drawn for each member in turn, (d,)."""
    for place in rng.permutation(np.intersect1d(np.flatnonzero(now), law.undecided)):
        now = now.copy()
        now[place] = False
        candidates = law.undecided[~now[law.undecided]]
        odds = softmax(law.log_odds(now)[candidates])
        now[rng.choice(candidates, p=odds)] = True
    return now
