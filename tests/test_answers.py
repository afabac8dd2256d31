"""Noisy sums cost what is charged, differ by what is stated on neighbours, and err as their closed forms say."""

import math
import random

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from dpmcmc.privacy import Guarantee
from dpmcmc.privacy.interactive import (
    BudgetSpent,
    GaussianAnswers,
    LaplaceAnswers,
    above_threshold,
    answers,
    thresholdout,
)
from dpmcmc.privacy.ledger import Ledger, LedgerError, OverBudget
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.randomness import new_key
from dpmcmc.samplers.sgld import SGLD, SGLDState
from experiments import adaptive_answers
from tests.test_above_threshold import Double, law

N = 40
S = 0.25


def records(values) -> dict[str, np.ndarray]:
    return {"x": np.asarray(values, np.float64)}


def identity(record) -> float:
    return record["x"]


def gaussian(queries: int = 5, values=None, **changes) -> GaussianAnswers:
    return GaussianAnswers(
        records(np.zeros(N) if values is None else values), **{"queries": queries, "std": S, "delta": 1e-6} | changes
    )


@pytest.fixture
def alike(monkeypatch):
    """The same Gaussian noise for every answer."""
    monkeypatch.setattr(answers, "new_key", lambda entropy: new_key(bytes(32)))


# Gaussian answers: the price.


@pytest.mark.parametrize("queries", [2, 5, 65])
def test_all_answers_cost_one_gaussian(queries):
    """An independent computation: μ² = k/(n²w²), and Theorem 8 of Balle and Wang (2018) written out."""
    mu = math.sqrt(queries) / (N * math.sqrt(math.sqrt(queries - 1) * S**2 / N))

    def delta(epsilon: float) -> float:
        low, high = stats.norm.cdf([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu])
        return low - math.exp(epsilon) * high

    desk = gaussian(queries)
    epsilon = brentq(lambda e: delta(e) - 1e-6, 0, 50)
    assert epsilon <= desk.guarantee.epsilon <= epsilon * (1 + 1e-4)
    assert desk.noise_std**2 == pytest.approx(math.sqrt(queries - 1) * S**2 / N)
    event, deviation = desk.guarantee.events
    assert (event.mechanism, event.count, deviation.count) == ("gaussian", queries, queries)
    assert desk.guarantee.adjacency == "replace_one"
    assert Guarantee.from_json(desk.guarantee.to_json()) == desk.guarantee


def asked(monkeypatch, desk: GaussianAnswers, queries: int) -> list[float]:
    """The noise that each answer had, in units of the mean."""
    found: list[float] = []
    real = answers.gaussian_release

    def watched(value, std, key):
        found.append(std / (N * thresholdout.ONE))
        return real(value, std, key)

    monkeypatch.setattr(answers, "gaussian_release", watched)
    for _ in range(queries):
        desk.ask(identity)
    return found


def test_every_answer_has_the_noise_that_is_charged_the_last_one_too(monkeypatch):
    desk = gaussian(5)
    assert asked(monkeypatch, desk, 5) == pytest.approx([desk.noise_std] * 5)
    assert desk.left == 0
    with pytest.raises(BudgetSpent):
        desk.ask(lambda record: pytest.fail("a record was looked at"))


def test_an_answer_is_the_mean_plus_exact_noise(alike):
    """The grid is finer than a grid step of the sum, so the same noise cancels exactly but for a float64 rounding."""
    desk, empty = (gaussian(2, values) for values in (np.arange(N) % 2, np.zeros(N)))
    assert desk.ask(identity) - empty.ask(identity) == pytest.approx(0.5, abs=1e-12)
    with_noise = [gaussian(2).ask(identity) for _ in range(2)]
    assert with_noise[0] == with_noise[1] != 0


# Replay on neighbours.


def moved(replacement: float, position: int) -> float:
    x = np.linspace(0, 1, N)
    first = gaussian(3, x).ask(identity)
    return abs(gaussian(3, np.where(np.arange(N) == position, replacement, x)).ask(identity) - first)


def test_neighbours_differ_by_one_nth(alike):
    """Replay: the same noise, one record replaced by anything."""
    most = max(moved(value, i) for i in (0, 17, N - 1) for value in (0.0, 1.0, -9.0, 9.0, math.nan, math.inf))
    assert most == pytest.approx(1 / N, abs=1e-12)


def test_values_that_are_not_clipped_are_caught(alike, monkeypatch):
    """Planted fault."""
    monkeypatch.setattr(thresholdout, "in_steps", lambda value: round(float(value) * thresholdout.ONE))
    assert moved(9.0, 0) > 1.5 / N


# The purpose of the noise.


@pytest.mark.parametrize(("queries", "bias", "error"), [(5, 1.33, 4), (17, 3.20, 8), (65, 7.11, 16)])
def test_an_adversary_gains_the_root_of_k_and_without_noise_k(queries, bias, error):
    variance = math.sqrt(queries - 1)
    assert adaptive_answers.closed(queries, variance) == pytest.approx((bias, error), abs=0.01)
    assert adaptive_answers.closed(queries, 0.0) == (queries - 1, queries - 1)
    assert error < 2 * variance + 1
    rng = np.random.default_rng(0)
    for noise in (variance, 0.0):
        found = adaptive_answers.simulated(queries, noise, 4000, rng)
        for values, exact in zip(found, adaptive_answers.closed(queries, noise), strict=True):
            assert values.mean() == pytest.approx(exact, abs=4.5 * values.std() / math.sqrt(4000))


def test_the_game_against_the_library_has_the_error_of_the_closed_form(monkeypatch):
    """Its noise by NumPy, seeded; the answers are in integers as ever."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(answers, "gaussian_release", lambda value, std, key: value + std * rng.standard_normal(1))
    errors = adaptive_answers.played(17, 8, 300, rng)
    assert errors.mean() == pytest.approx(8, abs=4.5 * errors.std() / math.sqrt(300))
    # Means without noise have 16.
    assert errors.mean() < 12


def test_an_answer_is_a_draw_of_a_posterior_at_temperature_root_of_k_minus_one(monkeypatch):
    """SGLD on U = Σ(x_i − θ)²/2s² with a flat prior, whose posterior at temperature T is N(mean x, T s²/n)."""
    queries, chains, steps = 17, 4000, 60
    x = S * (np.arange(N) % 2 * 2 - 1.0) + 0.5
    desk = gaussian(queries, x)
    curvature = N / S**2
    sampler = SGLD(step_size=0.1 * S**2, temperature=math.sqrt(queries - 1)).bind(num_records=N)
    rng = np.random.default_rng(3)
    state = SGLDState(np.full(chains, 0.5))
    for t in range(steps):
        std = sampler.noise_std(t)
        noisy = curvature * (state.position - x.mean()) + std * rng.standard_normal(chains)
        state, _ = sampler.step(None, state, PrivateGradient(noisy, np.float32(std)), np.int32(t))
    # A step of ηH = 0.1 has 1/(1 − ηH/2) of the variance; after 60 of them 0.9^120 of it is left out.
    law = desk.noise_std**2 / (1 - 0.05)
    found = np.asarray(state.position)
    assert found.var() == pytest.approx(law, rel=4.5 * math.sqrt(2 / chains))
    assert found.mean() == pytest.approx(x.mean(), abs=4.5 * math.sqrt(law / chains))
    # The answers themselves, in the library's integers, seeded.
    monkeypatch.setattr(answers, "new_key", lambda entropy: new_key(rng.bytes(32)))
    answered = np.array([gaussian(queries, x).ask(identity) for _ in range(200)])
    assert answered.var() == pytest.approx(desk.noise_std**2, rel=5 * math.sqrt(2 / 200))
    assert answered.mean() == pytest.approx(x.mean(), abs=5 * desk.noise_std / math.sqrt(200))


# The ledger.


@pytest.mark.parametrize("kind", [gaussian, None])
def test_the_price_is_reserved_before_a_record_is_looked_at(kind):
    log: list = []
    ask = {"ledger": Double(log)}
    desk = (
        gaussian(2, np.ones(2), delta=0.1, **ask) if kind else LaplaceAnswers(records(np.ones(2)), 1.0, 1.0, 2, **ask)
    )

    def phi(record) -> float:
        log.append("read")
        return 0.5

    assert log == []
    desk.ask(phi)
    desk.ask(phi)
    assert log == ["reserve", "identify", "read", "read", "settle", "read", "read"]
    full = {"ledger": Double([], full=True)}
    desk = gaussian(2, **full) if kind else LaplaceAnswers(records(np.ones(2)), 1.0, 1.0, **full)
    with pytest.raises(OverBudget):
        desk.ask(lambda record: pytest.fail("a record was looked at"))


def test_a_real_ledger_takes_them(tmp_path):
    terms = {"name": "means", "epsilon": 3.0, "delta": 1e-6, "adjacency": "replace_one", "num_records": N}
    ledger = Ledger.init(tmp_path / "ledger", **terms)
    desk = gaussian(3, np.full(N, 0.5), std=0.5, ledger=ledger)
    desk.ask(identity)
    spent = ledger.state().spent
    assert 0 < spent <= desk.guarantee.epsilon
    assert not ledger.state().open
    desk.ask(identity)
    assert ledger.state().spent == spent
    LaplaceAnswers(records(np.full(N, 0.5)), 0.5, 1.0, ledger=ledger).ask(identity)
    assert spent < ledger.state().spent
    with pytest.raises(OverBudget):
        gaussian(3, np.full(N, 0.5), ledger=ledger).ask(lambda record: pytest.fail("a record was looked at"))
    with pytest.raises(LedgerError, match="not the data"):
        LaplaceAnswers(records(np.zeros(N)), 0.1, 1.0, ledger=ledger).ask(identity)


def test_a_question_that_asks_itself_spends_no_more_than_there_is():
    desk = LaplaceAnswers(records(np.ones(1)), 1.0, 1.0)
    with pytest.raises(BudgetSpent):
        desk.ask(lambda record: desk.ask(identity))
    assert desk.left == 0


# Laplace answers.


@pytest.mark.parametrize(("adjacency", "moved"), [("replace_one", 2), ("add_remove", 1), ("zero_out", 1)])
@pytest.mark.parametrize("queries", [1, 3])
def test_the_log_ratio_of_the_law_is_epsilon(silent, monkeypatch, adjacency, moved, queries):
    """The exact law on a coarse grid; the shift is Δ, split among two coordinates."""
    monkeypatch.setattr(answers, "ONE", 4)
    desk = LaplaceAnswers(records(np.zeros(N)), 0.75, 2.0, queries, adjacency)
    desk.ask(identity)
    (scale,) = silent
    assert desk.scale == pytest.approx(2.0 * moved * queries / 0.75)
    x = np.arange(-60, 61)
    worst = sum(
        np.abs(np.log(law(x, float(scale))) - np.log(law(x + d, float(scale)))).max() for d in (moved, 3 * moved)
    )
    assert queries * worst == pytest.approx(0.75, rel=1e-9)
    assert desk.guarantee.epsilon == 0.75
    assert desk.guarantee.delta == 0


def sums(rows, **changes) -> np.ndarray:
    return LaplaceAnswers(records(rows), 1.0, 1.5, **changes).ask(identity)


def largest_move() -> tuple[float, float]:
    """Largest l1 distance of the sums of neighbours without noise: one record replaced, and one left out."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 3))
    rows[0] = (-1.5, 0, 0)
    whole = sums(rows)
    replaced, removed = 0.0, 0.0
    for new in ((1.5, 0, 0), (9, 9, -9), (math.inf, 1, math.nan), *rng.laplace(size=(20, 3))):
        for i in range(3):
            other = np.where(np.arange(20)[:, None] == i, np.array(new), rows)
            replaced = max(replaced, np.abs(sums(other) - whole).sum())
    for i in range(20):
        removed = max(removed, np.abs(sums(np.delete(rows, i, axis=0)) - whole).sum())
    return replaced, removed


def test_neighbours_differ_by_the_sensitivity_and_no_more(silent):
    """Replay with the same noise, which is none."""
    replaced, removed = largest_move()
    assert replaced == pytest.approx(2 * 1.5, abs=1e-5)
    assert removed == pytest.approx(1.5, abs=1e-5)
    assert max(replaced / 2, removed) <= 1.5


def test_rows_that_are_not_scaled_are_caught(silent, monkeypatch):
    """Planted fault."""
    monkeypatch.setattr(answers.np, "maximum", lambda norm, bound: np.full_like(norm, bound))
    assert largest_move()[0] > 4


def test_the_largest_error_is_below_its_bound_as_often_as_the_law_says(monkeypatch):
    """d = 10, Δ/ε = 1, β = 5 %: the bound log(d/β) = 5.298 holds with probability (1 − e^{−5.298})^10 = .951."""
    monkeypatch.setattr(above_threshold, "randbelow", random.Random(2).randrange)
    desk = LaplaceAnswers(records(np.zeros((1, 10))), 400.0, 0.5, 400)
    assert desk.scale == 1.0
    errors = np.array([np.abs(desk.ask(identity)).max() for _ in range(400)])
    chance = (1 - 0.05 / 10) ** 10
    assert chance == pytest.approx(0.951, abs=5e-4)
    held = np.mean(errors <= math.log(10 / 0.05))
    assert held == pytest.approx(chance, abs=4.5 * math.sqrt(chance * (1 - chance) / 400))


def test_a_sum_has_the_shape_of_phi_and_counts_what_is_not_finite_as_nothing(silent):
    endless = LaplaceAnswers(records([[1e308, 1e308], [1.0, 2.0]]), 1.0, 8.0)
    assert endless.ask(identity).tolist() == [1.0, 2.0]
    desk = LaplaceAnswers(records([[1.0, 2.0], [math.nan, 3.0]]), 1.0, 8.0, queries=2)
    assert desk.ask(lambda record: record["x"][:, None] * np.ones(1)).tolist() == [[1.0], [5.0]]
    with pytest.raises(ValueError, match="several shapes"):
        desk.ask(lambda record: record["x"][: int(record["x"][1]) - 1])
    assert repr(desk) == "LaplaceAnswers(1 answers left)"


# Refusals.


@pytest.mark.parametrize(
    ("change", "said"),
    [({"queries": 1}, "one question needs no noise"), ({"queries": 2.5}, "queries must be a whole number"),
     ({"std": 0.0}, "std must lie"), ({"std": 0.6}, "std must lie"), ({"std": math.nan}, "std must lie"),
     ({"std": "half"}, "std must lie"), ({"queries": "ten"}, "queries must be a whole number"),
     ({"delta": 1 / N}, "delta"), ({"delta": 0.0}, "delta"), ({"values": np.zeros((0, 2))}, "records must be arrays")],
)  # fmt: skip
def test_gaussian_answers_that_cannot_be_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        gaussian(**change)


@pytest.mark.parametrize(
    ("change", "said"), [({"epsilon": 0.0}, "epsilon"), ({"epsilon": "one"}, "epsilon must be a finite number > 0"),
                         ({"bound": math.inf}, "bound"), ({"queries": 0}, "queries"),
                         ({"adjacency": "near"}, "near")],
)  # fmt: skip
def test_laplace_answers_that_cannot_be_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        LaplaceAnswers(records(np.zeros(3)), **{"epsilon": 1.0, "bound": 1.0} | change)
