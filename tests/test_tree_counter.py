"""A record lies in as many released nodes as are charged, and the sums have noise of the stated variance."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from dpmcmc.privacy.interactive import BudgetSpent, TreeCounter, above_threshold, thresholdout, tree_counter
from dpmcmc.privacy.ledger import Ledger, LedgerError, OverBudget
from experiments import adaptive_answers, bandits
from tests.overlaps import no_overlaps
from tests.test_above_threshold import RECORDS, Double, law


def nodes(values) -> np.ndarray:
    """Noiseless nodes that the sums of a stream are made of, in the order in which they get their noise."""
    counter = TreeCounter(len(values), 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(above_threshold, "sample", lambda scale: 0)
        sums = [0.0, *(counter.add(value) for value in values)]
    return np.array([sums[t] - sums[t & (t - 1)] for t in range(1, len(sums))])


def memberships(steps: int) -> int:
    """Most released nodes that one value lies in: replay of a stream on neighbours, without noise."""
    base = nodes(np.zeros(steps))
    return max(int(np.abs(nodes(np.eye(steps)[i]) - base).sum()) for i in range(steps))


def test_one_record_lies_in_as_many_nodes_as_are_charged():
    for steps in (*range(1, 18), 31, 32, 33):
        assert memberships(steps) == TreeCounter(steps, 1.0).levels
    # K = ⌈log₂ T⌉ levels, as printed, are one too few at powers of two, and there alone.
    short = [steps for steps in range(2, 34) if math.ceil(math.log2(steps)) < TreeCounter(steps, 1.0).levels]
    assert short == [2, 4, 8, 16, 32]


def loss(steps: int, levels: int | None = None) -> float:
    """Largest log-ratio of the outputs of two neighbouring streams, over the exact joint law on a coarse grid."""
    counter = TreeCounter(steps, 1.5)
    scale = float((counter.levels if levels is None else levels) * 1 / 1.5)
    grid = np.arange(-9, 10)
    worst = 0.0
    for change in range(steps):
        totals = [np.cumsum(np.eye(steps, dtype=int)[change] * on) for on in (0, 1)]
        ratio = 0.0
        # Sums and noisy nodes determine each other, and the nodes are independent.
        for t in range(1, steps + 1):
            before = t & (t - 1)
            node = [total[t - 1] - (total[before - 1] if before else 0) for total in totals]
            ratio += np.abs(np.log(law(grid - node[0], scale)) - np.log(law(grid - node[1], scale))).max()
        worst = max(worst, ratio)
    return worst


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 8])
def test_the_loss_of_all_sums_is_epsilon(silent, monkeypatch, steps):
    monkeypatch.setattr(tree_counter, "ONE", 1)
    monkeypatch.setattr(thresholdout, "ONE", 1)
    counter = TreeCounter(steps, 1.5)
    counter.add(1.0)
    assert silent == [counter.levels / Fraction(1.5)]
    assert loss(steps) == pytest.approx(1.5, rel=1e-9)


@pytest.mark.parametrize("steps", [2, 8])
def test_the_printed_number_of_levels_is_caught_at_a_power_of_two(steps):
    """Planted fault."""
    printed = math.ceil(math.log2(steps))
    assert loss(steps, printed) == pytest.approx(1.5 * (printed + 1) / printed)


def test_the_joint_law_of_two_sums_by_brute_force(monkeypatch):
    """T = 2: P(first, second) for streams (0, x) and (1, x), every output enumerated."""
    counter = TreeCounter(2, 1.5)
    scale = counter.levels / 1.5
    out = np.arange(-12, 13)
    first, second = np.meshgrid(out, out, indexing="ij")
    log = [np.log(law(first - x, scale)) + np.log(law(second - x - 1, scale)) for x in (0, 1)]
    assert np.abs(log[0] - log[1]).max() == pytest.approx(1.5, rel=1e-9)


def test_sums_are_exact_but_for_the_noise(silent):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**20, 100) / 2**20
    which = rng.integers(0, 3, 100)
    counter = TreeCounter(100, 1.0, counters=3)
    totals = np.zeros(3)
    for value, arm in zip(values, which, strict=True):
        totals[arm] += value
        assert counter.add(lambda value=value: value, arm) == totals[arm]
    clipped = TreeCounter(4, 1.0)
    assert [clipped.add(value) for value in (9.0, -9.0, math.nan, 0.5)] == [1.0, 1.0, 1.0, 1.5]


def test_noise_has_a_variance_of_sigma_squared_a_binary_digit(monkeypatch):
    monkeypatch.setattr(above_threshold, "randbelow", random.Random(4).randrange)
    runs = 800
    draws = []
    for _ in range(runs):
        counter = TreeCounter(8, 1.0)
        draws.append([counter.add(0.5) - 0.5 * t for t in range(1, 9)])
    found = np.array(draws)
    one = counter.noise_std(1) ** 2
    # Continuous Laplace of scale L/ε has 2(L/ε)².
    assert one == pytest.approx(2 * 4**2, rel=1e-9)
    for t in range(1, 9):
        variance = t.bit_count() * one
        assert counter.noise_std(t) ** 2 == pytest.approx(variance)
        # Kurtosis of a Laplace is 6, of a sum of m 3 + 3/m.
        error = math.sqrt((2 + 3 / t.bit_count()) / runs)
        assert found[:, t - 1].var() == pytest.approx(variance, rel=4.5 * error)
        assert abs(found[:, t - 1].mean()) < 4.5 * math.sqrt(variance / runs)
    # Sums that share a node share its noise: Cov(S_4, S_6) is one σ².
    assert np.cov(found[:, 3], found[:, 5])[0, 1] == pytest.approx(one, abs=4.5 * 2.5 * one / math.sqrt(runs))


def test_it_ends_and_asks_no_more():
    counter = TreeCounter(2, 1.0, counters=2)
    for arm in (0, 0, 1, 1):
        counter.add(1.0, arm)
    with pytest.raises(BudgetSpent):
        counter.add(lambda: pytest.fail("the value was looked at"), 1)
    nested = TreeCounter(1, 1.0)
    with pytest.raises(BudgetSpent):
        nested.add(lambda: nested.add(1.0))


def test_the_price_is_reserved_once_and_before_the_first_value(tmp_path):
    log: list = []
    counter = TreeCounter(4, 1.0, counters=2, ledger=Double(log), records=RECORDS)
    assert log == []
    for arm in (0, 1):
        counter.add(lambda: log.append("read") or 1.0, arm)
    assert log == ["reserve", "identify", "read", "settle", "read"]
    with pytest.raises(OverBudget):
        TreeCounter(4, 1.0, ledger=Double([], full=True), records=RECORDS).add(lambda: pytest.fail("looked at"))
    terms = {"name": "stream", "epsilon": 3.0, "delta": 1e-6, "adjacency": "replace_one", "num_records": 3}
    ledger = Ledger.init(tmp_path / "ledger", **terms)
    TreeCounter(4, 0.5, ledger=ledger, records=RECORDS).add(1.0)
    assert 0 < ledger.state().spent <= 1
    assert not ledger.state().open
    with pytest.raises(LedgerError, match="not the data"):
        TreeCounter(4, 0.5, ledger=ledger, records={**RECORDS, "y": np.zeros(3)}).add(1.0)


@pytest.mark.parametrize(
    ("change", "said"), [({"steps": 0}, "steps"), ({"counters": 1.5}, "counters"), ({"epsilon": math.inf}, "epsilon"),
                         ({"epsilon": "x"}, "epsilon must be a finite number > 0"),
                         ({"adjacency": "add_remove"}, "add_remove is not proved")],
)  # fmt: skip
def test_counters_that_cannot_be_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        TreeCounter(**{"steps": 4, "epsilon": 1.0} | change)
    with pytest.raises(ValueError, match="counter: must lie in 0 … 1"):
        TreeCounter(4, 1.0, counters=2).add(1.0, 2)
    with pytest.raises(ValueError, match="counter: must lie in 0 … 1, got 'a'"):
        TreeCounter(4, 1.0, counters=2).add(1.0, "a")


# The bandits that count with it.


@pytest.mark.slow
@pytest.mark.parametrize("figure", [bandits, adaptive_answers])
def test_a_quick_run_writes_table_and_picture(figure, tmp_path):
    name = figure.__name__.partition(".")[2]
    with no_overlaps():
        assert figure.main(["--quick", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "results.csv").read_text(encoding="utf-8").startswith(",".join(figure.COLUMNS))
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_thompson_sampling_costs_one_epsilon_and_regrets_less_than_any_arm():
    means = np.array([0.9, 0.1])
    regret, guarantee = bandits.thompson(means, 400, 8.0, True, np.random.default_rng(0))
    assert guarantee is not None
    assert (guarantee.epsilon, guarantee.delta) == (8.0, 0.0)
    # Any arm: 160. Seven levels of scale 9/8 hide a gap of .8 for some dozens of pulls.
    assert regret < 100
    assert bandits.thompson(means, 400, None, False, np.random.default_rng(0))[0] < 20


def test_a_draw_of_hedge_costs_two_eta():
    """The exact law of a draw, on losses that neighbours make differ by ±1; the supremum is 2η."""
    rate = 0.3
    worst = 0.0
    for change in itertools.product((-1, 0, 1), repeat=3):
        for base in itertools.product((0, 25), repeat=3):
            logs = [-rate * np.array(base, float), -rate * (np.array(base) + np.array(change))]
            logs = [log - np.logaddexp.reduce(log) for log in logs]
            worst = max(worst, np.abs(logs[0] - logs[1]).max())
    assert 1.99 * rate < worst <= 2 * rate
    assert bandits.price(rate, 7, 0.0).epsilon == pytest.approx(2 * rate * 7)


def test_the_rate_of_hedge_is_the_largest_that_is_paid_for():
    pure = bandits.largest_rate(2.0, 0.0, 4, 300)
    assert pure == 2.0 / 600
    composed = bandits.largest_rate(2.0, 1e-6, 4, 300)
    assert composed > pure
    assert 1.98 < bandits.price(composed, 300, 1e-6).epsilon <= 2 * (1 + 1e-6)
    assert bandits.largest_rate(1e4, 0.0, 4, 300) == math.sqrt(8 * math.log(4) / 300)
