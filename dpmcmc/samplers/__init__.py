"""Samplers, one file each; ``base`` has the protocol, ``langevin`` the law of injected noise that all share."""

from dpmcmc.samplers.base import Sampler
from dpmcmc.samplers.optax import Optax
from dpmcmc.samplers.optax_schedules import OptaxSchedule
from dpmcmc.samplers.schedules import SCHEDULES, AlphaPhase, Cyclical, Floor, Polynomial
from dpmcmc.samplers.sgfs import SGFS
from dpmcmc.samplers.sghmc import SGHMC
from dpmcmc.samplers.sgld import SGLD
from dpmcmc.samplers.sgnht import SGNHT

#: Names that a YAML may use. A new sampler is one file and one line here.
SAMPLERS = {
    "sgld": SGLD,
    "sghmc": SGHMC,
    "sgnht": SGNHT,
    "sgfs": SGFS,
    "optax": Optax,
}

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
    "Optax",
    "OptaxSchedule",
    "Polynomial",
    "Sampler",
]
