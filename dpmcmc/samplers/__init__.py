"""How it is sampled: one file per sampler, the update rule on top."""

from dpmcmc.samplers.base import Sampler
from dpmcmc.samplers.schedules import SCHEDULES, Polynomial
from dpmcmc.samplers.sgld import SGLD

#: Names a YAML may use.
SAMPLERS = {"sgld": SGLD}

__all__ = ["SAMPLERS", "SCHEDULES", "SGLD", "Polynomial", "Sampler"]
