r"""Privacy-loss-distribution accountant (``accountant: pld``), on dp-accounting.

Supported, each with its derivation:

* rate 1, any adjacency: exact. k Gaussian queries compose to one of μ = √(Σ Δ²/z²) (see ``gaussian.py``).
* Poisson, add_remove and zero_out: dominating pairs ((1−q)N(0)+qN(1), N(0)) and its reverse (Zhu, Dong and
  Wang 2022, Proposition 30), composed separately; the larger δ is reported.
* Poisson, replace_one: the pair (1−q)N(0)+qN(±1), shown to dominate in ``rdp.py``.
* Fixed size: no dominating pair is known here; refused. Use ``rdp`` or ``advanced``.

Discretisation is pessimistic (Doroshenko et al. 2022, "connect the dots"), so any grid gives an upper bound;
the grid is chosen from the target and the step because a fixed one is wrong at both ends: at z = 1500 an interval
of 1e-4 is coarser than a step's loss, at z = 0.01 it needs 24 GB. The smallest of the valid bounds (PLD
at the grids tried, Rényi) is reported. Rounding of the Fourier transform is charged to δ: 4·2⁻⁵² a step; where
that is more than a twentieth of δ (10⁶ steps at δ below 2e-8) rounding decides the answer, and Rényi is used.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable

import numpy as np
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution

from dpmcmc.privacy.accounting import dominating_pair, rdp
from dpmcmc.privacy.accounting.events import Event, UnsupportedCombination, queries
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon

_FFT_SLACK = 4 * 2.0**-52
_MOST_SLACK = 0.05
# One step's grid and the composed grid are kept below these sizes: about a second and 300 MB.
_STEP_POINTS = 200_000
_COMPOSED_POINTS = 3_000_000
# Below this z a step is charged as revealing its batch: (0, rate)-DP, whatever the noise.
_SMALLEST_Z = 0.025


def check(events: Iterable[Event], adjacency: str) -> None:
    """Raise UnsupportedCombination for a pair without a derivation."""
    for e in queries(events):
        if e.mechanism == "fixed_size_gaussian":
            raise UnsupportedCombination(
                "accountant pld has no dominating pair for fixed_size sampling; use accountant rdp or advanced "
                "with replace_one, or scheme poisson."
            )


def epsilon(events: Iterable[Event], adjacency: str, delta: float) -> float:
    """Smallest certified ε at δ: the least of exact Gaussian, PLD and Rényi where valid."""
    parts = tuple(queries(events))
    check(parts, adjacency)
    if not parts:
        return 0.0
    if delta <= 0 or any(e.noise_multiplier == 0 for e in parts):
        return math.inf
    if all(e.mechanism == "gaussian" for e in parts):
        return gaussian_epsilon(_mu(parts, adjacency), delta)
    renyi = rdp.epsilon(parts, adjacency, delta)
    slack = _slack(parts)
    if slack > _MOST_SLACK * delta:
        return renyi
    composed = _composed(parts, adjacency, renyi, delta)
    if composed is None:
        return renyi
    with np.errstate(over="ignore"):
        return min(renyi, float(composed.get_epsilon_for_delta(delta - slack)))


def delta(events: Iterable[Event], adjacency: str, epsilon: float) -> float:
    """Smallest certified δ at ε >= 0."""
    parts = tuple(queries(events))
    check(parts, adjacency)
    if not parts:
        return 0.0
    if any(e.noise_multiplier == 0 for e in parts):
        return 1.0
    if all(e.mechanism == "gaussian" for e in parts):
        return gaussian_delta(_mu(parts, adjacency), epsilon)
    renyi = rdp.delta(parts, adjacency, epsilon)
    composed = _composed(parts, adjacency, max(epsilon, 1e-3), max(renyi, 1e-12))
    if composed is None:
        return renyi
    with np.errstate(over="ignore"):
        return min(renyi, float(composed.get_delta_for_epsilon(epsilon)) + _slack(parts))


def _mu(parts: Iterable[Event], adjacency: str) -> float:
    sensitivity = 2.0 if adjacency == "replace_one" else 1.0
    return sensitivity * math.sqrt(
        math.fsum(e.count / e.noise_multiplier**2 for e in parts if e.mechanism == "gaussian")
    )


def _slack(parts: Iterable[Event]) -> float:
    return _FFT_SLACK * sum(e.count for e in parts if e.mechanism != "gaussian")


def _composed(
    parts: tuple[Event, ...], adjacency: str, epsilon: float, delta: float
) -> privacy_loss_distribution.PrivacyLossDistribution | None:
    """The composed distribution on a grid fit for ε near ``epsilon`` at ``delta``; None where none fits."""
    sampled = [e for e in parts if e.mechanism != "gaussian"]
    revealed = [e for e in sampled if e.noise_multiplier < _SMALLEST_Z]
    noisy = [e for e in sampled if e.noise_multiplier >= _SMALLEST_Z]
    # Mass that may be sent to infinite loss: 1e-5 of δ over all steps. Rounded so that grids can be shared.
    log_tail = max(-50.0, 5.0 * math.floor(math.log(1e-5 * delta / sum(e.count for e in parts)) / 5))
    interval = _interval(noisy, adjacency, epsilon, log_tail)
    for _ in range(12):
        pieces = [(_step(e, adjacency, interval, log_tail), e.count) for e in noisy]
        if sum(_composed_points(piece, count) for piece, count in pieces) <= _COMPOSED_POINTS:
            break
        interval *= 2
    else:
        return None
    total = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for piece, count in pieces:
        total = total.compose(piece.self_compose(count))
    mu = _mu(parts, adjacency)
    if mu > 0:
        total = total.compose(
            privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
        )
    for e in revealed:
        reveal = -math.expm1(e.count * math.log1p(-e.rate))
        total = total.compose(
            privacy_loss_distribution.from_privacy_parameters(
                common.DifferentialPrivacyParameters(0.0, reveal), value_discretization_interval=interval
            )
        )
    return total


def _interval(noisy: list[Event], adjacency: str, epsilon: float, log_tail: float) -> float:
    """Grid spacing: well inside one step's loss and far below the answer, but never beyond memory.

    A power of two, so that neighbouring evaluations of a calibration share it.
    """
    if not noisy:
        return 1e-4
    kl = min(float(rdp.one_step(e, adjacency, rdp.ORDERS)[0]) for e in noisy)
    span = max(
        high - low
        for e in noisy
        for d in dominating_pair.directions(adjacency)
        for low, high in [dominating_pair.loss_range(e.noise_multiplier, e.rate, d, log_tail)]
    )
    # The loss of a small step has variance about twice its divergence.
    wanted = min(0.15 * math.sqrt(2 * kl), 1e-3 * min(max(epsilon, 1e-6), 50.0))
    return 2.0 ** math.floor(math.log2(max(wanted, span / _STEP_POINTS, 5e-7)))


def _composed_points(piece: privacy_loss_distribution.PrivacyLossDistribution, count: int) -> int:
    """Length of the array that composing ``piece`` ``count`` times would allocate."""
    probabilities = np.asarray(piece._pmf_remove.to_dense_pmf()._probs)
    low, high = common.compute_self_convolve_bounds(probabilities, count, 1e-15)
    return high - low + 1


@functools.lru_cache(maxsize=64)
def _step(
    event: Event, adjacency: str, interval: float, log_tail: float
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """One step, discretised pessimistically from its exact hockey-stick curve."""
    z, q = event.noise_multiplier, event.rate
    masses = []
    for direction in dominating_pair.directions(adjacency):
        low, high = dominating_pair.loss_range(z, q, direction, log_tail)
        first, last = math.floor(low / interval), math.ceil(high / interval)
        # The grid straddles 0, where the (1 − e^ε)₊ part of the curve has its kink.
        first, last = min(first, -2), max(last, 2)
        curve = dominating_pair.excess(np.arange(first, last + 1) * interval, z, q, direction)
        masses.append(_connect_dots(curve, first, interval))
    return privacy_loss_distribution.PrivacyLossDistribution(*masses)


def _connect_dots(curve: np.ndarray, first: int, interval: float) -> pld_pmf.PLDPmf:
    """Pessimistic masses on the grid (Doroshenko et al. 2022, Algorithm 1), from g = δ − (1 − e^ε)₊.

    The mass at ε_i is a second difference of δ in e^ε. That of (1 − e^ε)₊ is exactly 1 at ε = 0 and 0
    elsewhere, so only g is differenced: taken of δ itself, rounding at δ near 1 adds a spurious mass of about
    1e-16 / interval per point, which a million compositions turn into a large part of the answer.
    """
    rise = np.diff(curve)
    scale = math.expm1(interval)
    masses = np.empty_like(curve)
    masses[0] = -curve[0] + rise[0] / scale
    masses[1:-1] = (rise[1:] - math.exp(interval) * rise[:-1]) / scale
    masses[-1] = rise[-1] / math.expm1(-interval)
    masses[-first] += 1.0
    return pld_pmf.DensePLDPmf(interval, first, np.maximum(masses, 0.0), float(curve[-1]), True)


# dp-accounting reports harmless clipping of pessimistic masses through absl; keep the console for people.
logging.getLogger("absl").setLevel(logging.ERROR)
