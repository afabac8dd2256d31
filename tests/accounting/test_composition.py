"""Composition on a grid: its error is bounded as the docstring proves, and steps between two others cost no more."""

import math

import mpmath
import numpy as np
import pytest
import scipy

from dpmcmc.privacy.accounting import blends, composition, hockey_stick, pld
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.composition import Blend, Composed, Masses
from dpmcmc.privacy.accounting.events import Event, query_events

LONG = np.longdouble


def exact_spectrum(values, first, size, places):
    """Σ values·e^{−iω(first + k)} at some frequencies, in long double, (places,)."""
    k = (first + np.arange(len(values))) % size
    angle = -2 * LONG(np.pi) * ((k[None, :] * places[:, None]) % size).astype(LONG) / size
    # 2π of float64 lacks digits that matter here.
    angle += -2 * LONG(1.2246467991473532e-16) * ((k[None, :] * places[:, None]) % size).astype(LONG) / size
    values = np.asarray(values, LONG)
    return np.sum(values * np.cos(angle), axis=1) + 1j * np.sum(values * np.sin(angle), axis=1)


@pytest.mark.parametrize("size", [1 << 12, 3 << 10, 5 << 9])
def test_the_transform_is_within_its_bound(size):
    rng = np.random.default_rng(size)
    places = rng.integers(0, size // 2 + 1, 40)
    for values in (rng.normal(size=size), rng.exponential(size=size) ** 4, np.r_[1e8, rng.normal(size=size - 1)]):
        found = scipy.fft.rfft(values)
        off = np.abs(found[places] - exact_spectrum(values, 0, size, places))
        bound = composition._transform_error(size)
        assert off.max() <= bound * np.abs(values).sum()
        assert np.linalg.norm(scipy.fft.irfft(found, size) - values) <= 2 * bound * np.linalg.norm(values)


def exact_masses(curve):
    """Second differences of a curve's own numbers, in long double, (n,), and the mass of infinite loss."""
    values = curve.values.astype(LONG)
    scale = np.expm1(LONG(curve.interval))
    rise = np.diff(values)
    masses = np.append((rise[1:] - np.exp(LONG(curve.interval)) * rise[:-1]) / scale, 0)
    masses = np.append(-values[0] + rise[0] / scale, masses)
    masses[-1] = rise[-1] / np.expm1(-LONG(curve.interval))
    masses[-curve.first] += 1
    return masses


CURVES = [(1.1, 0.01, "replace", 2.0**-7), (1500.0, 0.01, "replace", 2.0**-19), (0.7, 0.3, "remove", 2.0**-5),
          (4.0, 0.2, "add", 2.0**-8)]  # fmt: skip


@pytest.mark.parametrize(("z", "q", "direction", "interval"), CURVES)
def test_a_spectrum_is_within_its_bound_close_to_one(z, q, direction, interval):
    curve = hockey_stick.one_step(z, q, direction, interval, -30.0)
    size = composition._length(len(curve.values) + 1)
    alive = np.unique(np.r_[0:6, size // 3, size // 2])
    found, bound = composition._from_one(curve, size, alive)
    masses = exact_masses(curve)
    exact = exact_spectrum(masses, curve.first, size, alive) - 1
    # Rounding of g is in the bound, and not in this comparison.
    assert np.all(np.abs(found - exact) <= bound + 2e-17)
    assert bound[1] <= 1e-12 * abs(found[1])
    piece = Masses(curve.first, masses.astype(np.float64), 0.0)
    found, bound = composition._from_one(piece, size, alive)
    exact = exact_spectrum(piece.probabilities, curve.first, size, alive) - 1
    assert np.all(np.abs(found - exact) <= bound + 2e-17)


def brute_force(pieces, interval):
    """δ of a composition by convolution in long double."""
    total, first, finite = np.ones(1, LONG), 0, LONG(1)
    for curve, count in pieces:
        masses = exact_masses(curve)
        for _ in range(count):
            total = np.convolve(total, masses)
            first += curve.first
            finite *= 1 - LONG(curve.values[-1])
    losses = (first + np.arange(len(total))) * LONG(interval)
    return lambda e: float(1 - finite + np.sum(np.where(losses > e, total * -np.expm1(LONG(e) - losses), 0)))


def composed(counts=(12, 7)):
    interval = 2.0**-5
    pieces = [
        (hockey_stick.one_step(1.3, 0.1, "replace", interval, -40.0), counts[0]),
        (hockey_stick.one_step(0.9, 0.05, "replace", interval, -40.0), counts[1]),
    ]
    return composition.compose(pieces, interval), brute_force(pieces, interval)


def test_a_composition_is_within_its_slack_of_brute_force():
    ours, exact = composed()
    assert ours.slack < 1e-12
    for e in (0.0, 0.1, 0.5, 1.0, 3.0):
        assert abs(ours.delta(e) - exact(e)) <= ours.slack + 5 * composition.TAIL * 2
        assert exact(e) <= ours.most_delta(e)


def test_a_transform_of_fewer_digits_is_caught(monkeypatch):
    """Planted: the transform of float32, whose error the bound for float64 does not cover."""
    real = scipy.fft.rfft
    monkeypatch.setattr(composition.scipy.fft, "rfft", lambda x: real(x.astype(np.float32)).astype(np.complex128))
    ours, exact = composed()
    assert any(abs(ours.delta(e) - exact(e)) > 10 * ours.slack for e in (0.0, 0.1, 0.5, 1.0, 3.0))


@pytest.mark.parametrize("direction", ["replace", "remove", "add"])
@pytest.mark.parametrize(("z", "q"), [(1500.0, 0.01), (1.1, 0.004), (0.6, 0.001), (20.0, 0.1), (0.3, 0.5)])
def test_a_step_s_curve_is_within_its_rounding_of_50_digits(direction, z, q):
    low, high = hockey_stick.loss_range(z, q, direction, -30.0)
    eps = np.linspace(low, high, 9)[1:-1]
    found, bound = hockey_stick.curve(eps, z, q, direction)
    x = hockey_stick.observation(eps, z, q, direction)
    with mpmath.workdps(50):
        c, rate = 1 / mpmath.mpf(z), mpmath.mpf(q)

        def tail(shift, at):
            return (1 - rate) * mpmath.ncdf(-at) + rate * mpmath.ncdf(shift - at)

        p, r = {"replace": (c, -c), "remove": (c, 0), "add": (0, -c)}[direction]
        for e, at, value, off in zip(eps, x, found, bound, strict=True):
            at, e = mpmath.mpf(float(at)), mpmath.mpf(float(e))
            above = tail(p, at) - mpmath.exp(e) * tail(r, at)
            exact = float(above - max(1 - mpmath.exp(e), 0))
            assert abs(value - exact) <= off
            assert off <= 1e-10 * exact


@pytest.mark.parametrize("direction", ["replace", "remove", "add"])
@pytest.mark.parametrize(
    ("loud", "quiet", "q"), [(0.7, 1.4, 0.01), (3.0, 3.3, 0.3), (0.2, 0.5, 0.9), (50.0, 400.0, 0.02)]
)
def test_a_coin_between_two_steps_dominates_one_between_them(direction, loud, quiet, q):
    eps = np.linspace(-3, 3, 241) * min(1.0, 4 / loud)
    least = np.inf
    for z in np.geomspace(loud, quiet, 7)[1:-1]:
        share = float(blends._shares(np.array([z]), loud, quiet, direction)[0])
        curves = [hockey_stick.excess(eps, one, q, direction) for one in (loud, quiet, z)]
        gain = share * curves[0] + (1 - share) * curves[1] - curves[2]
        assert np.all(gain >= -1e-13 * curves[2])
        # Planted: a thousandth less of the louder step falls short at some ε.
        short = gain - (curves[0] - curves[1]) * share / 1000
        least = min(least, float(short.min()))
    assert least < 0


@pytest.mark.parametrize(("direction", "scale"), [("replace", 2), ("remove", 8)])
@pytest.mark.parametrize(("loud", "quiet"), [(0.05, 0.06), (1.35, 1.45), (10.0, 10.001), (1e5, 1.01e5), (1e8, 1.1e8)])
def test_the_chance_of_a_coin_is_never_too_small_and_close(direction, scale, loud, quiet):
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):

        def missing(z):
            return mpmath.erfc(1 / (mpmath.mpf(float(z)) * mpmath.sqrt(scale)))

        z = np.linspace(loud, quiet, 7)
        exact = [(missing(quiet) - missing(one)) / (missing(quiet) - missing(loud)) for one in z]
        for found, want in zip(blends._shares(z, loud, quiet, direction), exact, strict=True):
            assert min(want, 1) <= found <= want + 3e-9


def test_a_blend_is_the_product_of_its_coins():
    interval = 2.0**-5
    loud, quiet = (hockey_stick.one_step(z, 0.1, "replace", interval, -30.0) for z in (1.0, 1.2))
    shares, counts = np.array([0.2, 0.5, 0.9]), np.array([3.0, 2.0, 4.0])
    ours = composition.compose([(Blend(loud, quiet, shares, counts), 9)], interval)
    first = min(loud.first, quiet.first)

    def mixed(share):
        out = np.zeros(max(c.first + len(c.values) for c in (loud, quiet)) - first, LONG)
        for curve, weight in ((loud, share), (quiet, 1 - share)):
            start = curve.first - first
            out[start : start + len(curve.values)] += LONG(weight) * exact_masses(curve)
        return out

    total = np.ones(1, LONG)
    for share, count in zip(shares, counts, strict=True):
        for _ in range(int(count)):
            total = np.convolve(total, mixed(share))
    losses = (9 * first + np.arange(len(total))) * LONG(interval)
    for e in (0.0, 0.5, 2.0):
        exact = float(np.sum(np.where(losses > e, total * -np.expm1(LONG(e) - losses), 0)))
        assert exact <= ours.most_delta(e)
        assert ours.delta(e) == pytest.approx(exact, abs=2e-12)


@pytest.mark.slow
def test_four_hundred_sizes_cost_what_they_do_one_by_one(monkeypatch):
    z = np.linspace(1.0, 4.0, 400)
    events = query_events("poisson_gaussian", z, 0.005)
    assert len(events) == 400
    blended = pld.epsilon(events, Adjacency.REPLACE_ONE, 1e-6)
    monkeypatch.setattr(blends, "KNOTS", 1000)
    monkeypatch.setattr(pld, "_WORK", 1e12)
    pld._composed_on.cache_clear()
    one_by_one = pld.epsilon(events, Adjacency.REPLACE_ONE, 1e-6)
    pld._composed_on.cache_clear()
    assert one_by_one <= blended <= 1.002 * one_by_one


def test_slack_does_not_grow_with_the_number_of_steps():
    """A million steps at a small δ: the margin of float64 accountants, 4·2⁻⁵² a step, was nine tenths of this δ."""
    events = (Event("poisson_gaussian", 100.0, 0.01, 10**6),)
    found = pld._composed(events, Adjacency.REPLACE_ONE, 1.1, 1e-9)
    assert max(order.slack for order in found.orders) < 1e-12
    assert math.isfinite(found.epsilon(1e-9))
    assert isinstance(found.orders[0], Composed)
