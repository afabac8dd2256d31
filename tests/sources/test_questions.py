"""Answers to questions that are asked one after another: the loss is ε and no more, and planted faults exceed it."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from experiments.sources import (
    above_threshold,
    adaptive_answers,
    bandits,
    discrete_laplace,
    laplace_mechanism,
    thresholdout,
    tree_counter,
)
from experiments.sources.above_threshold import AboveThreshold, largest_loss


def test_the_discrete_laplace_law_is_drawn(monkeypatch):
    monkeypatch.setattr(discrete_laplace, "randbelow", random.Random(1).randrange)
    draws = np.array([discrete_laplace.sample(Fraction(5, 2)) for _ in range(4000)])
    x = np.arange(-6, 7)
    law = np.exp(discrete_laplace.log_law(x, 2.5))
    found = (draws[:, None] == x).mean(axis=0)
    assert np.abs(found - law).max() < 4.5 * math.sqrt(0.2 * 0.8 / 4000)
    below, above = discrete_laplace.log_tails(x, 2.5)
    assert np.diff(np.exp(below)) == pytest.approx(law[1:])
    assert np.exp(below) + np.exp(above) == pytest.approx(1)


@pytest.mark.parametrize(("hits", "answers", "steps"), [(1, 0.0, 3), (2, 0.0, 1), (3, 0.5, 1)])
def test_the_loss_of_a_stream_is_epsilon_and_halved_noise_exceeds_it(hits, answers, steps):
    mechanism = AboveThreshold(0, Fraction(2), steps, hits, Fraction(answers))
    assert 0.99 * 2 <= largest_loss(mechanism, steps, 1000, hits) <= 2 * (1 + 1e-9)
    for name in ("threshold_scale", "query_scale"):
        faulty = AboveThreshold(0, Fraction(2), steps, hits, Fraction(answers))
        setattr(faulty, name, getattr(faulty, name) / 2)
        assert largest_loss(faulty, steps, 1000, hits) > 1.1 * 2


def test_a_stream_halts_and_compares_noisy_values_with_a_noisy_threshold(monkeypatch):
    noise = iter([5, 2, 4, 6])
    monkeypatch.setattr(above_threshold, "sample", lambda scale: next(noise))
    stream = AboveThreshold(10, Fraction(1), 1)  # threshold 15
    assert [stream.above(value) for value in (13, 11, 10)] == [False, False, True]
    with pytest.raises(above_threshold.Halted):
        stream.above(0)


def test_thresholdout_costs_b_over_tau_n_and_does_not_overfit(monkeypatch):
    for module in (discrete_laplace,):
        monkeypatch.setattr(module, "randbelow", random.Random(5).randrange)
    direct, guarded = thresholdout.rows(2)
    assert direct["reported"] > 0.58
    assert abs(guarded["reported"] - 0.5) < 0.05
    assert guarded["epsilon"] == pytest.approx(30 / (0.001 * 1000))
    desk = thresholdout.Thresholdout(10, 0.1, 1.0, 1)
    assert float(AboveThreshold(0, desk.epsilon, thresholdout.ONE).threshold_scale) == pytest.approx(
        4 * 10 * thresholdout.ONE
    )


def test_all_sums_of_a_tree_cost_epsilon_and_the_printed_levels_more():
    for row in tree_counter.rows((2, 7, 8)):
        assert row["loss"] == pytest.approx(1.5, rel=1e-9)
        power = row["steps"] in (2, 8)
        printed = (row["printed_levels"] + 1) / row["printed_levels"] if power else 1
        assert row["printed_loss"] == pytest.approx(1.5 * printed)


def test_sums_are_exact_but_for_noise_of_a_variance_a_binary_digit(monkeypatch):
    monkeypatch.setattr(discrete_laplace, "randbelow", random.Random(4).randrange)
    draws = []
    for _ in range(400):
        counter = tree_counter.TreeCounter(8, 1.0)
        draws.append([counter.add(0.5) - 0.5 * t for t in range(1, 9)])
    assert counter.noise_std(1) ** 2 == pytest.approx(2 * 4**2, rel=1e-9)
    for t, found in enumerate(np.array(draws).T, 1):
        error = math.sqrt((2 + 3 / t.bit_count()) / 400)
        assert found.var() == pytest.approx(counter.noise_std(t) ** 2, rel=4.5 * error)
    with pytest.raises(RuntimeError, match="had its 8 values"):
        counter.add(1.0)


@pytest.mark.parametrize(("queries", "bias", "error"), [(5, 1.33, 4), (17, 3.20, 8), (65, 7.11, 16)])
def test_an_adversary_gains_the_root_of_k_and_without_noise_k(queries, bias, error):
    variance = math.sqrt(queries - 1)
    assert adaptive_answers.closed(queries, variance) == pytest.approx((bias, error), abs=0.01)
    assert adaptive_answers.closed(queries, 0.0) == (queries - 1, queries - 1)
    found = adaptive_answers.simulated(queries, variance, 4000, np.random.default_rng(0))
    for values, exact in zip(found, adaptive_answers.closed(queries, variance), strict=True):
        assert values.mean() == pytest.approx(exact, abs=4.5 * values.std() / math.sqrt(4000))


def test_all_answers_cost_one_gaussian_of_mu_squared_k_over_n_squared_w_squared():
    desk = adaptive_answers.GaussianAnswers(1000, 10, 0.5, 1e-6)
    event = desk.guarantee.events[0]
    mu = math.sqrt(10) / (1000 * desk.noise_std)
    charged = 2 * math.sqrt(event.count) / event.noise_multiplier  # a replaced record counts twice its clip
    assert mu <= charged == pytest.approx(mu, rel=1e-3)
    one = desk.ask(np.full(1000, 0.25))
    assert abs(one - 0.25) < 8 * desk.noise_std


def test_one_record_moves_a_sum_of_vectors_by_its_bound():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 3))
    whole = laplace_mechanism.sum_in_steps(rows, 1.5)
    moved = []
    for new in ((1.5, 0, 0), (9, 9, -9), (math.inf, 1, math.nan)):
        other = np.where(np.arange(20)[:, None] == 3, np.array(new), rows)
        moved.append(np.abs(whole - laplace_mechanism.sum_in_steps(other, 1.5)).sum())
    assert laplace_mechanism.ONE < max(moved) <= 2 * laplace_mechanism.ONE


def test_a_draw_of_hedge_costs_two_eta_and_thompson_one_epsilon():
    rate, worst = 0.3, 0.0
    for change in itertools.product((-1, 0, 1), repeat=3):
        for base in itertools.product((0, 25), repeat=3):
            logs = [-rate * np.array(base, float), -rate * (np.array(base) + np.array(change))]
            first, second = (log - np.logaddexp.reduce(log) for log in logs)
            worst = max(worst, np.abs(first - second).max())
    assert 1.99 * rate < worst <= 2 * rate
    assert bandits.price(rate, 7, 0.0).epsilon == pytest.approx(2 * rate * 7)
    assert bandits.largest_rate(2.0, 0.0, 4, 300) == 2.0 / 600
    composed = bandits.largest_rate(2.0, 1e-6, 4, 300)
    assert 1.98 < bandits.price(composed, 300, 1e-6).epsilon <= 2 * (1 + 1e-6)
    regret, guarantee = bandits.thompson(np.array([0.9, 0.1]), 400, 8.0, True, np.random.default_rng(0))
    assert (guarantee.epsilon, guarantee.delta) == (8.0, 0.0)
    assert regret < 100
