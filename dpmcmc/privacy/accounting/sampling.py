r"""Sampling schemes, the choice of records that a step reads: Poisson, fixed size, or all.

A scheme states the rate that it is charged as, and the room that its batches need. ``query/selection.py`` draws the
records from the tables made here.

**Poisson by gaps.** Independent selection at rate q is a sequence of geometric gaps, P(gap = g) = q r^g,
r = 1 − q. A gap is drawn in rounds. A round ends in a selection after Ja + b records, b < J and a < A from two tables
of 32-bit thresholds; or in a restart, no selection in L = JA records, after which the next round begins. They give
f_b, c_a and R = 1 − Σ c_a, whole multiples of 2^-32, whose sums are exact. So the law of a whole gap is known exactly:

    P(gap = kL + Ja + b) = R^k c_a f_b,        f_b = q r^b/(1 − r^J)·(1 + β_b),   c_a = (1 − r^J) r^{Ja}·(1 + α_a),
                                               R = r^L·(1 + ρ),   |β_b| <= e_b, |α_a| <= e_a, |ρ| <= e_R,

with errors that are computed in 60 digits, not assumed. Rounds are independent of all before them, so gaps are.

*The charge.* Let S be the selection and i a record. Given which others are in S, the odds of i are these, with
g₁ the records between i and the one selected before it (or the start), and g₂ those to the one selected after it.

1. *There is one after i.* The probability of S is a product over gaps. With i two gaps g₁, g₂ stand where without i
   there is one, g₁ + g₂ + 1; all other factors cancel, so the odds are P(g₁)P(g₂)/P(g₁+g₂+1). Write g_j = k_j L + t_j,
   0 <= t_j < L. Because t₁ + t₂ + 1 < 2L, the gap without i has k = k₁ + k₂ or k₁ + k₂ + 1 restarts. The powers of r
   leave q/r exactly, and R^{k₁+k₂−k} leaves (1 + ρ)^0 or (1 + ρ)^-1: restarts cancel, however many fit into N.
   So the odds are at most q/r·F₁, F₁ = (1+e_a)²(1+e_b)² / ((1−e_a)(1−e_b)(1−e_R)).
2. *There is none: the last gap is open,* and ends beyond N. Its probability is T(n) = P(gap >= n), and the odds are
   P(g₁)T(g₂)/T(g₁+g₂+1), g₂ the records after i. A gap is at least kL + t, t < L, where k restarts come and
   then one round does not end before t: T(kL + t) = R^k τ(t), τ(t) = R + Σ c_a f_b over Ja + b >= t. The exact terms
   of τ(t) sum to r^L + Σ_{t<=g<L} q r^g = r^t. So τ(t) lies between r^t·min(1−e_R, (1−e_a)(1−e_b)) and
   r^t·max(1+e_R, (1+e_a)(1+e_b)). As in 1, k is k₁ + k₂ or one more, and the odds are at most q/r·F₂,
   F₂ = (1+e_a)(1+e_b)·max(1+e_R, (1+e_a)(1+e_b)) / ((1−e_R)·min(1−e_R, (1−e_a)(1−e_b))).

The first gap needs no case: it is drawn as the others are, from record −1. With F = max(F₁, F₂) the largest conditional
inclusion probability is q' = qF/(1−q+qF), whatever N, and q' is the charged rate: conditioned on the others, the query
is a mixture with weight at most q', and the dominating pairs grow with the weight (``accounting/rdp.py``). J and A are
chosen such that q'/q <= 1 + 10⁻⁴ at every rate. Close to rate 1, where R has too few digits, q' = 1 is charged.

*Positions in int32.* An advance is cut to N + 1, and so is their running sum. min(x + min(y, m), m) = min(x + y, m) for
x, y >= 0, so a sum at m = N + 1 stands for every larger one. Such a position is beyond the data and selects nobody;
positions below N are exact. Before it is cut an advance is at most N + 2J < 2^31.

*Shards* draw by keys of their own, each from its first row. Given all other records, of this shard and the others, the
odds of i are those above. A padded row is a record that nobody has: an average over it keeps every probability at
most q'.

*Under add_remove* N is the public number of record slots: an absent record is an empty slot that
contributes zero (``targets/checks.py``), so the law of the others does not depend on it.

*Overflow.* A step has room for a fixed number of gaps; with probability at most β it truncates its batch.
β is charged as ``batch_overflow``, or is zero where there is room for all N.

**Fixed size.** Uniform words below 2^k >= N, those >= N rejected, are drawn until b distinct values are
seen; the first b distinct ones are a uniform subset. Repeating a failed block keeps it uniform, because
success does not depend on the labels. For b > N/2 the complement is drawn.

Claim: Given all others, a record is in a Poisson batch with at most the probability that is charged.
Proof: restarts cancel in the odds of a record, and errors of the integer tables are computed, not assumed.
Held by: test_conditional_inclusion_never_exceeds_the_charged_rate,
test_small_tables_keep_the_charge_through_many_restarts,
test_odds_of_real_tables_stay_within_the_charge_and_a_bent_table_is_caught,
test_poisson_batches_include_each_record_by_itself_at_the_charged_rate,
test_poisson_batches_of_shards_are_the_poisson_batch_of_all_records, "fixed-size batches accounted as Poisson",
"shuffled epochs accounted as Poisson", "contiguous blocks accounted as Poisson"

Claim: A batch of fixed size is a uniform subset.
Proof: success of a block of words does not depend on the labels, so that repeating it keeps the law.
Held by: test_fixed_size_reaches_every_subset_equally, test_fixed_size_inclusion_counts_match_uniform_subsets

Claim: A batch outgrows its room no more often than is charged.
Proof: the tail of a binomial law, rounded up.
Held by: test_overflow_charge_covers_the_exact_binomial_tail, test_truncation_is_as_rare_as_charged,
test_rooms_of_shards_overflow_no_more_often_than_is_charged
"""

from __future__ import annotations

import bisect
import decimal
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import mul
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt
from scipy.special import betainc

from dpmcmc.errors import InputError

WORD = 1 << 32
_MOST_RECORDS = (1 << 30) - 2  # two saturated positions still add up within int32
# The law of a restart: r^L just above e^-7 keeps restarts rare (0.1 %) and their 32-bit probability exact to 1e-7.
_RESTART_EXPONENT = 7.0
#: Most entries of the fine table, and fewest of the 2^32 words in an entry: errors of 1.5e-5 each, thrice in the proof.
_LONGEST_BLOCK = 64_000
_FEWEST_COUNTS = 67_000
#: Below it restarts would come before selections.
_SMALLEST_RATE = 1e-9


@dataclass(frozen=True)
class Poisson:
    """Each record takes part independently with probability ``batch_size / num_records``.

    Args:
        batch_size: the EXPECTED batch size, a public constant; the gradient is normalised by it.

    Example:
        >>> from dpmcmc import Poisson
        >>> sampling = Poisson(batch_size=100)
        >>> sampling.rate(1000)
        0.1
        >>> sampling.charged_rate(1000) >= sampling.rate(1000)
        True
    """

    batch_size: Annotated[float, Gt(0)]

    scheme = "poisson"

    def validate(self, num_records: int) -> None:
        """Raise ValueError unless 0 < batch_size <= num_records < 2^30."""
        _check_batch(self.batch_size, num_records)

    def rate(self, num_records: int) -> float:
        """Nominal inclusion probability."""
        return self.batch_size / num_records

    def charged_rate(self, num_records: int) -> float:
        """Proved upper bound of the generator's conditional inclusion probability."""
        rate = self.rate(num_records)
        return 1.0 if rate == 1 else gap_tables(rate).charged_rate

    def mechanism(self, num_records: int) -> str:
        """Name of the event a query becomes."""
        return "gaussian" if self.rate(num_records) == 1 else "poisson_gaussian"

    def capacity(self, num_records: int, overflow: float) -> tuple[int, float]:
        """(slots, β): the fewest slots whose truncation probability in one step is β <= overflow."""
        return _capacity(self.rate(num_records), num_records, overflow)

    def truncation(self, num_records: int, slots: int) -> float:
        """Return the charge of :meth:`capacity` for a step with so many slots, up to its allowance for rounding."""
        return _truncation(self.rate(num_records), num_records, slots)

    def shard_slots(self, num_records: int, shards: int, slots: int) -> int:
        """Slots of each of so many shards, which together truncate no more often than ``slots`` of all records do."""
        overflow = self.truncation(num_records, slots) / shards
        return _capacity(self.rate(num_records), shard_rows(num_records, shards), overflow)[0]


@dataclass(frozen=True)
class FixedSize:
    """A uniform subset of exactly ``batch_size`` records, drawn afresh each step.

    Args:
        batch_size: the batch size, a public constant.

    Example:
        >>> from dpmcmc import FixedSize
        >>> FixedSize(batch_size=100).rate(1000)
        0.1
    """

    batch_size: Annotated[int, Gt(0)]

    scheme = "fixed_size"

    def validate(self, num_records: int) -> None:
        """Raise ValueError unless batch_size is a whole number in 1..num_records."""
        _check_batch(self.batch_size, num_records)
        if self.batch_size != int(self.batch_size):
            raise InputError(
                f"batch_size must be a whole number for fixed_size sampling, got {self.batch_size}",
                "batch_size",
            )

    def rate(self, num_records: int) -> float:
        """Inclusion probability b/N."""
        return self.batch_size / num_records

    charged_rate = rate

    def mechanism(self, num_records: int) -> str:
        """Name of the event a query becomes."""
        return "gaussian" if self.batch_size == num_records else "fixed_size_gaussian"

    def capacity(self, num_records: int, overflow: float) -> tuple[int, float]:
        """(slots, 0): a batch of known size cannot overflow."""
        size = int(self.batch_size)
        return (num_records if 2 * size > num_records else size), 0.0

    def shard_slots(self, num_records: int, shards: int, slots: int) -> int:
        """Slots of each shard: as many as without shards, because all of a batch may lie in one."""
        return slots


@dataclass(frozen=True)
class Full:
    """Every record in every step (rate 1).

    Example:
        >>> from dpmcmc import Full
        >>> Full().rate(1000)
        1.0
    """

    scheme = "full"

    def validate(self, num_records: int) -> None:
        """Accept any number of records."""

    def rate(self, num_records: int) -> float:
        """Inclusion probability, 1."""
        return 1.0

    charged_rate = rate

    def mechanism(self, num_records: int) -> str:
        """Name of the event a query becomes, ``gaussian``."""
        return "gaussian"

    def capacity(self, num_records: int, overflow: float) -> tuple[int, float]:
        """(slots, 0): a batch of all records cannot overflow."""
        return num_records, 0.0

    def shard_slots(self, num_records: int, shards: int, slots: int) -> int:
        """Slots of each shard: all of its rows."""
        return shard_rows(num_records, shards)


Sampling = Poisson | FixedSize | Full


def shard_rows(num_records: int, shards: int) -> int:
    """Rows of each shard; the last ones are padded."""
    return -(-num_records // shards)


def expected_batch(sampling: Sampling, num_records: int) -> float:
    """The public constant b that normalises the gradient."""
    return float(num_records) if isinstance(sampling, Full) else float(sampling.batch_size)


def _check_batch(batch_size: float, num_records: int) -> None:
    if num_records > _MOST_RECORDS:
        raise InputError(
            f"num_records {num_records} is beyond {_MOST_RECORDS}, the most that int32 positions hold",
            "num_records",
        )
    if not 0 < batch_size <= num_records:
        raise InputError(
            f"batch_size must lie in (0, num_records]: got batch_size {batch_size} with num_records {num_records}; use "
            f"at most {num_records}, or sampling full",
            "batch_size",
        )


def _smallest(meets: Callable[[int], bool], largest: int) -> int:
    """Smallest k in 0..largest with meets(k); ``largest`` is taken to meet it."""
    return bisect.bisect_left(range(largest), True, key=meets)


@dataclass(frozen=True, eq=False)
class GapTables:
    """Integer thresholds of the gaps between selected records, and the rate that they are charged as."""

    fine: np.ndarray  # thresholds of b, uint32, J − 1 of them
    coarse: np.ndarray  # thresholds of a, then of the restart, uint32, A of them
    block: int  # J
    reach: int  # L = J·A
    restart_probability: float
    charged_rate: float

    def most_restarts(self, num_records: int) -> int:
        """⌈N/L⌉, the most restarts before the end of the data."""
        return -(-num_records // self.reach)


def _capacity(rate: float, num_records: int, overflow: float) -> tuple[int, float]:
    """(slots, β) of :meth:`Poisson.capacity` at this rate."""
    if rate == 1:
        return num_records, 0.0
    tables = gap_tables(rate)
    most = num_records + tables.most_restarts(num_records) + 1
    if overflow <= 0:
        return most, 0.0
    charged = tables.charged_rate
    room = _smallest(lambda k: bool(_exceeds(k, num_records, charged) <= overflow / 2), num_records)
    spare = _smallest(
        lambda k: bool(_exceeds(k, room + k + 1, tables.restart_probability) <= overflow / 2),
        tables.most_restarts(num_records),
    )
    slots = room + spare + 1
    # In few sizes, so that budgets near each other share a compiled program; room beyond what is charged for. Multiples
    # of 8, within which every row of a batch is computed alike (``exact_sums.py``).
    grain = 1 << max(slots.bit_length() - 5, 3)
    slots += -slots % grain
    if slots >= most:
        return most, 0.0
    # SciPy's tail sums are good to about 1e-10 relative; stay on the private side.
    return slots, _truncation(rate, num_records, slots) * (1 + 1e-6)


def _truncation(rate: float, num_records: int, slots: int) -> float:
    """Bound on the probability that so many slots truncate a batch, the least over all ways to share them."""
    if rate == 1:
        return 0.0
    tables = gap_tables(rate)
    if slots >= num_records + tables.most_restarts(num_records) + 1:
        return 0.0

    def parts(room: Any) -> tuple[Any, Any]:
        spare = slots - room - 1
        restarts = _exceeds(spare, slots, tables.restart_probability)
        selections = _exceeds(room, num_records, tables.charged_rate)
        # More restarts than ``most_restarts`` do not fit before the end of the data.
        return selections, np.where(spare < tables.most_restarts(num_records), restarts, 0.0)

    # The one falls and the other rises with the room for selections: least, up to its neighbours, where they meet.
    meet = _smallest(lambda room: bool(np.less_equal(*parts(room))), max(slots - 1, 0))
    rooms = np.arange(max(meet - 64, 0), min(meet + 64, max(slots - 1, 0)) + 1)
    return float(min(1.0, np.min(sum(parts(rooms)))))


def _exceeds(limit: int | np.ndarray, trials: int, probability: float) -> np.ndarray:
    """P(Binomial(trials, probability) > limit); ``scipy.stats`` gives the same bits and takes a second to import."""
    inside = np.clip(limit, 0, trials - 1)
    tail = betainc(inside + 1.0, trials - inside, probability)
    return np.where(limit < 0, 1.0, np.where(limit < trials, tail, 0.0))


@functools.lru_cache(maxsize=64)
def gap_tables(rate: float) -> GapTables:
    """Tables of this rate, for any number of records.

    Raises:
        InputError: a rate below ``_SMALLEST_RATE``.
    """
    if rate < _SMALLEST_RATE:
        raise InputError(
            f"batch_size: rate {rate:g} is below {_SMALLEST_RATE:g}, the least that 32-bit gaps are computed for; use "
            "a larger batch",
            "batch_size",
        )
    log_keep = math.log1p(-rate)
    enough = _FEWEST_COUNTS * math.exp(_RESTART_EXPONENT) / WORD / rate
    block = math.ceil(min(max(math.sqrt(_RESTART_EXPONENT / rate), enough), _LONGEST_BLOCK))
    # Restarts come sooner where the last entry of the coarse table would have too few words.
    exponent = min(_RESTART_EXPONENT, math.log(block * rate * WORD / _FEWEST_COUNTS))
    # No longer than this: at rates near 1 the restart would be too rare for 32 bits to tell its probability.
    longest = max(1, math.floor(-exponent / log_keep))
    block = min(block, longest)
    return tables_of(rate, block, max(1, longest // block))


def tables_of(rate: float, block: int, coarse_count: int, word: int = WORD) -> GapTables:
    """Integer thresholds, and the charged rate they prove, in 60-digit arithmetic.

    Args:
        rate: q.
        block: J.
        coarse_count: A.
        word: one more than the largest random word; 2^32 in every run.
    """
    with decimal.localcontext() as context:
        context.prec = 60
        one = decimal.Decimal(1)
        q = decimal.Decimal(rate)
        r = one - q

        def powers(base: decimal.Decimal, most: int) -> list[decimal.Decimal]:
            """Powers 0 .. most, each a rounded product of the one before: within most·10^-59 relative."""
            return list(itertools.accumulate([base] * most, mul, initial=one))

        fine_power = powers(r, block)
        coarse_power = powers(fine_power[block], coarse_count)
        within = one - fine_power[block]
        fine = [round((one - power) / within * word) for power in fine_power]
        coarse = [round((one - power) * word) for power in coarse_power]
        coarse[-1] = min(coarse[-1], word - 1)
        restart = word - coarse[-1]
        counts = (
            [b - a for a, b in itertools.pairwise(fine)],
            [b - a for a, b in itertools.pairwise(coarse)],
        )
        exact = (
            [q * power / within for power in fine_power[:-1]],
            [within * power for power in coarse_power[:-1]],
        )
        e_fine, e_coarse = (
            max(abs(count / (law * word) - one) for count, law in zip(of_table, laws, strict=True))
            for of_table, laws in zip(counts, exact, strict=True)
        )
        e_restart = abs(restart / (coarse_power[-1] * word) - one)
        charged = one
        if max(e_fine, e_coarse, e_restart) < 1:
            up = (one + e_coarse) * (one + e_fine)
            down = (one - e_coarse) * (one - e_fine)
            closed = up * up / (down * (one - e_restart))
            last = up * max(up, one + e_restart)
            opened = last / ((one - e_restart) * min(down, one - e_restart))
            factor = max(closed, opened)
            charged = q * factor / (r + q * factor)
        # Half a unit in the last place is more than all rounding above.
        charged_rate = min(1.0, math.nextafter(float(charged), 2.0))
    return GapTables(
        fine=np.array(fine[1:-1], np.uint32),
        coarse=np.array(coarse[1:], np.uint32),
        block=block,
        reach=block * coarse_count,
        restart_probability=restart / word,
        charged_rate=charged_rate,
    )
