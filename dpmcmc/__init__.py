"""dpmcmc: differentially private stochastic-gradient MCMC in JAX.

Every sampler is post-processing of one noisy gradient query::

    plan = dpmcmc.plan(target, num_records=N, sampler=dpmcmc.SGLD(step_size=16.0), sampling=dpmcmc.Poisson(512),
                       steps=1272, privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-6))
    result = dpmcmc.sample(plan, {"x": x, "y": y})
    result.draws, result.guarantee
"""

from dpmcmc import data, diagnostics, mechanisms, privacy, samplers, targets
from dpmcmc.engine import DivergedError, sample
from dpmcmc.mesh import mesh
from dpmcmc.planning import Plan, plan
from dpmcmc.privacy import FixedSize, Full, Guarantee, Poisson, Privacy, SecretKey
from dpmcmc.result import Result
from dpmcmc.samplers import SGFS, SGHMC, SGLD, SGNHT
from dpmcmc.sweep import sample_all

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
