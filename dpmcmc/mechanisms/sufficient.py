"""Linear regression from private sufficient statistics.

XᵀX and Xᵀy are released once, as ONE Gaussian query (``sufficient.py``). Everything after the noise is
post-processing and costs nothing. One point leaves. Draws that account for the noise, from the same release, are those
of ``noise_aware.py``.

Claim: Sufficient statistics of a linear regression are one Gaussian query.
Proof: an isometry, in whose norm one record has a bound.
Held by: test_no_replaced_record_exceeds_the_sensitivity_and_one_attains_it,
test_statistics_are_isometric_and_complete, test_replay_of_adassp_on_neighbours_moves_releases_within_their_charge
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import jax
import numpy as np
from annotated_types import Gt, Lt
from scipy.linalg import cho_factor, cho_solve

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference.decompositions import eigh
from dpmcmc.mechanisms.base import MechanismPlan, OneShot, PrivacySpec
from dpmcmc.mechanisms.rows import Rows
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.events import Adjacency
from dpmcmc.privacy.query.gaussian_release import gaussian_release, mu_std
from dpmcmc.privacy.query.gram_release import entries, symmetric
from dpmcmc.privacy.query.integer_rows import Exact, stacked, svec_of
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records, asked
from dpmcmc.targets.base import Positive, Target, require_bound
from dpmcmc.targets.linear import LinearRegression

# ----------------------------------------------------------------------------------------------------
# Shared by the one-shot mechanisms of linear regression: public bounds, and XᵀX and Xᵀy.


def linear_bounds(target: Target, mechanism: str) -> tuple[LinearRegression, float, float, int]:
    """Return the target as a linear regression, with its row_bound, label_bound and num_features.

    Args:
        target: linear regression with its public bounds.
        mechanism: named in errors.

    Raises:
        UnsupportedCombination: another target, whose posterior is not Gaussian.
        ValueError: a bound that is not given.
    """
    if type(target) is not LinearRegression:
        raise UnsupportedCombination(
            f"{mechanism} needs the Gaussian posterior of LinearRegression, and the target is "
            f"{type(target).__name__}; use certified_ops or output_perturbation for other convex losses."
        )
    row = require_bound(target.row_bound, "row_bound", "LinearRegression")
    label = require_bound(target.label_bound, "label_bound", "LinearRegression")
    if target.num_features is None:
        raise InputError(
            "num_features: LinearRegression needs it before a plan; give it",
            "num_features",
        )
    return target, row, label, target.num_features


def gram_and_moment(records: Records, target: LinearRegression) -> tuple[Exact, Exact]:
    """Return (XᵀX, Xᵀy) of records, or owners, exactly: rows and labels are rounded one by one (``rows.py``).

    Args:
        records: of a regression, as they are; or arrays.
        target: its public bounds, of rows and of labels.
    """
    row = require_bound(target.row_bound, "row_bound", "LinearRegression")
    label = require_bound(target.label_bound, "label_bound", "LinearRegression")
    rows = Rows(target, row)
    return rows.with_labels(asked(records).prepared(rows), label)


def rounding(size: int) -> float:
    """Return the rounding error of an eigenvalue of XᵀX in float64, relative to its largest trace N·row_bound².

    XᵀX is exact, and its entries are rounded to float64. Eigenvalues of a symmetric matrix are off by that and by a
    modest multiple of 2^-53·‖XᵀX‖ (backward stability, Weyl), for which 16d² leaves ample room.
    """
    return 2.0**-53 * 16 * size**2


# ----------------------------------------------------------------------------------------------------
# One release of (svec(XᵀX), w·Xᵀy) for linear regression: its noise, its charge and its reading of the records.
#
# Rows have ‖x‖ <= b and labels |y| <= Y; w = label_weight·b/Y. svec keeps the diagonal and √2 times the upper triangle,
# so its l2 norm is the Frobenius norm.
#
# Sensitivity. One record contributes norm √(b⁴ + w²b²Y²): add_remove and zero_out. A replaced one moves the vector by
#
#     ‖·‖² = ‖xxᵀ − x'x'ᵀ‖² + w²‖xy − x'y'‖² = s² + s'² − 2t² + w²(y²s + y'²s' − 2yy't),   s = ‖x‖², s' = ‖x'‖², t =
#     x·x'
#
# It grows with s, s' at a fixed t, and −yy't is at most Y²|t|, so the supremum is at s = s' = b² and y = −y', over
# |t| <= b²: with r = w²Y²/(2b²) it is at |t| = b²·min(1, r),
#
#     ‖·‖ <= √2·b²·(1 + r) for r <= 1,      2wbY for r > 1
#
# Both are attained. The two parts apart would be charged √(2b⁴ + 4w²b²Y²); for w = 0, ‖xxᵀ − x'x'ᵀ‖ <= √2·b².
#
# An owner of at most m rows moves the vector m times as far at most: pair its rows with those that replace them; a row
# without a partner adds √(b⁴ + w²b²Y²), which is less than the supremum of a pair.


def calibrate_statistics(
    target: Target,
    spec: PrivacySpec,
    mu: float,
    label_weight: float,
    mechanism: str,
    together: int = 1,
) -> tuple[Event, dict[str, float]]:
    """Return what one release of the statistics costs, and its settings.

    Args:
        target: linear regression with its public bounds.
        asked: N and adjacency.
        mu: μ of the release.
        label_weight: how much of it goes to Xᵀy.
        mechanism: named in errors.
        together: m, rows that an owner may have; 1 where records are rows.

    Raises:
        UnsupportedCombination: another target than linear regression.
        ValueError: no row_bound or label_bound.
        CalibrationError: see :func:`mu_std`.
    """
    _, row, label, d = linear_bounds(target, mechanism)
    weight = label_weight * row / label
    size = d * (d + 3) // 2
    sensitivity = together * sensitivity_of(row, label, weight, spec.adjacency)
    noise_std = mu_std(sensitivity, size, mu)
    event = spec.gaussian(noise_std, sensitivity, size)
    return event, {
        "sensitivity": sensitivity,
        "noise_std": noise_std,
        "label_noise_std": noise_std / weight,
        "noise_multiplier": event.noise_multiplier,
    }


def label_weight_of(settings: dict[str, float]) -> float:
    """Return w, by which Xᵀy is multiplied before noise is added."""
    return settings["noise_std"] / settings["label_noise_std"]


def release_statistics(
    records: Records,
    target: LinearRegression,
    settings: dict[str, float],
    key: jax.Array,
) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy (XᵀX, Xᵀy).

    Args:
        records: as they are, of the target or of its owners.
        target: its public bounds.
        settings: of :func:`calibrate_statistics`.
        key: secret JAX key, used for nothing else.
    """
    weight = label_weight_of(settings)
    gram, moment = gram_and_moment(records, target)
    exact = statistics(gram, moment, weight)
    released = gaussian_release(exact, settings["noise_std"], key)
    return split(released, len(moment.steps), weight)


def sensitivity_of(row_bound: float, label_bound: float, weight: float, adjacency: Adjacency) -> float:
    """Return the largest l2 distance of (svec(XᵀX), weight·Xᵀy) between neighbours; derived above."""
    if adjacency.sensitivity == 1:
        return record_norm(row_bound, label_bound, weight)
    ratio = (weight * label_bound / row_bound) ** 2 / 2
    if ratio <= 1:
        return math.sqrt(2) * row_bound**2 * (1 + ratio)
    return 2 * weight * row_bound * label_bound


def record_norm(row_bound: float, label_bound: float, weight: float) -> float:
    """Return the largest norm that one record contributes."""
    return math.hypot(row_bound**2, weight * row_bound * label_bound)


def statistics(gram: Exact, moment: Exact, weight: float) -> Exact:
    """Return (svec(XᵀX), weight·Xᵀy), (d(d + 3)/2,), exactly.

    Args:
        gram: XᵀX, (d, d).
        moment: Xᵀy, (d,).
        weight: w.
    """
    return stacked(svec_of(gram), moment.times(weight))


def split(released: np.ndarray, d: int, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (XᵀX, Xᵀy) of a noisy :func:`statistics`."""
    number = entries(d)
    return symmetric(released[:number], d), released[number:] / weight


@dataclass(frozen=True)
class SufficientStatistics(OneShot):
    """Ridge regression from one noisy release of XᵀX and Xᵀy.

    Args:
        label_weight: how much of the budget goes to Xᵀy; its noise is that of XᵀX times
            label_bound/(row_bound·label_weight).

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc.mechanisms import SufficientStatistics
        >>> from dpmcmc.targets import LinearRegression
        >>> target = LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
        >>> plan = SufficientStatistics().plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    label_weight: Positive = 1.0

    def reads_sums(self, target: Target) -> bool:
        """Return true: XᵀX and Xᵀy are all that it reads."""
        return True

    def calibrate(self, target: Target, spec: PrivacySpec) -> MechanismPlan:
        """Settle the noise.

        Raises:
            UnsupportedCombination: another target than linear regression.
            ValueError: no row_bound or label_bound.
        """
        event, settings = calibrate_statistics(target, spec, spec.mu, self.label_weight, "sufficient_statistics")
        return self.planned(target, spec, (event,), settings)

    def draw(self, plan: MechanismPlan, records: Records, streams: Streams) -> np.ndarray:
        """Return the ridge estimate, (1, d)."""
        gram, moment = release_statistics(records, plan.target, plan.settings, streams.noise)
        return ridge(gram, moment, plan.target, plan.settings["noise_std"])[np.newaxis]


def ridge(gram: np.ndarray, moment: np.ndarray, target: LinearRegression, noise_std: float) -> np.ndarray:
    """Return the mean of the posterior that takes noisy statistics for exact ones, (d,).

    Eigenvalues of XᵀX that the noise could have made by itself are raised to noise_std·√(2d), the spectral radius of
    symmetric noise of this std: directions the records say nothing about are shrunk and not blown up.

    Args:
        gram: noisy XᵀX, (d, d), symmetric.
        moment: noisy Xᵀy, (d,).
        target: prior and noise scale.
        noise_std: of svec.
    """
    values, vectors = eigh(gram)
    values = np.maximum(values, noise_std * math.sqrt(2 * len(values)))
    precision = (vectors * values) @ vectors.T / target.noise_scale**2 + np.eye(len(values)) / target.prior_scale**2
    return cho_solve(cho_factor(precision), moment) / target.noise_scale**2


# ----------------------------------------------------------------------------------------------------
# AdaSSP: ridge regression from noisy sufficient statistics, its ridge chosen from a private smallest eigenvalue.
#
#     (Ĝ + λI)⁻¹ m̂,    Ĝ = XᵀX + noise,  m̂ = Xᵀy + noise,    λ = max(λ₀, τ − low)      (Wang 2018, Algorithm 3)
#
# ``low`` is a bound below λ_min(XᵀX) from one Gaussian release of sensitivity b² (Weyl: it moves by [0, b²] when
# a row is added, so by at most b² when one is replaced). τ is the size that the noise of Ĝ may have in any direction.
# With N(0, σ²) on the diagonal and N(0, σ²/2) off it, E λ_max <= σ√(2d) (Gordon) and λ_max is σ-Lipschitz in the
# noise, so
#
#     ‖noise‖ <= τ = σ(√(2d) + √(2 log(2/ρ)))     except with probability ρ.
#
# Where XᵀX is well conditioned, no ridge is added. The statistics are one query (``sufficient.py``;
# ``sufficient.py`` raises noisy eigenvalues in place of a ridge). Everything after the noise is post-processing,
# whatever λ is: privacy is that of two Gaussian releases, μ² = μ₁² + μ₂².


@dataclass(frozen=True)
class AdaSSP(OneShot):
    """Ridge regression from noisy XᵀX and Xᵀy, with no more ridge than a private eigenvalue asks for.

    Args:
        eigenvalue_share: share of μ² for the smallest eigenvalue of XᵀX.
        label_weight: how much of the rest goes to Xᵀy, as for ``sufficient_statistics``.
        failure: ρ, probability that noise or eigenvalue are beyond what λ makes room for; not a matter of privacy.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc.mechanisms import AdaSSP
        >>> from dpmcmc.targets import LinearRegression
        >>> target = LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
        >>> plan = AdaSSP().plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    eigenvalue_share: Annotated[float, Gt(0), Lt(1)] = 0.1
    label_weight: Positive = 1.0
    failure: Annotated[float, Gt(0), Lt(1)] = 0.05

    def reads_sums(self, target: Target) -> bool:
        """Return true: XᵀX and Xᵀy are all that it reads."""
        return True

    def calibrate(self, target: Target, spec: PrivacySpec) -> MechanismPlan:
        """Settle the noise.

        Raises:
            UnsupportedCombination: another target than linear regression.
            ValueError: no row_bound or label_bound.
        """
        _, row, _, size = linear_bounds(target, "adassp")
        mu = spec.mu * (1 - 1e-9)
        eigenvalue = row**2 * (1 + 2 * rounding(size) * spec.most_records)
        eigenvalue_std = mu_std(eigenvalue, 1, mu * math.sqrt(self.eigenvalue_share))
        event, settings = calibrate_statistics(
            target,
            spec,
            mu * math.sqrt(1 - self.eigenvalue_share),
            self.label_weight,
            "adassp",
        )
        events = (spec.gaussian(eigenvalue_std, eigenvalue, 1), event)
        settings["eigenvalue_noise_std"] = eigenvalue_std
        return self.planned(target, spec, events, settings)

    def draw(self, plan: MechanismPlan, records: Records, streams: Streams) -> np.ndarray:
        """Return the estimate, (1, d)."""
        settings = plan.settings
        target = plan.target
        weight = label_weight_of(settings)
        eigenvalue_key, statistics_key = jax.random.split(streams.noise)
        gram, moment = gram_and_moment(records, target)
        size = len(moment.steps)
        exact = statistics(gram, moment, weight)
        least = np.linalg.eigvalsh(gram.floats)[:1]
        noisy = float(gaussian_release(least, settings["eigenvalue_noise_std"], eigenvalue_key)[0])
        noisy_gram, noisy_moment = split(gaussian_release(exact, settings["noise_std"], statistics_key), size, weight)
        tail = math.sqrt(2 * math.log(2 / self.failure))
        low = max(0.0, noisy - tail * settings["eigenvalue_noise_std"])
        wanted = settings["noise_std"] * (math.sqrt(2 * size) + tail)
        ridge = max((target.noise_scale / target.prior_scale) ** 2, wanted - low)
        # Noise is what is left below the ridge, with a probability of about ρ.
        values, vectors = eigh(noisy_gram)
        precision = (vectors * (np.maximum(values, 0.0) + ridge)) @ vectors.T
        return cho_solve(cho_factor(precision), noisy_moment)[None]
