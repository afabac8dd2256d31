"""The hybrid (Wang, thesis Algorithm 4): one posterior draw, and a sampler's run from there.

The draw (``ops.py``) spends a share of ε and starts the chain in a tempered posterior, which spares burn-in; the run
gets what is left. Both are composed in ONE guarantee from their events, not by adding ε: under ``gdp`` the draw is
worth a Gaussian query, and a full-batch run after it costs μ² + μ'².
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt, Lt

from dpmcmc.data.schema import Schema
from dpmcmc.engine.life import Life
from dpmcmc.errors import InputError, check_fields
from dpmcmc.mechanisms.base import MechanismOffers, MechanismPlan
from dpmcmc.mechanisms.ops import OPS
from dpmcmc.planning import making
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.charging import Clipping, Privacy
from dpmcmc.privacy.accounting.sampling import Full, Sampling
from dpmcmc.privacy.query.randomness import SecretKey, Streams
from dpmcmc.samplers.base import Sampler
from dpmcmc.storage.checkpoint import CheckpointError, opened
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target

#: Share of ε that the posterior draw alone may cost.
Share = Annotated[float, Gt(0), Lt(1)]


@dataclass(frozen=True)
class Hybrid(MechanismOffers):
    """One posterior draw at a share of ε, then a sampler from there with the rest.

    Args:
        start: the posterior draw; of one draw.
        sampler: for example ``dpmcmc.SGLD(step_size=16.0)``.
        sampling: ``Poisson(b)`` | ``FixedSize(b)`` | ``Full()``.
        steps: of the sampler, per chain; every chain starts at the same draw, and is charged.
        chains: of the sampler.
        burn_in: steps before the first kept stretch.
        thin: a draw is kept after every ``thin`` steps.
        clip: C of the sampler's gradients.
        clipping: as of :class:`dpmcmc.Privacy`.
        accountant: of both together.
        calibrator: of the sampler's noise.
        curvature: as for ``dpmcmc.plan``.
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
    accountant: Literal["pld", "rdp", "advanced"] = "pld"
    calibrator: Literal["numeric", "closed_form", "free"] = "numeric"
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
    ) -> MechanismPlan:
        """Settle the draw at its share, then the run's noise so that both together meet (ε, δ); reads no record.

        Raises:
            UnsupportedCombination, CalibrationError, ValueError: see :class:`OPS` and :func:`dpmcmc.plan`.
        """
        target = target if schema is None else schema.told(target)
        first = self.start.plan(
            target,
            num_records=num_records,
            epsilon=self.share * epsilon,
            delta=delta,
            adjacency=adjacency,
        )
        run = making.plan(
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
            after=first.guarantee,
        )
        return self._of(first, run, schema)

    def _of(self, first: MechanismPlan, run: Plan, schema: Schema | None) -> MechanismPlan:
        """Return the plan of the draw and the run together."""
        assert run.guarantee is not None
        assert run.noise_multipliers is not None
        settings = {f"start_{name}": value for name, value in first.settings.items()}
        settings |= {
            "start_epsilon": first.guarantee.epsilon,
            "noise_multiplier": float(run.noise_multipliers.min()),
            "temperature": float(run.temperatures.max()),
        }
        draws = run.num_draws * run.chains
        return MechanismPlan(
            self,
            run.target,
            run.num_records,
            run.guarantee,
            settings,
            draws,
            first,
            run,
            schema,
        )

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams, checkpoint: Path | None = None) -> PyTree:
        """Draws of the run, leaves (chains·draws, ...).

        Args:
            plan: made by :meth:`Hybrid.plan`.
            records: pytree, leaves (N, ...).
            streams: secret keys.
            checkpoint: folder that the run commits to, and goes on from where the same keys have begun it.

        Raises:
            CheckpointError: the run was done, and the end of it is lost.
        """
        assert plan.first is not None
        assert plan.run is not None
        before, after = (Streams(*(jax.random.fold_in(key, stage) for key in streams)) for stage in (0, 1))
        drawn = self.start.draw(plan.first, records, before)
        starts = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf, jnp.float32), self.chains, axis=0), drawn)
        with opened(checkpoint) as kept:
            with Life(plan.run, key=SecretKey._of(after), checkpoint=kept) as life:
                life.read(records, starts)
                result = life.carry_out()
            if kept is not None and kept.again:  # the run has lost its end; the guarantee covers one run
                raise CheckpointError(
                    f"{checkpoint}: the last commit of the run is damaged, so its steps were taken again, which this "
                    "release does not cover; what it charged stays charged, start a new run"
                )
        return jax.tree.map(np.asarray, result.flat_draws())
