"""Options of the noise-aware release, which each of its ways reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.data.structure import RowStructure
from dpmcmc.samplers.base import Sampler
from dpmcmc.targets.base import Positive

#: Samplers whose settings follow from what was released (``langevin.py``).
SamplerName = Literal["sgld", "sghmc", "sgnht", "sgfs"]


class Normal(NamedTuple):
    """A normal prior of one coefficient.

    Attributes:
        mean: of the coefficient.
        std: its standard deviation, > 0.

    Example:
        >>> from dpmcmc.mechanisms.noise_aware import Normal
        >>> Normal(0.0, 0.05)
        Normal(mean=0.0, std=0.05)
    """

    mean: float
    std: float


@dataclass(frozen=True)
class Options:
    """Options of :class:`dpmcmc.mechanisms.NoiseAware`, which says what each one is."""

    draws: Annotated[int, Gt(0)] = 1000
    steps: Annotated[int, Ge(4), Le(100)] = 32
    gram_share: Annotated[float, Gt(0), Lt(0.95)] | None = None
    prior_scale: Literal["target", "evidence"] = "target"
    covariance: Literal["model", "sandwich"] = "model"
    intercept_scale: Positive | None = None
    sampler: SamplerName | Sampler | None = None
    coefficients: tuple[Normal | None, ...] | None = field(default=None, kw_only=True)
    group_effects: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)
    structure: RowStructure | None = field(default=None, kw_only=True, repr=False)

    @property
    def supposed(self) -> bool:
        """Whether intervals are claimed only if the model and its prior, which is declared, are true."""
        return self.covariance == "model" and self.prior_scale == "target"
