"""Questions that a promise of ε leaves open, as NIST SP 800-226 (2025) asks of a claim of differential privacy.

Its pyramid has, below ε and the unit of privacy: the bias of the release, the threat model, the query model, access to
the records, and how they were collected. Sentences follow from public facts alone: the plan, its verdict, and whose
records a run used. ``report.html`` shows them beside what ε means.
"""

from __future__ import annotations

from dpmcmc.planning.plan import Plan
from dpmcmc.report.circumstances import Circumstances


def hazards(plan: Plan, whose: Circumstances, intervals: bool) -> list[tuple[str, str]]:
    """Return (label, sentences) pairs.

    Args:
        plan: of a run with a guarantee.
        whose: records these are.
        intervals: whether they may be reported.
    """
    return [
        ("unit of privacy", _unit(plan)),
        (
            "threat model",
            "Central model: a curator holds all records and is trusted with them. Computation and noise happen on the "
            "curator's side, and an attacker sees the released files alone.",
        ),
        (
            "query model",
            "One release, not interactive: it answers a fixed list of questions, and nobody puts further ones to the "
            f"{plan.unit}s through it. Whatever is computed from the released files is free.",
        ),
        ("access", whose.say("access", plan.unit)),
        ("collection", whose.say("collection", plan.unit)),
        ("small groups", _groups(plan, intervals)),
    ]


def _unit(plan: Plan) -> str:
    unit = plan.unit
    if plan.guarantee is not None and plan.guarantee.release == "labels":
        return (
            "One label of one record. Features are taken as public: nothing protects them, nor that somebody takes "
            "part. A person with K records has a weaker promise, which dpmcmc verify --group K states."
        )
    if unit == "record":
        return (
            "One record, and a record is one person's only if nobody has two. A person with K records has a weaker "
            "promise, which dpmcmc verify --group K states."
        )
    return (
        f"One {unit} with all rows that belong to it. A person who is several {unit}s has a weaker promise, which "
        "dpmcmc verify --group K states."
    )


def _groups(plan: Plan, intervals: bool) -> str:
    said = "The noise has one size for all, so it hides more of a small group than of a large one. "
    if plan.verdict.clip_bias in ("likely", "unknown"):
        said += (
            "Contributions were clipped, which draws estimates toward the common case and may bias those of unusual "
            f"{plan.unit}s. "
        )
    if intervals:
        return said + "Judge a small group by the width of its interval, not by its mean alone."
    return said + "Draw no conclusion about a small group from these numbers."
