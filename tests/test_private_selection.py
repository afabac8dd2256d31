"""Private selection: parts that do not meet, one ε for all of them, and a vote that no record can turn."""

import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.mechanisms import Chain, Exponential, OutputPerturbation, PrivateSelection, release
from dpmcmc.mechanisms import selection as room
from dpmcmc.mechanisms.selection import excess_of_choice
from dpmcmc.privacy import Guarantee, UnsupportedCombination
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression, LogisticRegression

POINTS = np.array([-1.0, 0.0, 1.0])
TARGET = LinearRegression(num_features=1)
PROMISE = {"epsilon": 1.2, "delta": 1e-3}


def absolute(params, record):
    """|θ − y|, at most 2."""
    return jnp.abs(params[0] - record["y"])


def candidate():
    return Exponential(hypotheses=POINTS[:, None], loss=absolute, loss_bound=2.0, regularisation=0.0)


def boosted(count=2):
    return PrivateSelection([candidate()] * count, loss_bound=2.0, loss=absolute)


def records(y):
    return {"x": np.ones((len(y), 1)), "y": np.array(y, np.float64)}


def test_an_epsilon_beyond_the_proof_of_a_candidates_noise_is_refused():
    target = LogisticRegression(num_features=3, row_bound=1.0)
    selection = PrivateSelection([OutputPerturbation()] * 2, loss_bound=5.0)
    assert selection.plan(target, num_records=3000, epsilon=2.0, delta=1e-6).guarantee.epsilon <= 2.0
    with pytest.raises(ValueError, match="epsilon: 500 is more than noise in integers is proved for"):
        selection.plan(target, num_records=3000, epsilon=500.0, delta=1e-6)


# ---- the whole mechanism, exactly, in one dimension ----


def law(plan, y, vote=None):
    """Exact probabilities of the released point, over permutations, candidates and the vote (a = 2, three records)."""
    candidate_plan, total = plan.parts[0], dict.fromkeys(POINTS, Fraction(0))
    single = {v: candidate().weights(candidate_plan, records([v])) for v in set(y)}
    votes = {}
    for order in itertools.permutations(range(3)):
        first, second, last = (y[i] for i in order)
        for i, j in itertools.product(range(3), repeat=2):
            pair = (POINTS[i], POINTS[j], last)
            if pair not in votes:
                among = Exponential(
                    hypotheses=np.array(pair[:2])[:, None], loss=absolute, loss_bound=2.0, regularisation=0.0
                )
                weights = among.weights(plan.voting, records([last]))
                votes[pair] = vote(weights) if vote else weights
            chance = Fraction(single[first][i], sum(single[first])) * Fraction(single[second][j], sum(single[second]))
            for point, weight in zip(pair[:2], votes[pair], strict=True):
                total[point] += chance * Fraction(weight, sum(votes[pair])) / 6
    return [total[point] for point in POINTS]


def largest_loss(plan, **more):
    worst = 0.0
    for base in ((1.0, -1.0), (1.0, 1.0), (-1.0, 0.0)):
        laws = [law(plan, (*base, one), **more) for one in (-1.0, 0.0, 1.0)]
        for p, q in itertools.permutations(laws, 2):
            worst = max(worst, *(math.log(a / b) if b else math.inf for a, b in zip(p, q, strict=True) if a))
    return worst


def test_the_exact_law_on_neighbours_is_within_one_epsilon():
    """Candidates and vote at ε each, the whole at ε. By plain argmin, or a vote four times as loud, it is not."""
    plan = boosted().plan(TARGET, num_records=3, **PROMISE)
    assert 0.1 < largest_loss(plan) <= 1.2
    # An argmin on the last part alone: 0 and 1 as probabilities, where candidates are known.
    loud = boosted().plan(TARGET, num_records=3, **PROMISE)
    loud.parts[0].settings["coefficient"] *= 40
    loud.voting.settings["coefficient"] *= 40
    assert largest_loss(loud) > 1.2


@pytest.mark.parametrize("plant", [None, "argmin", "twice"])
def test_the_vote_is_audited_on_the_record_that_decides_it(plant):
    """Candidates −1 and 1, one voter: the log ratio of being chosen, attained up to what a pair can show."""
    plan = boosted().plan(TARGET, num_records=3, **PROMISE)
    chances = []
    for y in (-1.0, 1.0):
        vote = Exponential(hypotheses=POINTS[[0, 2], None], loss=absolute, loss_bound=2.0, regularisation=0.0)
        if plant == "twice":
            plan.voting.settings["coefficient"] *= 2 if y < 0 else 1
        weights = vote.weights(plan.voting, records([y]))
        if plant == "argmin":
            weights = [int(w == max(weights)) for w in weights]
        chances.append(Fraction(weights[0], sum(weights)))
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
    real = Exponential.draw_index
    monkeypatch.setattr(
        Exponential, "draw_index", lambda self, plan, data, key: seen.append((key,)) or real(self, plan, data, key)
    )
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
    # One part and the vote after each other on the SAME records would cost more.
    both = plan.parts[0].guarantee.compose(plan.voting.guarantee)
    assert both.epsilon > 1.5
    data = {"x": np.random.default_rng(0).normal(size=(400, 2)) / 8, "y": np.arange(400) % 2}
    data["x"] /= np.maximum(1, np.linalg.norm(data["x"], axis=1, keepdims=True))
    found = release(plan, data)
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
        PrivateSelection([candidate()], loss_bound=1.0)
    with pytest.raises(ValueError, match="loss_bound"):
        PrivateSelection([candidate()] * 2, loss_bound=0.0)
    with pytest.raises(UnsupportedCombination, match="add_remove"):
        boosted().plan(TARGET, num_records=30, adjacency="add_remove", **PROMISE)
    with pytest.raises(ValueError, match="num_records"):
        boosted().plan(TARGET, num_records=2, **PROMISE)

    class Dear:
        def plan(self, target, **promise):
            return candidate().plan(target, **(promise | {"epsilon": 2 * promise["epsilon"]}))

    with pytest.raises(ValueError, match="candidates: one costs"):
        PrivateSelection([Dear(), Dear()], loss_bound=1.0).plan(TARGET, num_records=30, **PROMISE)
