"""Noise is noise: integers of private runs, and normals of others, against the Gaussian that they stand for."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpmcmc.privacy.accounting import noise_tables
from dpmcmc.privacy.query import integer_noise, query
from dpmcmc.privacy.query.chacha import CHACHA20
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.privacy.query.randomness import normal, streams_of

#: Bits or sensitivities of what users run.
pytestmark = pytest.mark.optimised

DRAWS = 1_000_000
#: Of the noise on the sum, in grid units: z = 1.7 on the finest grid.
STD = 1.7 * 2.0**21
LEVELS = noise_tables.levels_for(STD, STD)
#: Normals of a run without privacy, and integers of a private one.
KINDS = {"normal": 0, "integer": LEVELS}


def impl(levels):
    return CHACHA20 if levels else None


def integers(key, size: int, levels: int):
    """(high, low) of the noise that the query adds to a sum of zeros."""
    zero = jnp.zeros(size, jnp.int32)
    return FixedPoint(zero, zero) + query.drawn_noise(key, zero, jnp.float32(STD), 1.0, levels)


@functools.partial(jax.jit, static_argnums=(1, 2))
def in_stds(key, size: int, levels: int):
    if not levels:
        return normal(key, (size,))
    total = integers(key, size, levels)
    return (total.high.astype(jnp.float32) * 65536 + total.low.astype(jnp.float32)) / jnp.float32(STD)


@pytest.fixture(scope="module", params=KINDS, name="draws")
def _draws(request) -> np.ndarray:
    levels = KINDS[request.param]
    return np.asarray(in_stds(jax.random.key(20, impl=impl(levels)), DRAWS, levels), np.float64)


def z_of_variance(x) -> float:
    return (np.mean(x**2) - 1) / math.sqrt(2 / len(x))


def test_noise_passes_kolmogorov_smirnov(draws):
    assert stats.kstest(draws, "norm", method="asymp").pvalue > 1e-3
    assert abs(z_of_variance(draws)) < 4
    beyond = DRAWS * 2 * stats.norm.sf(4)
    assert abs(np.sum(np.abs(draws) > 4) - beyond) < 5 * math.sqrt(beyond)


def test_a_scale_off_by_one_percent_is_rejected(draws):
    for scale in (0.99, 1.01):
        # sup |Φ(x) − Φ(x/1.01)| = 0.0024, and the critical value at 1e-2 is 1.6/√10⁶.
        assert stats.kstest(scale * draws, "norm", method="asymp").pvalue < 1e-2
        assert abs(z_of_variance(scale * draws)) > 8


def test_moments_match_within_four_standard_errors(draws):
    for power, mean, variance in ((1, 0, 1), (3, 0, 15), (4, 3, 96), (6, 15, 10395 - 225)):
        assert abs(np.mean(draws**power) - mean) < 4 * math.sqrt(variance / DRAWS)


def correlation(a, b) -> float:
    """In standard errors."""
    return float(np.mean(a * b) * math.sqrt(len(a)))


def test_coordinates_are_uncorrelated(draws):
    # Box–Muller pairs share a radius, and may lie half the draws apart.
    for lag in (1, 2, DRAWS // 2):
        assert abs(correlation(draws[:-lag], draws[lag:])) < 4
        squares = (draws**2 - 1) / math.sqrt(2)
        assert abs(correlation(squares[:-lag], squares[lag:])) < 4
    shared = draws + 0.01 * np.roll(draws, 1)  # planted: a hundredth of the neighbour
    assert abs(correlation(shared[:-1], shared[1:])) > 4


@pytest.mark.parametrize("kind", KINDS)
def test_chains_steps_and_purposes_are_uncorrelated(kind):
    levels = KINDS[kind]
    streams, _ = streams_of(5, bool(levels))
    at = jax.jit(lambda chain, step: streams.at(chain, step))
    keys = {
        (purpose, chain, step): getattr(at(chain, step), purpose)
        for purpose in ("batch", "noise", "dynamics")
        for chain, step in ((0, 0), (1, 0), (0, 1))
    }
    found = {name: np.asarray(in_stds(key, 50_000, levels), np.float64) for name, key in keys.items()}
    names = sorted(found)
    for i, one in enumerate(names):
        for other in names[:i]:
            # 36 pairs: 4.5 standard errors each is 1 in 4000 in all.
            assert abs(correlation(found[one], found[other])) < 4.5, (one, other)
    assert correlation(found[names[0]], found[names[0]]) > 100


def test_the_low_bits_are_uniform():
    total = jax.jit(integers, static_argnums=(1, 2))(jax.random.key(8, impl=CHACHA20), DRAWS, LEVELS)
    low = np.asarray(total.low)
    for bits in (1, 4, 10):
        counts = np.bincount(low & ((1 << bits) - 1), minlength=1 << bits)
        assert stats.chisquare(counts).pvalue > 1e-4
        # Planted: every other draw even, as a float32 beyond 2^24 would be.
        even = np.where(np.arange(DRAWS) % 2 == 0, low & ~1, low)
        assert stats.chisquare(np.bincount(even & ((1 << bits) - 1), minlength=1 << bits)).pvalue < 1e-6


def test_float32_noise_fails_the_low_bits():
    """Planted fault: a float32 normal, whose lattice is coarser than the grid."""
    coarse = np.asarray(normal(jax.random.key(1), (DRAWS,)) * jnp.float32(2.0**28)).astype(np.int64)
    assert stats.chisquare(np.bincount(coarse & 15, minlength=16)).pvalue < 1e-6


def poisson_tail(seen: int, expected: float) -> float:
    """Two-sided p-value of a count."""
    return 2 * min(stats.poisson.cdf(seen, expected), stats.poisson.sf(seen - 1, expected))


THRESHOLDS = (5.0, 5.42, 6.0)


def tail_counts(levels: int, chunk: int, chunks: int, scale: float = 1.0, off: float = 1.01) -> np.ndarray:
    key = jax.random.key(77, impl=impl(levels))

    @jax.jit
    def count(key):
        size = jnp.abs(in_stds(key, chunk, levels))
        return jnp.array([jnp.sum(size > t / scale) for t in (*THRESHOLDS, THRESHOLDS[0] / off)])

    @jax.jit
    def run(key):
        def body(total, i):
            return total + count(jax.random.fold_in(key, i)), None

        return jax.lax.scan(body, jnp.zeros(len(THRESHOLDS) + 1, jnp.int32), jnp.arange(chunks))[0]

    return np.asarray(run(key))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "chunk", "chunks"),
    # A billion draws take half a minute, and in integers minutes.
    [
        ("normal", 1 << 15, 9_156),
        ("integer", 1 << 14, 2_048),
        pytest.param("normal", 1 << 15, 30_518, marks=pytest.mark.exhaustive),
        pytest.param("integer", 1 << 14, 6_104, marks=pytest.mark.exhaustive),
    ],
)
def test_the_tails_have_their_mass(kind, chunk, chunks):
    """Beyond 5.42σ, where a generator of 23 bits has nothing, 18 of the fewest normal draws are expected."""
    draws = chunk * chunks
    percent = 1 if draws >= 1e9 else 2
    *counts, off = tail_counts(KINDS[kind], chunk, chunks, off=1 + percent / 100)
    for seen, threshold in zip(counts, THRESHOLDS, strict=True):
        assert poisson_tail(seen, draws * 2 * stats.norm.sf(threshold)) > 1e-4
    if draws >= 2e8:
        # A scale off by one percent has 28 % more beyond 5σ, by two 63 % more; 172 of the fewest draws are expected.
        assert poisson_tail(off, draws * 2 * stats.norm.sf(THRESHOLDS[0])) < 1e-4


_DIGITS = 400  # of a binary fixed-point number


def exact_gaussian(variance: int, largest: int) -> list[int]:
    """exp(−k²/2·variance), k = 0..largest, times 2^400, by recursion from a Taylor series: no library's exp."""
    one, ratio, term, n = 1 << _DIGITS, 0, 1 << _DIGITS, 0
    while term:
        ratio += term if n % 2 == 0 else -term
        n += 1
        term //= n * 2 * variance
    found, factor, step = [one], ratio, (ratio * ratio) >> _DIGITS
    for _ in range(largest):
        found.append((found[-1] * factor) >> _DIGITS)
        factor = (factor * step) >> _DIGITS
    return found


@pytest.fixture(scope="module", name="base")
def _base() -> list[int]:
    return exact_gaussian(noise_tables.BASE**2, 24 * noise_tables.BASE)


def whole_threshold(first: int, *others: int) -> int:
    """The 115 bits of a threshold whose words are these, the first with an alias in its 13 low bits."""
    return functools.reduce(lambda upper, word: upper << 32 | word, others, first >> 13)


def law_of(words: np.ndarray) -> list[int]:
    """Probability of each column over 2^128, from the table as it is stored."""
    bits, columns = 128 - 13, words.shape[1]
    law = [0] * columns
    for i, (first, *others) in enumerate(words.T.tolist()):
        kept = whole_threshold(first, *others)
        law[i] += kept
        law[first & 8191] += (1 << bits) - kept
    return law


def test_the_table_is_the_discrete_gaussian(base):
    table = noise_tables.table()
    law = law_of(table.words)
    assert sum(law) == 1 << 128
    assert tuple(law) == table.weights
    whole = base[0] + 2 * sum(base[1:])
    # All over 2^128·whole, so that every number is an integer.
    exact = [base[abs(k)] << 128 for k in range(-4096, 4096)]
    off = sum(abs(p * whole - q) for p, q in zip(law, exact, strict=True)) + (whole << 128) - sum(exact)
    distance = off / (2 * (whole << 128))
    assert distance <= table.deviation * (1 + 1e-6)
    assert table.deviation < 2.0**-116
    assert distance > 0.5 * table.deviation


def test_a_table_that_is_off_is_found(base):
    """Planted faults: 64-bit probabilities, and an alias that points elsewhere."""
    table = noise_tables.table()
    words = table.words.copy()
    words[2:] = 0
    assert tuple(law_of(words)) != table.weights
    words = table.words.copy()
    words[0, 100] ^= 1
    assert tuple(law_of(words)) != table.weights


def at_thresholds(monkeypatch, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """(draws whose bits lie so far from their column's threshold, what they have to be)."""
    words = noise_tables.table().words
    rng = np.random.default_rng(0)
    columns = np.concatenate([rng.integers(0, 8192, 200), [0, 8191, 4096]]).astype(np.uint64)
    thresholds = [whole_threshold(*(int(word) for word in words[:, c])) for c in columns]
    levels = [min(max(t + offset, 0), (1 << 115) - 1) for t in thresholds]
    first = [(level >> 96) << 13 | int(c) for level, c in zip(levels, columns, strict=True)]
    more = [level >> shift & 0xFFFFFFFF for shift in (64, 32, 0) for level in levels]
    with monkeypatch.context() as patch:
        patch.setattr(integer_noise.jax.random, "bits", lambda *_: jnp.asarray(np.array(first, np.uint32)))
        patch.setattr(integer_noise.chacha, "more_words", lambda *_: jnp.asarray(np.array(more, np.uint32)))
        found = np.asarray(integer_noise.draw(jax.random.key(0), (len(columns),)))
    kept = np.array([level < t for level, t in zip(levels, thresholds, strict=True)])
    return found, np.where(kept, columns, words[0][columns] & 8191).astype(int) - 4096


def test_a_draw_reads_the_table_at_its_thresholds(monkeypatch):
    for offset in (-1, 0, -(1 << 32), 1 << 32, -(1 << 64), 1 << 64, -(1 << 96), 1 << 96):
        np.testing.assert_array_equal(*at_thresholds(monkeypatch, offset))
    # Planted: a draw that ties with its threshold's upper bits is settled by these alone.
    monkeypatch.setattr(integer_noise.jax.lax, "while_loop", lambda asked, mended, state: state)
    found, right = at_thresholds(monkeypatch, -1)
    assert np.mean(found == right) < 0.5


def test_draws_of_several_keys_are_those_of_each(monkeypatch):
    """Also where ties make them draw further words: every other column's upper bits are its threshold's."""
    words = noise_tables.table().words[0]
    columns = np.arange(0, 8192, 331)
    tied = ((words[columns] >> 13) << 13 | columns).astype(np.uint32)
    tied[::2] ^= 1 << 31
    keys = jax.random.split(jax.random.key(3, impl=CHACHA20), (2, 3))
    monkeypatch.setattr(integer_noise, "_FEWEST", 4)  # the six keys are settled in two rounds
    for patched in (False, True):
        if patched:
            monkeypatch.setattr(integer_noise.jax.random, "bits", lambda *_: jnp.asarray(tied))
        draw = lambda key: integer_noise.draw(key, (len(tied),))  # noqa: E731
        together = np.asarray(jax.jit(jax.vmap(jax.vmap(draw)))(keys))
        alone = np.array([[draw(keys[i, j]) for j in range(3)] for i in range(2)])
        np.testing.assert_array_equal(together, alone)
        assert len({row.tobytes() for row in alone.reshape(6, -1)}) > 3


def test_a_convolution_of_two_tables_is_a_discrete_gaussian(base):
    law = noise_tables.table().weights
    c = math.floor(noise_tables.RATIO)
    variance = noise_tables.BASE**2 * (1 + c * c)
    std = math.isqrt(variance)
    # Wherever the table's own rounding leaves 70 bits.
    steps = [*range(40), *range(std - 5, std + 5), 2 * std, 3 * std + 1]
    wide = exact_gaussian(variance, 3 * std + 2)

    def probability(n: int, factor: int) -> int:
        inside = (k for k in range(-4096, 4096) if -4096 <= n - factor * k < 4096)
        return sum(law[k + 4096] * law[n - factor * k + 4096] for k in inside)

    reference = probability(0, c), wide[0]

    def error(factor: int) -> float:
        worst = 0.0
        for n in steps:
            here, there = probability(n, factor) * reference[1], reference[0] * wide[n]
            worst = max(worst, abs(here - there) / there)
        return worst

    assert error(c) < 2.0**-70
    # Planted: a factor beyond what the first draw smooths leaves a comb.
    assert error(8 * c) > 1e-3


def worst_of(stds: np.ndarray, found: np.ndarray) -> tuple[float, float, float]:
    """Largest shortfall of S² − σ₀² from σ²; 4c_j²/(s²(1 − 4/σ₀²)); relative excess of S: in exact integers."""
    square, most = noise_tables.BASE**2, 0.0
    before = [1] * len(stds)
    for row in found.tolist():
        # c_j² <= s²(1/4 − 1/σ₀²), s² in units of σ₀².
        most = max(most, max(4 * c * c / (s * (square - 4)) for c, s in zip(row, before, strict=True)))
        before = [s + c * c for c, s in zip(row, before, strict=True)]
    exact = [float(std).as_integer_ratio() for std in stds]
    short = max(
        1 - (s - 1) * square * below**2 / above**2 for s, (above, below) in zip(before, exact, strict=True) if above
    )
    excess = max(math.sqrt(s * square) / float(std) - 1 for s, std in zip(before, stds, strict=True) if std)
    return short, most, excess


@pytest.mark.parametrize("levels", noise_tables.LEVELS)
def test_coefficients_reach_the_asked_std_and_keep_the_smoothing(levels):
    rng = np.random.default_rng(levels)
    largest = noise_tables.reach(levels)
    stds = np.exp(rng.uniform(math.log(2.0**16), math.log(largest), 5000)).astype(np.float32)
    stds = np.append(stds, np.float32(largest))
    # Compiled, products and sums may round once instead of twice: both must hold.
    for choose in (jax.jit(integer_noise.coefficients, static_argnums=1), integer_noise.coefficients):
        found = np.asarray(choose(jnp.asarray(stds), levels))
        short, most, excess = worst_of(stds, found)
        assert short <= 0
        assert most <= 1
        assert excess <= max(noise_tables.excess(float(std), levels) for std in (stds.min(), largest))
    for std, column in zip(stds[:300], found.T, strict=False):
        assert worst_of(np.array([std]), column[:, None])[2] <= noise_tables.excess(float(std), levels)
    # Planted faults: the last coefficient rounded down, the top level missing, a top too large for what is below it.
    lower = found.copy()
    lower[0] -= 1
    assert worst_of(stds, lower)[0] > 0
    missing = found.copy()
    missing[-1] = 0
    assert worst_of(stds, missing)[0] > 0.1
    bare = found.copy()
    bare[:-1] = 0
    assert worst_of(stds, bare)[1] > 1


def test_limbs_hold_what_the_coefficients_ask_for(monkeypatch):
    rng = np.random.default_rng(3)
    for levels in noise_tables.LEVELS:
        factors = rng.integers(1 << 24, 1 << 25, levels - 1)
        monkeypatch.setattr(
            integer_noise, "coefficients", lambda std, levels, factors=factors: jnp.asarray(factors, jnp.int32)
        )
        key = jax.random.key(levels)
        high, low = jax.jit(lambda key, levels=levels: integer_noise.noise(key, 1000, 1.0, levels))(key)
        each = np.asarray(jax.jit(integer_noise.draw, static_argnums=1)(key, (levels, 1000)), np.int64)
        exact = each[0] + factors @ each[1:]
        np.testing.assert_array_equal(np.asarray(high, np.int64) * 65536 + np.asarray(low), exact)
        assert np.abs(np.asarray(low)).max() < 1 << 28


def test_stds_that_integers_cannot_have_are_refused():
    with pytest.raises(ValueError, match="too small for integer noise"):
        noise_tables.levels_for(2.0**10, 2.0**20)
    with pytest.raises(ValueError, match="beyond"):
        noise_tables.levels_for(2.0**30, 2.0**38)
    assert [noise_tables.levels_for(2.0**b, 2.0**b) for b in (20, 24, 32)] == [3, 4, 5]


def test_the_smoothing_error_is_below_what_is_charged():
    # η of the module's docstring; the deviation charges L draws of the table, and L + 1 convolutions.
    eta = 2 * sum(math.exp(-2 * (math.pi * noise_tables.SMOOTH * j) ** 2) for j in (1, 2, 3))
    assert (1 + eta) / (1 - eta) - 1 < 2.0**-111 or eta < 2.0**-112
    for levels in noise_tables.LEVELS:
        total = levels * noise_tables.table().deviation + (levels + 1) * 2 * eta
        assert total <= noise_tables.deviation(levels) < 2.0**-80
    # And numerically, at a smoothing small enough for float64 to see: Σ ρ_s(k − μ) is within 1 ± η.
    s = 0.8
    k = np.arange(-60, 61)
    eta = 2 * math.exp(-2 * (math.pi * s) ** 2)
    sums = [
        np.sum(np.exp(-((k - mu) ** 2) / (2 * s * s))) / (s * math.sqrt(2 * math.pi)) for mu in np.linspace(0, 1, 9)
    ]
    assert max(abs(np.array(sums) - 1)) <= eta * (1 + 1e-6)
    assert max(abs(np.array(sums) - 1)) > 0.9 * eta


def test_integer_noise_is_a_rounding_of_real_noise():
    """Point 2 of the proof, by quadrature at a smoothing that float64 can see."""
    tau, std, x = 0.8, 3.0, 5
    grid = np.linspace(x - 12 * std, x + 12 * std, 40_001)
    k = np.arange(x - 25, x + 26)
    real = np.exp(-((grid - x) ** 2) / (2 * (std**2 - tau**2)))
    rounding = np.exp(-((k[:, None] - grid) ** 2) / (2 * tau**2))
    everywhere = np.sum(np.exp(-((np.arange(-80, 91)[:, None] - grid) ** 2) / (2 * tau**2)), axis=0)
    law = (rounding / everywhere) @ real
    law /= law.sum()
    discrete = np.exp(-((k - x) ** 2) / (2 * std**2))
    discrete /= discrete.sum()
    eta = 2 * math.exp(-2 * (math.pi * tau) ** 2)
    ratio = np.abs(law / discrete - 1)
    assert ratio.max() <= 4 * eta + 1e-9
    wrong = np.exp(-((k - x) ** 2) / (2 * (std**2 - tau**2)))
    assert np.abs(law / (wrong / wrong.sum()) - 1).max() > 0.05
