"""The trace of a run: its released positions and gradients after burn-in.

    trace = result.trace                                # of a run whose path ends in a posterior
    trace = dpmcmc.inference.Trace.load("runs/adult")   # of its folder

The posterior that follows from it is concluded as that of a noise-aware release is
(``mechanisms/noise_aware/chain_end.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from dpmcmc.inference import saved_arrays
from dpmcmc.inference.released_metric import ReleasedMetric

#: Name of the file in a run folder.
FILE = "trace.npz"


class PathGradients(NamedTuple):
    """Mean of a path, with weights ∝ 1/s_k² of its steps.

    Attributes:
        position: θ̄, (d,).
        gradient: ḡ of the negative log-likelihood, (d,).
        spread: covariance of single positions about θ̄, (d, d).
        precision: Σ 1/s_k².
        share: Σ weights² of the steps, one over their number where s_k is constant.
    """

    position: np.ndarray
    gradient: np.ndarray
    spread: np.ndarray
    precision: float
    share: float


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
        rate: expected batch over N.
        metric: the released metric F; the noise of step t is s_t F Z.

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
        >>> result.trace.positions.shape, result.noise_aware().intervals(0.9).shape
        ((1, 10, 2), (2, 2))
    """

    positions: np.ndarray
    gradients: np.ndarray
    spread: np.ndarray
    precisions: np.ndarray
    squares: np.ndarray
    rate: float
    metric: ReleasedMetric

    def path(self) -> PathGradients:
        """Return the mean of the whole path, with weights 1/s_t²."""
        chains, _, d = self.positions.shape
        weights = np.tile(self.precisions, chains)
        total = float(weights.sum())
        weights = weights / total
        share = chains * float(np.sum(self.squares)) / total**2
        position, gradient = (weights @ leaf.reshape(-1, d) for leaf in (self.positions, self.gradients))
        return PathGradients(position, gradient, self.spread, total, share)

    def content(self) -> bytes:
        """Return the file of a run folder."""
        return saved_arrays.packed({**vars(self), "metric": [self.metric.arrays(), self.metric.facts()]})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the trace of a run folder.

        Raises:
            ValueError: there is none, or it is of another version.
        """
        return saved_arrays.loaded(
            Path(folder) / FILE,
            cls._of,
            "a run in a metric whose path ends in a posterior has it",
        )

    @classmethod
    def _of(cls, content: bytes) -> Self:
        facts = saved_arrays.unpacked(content)
        known = {one.name: facts[one.name] for one in fields(cls)}
        return cls(**known | {"metric": ReleasedMetric.of(*facts["metric"])})
