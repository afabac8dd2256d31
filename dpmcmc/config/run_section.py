"""The ``run:`` section of a config: how long a sampler runs, and on which devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypedDict

from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.engine.devices import Device
from dpmcmc.engine.workers import check_engine
from dpmcmc.errors import (
    Checked,
    InputError,
    check_fields,
)
from dpmcmc.mechanisms.chain import MOST_STEPS, length
from dpmcmc.privacy.accounting.sampling import Sampling


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
    """How long, and where. A sampler needs ``passes`` or ``steps``; a one-shot mechanism takes ``mesh``, ``device``,
    ``engine`` and ``trusted_network`` alone.

    Args:
        passes: passes over the data: steps = ceil(passes·N/b).
        steps: steps per chain.
        chains: independent chains; each is charged.
        burn_in: share of the steps before the first kept draw.
        thin: one draw is kept every thin steps.
        curvature: PUBLIC bound on the curvature of the MEAN loss, prior included; a step beyond its limit is refused.
        mesh: devices that share the work; null: one device.
        device: kind of device to compute on: cpu, gpu, or auto for an accelerator where JAX finds one.
        engine: Dask scheduler, dask://HOST:PORT or tls://HOST:PORT, whose workers compute on a table in partitions, for
            a mechanism that reads sums alone; null: this process does.
        trusted_network: you vouch that nobody else reads or changes what links between workers or processes carry;
            without it they must be local or encrypted.
    """

    passes: Annotated[float, Gt(0)] | None = None
    steps: Annotated[int, Gt(0), Le(MOST_STEPS)] | None = None
    chains: Annotated[int, Gt(0), Le(100_000)] = 1
    burn_in: Annotated[float, Ge(0), Lt(1)] = 0.5
    thin: Annotated[int, Gt(0)] = 1
    curvature: Annotated[float, Gt(0)] | None = None
    mesh: Devices | None = None
    device: Device = "auto"
    engine: str | None = None
    trusted_network: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        if self.engine is not None:
            check_engine(self.engine)
        # A mechanism's has neither, and :meth:`counted` refuses that of a sampler.
        if self.passes is not None and self.steps is not None:
            raise InputError("give exactly one of passes and steps")

    def counted(self, sampling: Sampling, num_records: int) -> Length:
        """Return the arguments of :func:`dpmcmc.plan` that say how long.

        Raises:
            InputError: more steps than a run may have, or none of which a draw is kept.
        """
        share = float(self.burn_in)
        steps, burn_in = length(sampling, num_records, self.steps, self.passes, share)
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
