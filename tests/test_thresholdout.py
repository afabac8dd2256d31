"""The reusable holdout: what it costs, that its noise is no less than that takes, and that it is not overfitted."""

import copy
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from dpmcmc.privacy.interactive import BudgetSpent, Thresholdout, above_threshold, thresholdout
from dpmcmc.privacy.interactive.above_threshold import WholeNumbers
from tests.test_above_threshold import Double, largest_loss, law

TAU, N, B = 0.05, 40, 3


def records(values) -> dict[str, np.ndarray]:
    return {"x": np.asarray(values, float)}


def made(train, holdout, **changes) -> Thresholdout:
    arguments = {"threshold": 0.1, "tolerance": TAU, "budget": B} | changes
    return Thresholdout(records(train), records(holdout), **arguments)


def identity(record) -> float:
    return record["x"]


# Answers, without noise.


@pytest.mark.parametrize(("train", "holdout", "answer", "spent"), [(0.5, 0.55, 0.5, 0), (0.9, 0.5, 0.5, 1)])
def test_it_answers_from_the_training_set_where_the_two_agree_and_else_from_the_holdout(
    silent, train, holdout, answer, spent
):
    desk = made(np.full(20, train), np.full(N, holdout))
    assert desk.ask(identity) == pytest.approx(answer, abs=1e-6)
    assert desk.budget == B - spent


def test_it_halts_when_the_budget_is_spent(silent):
    desk = made(np.full(20, 0.9), np.full(N, 0.5))
    for _ in range(B):
        desk.ask(identity)
    with pytest.raises(BudgetSpent):
        desk.ask(lambda record: pytest.fail("a record was looked at"))


def test_the_noise_has_the_stated_scales_and_the_threshold_is_redrawn(silent):
    desk = made(np.full(20, 0.9), np.full(N, 0.5))
    desk.ask(identity)
    desk.ask(identity)
    unit = Fraction(TAU) * N * thresholdout.ONE
    assert silent == [4 * unit, 8 * unit, 2 * unit] * 2
    silent.clear()
    calm = made(np.full(20, 0.5), np.full(N, 0.5))
    calm.ask(identity)
    calm.ask(identity)
    assert silent == [4 * unit, 8 * unit, 8 * unit]


def test_a_redrawn_threshold_starts_from_the_stated_one(monkeypatch):
    """Planted in the printed text: the new threshold on top of the last noisy one, a random walk."""
    seen: list[int] = []
    plain = WholeNumbers.__init__

    def watched(self, threshold, epsilon, sensitivity):
        seen.append(threshold)
        plain(self, threshold, epsilon, sensitivity)

    monkeypatch.setattr(WholeNumbers, "__init__", watched)
    desk = made(np.full(20, 1.0), np.full(N, 0.0), budget=4, tolerance=1e-3)
    for _ in range(4):
        desk.ask(identity)
    assert len(seen) == 4
    assert len(set(seen)) == 1


def test_values_outside_the_unit_interval_are_clipped(silent):
    values = np.array([-5.0, 7.0, np.inf, -np.inf, np.nan, 0.5])
    desk = made(values, values)
    assert desk.ask(identity) == pytest.approx((0 + 1 + 1 + 0 + 0 + 0.5) / 6, abs=1e-6)


# What it costs.


def test_the_price_is_b_over_tau_n():
    g = made(np.zeros(5), np.zeros(N)).guarantee
    (event,) = g.events
    assert event.count == 2 * B
    assert Fraction(event.epsilon) >= 1 / (2 * Fraction(TAU) * N)
    assert event.epsilon * event.count == pytest.approx(B / (TAU * N), rel=1e-12)
    assert g.epsilon <= B / (TAU * N) * (1 + 1e-9)
    assert g.delta_at(B / (TAU * N) * (1 + 1e-12)) < 1e-14
    assert g.adjacency == "replace_one"
    assert "holdout records" in g.assumptions[0]


def test_one_record_moves_a_sum_by_at_most_its_largest_value():
    x = np.random.default_rng(0).uniform(-1, 2, 30)
    whole, moved = thresholdout.total(identity, records(x), 30), []
    for i in range(30):
        for value in (0.0, 1.0, -9.0, 9.0):
            other = records(np.where(np.arange(30) == i, value, x))
            moved.append(abs(whole - thresholdout.total(identity, other, 30)))
    assert 0.9 * thresholdout.ONE < max(moved) <= thresholdout.ONE


def small(monkeypatch, one: int = 2) -> Thresholdout:
    """Coarse steps, so that the laws can be enumerated."""
    monkeypatch.setattr(thresholdout, "ONE", one)
    return made(np.zeros(5), np.zeros(N))


def test_a_hit_loses_its_half_in_the_test_and_its_half_in_the_answer(monkeypatch):
    desk = small(monkeypatch)
    half = 1 / (2 * TAU * N)
    test = WholeNumbers(0, desk._epsilon, thresholdout.ONE)
    assert float(test.threshold_scale) == pytest.approx(4 * TAU * N * thresholdout.ONE)
    assert 0.999 * half <= largest_loss(test, thresholdout.ONE, 200) <= half * (1 + 1e-9)
    scale = float(thresholdout.ONE / desk._epsilon)
    x = np.arange(-2000, 2000)
    answer = np.abs(np.log(law(x, scale)) - np.log(law(x + thresholdout.ONE, scale))).max()
    assert answer == pytest.approx(half, rel=1e-9)


def test_the_price_is_reserved_before_a_holdout_record_is_looked_at():
    log: list = []
    desk = Thresholdout(records(np.zeros(2)), records(np.ones(3)), 0.1, 1.0, 2, Double(log))
    assert log == []

    def phi(record) -> float:
        log.append("read")
        return 0.5

    desk.ask(phi)
    desk.ask(phi)
    assert log == ["reserve", "identify", *["read"] * 5, "settle", *["read"] * 5]


# What it is for.


def overfitted(seed: int, ask) -> tuple[float, float]:
    """An analyst picks features that agree with pure noise labels, then asks how good the classifier is.

    ``ask(train, holdout)`` returns a function φ -> answer. Returns (reported, true) accuracy.
    """
    rng = np.random.default_rng(seed)
    n, d = 1000, 300
    draw = lambda: {"x": rng.choice([-1.0, 1.0], (n, d)), "y": rng.choice([-1.0, 1.0], n)}  # noqa: E731
    train, holdout = draw(), draw()
    answer = ask(train, holdout)
    margins = (train["y"] @ train["x"]) / n
    signs = np.zeros(d)
    for j in range(d):
        agrees = answer(lambda r, j=j: (1 + r["x"][j] * r["y"]) / 2) - 0.5
        if abs(agrees) > 0.5 / math.sqrt(n) and agrees * margins[j] > 0:
            signs[j] = np.sign(margins[j])
    reported = answer(lambda r: (1 + np.sign(r["x"] @ signs * r["y"])) / 2)  # a tie is half right
    return reported, 0.5


def test_a_naive_holdout_overfits():
    def naive(train, holdout):
        def answer(phi):
            return float(np.mean([phi({"x": x, "y": y}) for x, y in zip(holdout["x"], holdout["y"], strict=True)]))

        return answer

    reported = np.mean([overfitted(seed, naive)[0] for seed in range(2)])
    assert reported > 0.58


def test_thresholdout_does_not(monkeypatch):
    monkeypatch.setattr(above_threshold, "randbelow", random.Random(5).randrange)
    desks: list[Thresholdout] = []

    def guarded(train, holdout):
        desks.append(Thresholdout(train, holdout, 0.08, 0.001, 30))
        return desks[-1].ask

    for seed in range(2):
        reported, true = overfitted(seed, guarded)
        # Noise of scale 2τ, and the sampling error of 1000 records, 0.016.
        assert abs(reported - true) < 0.05
        # The training set alone claims far more, so the answer came from the holdout.
        assert desks[-1].budget < 30


# Its manners.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 0.0}, "threshold"),
        ({"tolerance": math.nan}, "tolerance"),
        ({"budget": 0}, "budget"),
        ({"budget": 1.5}, "budget"),
    ],
)
def test_numbers_that_cannot_be_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        made(np.zeros(2), np.zeros(3), **changes)


@pytest.mark.parametrize(
    "holdout", [{"x": np.zeros((0, 2))}, {"x": np.zeros(3), "y": np.zeros(2)}, {"x": np.float64(1)}]
)
def test_records_without_rows_are_refused(holdout):
    with pytest.raises(ValueError, match="holdout must be arrays"):
        Thresholdout(records(np.zeros(2)), holdout, 0.1, 0.1, 1)


def test_it_cannot_be_copied_and_shows_no_record():
    desk = made(np.zeros(2), np.full(3, 0.123))
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(desk)
    assert repr(desk) == "Thresholdout(2 training and 3 holdout records, 3 answers left)"
