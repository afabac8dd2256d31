r"""Outlook of a noise-aware answer before any record is read: the width of its intervals, and its accuracy.

Parameters come from the prior and rows from simulated designs. The noisy second moment of the rows is simulated too.
The release of the gradient then has the covariance that ``docs/noise_aware.md`` derives. This gives the posterior's
covariance S under privacy, and S₀ without. Draws m ~ N(0, P⁻¹ − S), θ ~ N(m, S) then have θ ~ N(0, P⁻¹), so the loss of
accuracy is that of predicting by m in place of the m₀ that S₀ would give.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmcmc.data.row_structure import RowStructure
from dpmcmc.estimators.designs import DESIGNS, Design, simulated_rows
from dpmcmc.inference.gram import denoised
from dpmcmc.inference.noise_aware import Gaussian, Local, Release, isotropic_error, posterior, symmetric_noise
from dpmcmc.inference.scores import BoundedScore
from dpmcmc.privacy.query.gram_release import NoisyGram

#: Simulated errors of the second moment, and iterations of the posterior.
_BOOTSTRAPS, _ROUNDS = 4, 8
#: Columns beyond which the error of the second moment is taken as isotropic, since projections take minutes.
_MANY = 200
#: Draws of θ that an accuracy is averaged over.
_DRAWS = 40


class Noise(NamedTuple):
    """Noise of a release.

    Attributes:
        gram: std of a diagonal entry of the second moment.
        gradient: std of the gradient with the budget of all, in units of the clip norm; of linear regression, whose
            gradient is not clipped, in those of the gradient itself.
    """

    gram: float
    gradient: float


class Outlook(NamedTuple):
    """Expectation for one design.

    Attributes:
        private: S, (d, d).
        alone: S₀, (d, d).
        prior: variances of the prior, (d,).
        rows: simulated, (n, d).
    """

    private: np.ndarray
    alone: np.ndarray
    prior: np.ndarray
    rows: np.ndarray

    @property
    def width(self) -> float:
        """Mean over coefficients of an interval's width over that without privacy."""
        return float(np.mean(np.sqrt(np.diag(self.private) / np.diag(self.alone))))

    @property
    def told(self) -> float:
        """Part of the prior's variance that the release takes away, mean over coefficients."""
        return float(np.mean(1 - np.diag(self.private) / self.prior))

    def accuracy(self, score: BoundedScore, rng: np.random.Generator) -> tuple[float, float]:
        """Return the expected share of right labels of a binary model (with privacy, without)."""
        found = []
        for covariance in (self.private, self.alone):
            known = _root(np.diag(self.prior) - covariance) @ rng.normal(size=(len(self.prior), _DRAWS))
            truth = known + _root(covariance) @ rng.normal(size=known.shape)
            p = score.mean(self.rows @ truth)  # type: ignore[attr-defined]
            found.append(float(np.mean(np.where(self.rows @ known > 0, p, 1 - p))))
        return found[0], found[1]


def _root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))


@dataclass(frozen=True, eq=False)
class Question:
    """Public facts that an outlook rests on.

    Attributes:
        score: of the model's family.
        scales: standard deviations of the prior, (d,).
        row_bound: bound on ‖x‖.
        structure: of the rows, or None.
    """

    score: BoundedScore
    scales: np.ndarray
    row_bound: float
    structure: RowStructure | None

    @functools.lru_cache(maxsize=8)  # noqa: B019  # a question lives as long as one suggestion
    def _simulated(self, design: Design) -> tuple[np.ndarray, np.ndarray]:
        """Rows (n, d) of a design, and a parameter (d,) of the prior whose predictors have their expected spread."""
        rng = np.random.default_rng(0)
        rows = simulated_rows(design, len(self.scales), self.row_bound, self.structure, rng)
        truth = self.scales * rng.normal(size=len(self.scales))
        expected = math.sqrt(np.mean((rows * self.scales) ** 2) * len(self.scales))
        return rows, truth * expected / max(float(np.sqrt(np.mean((rows @ truth) ** 2))), 1e-12)

    def outlook(self, design: Design, num_records: int, noise: Noise, rough: bool = False) -> Outlook:
        """Return what a release of this noise is expected to give.

        Args:
            design: of the rows.
            num_records: N.
            noise: of the release.
            rough: whether the error of the second moment is taken as half of its noise in every direction, which saves
                most of the time; so it is for many columns.
        """
        rows, truth = self._simulated(design)
        d, rng = len(truth), np.random.default_rng(1)
        eta, precision = rows @ truth, np.diag(self.scales**-2.0)
        moment = rows.T @ rows * (num_records / len(rows))

        def weighted(values: np.ndarray) -> np.ndarray:
            return (rows * values[:, None]).T @ rows * (num_records / len(rows))

        free = self.score.law(eta, math.inf)
        alone = np.linalg.inv(precision + weighted(free.curvature))
        trace = float(np.trace(moment))
        noisy = NoisyGram(moment + noise.gram * symmetric_noise(rng, d), noise.gram, trace, 0.0)
        if d <= _MANY and not rough:
            gram, error = denoised(noisy, self.structure, rng=rng, bootstraps=_BOOTSTRAPS)
        else:
            gram, error = moment, isotropic_error(noise.gram / 2)
        law, variance = free, np.eye(d) * noise.gradient**2
        if math.isfinite(self.score.clip):
            law = self.score.law(eta, self.score.clip)
            metric = gram / num_records + np.eye(d) * self.row_bound**2 / d
            norm2 = float(np.trace(np.linalg.solve(metric, gram))) / num_records
            variance = (noise.gradient * self.score.clip) ** 2 * norm2 * metric
        mean = float(np.mean(law.curvature))
        # The release is about as far from the truth as the posterior is wide.
        local = Local(weighted(law.curvature), weighted(law.variance), lambda q: 2 * mean**2 * error(q))
        release = Release(np.zeros(d), np.zeros(d), variance)
        start = Gaussian(np.zeros(d), alone)
        private = posterior(release, local, precision, start, _ROUNDS).covariance
        return Outlook(private, alone, self.scales**2, rows)

    def outlooks(self, num_records: int, noise: Noise) -> list[Outlook]:
        """Return the outlook of every design; for many columns of the one that stands for all."""
        designs = DESIGNS if len(self.scales) <= _MANY else DESIGNS[1:2]
        return [self.outlook(design, num_records, noise) for design in designs]


def mean_width(outlooks: list[Outlook]) -> float:
    """Return the geometric mean of the designs' widths; columns of real tables are rarely independent."""
    correlated = outlooks[1:] or outlooks
    return math.exp(float(np.mean([math.log(one.width) for one in correlated])))
