"""From nominal noise to charged events, and from events to ε(δ). No JAX.

An accountant is a module with ``check(events, adjacency)`` (raises UnsupportedCombination), ``epsilon(events,
adjacency, delta)`` and ``delta(events, adjacency, epsilon)``, all in terms of ONE noise multiplier: noise std
on the clipped sum / clip norm. Adding one is one file and one line of ``ACCOUNTANTS``.

* ``advanced``: subsampling lemma and advanced composition, the thesis's route, constants corrected.
* ``rdp``: Rényi differential privacy.
* ``pld``: privacy-loss distributions, the tightest here.
* ``last_iterate``: the last step of a full-batch descent on a strongly convex potential.
* ``one_sample``: posterior draws and private estimates.
* ``own``: a function of the user's, as an accountant; ``lower_bound`` stands against it.

Pure releases are composed outside the modules, for all of them alike (``pure.py``).

* What is asked: ``promise`` (the ``privacy:`` section), ``adjacency``, ``sampling`` (schemes and their charged rates).
* What is charged: ``charging`` (noise to events), ``events``, ``deviations``, ``noise_tables`` (integer noise).
* What it costs: ``cost_of_run`` (``account``), ``guarantee``, ``group`` (several records at once), ``conversions``.
* Parts of the accountants: ``gaussian`` (the exact trade-off), ``gaussian_queries`` and ``grouping`` (events as few
  queries), ``hockey_stick``, ``blends`` and ``composition`` (of ``pld``), ``fixed_size_renyi`` (of ``rdp``),
  ``bisection``, ``work`` (how much an accountant may do), ``shown_numbers`` (rounded toward more privacy).
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting import advanced, last_iterate, one_sample, own, pld, pure, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import (
    DEVIATIONS,
    OBJECTIVES,
    Event,
    overflow_probability,
    query_events,
    run_length,
)

ACCOUNTANTS: dict[str, ModuleType] = {
    "advanced": advanced,
    "rdp": rdp,
    "pld": pld,
    "last_iterate": last_iterate,
    "one_sample": one_sample,
}
#: Relations of neighbours that differ in a whole record.
ADJACENCIES = tuple(one for one in Adjacency if one != Adjacency.ONE_LABEL)
#: Those of a sampler's trace, each able to check the others.
TRACE_ACCOUNTANTS = ("advanced", "rdp", "pld")
#: Releases: every iterate; the last iterate of a descent; posterior draws; a point estimate; randomised labels.
RELEASES = ("trace", "last_iterate", "one_sample", "estimate", "labels")

__all__ = [
    "ACCOUNTANTS",
    "ADJACENCIES",
    "DEVIATIONS",
    "RELEASES",
    "TRACE_ACCOUNTANTS",
    "Adjacency",
    "Event",
    "UnsupportedCombination",
    "accountant_for",
    "base_delta",
    "base_epsilon",
    "joined",
    "overflow_probability",
    "query_events",
    "run_length",
]


def accountant_for(
    name: str, events: Iterable[Event], adjacency: Adjacency, release: str | None = None
) -> ModuleType | own.OwnAccountant:
    """The accountant, after checking that it covers this combination; ``release`` None is not looked at.

    Raises:
        UnsupportedCombination: naming what is supported.
    """
    if name not in ACCOUNTANTS and not own.is_ones_own(name):
        raise UnsupportedCombination(f"unknown accountant {name!r}; known: {', '.join(ACCOUNTANTS)}.", "accountant")
    events = list(events)
    if release is not None:
        _check_release(release, {e.mechanism for e in events})
        if ("labels" in release.split(" + ")) != (Adjacency(adjacency) == Adjacency.ONE_LABEL):
            raise UnsupportedCombination(
                f"adjacency one_label is of randomised labels (release labels) and of nothing else: not of release "
                f"{release} under {adjacency}.",
                "adjacency",
            )
    if name != "one_sample" and any(e.mechanism in OBJECTIVES for e in events):
        raise UnsupportedCombination(
            f"accountant {name} does not cover objective perturbation; use accountant one_sample.",
            "accountant",
        )
    module = own.OwnAccountant(name) if own.is_ones_own(name) else ACCOUNTANTS[name]
    module.check(pure.split(events)[1], Adjacency(adjacency))
    return module


def joined(*releases: str) -> str:
    """The label of several releases together."""
    return " + ".join(dict.fromkeys(part for release in releases for part in release.split(" + ")))


def _check_release(release: str, mechanisms: set[str]) -> None:
    """Refuse a label of what leaves that is not known, or does not fit what is charged."""
    parts = set(release.split(" + "))
    unknown = sorted(parts - set(RELEASES))
    if unknown:
        raise UnsupportedCombination(f"release {unknown[0]!r} has no accountant here; known: {', '.join(RELEASES)}.")
    needs = {
        "noisy_descent": {"last_iterate"},
        "posterior_draw": {"one_sample"},
        **{objective: {"estimate"} for objective in OBJECTIVES},
    }
    for mechanism, labels in needs.items():
        if mechanism in mechanisms and not parts & labels:
            raise UnsupportedCombination(f"{mechanism} is charged for release {', '.join(labels)}, not for {release}.")
    if "one_sample" in parts and not mechanisms & {"posterior_draw", "pure"}:
        raise UnsupportedCombination("release one_sample charges no posterior draw.")
    if "last_iterate" in parts and "noisy_descent" not in mechanisms:
        raise UnsupportedCombination("release last_iterate charges no descent.")


def base_epsilon(name: str, events: Iterable[Event], adjacency: Adjacency, delta: float) -> float:
    """ε of everything but deviations (overflow, approximate draws), pure releases composed with the rest.

    Raises:
        UnsupportedCombination: see :func:`accountant_for`.
    """
    events = list(events)
    adjacency = Adjacency(adjacency)
    module = accountant_for(name, events, adjacency)
    releases, rest = pure.split(events)
    value = float(module.epsilon(rest, adjacency, delta))
    if not releases:
        return value
    return pure.pure_epsilon(releases, lambda e: float(module.delta(rest, adjacency, e)), value, delta)


def base_delta(name: str, events: Iterable[Event], adjacency: Adjacency, epsilon: float) -> float:
    """δ at ε >= 0; as :func:`base_epsilon`."""
    events = list(events)
    adjacency = Adjacency(adjacency)
    module = accountant_for(name, events, adjacency)
    releases, rest = pure.split(events)
    if not releases:
        return float(module.delta(rest, adjacency, epsilon))
    return pure.mixed(releases, lambda e: float(module.delta(rest, adjacency, e)), epsilon)
