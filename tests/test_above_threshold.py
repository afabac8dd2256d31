"""The noise is exact, the loss of a whole stream is ε and no less, and nothing is looked at before it is paid for."""

import copy
import math
import pickle
import random
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpmcmc.privacy import Guarantee
from dpmcmc.privacy.interactive import AboveThreshold, EarlyStopping, Halted, Thresholdout, above_threshold
from dpmcmc.privacy.interactive.above_threshold import WholeNumbers
from dpmcmc.privacy.ledger import Ledger, LedgerError, OverBudget


@pytest.fixture
def seeded(monkeypatch):
    """Reproducible entropy."""
    monkeypatch.setattr(above_threshold, "randbelow", random.Random(7).randrange)


# The noise.


def law(x: np.ndarray, s: float) -> np.ndarray:
    return math.tanh(1 / (2 * s)) * np.exp(-np.abs(x) / s)


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(7, 5), Fraction(12), Fraction(10**15 + 1, 10**15)])
def test_draws_follow_the_discrete_laplace_law(seeded, scale):
    count = 6000
    draws = np.array([above_threshold.sample(scale) for _ in range(count)])
    reach = max(1, int(4 * scale))
    inside = np.arange(-reach, reach + 1)
    expected = law(inside, float(scale))
    tail = (1 - expected.sum()) / 2
    observed = [np.sum(draws < -reach), *(np.sum(draws == x) for x in inside), np.sum(draws > reach)]
    chances = np.array([tail, *expected, tail])
    keep = chances * count >= 5
    chances, observed = chances[keep], np.array(observed)[keep]
    rest = max(1 - chances.sum(), 0)
    if rest > 1e-12:
        chances, observed = np.append(chances, rest), np.append(observed, count - observed.sum())
    # A fixed seed; a sampler of another law (zero counted twice, say) gives p below 1e-20.
    assert stats.chisquare(observed, chances * count).pvalue > 1e-3


def test_the_bernoulli_of_an_exponential_is_exact(monkeypatch):
    """Its probability is the alternating series, computed from the very comparisons it makes."""
    for numerator, denominator in ((0, 1), (1, 1), (1, 3), (2, 7)):
        # P(run reaches k) is the product of the chances asked for; drive it and record them.
        probability, reach, k = Fraction(0), Fraction(1), 0
        while k < 30:
            k += 1
            asked = []

            def below(n, asked=asked, k=k, numerator=numerator):
                asked.append(n)
                return 0 if len(asked) < k and numerator > 0 else n - 1 if n > numerator else numerator

            monkeypatch.setattr(above_threshold, "randbelow", below)
            result = above_threshold._bernoulli_exp(numerator, denominator)
            stop = 1 - Fraction(numerator, asked[-1])
            probability += reach * stop * result
            reach *= Fraction(numerator, asked[-1])
            if reach == 0:
                break
        assert float(probability) == pytest.approx(math.exp(-numerator / denominator), abs=1e-15)


# The loss of a stream, by exact enumeration of the laws.


def log_below(x: np.ndarray, s: float) -> tuple[np.ndarray, np.ndarray]:
    """(log P(Z <= x), log P(Z > x)) of the discrete Laplace law."""
    low = np.minimum(x, -1) / s - math.log1p(math.exp(-1 / s))  # for x < 0
    high = -(np.maximum(x, 0) + 1) / s - math.log1p(math.exp(-1 / s))  # log P(Z > x) for x >= 0
    return np.where(x < 0, low, np.log1p(-np.exp(high))), np.where(x < 0, np.log1p(-np.exp(low)), high)


def log_probability(mechanism: WholeNumbers, values: np.ndarray, hits: int) -> float:
    """log P(False for all but the last so many, then True) with the mechanism's own scales, threshold 0."""
    s, q = float(mechanism.threshold_scale), float(mechanism.query_scale)
    reach = int(60 * max(s, q))
    t = np.arange(-reach, reach + 1)
    total = -np.abs(t) / s + math.log(math.tanh(1 / (2 * s)))
    below = len(values) - hits
    for part, above in ((values[:below], 0), (values[below:], 1)):
        for value, count in zip(*np.unique(part, return_counts=True), strict=True):
            total = total + count * log_below(t - value, q)[above]
    return float(np.logaddexp.reduce(total))


def largest_loss(mechanism: WholeNumbers, steps: int, k: int, hits: int = 1) -> float:
    """The largest log-ratio over values and the worst neighbours: all False by one side, each True by the other."""
    worst = 0.0
    q = float(mechanism.query_scale)
    for low in np.linspace(-8 * q, 8 * q, 9).astype(int):
        for last in np.linspace(-24 * q, 8 * q, 9).astype(int):
            before = np.append(np.full(k - hits, low), np.full(hits, last))
            for sign in (1, -1):
                after = before + np.append(np.full(k - hits, sign * steps), np.full(hits, -sign * steps))
                ratio = log_probability(mechanism, before, hits) - log_probability(mechanism, after, hits)
                worst = max(worst, abs(ratio))
        never = [log_probability(mechanism, np.full(k, low + d), 0) for d in (0, steps)]
        worst = max(worst, abs(never[1] - never[0]))
    if mechanism.answer_scale is not None:
        # A noisy value is drawn after its True: its largest log-ratio adds to that of the decisions, and is attained.
        scale = float(mechanism.answer_scale)
        x = np.arange(-int(20 * scale), int(20 * scale))
        worst += hits * np.abs(np.log(law(x, scale)) - np.log(law(x + steps, scale))).max()
    return worst


@pytest.mark.parametrize(("epsilon", "steps", "k"), [(1.0, 3, 200), (0.5, 1, 50), (2.0, 5, 1000)])
def test_the_loss_of_a_stream_is_epsilon_and_no_more(epsilon, steps, k):
    worst = largest_loss(WholeNumbers(0, Fraction(epsilon), steps), steps, k)
    assert worst <= epsilon * (1 + 1e-9)
    assert worst >= 0.999 * epsilon


@pytest.mark.parametrize(("hits", "answers"), [(2, 0.0), (3, 0.5), (1, 0.25)])
def test_several_hits_and_their_answers_lose_epsilon_and_no_more(hits, answers):
    mechanism = WholeNumbers(0, Fraction(2), 1, hits, Fraction(answers))
    assert 0.99 * 2 <= largest_loss(mechanism, 1, 1000, hits) <= 2 * (1 + 1e-9)
    # Hits that come early lose no more.
    assert largest_loss(mechanism, 1, hits + 1, hits) <= 2 * (1 + 1e-9)


@pytest.mark.parametrize(
    "fault",
    [
        lambda m: setattr(m, "query_scale", m.query_scale / 3),  # as for one hit
        lambda m: setattr(m, "answer_scale", m.answer_scale / 3),
        lambda m: setattr(m, "threshold_scale", m.threshold_scale / 2),
    ],
)
def test_noise_of_one_hit_for_three_is_caught(fault):
    """Planted faults."""
    mechanism = WholeNumbers(0, Fraction(2), 1, 3, Fraction(1, 2))
    fault(mechanism)
    assert largest_loss(mechanism, 1, 1000, 3) > 1.1 * 2


def test_any_number_of_hits_has_a_split():
    assert WholeNumbers(0, Fraction(1), 1, 10**9).threshold_scale == 1000


@pytest.mark.parametrize("hits", [2, 5, 20])
def test_one_noisy_threshold_is_better_than_one_a_hit(hits):
    """The printed repetition has ε/c for each hit: Lap(2cΔ/ε) and Lap(4cΔ/ε)."""
    kept = WholeNumbers(0, Fraction(1), 1000, hits)
    again = WholeNumbers(0, Fraction(1, hits), 1000)
    variances = [float(m.threshold_scale) ** 2 + float(m.query_scale) ** 2 for m in (kept, again)]
    assert variances[0] < 0.7 * variances[1]
    # The least over all splits of ε, to a thousandth.
    shares = np.linspace(0.001, 0.999, 999)
    least = ((1000 / shares) ** 2 + (2 * hits * 1000 / (1 - shares)) ** 2).min()
    assert variances[0] == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("scale", ["threshold_scale", "query_scale"])
def test_half_of_either_noise_is_caught(scale):
    """Planted fault."""
    mechanism = WholeNumbers(0, Fraction(1), 3)
    setattr(mechanism, scale, getattr(mechanism, scale) / 2)
    assert largest_loss(mechanism, 3, 200) > 1.2


def test_the_scales_enumerated_are_those_drawn(silent):
    stream = AboveThreshold(0.5, 0.25, 0.01)
    assert not silent
    stream.above(0.1)
    stream.above(0.2)
    steps = stream.steps
    assert silent == [Fraction(2 * steps, 1) / Fraction(0.25), *[Fraction(4 * steps, 1) / Fraction(0.25)] * 2]


def test_the_decision_is_noisy_value_above_noisy_threshold(monkeypatch):
    noise = iter([5, 2, 4, 6])
    monkeypatch.setattr(above_threshold, "sample", lambda scale: next(noise))
    mechanism = WholeNumbers(10, Fraction(1), 1)  # threshold 15
    assert [mechanism.above(v) for v in (13, 11, 10)] == [False, False, True]


def test_rounding_is_charged(silent):
    """Whatever float values differ by Δ, the rounded ones differ by at most the charged steps."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        sensitivity = float(rng.uniform(1e-4, 10))
        grid = float(sensitivity * rng.uniform(0.01, 3))
        stream = AboveThreshold(0.0, 1.0, sensitivity, grid=grid)
        value = float(rng.normal() * 100)
        error = grid / 2  # of a float that stands for a real number
        moved = abs(stream._rounded(value) - stream._rounded(value + sensitivity + error))
        assert moved <= stream.steps
    default = AboveThreshold(0.0, 1.0, 0.01)
    assert 1024 <= Fraction(0.01) / default.grid < 2048
    assert default.steps <= 1.002 * Fraction(0.01) / default.grid


# Its manners.


RECORDS = {"x": np.arange(6.0).reshape(3, 2), "y": np.ones(3)}


class Double:
    """A ledger that writes down what happens to it, in the order of everything else."""

    def __init__(self, log: list, full: bool = False) -> None:
        self.log, self.full = log, full

    def reserve(self, guarantee, label):
        if self.full:
            raise OverBudget("no room")
        assert isinstance(guarantee, Guarantee)
        self.log.append("reserve")
        return "receipt"

    def identify(self, fingerprint):
        assert len(fingerprint(bytes(32))) == 64
        self.log.append("identify")

    def settle(self, receipt, outcome):
        assert (receipt, outcome) == ("receipt", "released")
        self.log.append("settle")


def test_the_price_is_reserved_before_the_first_value_is_looked_at():
    log: list = []
    stream = AboveThreshold(1e9, 1.0, 0.1, Double(log), records=RECORDS)
    assert log == []

    def score() -> float:
        log.append("read")
        return 0.0

    stream.above(score)
    stream.above(score)
    assert log == ["reserve", "identify", "read", "settle", "read"]


def test_nothing_is_looked_at_where_the_ledger_refuses():
    stream = AboveThreshold(1e9, 1.0, 0.1, Double([], full=True), records=RECORDS)
    with pytest.raises(OverBudget):
        stream.above(lambda: pytest.fail("the value was looked at"))
    stopping = EarlyStopping(epsilon=1.0, sensitivity=0.1, patience=2, ledger=Double([], full=True), records=RECORDS)
    with pytest.raises(OverBudget):
        stopping.stop(lambda: pytest.fail("the score was looked at"))


def test_a_real_ledger_takes_it(tmp_path):
    terms = {"name": "holdout", "epsilon": 3.0, "delta": 1e-6, "adjacency": "replace_one", "num_records": 500}
    ledger = Ledger.init(tmp_path / "ledger", **terms)
    AboveThreshold(1e9, 1.0, 0.1, ledger, records=RECORDS).above(0.0)
    assert ledger.state().spent > 0
    assert not ledger.state().open
    with pytest.raises(OverBudget):
        AboveThreshold(1e9, 2.9, 0.1, ledger, records=RECORDS).above(0.0)


def test_the_ledger_of_other_records_refuses_and_gives_back(tmp_path):
    terms = {"name": "holdout", "epsilon": 3.0, "delta": 1e-6, "adjacency": "replace_one", "num_records": 3}
    ledger = Ledger.init(tmp_path / "ledger", **terms)
    AboveThreshold(1e9, 0.5, 0.1, ledger, records=RECORDS).above(0.0)
    spent = ledger.state().spent
    others = {**RECORDS, "y": np.zeros(3)}
    look = lambda *_: pytest.fail("it was looked at")  # noqa: E731
    for ask in (
        lambda: AboveThreshold(1e9, 0.5, 0.1, ledger, records=others).above(look),
        lambda: EarlyStopping(epsilon=0.5, sensitivity=0.1, reach=0.5, ledger=ledger, records=others).stop(look),
        lambda: Thresholdout(RECORDS, others, 0.1, 1.0, 1, ledger).ask(look),
    ):
        with pytest.raises(LedgerError, match="not the data"):
            ask()
        assert ledger.state().spent == spent
        assert not ledger.state().open
    for kind in (AboveThreshold, EarlyStopping):
        with pytest.raises(ValueError, match="records: give those"):
            kind(**{"epsilon": 0.5, "sensitivity": 0.1, "ledger": ledger} | WHERE[kind])


WHERE = {AboveThreshold: {"threshold": 0.5}, EarlyStopping: {"reach": 0.5}}


def test_it_halts():
    stream = AboveThreshold(0.0, 10.0, 0.01)
    assert stream.above(100.0)
    with pytest.raises(Halted):
        stream.above(0.0)


def test_it_halts_at_its_last_hit_and_answers_each(silent):
    stream = AboveThreshold(0.5, 1.0, 0.01, hits=2, answers=0.5)
    assert [stream.ask(v) for v in (0.2, 0.75, 0.3, 0.625)] == [None, 0.75, None, 0.625]
    assert stream.halted
    with pytest.raises(Halted):
        stream.ask(0.9)
    with pytest.raises(Halted):
        stream.above(0.9)
    steps, answered = Fraction(stream.steps), [silent[3], silent[6]]
    # c·Δ/ε₃
    assert answered == [2 * steps / Fraction(0.5)] * 2
    assert stream.guarantee.epsilon == 1.0
    with pytest.raises(ValueError, match="answers: no share"):
        AboveThreshold(0.5, 1.0, 0.01, hits=2).ask(lambda: pytest.fail("the value was looked at"))


def test_several_hits_are_one_price():
    log: list = []
    stream = AboveThreshold(0.0, 1.0, 1e-6, Double(log), records=RECORDS, hits=3)
    assert [stream.above(9.0) for _ in range(3)] == [True] * 3
    assert log == ["reserve", "identify", "settle"]


@pytest.mark.parametrize(
    ("change", "said"), [({"hits": 0}, "hits"), ({"hits": 1.5}, "hits"), ({"answers": 1.0}, "answers"),
                         ({"answers": -0.1}, "answers"), ({"answers": math.nan}, "answers")]
)  # fmt: skip
def test_hits_and_shares_that_cannot_be_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        AboveThreshold(0.0, 1.0, 0.1, **change)


def test_neighbours_are_answered_alike_but_for_the_value(monkeypatch):
    """Replay: the same noise on neighbouring records; only the value that is compared differs, by Δ at most."""
    seen: list[int] = []
    whole = WholeNumbers.above

    def watched(self: WholeNumbers, value: int) -> bool:
        seen.append(value)
        return whole(self, value)

    monkeypatch.setattr(WholeNumbers, "above", watched)
    n = 50
    answers = []
    for y in (np.arange(n) % 2, np.append(np.arange(n - 1) % 2, 0)):
        monkeypatch.setattr(above_threshold, "randbelow", random.Random(3).randrange)
        stream = AboveThreshold(0.9, 1.0, 1 / n, hits=2, answers=0.5)
        answers.append([stream.ask(lambda y=y, k=k: Fraction(int(y[k:].sum()), n)) for k in range(5)])
    first, second = np.array(seen).reshape(2, -1)
    assert 0 < np.abs(first - second).max() <= stream.steps
    assert answers[0] == answers[1] == [None] * 5


def test_its_guarantee_is_pure_and_composes():
    g = AboveThreshold(0.0, 0.7, 0.01).guarantee
    assert (g.epsilon, g.delta) == (0.7, 0.0)
    assert str(g).startswith("(0.7, 0)-DP, ")
    assert Guarantee.from_json(g.to_json()) == g
    assert g.delta_at(0.7) == 0
    assert g.compose(g).delta == 0
    assert (g.for_group(3).epsilon, g.for_group(3).delta) == (pytest.approx(2.1), 0)
    assert g.release == "estimate"
    assert "0.01" in g.assumptions[0]
    other = Guarantee.from_events(g.events, delta=1e-6, adjacency="replace_one", accountant="pld", release="estimate")
    assert other.compose(g).epsilon == pytest.approx(1.4, rel=1e-3)


def test_it_cannot_be_copied():
    stream = AboveThreshold(0.0, 1.0, 0.01)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            duplicate(stream)
    assert "0.01" in repr(stream)


@pytest.mark.parametrize("name", ["epsilon", "sensitivity", "grid"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_numbers_that_cannot_be_are_refused(name, value):
    arguments = {"epsilon": 1.0, "sensitivity": 0.1, "grid": 0.01} | {name: value}
    with pytest.raises(ValueError, match=name):
        AboveThreshold(0.0, **arguments)


@pytest.mark.parametrize("value", [np.float32(0.5), np.float16(0.5), jnp.float32(0.5), jnp.zeros(()), np.zeros(2)])
def test_values_whose_type_rounds_more_than_is_charged_are_refused(value):
    with pytest.raises(ValueError, match="float64, or as a Fraction"):
        AboveThreshold(0.0, 1.0, 1e-7).above(value)
    for rule in ({"reach": 0.5}, {"patience": 1}):
        with pytest.raises(ValueError, match="float64, or as a Fraction"):
            EarlyStopping(epsilon=1.0, sensitivity=1e-7, **rule).stop(lambda: value)


def test_accuracies_of_neighbours_move_by_what_is_charged_and_in_float32_by_more():
    n = 10**7
    stream = AboveThreshold(0.9, 1.0, 1 / n)
    counts = np.random.default_rng(0).integers(n // 2, n, 2000).tolist()

    def moved(accuracy) -> int:
        return max(abs(stream._rounded(accuracy(c + 1)) - stream._rounded(accuracy(c))) for c in counts)

    assert moved(lambda c: Fraction(c, n)) <= stream.steps
    assert moved(lambda c: c / n) <= stream.steps
    assert moved(lambda c: float(np.float32(c) / np.float32(n))) > stream.steps


def test_fractions_integers_and_float64_of_any_kind_are_taken_as_they_are(silent):
    for value in (Fraction(1, 3), 1, np.int32(1), np.float64(0.25), np.array(0.25)):
        assert not AboveThreshold(2.0, 1.0, 0.01).above(value)
    with pytest.raises(ValueError, match="too large for float64"):
        AboveThreshold(0.0, 1.0, 1e-7).above(1e12)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_without_a_sensitivity_are_refused(value):
    with pytest.raises(ValueError, match="finite"):
        AboveThreshold(0.0, 1.0, 0.1).above(value)
    with pytest.raises(ValueError, match="finite"):
        EarlyStopping(epsilon=1.0, sensitivity=0.1, patience=1).stop(value)
    with pytest.raises(ValueError, match="threshold must be a finite number"):
        AboveThreshold(value, 1.0, 0.1)


# Early stopping.


def test_it_stops_above_a_score(silent):
    stopping = EarlyStopping(epsilon=1.0, sensitivity=0.01, reach=0.8)
    assert [stopping.stop(s) for s in (0.5, 0.79, 0.85)] == [False, False, True]
    with pytest.raises(Halted):
        stopping.stop(0.5)


def test_it_stops_where_nothing_improves(silent):
    stopping = EarlyStopping(epsilon=1.0, sensitivity=0.001, patience=2, improvement=0.05)
    scores = (0.5, 0.6, 0.7, 0.72, 0.71)
    # After the last two, the best is .72 where .70 stood before.
    assert [stopping.stop(s) for s in scores] == [False, False, False, False, True]


def test_scores_before_there_is_anything_to_compare_draw_no_noise(silent):
    stopping = EarlyStopping(epsilon=1.0, sensitivity=0.001, patience=3)
    for _ in range(3):
        stopping.stop(0.5)
    assert len(silent) == 1
    stopping.stop(0.9)
    assert len(silent) == 2


def test_the_sensitivity_of_no_improvement_is_twice_a_scores():
    rng = np.random.default_rng(0)

    def value(s: np.ndarray) -> float:
        return float(s[:-2].max() - s[-2:].max())

    worst = 0.0
    for _ in range(2000):
        scores = rng.normal(size=6) * 0.5
        worst = max(worst, abs(value(scores) - value(scores + rng.choice([-1, 1], 6))))
    assert worst == pytest.approx(2)
    assert EarlyStopping(epsilon=1.0, sensitivity=0.25, patience=2)._above.sensitivity == 0.5
    assert EarlyStopping(epsilon=1.0, sensitivity=0.25, reach=0.5)._above.sensitivity == 0.25


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "exactly one of reach"),
        ({"reach": 0.5, "patience": 2}, "exactly one of reach"),
        ({"reach": 0.5, "improvement": 0.1}, "improvement goes with patience"),
        ({"patience": 0}, "whole number >= 1"),
    ],
)
def test_rules_that_are_none_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        EarlyStopping(epsilon=1.0, sensitivity=0.1, **rule)
