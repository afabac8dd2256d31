r"""Output perturbation: the regularised minimiser plus Gaussian noise.

    θ̂ = argmin Σ ℓ_i(θ) + (Λ/2)‖θ‖²,    released: θ̂ + N(0, σ² I)

(Chaudhuri, Monteleoni and Sarwate 2011, with the Gaussian mechanism.) At θ̂' the gradient of the other objective is
∇ℓ_x − ∇ℓ_x', of norm at most kL, k = 2 for replace_one and 1 where the record is added, removed or zeroed; strong
convexity turns that into ‖θ̂ − θ̂'‖ <= kL/Λ. The computed θ has a certified ‖∇J(θ)‖ <= γ, which adds 2γ/Λ; rounding to
the grid is charged by ``gaussian_release.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax

from dpmcmc.errors import InputError
from dpmcmc.mechanisms.base import MechanismPlan, bounds_of, vouched
from dpmcmc.mechanisms.gaussian_release import calibrated_std, check_promise, gaussian_event, gaussian_release
from dpmcmc.mechanisms.minimise import minimise, radius_bound, ravel, rounding, unravel
from dpmcmc.mechanisms.objective import check_regularisation
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.calibration import CalibrationError
from dpmcmc.privacy.query.randomness import Streams

#: γ relative to L, where float64 allows it.
_TOLERANCE = 2.0**-12


@dataclass(frozen=True)
class OutputPerturbation:
    """The minimiser of the regularised loss plus Gaussian noise, for convex losses with bounded gradients.

    Args:
        regularisation: Λ > 0, in place of the target's prior precision; the noise falls as 1/Λ.
        calibration: ``tight``: the smallest noise that meets (ε, δ). ``classic``: sensitivity·√(2 log(1.25/δ))/ε,
            for ε < 1, to redraw published curves; the guarantee is computed, not quoted.

    Raises:
        ValueError: a value outside these.
    """

    regularisation: float | None = None
    calibration: Literal["tight", "classic"] = "tight"

    release = "estimate"

    def __post_init__(self) -> None:
        check_regularisation(self.regularisation)
        if self.calibration not in ("tight", "classic"):
            raise InputError(f"calibration: must be 'tight' or 'classic', got {self.calibration!r}")

    def plan(
        self, target: Any, *, num_records: int, epsilon: float, delta: float, adjacency: str = "replace_one"
    ) -> MechanismPlan:
        """Settle γ and σ; reads no record.

        Raises:
            UnsupportedCombination: losses that are not convex, or have no gradient bound.
            CalibrationError: calibration ``classic`` at ε >= 1.
            ValueError: impossible numbers, named by the argument first.
        """
        check_promise(num_records, epsilon, delta)
        bounds = bounds_of(target, "output_perturbation", self.regularisation)
        strength = bounds.prior_precision
        unsure = rounding(
            target,
            num_records,
            bounds.size,
            radius=radius_bound(num_records, strength),
            regularisation=strength,
        )
        gamma = max(_TOLERANCE * bounds.lipschitz, 2 * unsure)
        moved = 2 if adjacency == "replace_one" else 1
        sensitivity = (moved * bounds.lipschitz + 2 * gamma) / strength
        if self.calibration == "classic":
            if epsilon >= 1:
                raise CalibrationError(
                    f"calibration: the classic Gaussian formula is proved for epsilon < 1, and epsilon is {epsilon:g}; "
                    "use calibration tight"
                )
            noise_std = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
        else:
            noise_std = calibrated_std(sensitivity, bounds.size, epsilon=epsilon, delta=delta)
        event = gaussian_event(noise_std, sensitivity, bounds.size, adjacency)
        guarantee = Guarantee.from_events(
            (event,),
            delta=delta,
            adjacency=adjacency,
            accountant="one_sample",
            release=self.release,
            assumptions=vouched(target),
        )
        settings = {
            "regularisation": strength,
            "sensitivity": sensitivity,
            "noise_std": noise_std,
            "noise_multiplier": event.noise_multiplier,
            "gradient_tolerance": gamma,
        }
        return MechanismPlan(self, target, num_records, guarantee, settings)

    def draw(self, plan: MechanismPlan, records: Any, streams: Streams) -> Any:
        """The noisy minimiser, leaves (1, ...).

        Raises:
            NotConverged: the minimiser was not reached; for the data holder alone.
        """
        theta, _ = minimise(
            plan.target,
            records,
            plan.settings["regularisation"],
            tolerance=plan.settings["gradient_tolerance"],
        )
        released = gaussian_release(ravel(theta), plan.settings["noise_std"], streams.noise)
        return jax.tree.map(lambda leaf: leaf[None], unravel(theta, released))
