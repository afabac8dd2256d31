r"""The thesis's accountant (``accountant: advanced``): subsampling lemma, then advanced composition.

One step is a Gaussian mechanism with exact (ε₀, δ₀); sampling at rate q turns it into

    (log(1 + q(e^{ε₀} − 1)), q δ₀),

and k steps compose to ε = √(2 log(1/δ') Σε_i²) + Σ ε_i(e^{ε_i} − 1) (Dwork, Rothblum and Vadhan 2010;
per-step form by Azuma's inequality), with δ = δ' + Σ q_i δ₀ᵢ. The split of δ is optimised, and basic
composition Σε_i (all of δ to the steps) is taken where it is smaller.

Base sensitivity, and why:

* rate 1: C (add_remove, zero_out) or 2C (replace_one).
* Poisson, add_remove and zero_out: C (Balle, Barthe and Gaboardi 2018, Theorem 8).
* fixed size, replace_one: 2C (their Theorem 11). The thesis charges its noise as if this were √2·C: corrected.
* Poisson, replace_one: 2C, which no textbook lemma covers. With ω₀ (record absent), ω₁ and ω₁' (its two
  values), P = (1−q)ω₀ + qω₁ and Q = (1−q)ω₀ + qω₁'. Advanced joint convexity (their Theorem 2) gives, at
  γ' = 1 + q(γ − 1), H_{γ'}(P‖Q) = q H_γ(ω₁ ‖ (1−β)ω₀ + βω₁') <= q[(1−β)H_γ(ω₁‖ω₀) + βH_γ(ω₁‖ω₁')],
  and both divergences are at most the Gaussian's at distance 2C.
* fixed size, add_remove or zero_out: refused (a batch without the record holds another one instead, so the
  comparison above needs 2C under a relation that promises C).

A teaching baseline: valid, and one to four orders of magnitude looser than ``pld``.

Claim: Sampling at rate q turns (ε₀, δ₀) into (log(1 + q(e^{ε₀} − 1)), qδ₀), for a replaced record too.
Proof: advanced joint convexity (Balle, Barthe and Gaboardi 2018), with a distance of 2C.
Held by: test_accountants_stand_in_order, test_golden_fixed_size_replace_one_advanced_charges_twice_the_clip
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import scipy

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.accounting.gaussian_queries import queries
from dpmcmc.privacy.accounting.grouping import grouped
from dpmcmc.privacy.accounting.work import spend

# Shares of δ given to the composition slack δ'; the rest goes to the steps.
_SHARES = tuple(np.concatenate([np.geomspace(1e-4, 0.4, 10), [0.5], 1 - np.geomspace(0.4, 1e-4, 10)]))

# One root of a Gaussian's curve, in points of ``events.py``.
_ROOT_WORK = 1000


def check(events: Iterable[Event], adjacency: Adjacency) -> None:
    """Raise UnsupportedCombination for a pair without a derivation."""
    for e in queries(events):
        if e.mechanism == "fixed_size_gaussian" and adjacency != Adjacency.REPLACE_ONE:
            raise UnsupportedCombination(
                f"accountant advanced has no subsampling lemma for fixed_size under {adjacency}; use adjacency "
                "replace_one, or scheme poisson.",
                "accountant",
            )


def epsilon(events: Iterable[Event], adjacency: Adjacency, delta: float) -> float:
    """Smallest ε over the tried splits of δ; inf where the bound overflows."""
    parts = grouped(queries(events))
    check(parts, adjacency)
    if not parts:
        return 0.0
    if delta <= 0 or any(e.noise_multiplier == 0 for e in parts):
        return math.inf
    return _smallest_epsilon(parts, adjacency, delta)


def _smallest_epsilon(parts: list[Event], adjacency: Adjacency, delta: float) -> float:
    if delta >= 1:
        return 0.0
    spend(len(parts) * len(_SHARES) * _ROOT_WORK)
    basic = math.fsum(count * step for step, count in _amplified(parts, adjacency, delta))
    return min(basic, *(_composed_epsilon(parts, adjacency, delta, share) for share in _SHARES))


def delta(events: Iterable[Event], adjacency: Adjacency, epsilon: float) -> float:
    """Smallest δ whose ε is at most ``epsilon`` (inverts :func:`epsilon`); 1 where there is none."""
    parts = grouped(queries(events))
    check(parts, adjacency)
    if not parts:
        return 0.0
    if any(e.noise_multiplier == 0 for e in parts):
        return 1.0

    # ε is 0 from some δ on; a root of that stretch would be its far end, δ = 1.
    target = max(epsilon, 1e-300)

    def excess(log_delta: float) -> float:
        return min(_smallest_epsilon(parts, adjacency, math.exp(log_delta)), 1e30) - target

    low = -690.0
    high = -1e-12
    if excess(high) > 0:
        return 1.0
    if excess(low) <= 0:
        return math.exp(low)
    root = float(scipy.optimize.brentq(excess, low, high, xtol=1e-10))
    while excess(root) > 0 and root < high:
        root += 1e-9
    return min(1.0, math.exp(root))


def _amplified(parts: list[Event], adjacency: Adjacency, delta: float) -> list[tuple[float, int]]:
    """(ε of one sampled step, count) for each event when the steps share ``delta`` equally."""
    per_step = delta / sum(e.count for e in parts)
    out = []
    for e in parts:
        base = gaussian_epsilon(adjacency.sensitivity / e.noise_multiplier, min(1.0, per_step / e.rate))
        # log(1 + q(e^ε − 1)) without overflow at large ε
        step = math.log1p(e.rate * math.expm1(base)) if base < 600 else base + math.log(e.rate)
        out.append((step, e.count))
    return out


def _composed_epsilon(parts: list[Event], adjacency: Adjacency, delta: float, share: float) -> float:
    steps = _amplified(parts, adjacency, (1 - share) * delta)
    squares = math.fsum(count * step * step for step, count in steps)
    linear = math.fsum(count * step * math.expm1(min(step, 600)) for step, count in steps)
    return math.sqrt(2 * math.log(1 / (share * delta)) * squares) + linear
