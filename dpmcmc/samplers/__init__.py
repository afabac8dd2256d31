"""How it is sampled: one file per sampler, the update rule on top; ``langevin`` has the law of noise that all share."""

from dpmcmc.samplers.base import Sampler
from dpmcmc.samplers.schedules import SCHEDULES, AlphaPhase, Cyclical, Floor, Polynomial
from dpmcmc.samplers.sgfs import SGFS
from dpmcmc.samplers.sghmc import SGHMC
from dpmcmc.samplers.sgld import SGLD
from dpmcmc.samplers.sgnht import SGNHT

#: Names a YAML may use; a line here is all that a new sampler needs.
SAMPLERS = {"sgld": SGLD, "sghmc": SGHMC, "sgnht": SGNHT, "sgfs": SGFS}

__all__ = [
    "SAMPLERS",
    "SCHEDULES",
    "SGFS",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "AlphaPhase",
    "Cyclical",
    "Floor",
    "Polynomial",
    "Sampler",
]
