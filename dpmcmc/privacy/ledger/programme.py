"""A programme: runs fixed before the first release, composed tightly, admitted in any order.

A programme's content is fixed at ``init``; only whether, when and in which order its items run may depend on results.
Then their joint ε by PLD holds. Proof: fix neighbouring data sets and the direction. Each step of each item has a
dominating pair (A_j, B_j) that no history changes (that is what the accountants compose), so by Blackwell's theorem
its output given any history h is K_{j,h}(x_j), a randomised function of a draw x_j from A_j, or from B_j. Draw all
the x_j first, independently. The transcript of the analyst is then a function of (x_1, ..., x_k) and of independent
coins: which step comes next is a function of what was released, each x_j is looked at at most once, and one never
looked at changes nothing. So the pair of transcripts is post-processing of (ΠA_j, ΠB_j), whose ε(δ) the accountant
bounds from above. Rényi composition at every order holds too: each order's sum is at most the programme's on every
path (``filters.py``), as does basic composition of fixed parts. Deviations add up to the programme's β on every path,
and cost (1 + e^ε)β by the argument of ``filters.py``.

Nothing here covers an item whose events were changed by a result: it must be exactly one of the programme's.

Claim: A programme of fixed runs costs their joint ε, in any order.
Proof: all draws of the dominating pairs may be taken before the first choice.
Held by: test_a_programme_admits_each_of_its_runs_once_in_any_order, test_a_programme_beyond_its_promise_is_refused
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import (
    joined,
    run_length,
)
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee

#: Accountants whose bound is one of the product of the pairs, or of fixed sums; the tightest first.
_ACCOUNTANTS = ("pld", "rdp", "one_sample")


def key_of_run(events: Iterable[Event]) -> str:
    """Events as a text that is equal exactly for equal lists, whatever their order."""
    return json.dumps(sorted(json.dumps(e.to_json(), sort_keys=True) for e in run_length(events)))


def joint_epsilon(guarantees: Sequence[Guarantee], adjacency: Adjacency, delta: float) -> float:
    """ε of all of them together at total δ, by the first accountant that covers them.

    Raises:
        UnsupportedCombination: no accountant covers them all.
    """
    events = tuple(e for g in guarantees for e in g.events)
    release = joined(*(g.release for g in guarantees))
    reasons = []
    for name in _ACCOUNTANTS:
        try:
            return Guarantee.from_events(
                events, delta=delta, adjacency=adjacency, accountant=name, release=release
            ).epsilon
        except UnsupportedCombination as error:
            reasons.append(str(error))
    raise UnsupportedCombination(" ".join(dict.fromkeys(reasons)))
