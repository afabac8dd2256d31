"""On-average KL: closed forms, Theorem 3 as a test of exact draws, and its refusals."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import laplace, norm

from dpmcmc.diagnostics import on_average_kl
from dpmcmc.privacy import UnsupportedCombination
from experiments import on_average

GAMMAS = (0.1, 1.0, 10.0)


def records(rng, shape):
    x = rng.normal(size=(*shape, 3))
    return x, x @ [1.0, 0.5, 0.0] + rng.normal(size=shape)


SETTING = {"num_records": 20, "ridge": 2.0, "repeats": 20_000}


@pytest.fixture(scope="module")
def divergences():
    return on_average.ridge_divergence(records, GAMMAS, seed=1, **SETTING)


def divergence(first, second, low, high, *kinks):
    def integrand(u):
        return first.pdf(u) * (first.logpdf(u) - second.logpdf(u))

    return quad(integrand, low, high, points=[0.0, *kinks], limit=400, epsabs=1e-12)[0]


@pytest.mark.parametrize("shift", [1e-4, 0.3, 5.0])
def test_laplace_divergence_by_quadrature(shift):
    expected = divergence(laplace(0, 0.7), laplace(shift, 0.7), -25, 30, shift)
    assert on_average.laplace_kl(-shift, 0.7) == pytest.approx(expected, rel=1e-4, abs=1e-11)


def test_gaussian_divergence_by_quadrature_and_in_two_dimensions():
    expected = divergence(norm(0.2, 0.5), norm(-0.1, 0.8), -8, 8)
    one = on_average.gaussian_kl([0.2], [[0.5**-2]], [-0.1], [[0.8**-2]])
    assert one == pytest.approx(expected, rel=1e-7)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    first, second = turn @ np.diag([4.0, 1.0]) @ turn.T, turn @ np.diag([1.5625, 1.0]) @ turn.T
    mean, other = turn @ [0.2, 1.0], turn @ [-0.1, 1.0]
    assert on_average.gaussian_kl(mean, first, other, second) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("gamma", [1e-3, 0.05, 1.0, 30.0, 1e4])
def test_mean_release_is_the_expectation_of_its_divergence(gamma):
    std = 0.124398
    expected = quad(
        lambda z: 2 * norm.pdf(z) * on_average.laplace_kl(z * std, 1 / gamma), 0, 12, limit=400, epsabs=1e-16
    )[0]
    assert on_average.mean_release_kl(gamma, std) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("gamma", "value"), [(1, 0.0073), (10, 0.459), (100, 9.05), (1000, 98.9)])
def test_numbers_of_figure_4_2(gamma, value):
    """Monte Carlo figures of 20,000 repeats, whose relative standard error is at most 2.2 %/√2."""
    std = np.sqrt(0.0154748)
    assert on_average.mean_release_kl(gamma, std) == pytest.approx(value, rel=0.03)


def test_risk_gap_agrees_with_the_divergence(divergences):
    gaps = on_average.ridge_risk_gap(records, GAMMAS, seed=2, **SETTING)
    for kl, gap in zip(divergences, gaps, strict=True):
        assert kl.standard_error < 0.02 * kl.value
        assert gap.standard_error < 0.03 * gap.value
        assert on_average_kl.agree(kl, gap)


def risks(temperature=1.0, seen=False, penalty=2.0):
    """Losses of draws that may be wrong: too warm, judged on records they saw, or shrunk towards nothing."""
    rng = np.random.default_rng(3)
    x, y = records(rng, (20_000, 20))
    new_x, new_y = (x, y) if seen else records(rng, (20_000, 20))
    precision = np.swapaxes(x, 1, 2) @ x + penalty * np.eye(3)
    mean = np.linalg.solve(precision, np.einsum("rnd,rn->rd", x, y)[..., None])[..., 0]
    root = np.linalg.cholesky(precision)
    noise = np.linalg.solve(np.swapaxes(root, 1, 2), rng.normal(size=(20_000, 3, 1)))[..., 0]
    draw = mean + np.sqrt(temperature / (2 * GAMMAS[0])) * noise
    return [np.mean((b - np.einsum("rnd,rd->rn", a, draw)) ** 2, axis=1) for a, b in ((x, y), (new_x, new_y))]


def test_agreement_passes_exact_draws_and_catches_wrong_ones(divergences):
    # At this γ the draw's own noise is a third of the gap; at a large one the test hardly sees the temperature.
    kl, gamma = divergences[0], GAMMAS[0]
    assert on_average_kl.agree(kl, on_average_kl.from_risks(*risks(), gamma))
    for fault in (
        on_average_kl.from_risks(*risks(temperature=2.0), gamma),
        on_average_kl.from_risks(*risks(seen=True), gamma),
        on_average_kl.from_risks(*risks(), 2 * gamma),  # ch. 5's γ for ch. 4's
        on_average_kl.from_risks(*risks(penalty=20.0), gamma),
    ):
        assert not on_average_kl.agree(kl, fault)


def test_agreement_counts_standard_errors():
    one = on_average_kl.OnAverageKL(1.0, 0.3, "")
    two = on_average_kl.OnAverageKL(2.0, 0.4, "")
    assert on_average_kl.disagreement(one, two) == pytest.approx(2)
    assert on_average_kl.agree(one, two, level=0.04)
    assert not on_average_kl.agree(one, two, level=0.05)
    exact = on_average_kl.OnAverageKL(1.0, 0.0, "")
    assert on_average_kl.agree(exact, exact)
    assert not on_average_kl.agree(exact, on_average_kl.OnAverageKL(1.1, 0.0, ""))


def test_it_does_not_compose(divergences):
    first, second = divergences[:2]
    for attempt in (
        lambda: first.compose(second),
        lambda: first + second,
        lambda: sum(divergences),
        lambda: 100 * first,
        lambda: first * 100,
    ):
        with pytest.raises(UnsupportedCombination, match="does not compose over iterations"):
            attempt()


def test_results_do_not_depend_on_chunks(monkeypatch, divergences):
    monkeypatch.setattr(on_average, "_CHUNK", 999 * 20)
    again = on_average.ridge_divergence(records, GAMMAS, seed=1, **SETTING)
    for kl, other in zip(divergences, again, strict=True):
        assert other.value != kl.value
        assert on_average_kl.agree(kl, other)


def test_impossible_losses_are_refused():
    with pytest.raises(ValueError, match=r"^train, fresh: "):
        on_average_kl.from_risks(np.zeros(3), np.zeros(4), 1.0)
    with pytest.raises(ValueError, match=r"^repeats: "):
        on_average_kl.from_divergences([1.0])
    with pytest.raises(ValueError, match=r"^repeats: "):
        on_average_kl.from_divergences([1.0, np.nan])
