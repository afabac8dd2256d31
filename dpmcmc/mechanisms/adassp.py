"""AdaSSP: ridge regression from noisy sufficient statistics, its ridge chosen from a private smallest eigenvalue.

    (Ĝ + λI)⁻¹ m̂,    Ĝ = XᵀX + noise,  m̂ = Xᵀy + noise,    λ = max(λ₀, τ − low)      (Wang 2018, Algorithm 3)

``low`` is a bound below λ_min(XᵀX) from one Gaussian release of sensitivity b² (Weyl: it moves by [0, b²] when
a row is added, so by at most b² when one is replaced). τ is the size that the noise of Ĝ may have in any direction.
With N(0, σ²) on the diagonal and N(0, σ²/2) off it, E λ_max <= σ√(2d) (Gordon) and λ_max is σ-Lipschitz in the
noise, so

    ‖noise‖ <= τ = σ(√(2d) + √(2 log(2/ρ)))     except with probability ρ.

Where XᵀX is well conditioned, no ridge is added. The statistics are one query (``statistics.py``;
``sufficient.py`` raises noisy eigenvalues in place of a ridge). Everything after the noise is post-processing,
whatever λ is: privacy is that of two Gaussian releases, μ² = μ₁² + μ₂².
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import jax
import numpy as np
from annotated_types import Gt, Lt
from scipy.linalg import cho_factor, cho_solve

from dpmcmc.inference.decompositions import eigh
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec
from dpmcmc.mechanisms.statistics import (
    calibrate_statistics,
    gram_and_moment,
    label_weight_of,
    linear_bounds,
    rounding,
    split,
    statistics,
)
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.gaussian_release import gaussian_release, mu_std
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records
from dpmcmc.targets.base import Positive, Target
from dpmcmc.targets.linear import LinearRegression


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

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
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

    def draw(self, plan: Plan, records: Records, streams: Streams) -> np.ndarray:
        """Return the estimate, (1, d)."""
        settings = plan.settings
        target = plan.target
        assert isinstance(target, LinearRegression)
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
