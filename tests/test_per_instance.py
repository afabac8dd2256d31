"""Per-instance ε: exact against quadrature, Monte Carlo and brute force, and the printed bounds shown false."""

import itertools

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from dpmcmc.diagnostics import per_instance
from dpmcmc.diagnostics.per_instance import releases
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from tests.pairs import covering

#: (leverage, residual, γ, δ): ε, and what the thesis's (5.5) says.
GOLDEN = {
    (0.01, 1, 10, 1e-6): (1.458375, 1.3216),
    (0.1, 1, 1, 1e-6): (2.311480, 1.9322),
    (0.001, 1, 100, 1e-6): (1.376602, 1.2612),
    (0.01, 0.5, 1, 1e-6): (0.267105, 0.2667),
    (0.1, 1, 1, 1e-5): (1.929552, None),
}


def regression(n=30, d=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, np.clip(x @ rng.normal(size=d) + rng.normal(size=n), -1, 1)


def posterior(x, y, ridge):
    precision = x.T @ x + ridge * np.eye(x.shape[1])
    return np.linalg.solve(precision, x.T @ y), precision


def hockey_stick(first, second, epsilon):
    """sup_S P(S) − e^ε Q(S) of two normals (mean, std), by quadrature of the positive part."""
    edges = np.sort(np.concatenate([m + np.array([-12, -6, -3, 0, 3, 6, 12]) * s for m, s in (first, second)]))

    def excess(u):
        return max(norm.pdf(u, *first) - np.exp(epsilon) * norm.pdf(u, *second), 0.0)

    return sum(quad(excess, a, b, limit=400, epsabs=1e-13)[0] for a, b in itertools.pairwise(edges))


def brute_shadow(x, y, i, ridge, gamma):
    """The normal law of x_iᵀθ without and with record i, from two fits of their own."""
    others = np.arange(len(y)) != i
    return [
        (x[i] @ mean, np.sqrt(x[i] @ np.linalg.solve(precision, x[i]) / gamma))
        for mean, precision in (posterior(x[others], y[others], ridge), posterior(x, y, ridge))
    ]


@pytest.mark.parametrize(("point", "epsilon"), [(p, e) for p, (e, _) in GOLDEN.items()])
def test_golden_values(point, epsilon):
    assert per_instance.ridge_ops_epsilon(*point) == pytest.approx(epsilon, abs=1e-5)


def test_values_are_vectorised_over_records():
    points = np.array(list(GOLDEN))
    together = per_instance.ridge_ops_epsilon(*points.T)
    np.testing.assert_array_equal(together, [per_instance.ridge_ops_epsilon(*p) for p in points])
    assert per_instance.ridge_ops_epsilon([[0.1], [0.2]], [1, 2, 3], 1.0, 1e-6).shape == (2, 3)
    assert per_instance.output_perturbation_epsilon([[1.0], [2.0]], [1, 2, 3], 1e-6).shape == (2, 3)


@pytest.mark.parametrize("i", [0, 3, 11, 17])
def test_epsilon_is_that_of_two_fits_by_quadrature(i):
    """The ε of one record of a regression, in the worse direction."""
    ridge, gamma, delta = 0.7, 5.0, 1e-4
    x, y = regression()
    without, with_record = brute_shadow(x, y, i, ridge, gamma)
    others = per_instance.leave_one_out(x, y, ridge)
    epsilon = float(per_instance.ridge_ops_epsilon(others.leverage[i], others.residual[i], gamma, delta))
    found = max(hockey_stick(without, with_record, epsilon), hockey_stick(with_record, without, epsilon))
    assert found == pytest.approx(delta, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leverage", "c", "epsilon"), covering(list(itertools.product((1e-3, 0.3, 20.0), (0.0, 0.7, 6.0), (0.0, 0.2, 1.5))))
)
def test_both_directions_by_quadrature(leverage, c, epsilon):
    without = (c, np.sqrt(leverage))
    with_record = (c / (1 + leverage), np.sqrt(leverage / (1 + leverage)))
    arguments = [np.array([v]) for v in (leverage, c, epsilon)]
    expected = hockey_stick(without, with_record, epsilon), hockey_stick(with_record, without, epsilon)
    assert releases.excess_without(*arguments) == pytest.approx(expected[0], rel=1e-6, abs=1e-10)
    assert releases.excess_with(*arguments) == pytest.approx(expected[1], rel=1e-6, abs=1e-10)


def test_log_ratio_of_draws_in_all_dimensions():
    """Monte Carlo of the densities of whole draws: what reduces them to one dimension is not used."""
    ridge, gamma, epsilon, draws = 0.5, 20.0, 0.4, 200_000
    x, y = regression(n=25, d=3, seed=5)
    others = per_instance.leave_one_out(x, y, ridge)
    i = int(np.argmax(others.leverage * others.residual**2))
    keep = np.arange(25) != i
    laws = []
    for fit in (posterior(x[keep], y[keep], ridge), posterior(x, y, ridge)):
        laws.append(multivariate_normal(fit[0], np.linalg.inv(gamma * fit[1])))
    c = np.array([np.sqrt(gamma) * abs(others.residual[i])])
    arguments = np.array([others.leverage[i]]), c, np.array([epsilon])
    for first, second, curve in ((*laws, releases.excess_without), (*laws[::-1], releases.excess_with)):
        theta = first.rvs(draws, random_state=7)
        gain = np.maximum(-np.expm1(epsilon - first.logpdf(theta) + second.logpdf(theta)), 0)
        delta = float(curve(*arguments)[0])
        assert delta > 0.005
        # 5 standard errors of 200,000 draws: about 2 % of δ.
        assert gain.mean() == pytest.approx(delta, abs=5 * gain.std() / np.sqrt(draws))


def test_epsilon_is_an_upper_end_and_no_more():
    rng = np.random.default_rng(0)
    mu, c, delta = 10 ** rng.uniform(-8, 2, 3000), 10 ** rng.uniform(-3, 3, 3000), 10 ** rng.uniform(-13, -1, 3000)
    epsilon = per_instance.ridge_ops_epsilon(mu, c, 1.0, delta)
    assert (per_instance.ridge_ops_delta(mu, c, 1.0, epsilon) <= delta).all()
    spent = epsilon > 0
    assert spent.mean() > 0.5
    below = per_instance.ridge_ops_delta(mu, c, 1.0, epsilon * (1 - 1e-6))
    assert (below[spent] > delta[spent]).all()


def test_curve_grows_with_leverage_and_with_the_residual():
    """What ``for_all`` and ``worst_case`` take from the proof in ``ridge_ops``."""
    rng = np.random.default_rng(1)
    mu, c, epsilon = 10 ** rng.uniform(-4, 1, 4000), 10 ** rng.uniform(-2, 1.5, 4000), 10 ** rng.uniform(-3, 1, 4000)
    more = mu * rng.uniform(1, 3, 4000)
    for curve in (releases.excess_without, releases.excess_with):
        value = curve(mu, c, epsilon)
        assert (curve(more, c * np.sqrt((1 + more) / (1 + mu)), epsilon) >= value - 1e-12).all()
        assert (curve(mu, c * 1.1, epsilon) >= value - 1e-12).all()


def test_records_that_move_nothing_and_records_that_move_everything():
    assert per_instance.ridge_ops_epsilon([0, 0, 0.1, np.inf, 0.1], [3, 0, 1, 1, np.inf], 1.0, 1e-6).tolist()[:2] == [
        0,
        0,
    ]
    assert np.isinf(per_instance.ridge_ops_epsilon([np.inf, 0.1], [1, np.inf], 1.0, 1e-6)).all()
    assert np.isinf(per_instance.ridge_ops_epsilon(0.1, 1, 1.0, 0.0))
    assert per_instance.ridge_ops_epsilon(1e-9, 1e-3, 1.0, 1e-3) == 0
    assert per_instance.output_perturbation_epsilon([0, np.inf], 1.0, [0.0, 0.1]).tolist() == [0, np.inf]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-0.1, 1, 1, 1e-6), "leverage"),
        ((np.nan, 1, 1, 1e-6), "leverage"),
        ((0.1, np.nan, 1, 1e-6), "residual"),
        ((0.1, 1, 0, 1e-6), "gamma"),
        ((0.1, 1, 1, 1.0), "delta"),
    ],
)
def test_impossible_arguments_are_refused(arguments, name):
    with pytest.raises(ValueError, match=f"^{name}: "):
        per_instance.ridge_ops_epsilon(*arguments)


def test_output_perturbation_is_the_exact_gaussian_curve():
    mu = np.geomspace(1e-4, 30, 40)
    for delta in (1e-9, 1e-6, 1e-2):
        found = per_instance.output_perturbation_epsilon(2 * mu, 2.0, delta)
        expected = np.array([gaussian_epsilon(m, delta) for m in mu])
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10)
        assert all(gaussian_delta(m, e) <= delta for m, e in zip(mu, found, strict=True))
        np.testing.assert_allclose(
            per_instance.output_perturbation_delta(mu, 1.0, found),
            np.minimum(delta, [gaussian_delta(m, 0) for m in mu]),
        )


def printed(mu, r, gamma, delta):
    """(5.5) of the thesis, as printed."""
    log = np.log(2 / delta)
    return 0.5 * abs(-np.log1p(mu) + gamma * mu * r**2 / (1 + mu)) + mu / 2 * log + np.sqrt(gamma * mu * log) * abs(r)


def printed_in_sample(mu, r, gamma, delta):
    """(5.6), as printed: the same in in-sample quantities, with a difference that should be a sum."""
    mu, r, log = mu / (1 + mu), r / (1 + mu), np.log(2 / delta)
    return 0.5 * abs(-np.log1p(-mu) - gamma * mu * r**2 / (1 - mu)) + mu / 2 * log + np.sqrt(gamma * mu * log) * abs(r)


@pytest.mark.parametrize(("point", "value"), [(p, v) for p, (_, v) in GOLDEN.items() if v is not None])
def test_printed_bound_is_below_the_exact_value(point, value):
    claim = printed(*point)
    assert claim == pytest.approx(value, abs=5e-4)
    mu, r, gamma, delta = point
    assert claim < per_instance.ridge_ops_epsilon(*point)
    assert per_instance.ridge_ops_delta(mu, r, gamma, claim) > delta


def test_the_printed_bound_is_missed_tenfold_and_its_second_form_is_smaller_still():
    point = (0.1, 1, 1, 1e-6)
    assert per_instance.ridge_ops_delta(*point[:3], printed(*point)) == pytest.approx(9.8e-6, rel=0.02)
    assert printed_in_sample(*point) == pytest.approx(1.71, abs=5e-3)
    assert printed_in_sample(*point) < printed(*point)


def test_a_tail_bound_in_one_direction_says_nothing_of_the_other():
    """Lemma 5.25: log q/p never exceeds its value at U = 0, log p/q exceeds it with probability far above δ."""
    mu, c = np.array([0.5]), np.array([0.0])
    most = 0.5 * np.log1p(mu)
    assert releases.excess_with(mu, c, most) == 0
    assert releases.excess_without(mu, c, most) > 0.05


def test_printed_gaussian_bound_is_false():
    """Lemma 5.4 at γ = 0.01, Δ = 0.1, δ = 1e-6: claims .0037, .0337 is true."""
    gamma, moved, delta = 0.01, 0.1, 1e-6
    claim = gamma * moved * np.sqrt(np.log(1.25 / delta))
    assert claim == pytest.approx(0.0037, abs=1e-4)
    assert per_instance.output_perturbation_epsilon(moved, gamma**-0.5, delta) == pytest.approx(0.0337, abs=1e-4)
    assert per_instance.output_perturbation_delta(moved, gamma**-0.5, claim) == pytest.approx(2.4e-3, rel=0.05)


@pytest.mark.parametrize("ridge", [0.0, 0.3, 5.0])
def test_leave_one_out_by_brute_force(ridge):
    x, y = regression(n=12)
    found = per_instance.leave_one_out(x, y, ridge)
    whole, _ = posterior(x, y, ridge)
    np.testing.assert_allclose(found.estimate, whole, rtol=1e-9)
    for i in range(12):
        others = np.arange(12) != i
        mean, precision = posterior(x[others], y[others], ridge)
        assert found.leverage[i] == pytest.approx(x[i] @ np.linalg.solve(precision, x[i]), rel=1e-9)
        assert found.residual[i] == pytest.approx(y[i] - x[i] @ mean, rel=1e-8)
        assert found.shift[i] == pytest.approx(np.linalg.norm(whole - mean), rel=1e-8)


def test_the_only_record_of_a_direction_is_not_private_without_a_ridge():
    x = np.array([[1.0, 0], [1, 0], [0.5, 0], [0, 1]])
    found = per_instance.leave_one_out(x, np.ones(4), 0.0)
    assert np.isinf(found.leverage).tolist() == [False, False, False, True]
    epsilon = per_instance.ridge_ops_epsilon(found.leverage, found.residual, 1.0, 1e-6)
    assert np.isfinite(epsilon).tolist() == [True, True, True, False]
    with pytest.raises(ValueError, match=r"^ridge: "):
        per_instance.leave_one_out(x[:3], np.ones(3), 0.0)
    with pytest.raises(ValueError, match=r"^ridge: "):
        per_instance.leave_one_out(x[:1], np.ones(1), 0.0)


DOMAIN = {"ridge": 1.0, "delta": 1e-6, "row_bound": 1.0, "target_bound": 1.0}


def candidates(x, y, count=20_000, seed=3):
    """Leverage, residual and shift of records at the edge of the domain, from the fit of all of x, y."""
    rng = np.random.default_rng(seed)
    mean, precision = posterior(x, y, 1.0)
    _, axes = np.linalg.eigh(precision)
    z = rng.normal(size=(count, x.shape[1])) * 10 ** rng.uniform(-2, 1, (count, x.shape[1]))
    z = z @ axes.T
    z *= (rng.uniform(0, 1, (count, 1)) ** 0.2) / np.linalg.norm(z, axis=1, keepdims=True)
    solved = np.linalg.solve(precision, z.T).T
    leverage, residual = np.einsum("ij,ij->i", z, solved), np.abs(z @ mean) + 1
    return leverage, residual, residual * np.linalg.norm(solved, axis=1) / (1 + leverage)


@pytest.mark.parametrize(("n", "d", "seed"), [(30, 1, 0), (30, 4, 1), (60, 15, 2)])
def test_for_all_bounds_every_record_and_is_attained(n, d, seed):
    x, y = regression(n, d, seed)
    leverage, residual, shift = candidates(x, y)
    for found, others, loose in (
        (
            per_instance.ridge_ops_for_all(x, y, gamma=10.0, **DOMAIN),
            per_instance.ridge_ops_epsilon(leverage, residual, 10.0, 1e-6),
            1.02,
        ),
        (
            per_instance.output_perturbation_for_all(x, y, noise_std=0.5, **DOMAIN),
            per_instance.output_perturbation_epsilon(shift, 0.5, 1e-6),
            1.1,
        ),
    ):
        assert others.max() <= found.epsilon
        assert found.attained <= found.epsilon <= loose * found.attained
        assert np.linalg.norm(found.x) <= 1 + 1e-9
        assert abs(found.y) == 1
    # The record found costs what it is said to, by fits with and without it.
    joined = np.vstack([x, found.x]), np.append(y, found.y)
    moved = np.linalg.norm(posterior(x, y, 1.0)[0] - posterior(*joined, 1.0)[0])
    assert per_instance.output_perturbation_epsilon(moved, 0.5, 1e-6) == pytest.approx(found.attained, rel=1e-7)
    record = per_instance.ridge_ops_for_all(x, y, gamma=10.0, **DOMAIN)
    joined = np.vstack([x, record.x]), np.append(y, record.y)
    last = per_instance.leave_one_out(*joined, 1.0)
    epsilon = per_instance.ridge_ops_epsilon(last.leverage[-1], last.residual[-1], 10.0, 1e-6)
    assert epsilon == pytest.approx(record.attained, rel=1e-7)


def test_for_all_with_an_estimate_of_zero():
    x, _ = regression()
    found = per_instance.ridge_ops_for_all(x, np.zeros(len(x)), gamma=10.0, **DOMAIN)
    assert found.attained <= found.epsilon <= 1.02 * found.attained


def test_worst_case_bounds_data_sets_and_is_attained_in_one_direction():
    n, gamma, delta = 50, 2.0, 1e-6
    worst = per_instance.ridge_ops_worst_case(num_records=n, ridge=1.0, gamma=gamma, delta=delta)
    moved = per_instance.output_perturbation_sensitivity(num_records=n, ridge=1.0)
    # All in one direction: n rows of one length and target 1, and a row of norm 1 with target −1.
    square = np.linspace(0, n, 200_001)
    leverage, estimate = 1 / (square + 1), np.sqrt(n * square) / (square + 1)
    attained = per_instance.ridge_ops_epsilon(leverage[::20], 1 + estimate[::20], gamma, delta).max()
    assert attained <= worst <= 1.01 * attained
    shift = (1 + estimate) * leverage / (1 + leverage)
    assert shift.max() <= moved <= 1.002 * shift.max()
    for seed in range(20):
        x, y = regression(n, 3, seed)
        x *= np.random.default_rng(seed).uniform(0, 1, (n, 1)) ** (seed % 3)
        found = per_instance.leave_one_out(x, y, 1.0)
        assert per_instance.ridge_ops_epsilon(found.leverage, found.residual, gamma, delta).max() <= worst
        assert found.shift.max() <= moved


def test_worst_case_in_other_units():
    """Rows ten times as long and a ridge a hundred times as large are the same regression, a tenth the estimate."""
    shared = {"num_records": 50, "target_bound": 2.0}
    one = per_instance.output_perturbation_sensitivity(ridge=1.0, row_bound=1.0, **shared)
    ten = per_instance.output_perturbation_sensitivity(ridge=100.0, row_bound=10.0, **shared)
    assert ten == pytest.approx(one / 10)
    same = [
        per_instance.ridge_ops_worst_case(ridge=a, row_bound=b, gamma=1.0, delta=1e-6, **shared)
        for a, b in ((1.0, 1.0), (100.0, 10.0))
    ]
    assert same[0] == pytest.approx(same[1])
    with pytest.raises(ValueError, match=r"^ridge: "):
        per_instance.output_perturbation_sensitivity(num_records=5, ridge=0.0)
