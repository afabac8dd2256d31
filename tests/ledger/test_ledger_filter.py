"""What a ledger admits: costs and budgets against closed forms, and analysts who choose by earlier results."""

import math

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from scipy.special import log_expit
from scipy.stats import norm

from dpmcmc.privacy import (
    Event,
    FixedSize,
    Full,
    Guarantee,
    Ledger,
    OverBudget,
    Poisson,
    UnsupportedCombination,
    calibrate,
)
from dpmcmc.privacy.accounting import ADJACENCIES, pure, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_mu
from dpmcmc.privacy.ledger import event_cost, filters

FILTERS = {"renyi": filters.Renyi(12), "zcdp": filters.ZeroConcentrated(), "gdp": filters.GaussianFilter()}
PROMISES = [(0.01, 1e-6), (1.0, 1e-6), (8.0, 1e-5), (20.0, 1e-9)]


def gaussian(z, count=1):
    return Event("gaussian", float(z), 1.0, count)


def pure_release(epsilon, count=1):
    return Event("pure", 0.0, 1.0, count, epsilon=epsilon)


def ledger(tmp_path, name="renyi", **terms):
    body = {
        "name": "test",
        "num_records": None,
        "adjacency": Adjacency.ZERO_OUT,
        "epsilon": 1.0,
        "delta": 1e-3,
        "filter": name,
    }
    return Ledger.init(tmp_path / f"{name}.ledger", **(body | terms))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_gaussian_releases_cost_their_closed_form(adjacency):
    sensitivity = 2.0 if adjacency == "replace_one" else 1.0
    events = (gaussian(3.0, 7), gaussian(0.5), Event("posterior_draw", 2.0, 1.0, 2))
    squared = sensitivity**2 * (7 / 9 + 4 + 2 / 4)
    assert FILTERS["renyi"].cost(events, adjacency) == pytest.approx(12 * squared / 2, rel=1e-8)
    assert FILTERS["zcdp"].cost(events, adjacency) == pytest.approx(squared / 2, rel=1e-8)
    assert FILTERS["gdp"].cost(events, adjacency) == pytest.approx(squared, rel=1e-8)


@pytest.mark.parametrize("name", FILTERS)
def test_costs_are_rounded_up_and_add_over_events(name):
    chosen = FILTERS[name]
    one, other = (gaussian(3.0, 5),), (gaussian(4.0), pure_release(0.1))
    exact = {"renyi": 12 * 5 / 18, "zcdp": 5 / 18, "gdp": 5 / 9}[name]
    assert chosen.cost(one, Adjacency.ZERO_OUT) >= exact
    together = chosen.cost(one + other, Adjacency.ZERO_OUT)
    assert together == pytest.approx(
        chosen.cost(one, Adjacency.ZERO_OUT) + chosen.cost(other, Adjacency.ZERO_OUT), rel=1e-9
    )
    assert chosen.cost((gaussian(0.0),), Adjacency.ZERO_OUT) == math.inf
    assert chosen.cost((Event("poisson_gaussian", 0.0, 0.1, 1),), Adjacency.ZERO_OUT) == math.inf
    assert chosen.cost((), Adjacency.ZERO_OUT) == 0.0


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_sampled_queries_cost_their_divergence_at_the_order_and_no_more_than_unsampled(adjacency):
    event = Event("poisson_gaussian", 2.0, 0.01, 100)
    orders, divergence = rdp.compose([event], adjacency)
    cost = filters.Renyi(8).cost((event,), adjacency)
    assert cost == pytest.approx(np.interp(8, orders, divergence), rel=1e-2)
    unsampled = (gaussian(2.0, 100),)
    assert cost < filters.Renyi(8).cost(unsampled, adjacency) / 100
    assert FILTERS["gdp"].cost((event,), adjacency) == FILTERS["gdp"].cost(unsampled, adjacency)


def test_fixed_size_sampling_costs_its_theorem_at_integers_and_has_none_under_add_remove():
    event = Event("fixed_size_gaussian", 2.0, 0.01, 100, num_records=1000)
    orders, divergence = rdp.compose([event], Adjacency.REPLACE_ONE)
    assert FILTERS["renyi"].cost((event,), Adjacency.REPLACE_ONE) == pytest.approx(
        divergence[list(orders).index(12)], rel=1e-8
    )
    for chosen in FILTERS.values():
        with pytest.raises(UnsupportedCombination, match="fixed_size"):
            chosen.cost((event,), Adjacency.ADD_REMOVE)


@pytest.mark.parametrize("order", [2, 5, 64])
@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 5.0, 400.0])
def test_randomised_response_costs_its_exact_divergence(order, epsilon):
    log_p, log_q = float(log_expit(epsilon)), float(log_expit(-epsilon))
    terms = [order * log_p + (1 - order) * log_q, order * log_q + (1 - order) * log_p]
    exact = float(np.logaddexp(*terms)) / (order - 1)
    cost = event_cost.randomised_response(epsilon, order)
    assert cost == pytest.approx(exact, rel=1e-6, abs=1e-15)
    assert cost <= min(epsilon, order * epsilon**2 / 2) * (1 + 1e-8)


def test_randomised_response_dominates_laplace():
    for order in (2, 3, 10, 50):
        for epsilon in (0.01, 0.5, 2.0):
            # Mironov 2017, Table II.
            a = math.log(order / (2 * order - 1)) + (order - 1) * epsilon
            b = math.log((order - 1) / (2 * order - 1)) - order * epsilon
            assert event_cost.randomised_response(epsilon, order) >= np.logaddexp(a, b) / (order - 1)


@pytest.mark.parametrize("epsilon", [1e-5, 0.1, 1.0, 6.0, 60.0])
def test_a_pure_release_in_gdp_is_the_least_gaussian_below_two_chords(epsilon):
    mu = math.sqrt(event_cost.gdp_cost(pure_release(epsilon), Adjacency.ZERO_OUT))
    x = np.concatenate([np.logspace(-40, -1, 400), np.linspace(0.1, 0.9, 200)])
    chords = np.maximum(0, np.maximum(1 - np.exp(epsilon) * x, np.exp(-epsilon) * (1 - x)))
    assert np.all(norm.cdf(norm.isf(x) - mu) <= chords * (1 + 1e-7) + 1e-15)
    kink = 1 / (1 + math.exp(epsilon))
    assert norm.cdf(norm.isf(kink) - mu) == pytest.approx(kink, rel=1e-6)


def objective_density(theta, records, sigma, regularisation):
    """log density of the perturbed minimiser of 1-D logistic losses log(1 + e^{-xθ})."""
    gradient, curvature = regularisation * theta, np.full_like(theta, regularisation)
    for x in records:
        s = 1 / (1 + np.exp(np.clip(x * theta, -700, 700)))
        gradient, curvature = gradient - x * s, curvature + x * x * s * (1 - s)
    return norm.logpdf(gradient, scale=sigma) + np.log(curvature)


@pytest.mark.parametrize(("sigma", "regularisation", "order"), [(8.0, 5.0, 20), (20.0, 1.0, 20), (5.0, 0.2, 6)])
@pytest.mark.parametrize(
    ("adjacency", "other"), [(Adjacency.ADD_REMOVE, ()), (Adjacency.ZERO_OUT, ()), (Adjacency.REPLACE_ONE, (-1.0,))]
)
def test_objective_perturbation_costs_at_least_its_exact_divergence(sigma, regularisation, order, adjacency, other):
    event = Event("objective_perturbation", sigma, 1.0, 1, epsilon=math.log1p(0.25 / regularisation))
    cost = event_cost.renyi_cost(event, adjacency, order)
    reach = (14 * sigma * order + 3) / regularisation
    theta, width = np.linspace(-reach, reach, 200_001, retstep=True)
    p, q = (objective_density(theta, records, sigma, regularisation) for records in ((1.0,), other))
    for a, b in ((p, q), (q, p)):
        exact = np.logaddexp.reduce(order * a + (1 - order) * b) + math.log(width)
        assert exact / (order - 1) <= cost
    assert cost <= FILTERS["renyi"].cost((gaussian(sigma),), adjacency) * order / 12 + 2 * event.epsilon


@pytest.mark.parametrize(("epsilon", "delta"), PROMISES)
def test_a_spent_budget_is_the_promise(epsilon, delta):
    order = filters.best_order(epsilon, delta)
    renyi = filters.Renyi(order).budget(epsilon, delta)
    assert compute_epsilon([order], [renyi], delta)[0] == pytest.approx(epsilon, rel=1e-6)
    assert compute_epsilon([order], [renyi], delta)[0] <= epsilon * (1 + 1e-9)
    mu = math.sqrt(filters.GaussianFilter().budget(epsilon, delta))
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-4)
    assert gaussian_delta(mu, epsilon) <= delta
    rho = filters.ZeroConcentrated().budget(epsilon, delta)
    spent = (gaussian(1 / math.sqrt(2 * rho)),)
    assert rdp.epsilon(spent, Adjacency.ZERO_OUT, delta) == pytest.approx(epsilon, rel=1e-3)
    # An order is never better than all of them, and the best is nearly as good.
    assert 0.9 * rho < renyi / order <= rho * (1 + 1e-3)
    for chosen in (filters.Renyi(order), filters.ZeroConcentrated(), filters.GaussianFilter()):
        budget = chosen.budget(epsilon, delta)
        assert chosen.epsilon(budget, delta) == pytest.approx(epsilon, rel=1e-5)
        assert chosen.cost((gaussian(1 / chosen.gaussian(budget)),), Adjacency.ZERO_OUT) == pytest.approx(
            budget, rel=1e-6
        )
        assert chosen.epsilon(0.0, delta) == 0.0


def test_the_best_order_is_the_best_integer():
    for epsilon, delta in PROMISES:
        best = filters.best_order(epsilon, delta)
        worth = {
            a: filters.Renyi(a).budget(epsilon, delta) / a for a in (2, best - 1, best, best + 1, 2 * best) if a > 1
        }
        assert max(worth.values()) == pytest.approx(worth[best], rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.1, 3.0, 690.0, 800.0])
def test_deviations_and_charged_steps_share_delta(epsilon):
    left, beta = filters.split_delta(epsilon, 1e-6, 0.1)
    if epsilon < 700:
        assert left + (1 + math.exp(epsilon)) * beta <= 1e-6
        assert left + (1 + math.exp(epsilon)) * beta == pytest.approx(1e-6, rel=1e-9)
    assert left < 1e-6
    assert beta >= 0


def test_a_step_that_reveals_all_with_the_allowed_probability_stays_within_the_promise():
    epsilon, delta = 1.0, 1e-3
    left, beta = filters.split_delta(epsilon, delta, 0.1)
    mu = gaussian_mu(epsilon, left)
    # Exactly: reveals the data set with probability β, else one Gaussian release.
    assert beta + (1 - beta) * gaussian_delta(mu, epsilon) <= delta
    # Shown to matter: without the split, it is beyond.
    assert beta + (1 - beta) * gaussian_delta(gaussian_mu(epsilon, delta), epsilon) > delta


def profile(event, epsilon):
    """Exact δ(ε), ε of either sign, of one pure or Gaussian release under zero_out."""
    if epsilon < 0:
        return -math.expm1(epsilon) + math.exp(epsilon) * profile(event, -epsilon)
    if event.mechanism == "pure":
        return pure.mixed([event], lambda e: 0.0, epsilon)
    return gaussian_delta(1 / event.noise_multiplier, epsilon)


def adaptive_delta(first, after_high, after_low, epsilon):
    """Exact δ(ε) of randomised response, then a release that is chosen by its answer; the same in both directions."""
    p = 1 / (1 + math.exp(-first.epsilon))
    return p * profile(after_high, epsilon - first.epsilon) + (1 - p) * profile(after_low, epsilon + first.epsilon)


def largest(admitted, low, high):
    """The largest strength at which ``admitted``, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if admitted(middle) else (low, middle)
    return low


def chosen_by_answer(admitted, first):
    """The strongest pure release, and the strongest Gaussian one, that may follow ``first``."""
    strong = pure_release(largest(lambda e: admitted((first, pure_release(e))), 0.0, 5.0))
    wide = gaussian(1 / largest(lambda mu: admitted((first, gaussian(1 / mu))), 1e-6, 5.0))
    return strong, wide


EPSILON, DELTA, FIRST = 1.0, 1e-3, pure_release(0.05)


@pytest.mark.parametrize("name", FILTERS)
def test_what_a_filter_admits_is_within_the_promise_when_the_choice_is_adaptive(name):
    chosen = filters.make_filter(name, filters.best_order(EPSILON, DELTA) if name == "renyi" else None)
    budget = chosen.budget(EPSILON, DELTA)
    strong, wide = chosen_by_answer(lambda events: chosen.cost(events, Adjacency.ZERO_OUT) <= budget, FIRST)
    for pair in ((strong, wide), (wide, strong), (strong, strong), (wide, wide)):
        assert adaptive_delta(FIRST, *pair, EPSILON) <= DELTA
    # And not by refusing everything: a Gaussian alone may use much of δ.
    assert adaptive_delta(FIRST, wide, wide, EPSILON) > 1e-3 * DELTA


def overspending_paths(tmp_path, paths=4):
    """Analysts whose next run depends on a coin that stands for earlier results; how many end above the budget."""
    rng = np.random.default_rng(0)
    over = 0
    for _ in range(paths):
        (tmp_path / "renyi.ledger").unlink(missing_ok=True)
        book = ledger(tmp_path)
        order, spent = book.terms.order, 0.0
        for _ in range(12):
            loud, z = rng.random() < 0.5, rng.uniform(8, 20)
            event = pure_release(0.2) if loud else gaussian(z)
            run = Guarantee.from_events((event,), delta=1e-3, adjacency="zero_out", accountant="pld")
            try:
                book.reserve(run, "run")
            except OverBudget:
                continue
            spent += event_cost.randomised_response(0.2, order) if loud else order / (2 * z**2)
        over += spent > book.terms.budget
    return over


def test_no_path_of_an_adaptive_analyst_spends_more_than_the_budget(tmp_path):
    terms = ledger(tmp_path).terms
    assert compute_epsilon([terms.order], [terms.budget], terms.charged_delta)[0] == pytest.approx(1.0, rel=1e-6)
    assert overspending_paths(tmp_path) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "promise"), [(Poisson(100), 1.0), (Poisson(100), 6.0), (FixedSize(100), 1.0), (Full(), 1.0)]
)
def test_the_epsilon_that_a_refusal_names_fits_when_it_is_asked_for(tmp_path, sampling, promise):
    accountant = "rdp" if isinstance(sampling, FixedSize) else "pld"
    run = {"steps": 100, "sampling": sampling, "num_records": 10_000, "delta": 1e-6, "accountant": accountant}
    book = ledger(tmp_path, num_records=10_000, adjacency="replace_one", epsilon=promise, delta=1e-6)
    z = calibrate(epsilon=1.5 * promise, **run)
    refused = account(z, **run)
    with pytest.raises(OverBudget) as refusal:
        book.reserve(refused, "loud")
    epsilon = book.fitting_epsilon(refused)
    assert f"privacy.epsilon={epsilon:g}" in str(refusal.value)
    assert str(refusal.value).count(". ") == 0
    asked = account(calibrate(epsilon=epsilon, **run), **run)
    assert book.fits(asked)
    # Not far from what is possible: a tenth more is refused.
    assert not book.fits(account(calibrate(epsilon=1.1 * epsilon, **run), **run))
    book.reserve(asked, "asked")


def test_a_refusal_says_what_is_left_of_the_budget(tmp_path):
    book = ledger(tmp_path, epsilon=1.0, delta=1e-6)
    worth = book.state().epsilon_left
    z = 1 / gaussian_mu(worth, 1e-6)
    run = Guarantee.from_events((gaussian(z * 1.001),), delta=1e-6, adjacency="zero_out", accountant="pld")
    assert book.fits(run)
    assert not book.fits(
        Guarantee.from_events((gaussian(z / 1.001),), delta=1e-6, adjacency="zero_out", accountant="pld")
    )
    with pytest.raises(OverBudget, match=f"worth a Gaussian release of epsilon {math.floor(worth * 1e3) / 1e3:g}"):
        book.reserve(Guarantee.from_events((gaussian(1),), delta=1e-6, adjacency="zero_out", accountant="pld"), "loud")


def test_overflow_has_a_budget_of_its_own(tmp_path):
    book = ledger(tmp_path, epsilon=8.0, delta=1e-6)
    quiet = (gaussian(100), Event("batch_overflow", 0.0, book.terms.overflow * 0.6, 1))
    run = Guarantee.from_events(quiet, delta=1e-3, adjacency="zero_out", accountant="pld")
    book.reserve(run, "first")
    with pytest.raises(OverBudget, match="overflow"):
        book.reserve(run, "second")
