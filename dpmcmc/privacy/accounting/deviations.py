"""Deviations: the part of a guarantee's δ that overflow and approximate draws take, whatever the accountant.

A deviation of probability β says that the law M(D) of a run is within total variation β of an ideal law, and the
other events charge the ideal law: δ_base(ε). One record costs δ_base(ε) + (1 + e^ε)β, since for neighbours D, D' with
ideal laws Q, Q'

    M(D) <= Q + β <= δ_base(ε) + e^ε Q' + β <= δ_base(ε) + e^ε M(D') + (1 + e^ε)β.

How much k records cost depends on whose law the ideal one is.

**The ideal law of a data set.** One mechanism I has TV(M(D), I(D)) <= β for every D. Then the lines above hold for
two data sets that are k neighbours apart, with Q = I(D), Q' = I(D') and the group's δ_base: β is paid once, at the
two ends of the path.

* ``batch_overflow``: I reads every selected record. A batch is truncated with a probability that follows from the
  public rate and number of slots alone, the same for every D; a slot may hold a record, an owner, or nothing.
* Integer noise: whatever the exact sum x, the noise is near a post-processing of the Gaussian release of x, by tables
  that no record changes (``gaussian.py``). This covers steps, releases of a metric, and the Gaussian
  releases of one-shot mechanisms (``noise_aware`` of records or owners, output and objective perturbation,
  ``adassp``, ...).
* ``OPS`` with ``total_variation``, also as the start of a hybrid: I draws from the exact posterior of D.

**The ideal laws of a pair.** For every pair of neighbours there are laws Q, Q' that are made for the pair. A data set
in the middle of a path then has two ideal laws, one for each neighbour, and no inequality joins them. Only the sum of
the first lines is proved: δ(ε) = δ_base(ε) + (1 + e^ε)β for one step, so every step of a path pays β
(``group.py``).

* ``PrivateSelection``: an (ε, δ)-DP pair has an ε-DP pair near by (Dwork and Roth 2014, Lemma 3.17), which is another
  one for every pair.

(ε, δ)-DP and nothing else is a deviation of a pair: ``pure`` ε with β = δ/(1 + e^ε). P_j(s) = δ(1 + e^ε + … +
e^{(j−1)ε}) of one output s, for j marked records, is such a mechanism, and k records differ by all of P_k(s). The
steps' sum attains this; β once would be δ(1 + e^{kε})/(1 + e^ε), which is less.

A guarantee may have both: I of the first kind has the second kind's δ(ε) on neighbours.

**Without a deviation.** The minimum that output and objective perturbation compute is off by at most γ/Λ for every D:
the noise hides 2γ/Λ between any two data sets.

An ``approximate_draw`` is taken for one of a pair unless it says ``per_data_set``.

Claim: A deviation of probability β costs (1 + e^ε)β of δ, once or once for each of k records.
Proof: total variation, between the laws of a data set or between those of a pair of neighbours.
Held by: test_delta_at_includes_the_overflow, test_deviation_costs_as_batch_overflow_does,
test_a_deviation_of_every_data_set_is_paid_once, "a pair's deviation paid once by a group"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dpmcmc.privacy.accounting.events import Event


def with_deviations(base: Callable[[float], float], beta: float, delta: float) -> float:
    """Smallest ε with δ_base(ε) + (1 + e^ε)β <= delta, approached from below, so it ends on the private side.

    Args:
        base: δ -> ε without deviations.
        beta: probability of one.
        delta: total.
    """
    epsilon = base(delta)
    if beta == 0 or math.isinf(epsilon):
        return epsilon
    for _ in range(100):
        if epsilon > 700:
            return math.inf
        left = delta - (1 + math.exp(epsilon)) * beta
        if left <= 0:
            return math.inf
        following = base(left)
        if following <= epsilon * (1 + 1e-12):
            return max(epsilon, following)
        epsilon = following
    return math.inf


def of_pairs(events: Iterable[Event]) -> bool:
    """Whether the ideal laws of some deviation may be those of a pair of neighbours."""
    return any(e.mechanism == "approximate_draw" and e.count and not e.per_data_set for e in events)
