"""Accountants: from a list of events to ε(δ). One file each, one protocol.

An accountant is a module with ``check(events, adjacency)`` (raises UnsupportedCombination), ``epsilon(events,
adjacency, delta)`` and ``delta(events, adjacency, epsilon)``, all in terms of ONE noise multiplier: noise std
on the clipped sum / clip norm. Adding one is one file and one line of ``ACCOUNTANTS``.

* ``advanced``: subsampling lemma and advanced composition, the thesis's route, constants corrected.
* ``rdp``: Rényi differential privacy.
* ``pld``: privacy-loss distributions, the tightest here.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from dpmcmc.privacy.accounting import advanced, pld, rdp
from dpmcmc.privacy.accounting.events import (
    ADJACENCIES,
    Event,
    UnsupportedCombination,
    overflow_probability,
    query_events,
    run_length,
)

ACCOUNTANTS: dict[str, ModuleType] = {"advanced": advanced, "rdp": rdp, "pld": pld}
RELEASES = ("trace",)

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCIES",
    "RELEASES",
    "Event",
    "UnsupportedCombination",
    "accountant_for",
    "overflow_probability",
    "query_events",
    "run_length",
]


def accountant_for(name: str, events: Iterable[Event], adjacency: str, release: str = "trace") -> ModuleType:
    """The accountant module, after checking that it covers this combination.

    Raises:
        UnsupportedCombination: naming what is supported.
    """
    if name not in ACCOUNTANTS:
        raise UnsupportedCombination(f"unknown accountant {name!r}; known: {', '.join(ACCOUNTANTS)}.")
    if adjacency not in ADJACENCIES:
        raise UnsupportedCombination(f"unknown adjacency {adjacency!r}; known: {', '.join(ADJACENCIES)}.")
    if release not in RELEASES:
        raise UnsupportedCombination(
            f"release {release!r} has no accountant here; supported: {', '.join(RELEASES)} "
            "(every iterate may be published)."
        )
    module = ACCOUNTANTS[name]
    module.check(events, adjacency)
    return module
