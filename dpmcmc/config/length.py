"""How long a sampler runs, and on which devices: the ``run:`` section of a config."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, TypedDict

from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.errors import Checked, InputError, check_fields
from dpmcmc.privacy.accounting.sampling import Sampling

#: A plan holds its noise step by step in memory.
MOST_STEPS = 20_000_000


class Length(TypedDict):
    """Arguments of :func:`dpmcmc.plan` that say how long; ``burn_in`` counts steps."""

    sampling: Sampling
    steps: int
    chains: int
    burn_in: int
    thin: int
    curvature: float | None


@dataclass(frozen=True)
class Devices(Checked):
    """Devices that share the work: chains side by side along one axis, records split along the other.

    Args:
        chain: devices along the chains.
        data: devices along the records; null: what the other axis leaves.
    """

    chain: Annotated[int, Gt(0)] = 1
    data: Annotated[int, Gt(0)] | None = None


@dataclass(frozen=True)
class Run:
    """How long. Give ``passes`` or ``steps``.

    Args:
        passes: passes over the data: steps = ceil(passes·N/b).
        steps: steps per chain.
        chains: independent chains; each is charged.
        burn_in: share of the steps before the first kept draw.
        thin: one draw is kept every thin steps.
        curvature: PUBLIC bound on the curvature of the MEAN loss, prior included; a step beyond its limit is refused.
        mesh: devices that share the work; null: one device.
    """

    passes: Annotated[float, Gt(0)] | None = None
    steps: Annotated[int, Gt(0), Le(MOST_STEPS)] | None = None
    chains: Annotated[int, Gt(0), Le(100_000)] = 1
    burn_in: Annotated[float, Ge(0), Lt(1)] = 0.5
    thin: Annotated[int, Gt(0)] = 1
    curvature: Annotated[float, Gt(0)] | None = None
    mesh: Devices | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.passes is None) == (self.steps is None):
            raise InputError("give exactly one of passes and steps")

    def counted(self, sampling: Sampling, num_records: int) -> Length:
        """Return the arguments of :func:`dpmcmc.plan` that say how long.

        Raises:
            InputError: more steps than a run may have, or none of which a draw is kept.
        """
        steps = self.steps
        if steps is None:
            # The tolerance keeps 0.1 + 0.2 of a pass from costing a step.
            steps = max(1, math.ceil((self.passes or 0) / sampling.rate(num_records) - 1e-9))
        if steps > MOST_STEPS:
            raise InputError(f"{self.passes:g} is {steps:.3g} steps, and a run has at most {MOST_STEPS}", "passes")
        burn_in = math.floor(self.burn_in * steps + 1e-9)
        if steps - burn_in < self.thin:
            raise InputError(
                f"{self.thin} keeps no draw of the {steps - burn_in} steps after burn-in; lower run.thin or "
                "run.burn_in, or take more steps",
                "thin",
            )
        return {
            "sampling": sampling,
            "steps": steps,
            "chains": self.chains,
            "burn_in": burn_in,
            "thin": self.thin,
            "curvature": self.curvature,
        }
