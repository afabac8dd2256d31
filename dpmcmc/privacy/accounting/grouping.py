"""Many kinds of noisy query charged as a few: each group at its least noise and its largest rate.

An accountant's time grows with the number of different (noise multiplier, rate). A query with less noise, or of more
records, reveals at least as much: the pair of z dominates that of a larger z (added noise is post-processing), and an
upper bound of the rate may be charged (``rdp.py``). So the composed ε is an upper bound of the exact one.

Claim: Queries that are charged in groups cost at least what they cost one by one.
Proof: less noise and a larger rate reveal at least as much.
Held by: test_groups_cost_at_least_what_their_members_do,
test_bucketing_never_undercuts_and_wastes_less_than_one_percent, test_an_upper_bound_of_the_rate_may_be_charged,
"groups charged at their most noise"
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from dpmcmc.privacy.accounting.events import MOST_KINDS, Event, bucket_down

#: Different rates that are kept where there are more kinds than that.
_MOST_RATES = 4


def grouped(parts: Sequence[Event], most: int = MOST_KINDS) -> list[Event]:
    """``parts`` (from ``events.queries``) with at most about ``most`` kinds of sampled query.

    Unchanged where there are no more. Fixed-size queries of different N are never grouped with each other.
    """
    sampled = [e for e in parts if _sampled(e)]
    if len(sampled) <= most:
        return list(parts)
    families: dict[tuple[str, int | None], list[Event]] = {}
    for e in sampled:
        families.setdefault((e.mechanism, e.num_records), []).append(e)
    groups = [group for family in families.values() for group in _by_rate(family)]
    share = max(1, most // len(groups))
    out = [e for e in parts if not _sampled(e)]
    for group in groups:
        rate = max(e.rate for e in group)
        z = np.array([e.noise_multiplier for e in group])
        values, counts = bucket_down(z, np.array([e.count for e in group]), exact_below=share, most=share)
        out += [
            dataclasses.replace(group[0], noise_multiplier=float(v), rate=rate, count=int(c))
            for v, c in zip(values, counts, strict=True)
        ]
    return out


def _sampled(e: Event) -> bool:
    return e.mechanism in ("poisson_gaussian", "fixed_size_gaussian")


def _by_rate(family: list[Event]) -> list[list[Event]]:
    """Events of a mechanism, those of near-equal rate together, in at most ``_MOST_RATES`` groups."""
    rates = sorted({e.rate for e in family})
    bounds = [float(part[-1]) for part in np.array_split(rates, min(_MOST_RATES, len(rates)))]
    found: dict[float, list[Event]] = {}
    for e in family:
        found.setdefault(min(b for b in bounds if e.rate <= b), []).append(e)
    return list(found.values())
