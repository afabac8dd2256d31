"""Per-instance losses beyond ridge: refits with certificates, shapes of noise, and moments."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import expit

from dpmcmc.diagnostics import per_instance
from dpmcmc.diagnostics.per_instance import refits
from dpmcmc.errors import InputError
from dpmcmc.inference.noise_aware import symmetric_noise
from dpmcmc.mechanisms import OutputPerturbation
from dpmcmc.privacy import UnsupportedCombination
from dpmcmc.targets import LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression

N, D, RIDGE = 40, 3, 0.7


def table(kind, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    margin = x @ np.array([1.5, -1.0, 0.5])
    if kind == "linear":
        return {"x": x, "y": margin + rng.normal(size=N)}
    if kind == "poisson":
        y = rng.poisson(np.exp(margin))
        # A record far from all others' fit: Newton's first step from it is much too long.
        y[0] = 60
        return {"x": x, "y": y}
    records = {"x": x, "y": (rng.random(N) < expit(margin)).astype(int)}
    if kind == "weighted":
        records |= {"weight": rng.random(N), "offset": rng.uniform(-1, 1, N)}
    return records


TARGETS = {
    "linear": LinearRegression(noise_scale=1.0),
    "logistic": LogisticRegression(),
    "weighted": LogisticRegression(weight_scale=2.0, offset_bound=1.0),
    "poisson": PoissonRegression(),
}


def fitted(kind, records, kept):
    """The minimiser by Newton's method from 0, written out for each family: the oracle."""
    x, y = records["x"][kept], records["y"][kept]
    weight = 2.0 * records["weight"][kept] if "weight" in records else np.ones(len(x))
    offset = records["offset"][kept] if "offset" in records else np.zeros(len(x))
    mean = {"linear": lambda m: m, "poisson": np.exp}.get(kind, expit)
    slope = {"linear": np.ones_like, "poisson": np.exp}.get(kind, lambda m: expit(m) * expit(-m))

    def gradient(theta):
        return x.T @ (weight * (mean(x @ theta + offset) - y)) + RIDGE * theta

    theta = np.zeros(D)
    for _ in range(200):
        if np.linalg.norm(gradient(theta)) < 1e-13:
            break
        hessian = (x.T * (weight * slope(x @ theta + offset))) @ x + RIDGE * np.eye(D)
        step, size = np.linalg.solve(hessian, gradient(theta)), 1.0
        while np.linalg.norm(gradient(theta - size * step)) > np.linalg.norm(gradient(theta)) and size > 1e-9:
            size /= 2
        theta = theta - size * step
    return theta


def oracle(kind, records):
    """θ̂ − θ̂₋ᵢ by refits of their own, (n, d)."""
    whole = fitted(kind, records, np.ones(N, bool))
    return np.array([whole - fitted(kind, records, np.arange(N) != i) for i in range(N)])


def test_a_linear_model_s_refits_are_the_closed_form():
    records = table("linear")
    exact = per_instance.leave_one_out(records["x"], records["y"], RIDGE)
    found = per_instance.leave_one_out_of(TARGETS["linear"], records, RIDGE)
    np.testing.assert_allclose(found.estimate, exact.estimate, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(found.moved, axis=1), exact.shift, atol=1e-12)
    assert np.all(found.shift() >= exact.shift * (1 - 1e-14))
    assert found.certificate.max() < 1e-10


@pytest.mark.parametrize("kind", ["logistic", "weighted", "poisson"])
def test_refits_are_those_without_the_record_within_their_certificates(kind):
    records = table(kind)
    exact = oracle(kind, records)
    found = per_instance.leave_one_out_of(TARGETS[kind], records, RIDGE)
    assert np.all(np.linalg.norm(found.moved - exact, axis=1) <= found.certificate + 1e-13)
    assert found.certificate.max() < 1e-9
    # Differential privacy's bound is not exceeded, and is far above the median.
    if kind == "logistic":
        plan = OutputPerturbation(regularisation=RIDGE).plan(
            LogisticRegression(num_features=D, row_bound=1.0),
            num_records=N,
            epsilon=1.0,
            delta=1e-3,
            adjacency="add_remove",
        )
        assert found.shift().max() < plan.settings["sensitivity"]
        gamma = plan.settings["gradient_tolerance"]
        released = per_instance.leave_one_out_of(TARGETS[kind], records, RIDGE, gradient_tolerance=gamma)
        np.testing.assert_allclose(released.shift() - found.shift(), 2 * gamma / RIDGE, rtol=1e-6)


def test_an_unfinished_refit_is_an_upper_bound_by_its_certificate(monkeypatch):
    """One Newton step of a Poisson regression with an outlier; planted: the certificate is left out."""
    records = table("poisson")
    exact = np.linalg.norm(oracle("poisson", records), axis=1)
    monkeypatch.setattr(refits, "_STEPS", 4)
    found = per_instance.leave_one_out_of(TARGETS["poisson"], records, RIDGE)
    assert found.certificate.max() > 1e-4
    promise = {"noise_std": 0.5, "delta": 1e-4}
    right = per_instance.output_perturbation_epsilon(exact, **promise)
    assert np.all(per_instance.output_perturbation_epsilon(found.shift(), **promise) >= right)
    uncertified = np.linalg.norm(found.moved, axis=1)
    assert np.any(per_instance.output_perturbation_epsilon(uncertified, **promise) < right)


def test_shapes_of_noise_have_their_closed_forms():
    records = table("linear")
    x, y = records["x"], records["y"]
    each = per_instance.leave_one_out(x, y, RIDGE)
    found = per_instance.leave_one_out_of(TARGETS["linear"], records, RIDGE)
    gram = x.T @ x
    # H(θ̂ − θ̂₋ᵢ) = x_i·r_i with H of all records: a ridge record costs its residual times its length.
    democratic = found.shift(per_instance.noise_root(gram, "democratic", RIDGE))
    np.testing.assert_allclose(democratic, np.abs(each.residual), rtol=1e-9, atol=1e-10)
    # In Fisher's norm it is the residual times the root of the leverage in all records.
    fisher = found.shift(per_instance.noise_root(gram, "fisher", RIDGE))
    inside = each.leverage / (1 + each.leverage)
    np.testing.assert_allclose(fisher, np.abs(each.residual) * np.sqrt(inside), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found.shift(per_instance.noise_root(gram, "identity")), found.shift(), rtol=1e-12)
    # The norm of A^½ bounds what a shape makes of the largest shift, as differential privacy does.
    root = per_instance.noise_root(gram, "democratic", RIDGE)
    assert np.all(democratic <= np.linalg.norm(root, 2) * found.shift() * (1 + 1e-12))


GRAM = {"gram_std": 1.5, "noise_std": 2.0, "failure": 0.02}


@pytest.mark.parametrize("shape", ["fisher", "democratic"])
def test_a_released_gram_s_norm_is_exceeded_no_more_often_than_is_charged(shape):
    records = table("linear")
    x = records["x"]
    found = per_instance.leave_one_out_of(TARGETS["linear"], records, RIDGE)
    bound = found.shift_with_released_gram(x, shape=shape, ridge=RIDGE, **GRAM)
    own = np.sum(x**2, axis=1) / GRAM["gram_std"]
    allowed = np.sqrt(bound**2 - own**2) * GRAM["noise_std"]
    exact = found.shift(per_instance.noise_root(x.T @ x, shape, RIDGE))
    rng = np.random.default_rng(1)
    beyond, planted = np.zeros(N), np.zeros(N)
    count = 1500
    for _ in range(count):
        noisy = x.T @ x + GRAM["gram_std"] * symmetric_noise(rng, D)
        shifts = found.shift(per_instance.noise_root(noisy, shape, RIDGE))
        beyond += shifts > allowed
        planted += shifts > exact
    most = GRAM["failure"] + 4 * math.sqrt(GRAM["failure"] / count)
    assert np.max(beyond) / count < most
    # Planted: the noise of the release is not counted.
    assert np.min(planted) / count > 0.2


def test_both_releases_together_cost_no_more_than_is_said():
    """δ at the claimed ε, by draws of both releases; planted, the Gram matrix' own cost is left out."""
    records = table("linear", seed=3)
    x = records["x"]
    found = per_instance.leave_one_out_of(TARGETS["linear"], records, RIDGE)
    cost = {"gram_std": 0.7, "noise_std": 3.0, "failure": 0.01}
    s = found.shift_with_released_gram(x, shape="democratic", ridge=RIDGE, **cost)
    i = int(np.argmax(s))
    delta = 0.05
    rng = np.random.default_rng(2)
    outer = np.outer(x[i], x[i])
    losses = []
    for _ in range(6000):
        noise = cost["gram_std"] * symmetric_noise(rng, D)
        # log of the densities with and without the record, at a draw with it; a Gaussian pair in Frobenius norm.
        own = (np.sum((noise + outer) ** 2) - np.sum(noise**2)) / (2 * cost["gram_std"] ** 2)
        root = per_instance.noise_root(x.T @ x + noise, "democratic", RIDGE)
        apart = np.linalg.norm(root @ found.moved[i]) / cost["noise_std"]
        losses.append(own + apart * rng.normal() + apart**2 / 2)

    def excess(epsilon):
        each = np.maximum(-np.expm1(np.minimum(epsilon - np.array(losses), 0.0)), 0.0)
        return each.mean(), each.std() / math.sqrt(len(each))

    epsilon = per_instance.output_perturbation_epsilon(s[i], 1.0, delta - cost["failure"])
    value, error = excess(epsilon)
    assert value < delta + 4 * error
    second = math.sqrt(s[i] ** 2 - (np.sum(x[i] ** 2) / cost["gram_std"]) ** 2)
    value, error = excess(per_instance.output_perturbation_epsilon(second, 1.0, delta - cost["failure"]))
    assert value > delta + 4 * error


def test_the_moments_bound_is_the_mean_over_pairs_of_records():
    epsilon = np.random.default_rng(0).exponential(0.3, (5, 6))
    delta = 0.01
    found = per_instance.generalisation_bound(epsilon, delta)
    terms = [
        np.exp(row[a] + row[b]) - 1 + np.exp(row[b]) * delta + delta
        for row in epsilon
        for a, b in itertools.permutations(range(6), 2)
    ]
    assert found.bound == pytest.approx(np.mean(terms), rel=1e-12)
    assert found.moment == pytest.approx(np.exp(epsilon).mean(), rel=1e-12)
    # The squared mean of all, a record with itself included, is another number.
    assert found.bound != pytest.approx(
        np.mean(np.exp(epsilon).mean(1) ** 2) - 1 + delta * (1 + found.moment), rel=1e-3
    )


def test_the_moments_bound_holds_for_a_simulated_gap():
    """The mean of n records with Gaussian noise, and a loss in [0, 1] that tells training records from fresh ones."""
    rng = np.random.default_rng(0)
    n, std, delta, repeats = 5, 0.4, 0.02, 4000
    few = 600
    base = rng.normal(size=(repeats, n))
    fresh = rng.normal(size=(repeats, 20))
    # Adding z to n records moves their mean by (z − mean)/(n + 1).
    shifts = np.abs(fresh - base.mean(axis=1, keepdims=True))[:few] / (n + 1)
    epsilon = per_instance.output_perturbation_epsilon(shifts, std, delta)
    bound = per_instance.generalisation_bound(epsilon, delta)
    train = fresh[:, 0]
    draw = (base.sum(axis=1) + train) / (n + 1) + std * rng.normal(size=repeats)
    loss = lambda z: (draw * z < 0).astype(float)  # noqa: E731
    each = loss(fresh[:, 1]) - loss(train)
    gap, error = each.mean(), each.std() / math.sqrt(repeats)
    assert gap > 4 * error
    assert gap < bound.bound - 4 * bound.standard_error
    # Planted: ε of a fortieth of the shift is below what the draw tells.
    small = per_instance.output_perturbation_epsilon(shifts / 40, std, 1e-4)
    assert per_instance.generalisation_bound(small, 1e-4).bound < gap - 4 * error


def test_refusals():
    records = table("logistic")
    softmax = SoftmaxRegression(num_classes=2, num_features=D)
    with pytest.raises(UnsupportedCombination, match="models of one linear predictor"):
        per_instance.leave_one_out_of(softmax, records)
    with pytest.raises(InputError, match="gradient_tolerance"):
        per_instance.leave_one_out_of(LogisticRegression(), records, gradient_tolerance=-1.0)
    with pytest.raises(InputError, match="x: holds a value"):
        per_instance.leave_one_out_of(LogisticRegression(), records | {"x": np.full((N, D), np.nan)})
    found = per_instance.leave_one_out_of(LogisticRegression(), records)
    for change, said in (({"shape": "identity"}, "shape"), ({"failure": 0.0}, "failure"), ({"ridge": -1.0}, "ridge")):
        with pytest.raises(InputError, match=said):
            found.shift_with_released_gram(records["x"], **({"shape": "fisher", "ridge": RIDGE, **GRAM} | change))
    with pytest.raises(InputError, match="x: must be"):
        found.shift_with_released_gram(records["x"][:2], shape="fisher", ridge=RIDGE, **GRAM)
    with pytest.raises(InputError, match="shape: must be"):
        per_instance.noise_root(np.eye(2), "round")
    with pytest.raises(InputError, match="gram, ridge"):
        per_instance.noise_root(np.ones(2), "fisher")
    for epsilon, delta, said in (
        (np.ones(3), 0.0, "epsilon"),
        (-np.ones((2, 2)), 0.0, "epsilon"),
        (np.ones((2, 2)), 1.0, "delta"),
    ):
        with pytest.raises(InputError, match=said):
            per_instance.generalisation_bound(epsilon, delta)
