"""A plan as its stages see it: a plan (``plan.py``) is made of stages, so their files come before its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dpmcmc.planning.description import Description
from dpmcmc.targets.base import Target


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
    def main(self) -> Any:
        """The stage with the plan's guarantee."""

    @property
    def end(self) -> Any:
        """Releases where the chain ends, or None."""

    @property
    def has_chains(self) -> bool:
        """Whether the draws are chains of a sampler."""

    @property
    def usable_for(self) -> Sequence[str]:
        """Out of ``prediction`` and ``intervals``; empty for nothing."""

    @property
    def batch_size(self) -> float:
        """b, the expected batch size."""

    @property
    def in_metric(self) -> bool:
        """Whether noise, steps and time are in the units of a metric, the run's or the sampler's."""

    @property
    def label_blind(self) -> bool:
        """Whether gradients are weighted so that clipping does not bias the score (``per_record_gradients.py``)."""

    @property
    def private_time(self) -> float | None:
        """Time μ²/(2C² chains) that the budget buys EACH chain at temperature 1 from full batches."""

    @property
    def thesis_multiplier(self) -> tuple[float | None, str | None]:
        """(z of the corrected thesis formula for this many steps, or None; why it does not apply, or None)."""

    def alone(self, stage: Any) -> WholePlan:
        """Return the plan of one stage."""

    def describe(self, secret: bool = True) -> Description:
        """Return what it says of itself."""
