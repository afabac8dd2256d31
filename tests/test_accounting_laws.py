"""Laws that every accountant obeys, whatever the run; and dp-accounting's answers from the same inputs."""

import math

import numpy as np
import pytest
from dp_accounting.pld import common, pld_pmf
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpmcmc.privacy import Event, FixedSize, Full, Guarantee, Poisson, account
from dpmcmc.privacy.accounting import ADJACENCIES, TRACE_ACCOUNTANTS, rdp
from dpmcmc.privacy.accounting.composition import Composed, Masses, window
from dpmcmc.privacy.accounting.events import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon

N, DELTA = 400, 1e-5
#: A grid of the PLD accountant moves an answer by less than this share.
GRID = 2e-3

fast = settings(max_examples=8, deadline=None, derandomize=True)
# A few, whose costs the accountants remember from law to law.
noise = st.sampled_from((0.8, 1.3, 4.0, 20.0))
rates = st.sampled_from((0.01, 0.05, 0.25, 1.0))
counts = st.integers(1, 60)
adjacencies = st.sampled_from(ADJACENCIES)
accountants = pytest.mark.parametrize("accountant", TRACE_ACCOUNTANTS)


def spent(accountant, z, steps, rate, adjacency, delta=DELTA, chains=1):
    sampling = Full() if rate == 1 else Poisson(rate * N)
    return account(
        z, steps=steps, sampling=sampling, num_records=N, delta=delta, chains=chains, adjacency=adjacency,
        accountant=accountant,
    )  # fmt: skip


@accountants
@fast
@given(pair=st.lists(noise, min_size=2, max_size=2, unique=True), steps=counts, rate=rates, adjacency=adjacencies)
def test_more_noise_never_costs_more(accountant, pair, steps, rate, adjacency):
    more, less = (spent(accountant, z, steps, rate, adjacency).epsilon for z in sorted(pair))
    assert less <= more * (1 + GRID)


@accountants
@fast
@given(z=noise, steps=counts, more=counts, rate=rates, adjacency=adjacencies)
def test_more_steps_never_cost_less(accountant, z, steps, more, rate, adjacency):
    longer = spent(accountant, z, steps + more, rate, adjacency).epsilon
    assert longer >= spent(accountant, z, steps, rate, adjacency).epsilon * (1 - GRID)


@accountants
@fast
@given(z=noise, steps=counts, pair=st.lists(rates, min_size=2, max_size=2, unique=True), adjacency=adjacencies)
def test_larger_batches_never_cost_less(accountant, z, steps, pair, adjacency):
    small, large = (spent(accountant, z, steps, rate, adjacency).epsilon for rate in sorted(pair))
    assert small <= large * (1 + GRID)


@accountants
@fast
@given(z=noise, steps=counts, rate=rates, adjacency=adjacencies)
def test_a_smaller_delta_never_costs_less_and_the_curve_inverts(accountant, z, steps, rate, adjacency):
    guarantee = spent(accountant, z, steps, rate, adjacency)
    assert guarantee.epsilon_at(DELTA / 10) >= guarantee.epsilon * (1 - GRID)
    assume(math.isfinite(guarantee.epsilon) and 0 < guarantee.epsilon < 600)
    assert guarantee.delta_at(guarantee.epsilon * (1 + GRID)) <= DELTA * (1 + 1e-6)


@accountants
@fast
@given(z=noise, steps=counts, chains=st.integers(2, 4), rate=rates, adjacency=adjacencies)
def test_chains_and_compositions_are_the_run_of_all_their_steps(accountant, z, steps, chains, rate, adjacency):
    together = spent(accountant, z, chains * steps, rate, adjacency)
    assert spent(accountant, z, steps, rate, adjacency, chains=chains).epsilon == pytest.approx(together.epsilon)
    first, rest = (spent(accountant, z, k * steps, rate, adjacency) for k in (1, chains - 1))
    # Two runs keep room for a truncated batch each, so that their deviations differ from those of one. That room is set
    # by the ε of one run, and at a large ε of both it is none.
    assume(together.epsilon < 6)
    assert first.compose(rest).epsilon == pytest.approx(together.epsilon, rel=1e-2, abs=1e-6)
    assert rest.compose(first).epsilon == pytest.approx(first.compose(rest).epsilon, rel=1e-12)


@accountants
@fast
@given(z=noise, steps=counts, rate=rates)
def test_a_replaced_record_costs_at_least_an_absent_one(accountant, z, steps, rate):
    absent, zeroed, replaced = (
        spent(accountant, z, steps, rate, adjacency).epsilon for adjacency in ("add_remove", "zero_out", "replace_one")
    )
    assert absent == zeroed
    assert absent <= replaced * (1 + GRID)


@fast
@given(z=noise, steps=counts, adjacency=adjacencies)
def test_full_batches_are_one_gaussian(z, steps, adjacency):
    z_charged = z / (1 + 2.0**-15)
    mu = (2 if adjacency == "replace_one" else 1) * math.sqrt(steps) / z_charged
    exact = gaussian_epsilon(mu, DELTA)
    assert spent("pld", z, steps, 1.0, adjacency).epsilon == pytest.approx(exact, rel=1e-12)
    assert spent("rdp", z, steps, 1.0, adjacency).epsilon >= exact


@fast
@given(size=st.integers(1, 100), steps=counts, z=noise)
def test_fixed_size_batches_cost_no_more_than_all_records(size, steps, z):
    """A subset of known size reveals at most what every record's query does."""
    arguments = {"steps": steps, "num_records": N, "delta": DELTA}
    for accountant in ("rdp", "advanced"):
        fixed = account(z, sampling=FixedSize(size), accountant=accountant, **arguments).epsilon
        assert fixed <= account(z, sampling=Full(), accountant=accountant, **arguments).epsilon * (1 + 1e-9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), size=st.integers(1, 400), first=st.integers(-300, 200), log_delta=st.floats(-30, 0))
def test_a_distribution_of_losses_answers_as_dp_accountings(seed, size, first, log_delta):
    rng = np.random.default_rng(seed)
    interval = 2.0 ** -int(rng.integers(3, 10))
    infinite = 10 ** rng.uniform(-20, -1)
    masses = rng.exponential(size=size) * np.exp(3 * rng.normal(size=size))
    masses *= (1 - infinite) / masses.sum()
    ours = Composed(Masses(first, masses, infinite), interval)
    theirs = pld_pmf.DensePLDPmf(interval, first, masses, infinite, True)
    for epsilon in (0.0, *rng.uniform(0, (abs(first) + size) * interval, 4)):
        assert ours.delta(epsilon) == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=1e-12)
    assert ours.delta(math.inf) == infinite
    delta = math.exp(log_delta)
    assert ours.epsilon(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-12)
    if size > 1:
        assert window(ours.masses, 7) == common.compute_self_convolve_bounds(masses, 7, 1e-15)


@pytest.mark.parametrize("z", [0.5, 3.0, 50.0])
@pytest.mark.parametrize(("rate", "count"), [(0.001, 10**6), (0.1, 1), (0.1, 100)])
def test_renyi_curves_are_converted_as_dp_accountings(z, rate, count):
    events = [Event("poisson_gaussian", z, rate, count)]
    orders, divergences = rdp.compose(events, Adjacency.REPLACE_ONE)
    finite = np.isfinite(divergences)
    for delta in (1e-2, 1e-6, 1e-12):
        expected = compute_epsilon(orders[finite], divergences[finite], delta)[0]
        assert rdp.epsilon(events, Adjacency.REPLACE_ONE, delta) == pytest.approx(expected, rel=1e-12)
    for epsilon in (0.0, 0.1, 1.0, 10.0):
        # dp-accounting takes log(1 − e^{−r}) of a small r, and loses digits.
        expected = compute_delta(orders[finite], divergences[finite], epsilon)[0]
        assert rdp.delta(events, Adjacency.REPLACE_ONE, epsilon) == pytest.approx(expected, rel=1e-9)


def test_losses_beyond_the_floats_have_an_epsilon_all_the_same():
    """e^{−loss} is 0 in float64 beyond 745: the loss itself is an upper bound, and below −710 nothing overflows."""
    far = Composed(Masses(2000, np.array([0.5, 0.5]), 0.0), 1.0)
    assert 2000 <= far.epsilon(0.1) <= 2001
    near = Composed(Masses(-2000, np.array([1.0]), 0.0), 1.0)
    assert near.epsilon(0.1) == 0.0
    assert Guarantee.from_events((), delta=DELTA, adjacency="add_remove", accountant="pld").epsilon == 0.0
