"""A plan is a list of stages, each with its release, its events and its commit.

    private_metric      a second moment, in whose units the gradients after it are clipped and noised
    mechanism_release   one reading of the records by a mechanism: an estimate, or a few draws
    sampler_run         chains of noisy gradient steps
    given_starts        starts that another release has paid for (:class:`GivenStarts`)
    chain_end           releases where a chain's path ends, and the posterior that follows from both

A stage says what it costs, and its part of every description of the plan. The plan's guarantee is that of its main
stage, the last one with a guarantee of its own. It is computed from the events of all of them. The engine carries
stages out in their order, and commits each (``engine/work_table.py`` says who does it).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from dpmcmc.planning.description import Description
from dpmcmc.planning.permitted_uses import UNJUDGED, Verdict
from dpmcmc.planning.whole_plan import WholePlan
from dpmcmc.privacy.accounting.charging import Earlier
from dpmcmc.privacy.accounting.guarantee import Guarantee


class Stage:
    """One part of a plan; what is not overridden has nothing to say.

    Attributes:
        guarantee: of everything that leaves with this stage and before it; None of a stage that has none of its own.
        draws: that leave where it is the last stage.
        verdict: on what it releases by itself.

    Example:
        >>> import dpmcmc
        >>> from dpmcmc.planning.stages import Stage
        >>> target = dpmcmc.targets.LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
        >>> plan = dpmcmc.suggest(target, num_records=1000, epsilon=1.0)
        >>> all(isinstance(stage, Stage) for stage in plan.stages)
        True
    """

    guarantee: Guarantee | None
    draws: int
    verdict: Verdict = UNJUDGED

    @property
    def label(self) -> str:
        """Name of the sampler or of the mechanism, which names the run; empty of a stage that names none."""
        return ""

    @property
    def has_chains(self) -> bool:
        """Whether its draws are chains of a sampler."""
        return False

    @property
    def unproved(self) -> str:
        """Part that the proof of the noise does not cover; empty where it covers all of it."""
        return ""

    @property
    def parts(self) -> tuple[object, ...]:
        """Sampler, mechanism and noise, which a user may have written."""
        return ()

    @property
    def candidates(self) -> tuple[Any, ...]:
        """Plans that are carried out within it, each with a guarantee of its own."""
        return ()

    @property
    def charge(self) -> Earlier:
        """The charge for it in the guarantee of a stage after it, which is all that its own guarantee covers."""
        assert self.guarantee is not None
        return Earlier.of(self.guarantee)

    def describe(self, plan: WholePlan, secret: bool) -> Description:
        """Return its part of every description of the plan; ``secret`` as in ``Plan.describe``."""
        return Description()

    def replaced(self, **facts: Any) -> Self:
        """Return it with other facts, by the names of its attributes."""
        return dataclasses.replace(self, **facts)  # type: ignore[type-var]

    def assuming(self, *sentences: str) -> Self:
        """Return it with a guarantee that assumes more, which its own is needed for."""
        if self.guarantee is None:
            return self
        return self.replaced(guarantee=self.guarantee.assuming(*sentences))


@dataclass(frozen=True, eq=False)
class GivenStarts(Stage):
    """Private starting points that ``sample`` is given: their release is another's, and the run's guarantee covers it.

    Attributes:
        guarantee: of their release.
    """

    guarantee: Guarantee

    def describe(self, plan: WholePlan, secret: bool) -> Description:
        """Return whose cost the guarantee covers."""
        said = f"private ones, which sample is given; the guarantee covers their {self.guarantee}"
        return Description(lines=[("starts", said)])
