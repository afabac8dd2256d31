"""McMillan's tester keeps its error on laws that are known, and tells a step's claim from a tenth of it."""

import math

import numpy as np
import pytest

from experiments.sources import histogram_tester as tester_room

BINS, EPSILON, ALPHA = 20, 0.5, 0.05


def answer(rng, p, q, delta):
    tester = tester_room.Tester(EPSILON, BINS, ALPHA)
    counts = [rng.multinomial(rng.poisson(tester.expected), law) for law in (p, q)]
    return tester.judge(*counts, delta=delta, significance=0.05)


def test_the_tester_accepts_a_true_delta_and_rejects_one_that_is_two_alpha_below():
    rng = np.random.default_rng(11)
    p, q = rng.dirichlet(np.ones(BINS)), rng.dirichlet(np.ones(BINS))
    factor = math.exp(EPSILON)
    truth = max(np.sum(np.maximum(0, a - factor * b)) for a, b in ((p, q), (q, p)))
    assert truth > 2.01 * ALPHA
    answers = [answer(rng, p, q, truth) for _ in range(60)]
    assert all(found.accepted for found in answers)
    assert all(found.delta_lower <= truth for found in answers)
    assert not any(answer(rng, p, q, truth - 2.01 * ALPHA).accepted for _ in range(60))


def test_either_order_of_the_pair_is_seen():
    p = np.r_[0.5, np.full(BINS - 1, 0.5 / (BINS - 1))]
    q = np.r_[0.0, np.full(BINS - 1, 1 / (BINS - 1))]
    rng = np.random.default_rng(13)
    assert not any(answer(rng, *laws, 0.1).accepted for laws in ((p, q), (q, p)))
    assert tester_room.Tester(EPSILON, 4, ALPHA).expected == pytest.approx(24 * (1 + math.exp(2 * EPSILON)) / ALPHA**2)


def test_bins_cover_every_score():
    assert tester_room.bin_counts(np.array([-1e9, 50.0, 1e9]), np.arange(1.0, 7.0)).tolist() == [1, 0, 0, 0, 0, 0, 2]


def test_a_step_s_claim_is_accepted_and_a_tenth_of_it_rejected():
    own, tenth = tester_room.rows(epsilons=(8.0,))
    assert own["accepted"]
    assert own["delta_lower"] <= own["delta_claimed"]
    assert not tenth["accepted"]
    assert tenth["delta_lower"] > tenth["delta_claimed"]
