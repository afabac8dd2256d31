"""The trace of a run: its released positions and gradients, and the posterior that follows from them.

    trace = result.trace                                       # of a run with a metric
    trace = dpmcmc.inference.Trace.load("runs/adult")   # of its folder
    posterior = trace.posterior()                              # what result.noise_aware() returns
    posterior.intervals(0.9), posterior.draws(1000)

The docstring of this file has the formulas. A path outside their validity is refused with the reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from scipy.special import ndtri

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import path_curvature, saved_arrays
from dpmcmc.inference.curvature import mean_row
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.denoised_moment import Denoised
from dpmcmc.inference.linear_score import Linear
from dpmcmc.inference.normal_law import PULLED, RARE, Gaussian, chi_square_tail, moved_by_prior, pull
from dpmcmc.inference.path_law import (
    PathGradients,
    PathLaw,
    Scheme,
    Score,
    conclude,
    expected,
    lost,
    minibatch,
    noise_of,
)
from dpmcmc.inference.rare_levels import rare_label
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.storage.blas import on_one_blas_thread

#: Name of the file in a run folder.
FILE = "trace.npz"
#: Least number of steps.
FEWEST_STEPS = 32
#: Largest root mean square, over records, of a path's logits about its mean, and of its mean's about the posterior's;
#: largest root mean square, over directions, of the latter in posterior standard deviations.
WIDEST_PATH, MOST_STDS = 1.5, 4.0
#: Largest prior standard deviation of a margin at which intervals were seen to cover.
LARGEST_PRIOR_STD = 3.0
#: Share of coefficients that may be lost: intervals that hold for the others cover .8 of all, whatever the truth.
MOST_LOST = 0.1
#: Directions in which the release takes this share of the prior's variance away say whether it contradicts the prior.
LEAST_TOLD_SHARE = 1e-6
#: Least mean square of ‖F⁻¹x‖: noise may leave a second moment nothing.
LEAST_MEAN_SQUARE = 1e-12
NO_SECOND_MOMENT = (
    "noise_aware: the curvature of this model is made of the second moment of the rows, and the run released none; run "
    "it with metric gram, or give a public one: noise_aware(gram=Σ x xᵀ/N)."
)


def check_steps(steps: float) -> None:
    """Refuse a path of too few steps of equal weight.

    Raises:
        UnsupportedCombination: fewer than were seen to identify a posterior.
    """
    if steps < FEWEST_STEPS * (1 - 1e-6):
        raise UnsupportedCombination(
            f"noise_aware: the kept part of the path has {steps:.3g} steps of equal weight, and fewer than "
            f"{FEWEST_STEPS} do not identify the posterior; take more steps or a shorter burn_in."
        )


def check_prior(precision: float, row_bound: float | None) -> None:
    """Refuse a prior under which logits are far from normal.

    Raises:
        UnsupportedCombination: a standard deviation beyond that at which intervals were seen to cover.
    """
    margins = (row_bound or 1.0) / math.sqrt(precision)
    if margins > LARGEST_PRIOR_STD:
        raise UnsupportedCombination(
            f"noise_aware: logits spread over up to {margins:.3g} under the prior, and intervals were seen to "
            f"cover up to {LARGEST_PRIOR_STD:g}; take a smaller prior_scale."
        )


def check_pull(found: Gaussian, precision: float) -> None:
    """Refuse a posterior whose prior the release contradicts, and that draws coefficients to itself.

    In the linear law the posterior's mean has the covariance P⁻¹ − Σ under model and prior. It is asked in the
    directions in which the release tells anything. A prior twice as wide then shows how far the prior draws.

    Args:
        found: posterior N(m, Σ).
        precision: P of the prior, of every coefficient.

    Raises:
        UnsupportedCombination: with the p-value.
    """
    size = len(found.mean)
    removed = np.eye(size) / precision - found.covariance
    values, vectors = eigh((removed + removed.T) / 2)
    some = values > LEAST_TOLD_SHARE / precision
    away = (vectors.T @ found.mean)[some] / np.sqrt(values[some])
    p = chi_square_tail(float(away @ away), max(1, len(away)))
    if p >= RARE:
        return
    if pull(found, moved_by_prior(found, precision * np.eye(size), np.zeros(size))) > PULLED:
        raise UnsupportedCombination(
            f"noise_aware: the release contradicts the prior (p {p:.1g}), which draws coefficients to itself; take a "
            "larger prior_scale, or mechanism noise_aware with prior_scale evidence."
        )


@dataclass(frozen=True, eq=False)
class PathPosterior:
    """A normal posterior that accounts for the noise of privacy.

    Attributes:
        mean: (d,).
        covariance: (d, d).
        doubts: why intervals may not hold, clauses that the release itself gave.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.inference import PathPosterior
        >>> posterior = PathPosterior(mean=np.array([1.0, 0.0]), covariance=np.diag([0.25, 0.01]))
        >>> posterior.std
        array([0.5, 0.1])
        >>> posterior.intervals(0.9).shape
        (2, 2)
    """

    mean: np.ndarray
    covariance: np.ndarray
    doubts: tuple[str, ...] = ()

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, (d,)."""
        return np.sqrt(np.diag(self.covariance))

    @on_one_blas_thread
    def draws(self, count: int, seed: int = 0) -> np.ndarray:
        """Return draws, (count, d); they cost nothing, and the seed may be public.

        Where there are more than twice as many as coefficients, their mean and covariance are those of the posterior,
        so that a table of them does not depend on the seed.
        """
        noise = np.random.default_rng(seed).normal(size=(count, len(self.mean)))
        if count > 2 * len(self.mean):
            noise = noise - noise.mean(axis=0)
            root = np.linalg.cholesky(np.cov(noise, rowvar=False).reshape(noise.shape[1], -1))
            noise = np.linalg.solve(root, noise.T).T
        return Gaussian(self.mean, self.covariance).draws(noise)

    def intervals(self, level: float = 0.9) -> np.ndarray:
        """Return central intervals of the coefficients, (d, 2).

        Raises:
            ValueError: a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise InputError(f"level must be in (0, 1), got {level}", "level")
        half = ndtri((1 + level) / 2) * self.std
        return np.stack([self.mean - half, self.mean + half], axis=1)

    def __repr__(self) -> str:
        return f"PathPosterior(mean of shape {self.mean.shape})"


@dataclass(frozen=True, eq=False)
class Trace:
    """Path of a run after burn-in, in the model's own coordinates: means over the steps from one draw to the next.

    Means have weights 1/s_t². Gradients are of the negative log-likelihood, without the prior's.

    Attributes:
        positions: of the points at which gradients were released, (chains, draws, d).
        gradients: of the gradients, (chains, draws, d).
        spread: covariance of the positions of all steps, those between draws included, (d, d).
        precisions: Σ 1/s_t² over the steps of a mean, (draws,).
        squares: Σ 1/s_t⁴, (draws,).
        root: F; the noise of step t is s_t F Z.
        num_records: N.
        scheme: how a minibatch is selected.
        rate: expected batch over N.
        prior_precision: of every coefficient.
        row_bound: public bound on ‖x‖, or None.
        score: law of a record's score, whose norm is set by the second moment.
        metric: the released metric, or None.

    Example:
        >>> import dpmcmc
        >>> import numpy as np
        >>> plan = dpmcmc.plan(
        ...     dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0),
        ...     num_records=1000,
        ...     sampler=dpmcmc.SGLD(step_size=1.0),
        ...     steps=200,
        ...     burn_in=100,
        ...     thin=10,
        ...     privacy=dpmcmc.Privacy(epsilon=8.0, delta=1e-5),
        ...     metric=dpmcmc.PrivateMetric("gram"),
        ... )
        >>> rng = np.random.default_rng(0)
        >>> records = {"x": rng.uniform(-0.7, 0.7, size=(1000, 2)), "y": rng.integers(0, 2, size=1000)}
        >>> result = dpmcmc.sample(plan, records)
        >>> result.trace.posterior().intervals(0.9).shape
        (2, 2)
    """

    positions: np.ndarray
    gradients: np.ndarray
    spread: np.ndarray
    precisions: np.ndarray
    squares: np.ndarray
    root: np.ndarray
    num_records: int
    scheme: Scheme
    rate: float
    prior_precision: float
    row_bound: float | None
    score: Score
    metric: ReleasedMetric | None = None

    @on_one_blas_thread
    def posterior(self, gram: np.ndarray | Sequence[Sequence[float]] | None = None) -> PathPosterior:
        """Return the posterior given everything that the run released, at no further cost to privacy.

        Args:
            gram: public second moment Σ x xᵀ/N of the rows, (d, d); None: the one that the metric was made of.

        Raises:
            UnsupportedCombination: the path does not identify the posterior; the reason, and what would.
            ValueError: a gram that is no second moment.
        """
        second_moment = self._second_moment(gram)
        path = self.path()
        check_steps(1 / path.share)
        law = self._law(second_moment)
        found = conclude(path, law)
        if gram is None:
            law = self._law(self._refined(found, path, law))
            found = conclude(path, law)
        if not isinstance(self.score.family, Linear):
            self._check_path(path, found, law.gram.gram)
        check_pull(found, self.prior_precision)
        return PathPosterior(*found, self._doubts(found, path, law))

    def _law(self, gram: Denoised) -> PathLaw:
        """Return the law of the path's gradients given a second moment."""
        metric = self.root @ self.root.T
        mean_square = float(np.trace(np.linalg.solve(metric, gram.gram))) / self.num_records
        structure = None if self.metric is None else self.metric.structure
        return PathLaw(
            self.num_records,
            metric,
            self.prior_precision * np.eye(len(metric)),
            gram,
            dataclasses.replace(self.score, norm=math.sqrt(max(mean_square, LEAST_MEAN_SQUARE))),
            self.scheme,
            self.rate,
            mean_row(gram.gram, self.num_records, None if structure is None else structure.constant),
        )

    def _refined(self, found: Gaussian, path: PathGradients, law: PathLaw) -> Denoised:
        """Return the second moment that the release and the path tell (``path_curvature.py``)."""
        assert self.metric is not None
        mean = expected(path, found.mean, law)
        noisy = self.metric.noisy
        response = mean.response + mean.slope * (noisy.gram - law.gram.gram)
        # The error of minibatches counts as isotropic in the metric, as long as in its longest direction.
        batch = np.linalg.solve(law.metric, minibatch(mean, path, law))
        longest = float(np.max(np.linalg.eigvals(batch).real))
        precisions = self.precisions / (1 + longest * self.squares / self.precisions)
        chains, _, d = self.positions.shape
        differences = path_curvature.Differences(
            self.positions.reshape(-1, d) - path.position,
            self.gradients.reshape(-1, d) - path.gradient,
            np.tile(precisions, chains),
            law.metric,
        )
        return path_curvature.refined(noisy, self.metric.structure, differences, response, mean.slope)

    def _doubts(self, found: Gaussian, path: PathGradients, law: PathLaw) -> tuple[str, ...]:
        """Return why intervals may not hold: clauses."""
        square = float(found.mean @ law.gram.gram @ found.mean) / self.num_records
        if (rare := rare_label(law.score.family, math.sqrt(max(square, 0.0)))) is not None:
            return (rare,)
        mean = expected(path, found.mean, law)
        share = lost(found, mean.local, mean.fisher, noise_of(mean, path, law), law.prior)
        if share <= MOST_LOST:
            return ()
        return (
            f"the noise of privacy leaves {share:.0%} of the coefficients to the prior, which the records may "
            "contradict; take a larger epsilon, more records, or column ranges that the rows fill",
        )

    def path(self) -> PathGradients:
        """Return the mean of the whole path, with weights 1/s_t²."""
        chains, _, d = self.positions.shape
        weights = np.tile(self.precisions, chains)
        total = float(weights.sum())
        weights = weights / total
        share = chains * float(np.sum(self.squares)) / total**2
        position, gradient = (weights @ leaf.reshape(-1, d) for leaf in (self.positions, self.gradients))
        return PathGradients(position, gradient, self.spread, total, share)

    def _check_path(self, path: PathGradients, found: Gaussian, gram: np.ndarray) -> None:
        """Refuse a prior under which logits are far from normal, and a path that is wide or far from the posterior.

        The law of a path's gradient assumes normal rows, and the curvature at the posterior's mean. For linear
        regression without clipping, which does not need this check, the law is exact wherever the path is.
        """
        check_prior(self.prior_precision, self.row_bound)
        away = path.position - found.mean
        squares = float(np.sum(gram * path.spread)), float(away @ gram @ away)
        wide = math.sqrt(max(squares) / self.num_records)
        if wide > WIDEST_PATH:
            raise UnsupportedCombination(
                f"noise_aware: logits of the path are {wide:.3g} from where the posterior is, and beyond "
                f"{WIDEST_PATH:g} its gradients do not identify it; take a smaller step_size, a longer burn_in, a "
                "larger ε, or mechanism noise_aware."
            )
        far = math.sqrt(away @ np.linalg.solve(found.covariance, away) / len(away))
        if far > MOST_STDS:
            raise UnsupportedCombination(
                f"noise_aware: the path is {far:.3g} posterior standard deviations from the posterior's mean, and "
                f"beyond {MOST_STDS:g} errors of the curvature matter; take more steps or a longer burn_in."
            )

    def _second_moment(self, gram: np.ndarray | Sequence[Sequence[float]] | None) -> Denoised:
        """Return Σ x xᵀ, public or released."""
        if gram is not None:
            public = np.array(gram, np.float64)
            d = self.positions.shape[-1]
            if public.shape != (d, d) or not np.allclose(public, public.T) or np.linalg.eigvalsh(public)[0] < -1e-9:
                raise InputError(
                    f"gram must be the second moment of the rows, a symmetric ({d}, {d}) matrix without negative "
                    "eigenvalues",
                    "gram",
                )
            length = float(np.trace(public))
            most = (self.row_bound or math.inf) ** 2
            if length > most * (1 + 1e-6):
                raise InputError(
                    f"gram has the trace {length:.4g}, but rows within row_bound have a mean square of at most "
                    f"{most:.4g}: divide Σ x xᵀ by N = {self.num_records}",
                    "gram",
                )
            return Denoised(self.num_records * public, np.zeros_like)
        if self.metric is None or self.metric.name != "gram":
            raise UnsupportedCombination(NO_SECOND_MOMENT)
        return self.metric.denoised

    def content(self) -> bytes:
        """Return the file of a run folder."""
        metric = None if self.metric is None else [self.metric.arrays(), self.metric.facts()]
        return saved_arrays.packed({**vars(self), "score": self.score.facts(), "metric": metric})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the trace of a run folder.

        Raises:
            ValueError: there is none, or it is of another version.
        """
        return saved_arrays.loaded(
            Path(folder) / FILE,
            cls._of,
            "a run in a metric has it, or metrics.json says why not",
        )

    @classmethod
    def _of(cls, content: bytes) -> Self:
        facts = saved_arrays.unpacked(content)
        metric = None if facts["metric"] is None else ReleasedMetric.of(*facts["metric"])
        return cls(**{**facts, "score": Score.of(**facts["score"]), "metric": metric})
