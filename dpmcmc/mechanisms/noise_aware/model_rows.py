"""Rows and bounded scores of a NumPyro model's records: a noise-aware release's access to them.

At a public t a record (x, y) has predictors η(x; t) (``targets/numpyro/model.py``) and rows A = ∂η/∂τ·F⁻¹, (K,
d), in a public metric F of τ = (t − centre)/scale. Its score in that metric is

    g = v Aᵀψ(η, y),    v = min(1, L/tr(AᵀΛA)),

with ψ bounded and Fisher-consistent and Λ = E[ψ sᵀ], V = E[ψ ψᵀ] (``inference/scores``). The bound of ψ is C/‖A‖ for
a family of one predictor, and C·u_k/Σ_j u_j‖A_j‖ for part k of several, u their usual sizes, so ‖Aᵀψ‖ <= C. Summed
over records are

* scores g: ‖g‖ <= C, so a replaced record moves the sum by 2C at most. E[g] = 0 at the parameter that made y, since v
  and the bounds of ψ are functions of x and t alone, and E[ψ] = 0;
* curvature v AᵀΛA, the Jacobian of E[g]: RᵀR with R = (vΛ)^½A and ‖R‖² = v tr(AᵀΛA) <= L. A replaced record moves it
  by √2·L at most in Frobenius norm (``privacy/query/gaussian_release.py``);
* spread v² tr(AᵀVA) = E‖g‖² <= C²: by C² at most;
* log(tr(AᵀΛA)/d) brought within ±LOG.

A hard clip stands behind every bound. A record counts if every number that is computed of it is finite: η, A, ‖A‖ in
float64, its limit, its law. Any other record adds exactly zero to each sum, as an absent one does, and is not
refused. Each decision is made for one record: no number of a record changes what is computed of another.

Rounding. Each block of records runs one program of one shape, so the bits of a record's numbers depend on the record,
on public numbers and on its place alone. Under ``replace_one`` and ``zero_out`` all other records keep their places,
and so their bits. Each record's numbers are rounded to a public grid within their bound, and then added exactly
(``integer_rows.py``), so nothing is charged for rounding. A place is one of a whole table: such records are not cut
into partitions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.decompositions import eigh, roots
from dpmcmc.inference.normal_score import Normal
from dpmcmc.mechanisms.rows import FINE_BITS
from dpmcmc.mechanisms.sums_in_blocks import float64
from dpmcmc.privacy.query.gram_release import gram_of
from dpmcmc.privacy.query.integer_rows import ROW_BITS, Exact, rounded_rows, unit_of
from dpmcmc.storage.pytree import PyTree, length_of

if TYPE_CHECKING:
    from dpmcmc.targets.numpyro.predictor import Reading


#: Records of one call of the program.
_ROWS_AT_ONCE = 1 << 11
#: Bound of |log(tr(AᵀΛA)/d)| of a record.
LOG = 7.0
#: A shorter row is given the limit of a row of this length, so that squares of limits stay finite.
_LEAST_LENGTH = 1e-100
#: C in units of √ of a typical leverage, and L in units of C times it.
CLIP, LEVERAGE = 1.0, 2.0


class Metric(NamedTuple):
    """A public metric of (t − centre)/scale, and the bounds that hold in it.

    Attributes:
        root, inverse: F and F⁻¹, symmetric, (d, d).
        clip: C; infinite for the family's own score.
        leverage: L; infinite where rows are not bounded yet.
    """

    root: np.ndarray
    inverse: np.ndarray
    clip: float = np.inf
    leverage: float = np.inf

    @classmethod
    def of(cls, square: np.ndarray) -> Metric:
        """Return the metric F with this F², (d, d)."""
        return cls(*roots((square + square.T) / 2))

    def bounded(self, leverage: float) -> Metric:
        """Return the metric with bounds for records whose tr(AᵀΛA) is typically this."""
        return self._replace(clip=CLIP * math.sqrt(leverage), leverage=LEVERAGE * CLIP * leverage)


class Block(NamedTuple):
    """Some records at one point, all finite; numbers of a record that does not count are zero.

    Attributes:
        counts: whether a record counts, (n,).
        eta: η, (n,) or (n, K).
        rows: A, (n, K, d).
        observed: y, (n,).
        limit: largest ‖ψ‖; (n,), or (n, K) where each predictor has one of its own.
        roots: Λ^½A, (n, K, d), and their squared norms, (n,).
        leverage: tr(AᵀΛA), (n,).
        spread: tr(AᵀVA), (n,).
    """

    counts: np.ndarray
    eta: np.ndarray
    rows: np.ndarray
    observed: np.ndarray
    limit: np.ndarray
    roots: np.ndarray
    leverage: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True)
class ModelRows:
    """The access to records.

    Attributes:
        reading: of the model.
        score: of its family.
        records: leaves (N, ...), NumPy.
    """

    reading: Reading
    score: BoundedScore | Normal
    records: PyTree

    @np.errstate(all="ignore")
    def scores(self, tau: np.ndarray, metric: Metric) -> Exact:
        """Return Σ g/C, (d,), at a public point τ = (t − centre)/scale."""
        total = np.zeros(len(tau), np.int64)
        for block in self._blocks(tau, metric):
            psi = self.score.residual(block.eta, block.observed, block.limit)
            weights = np.minimum(1.0, metric.leverage / np.maximum(block.leverage, 1e-300)) / metric.clip
            each = np.einsum("n,nk,nkd->nd", weights, psi.reshape(len(psi), -1), block.rows)
            each[~block.counts] = 0.0
            total += rounded_rows(each, 1.0).astype(np.int64).sum(axis=0)
        return Exact(total.astype(object), unit_of(1.0, ROW_BITS))

    @np.errstate(all="ignore")
    def curvature(self, tau: np.ndarray, metric: Metric) -> tuple[Exact, Exact]:
        """Return (Σ RᵀR/L (d, d), Σ E‖g‖²/C² (1,))."""
        grams = []
        spread = 0
        for block in self._blocks(tau, metric):
            largest = np.maximum(block.leverage, metric.leverage)
            grams.append(gram_of(block.roots / np.sqrt(largest)[:, None, None], 1.0))
            weights = np.minimum(1.0, metric.leverage / largest) / metric.clip
            spread += _added(np.clip(weights**2 * block.spread, 0.0, 1.0))
        gram = Exact(np.sum([one.steps for one in grams], axis=0), grams[0].unit)
        return gram, _fine(spread)

    @np.errstate(all="ignore")
    def log_leverage(self, tau: np.ndarray, metric: Metric) -> Exact:
        """Return Σ log(tr(AᵀΛA)/d), (1,), each within ±LOG."""
        total = 0
        for block in self._blocks(tau, metric):
            logs = np.clip(np.log(np.maximum(block.leverage / len(tau), 1e-300)), -LOG, LOG)
            total += _added(np.where(block.counts, logs, 0.0))
        return _fine(total)

    def _blocks(self, tau: np.ndarray, metric: Metric) -> Iterator[Block]:
        """Return what is known of the records, in their order."""
        found = self.reading
        count = length_of(self.records)
        t = found.centre + found.scale * tau
        for start in range(0, count, _ROWS_AT_ONCE):
            at = np.minimum(np.arange(start, start + _ROWS_AT_ONCE), count - 1)
            with float64():
                batch = {name: leaf[at] for name, leaf in self.records.items()}
                numbers = [np.asarray(part, np.float64) for part in found.program(t, batch)]
            yield self._block(metric, *(part[: count - start] for part in numbers))

    def _block(self, metric: Metric, eta: np.ndarray, jacobian: np.ndarray, observed: np.ndarray) -> Block:
        rows = (jacobian * self.reading.scale) @ metric.inverse
        norms = np.linalg.norm(rows, axis=2)
        counts = _finite(eta, rows, norms, observed)
        eta, rows, norms, observed = (_only(counts, part) for part in (eta, rows, norms, observed))
        eta, limit = self._limits(metric, eta, np.maximum(norms, _LEAST_LENGTH))
        curvature, variance = (part.reshape(len(eta), self.score.size, -1) for part in self.score.law(eta, limit))
        counts = counts & (limit.reshape(len(eta), -1) > 0).all(1) & _finite(curvature, variance)
        values, vectors = eigh(_only(counts, curvature))
        roots = np.einsum("nkj,nkd->njd", vectors * np.sqrt(np.maximum(values, 0.0))[:, None], rows)
        leverage = np.sum(roots**2, axis=(1, 2))
        spread = np.einsum("nkl,nkd,nld->n", _only(counts, variance), rows, rows)
        counts = counts & _finite(leverage, spread)
        return Block(
            counts,
            *(_only(counts, part) for part in (eta, rows, observed, limit, roots, leverage, spread)),
        )

    def _limits(self, metric: Metric, eta: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (η as the score takes it, limits); a limit of the family's own score is infinite for every record."""
        if isinstance(self.score, Normal):
            if math.isinf(metric.clip):
                return eta, np.full(eta.shape, math.inf)
            sizes = self.score.sizes(eta)
            return eta, metric.clip * sizes / np.sum(sizes * norms, axis=1, keepdims=True)
        return eta[:, 0], metric.clip / norms[:, 0]


def _added(numbers: np.ndarray) -> int:
    """Return the sum of records' numbers, each rounded toward zero to 2^-FINE_BITS, in that unit."""
    return int(np.trunc(numbers * 2.0**FINE_BITS).astype(np.int64).sum())


def _fine(steps: int) -> Exact:
    return Exact(np.array([steps], object), 2.0**-FINE_BITS)


def _finite(*parts: np.ndarray) -> np.ndarray:
    """Return of which records all numbers are finite, (n,); parts are (n, ...)."""
    return np.all([np.isfinite(part).reshape(len(part), -1).all(axis=1) for part in parts], axis=0)


def _only(counts: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return numbers (n, ...), zero for the records that do not count."""
    return np.where(counts.reshape(-1, *[1] * (part.ndim - 1)), part, 0.0)
