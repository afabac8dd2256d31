"""The batches that are drawn follow the laws that are charged."""

import dataclasses
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpmcmc.privacy.accounting.sampling import FixedSize, Full, Poisson, expected_batch, gap_tables, tables_of
from dpmcmc.privacy.query.selection import selector

WORD = 1 << 32


def inclusion(sampling, n: int, draws: int, seed: int = 0) -> np.ndarray:
    """(draws, n) inclusion indicators."""
    slots, _ = sampling.capacity(n, 1e-12)
    select = selector(sampling, n, slots)

    def one(key):
        indices, mask = select(key)
        return jnp.zeros(n, jnp.int32).at[indices].add(mask.astype(jnp.int32))

    out = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=500))(jax.random.split(jax.random.key(seed), draws))
    return np.asarray(out)


def single_chi_square(hits: np.ndarray, p: float) -> float:
    """p-value of the counts of single inclusions (independent records)."""
    draws, n = hits.shape
    z = (hits.sum(0) - draws * p) / math.sqrt(draws * p * (1 - p))
    return float(stats.chi2.sf(np.sum(z**2), n))


def worst_pair(hits: np.ndarray, p_pair: float) -> float:
    """Largest |z| over pairwise joint inclusion counts."""
    draws, n = hits.shape
    joint = hits.T @ hits
    z = (joint - draws * p_pair) / math.sqrt(draws * p_pair * (1 - p_pair))
    return float(np.abs(z[np.triu_indices(n, 1)]).max())


def pair_limit(n: int) -> float:
    """|z| that the largest of n(n−1)/2 counts exceeds with probability about 1e-5."""
    return float(stats.norm.isf(1e-5 / (n * (n - 1))))


@pytest.mark.parametrize(
    ("n", "b"), [(40, 3.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((60, 25.5), (30, 28.0)))]
)
def test_poisson_batches_include_each_record_by_itself_at_the_charged_rate(n, b):
    hits = inclusion(Poisson(b), n, 40_000)
    assert hits.max() == 1, "a record was selected twice"
    q = b / n
    assert single_chi_square(hits, q) > 1e-4
    assert single_chi_square(hits, 1.02 * q) < 1e-4  # planted: a rate off by two percent
    assert worst_pair(hits, q * q) < pair_limit(n)
    sizes = hits.sum(1)
    draws = len(sizes)
    assert abs(sizes.mean() - b) < 4.5 * math.sqrt(b * (1 - q) / draws)
    # Var of a sample variance: (μ₄ − σ⁴)/draws.
    variance = b * (1 - q)
    fourth = float(stats.binom(n, q).stats("k")) * variance**2 + 3 * variance**2
    assert abs(sizes.var() - variance) < 4.5 * math.sqrt((fourth - variance**2) / draws)


def test_the_pair_test_sees_a_dependence():
    rng = np.random.default_rng(0)
    shared = rng.random((40_000, 1)) < 0.01  # one step in a hundred takes everybody
    hits = ((rng.random((40_000, 40)) < 3 / 40) | shared).astype(np.int64)
    assert worst_pair(hits, (3 / 40) ** 2) > pair_limit(40)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "b"), [(64, 32), (37, 30), (3, 2)])
def test_fixed_size_inclusion_counts_match_uniform_subsets(n, b):
    hits = inclusion(FixedSize(b), n, 20_000)
    assert hits.max() == 1
    assert (hits.sum(1) == b).all()
    p = b / n
    draws = len(hits)
    # Counts of a uniform b-subset have covariance p(1−p)·n/(n−1)·(I − 11ᵀ/n): chi-square with n − 1 degrees.
    z = (hits.sum(0) - draws * p) / math.sqrt(draws * p * (1 - p) * n / (n - 1))
    assert stats.chi2.sf(np.sum(z**2), n - 1) > 1e-4
    if n > 3:
        p_pair = b * (b - 1) / (n * (n - 1))
        assert worst_pair(hits, p_pair) < pair_limit(n)


def test_fixed_size_reaches_every_subset_equally():
    hits = inclusion(FixedSize(2), 5, 20_000)
    codes = hits @ (1 << np.arange(5))
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == math.comb(5, 2)
    assert stats.chisquare(counts).pvalue > 1e-4


def exact_gap_law(tables, longest: int, word: int = WORD) -> list[Fraction]:
    """P(gap = g) for g < longest, from the integer thresholds."""
    fine = [0, *(int(t) for t in tables.fine), word]
    coarse = [0, *(int(t) for t in tables.coarse)]
    restart = Fraction(word - coarse[-1], word)
    law = []
    for g in range(longest):
        k, rest = divmod(g, tables.reach)
        a, b = divmod(rest, tables.block)
        law.append(restart**k * Fraction(coarse[a + 1] - coarse[a], word) * Fraction(fine[b + 1] - fine[b], word))
    return law


def worst_inclusion(tables, n: int, word: int = WORD) -> Fraction:
    """Exhaustive and exact: the largest chance of a record, over every record and every selection of the others."""
    law = exact_gap_law(tables, n + 1, word)
    tail = [1 - sum(law[:g], Fraction(0)) for g in range(n + 1)]

    def probability(chosen: tuple[int, ...]) -> Fraction:
        out, start = Fraction(1), 0
        for i in chosen:
            out *= law[i - start]
            start = i + 1
        return out * tail[n - start]

    everything = {c: probability(c) for size in range(n + 1) for c in itertools.combinations(range(n), size)}
    assert sum(everything.values()) == 1
    worst = Fraction(0)
    for chosen, p in everything.items():
        for i in set(range(n)) - set(chosen):
            present = everything[tuple(sorted((*chosen, i)))]
            worst = max(worst, present / (present + p))
    return worst


@pytest.mark.parametrize(("rate", "n"), [(0.07, 6), (0.25, 8), (0.3, 9), (0.45, 7), (0.9, 6), (0.999, 5), (0.013, 7)])
def test_conditional_inclusion_never_exceeds_the_charged_rate(rate, n):
    tables = gap_tables(rate)
    assert rate * (1 - 1e-6) <= worst_inclusion(tables, n) <= Fraction(tables.charged_rate)


@pytest.mark.parametrize(
    ("rate", "block", "coarse", "word"),
    [(0.3, 2, 2, 64), (0.3, 1, 1, 50), (0.2, 3, 1, 97), (0.25, 1, 3, 61), (0.5, 2, 1, 33), (0.15, 2, 2, 1000)],
)
def test_small_tables_keep_the_charge_through_many_restarts(rate, block, coarse, word):
    """Tables of few words, whose errors are percents and whose reach is passed up to ten times."""
    tables = tables_of(rate, block, coarse, word)
    worst = worst_inclusion(tables, 10, word)
    assert rate < worst <= Fraction(tables.charged_rate) < 1
    # What is charged is of the size of what there is, and restarts do not add to it.
    assert tables.charged_rate / rate - 1 < 5 * (float(worst) / rate - 1) + 1e-3


def worst_odds(tables, rate: float, n: int) -> float:
    """Largest odds of a record over those that are nominal, among gaps of every kind in n records."""
    counts = [np.diff(np.r_[0, t.astype(np.int64), end]) for t, end in ((tables.fine, [WORD]), (tables.coarse, []))]
    fine, coarse = (c.astype(np.float64) / WORD for c in counts)
    rng = np.random.default_rng(0)
    gaps = rng.integers(0, np.minimum(n // 2, 4 * tables.reach), (2, 100_000))
    # Gaps whose entries in the tables are off by most.
    keep = 1 - rate
    off_fine = fine / (keep ** np.arange(fine.size) * rate / -np.expm1(tables.block * np.log1p(-rate)))
    off_coarse = coarse / (keep ** (tables.block * np.arange(coarse.size)) * -np.expm1(tables.block * np.log1p(-rate)))
    extreme = [int(a) * tables.block + int(b) for a in (off_coarse.argmin(), off_coarse.argmax())
               for b in (off_fine.argmin(), off_fine.argmax())]  # fmt: skip
    extreme = np.array([e for e in extreme if e < n // 2] + [0])
    gaps = np.concatenate([gaps, np.stack(np.meshgrid(extreme, extreme)).reshape(2, -1)], axis=1)

    def parts(g):
        k, rest = np.divmod(g, tables.reach)
        return k, *np.divmod(rest, tables.block)

    def log_law(g):
        k, a, b = parts(g)
        return k * math.log(tables.restart_probability) + np.log(coarse[a]) + np.log(fine[b])

    before = np.r_[0, np.cumsum(counts[0])][:-1] / WORD
    above = 1 - np.r_[0, np.cumsum(counts[1])][:-1] / WORD

    def log_tail(g):
        k, a, b = parts(g)
        return k * math.log(tables.restart_probability) + np.log(above[a] - coarse[a] * before[b])

    first, second = gaps
    nominal = math.log(rate) - math.log1p(-rate)
    closed = log_law(first) + log_law(second) - log_law(first + second + 1)
    last = log_law(first) + log_tail(second) - log_tail(first + second + 1)
    return float(np.exp(max(closed.max(), last.max()) - nominal))


@pytest.mark.parametrize("rate", [1e-8, 3e-5, 0.0042, 0.1, 0.4])
def test_odds_of_real_tables_stay_within_the_charge_and_a_bent_table_is_caught(rate):
    tables = gap_tables(rate)
    charged = tables.charged_rate / (1 - tables.charged_rate) * (1 - rate) / rate
    n = (1 << 30) - 2
    assert 1 < worst_odds(tables, rate, n) <= charged * (1 + 1e-13)
    # Planted: one entry of the coarse table has a thousandth more than its share, which the next one lacks.
    bent = tables.coarse.copy()
    bent[0] += np.uint32(bent[0] / 1000)
    assert worst_odds(dataclasses.replace(tables, coarse=bent), rate, n) > charged


@pytest.mark.parametrize("n", [10**4, 10**7, 10**10])
def test_the_charge_forgets_how_many_records_there_are(n):
    for rate in (1e-9, 3e-8, 2e-6, 4e-5, 1e-3, 0.1, 0.5, 0.999, 1 - 1e-9):
        sampling = Poisson(rate * n)
        assert sampling.rate(n) < sampling.charged_rate(n) <= sampling.rate(n) * (1 + 1e-4)


@pytest.mark.parametrize("rate", [1e-6, 1e-4, 0.0042, 0.0157, 0.1, 0.3333, 0.5, 0.9, 0.99])
def test_gap_tables_hold_all_probability_and_charge_little(rate):
    tables = gap_tables(rate)
    thresholds = [0, *(int(t) for t in tables.fine), WORD]
    assert all(x < y for x, y in itertools.pairwise(thresholds))
    thresholds = [0, *(int(t) for t in tables.coarse), WORD]
    assert all(x < y for x, y in itertools.pairwise(thresholds))
    assert len(tables.fine) == tables.block - 1
    assert len(tables.coarse) * tables.block == tables.reach
    assert rate <= tables.charged_rate <= 1.001 * rate


def test_a_generator_with_float_like_gaps_would_be_charged_for():
    """Planted fault: thresholds off by one part in a thousand must raise the exact inclusion above the charge."""
    tables = gap_tables(0.25)
    law = exact_gap_law(tables, 9)
    bent = [law[0] * Fraction(999, 1000), law[1] + law[0] / 1000, *law[2:]]
    odds = bent[1] * bent[1] / bent[3]
    assert odds / (1 + odds) > tables.charged_rate


def test_a_rate_next_to_one_works_and_charges_at_most_one():
    b = 999_999.99
    sampling = Poisson(b)
    assert b / 1e6 <= sampling.charged_rate(10**6) <= 1
    _, mask = selector(sampling, 10**6, 100)(jax.random.key(0))
    assert mask.all()


def test_rate_one_selects_everybody_without_drawing():
    for sampling in (Poisson(50), FixedSize(50), Full()):
        assert selector(sampling, 50, 50) is None
        assert sampling.charged_rate(50) == 1
        assert sampling.mechanism(50) == "gaussian"
        assert sampling.capacity(50, 0.0) == (50, 0.0)
        assert expected_batch(sampling, 50) == 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "b"),
    [
        ((1 << 30) - 2, 512.0),
        (1 << 28, 4096.0),
        (10**6, 2.0),
        (10**6, 999.0),
    ],
)
def test_positions_saturate_instead_of_wrapping(n, b):
    sampling = Poisson(b)
    slots, _ = sampling.capacity(n, 0.0 if b < 3 else 1e-9)
    slots = min(slots, 4096)
    indices, mask = (np.asarray(v) for v in jax.jit(selector(sampling, n, slots))(jax.random.key(1)))
    chosen = indices[mask]
    assert (np.diff(chosen) > 0).all(), "selected positions must increase"
    assert chosen.size == 0 or (chosen[0] >= 0 and chosen[-1] < n)
    assert (indices >= 0).all()
    assert abs(chosen.size - b) < 8 * math.sqrt(b) + 8


@pytest.mark.slow
def test_truncation_is_as_rare_as_charged():
    """With the charged slots the end of the data is reached; the check sees it fail when slots are halved."""
    n, b, draws = 2000, 30.0, 20_000
    sampling = Poisson(b)
    slots, beta = sampling.capacity(n, 1e-3)
    assert 0 < beta <= 1e-3

    def truncated(slots: int) -> float:
        select = selector(sampling, n, slots)
        # A batch is complete when some slot points past the data (its mask is false after the last selection).
        tables = gap_tables(b / n)

        def one(key):
            words = jax.random.bits(key, (2, slots), jnp.uint32)
            coarse = jnp.searchsorted(jnp.asarray(tables.coarse), words[0], side="right")
            fine = jnp.searchsorted(jnp.asarray(tables.fine), words[1], side="right")
            advance = jnp.where(coarse >= len(tables.coarse), tables.reach, coarse * tables.block + fine + 1)
            _, mask = select(key)
            return (jnp.sum(advance) <= n), mask.sum()

        flags, _ = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(2), draws))
        return float(np.mean(flags))

    assert truncated(slots) <= beta + 5 * math.sqrt(beta / draws)
    assert truncated(slots // 2) > 0.5


@pytest.mark.parametrize(("n", "b", "allowed"), [(60_000, 256.0, 1e-12), (1000, 300.0, 1e-15), (100, 5.0, 1e-30)])
def test_overflow_charge_covers_the_exact_binomial_tail(n, b, allowed):
    sampling = Poisson(b)
    slots, beta = sampling.capacity(n, allowed)
    assert 0 <= beta <= allowed * (1 + 1e-5)
    tables = gap_tables(b / n)
    if beta == 0:
        assert slots == n + tables.most_restarts(n) + 1
        return

    # For any split of the slots, truncation needs more selections or more restarts than their share; the data
    # end before the (most_restarts + 1)-th restart.
    def union(room: int) -> float:
        spare = slots - room - 1
        restarts = stats.binom.sf(spare, slots, tables.restart_probability) if spare < tables.most_restarts(n) else 0.0
        return stats.binom.sf(room, n, tables.charged_rate) + restarts

    exact = min(union(room) for room in range(int(b), slots))
    assert beta >= exact


def test_room_for_everybody_cannot_overflow():
    for allowed in (0.0, 1e-280):
        slots, beta = Poisson(20.0).capacity(100, allowed)
        assert beta <= allowed
        assert slots >= 100
    hits = inclusion(Poisson(95.0), 100, 2000)
    assert hits.sum(1).max() <= 100


@pytest.mark.parametrize(("n", "b"), [(40, 3.0), (1000, 100.0), (1000, 970.0), (32_561, 512.0), (10**6, 1e4)])
def test_what_slots_must_be_charged_is_at_most_what_they_are_and_not_far_below(n, b):
    for allowed in (1e-30, 1e-14, 1e-6, 1e-2):
        slots, beta = Poisson(b).capacity(n, allowed)
        least = Poisson(b).truncation(n, slots)
        assert 0.3 * beta <= least <= beta
        assert least >= stats.binom.sf(slots, n, Poisson(b).rate(n))
        assert Poisson(b).truncation(n, slots - 1) >= least
    assert Poisson(b).truncation(n, int(b)) > 0.1


def test_slots_depend_on_the_batch_and_not_on_the_data():
    slots = [Poisson(200.0).capacity(n, 1e-14)[0] for n in (30_000, 10**6, 10**8)]
    assert max(slots) - min(slots) <= 0.02 * slots[0]
    assert FixedSize(200).capacity(10**6, 0.0) == (200, 0.0)


@pytest.mark.parametrize(
    ("sampling", "match"),
    [
        (Poisson(0.0), "batch_size must lie"),
        (Poisson(101.0), "batch_size must lie"),
        (Poisson(float("nan")), "batch_size must lie"),
        (FixedSize(0), "batch_size must lie"),
        (FixedSize(2.5), "whole number"),
    ],
)
def test_impossible_batches_are_refused(sampling, match):
    with pytest.raises(ValueError, match=match):
        sampling.validate(100)
    with pytest.raises(ValueError, match="int32"):
        Poisson(5.0).validate(1 << 30)
