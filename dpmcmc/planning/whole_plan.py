"""A plan as its stages see it: a plan (``plan.py``) is made of stages, so their files come before its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dpmcmc.privacy.accounting.sampling import Sampling
from dpmcmc.samplers.base import SamplerOffers
from dpmcmc.targets.base import Target, TargetOffers


class WholePlan(Protocol):
    """Facts of a plan that a stage tells of itself with; ``plan.py`` says what each is."""

    @property
    def num_records(self) -> int:
        """N, public."""

    @property
    def target(self) -> Target:
        """The model."""

    @property
    def stages(self) -> tuple[Any, ...]:
        """Parts of the run, in their order."""

    @property
    def has_chains(self) -> bool:
        """Whether the draws are chains of a sampler."""

    @property
    def release(self) -> object:
        """The mechanism's release that the plan ends with, or None."""

    @property
    def target_offers(self) -> TargetOffers:
        """The target with a default in the place of everything that it does not offer."""

    @property
    def usable_for(self) -> Sequence[str]:
        """Out of ``prediction`` and ``intervals``; empty for nothing."""

    @property
    def sampling(self) -> Sampling:
        """How records are selected."""

    @property
    def sampler_offers(self) -> SamplerOffers:
        """The sampler with a default in the place of everything that it does not offer."""

    @property
    def chains(self) -> int:
        """Chains; each is charged."""

    @property
    def burn_in(self) -> int:
        """Steps before the first kept stretch."""

    @property
    def batch_size(self) -> float:
        """b, the expected batch size."""

    @property
    def curvature(self) -> float | None:
        """Public bound on the curvature of the mean loss, or None."""

    @property
    def free_fraction(self) -> float:
        """Share of steps whose noise is the sampler's own."""

    @property
    def optimises(self) -> bool:
        """Whether the sampler is an optimiser, which has neither a temperature nor a Langevin time."""

    @property
    def in_metric(self) -> bool:
        """Whether noise, steps and time are in the units of a metric, the run's or the sampler's."""

    @property
    def label_blind(self) -> bool:
        """Whether gradients are weighted so that clipping does not bias the score (``per_record_gradients.py``)."""

    @property
    def temperatures(self) -> np.ndarray:
        """Temperature kept at each step, (steps,) float64; that of the plan's noise, not of minibatch noise."""

    @property
    def own_temperatures(self) -> np.ndarray:
        """Temperature that the sampler's own noise alone would keep at each step, (steps,) float64."""

    @property
    def temperature_range(self) -> dict[str, float] | None:
        """``min`` and ``max`` of :attr:`temperatures`, as JSON takes them; None for an optimiser."""

    @property
    def time(self) -> float:
        """Langevin time the chain runs for, the sum of :attr:`times`; NaN for an optimiser, which has none."""

    @property
    def private_time(self) -> float | None:
        """Time μ²/(2C² chains) that the budget buys EACH chain at temperature 1 from full batches."""

    @property
    def thesis_multiplier(self) -> tuple[float | None, str | None]:
        """(z of the corrected thesis formula for this many steps, or None; why it does not apply, or None)."""

    def alone(self, stage: Any) -> WholePlan:
        """Return the plan of one stage."""

    def to_json(self, secret: bool = True) -> dict[str, object]:
        """Return what ``plan.json`` says."""
