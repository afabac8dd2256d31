"""The hybrid (Wang, thesis Algorithm 4): a plan of two stages, one posterior draw and a sampler's run from there.

The draw (``ops.py``) spends a share of ε and starts the chain in a tempered posterior, which spares burn-in; the run
gets what is left. Both are composed in ONE guarantee from their events, not by adding ε: under ``gdp`` the draw is
worth a Gaussian query, and a full-batch run after it costs μ² + μ'².
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Lt

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError, check_fields
from dpmcmc.mechanisms import chain
from dpmcmc.mechanisms.ops import OPS
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.promise import Accountant, Calibrator, Clipping, Privacy
from dpmcmc.privacy.accounting.sampling import Full, Sampling
from dpmcmc.samplers.base import Sampler
from dpmcmc.targets.base import Target

#: Share of ε that the posterior draw alone may cost.
Share = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True)
class Hybrid:
    """One posterior draw at a share of ε, then a sampler from there with the rest.

    Args:
        start: the posterior draw; of one draw, at which every chain starts.
        sampler, sampling, steps, chains, burn_in, thin, curvature: of the run, as for :func:`dpmcmc.plan`.
        clip, clipping, accountant, calibrator: as for :class:`dpmcmc.Privacy`; ``accountant`` is that of both together.
        share: of ε, in (0, 1), that the posterior draw alone may cost.

    Raises:
        ValueError: a share outside (0, 1), or a start of several draws.

    Example:
        >>> import dpmcmc
        >>> from dpmcmc.mechanisms import OPS, Hybrid
        >>> target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
        >>> hybrid = Hybrid(OPS(prior_precision=1.0), dpmcmc.SGLD(step_size=1.0), steps=10)
        >>> plan = hybrid.plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    start: OPS
    sampler: Sampler
    steps: int
    sampling: Sampling = dataclasses.field(default_factory=Full)
    chains: int = 1
    burn_in: int = 0
    thin: int = 1
    clip: float = 1.0
    clipping: Clipping | None = None
    accountant: Accountant = "pld"
    calibrator: Calibrator = "numeric"
    curvature: float | None = None
    share: Share = 0.5

    def __post_init__(self) -> None:
        check_fields(self)
        if self.start.draws != 1:
            raise InputError(f"start: a hybrid starts at one draw, not at {self.start.draws}", "draws")

    def plan(
        self,
        target: Target,
        *,
        num_records: int,
        epsilon: float,
        delta: float,
        adjacency: str = "replace_one",
        schema: Schema | None = None,
        hardened: bool | None = None,
    ) -> Plan:
        """Settle the draw at its share, then the run's noise so that both together meet (ε, δ); reads no record.

        Arguments are those of :func:`dpmcmc.plan` and :class:`dpmcmc.Privacy`.

        Raises:
            UnsupportedCombination, CalibrationError, ValueError: see :class:`OPS` and :func:`dpmcmc.plan`.
        """
        target = target if schema is None else schema.with_public_facts(target)
        first = self.start.plan(
            target,
            num_records=num_records,
            epsilon=self.share * epsilon,
            delta=delta,
            adjacency=adjacency,
        )
        return chain.plan(
            target,
            num_records=num_records,
            sampler=self.sampler,
            sampling=self.sampling,
            steps=self.steps,
            chains=self.chains,
            burn_in=self.burn_in,
            thin=self.thin,
            privacy=Privacy(
                epsilon=epsilon,
                delta=delta,
                adjacency=adjacency,  # type: ignore[arg-type]
                accountant=self.accountant,
                calibrator=self.calibrator,
                clip=self.clip,
                clipping=self.clipping,
                hardened=hardened,
            ),
            curvature=self.curvature,
            after=first,
            schema=schema,
        )
