"""How it is sampled: one file per sampler, the update rule on top."""

from dpmcmc.samplers.base import Sampler
from dpmcmc.samplers.schedules import SCHEDULES, Polynomial
from dpmcmc.samplers.sghmc import SGHMC
from dpmcmc.samplers.sgld import SGLD
from dpmcmc.samplers.sgnht import SGNHT

#: Names a YAML may use.
SAMPLERS = {"sgld": SGLD, "sghmc": SGHMC, "sgnht": SGNHT}

__all__ = ["SAMPLERS", "SCHEDULES", "SGHMC", "SGLD", "SGNHT", "Polynomial", "Sampler"]
