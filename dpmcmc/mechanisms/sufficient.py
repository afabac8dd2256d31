"""Linear regression from private sufficient statistics.

XᵀX and Xᵀy are released once, as ONE Gaussian query (``statistics.py``). Everything after the noise is
post-processing and costs nothing. One point leaves. Draws that account for the noise, from the same release, are those
of ``noise_aware/``.

Claim: Sufficient statistics of a linear regression are one Gaussian query.
Proof: an isometry, in whose norm one record has a bound.
Held by: test_no_replaced_record_exceeds_the_sensitivity_and_one_attains_it,
test_statistics_are_isometric_and_complete, test_replay_of_adassp_on_neighbours_moves_releases_within_their_charge
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from dpmcmc.inference.decompositions import eigh
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec
from dpmcmc.mechanisms.statistics import calibrate_statistics, release_statistics
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records
from dpmcmc.targets.base import Positive, Target
from dpmcmc.targets.linear import LinearRegression


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

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
        """Settle the noise.

        Raises:
            UnsupportedCombination: another target than linear regression.
            ValueError: no row_bound or label_bound.
        """
        event, settings = calibrate_statistics(target, spec, spec.mu, self.label_weight, "sufficient_statistics")
        return self.planned(target, spec, (event,), settings)

    def draw(self, plan: Plan, records: Records, streams: Streams) -> np.ndarray:
        """Return the ridge estimate, (1, d)."""
        target = plan.target
        assert isinstance(target, LinearRegression)
        gram, moment = release_statistics(records, target, plan.settings, streams.noise)
        return ridge(gram, moment, target, plan.settings["noise_std"])[np.newaxis]


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
