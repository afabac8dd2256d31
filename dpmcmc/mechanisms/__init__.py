"""Whatever makes private draws: a sampler's chain, and one-shot estimators, which release one estimate or a few draws.

``chain``      ``dpmcmc.plan``: a sampler's run, with the stages around it
``ops``        posterior draws, private as they are;  ``certified_ops`` one draw that needs no convergence
``hybrid``     a posterior draw, then a sampler from there
``selection``  the best of several private candidates, chosen by ``vote``
``noise_aware``  posterior draws whose intervals account for the noise of privacy
``label_posterior``  labels that are changed at random, and draws that know how likely; of ``data.labels`` alone
``objective_perturbation``, ``output_perturbation``, ``sufficient``, ``adassp``  estimators to compare with

Each plans without records and reads them once (``base.py``; ``one_shot.py`` is the shape that they share). Parts of
them: ``nuts`` and ``ball`` (draws), ``minimise`` with ``convexity``, ``huberised`` and ``sums_in_blocks`` (certified
minimisers), ``statistics`` (XᵀX and Xᵀy), ``rows`` and ``checked_records``.
"""

from dpmcmc.errors import DrawError
from dpmcmc.mechanisms.adassp import AdaSSP
from dpmcmc.mechanisms.certified_ops import CertifiedOPS
from dpmcmc.mechanisms.hybrid import Hybrid
from dpmcmc.mechanisms.noise_aware import NoiseAware
from dpmcmc.mechanisms.objective_perturbation import ObjectivePerturbation
from dpmcmc.mechanisms.ops import OPS
from dpmcmc.mechanisms.output_perturbation import OutputPerturbation
from dpmcmc.mechanisms.selection import Chain, PrivateSelection
from dpmcmc.mechanisms.sufficient import SufficientStatistics

#: By the name that a YAML says; a hybrid is made of one of these and a sampler.
MECHANISMS = {
    "ops": OPS,
    "certified_ops": CertifiedOPS,
    "objective_perturbation": ObjectivePerturbation,
    "output_perturbation": OutputPerturbation,
    "sufficient_statistics": SufficientStatistics,
    "adassp": AdaSSP,
    "noise_aware": NoiseAware,
}

__all__ = [
    "MECHANISMS",
    "OPS",
    "AdaSSP",
    "CertifiedOPS",
    "Chain",
    "DrawError",
    "Hybrid",
    "NoiseAware",
    "ObjectivePerturbation",
    "OutputPerturbation",
    "PrivateSelection",
    "SufficientStatistics",
]
