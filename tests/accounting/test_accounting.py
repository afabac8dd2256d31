"""ε from events: golden values, bounds in order, and independent computations of the same quantity.

Laws that every accountant obeys, whatever the run; and dp-accounting's answers from the same inputs.
"""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import common, pld_pmf
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize

from dpmcmc.privacy import FixedSize, Full, Guarantee, Poisson, UnsupportedCombination
from dpmcmc.privacy.accounting import ADJACENCIES, TRACE_ACCOUNTANTS, Event, accountant_for, hockey_stick, pld, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.composition import Composed, Masses, window
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.events import bucket_down, overflow_probability, query_events, run_length
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from dpmcmc.privacy.accounting.gaussian_queries import queries

GOLDEN = {"steps": 2344, "num_records": 60_000, "delta": 1e-5}


def epsilon(z, sampling=None, **kwargs) -> float:
    return account(z, sampling=sampling or Poisson(256), **{**GOLDEN, **kwargs}).epsilon


def poisson(z: float, rate: float, count: int = 1) -> Event:
    return Event("poisson_gaussian", z, rate, count)


def deltas_of_a_step(epsilons: np.ndarray, z: float, q: float, direction: str) -> np.ndarray:
    """δ(ε) of one step at each ε, float64 in [0, 1]."""
    curve = hockey_stick.excess(epsilons, z, q, direction)
    return np.minimum(curve - np.expm1(np.minimum(epsilons, 0.0)), 1.0)


def test_golden_poisson_zero_out():
    assert epsilon(1.1, adjacency="zero_out") == pytest.approx(0.919, rel=0.01)


def test_golden_poisson_replace_one():
    assert epsilon(1.1, adjacency="replace_one") == pytest.approx(1.54, rel=0.01)


def test_golden_fixed_size_replace_one_rdp():
    assert 6.72 < epsilon(1.1, FixedSize(256), accountant="rdp") < 12


def test_golden_fixed_size_replace_one_advanced_charges_twice_the_clip():
    value = epsilon(1.1, FixedSize(256), accountant="advanced")
    assert 5e3 < value < 2e4  # 334 is what sensitivity C would give


def test_golden_schedule_is_composed_and_not_averaged():
    schedule = np.repeat([1.1, 2.2], 1172)
    assert epsilon(schedule, adjacency="zero_out") == pytest.approx(0.696, rel=0.01)
    assert epsilon(schedule[::-1], adjacency="zero_out") == pytest.approx(0.696, rel=0.01)


def test_pld_is_not_looser_than_renyi_at_large_noise():
    events = [poisson(1500.0, 0.01, 100_000)]
    for adjacency in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE):
        tight, loose = (m.epsilon(events, adjacency, 1e-5) for m in (pld, rdp))
        assert tight <= loose
        assert tight < 0.017
    assert pld.epsilon(events, Adjacency.ZERO_OUT, 1e-5) < 0.0081


SETTINGS = [
    (Poisson(256), "zero_out", 1.1, 2344),
    (Poisson(256), "add_remove", 0.7, 100),
    (Poisson(256), "replace_one", 1.1, 2344),
    (Poisson(600), "replace_one", 20.0, 5000),
    (Poisson(6000), "replace_one", 3.0, 1),
    (Poisson(6), "replace_one", 0.5, 10_000),
    (Full(), "replace_one", 30.0, 60),
    (FixedSize(60_000), "zero_out", 8.0, 10),
    (FixedSize(256), "replace_one", 1.1, 2344),
]


@pytest.mark.parametrize(("sampling", "adjacency", "z", "steps"), SETTINGS)
def test_accountants_stand_in_order(sampling, adjacency, z, steps):
    checks = account(
        z, steps=steps, sampling=sampling, num_records=60_000, delta=1e-5, adjacency=adjacency, accountant="rdp"
    ).cross_check()
    assert checks["rdp"] is not None
    if isinstance(sampling, FixedSize) and sampling.batch_size < 60_000:
        assert checks["pld"] is None
    else:
        assert checks["pld"] <= checks["rdp"] * (1 + 1e-9)
    # None: the textbook bound overflows, which is above everything.
    assert checks["advanced"] is None or checks["rdp"] <= checks["advanced"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("z", "q", "steps"), [(1.1, 256 / 60_000, 2344), (0.8, 0.01, 500), (4.0, 0.1, 300)])
def test_pld_lies_inside_an_independent_bracket(z, q, steps):
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    prv = PoissonSubsampledGaussianMechanism(sampling_probability=q, noise_multiplier=z)
    oracle = PRVAccountant(prvs=prv, max_self_compositions=steps, eps_error=0.01, delta_error=1e-10)
    low, middle, high = oracle.compute_epsilon(delta=1e-5, num_self_compositions=steps)
    ours = pld.epsilon([poisson(z, q, steps)], Adjacency.ADD_REMOVE, 1e-5)
    assert low <= ours <= high
    assert ours == pytest.approx(middle, rel=5e-3)


def replace_delta_by_quadrature(z: float, q: float, eps: float) -> float:
    c = 1 / z

    def normal(x):
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def gain(x):
        p = (1 - q) * normal(x) + q * normal(x - c)
        r = (1 - q) * normal(x) + q * normal(x + c)
        return p - math.exp(eps) * r

    # The ratio of the densities grows with x, so the gain is positive beyond one point.
    start, end = optimize.brentq(gain, -12 - c, 12 + c, xtol=1e-14), 12 + c
    knots = np.linspace(start, end, 31)
    parts = (integrate.quad(gain, a, b, epsabs=1e-17, epsrel=1e-10)[0] for a, b in itertools.pairwise(knots))
    return math.fsum(parts)


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
@pytest.mark.parametrize(("z", "q", "eps"), [(1.1, 0.01, 0.05), (0.5, 0.2, 1.5), (2.0, 0.5, 0.3), (5.0, 0.05, 0.01)])
def test_one_replace_one_step_matches_quadrature_of_its_pair(z, q, eps):
    reference = replace_delta_by_quadrature(z, q, eps)
    exact = float(deltas_of_a_step(np.array([eps]), z, q, "replace")[0])
    assert exact == pytest.approx(reference, rel=1e-7)
    ours = pld.delta([poisson(z, q)], Adjacency.REPLACE_ONE, eps)
    assert reference <= ours * (1 + 1e-9)
    assert ours <= reference * 1.02 + 1e-12


@pytest.mark.parametrize("direction", ["replace", "remove", "add"])
@pytest.mark.parametrize(("z", "q"), [(0.7, 0.01), (3.0, 0.4), (1500.0, 0.01), (0.03, 1e-4)])
def test_hockey_stick_curves_are_those_of_a_pair(direction, z, q):
    """Decreasing, convex in e^ε, at least 1 − e^ε, and tending to the ends they must."""
    low, high = hockey_stick.loss_range(z, q, direction, -40.0)
    eps = low + (high - low) * np.arange(401) / 400
    curve = deltas_of_a_step(eps, z, q, direction)
    assert np.all(np.diff(curve) <= 1e-15)
    assert np.all(curve >= -np.expm1(np.minimum(eps, 0)) - 1e-15)
    assert curve[-1] <= math.exp(-40.0) * 1.01
    body = np.abs(eps) < 30
    if body.sum() > 20 and eps[1] - eps[0] > 1e-12:
        slopes = np.diff(curve[body]) / np.diff(np.exp(eps[body]))
        assert np.all(np.diff(slopes) >= -1e-7)


@pytest.mark.parametrize(("z", "q"), [(1.1, 0.0042), (0.6, 0.1), (10.0, 0.02)])
def test_renyi_add_remove_matches_dp_accounting_at_integer_orders(z, q):
    orders = [2, 3, 5, 8, 16, 32]
    oracle = dp_accounting.rdp.RdpAccountant(orders=orders)
    oracle.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)))
    ours = rdp.one_step(poisson(z, q), Adjacency.ADD_REMOVE, orders)
    np.testing.assert_allclose(ours, oracle.rdp, rtol=1e-8)


def renyi_by_mpmath(z: float, q: float, alpha: float) -> float:
    import mpmath as mp

    with mp.workdps(25):
        c, a, q = 1 / mp.mpf(z), mp.mpf(alpha), mp.mpf(q)

        def integrand(x):
            up = (1 - q) + q * mp.e ** (c * x - c * c / 2)
            down = (1 - q) + q * mp.e ** (-c * x - c * c / 2)
            return mp.npdf(x) * up**a * down ** (1 - a)

        reach = 20 + float(alpha / z)
        knots = [mp.mpf(v) for v in np.linspace(-20, reach, max(9, int(reach / 3)))]
        return float(mp.log(mp.quad(integrand, knots)) / (a - 1))


@pytest.mark.parametrize(
    ("z", "q", "alpha"),
    [
        (1.1, 0.0042, 2),
        (1.1, 0.0042, 7.3),
        (0.5, 0.1, 1.5),
        (3.0, 0.5, 24.7),
        (1000.0, 0.01, 1.02),
        (1500.0, 0.01, 333.3),
        (0.05, 0.5, 1.02),
        (0.02, 0.5, 1.02),
        (0.1, 0.01, 1.3),
        (1e5, 1e-3, 2.5),
        (2e4, 0.9, 1e5),
    ],
)
def test_renyi_replace_one_matches_high_precision_quadrature(z, q, alpha):
    ours = float(rdp.one_step(poisson(z, q), Adjacency.REPLACE_ONE, (alpha,))[0])
    reference = renyi_by_mpmath(z, q, alpha)
    reference = min(reference, 2 * alpha / z**2)
    assert reference <= ours * (1 + 2e-9)
    # Where terms beyond e^30 matter at orders next to 1, they are bounded and not computed.
    assert ours <= reference * (1.01 if z < 0.1 else 1 + 2e-9)


@pytest.mark.parametrize("q", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("c", [0.4, 2.0])
def test_the_replace_one_pair_dominates_every_pair_of_clipped_vectors(q, c):
    """Hockey-stick divergence of mixtures shifted by any u, u' in the plane, by quadrature, several γ."""
    rng = np.random.default_rng(0)
    grid = np.linspace(-8 - c, 8 + c, 401)
    x, y = np.meshgrid(grid, grid, indexing="ij")
    cell = (grid[1] - grid[0]) ** 2
    rest = (1 - q) * np.exp(-(x**2 + y**2) / 2) / (2 * np.pi)

    def mixture(u):
        return rest + q * np.exp(-((x - u[0]) ** 2 + (y - u[1]) ** 2) / 2) / (2 * np.pi)

    pairs = [(rng.normal(size=2), rng.normal(size=2)) for _ in range(8)]
    pairs = [
        (c * rng.uniform() ** 0.3 * u / np.linalg.norm(u), c * rng.uniform() ** 0.3 * v / np.linalg.norm(v))
        for u, v in pairs
    ]
    pairs.append((np.array([c, 0.0]), np.array([-c, 0.0])))
    for gamma in (0.5, 0.9, 1.0, 1.2, 2.0, 8.0):
        bound = float(deltas_of_a_step(np.array([math.log(gamma)]), 1 / c, q, "replace")[0])
        values = [float(np.sum(np.maximum(mixture(u) - gamma * mixture(v), 0)) * cell) for u, v in pairs]
        assert max(values) <= bound + 5e-5 * (1 + gamma)
        assert values[-1] == pytest.approx(bound, abs=5e-5 * (1 + gamma))  # the bad pair itself attains it


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE])
def test_an_upper_bound_of_the_rate_may_be_charged(adjacency):
    """Every hockey-stick divergence of one step grows with the rate."""
    eps = np.linspace(-3, 3, 61)
    for direction in hockey_stick.pair_directions(adjacency):
        curves = [deltas_of_a_step(eps, 0.8, q, direction) for q in (0.001, 0.01, 0.1, 0.5, 0.99)]
        for smaller, larger in itertools.pairwise(curves):
            assert np.all(smaller <= larger + 1e-15)


@pytest.mark.parametrize(("z", "delta"), [(0.3, 1e-5), (1.0, 1e-9), (20.0, 1e-6), (300.0, 1e-4)])
def test_rate_one_is_the_exact_gaussian(z, delta):
    oracle = dp_accounting.get_epsilon_gaussian(z, delta)
    for sampling in (Full(), FixedSize(100), Poisson(100)):
        g = account(z, steps=1, sampling=sampling, num_records=100, delta=delta, adjacency="zero_out")
        assert oracle <= g.epsilon * (1 + 1e-9)
        assert g.epsilon == pytest.approx(oracle, rel=2e-4, abs=1e-12)  # KAPPA of z
    double = account(2 * z, steps=1, sampling=Full(), num_records=100, delta=delta, adjacency="replace_one")
    assert double.epsilon == pytest.approx(oracle, rel=2e-4, abs=1e-12)


def test_gaussian_curve_and_its_inverses_agree():
    for mu in (1e-4, 0.3, 5.0, 30.0, 1e4):
        for delta in (1e-26, 1e-12, 1e-5, 0.1, 0.9):
            eps = gaussian_epsilon(mu, delta)
            assert gaussian_delta(mu, eps) <= delta
            if eps > 0:
                assert gaussian_delta(mu, eps * (1 - 1e-6)) > delta
                assert gaussian_mu(eps, delta) == pytest.approx(mu, rel=1e-6)
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert math.isinf(gaussian_epsilon(1.0, 0.0))


def test_two_queries_on_one_batch_are_one_gaussian():
    """The hazard: composing them as independent reports 2.96 where 5.29 is true."""
    one = pld.epsilon([poisson(1 / math.sqrt(2), 0.01, 1000)], Adjacency.ADD_REMOVE, 1e-6)
    assert one == pytest.approx(5.29, rel=0.01)
    assert pld.epsilon([poisson(1.0, 0.01, 2000)], Adjacency.ADD_REMOVE, 1e-6) == pytest.approx(2.96, rel=0.01)


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize(("low", "high", "shape"), [(0.5, 1.0, 1), (1.0, 4.0, 3), (0.9, 60.0, 2)])
def test_bucketing_never_undercuts_and_wastes_less_than_one_percent(low, high, shape, adjacency):
    z = low + (high - low) * np.linspace(0, 1, 60) ** shape
    orders = tuple(1 + np.geomspace(0.5, 200, 12))

    def total(values, counts):
        parts = [
            n * rdp.one_step(poisson(float(v), 0.005), adjacency, orders) for v, n in zip(values, counts, strict=True)
        ]
        return np.sum(parts, axis=0)

    exact = total(z, np.full(60, 20))
    values, counts = bucket_down(z, np.full(60, 20))
    assert len(values) < 60
    assert counts.sum() == 1200
    bucketed = total(values, counts)
    assert np.all(bucketed >= exact * (1 - 1e-12))

    def eps(renyi):
        return dp_accounting.rdp.compute_epsilon(np.array(orders), renyi, 1e-5)[0]

    assert eps(exact) <= eps(bucketed) <= 1.01 * eps(exact)


@pytest.mark.parametrize("schedule", [np.linspace(1, 2, 10**6), np.geomspace(0.3, 100, 10**5)], ids=["linear", "wide"])
def test_a_million_different_multipliers_become_a_few_groups_at_once(schedule):
    values, counts = bucket_down(schedule, np.ones_like(schedule))
    assert len(values) < 300
    assert counts.sum() == schedule.size
    # Rounded down everywhere: the i-th smallest charged value never exceeds the i-th smallest real one.
    assert np.all(np.repeat(values, counts) <= np.sort(schedule))


def test_short_schedules_are_exact():
    values, counts = bucket_down(np.array([3.0, 1.0, 3.0, 2.0]), np.array([1, 2, 3, 4]))
    np.testing.assert_array_equal(values, [1, 2, 3])
    np.testing.assert_array_equal(counts, [2, 4, 4])


def test_events_merge_drop_and_refuse():
    events = (poisson(1.0, 0.1, 2), poisson(1.0, 0.1, 3), Event("batch_overflow", 0.0, 1e-9, 5), poisson(1.0, 0.0, 9))
    assert run_length(events)[0].count == 5
    assert queries(events) == [poisson(1.0, 0.1, 5)]
    assert overflow_probability(events) == pytest.approx(5e-9)
    assert queries([poisson(2.0, 1.0)]) == [Event("gaussian", 2.0, 1.0, 1)]
    for bad in (
        {"mechanism": "laplace"},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.nan},
        {"rate": 1.5},
        {"count": -1},
        {"mechanism": "fixed_size_gaussian"},
    ):
        with pytest.raises(ValueError):
            Event(**{"mechanism": "gaussian", "noise_multiplier": 1.0, "rate": 0.5, "count": 1, **bad})
    assert query_events("gaussian", np.array([]), 1.0) == ()


@pytest.mark.parametrize("name", ["pld", "rdp", "advanced"])
def test_no_noise_is_no_guarantee_and_no_query_costs_nothing(name):
    module = accountant_for(name, [], Adjacency.REPLACE_ONE)
    assert module.epsilon([], Adjacency.REPLACE_ONE, 1e-5) == 0
    assert module.delta([], Adjacency.REPLACE_ONE, 1.0) == 0
    assert math.isinf(module.epsilon([poisson(0.0, 0.1)], Adjacency.REPLACE_ONE, 1e-5))
    assert module.delta([poisson(0.0, 0.1)], Adjacency.REPLACE_ONE, 1.0) == 1
    assert math.isinf(module.epsilon([poisson(1.0, 0.1)], Adjacency.REPLACE_ONE, 0.0))


@pytest.mark.parametrize("name", ["pld", "rdp", "advanced"])
@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE])
@pytest.mark.parametrize(("z", "q", "count"), [(1.5, 0.02, 200), (0.01, 0.001, 3), (40.0, 1.0, 50), (0.6, 0.5, 1)])
def test_epsilon_and_delta_are_inverse(name, adjacency, z, q, count):
    module = accountant_for(name, [], adjacency)
    events = [poisson(z, q, count)]
    for delta in (1e-3, 1e-7):
        eps = module.epsilon(events, adjacency, delta)
        if not 0 < eps < 600:
            continue
        back = module.delta(events, adjacency, eps)
        assert back <= delta * 1.05
        assert back >= delta / 3


def test_tiny_noise_stays_cheap_and_true():
    """At z = .005 a step shows its batch: (0, q)-DP; no grid of gigabytes is built for it."""
    events = [poisson(0.005, 1e-7, 10)]
    assert pld.epsilon(events, Adjacency.REPLACE_ONE, 1e-5) == 0
    assert pld.delta(events, Adjacency.REPLACE_ONE, 0.0) >= 1e-6 * (1 - 1e-5)
    mixed = [poisson(0.005, 1e-7, 10), poisson(2.0, 0.01, 100)]
    assert pld.epsilon(mixed, Adjacency.REPLACE_ONE, 1e-5) >= pld.epsilon(mixed[1:], Adjacency.REPLACE_ONE, 1e-5)


def test_sampled_and_full_queries_compose_together():
    sampled, full = poisson(2.0, 0.01, 100), Event("gaussian", 20.0, 1.0, 4)
    parts = [pld.epsilon([e], Adjacency.REPLACE_ONE, 1e-5) for e in (sampled, full)]
    both = pld.epsilon([sampled, full], Adjacency.REPLACE_ONE, 1e-5)
    assert max(parts) < both < sum(parts) * 1.2
    assert both <= rdp.epsilon([sampled, full], Adjacency.REPLACE_ONE, 1e-5)


@pytest.mark.parametrize(
    ("sampling", "adjacency", "accountant", "names"),
    [
        (FixedSize(10), "replace_one", "pld", ("rdp", "advanced", "poisson")),
        (FixedSize(10), "zero_out", "pld", ("rdp", "poisson")),
        (FixedSize(10), "add_remove", "rdp", ("replace_one", "poisson")),
        (FixedSize(10), "zero_out", "rdp", ("replace_one", "poisson")),
        (FixedSize(10), "add_remove", "advanced", ("replace_one", "poisson")),
        (FixedSize(10), "zero_out", "advanced", ("replace_one", "poisson")),
        (Poisson(10), "substitute", "pld", ("replace_one", "add_remove", "zero_out")),
        (Poisson(10), "replace_one", "moments", ("advanced", "rdp", "pld")),
    ],
)
def test_unsupported_pairs_are_refused_and_name_what_is_supported(sampling, adjacency, accountant, names):
    with pytest.raises(UnsupportedCombination) as caught:
        account(
            1.0, steps=10, sampling=sampling, num_records=100, delta=1e-5, adjacency=adjacency, accountant=accountant
        )
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize("release", ["one_sample", "estimate", "everything"])
def test_releases_that_are_not_a_run_s_are_refused(release):
    with pytest.raises(UnsupportedCombination, match="trace"):
        account(1.0, steps=10, sampling=Full(), num_records=100, delta=1e-5, release=release)


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": 0},
        {"chains": 0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"noise_multiplier": [1.0, 2.0]},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.inf},
        {"num_records": 5},
    ],
)
def test_impossible_numbers_are_refused(bad):
    good = {"noise_multiplier": 1.0, "steps": 10, "sampling": Poisson(10), "num_records": 100, "delta": 1e-5}
    with pytest.raises(ValueError):
        account(**{**good, **bad})


@pytest.mark.parametrize("name", ["pld", "rdp", "advanced"])
@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE])
def test_almost_no_noise_at_a_large_rate_is_almost_no_privacy(name, adjacency):
    """At small z the quadrature's factors leave the floats; the answer must not collapse to zero."""
    module = accountant_for(name, [], adjacency)
    values = [module.epsilon([poisson(z, 0.5, 50)], adjacency, 1e-6) for z in (0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 1e-3)]
    assert all(a <= b for a, b in itertools.pairwise(values)), values
    # A sampled record is seen, about 1/(2z²) of loss each time; half of 50 times on average.
    assert values[-1] > 1e6
    assert values[3] > 50 * 0.3 / (2 * 0.03**2)


@pytest.mark.parametrize(("z", "b"), [(1.1, 256), (5.0, 256), (5.0, 20_000), (50.0, 256)])
def test_renyi_fixed_size_matches_dp_accounting_where_it_keeps_its_digits(z, b):
    """Its noise multiplier under REPLACE_ONE is std / (2C): half of ours."""
    orders = [2, 3, 8, 40]
    oracle = dp_accounting.rdp.RdpAccountant(
        orders=orders, neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    base = dp_accounting.dp_event.GaussianDpEvent(z / 2)
    oracle.compose(dp_accounting.dp_event.SampledWithoutReplacementDpEvent(60_000, b, base))
    gaussian = dp_accounting.rdp.RdpAccountant(
        orders=[2.0], neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    gaussian.compose(dp_accounting.GaussianDpEvent(1.0))
    assert gaussian.rdp[0] == pytest.approx(1.0), "dp-accounting changed its units under REPLACE_ONE"
    ours = rdp.one_step(Event("fixed_size_gaussian", z, b / 60_000, 1, 60_000), Adjacency.REPLACE_ONE, orders)
    np.testing.assert_allclose(ours, np.minimum(oracle.rdp, 2 * np.array(orders) / z**2), rtol=1e-7)


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
