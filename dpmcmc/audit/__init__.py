"""Empirical audits: a lower bound on the ε of a release, to compare with the claimed ε.

``neighbours``  worst-case data sets;  ``scores``  what an adversary makes of a release
``bounds``      from scores to confident statements
``procedure``   all of it on a plan, and the findings

An audit drives the real engine. ``dpmcmc.privacy.audit`` is another name for this room.
"""

from dpmcmc.audit.neighbours import Neighbours
from dpmcmc.audit.procedure import METHODS, AuditReport, audit, shortened

__all__ = [
    "METHODS",
    "AuditReport",
    "Neighbours",
    "audit",
    "shortened",
]
