"""Options of the noise-aware release, which each of its ways reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.data.row_structure import RowStructure
from dpmcmc.targets.base import Positive


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
