"""Who carries out each kind of stage: one table, which names every one of them."""

from __future__ import annotations

from typing import Any

from dpmcmc.engine.chain_end import ChainEndWork
from dpmcmc.engine.chains import Chains
from dpmcmc.engine.metric_release import MetricRelease
from dpmcmc.engine.one_shot import MechanismWork
from dpmcmc.engine.work import ReleaseWork, Work
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.planning.mechanism_release import MechanismRelease
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.planning.sampler_run import SamplerRun
from dpmcmc.planning.stages import GivenStarts

#: Work on a stage, by the stage's type.
WORK: dict[type, Any] = {
    PlannedMetric: MetricRelease,
    MechanismRelease: MechanismWork,
    SamplerRun: Chains,
}


def work_of(plan: Plan) -> Work:
    """Return the work on a plan: that on its last stage, with the work on the stages before it.

    Raises:
        InputError: it is no plan, or one that was loaded and cannot be run.
        UnsupportedCombination: stages in an order that nobody carries out.
    """
    if not isinstance(plan, Plan):
        raise InputError(f"plan: {type(plan).__name__} is no plan; make one with dpmcmc.plan or a mechanism's plan")
    last = plan.main
    *before, end = (*(stage for stage in plan.stages if stage is not last and stage is not plan.end), plan.end)
    if type(last) not in WORK:
        raise InputError("plan: was loaded from a folder, and cannot be run; make it again with dpmcmc.plan", "plan")
    if any(stage.has_chains for stage in before) or (before and not last.has_chains):
        raise UnsupportedCombination(f"plan: nobody carries out {plan.label} in this order.", "plan")
    # Starts that sample is given were released by another run.
    works: list[ReleaseWork] = [WORK[type(one)](plan, one) for one in before if not isinstance(one, GivenStarts)]
    if isinstance(last, SamplerRun):
        return Chains(plan, last, works, None if end is None else ChainEndWork(plan, end))
    work: Work = WORK[type(last)](plan, last)
    return work
