"""Per-instance losses of an estimate plus noise, the worst case, and what moments say of generalisation."""

import math

import numpy as np
import pytest

from dpmcmc.diagnostics.per_instance import leave_one_out, ridge_ops_epsilon
from dpmcmc.privacy.accounting.gaussian import gaussian_delta
from experiments.sources import generalisation, per_instance, worst_case
from tests.diagnostics.test_per_instance import posterior, regression

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)) / 2
MODELS = {
    per_instance.squared: X[:, 0] + RNG.normal(size=24),
    per_instance.logistic: (X[:, 0] > 0).astype(float),
    per_instance.poisson: RNG.poisson(np.exp(X[:, 0])).astype(float),
}


@pytest.mark.parametrize("loss", MODELS, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("steps", [1, 8])
def test_refits_lie_within_their_certificates(loss, steps):
    y = MODELS[loss]
    exact = per_instance.refits(X, y, 2.0, loss, steps=30)
    assert exact.certificate.max() < 1e-10
    found = per_instance.refits(X, y, 2.0, loss, steps)
    assert np.all(np.linalg.norm(found.moved - exact.moved, axis=1) <= found.certificate + exact.certificate)
    if steps == 1 and loss is per_instance.poisson:
        assert found.certificate.max() > 1e-4


def test_shapes_of_noise_have_the_closed_forms_of_a_ridge():
    y = MODELS[per_instance.squared]
    each = leave_one_out(X, y, 2.0)
    found = per_instance.refits(X, y, 2.0, per_instance.squared)
    inside = each.leverage / (1 + each.leverage)
    for shape, expected in (
        ("democratic", np.abs(each.residual) * np.linalg.norm(X, axis=1)),
        ("fisher", np.abs(each.residual) * np.sqrt(inside)),
    ):
        shifts = found.shift(per_instance.noise_root(X.T @ X, shape, 2.0))
        np.testing.assert_allclose(shifts, expected, rtol=1e-8)


def test_printed_gaussian_bound_is_false():
    """Lemma 5.4 at γ = 0.01, Δ = 0.1, δ = 1e-6: claims .0037, .0337 is true."""
    claim = 0.01 * 0.1 * np.sqrt(np.log(1.25 / 1e-6))
    assert claim == pytest.approx(0.0037, abs=1e-4)
    assert per_instance.noisy_estimate_epsilon(0.1, 10.0, 1e-6) == pytest.approx(0.0337, abs=1e-4)
    assert gaussian_delta(0.01, claim) == pytest.approx(2.4e-3, rel=0.05)


@pytest.mark.parametrize(("n", "d", "seed"), [(30, 1, 0), (60, 15, 2)])
def test_for_all_bounds_every_record_and_is_attained(n, d, seed):
    x, y = regression(n, d, seed)
    draw = worst_case.draw_for_all(x, y, ridge=1.0, gamma=10.0, delta=1e-6)
    estimate = worst_case.estimate_for_all(x, y, ridge=1.0, noise_std=0.5, delta=1e-6)
    rng = np.random.default_rng(3)
    z = rng.normal(size=(5000, d)) * 10 ** rng.uniform(-2, 1, (5000, d))
    z *= (rng.uniform(0, 1, (5000, 1)) ** 0.2) / np.linalg.norm(z, axis=1, keepdims=True)
    mean, precision = posterior(x, y, 1.0)
    solved = np.linalg.solve(precision, z.T).T
    leverage, residual = np.einsum("ij,ij->i", z, solved), np.abs(z @ mean) + 1
    shift = residual * np.linalg.norm(solved, axis=1) / (1 + leverage)
    assert ridge_ops_epsilon(leverage, residual, 10.0, 1e-6).max() <= draw.epsilon <= 1.02 * draw.attained
    assert per_instance.noisy_estimate_epsilon(shift, 0.5, 1e-6).max() <= estimate.epsilon <= 1.1 * estimate.attained
    # The record found costs what it is said to, by a fit with it.
    last = leave_one_out(np.vstack([x, draw.x]), np.append(y, draw.y), 1.0)
    epsilon = ridge_ops_epsilon(last.leverage[-1], last.residual[-1], 10.0, 1e-6)
    assert epsilon == pytest.approx(draw.attained, rel=1e-7)


def test_the_worst_case_bounds_data_sets_and_is_attained_in_one_direction():
    worst, moved = worst_case.draw_epsilon(50, 1.0, 2.0, 1e-6), worst_case.estimate_sensitivity(50, 1.0)
    draw, shift = worst_case.attained(50, 2.0, 1e-6, 20_001)
    assert draw <= worst <= 1.01 * draw
    assert shift <= moved <= 1.002 * shift
    for seed in range(10):
        x, y = regression(50, 3, seed)
        found = leave_one_out(x, y, 1.0)
        assert ridge_ops_epsilon(found.leverage, found.residual, 2.0, 1e-6).max() <= worst


def test_the_moments_bound_holds_for_a_simulated_gap():
    found = generalisation.simulated(5, 0.4, 0.02, 4000)
    assert found["gap"] > 4 * found["gap_error"]
    assert found["gap"] < found["bound"] - 4 * found["bound_error"]
    # Planted: ε of a fortieth of the shift is below what the draw tells.
    small = per_instance.noisy_estimate_epsilon(np.abs(RNG.normal(size=(100, 9))) / 240, 0.4, 1e-4)
    assert generalisation.generalisation_bound(small, 1e-4).bound < found["gap"] - 4 * found["gap_error"]
    epsilon = RNG.exponential(0.3, (5, 6))
    pairs = [math.exp(row[a] + row[b]) for row in epsilon for a in range(6) for b in range(6) if a != b]
    bound = np.mean(pairs) - 1 + 0.01 * (1 + np.exp(epsilon).mean())
    assert generalisation.generalisation_bound(epsilon, 0.01).bound == pytest.approx(bound, rel=1e-12)
