"""All that a mechanism may offer, which reads all records once and lets one estimate, or a few draws, leave.

A mechanism settles its guarantee and every number that the guarantee rests on in ``plan``, from public
quantities alone; ``draw`` is its single declared access to the records. Its plan is one stage
(``planning/mechanism_release.py``), which ``engine/one_shot.py`` carries out. Adding one is one file and one line
of ``MECHANISMS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpmcmc.planning.permitted_uses import Use
from dpmcmc.planning.plan import Plan
from dpmcmc.storage.pytree import PyTree


class MechanismOffers:
    """All that a mechanism may offer beside ``plan`` and ``draw``; None is not offered."""

    #: The kind of release, as a Guarantee says it.
    release: str | None = None
    #: Whether the release is pure ε-DP, so that δ may be 0.
    pure: bool = False
    #: Arrays of a record beside x and y that the mechanism takes, ``offset`` and ``weight``.
    honours: frozenset[str] = frozenset()
    #: plan -> (whether intervals of the draws hold, why), of a mechanism whose draws account for its noise.
    intervals: Callable[[Any], Use] | None = None
    #: (plan, records, streams) -> (draws, evidence), of a mechanism that releases more than draws.
    drawn: Callable[[Any, Any, Any], Any] | None = None

    def reads_sums(self, target: Any) -> bool:
        """Return whether ``draw`` reads records through exact sums alone (``privacy/query/record_sums.py``).

        It is then given :class:`~dpmcmc.privacy.query.record_sums.Records`, of a table that may be partitioned, and
        otherwise arrays.
        """
        return False

    @property
    def in_floats(self) -> str:
        """Part that is drawn in floating point; empty where all randomness is in integers."""
        return ""

    def check(self, plan: Plan, records: PyTree) -> None:
        """Refuse records, or code of the user's own, that ``draw`` would fail on; only shapes are evaluated.

        Nothing is charged yet. A mechanism whose draw rests on more than the target's own check has its refusals here.

        Raises:
            InputError: one sentence of public facts.
        """
