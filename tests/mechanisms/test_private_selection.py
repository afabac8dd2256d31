"""Private selection: parts that do not meet, one ε for all of them, and a vote that no record can turn."""

import dataclasses
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.mechanisms import Chain, OutputPerturbation, PrivateSelection, vote
from dpmcmc.mechanisms import selection as room
from dpmcmc.mechanisms.one_shot import OneShot
from dpmcmc.mechanisms.selection import excess_of_choice
from dpmcmc.privacy import Event, Guarantee, UnsupportedCombination
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression, LogisticRegression

POINTS = np.array([-1.0, 0.0, 1.0])
TARGET = LinearRegression(num_features=1)
PROMISE = {"epsilon": 1.2, "delta": 1e-3}


def absolute(params, record):
    """|θ − y|, at most 2."""
    return jnp.abs(params[0] - record["y"])


def weights(data, coefficient, points=POINTS):
    return vote.weights_of_losses(absolute, points[:, None], data, 2.0, coefficient)


@dataclasses.dataclass(frozen=True)
class Choice(OneShot):
    """A candidate whose law is known: a vote among three points."""

    release = "one_sample"

    def calibrate(self, target, spec):
        settings = {"coefficient": vote.coefficient_of(spec.epsilon, 2.0, spec.moved)}
        return self.planned(target, spec, (Event("pure", 0.0, 1.0, 1, epsilon=spec.epsilon),), settings)

    def draw(self, plan, records, streams):
        return POINTS[[vote.choice(weights(records, plan.settings["coefficient"]), streams.noise)], None]


def boosted(count=2):
    return PrivateSelection([Choice()] * count, loss_bound=2.0, loss=absolute)


def records(y):
    return {"x": np.ones((len(y), 1)), "y": np.array(y, np.float64)}


def test_an_epsilon_beyond_the_proof_of_a_candidates_noise_is_refused():
    target = LogisticRegression(num_features=3, row_bound=1.0)
    selection = PrivateSelection([OutputPerturbation()] * 2, loss_bound=5.0)
    assert selection.plan(target, num_records=3000, epsilon=2.0, delta=1e-6).guarantee.epsilon <= 2.0
    with pytest.raises(ValueError, match="epsilon: 500 is more than noise in integers is proved for"):
        selection.plan(target, num_records=3000, epsilon=500.0, delta=1e-6)


# ---- the whole mechanism, exactly, in one dimension ----


def law(plan, y):
    """Exact probabilities of the released point, over permutations, candidates and the vote (a = 2, three records)."""
    candidate_plan, total = plan.release.candidates[0], dict.fromkeys(POINTS, Fraction(0))
    single = {v: weights(records([v]), candidate_plan.settings["coefficient"]) for v in set(y)}
    votes = {}
    for order in itertools.permutations(range(3)):
        first, second, last = (y[i] for i in order)
        for i, j in itertools.product(range(3), repeat=2):
            pair = (POINTS[i], POINTS[j], last)
            if pair not in votes:
                votes[pair] = weights(records([last]), plan.settings["coefficient"], np.array(pair[:2]))
            chance = Fraction(single[first][i], sum(single[first])) * Fraction(single[second][j], sum(single[second]))
            for point, weight in zip(pair[:2], votes[pair], strict=True):
                total[point] += chance * Fraction(weight, sum(votes[pair])) / 6
    return [total[point] for point in POINTS]


def largest_loss(plan):
    worst = 0.0
    for base in ((1.0, -1.0), (1.0, 1.0), (-1.0, 0.0)):
        laws = [law(plan, (*base, one)) for one in (-1.0, 0.0, 1.0)]
        for p, q in itertools.permutations(laws, 2):
            worst = max(worst, *(math.log(a / b) if b else math.inf for a, b in zip(p, q, strict=True) if a))
    return worst


def test_the_exact_law_on_neighbours_is_within_one_epsilon():
    """Candidates and vote at ε each, the whole at ε. By plain argmin, or a vote four times as loud, it is not."""
    plan = boosted().plan(TARGET, num_records=3, **PROMISE)
    assert 0.1 < largest_loss(plan) <= 1.2
    # An argmin on the last part alone: 0 and 1 as probabilities, where candidates are known.
    loud = boosted().plan(TARGET, num_records=3, **PROMISE)
    loud.release.candidates[0].settings["coefficient"] *= 40
    loud.settings["coefficient"] *= 40
    assert largest_loss(loud) > 1.2


@pytest.mark.parametrize("plant", [None, "argmin", "twice"])
def test_the_vote_is_audited_on_the_record_that_decides_it(plant):
    """Candidates −1 and 1, one voter: the log ratio of being chosen, attained up to what a pair can show."""
    plan = boosted().plan(TARGET, num_records=3, **PROMISE)
    chances = []
    for y in (-1.0, 1.0):
        loud = 2 if plant == "twice" and y < 0 else 1
        found = weights(records([y]), loud * plan.settings["coefficient"], POINTS[[0, 2]])
        if plant == "argmin":
            found = [int(w == max(found)) for w in found]
        chances.append(Fraction(found[0], sum(found)))
    loss = math.inf if chances[1] == 0 else math.log(chances[0] / chances[1])
    # Two candidates that differ by B in opposite ways: e^{ε/2} : 1 against 1 : e^{ε/2}.
    if plant is None:
        assert loss == pytest.approx(math.log((1 + math.exp(0.6)) / (1 + math.exp(-0.6))), rel=1e-6)
    assert (loss <= 1.2) == (plant != "argmin")
    assert (loss <= 0.6 + 1e-9) == (plant is None)


@pytest.mark.slow
def test_the_implementation_has_that_law():
    plan, y = boosted().plan(TARGET, num_records=3, **PROMISE), (1.0, -1.0, 1.0)
    expected = np.array([float(p) for p in law(plan, y)])
    found = [float(plan.mechanism.draw(plan, records(y), streams_of(k)[0])[0, 0]) for k in range(400)]
    counts = np.array([found.count(point) for point in POINTS])
    assert np.sum((counts - 400 * expected) ** 2 / (400 * expected)) < 14  # χ² with two degrees of freedom: 1e-3


# ---- the vote ----


@pytest.mark.parametrize("moved", [2.0, 1.0])
def test_no_choice_s_probability_moves_by_more_than_epsilon(moved):
    """And little is left: a coefficient twice as large would exceed it."""
    points, coefficient = np.linspace(-1, 1, 5), vote.coefficient_of(1.0, 2.0, moved)

    def largest(coefficient):
        worst = 0.0
        for base in ((0.2, -0.7), (-1.0, -1.0), (1.0, 0.5)):
            for one, other in itertools.permutations((-1.0, -0.4, 0.0, 1.0), 2):
                pair = (*base, one), ((*base, other) if moved == 2 else base)
                both = [weights(records(y), coefficient, points) for y in pair]
                logs = [[math.log(Fraction(w, sum(found))) for w in found] for found in both]
                worst = max(worst, np.abs(np.subtract(*logs)).max())
        return worst

    assert 0.5 < largest(coefficient) <= 1.0 < largest(2 * coefficient)


def test_epsilon_is_attained_where_two_records_disagree_everywhere():
    """One hypothesis among very many: its loss moves by B one way, all others' by B the other way."""

    def votes(params, record):
        return jnp.where(record["y"] > 0, params[0], 1.0 - params[0])

    coefficient = vote.coefficient_of(1.0, 1.0, 2.0)
    found = [vote.weights_of_losses(votes, np.eye(1, 4000).T, records([y]), 1.0, coefficient) for y in (-1.0, 1.0)]
    first, second = (Fraction(w[0], sum(w)) for w in found)
    assert 0.999 < abs(math.log(first / second)) <= 1.0


@pytest.mark.parametrize("low", [-3.0, -700.0, -2500.0])
def test_weights_are_as_exact_as_is_charged(low):
    """Against exact rational exponentials, far below where a float's exp is 0."""
    from mpmath import exp, mp, mpf

    mp.dps = 60
    scores = np.array([0.0, low / 3, low])
    found = vote.weights_of(scores)
    for score, weight in zip(scores[1:], found[1:], strict=True):
        assert abs(mpf(weight) / found[0] / exp(mpf(float(score))) - 1) < 2.0**-36
    # Below the floor all weights are the floor's, and none is 0.
    least = vote.weights_of(np.array([0.0, -1e7, -1e9]))
    assert least[1] == least[2] > 0


def test_choices_have_their_probabilities():
    found = [1, 5, 0, 10**40, 2 * 10**40, 3 * 10**40]
    drawn = [vote.choice(found, jax.random.fold_in(jax.random.key(1), i)) for i in range(1200)]
    counts = np.bincount(drawn, minlength=6)
    assert np.all(counts[:3] == 0)
    assert np.sum((counts[3:] - 200 * np.arange(1, 4)) ** 2 / (200 * np.arange(1, 4))) < 14  # χ²(2): 1e-3


def test_sums_do_not_depend_on_order_and_losses_are_clipped():
    def wild(params, record):
        return params[0] * record["y"]

    y = np.random.default_rng(0).normal(size=50) * 100
    y[7] = np.nan
    first = vote.level_sums(wild, POINTS[:, None], records(y), 3.0)
    np.testing.assert_array_equal(first, vote.level_sums(wild, POINTS[:, None], records(y[::-1]), 3.0))
    assert np.all(vote.level_sums(wild, POINTS[:, None], records([np.nan]), 3.0) == vote.LEVELS)
    assert first.max() <= 50 * vote.LEVELS


# ---- replay ----


def test_a_record_reaches_its_own_part_alone(monkeypatch):
    """Same keys, one record replaced: candidates of other parts are the same to the bit, and so is the permutation."""
    read = []

    def spy(plan, own, streams):
        read.append(own["y"])
        return np.array([[own["y"].mean()]])

    monkeypatch.setattr(room, "_released", spy)
    plan = boosted(3).plan(TARGET, num_records=22, **PROMISE)
    y = np.random.default_rng(0).uniform(-1, 1, 22)
    first, _ = plan.mechanism.candidates_and_choice(plan, records(y), streams_of(1)[0])
    assert [len(part) for part in read] == [5, 5, 5]
    assert len(np.unique(np.concatenate(read))) == 15  # disjoint
    in_vote = 0
    for i in range(22):
        read.clear()
        moved = y.copy()
        moved[i] = 0.123
        second, _ = plan.mechanism.candidates_and_choice(plan, records(moved), streams_of(1)[0])
        changed = np.sum(first[:, 0] != second[:, 0])
        assert changed <= 1
        in_vote += changed == 0
    assert in_vote == 22 - 15


def test_keys_of_candidates_permutation_and_vote_are_different(monkeypatch):
    seen = []
    monkeypatch.setattr(room, "_released", lambda plan, own, streams: seen.append(streams) or np.zeros((1, 1)))
    real = vote.choice
    monkeypatch.setattr(vote, "choice", lambda weights, key: seen.append((key,)) or real(weights, key))
    plan = boosted(3).plan(TARGET, num_records=8, **PROMISE)
    streams = streams_of(1)[0]
    plan.mechanism.draw(plan, records(np.zeros(8)), streams)
    keys = [tuple(np.asarray(jax.random.key_data(k)).tolist()) for group in (*seen, (streams.batch,)) for k in group]
    assert len(set(keys)) == len(keys) == 3 * 4 + 2


# ---- the guarantee, and what it is for ----


def test_the_guarantee_is_that_of_one_part():
    target = LogisticRegression(1.0, num_features=2, row_bound=1.0)
    mechanism = PrivateSelection([OutputPerturbation(r) for r in (5.0, 20.0, 80.0)], loss_bound=2.0)
    plan = mechanism.plan(target, num_records=400, epsilon=1.0, delta=1e-4)
    assert 0.999 < plan.guarantee.epsilon <= 1.0 + 1e-9
    assert plan.guarantee.delta == 1e-4
    assert {e.mechanism for e in plan.guarantee.events} == {"pure", "approximate_draw"}
    assert Guarantee.from_json(plan.guarantee.to_json()) == plan.guarantee
    # Two parts after each other on the SAME records would cost more.
    both = plan.release.candidates[0].guarantee.compose(plan.release.candidates[1].guarantee)
    assert both.epsilon > 1.3
    data = {"x": np.random.default_rng(0).normal(size=(400, 2)) / 8, "y": np.arange(400) % 2}
    data["x"] /= np.maximum(1, np.linalg.norm(data["x"], axis=1, keepdims=True))
    found = dpmcmc.sample(plan, data)
    assert found.guarantee == plan.guarantee
    assert found.draws.shape == (1, 1, 2)


@pytest.mark.slow
def test_chains_are_candidates():
    """Two step sizes of SGLD; the one that does not move loses."""
    target = LogisticRegression(1.0, num_features=2, row_bound=1.0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 2))
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    data = {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}
    chains = [Chain(dpmcmc.SGLD(step), steps=20) for step in (1e-6, 10.0)]
    plan = PrivateSelection(chains, loss_bound=2.0).plan(target, num_records=3000, epsilon=5.0, delta=1e-5)
    together, index = plan.mechanism.candidates_and_choice(plan, data, streams_of(0)[0])
    assert together.shape == (2, 2)
    assert index == 1
    assert plan.guarantee.epsilon <= 5.0


def test_the_choice_is_as_good_as_stated():
    """R(chosen) − min R within the corrected bound; with n in place of n_v it would be exceeded far too often."""
    failure, bound, candidates, validation = 0.3, 1.0, 6, 60
    allowed = excess_of_choice(candidates, validation, epsilon=1.0, loss_bound=bound, failure=failure)
    if_all_voted = excess_of_choice(candidates, 7 * validation, epsilon=1.0, loss_bound=bound, failure=failure)
    rng = np.random.default_rng(0)
    risks = np.array([0.3, 0.35, 0.4, 0.6, 0.75, 0.9])
    losses = rng.random((4000, validation, candidates)) < risks
    scores = -(1.0 / 2) * losses.sum(1) + rng.gumbel(size=(4000, candidates))
    excess = risks[np.argmax(scores, axis=1)] - 0.3
    assert np.mean(excess > allowed) <= 2 / 3 * failure
    assert if_all_voted < allowed / 2


def test_impossible_requests_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match="candidates"):
        PrivateSelection([Choice()], loss_bound=1.0)
    with pytest.raises(ValueError, match="loss_bound"):
        PrivateSelection([Choice()] * 2, loss_bound=0.0)
    with pytest.raises(UnsupportedCombination, match="add_remove"):
        boosted().plan(TARGET, num_records=30, adjacency="add_remove", **PROMISE)
    with pytest.raises(ValueError, match="num_records"):
        boosted().plan(TARGET, num_records=2, **PROMISE)
    with pytest.raises(ValueError, match="epsilon"):
        vote.coefficient_of(1e-12, 1.0, 2.0)

    class Dear:
        def plan(self, target, **promise):
            return Choice().plan(target, **(promise | {"epsilon": 2 * promise["epsilon"]}))

    with pytest.raises(ValueError, match="candidates: one costs"):
        PrivateSelection([Dear(), Dear()], loss_bound=1.0).plan(TARGET, num_records=30, **PROMISE)
