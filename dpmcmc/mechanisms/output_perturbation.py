"""Output perturbation: the regularised minimiser plus Gaussian noise.

    θ̂ = argmin Σ ℓ_i(θ) + (Λ/2)‖θ‖²,    released: θ̂ + N(0, σ² I)

(Chaudhuri, Monteleoni and Sarwate 2011, with the Gaussian mechanism.) At θ̂' the gradient of the other objective is
∇ℓ_x − ∇ℓ_x', of norm at most kL, k = 2 for replace_one and 1 where the record is added, removed or zeroed; strong
convexity turns that into ‖θ̂ − θ̂'‖ <= kL/Λ. The computed θ has a certified ‖∇J(θ)‖ <= γ, which adds 2γ/Λ; rounding to
the grid is charged by ``gaussian_release.py``.

Claim: A record moves the minimiser by at most kL/Λ, and its certificate by 2γ/Λ.
Proof: strong convexity.
Held by: test_no_record_moves_the_minimiser_beyond_the_declared_sensitivity_and_one_nearly_does,
test_the_certificate_holds_from_any_start_of_any_scale
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np

from dpmcmc.errors import CalibrationError
from dpmcmc.mechanisms.convexity import bounds_of
from dpmcmc.mechanisms.minimise import minimise, ravel, tolerance_of, unravel
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec
from dpmcmc.mechanisms.sums_in_blocks import check_losses
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query.gaussian_release import calibrated_std, gaussian_release
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, Target

#: γ relative to L, where float64 allows it.
_TOLERANCE = 2.0**-12


@dataclass(frozen=True)
class OutputPerturbation(OneShot):
    """The minimiser of the regularised loss plus Gaussian noise, for convex losses with bounded gradients.

    Args:
        regularisation: Λ > 0, in place of the target's prior precision; the noise falls as 1/Λ.
        calibration: ``tight``: the smallest noise that meets (ε, δ). ``classic``: sensitivity·√(2 log(1.25/δ))/ε,
            for ε < 1, to redraw published curves; the guarantee is computed, not quoted.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc.mechanisms import OutputPerturbation
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = OutputPerturbation(regularisation=10.0).plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    regularisation: Positive | None = None
    calibration: Literal["tight", "classic"] = "tight"

    # The certificate of the minimiser does not count the rounding of an offset.
    honours = frozenset({"weight"})

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
        """Settle γ and σ.

        Raises:
            UnsupportedCombination: losses that are not convex, or have no gradient bound.
            CalibrationError: calibration ``classic`` at ε >= 1.
        """
        bounds = bounds_of(target, "output_perturbation", self.regularisation)
        strength = bounds.prior_precision
        gamma = tolerance_of(target, bounds, strength, spec.num_records, share=_TOLERANCE)
        sensitivity = (spec.moved * bounds.lipschitz + 2 * gamma) / strength
        noise_std = self._noise_std(sensitivity, bounds.size, spec)
        event = spec.gaussian(noise_std, sensitivity, bounds.size)
        settings = {
            "regularisation": strength,
            "sensitivity": sensitivity,
            "noise_std": noise_std,
            "noise_multiplier": event.noise_multiplier,
            "gradient_tolerance": gamma,
        }
        return self.planned(target, spec, (event,), settings)

    def check(self, plan: Plan, records: PyTree) -> None:
        """Refuse losses that fail in float64."""
        check_losses(plan.target, records)

    def draw(self, plan: Plan, records: PyTree, streams: Streams) -> PyTree:
        """Return the noisy minimiser, leaves (1, ...).

        Raises:
            NotConverged: the minimiser was not reached; for the data holder alone.
        """
        return noisy_minimiser(plan, records, plan.settings["noise_std"], streams.noise)

    def _noise_std(self, sensitivity: float, size: int, spec: PrivacySpec) -> float:
        if self.calibration == "tight":
            return calibrated_std(sensitivity, size, epsilon=spec.epsilon, delta=spec.delta)
        if spec.epsilon >= 1:
            raise CalibrationError(
                "calibration: the classic Gaussian formula is proved for epsilon < 1, and epsilon is "
                f"{spec.epsilon:g}; use calibration tight",
                "calibration",
            )
        return sensitivity * math.sqrt(2 * math.log(1.25 / spec.delta)) / spec.epsilon


def noisy_minimiser(
    plan: Plan,
    records: PyTree,
    noise_std: float,
    key: jax.Array,
    linear: np.ndarray | None = None,
) -> PyTree:
    """Return a plan's minimiser plus Gaussian noise, leaves (1, ...).

    Args:
        plan: whose settings say ``regularisation`` and ``gradient_tolerance``.
        records: pytree, leaves (N, ...).
        noise_std: of the noise.
        key: secret, used for the noise alone.
        linear: b of a tilted objective.

    Raises:
        NotConverged: the minimiser was not reached; for the data holder alone.
    """
    settings = plan.settings
    theta, _ = minimise(
        plan.target,
        records,
        settings["regularisation"],
        tolerance=settings["gradient_tolerance"],
        linear=linear,
    )
    return jax.tree.map(
        lambda leaf: leaf[None],
        unravel(theta, gaussian_release(ravel(theta), noise_std, key)),
    )
