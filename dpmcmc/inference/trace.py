"""The trace of a run: its released positions and gradients, and the posterior that follows from them.

    trace = result.trace                                       # of a run with a metric
    trace = dpmcmc.inference.Trace.load("runs/adult_metric")   # of its folder
    posterior = trace.posterior()                              # what result.noise_aware() returns
    posterior.intervals(0.9), posterior.draws(1000)

``from_trace.py`` has the formulas. A path outside their validity is refused with the reason.
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
from dpmcmc.inference import from_trace, names, noise_aware
from dpmcmc.inference.from_trace import Known, Scheme, Score
from dpmcmc.inference.noise_aware import Denoised, Gaussian, ReleasedMetric
from dpmcmc.inference.scores import Linear

#: Name of the file in a run folder.
FILE = "trace.npz"
#: Least number of steps.
_FEWEST_STEPS = 32
#: Largest root mean square, over records, of a path's logits about its mean, and of its mean's about the posterior's;
#: largest root mean square, over directions, of the latter in posterior standard deviations.
_WIDEST, _FARTHEST = 1.5, 4.0
#: Largest prior standard deviation of a margin at which intervals were seen to cover.
_STRONGEST = 3.0


@dataclass(frozen=True, eq=False)
class NoiseAwarePosterior:
    """A normal posterior that accounts for the noise of privacy.

    Attributes:
        mean: (d,).
        covariance: (d, d).

    Example:
        >>> import numpy as np
        >>> from dpmcmc.inference import NoiseAwarePosterior
        >>> posterior = NoiseAwarePosterior(mean=np.array([1.0, 0.0]), covariance=np.diag([0.25, 0.01]))
        >>> posterior.std
        array([0.5, 0.1])
        >>> posterior.intervals(0.9).shape
        (2, 2)
    """

    mean: np.ndarray
    covariance: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Standard deviations, (d,)."""
        return np.sqrt(np.diag(self.covariance))

    def draws(self, count: int, seed: int = 0) -> np.ndarray:
        """Return independent draws, (count, d); they cost nothing, and the seed may be public."""
        noise = np.random.default_rng(seed).normal(size=(count, len(self.mean)))
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
        return f"NoiseAwarePosterior(mean of shape {self.mean.shape})"


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

    def posterior(self, gram: np.ndarray | Sequence[Sequence[float]] | None = None) -> NoiseAwarePosterior:
        """Return the posterior given everything that the run released, at no further cost to privacy.

        Args:
            gram: public second moment Σ x xᵀ/N of the rows, (d, d); None: the one that the metric was made of.

        Raises:
            UnsupportedCombination: the path does not identify the posterior; the reason, and what would.
            ValueError: a gram that is no second moment.
        """
        known = self._second_moment(gram)
        path = self.path()
        steps = 1 / path.share
        if steps < _FEWEST_STEPS * (1 - 1e-6):
            raise UnsupportedCombination(
                f"noise_aware: the kept part of the path has {steps:.3g} steps of equal weight, and fewer than "
                f"{_FEWEST_STEPS} do not identify the posterior; take more steps or a shorter burn_in."
            )
        metric = self.root @ self.root.T
        norm = math.sqrt(max(float(np.trace(np.linalg.solve(metric, known.gram))) / self.num_records, 1e-12))
        structure = None if self.metric is None else self.metric.structure
        row = noise_aware.mean_row(known.gram, self.num_records, None if structure is None else structure.constant)
        prior = self.prior_precision * np.eye(len(metric))
        facts = Known(self.num_records, metric, prior, self.scheme, self.rate, row)
        found = from_trace.conclude(path, facts, known, dataclasses.replace(self.score, norm=norm))
        if not isinstance(self.score.family, Linear):
            self._check_path(path, found, known.gram)
        return NoiseAwarePosterior(*found)

    def path(self) -> from_trace.Path:
        """Return the mean of the whole path, with weights 1/s_t²."""
        chains, _, d = self.positions.shape
        weights = np.broadcast_to(self.precisions, (chains, len(self.precisions))).ravel()
        total = float(weights.sum())
        weights = weights / total
        share = chains * float(np.sum(self.squares)) / total**2
        position, gradient = (weights @ leaf.reshape(-1, d) for leaf in (self.positions, self.gradients))
        return from_trace.Path(position, gradient, self.spread, total, share)

    def _check_path(self, path: from_trace.Path, found: Gaussian, gram: np.ndarray) -> None:
        """Refuse a prior under which logits are far from normal, and a path that is wide or far from the posterior.

        The law of a path's gradient assumes normal rows, and the curvature at the posterior's mean. For linear
        regression without clipping, which does not need this check, the law is exact wherever the path is.
        """
        margins = (self.row_bound or 1.0) / math.sqrt(self.prior_precision)
        if margins > _STRONGEST:
            raise UnsupportedCombination(
                f"noise_aware: logits spread over up to {margins:.3g} under the prior, and intervals were seen to "
                f"cover up to {_STRONGEST:g}; take a smaller prior_scale."
            )
        away = path.position - found.mean
        squares = float(np.sum(gram * path.spread)), float(away @ gram @ away)
        wide = math.sqrt(max(squares) / self.num_records)
        if wide > _WIDEST:
            raise UnsupportedCombination(
                f"noise_aware: logits of the path are {wide:.3g} from where the posterior is, and beyond {_WIDEST:g} "
                "its gradients do not identify it; take a smaller step_size, a longer burn_in, a larger ε, or "
                "mechanism noise_aware."
            )
        far = math.sqrt(away @ np.linalg.solve(found.covariance, away) / len(away))
        if far > _FARTHEST:
            raise UnsupportedCombination(
                f"noise_aware: the path is {far:.3g} posterior standard deviations from the posterior's mean, and "
                f"beyond {_FARTHEST:g} errors of the curvature matter; take more steps or a longer burn_in."
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
            raise UnsupportedCombination(
                "noise_aware: the curvature of this model is made of the second moment of the rows, and the run "
                "released none; run it with metric gram, or give a public one: noise_aware(gram=Σ x xᵀ/N)."
            )
        return self.metric.denoised

    def content(self) -> bytes:
        """Return the file of a run folder."""
        metric = None if self.metric is None else [self.metric.arrays(), self.metric.facts()]
        return names.packed({**vars(self), "score": self.score.facts(), "metric": metric})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the trace of a run folder.

        Raises:
            ValueError: there is none, or it is of another version.
        """
        return names.loaded(Path(folder) / FILE, cls._of, "a run in a metric has it, or metrics.json says why not")

    @classmethod
    def _of(cls, content: bytes) -> Self:
        facts = names.unpacked(content)
        metric = None if facts["metric"] is None else ReleasedMetric.of(*facts["metric"])
        return cls(**{**facts, "score": Score.of(**facts["score"]), "metric": metric})
