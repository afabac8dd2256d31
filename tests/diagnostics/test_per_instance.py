"""Per-instance ε: exact against quadrature, Monte Carlo and brute force, and the printed bounds shown false."""

import itertools

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from dpmcmc.diagnostics import per_instance
from tests.pairs import covering

#: (leverage, residual, γ, δ): ε, and what the thesis's (5.5) says.
GOLDEN = {
    (0.01, 1, 10, 1e-6): (1.458375, 1.3216),
    (0.1, 1, 1, 1e-6): (2.311480, 1.9322),
    (0.001, 1, 100, 1e-6): (1.376602, 1.2612),
    (0.01, 0.5, 1, 1e-6): (0.267105, 0.2667),
    (0.1, 1, 1, 1e-5): (1.929552, None),
}


def delta_at(mu, r, gamma, epsilon):
    """The larger δ of adding and removing a record."""
    mu, c, epsilon = np.broadcast_arrays(mu, np.sqrt(gamma) * np.abs(r), epsilon)
    curves = per_instance.excess_without, per_instance.excess_with
    return np.maximum(*(curve(np.float64(mu), np.float64(c), np.float64(epsilon)) for curve in curves))


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
    assert per_instance.excess_without(*arguments) == pytest.approx(expected[0], rel=1e-6, abs=1e-10)
    assert per_instance.excess_with(*arguments) == pytest.approx(expected[1], rel=1e-6, abs=1e-10)


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
    for first, second, curve in ((*laws, per_instance.excess_without), (*laws[::-1], per_instance.excess_with)):
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
    assert (delta_at(mu, c, 1.0, epsilon) <= delta).all()
    spent = epsilon > 0
    assert spent.mean() > 0.5
    below = delta_at(mu, c, 1.0, epsilon * (1 - 1e-6))
    assert (below[spent] > delta[spent]).all()


def test_curve_grows_with_leverage_and_with_the_residual():
    """What ``experiments/sources/worst_case.py`` proves and needs."""
    rng = np.random.default_rng(1)
    mu, c, epsilon = 10 ** rng.uniform(-4, 1, 4000), 10 ** rng.uniform(-2, 1.5, 4000), 10 ** rng.uniform(-3, 1, 4000)
    more = mu * rng.uniform(1, 3, 4000)
    for curve in (per_instance.excess_without, per_instance.excess_with):
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


@pytest.mark.parametrize(
    "arguments",
    [(-0.1, 1, 1, 1e-6), (np.nan, 1, 1, 1e-6), (0.1, np.nan, 1, 1e-6), (0.1, 1, 0, 1e-6), (0.1, 1, 1, 1.0)],
)
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=r"^leverage, residual, gamma, delta: "):
        per_instance.ridge_ops_epsilon(*arguments)


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
    assert delta_at(mu, r, gamma, claim) > delta


def test_the_printed_bound_is_missed_tenfold_and_its_second_form_is_smaller_still():
    point = (0.1, 1, 1, 1e-6)
    assert delta_at(*point[:3], printed(*point)) == pytest.approx(9.8e-6, rel=0.02)
    assert printed_in_sample(*point) == pytest.approx(1.71, abs=5e-3)
    assert printed_in_sample(*point) < printed(*point)


def test_a_tail_bound_in_one_direction_says_nothing_of_the_other():
    """Lemma 5.25: log q/p never exceeds its value at U = 0, log p/q exceeds it with probability far above δ."""
    mu, c = np.array([0.5]), np.array([0.0])
    most = 0.5 * np.log1p(mu)
    assert per_instance.excess_with(mu, c, most) == 0
    assert per_instance.excess_without(mu, c, most) > 0.05


@pytest.mark.parametrize("ridge", [0.0, 0.3, 5.0])
def test_leave_one_out_by_brute_force(ridge):
    x, y = regression(n=12)
    found = per_instance.leave_one_out(x, y, ridge)
    for i in range(12):
        others = np.arange(12) != i
        mean, precision = posterior(x[others], y[others], ridge)
        assert found.leverage[i] == pytest.approx(x[i] @ np.linalg.solve(precision, x[i]), rel=1e-9)
        assert found.residual[i] == pytest.approx(y[i] - x[i] @ mean, rel=1e-8)


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
