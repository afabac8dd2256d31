"""Objective perturbation: the profile bounds every true one, the minimiser is the minimiser, the noise is the noise."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from dpmcmc.mechanisms.huberised import HuberisedLogistic
from dpmcmc.mechanisms.minimise import minimise
from dpmcmc.mechanisms.objective_perturbation import ObjectivePerturbation
from dpmcmc.privacy import CalibrationError, Event, Guarantee, UnsupportedCombination
from dpmcmc.privacy.accounting import objective
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_delta
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.softmax import SoftmaxRegression
from dpmcmc.targets.tempered import Tempered

TARGET = LogisticRegression(num_features=3, row_bound=1.0)
BUDGET = {"num_records": 200, "epsilon": 1.0, "delta": 1e-6}


@functools.cache
def planned(regularisation=None, clip=None, adjacency="replace_one"):
    return ObjectivePerturbation(regularisation, clip=clip).plan(TARGET, adjacency=adjacency, **BUDGET)


def event(sigma: float, regularisation: float, curvature: float = 0.25) -> Event:
    return Event("objective_perturbation", sigma, 1.0, 1, epsilon=math.log1p(curvature / regularisation))


def clipped_event(sigma: float, regularisation: float, clip: float) -> Event:
    """Privacy of noise with std σ·clip: z is relative to the gradient's bound."""
    price = math.log1p(HuberisedLogistic(clip=clip).curvature_bound / regularisation)
    return Event("clipped_objective_perturbation", sigma, 1.0, 1, epsilon=price)


def density(theta, rows, counts, regularisation, sigma, clip=1.0):
    """Exact density of the minimiser at theta (..., d), of records with signed rows u: loss log(1 + exp(u·θ))."""
    d = rows.shape[1]
    s = expit(theta @ rows.T)
    force = (np.minimum(s, clip) * counts) @ rows + regularisation * theta
    hessian = np.einsum("...i,ij,ik->...jk", s * (1 - s) * (s < clip) * counts, rows, rows) + regularisation * np.eye(d)
    gaussian = np.exp(-np.sum(force**2, -1) / (2 * sigma**2)) / (2 * math.pi * sigma**2) ** (d / 2)
    return gaussian * np.linalg.det(hessian)


def true_delta_1d(first, second, regularisation, sigma, epsilon, clip=1.0):
    """Hockey-stick divergence of two exact minimisers, d = 1, by quadrature; data are (rows, counts)."""
    reach = (10 * sigma + max(np.abs(u) @ n for u, n in (first, second))) / regularisation
    theta = np.unique(np.concatenate([np.linspace(-reach, reach, 20001), np.linspace(-30, 30, 4001)]))
    p, q = (density(theta[:, None], u[:, None], n, regularisation, sigma, clip) for u, n in (first, second))
    return np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), theta)


ANCHORS = [(np.zeros(1), np.ones(1)), (np.array([-1.0]), np.array([30.0])), (np.array([-1.0]), np.array([1000.0]))]


def worst_added_record(regularisation, sigma, epsilon, clip=1.0, anchors=ANCHORS):
    """Largest true δ over a few data sets, both orders, of one record added."""
    worst = 0.0
    for rows, counts in anchors:
        for u in (1.0, -1.0, 0.4):
            more = (np.append(rows, u), np.append(counts, 1.0))
            for pair in ((more, (rows, counts)), ((rows, counts), more)):
                worst = max(worst, true_delta_1d(*pair, regularisation, sigma, epsilon, clip))
    return worst


@pytest.mark.parametrize(
    ("regularisation", "sigma", "epsilon", "attained"),
    [
        (1.0, 5.0, 1.2, 0.98),
        (1.0, 1.0, 0.7, 0.95),
        (0.5, 0.5, 1.4, 0.97),
        (0.25, 3.0, 0.9, 0.02),
        (10.0, 4.0, 0.1, 0.6),
    ],
)
def test_no_added_record_exceeds_the_profile_and_some_nearly_attain_it(regularisation, sigma, epsilon, attained):
    bound = objective.delta(event(sigma, regularisation), Adjacency.ADD_REMOVE, epsilon)
    worst = worst_added_record(regularisation, sigma, epsilon)
    assert worst <= bound * (1 + 2e-3)
    assert worst >= attained * bound
    assert objective.delta(event(sigma, regularisation), Adjacency.ZERO_OUT, epsilon) == bound


#: Records on the side of the added one: they keep θ where its clipped residual still has curvature.
SAME_SIDE = [*ANCHORS, (np.array([1.0]), np.array([30.0]))]


@pytest.mark.parametrize(
    ("clip", "regularisation", "sigma", "epsilon"), [(0.2, 1.0, 1.0, 0.9), (0.5, 1.0, 5.0, 1.2), (0.8, 10.0, 4.0, 0.1)]
)
def test_no_added_record_exceeds_the_profile_of_clipped_losses(clip, regularisation, sigma, epsilon):
    worst = worst_added_record(regularisation, sigma * clip, epsilon, clip, SAME_SIDE)
    assert worst <= objective.delta(clipped_event(sigma, regularisation, clip), Adjacency.ADD_REMOVE, epsilon)


def test_planted_fault_a_clipped_loss_charged_as_a_smooth_one_shows():
    """The logistic profile counts on curvature that vanishes where a record pulls hardest; a kink has it there."""
    worst = worst_added_record(1.0, 2.5, 1.2, 0.5, SAME_SIDE)
    assert worst > 3 * objective.delta(event(5.0, 1.0), Adjacency.ADD_REMOVE, 1.2)


@pytest.mark.parametrize(("mu", "clip", "beyond"), [(0.2, 0.5, 0.3), (1.0, 0.2, 1.5), (0.5, 1.0, 4.0)])
def test_a_clipped_loss_costs_the_gaussian_mechanism_beside_its_curvature(mu, clip, beyond):
    """A second account: μ-GDP, or 2μ-GDP for a replaced record, at ε less the price of the curvature."""
    charged = clipped_event(1 / mu, 2.0, clip)
    epsilon = charged.epsilon + max(beyond, mu**2)
    for adjacency, twice in ((Adjacency.ADD_REMOVE, 1), (Adjacency.REPLACE_ONE, 2)):
        exact = gaussian_delta(twice * mu, epsilon - charged.epsilon)
        assert exact <= objective.delta(charged, adjacency, epsilon) <= exact * (1 + 1e-6)


def test_constants_of_the_huberised_loss_bound_its_derivatives_and_are_attained():
    margins = np.linspace(-12, 12, 200_001)
    for clip in (0.2, 0.5, 0.7, 1.0):
        target = HuberisedLogistic(num_features=3, row_bound=2.0, clip=clip)
        slope = np.asarray(target.residual(margins, np.zeros(1)), np.float64)
        exact = np.clip(expit(margins), -clip, clip)
        curvature = np.diff(exact) / np.diff(margins)
        np.testing.assert_allclose(slope, exact, atol=1e-6)
        some, labels = margins[::1000], np.arange(201) % 2
        taken = -jax.vmap(jax.grad(target.log_density))(some, labels)
        np.testing.assert_allclose(taken, target.residual(some, labels), atol=1e-6)
        assert np.all(curvature >= 0)  # convex
        assert 2.0 * np.abs(exact).max() == pytest.approx(target.gradient_bound, rel=1e-4)
        assert 0.999 * target.smoothness < 4.0 * curvature.max() <= target.smoothness


def replaced_delta_2d(angle, pulled, regularisation, sigma, epsilon, clip=1.0):
    """True δ of u replaced by its mirror image, where many records ``pulled`` θ so far that both pull in full."""
    anchor = np.array([[0.0, -1.0]])
    u = np.array([[math.cos(angle), math.sin(angle)]])
    mirrored = u * np.array([-1.0, 1.0])
    counts = np.array([pulled, 1.0])
    first = np.linspace(-9 * sigma / regularisation - 2, 9 * sigma / regularisation + 2, 401)
    # θ₂ where the anchors' force balances the rest within 9σ.
    height = np.linspace(-45.0, 45.0, 20001)
    force = np.abs(-pulled * np.minimum(expit(-height), clip) + regularisation * height)
    near = height[force < 9 * sigma + 2]
    second = np.linspace(near.min(), near.max(), 301)
    theta = np.stack(np.meshgrid(first, second, indexing="ij"), -1)
    p, q = (density(theta, np.concatenate([anchor, r]), counts, regularisation, sigma, clip) for r in (u, mirrored))
    cell = (first[1] - first[0]) * (second[1] - second[0])
    assert np.sum(p) * cell == pytest.approx(1.0, abs=1e-3)
    return np.sum(np.maximum(p - math.exp(epsilon) * q, 0.0)) * cell


@pytest.mark.parametrize(
    ("angle", "pulled"), [(0.1, 1.0), (1.3, 1.0), (0.4, 1e3), (0.8, 1e3), (0.1, 1e9), (0.4, 1e9), (1.3, 1e9)]
)
def test_no_replaced_record_exceeds_the_profile(angle, pulled):
    for regularisation, sigma, epsilon in ((1.0, 2.0, 1.0), (0.5, 1.0, 2.0)):
        true = replaced_delta_2d(angle, pulled, regularisation, sigma, epsilon)
        assert true <= objective.delta(event(sigma, regularisation), Adjacency.REPLACE_ONE, epsilon) * (1 + 1e-3)


@pytest.mark.parametrize(("angle", "pulled"), [(0.1, 1.0), (0.4, 1e3), (1.3, 1e9)])
def test_no_replaced_record_exceeds_the_profile_of_clipped_losses(angle, pulled):
    true = replaced_delta_2d(angle, pulled, 1.0, 1.0, 1.0, clip=0.5)
    assert true <= objective.delta(clipped_event(2.0, 1.0, 0.5), Adjacency.REPLACE_ONE, 1.0) * (1 + 1e-3)


def test_a_replaced_record_nearly_attains_twice_the_sensitivity():
    """Also the planted fault: the bound of one record (L for 2L) would be far exceeded."""
    true = replaced_delta_2d(0.25, 1e12, 10.0, 2.0, 2.0)
    assert 0.7 * objective.delta(event(2.0, 10.0), Adjacency.REPLACE_ONE, 2.0) < true
    assert true > 10 * objective.delta(event(2.0, 10.0), Adjacency.ADD_REMOVE, 2.0)


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize(
    ("mu", "kappa", "epsilon"), [(0.2, 0.25, 1.0), (1.0, 1.0, 2.0), (0.5, 5.0, 3.0), (3.0, 0.1, 9.5)]
)
def test_profile_is_its_expectation_by_brute_force(adjacency, mu, kappa, epsilon):
    a = np.linspace(0, 1, 2001)
    z = np.linspace(-9, 10, 8001)
    shift = 1.5 if adjacency == "replace_one" else 0.5
    loss = np.array([np.max(np.log1p(4 * kappa * a * (1 - a)) + a * (mu * v + shift * mu**2)) for v in z])
    if adjacency == "replace_one":
        loss += mu * z + mu**2 / 2
    brute = np.trapezoid(stats.norm.pdf(z) * np.maximum(0, 1 - np.exp(epsilon - loss)), z)
    value = objective.delta(
        Event("objective_perturbation", 1 / mu, 1.0, 1, epsilon=math.log1p(kappa)), adjacency, epsilon
    )
    assert value == pytest.approx(brute, rel=3e-4)
    assert value >= brute * (1 - 2e-5)


def test_a_loss_without_curvature_costs_what_the_gaussian_mechanism_costs():
    for mu, epsilon in ((0.2, 1.0), (1.0, 3.0), (2.0, 6.0)):
        flat = Event("objective_perturbation", 1 / mu, 1.0, 1, epsilon=0.0)
        assert objective.delta(flat, Adjacency.ADD_REMOVE, epsilon) == pytest.approx(
            gaussian_delta(mu, epsilon), rel=1e-7
        )
        assert objective.delta(flat, Adjacency.REPLACE_ONE, epsilon) == pytest.approx(
            gaussian_delta(2 * mu, epsilon), rel=1e-7
        )


@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
def test_curvature_costs_at_most_its_price_and_epsilon_inverts_delta(adjacency):
    twice = 2 if adjacency == "replace_one" else 1
    for sigma, regularisation in ((8.0, 1.0), (1.0, 0.3), (0.3, 5.0)):
        e = event(sigma, regularisation)
        values = [objective.delta(e, adjacency, x) for x in np.linspace(0, 12, 49)]
        assert np.all(np.diff(values) <= 1e-12)
        for delta in (1e-2, 1e-6, 1e-12):
            epsilon = objective.epsilon(e, adjacency, delta)
            assert 0.999 * delta <= objective.delta(e, adjacency, epsilon) <= delta
            if epsilon - e.epsilon >= sigma**-2:
                assert gaussian_delta(twice / sigma, epsilon - e.epsilon) >= delta * (1 - 1e-6)


def test_profile_at_the_ends():
    e = event(1.0, 1.0)
    assert objective.delta(e, Adjacency.REPLACE_ONE, math.inf) == 0.0
    assert objective.epsilon(e, Adjacency.REPLACE_ONE, 1.0) == 0.0
    assert objective.epsilon(e, Adjacency.REPLACE_ONE, 0.0) == math.inf
    assert objective.delta(dataclasses.replace(e, noise_multiplier=0.0), Adjacency.ADD_REMOVE, 5.0) == 1.0
    assert objective.epsilon(event(1e4, 100.0), Adjacency.ADD_REMOVE, 0.5) == 0.0
    assert 0 < objective.delta(event(1.0, 1.0), Adjacency.REPLACE_ONE, 0.0) <= 1


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
def test_plan_meets_the_budget_and_beats_the_published_noise(adjacency):
    plan = planned(adjacency=adjacency)
    assert plan.guarantee.epsilon <= 1.0
    assert plan.guarantee.epsilon > 0.999
    assert plan.guarantee.release == "estimate"
    assert Guarantee.from_json(plan.guarantee.to_json()) == plan.guarantee
    published = ObjectivePerturbation(calibration="kst12").plan(TARGET, adjacency=adjacency, **BUDGET)
    zeta = 2.0 if adjacency == "replace_one" else 1.0
    assert published.settings["noise_std"] == pytest.approx(zeta * math.sqrt(8 * math.log(2e6) + 4), rel=1e-12)
    assert published.settings["noise_std"] > 2.4 * plan.settings["noise_std"]
    assert published.guarantee.epsilon < 0.6


def test_published_calibration_raises_the_regularisation_and_keeps_its_promise():
    for epsilon in (0.1, 1.0, 5.0):
        mechanism = ObjectivePerturbation(regularisation=0.01, calibration="kst12")
        plan = mechanism.plan(TARGET, num_records=200, epsilon=epsilon, delta=1e-6, adjacency="add_remove")
        assert plan.settings["regularisation"] == pytest.approx(0.5 / epsilon)
        assert plan.guarantee.epsilon <= epsilon


def test_the_second_release_is_nearly_free_and_nearly_noiseless():
    plan = planned()
    alone = Guarantee.from_events(
        plan.guarantee.events[:1], delta=1e-6, adjacency="replace_one", accountant="one_sample", release="estimate"
    )
    assert alone.epsilon > 0.998 * plan.guarantee.epsilon
    assert plan.settings["output_noise_std"] < 1e-3 * plan.settings["noise_std"] / plan.settings["regularisation"]


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return {"x": x, "y": (rng.random(200) < expit(3 * x[:, 0])).astype(np.int32)}


def gradient(theta, records, regularisation):
    return records["x"].T @ (expit(records["x"] @ theta) - records["y"]) + regularisation * theta


def test_gradients_at_the_released_minimisers_are_the_noise(records):
    """b = −∇F(θ̂): its variance over draws is σ². Half the noise, or another Λ, would show."""
    plan = planned(2.0)
    draws = np.array([plan.mechanism.draw(plan, records, streams_of(k)[0])[0] for k in range(120)])
    noise = np.array([gradient(t, records, 2.0) for t in draws]) / plan.settings["noise_std"]
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    chi2 = np.sum(noise**2)
    assert stats.chi2.ppf(1e-4, noise.size) < chi2 < stats.chi2.ppf(1 - 1e-4, noise.size)
    assert not stats.chi2.ppf(1e-4, noise.size) < 4 * chi2 < stats.chi2.ppf(1 - 1e-4, noise.size)


@pytest.mark.parametrize("largest", [2048, 2])
def test_gradients_of_clipped_losses_at_the_released_minimisers_are_the_noise(records, largest, monkeypatch):
    """The replay of clipped losses; the logistic's gradients there are not the noise.

    ``largest``: most coefficients of the closed form; JAX differentiates the losses of more.
    """
    monkeypatch.setattr("dpmcmc.mechanisms.minimise._DENSE", largest)
    plan = planned(2.0, 0.3)
    draws = np.array([plan.mechanism.draw(plan, records, streams_of(k)[0])[0] for k in range(60)])
    residual = expit(draws @ records["x"].T) - records["y"]
    tilts = (np.clip(residual, -0.3, 0.3) @ records["x"] + 2.0 * draws) / plan.settings["noise_std"]
    chi2, ends = np.sum(tilts**2), stats.chi2.ppf([1e-4, 1 - 1e-4], tilts.size)
    assert ends[0] < chi2 < ends[1]
    assert not ends[0] < 4 * chi2 < ends[1]
    assert np.sum(((residual @ records["x"] + 2.0 * draws) / plan.settings["noise_std"]) ** 2) > ends[1]


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE])
def test_a_clipped_plan_meets_the_budget_with_less_noise(adjacency):
    smooth = planned(2.0, adjacency=adjacency)
    plan = planned(2.0, 0.3, adjacency)
    assert 0.999 < plan.guarantee.epsilon <= 1.0
    assert Guarantee.from_json(plan.guarantee.to_json()) == plan.guarantee
    assert plan.settings["noise_std"] < 0.36 * smooth.settings["noise_std"]
    tempered = Tempered(TARGET, 0.5, 1.0, 1.0)
    with pytest.raises(UnsupportedCombination, match="clip"):
        ObjectivePerturbation(regularisation=2.0, clip=0.3).plan(tempered, **BUDGET)


def test_quadratic_minimisers_have_their_closed_form():
    """θ̂ = A⁻¹(Xᵀy/s² − b), A = XᵀX/s² + Λ: Gaussian with covariance σ²A⁻²."""
    rng = np.random.default_rng(1)
    target = LinearRegression(noise_scale=0.5, num_features=2)
    data = {"x": rng.normal(size=(50, 2)), "y": rng.normal(size=50)}
    a = data["x"].T @ data["x"] / 0.25 + 3.0 * np.eye(2)
    center = np.linalg.solve(a, data["x"].T @ data["y"] / 0.25)
    b = 7.0 * rng.normal(size=(600, 2))
    theta = np.array([minimise(target, data, 3.0, tolerance=1e-9, linear=row)[0] for row in b])
    np.testing.assert_allclose(theta, center - b @ np.linalg.inv(a), atol=1e-9)
    white = (theta - center) @ a / 7.0
    assert np.max(np.abs(np.cov(white.T) - np.eye(2))) < 5 * math.sqrt(2 / 600)
    assert np.max(np.abs(white.mean(0))) < 5 / math.sqrt(600)


def test_impossible_requests_are_refused_with_a_remedy():
    with pytest.raises(
        CalibrationError, match=r"^regularisation: at 1 the curvature alone .* give 2\.38, where it costs half"
    ):
        ObjectivePerturbation(1.0).plan(TARGET, num_records=10, epsilon=0.2, delta=1e-6)
    for regularisation in (2.38, None):  # what the refusal says would do
        plan = ObjectivePerturbation(regularisation).plan(TARGET, num_records=10, epsilon=0.2, delta=1e-6)
        assert plan.settings["curvature_epsilon"] == pytest.approx(0.1, rel=1e-2)
    assert ObjectivePerturbation().plan(TARGET, num_records=10, epsilon=4.0, delta=1e-6).settings["regularisation"] == 1
    assert ObjectivePerturbation(1.2).plan(TARGET, num_records=10, epsilon=0.2, delta=1e-6).guarantee.epsilon <= 0.2
    with pytest.raises(UnsupportedCombination, match=r"SoftmaxRegression; use output_perturbation"):
        ObjectivePerturbation().plan(SoftmaxRegression(num_classes=3, num_features=2, row_bound=1.0), **BUDGET)
    with pytest.raises(UnsupportedCombination, match="LinearRegression; use output_perturbation"):
        ObjectivePerturbation().plan(LinearRegression(num_features=2, row_bound=1.0), **BUDGET)
    with pytest.raises(UnsupportedCombination, match="row_bound"):
        ObjectivePerturbation().plan(LogisticRegression(num_features=2), **BUDGET)
    with pytest.raises(ValueError, match=r"^regularisation "):
        ObjectivePerturbation(regularisation=0.0)
    with pytest.raises(ValueError, match=r"^calibration "):
        ObjectivePerturbation(calibration="loose")  # type: ignore[arg-type]
