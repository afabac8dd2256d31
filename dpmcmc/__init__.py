"""dpmcmc: differentially private stochastic-gradient MCMC in JAX.

Every sampler is post-processing of one noisy gradient query::

    plan = dpmcmc.plan(target, num_records=N, sampler=dpmcmc.SGLD(step_size=16.0), sampling=dpmcmc.Poisson(512),
                       steps=1272, privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-6))
    result = dpmcmc.sample(plan, {"x": x, "y": y})
    result.draws, result.guarantee
"""

from dpmcmc.interrupt import while_importing

while_importing()  # before what takes seconds to import

from dpmcmc import data, diagnostics, mechanisms, privacy, samplers, targets  # noqa: E402
from dpmcmc.engine import DivergedError, sample  # noqa: E402
from dpmcmc.mesh import mesh  # noqa: E402
from dpmcmc.planning import Plan, plan  # noqa: E402
from dpmcmc.privacy import FixedSize, Full, Guarantee, Poisson, Privacy, SecretKey  # noqa: E402
from dpmcmc.result import Result  # noqa: E402
from dpmcmc.samplers import SGFS, SGHMC, SGLD, SGNHT  # noqa: E402
from dpmcmc.sweep import sample_all  # noqa: E402

__all__ = [
    "SGFS",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "DivergedError",
    "FixedSize",
    "Full",
    "Guarantee",
    "Plan",
    "Poisson",
    "Privacy",
    "Result",
    "SecretKey",
    "data",
    "diagnostics",
    "mechanisms",
    "mesh",
    "plan",
    "privacy",
    "sample",
    "sample_all",
    "samplers",
    "targets",
]
