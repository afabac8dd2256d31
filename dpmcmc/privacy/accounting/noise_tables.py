"""Gaussian noise in integers alone: a discrete Gaussian from small tables, proved to hide what a real one hides.

Write ρ_s(x) = exp(−x²/2s²) and N_Z(s²) for the law on Z proportional to ρ_s. The noise of a coordinate is

    X = X₁ + c₂X₂ + … + c_L X_L,      X_j ~ N_Z(σ₀²) independent, σ₀ = ``BASE``,      S² = σ₀²(1 + Σ c_j²),

with integers c_j >= 0 such that S² >= σ² + σ₀², σ the std that is asked for. All rests on Poisson summation: for
every real μ and every s >= τ = ``SMOOTH`` = 2,

    Σ_{k∈Z} ρ_s(k − μ) = s√(2π)·(1 + e),      |e| <= η = 2 Σ_{j>=1} exp(−2π²τ²j²) < 2^-112.                    (1)

1. *Convolution* (Peikert 2010, Theorem 3.1; Micciancio & Walter 2017). For T ~ N_Z(s²) and X ~ N_Z(σ₀²), completing
   the square gives P(T + cX = n) ∝ Σ_k ρ_{σ₀}(k) ρ_s(n − ck) = ρ_S(n) Σ_k ρ_v(k − μ_n) with S² = s² + c²σ₀² and
   v⁻² = σ₀⁻² + c²/s². Where v >= τ, by (1) the last sum is one constant times 1 ± η, so the law of T + cX is that of
   N_Z(S²) up to factors in [(1−η)/(1+η), (1+η)/(1−η)]. The c_j keep v >= τ at each of the L − 1 convolutions:
   c_j² <= s_{j−1}²(τ⁻² − σ₀⁻²), s_{j−1}² the S² of the draws before the j-th.
2. *Privacy.* Let x be an integer: the exact sum. Add REAL noise, y = x + N(0, S² − τ²), and round y at random to the
   integer k with probability ρ_τ(k − y)/ρ_τ(Z − y). By (1) the denominator is τ√(2π)(1 ± η), so P(k) is the density
   of N(x, S²) at k over 1 ± η; and by (1) so is x + N_Z(S²)'s. Up to two factors as in 1, the release is therefore a
   post-processing, which does not look at x, of the Gaussian mechanism with std √(S² − τ²) >= σ: the accountants of
   the Gaussian apply as they are, and τ costs nothing, for S² − τ² >= σ² + σ₀² − τ².
3. *Tables.* X_j is drawn by Walker's alias method from 2^13 columns with thresholds of 115 bits: 128 random bits a
   draw, one comparison, no rejection. The last 96 bits are drawn only where the first 19 of some draw equal its
   threshold's, for without that they decide nothing. Its law is a table of integers over 2^128, whose total
   variation distance from N_Z(σ₀²), the tail beyond 16σ₀ included, is summed in 70 digits: ``table().deviation``,
   below 2^-116.

So a coordinate of a step is within total variation L·2^-116 + (L+1)·2^-111 (:func:`deviation`) of a post-processing
of the Gaussian mechanism, whatever x. A run is within the sum over its coordinates, steps and chains, which is
charged as ``approximate_draw``: a distance β costs (1 + e^ε)β of δ. S exceeds σ by at most :func:`excess`, which is
not credited.

Claim: Noise in integers hides as much as real Gaussian noise.
Proof: Poisson summation (Peikert 2010; Micciancio and Walter 2017). The distance that is left is charged to δ.
Held by: test_the_table_is_the_discrete_gaussian, test_a_convolution_of_two_tables_is_a_discrete_gaussian,
test_the_smoothing_error_is_below_what_is_charged, test_integer_noise_is_a_rounding_of_real_noise,
test_integer_noise_costs_its_deviation_and_no_more, "noise coarser than the sum",
"hardened: top coefficient dropped"

**Attacks that this answers.** Samplers in floating point leave holes in their output that tell neighbours apart
(Mironov 2012 for Laplace; Jin, McMurtry, Rubinstein & Ohrimenko 2022, arXiv 2112.05307, for Gaussians, who also time
samplers whose work depends on the value); sums whose precision depends on the data reveal it (Haney et al. 2022,
arXiv 2207.13793). Here sum and noise are integers on one public grid, and all draws of a group take the same
operations. Floating-point sums also exceed their stated sensitivity (Casacuberta et al. 2022, arXiv 2207.10635):
``exact_sums.py`` has exact ones.

**Not covered.** A group of steps takes longer where one of its draws ties with its threshold. This has the same
probability, 2^-19, for each of the columns, and a column and its alias are two values of the noise among thousands;
it is not a function of the records. Table look-ups reach the cache at addresses that depend on the noise; a compiler
may change the timing of anything, and is trusted to keep integer arithmetic; the random words are those of
``randomness.py``, under its assumption. Computation after the noise is float32, and post-processing. A sampler's own
noise (the ``dynamics`` stream) stays a float Gaussian: privacy never counts it.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.events import Event

#: σ₀, std of a table's draw, and τ of the module's docstring.
BASE = 256
SMOOTH = 2
#: 2^13 columns, −4096..4095; the other bits of four words are the threshold's.
INDEX_BITS = 13
HALF = 1 << (INDEX_BITS - 1)
_WORDS = 4
_THRESHOLD_BITS = 32 * _WORDS - INDEX_BITS
#: Bound on c_j / √(1 + Σ_{i<j} c_i²) that the choice of coefficients aims at: 2 % below σ₀√(τ⁻² − σ₀⁻²), which the
#: proof needs, for float32 roundings.
RATIO = 0.49 * BASE
#: The asked variance is raised by this share first, more than all float32 roundings on the way to the coefficients.
SLACK = 2.0**-20
#: Draws per coordinate, at least (fewer would make S too coarse) and at most (beyond, a coefficient leaves float32).
LEVELS = (3, 4, 5)
#: Most numbers of one release that is not a step's; a mechanism is charged for as many whatever it releases.
MOST_NUMBERS = 1 << 22
#: Largest relative excess of S over the asked std that a plan may have, and the one that another level is spent on.
MOST_EXCESS = 1e-2
FINE_EXCESS = 1e-5
#: Twice the η of (1) with room for the powers of (1+η)/(1−η) that multiply up.
_CONVOLUTION = 2.0**-111
#: Bound on ``table().deviation``: a plan needs this alone, and makes no table.
_TABLE = 2.0**-116
_WHOLE = 1 << 32 * _WORDS


class Table(NamedTuple):
    """Alias table of N_Z(BASE²).

    Attributes:
        words: (4, 8192) uint32: threshold's top 19 bits and the alias column; its other words, from the upper one down.
        weights: probability of −4096 + i as an integer over 2^128.
        deviation: upper bound on the total variation distance from N_Z(BASE²).
    """

    words: np.ndarray
    weights: tuple[int, ...]
    deviation: float


@functools.lru_cache(maxsize=1)
def table() -> Table:
    """Return the alias table, in exact integers from probabilities of 70 digits."""
    with decimal.localcontext() as context:
        context.prec = 80
        # exp(−k²/2σ₀²) from k − 1 by one factor, which shrinks by a constant one: k² roundings of 80 digits.
        ratio = (decimal.Decimal(-1) / (2 * BASE * BASE)).exp()
        half = [decimal.Decimal(1)]
        factor = ratio
        square = ratio * ratio
        # Beyond 40σ₀ lies less than e^-800.
        for _ in range(1, 40 * BASE):
            half.append(half[-1] * factor)
            factor *= square
        whole = half[0] + 2 * sum(half[1:], decimal.Decimal(0))
        scale = decimal.Decimal(_WHOLE) / whole
        exact = [half[abs(k)] * scale for k in range(-HALF, HALF)]
        weights = [int(p.to_integral_value()) for p in exact]
        weights[HALF] += _WHOLE - sum(weights)
        tail = decimal.Decimal(_WHOLE) - sum(exact, decimal.Decimal(0))
        distance = sum((abs(w - p) for w, p in zip(weights, exact, strict=True)), tail) / 2 / _WHOLE
    columns, aliases = _alias(weights)
    shifts = range(32 * (_WORDS - 1), -1, -32)
    words = np.array([[t >> shift & 0xFFFFFFFF for t in columns] for shift in shifts], np.uint32)
    words[0] = words[0] << INDEX_BITS | np.array(aliases, np.uint32)
    # Room for the last digits.
    return Table(words, tuple(weights), float(distance) * (1 + 1e-9) + 1e-50)


def _alias(weights: list[int]) -> tuple[list[int], list[int]]:
    """(thresholds, aliases) of Walker's method (Vose 1991) in integers: column i keeps its threshold of 2^115."""
    full = 1 << _THRESHOLD_BITS
    left = list(weights)
    thresholds = [0] * len(left)
    aliases = list(range(len(left)))
    small = [i for i, w in enumerate(left) if w < full]
    large = [i for i, w in enumerate(left) if w >= full]
    while small:
        i = small.pop()
        j = large[-1]
        thresholds[i] = left[i]
        aliases[i] = j
        left[j] -= full - left[i]
        if left[j] < full:
            small.append(large.pop())
    # Every cell that is left is full: its own alias, whatever the threshold.
    return thresholds, aliases


def deviation(levels: int) -> float:
    """Upper bound on the total variation distance of one coordinate's noise from the docstring's."""
    return levels * _TABLE + (levels + 1) * _CONVOLUTION


def draws_event(numbers: int) -> Event:
    """Return the charge of so many numbers of integer noise, each of the most draws."""
    return Event("approximate_draw", 0.0, deviation(LEVELS[-1]), numbers, per_data_set=True)


def releases_event(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the charge of the integer noise of a one-shot mechanism with these events; none where it adds no noise."""
    noisy = ("gaussian", "noisy_descent")  # a descent has a release a step
    count = sum(e.count * (e.steps or 1) for e in events if e.mechanism in noisy)
    if not count:
        return ()
    return (Event("approximate_draw", 0.0, deviation(LEVELS[-1]) * MOST_NUMBERS, count, per_data_set=True),)


def price(event: Event, epsilon: float) -> float:
    """Return the part of δ that a :func:`draws_event` costs at ε."""
    distance = event.rate * event.count
    return (1 + math.exp(epsilon)) * distance if epsilon < 600 else math.inf


def reach(levels: int) -> float:
    """Largest std that so many draws can have."""
    square = math.floor(RATIO) ** 2 * 0.98
    for _ in range(levels - 2):
        # One more level leaves at most r/g² + 2√r + 1 to the others.
        square = (RATIO**2 * (math.sqrt(1 + (square - 1) / RATIO**2) - 1)) ** 2 * 0.98
    return BASE * math.sqrt(square)


def excess(std: float, levels: int) -> float:
    """Upper bound on the relative excess of S over ``std``."""
    square = rest = (std / BASE) ** 2
    for _ in range(levels - 2):
        rest = rest / RATIO**2 + 2 * math.sqrt(rest) + 1
    return (2 * math.sqrt(rest) + 2) / (2 * square) + 2 * SLACK


def levels_for(smallest: float, largest: float) -> int:
    """The fewest draws per coordinate for stds in this range, in grid units.

    Raises:
        ValueError: noise so small that S would be over a percent too large, or so large that no level reaches it.
    """
    able = [levels for levels in LEVELS if largest * (1 + 1e-3) <= reach(levels)]
    if not able:
        raise InputError(
            f"a noise std of {largest:.3g} grid steps is beyond the {reach(LEVELS[-1]):.3g} that integer noise "
            "reaches; lower the largest noise multiplier of the run"
        )
    fine = [levels for levels in able if excess(smallest, levels) <= FINE_EXCESS]
    chosen = fine[0] if fine else min(able, key=lambda levels: excess(smallest, levels))
    if excess(smallest, chosen) > MOST_EXCESS:
        raise InputError(
            f"a noise std of {smallest:.3g} grid steps is too small for integer noise, which would be up to "
            f"{excess(smallest, chosen):.1%} louder; raise the smallest noise multiplier of the run"
        )
    return chosen
