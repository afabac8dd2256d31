r"""Objective perturbation: the minimiser of the regularised loss with a random linear term.

    θ̂ = argmin Σ ℓ_i(θ) + (Λ/2)‖θ‖² + b·θ,    b ~ N(0, σ² I)

It costs little more than the Gaussian mechanism of noise std σ on a sum of gradients, as long as log(1 + β/Λ) is below
ε for the curvature β of a record (proof: ``privacy/accounting/objective.py``).

This holds for the exact minimiser. The release is θ + N(0, τ²I) with a certified ‖∇J(θ)‖ <= γ, hence
‖θ − θ̂‖ <= γ/Λ (approximate minima perturbation, Iyengar et al. 2019). Given θ̂, b is known, so θ is a function of θ̂ and
the records: the second step is a Gaussian release of sensitivity 2γ/Λ under EVERY adjacency, beside the first. γ is so
small that 2^-11 of the first step's μ buys a τ of about 2^-11·σ/Λ or less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax

from dpmcmc.errors import InputError
from dpmcmc.mechanisms.base import Bounds, MechanismPlan, bounds_of, vouched
from dpmcmc.mechanisms.gaussian_release import check_promise, gaussian_event, gaussian_release, mu_std, standard_normal
from dpmcmc.mechanisms.minimise import minimise, radius_bound, ravel, rounding, unravel
from dpmcmc.privacy.accounting import Event, one_sample
from dpmcmc.privacy.accounting.events import UnsupportedCombination
from dpmcmc.privacy.accounting.float_excess import KAPPA
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.calibration import CalibrationError
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.tempered import Tempered

#: μ of the second step relative to that of the first.
_SHARE = 2.0**-11
#: γ relative to L, where float64 allows it.
_TOLERANCE = 2.0**-22


@dataclass(frozen=True)
class ObjectivePerturbation:
    """The minimiser of a randomly tilted regularised logistic loss.

    Args:
        regularisation: Λ > 0, in place of the target's prior precision; more of it leaves more of ε to the noise.
        calibration: ``tight``: the smallest noise that meets (ε, δ). ``kst12``: the published noise and
            regularisation of Kifer, Smith and Thakurta (2012), to redraw curves; the guarantee is computed, not quoted.

    Raises:
        ValueError: a value outside these.
    """

    regularisation: float | None = None
    calibration: Literal["tight", "kst12"] = "tight"

    release = "estimate"

    def __post_init__(self) -> None:
        check_regularisation(self.regularisation)
        if self.calibration not in ("tight", "kst12"):
            raise InputError(f"calibration: must be 'tight' or 'kst12', got {self.calibration!r}")

    def plan(
        self, target: Any, *, num_records: int, epsilon: float, delta: float, adjacency: str = "replace_one"
    ) -> MechanismPlan:
        """Settle Λ, σ, γ and τ; reads no record.

        Raises:
            UnsupportedCombination: losses that the proof does not cover.
            CalibrationError: the curvature alone costs ε.
            ValueError: impossible numbers, named by the argument first.
        """
        check_promise(num_records, epsilon, delta)
        _check_logistic(target)
        bounds = bounds_of(target, "objective_perturbation", self.regularisation)
        strength = bounds.prior_precision
        if self.calibration == "kst12":
            strength = max(strength, 2 * bounds.smoothness / epsilon)
        curvature = math.log1p(bounds.smoothness / strength)
        if curvature >= epsilon:
            raise CalibrationError(
                f"regularisation: at {strength:.6g} the curvature alone costs log(1 + {bounds.smoothness:g}/"
                f"{strength:.6g}) = {curvature:.4g}, and epsilon is {epsilon:g}; give one well above "
                f"{bounds.smoothness / math.expm1(epsilon):.4g}"
            )
        twice = 2.0 if adjacency == "replace_one" else 1.0

        def settle(noise_std: float) -> tuple[tuple[Event, Event], float, float]:
            z = noise_std / (bounds.lipschitz * (1 + KAPPA))
            gamma = _tolerance(target, bounds, strength, num_records, noise_std)
            tau = mu_std(2 * gamma / strength, bounds.size, _SHARE * twice / z)
            return (
                (
                    Event("objective_perturbation", z, 1.0, 1, epsilon=curvature),
                    gaussian_event(tau, 2 * gamma / strength, bounds.size, adjacency),
                ),
                gamma,
                tau,
            )

        if self.calibration == "kst12":
            # ζ is how far a neighbour moves the gradient of the sum.
            zeta = twice * bounds.lipschitz
            noise_std = zeta * math.sqrt(8 * math.log(2 / delta) + 4 * epsilon) / epsilon
        else:
            # Between the Gaussian mechanism's noise, and that at the price of the curvature, with 1 % for the rest.
            low = bounds.lipschitz * twice / gaussian_mu(epsilon, delta)
            high = 1.01 * bounds.lipschitz * twice / gaussian_mu(epsilon - curvature, delta)
            while one_sample.epsilon(settle(high)[0], adjacency, delta) > epsilon:
                high = 1.1 * high
                if high > 1e15 * bounds.lipschitz:
                    raise CalibrationError(f"epsilon: {epsilon:g} at delta {delta:g} is out of reach of any noise")
            while high - low > 1e-5 * high:
                middle = (low + high) / 2
                enough = one_sample.epsilon(settle(middle)[0], adjacency, delta) <= epsilon
                low, high = (low, middle) if enough else (middle, high)
            noise_std = high
        events, gamma, tau = settle(noise_std)
        guarantee = Guarantee.from_events(
            events,
            delta=delta,
            adjacency=adjacency,
            accountant="one_sample",
            release=self.release,
            assumptions=vouched(target),
        )
        settings = {
            "regularisation": strength,
            "noise_std": noise_std,
            "noise_multiplier": events[0].noise_multiplier,
            "curvature_epsilon": curvature,
            "gradient_tolerance": gamma,
            "output_noise_std": tau,
        }
        return MechanismPlan(self, target, num_records, guarantee, settings)

    def draw(self, plan: MechanismPlan, records: Any, streams: Streams) -> Any:
        """The perturbed minimiser, leaves (1, ...).

        Raises:
            NotConverged: the minimiser was not reached; for the data holder alone.
        """
        shapes = jax.eval_shape(plan.target.init, jax.random.key(0))
        size = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        tilt, last = jax.random.split(streams.noise)
        b = plan.settings["noise_std"] * standard_normal(tilt, (size,))
        theta, _ = minimise(
            plan.target,
            records,
            plan.settings["regularisation"],
            tolerance=plan.settings["gradient_tolerance"],
            linear=b,
        )
        released = gaussian_release(ravel(theta), plan.settings["output_noise_std"], last)
        return jax.tree.map(lambda leaf: leaf[None], unravel(shapes, released))


def check_regularisation(value: float | None) -> None:
    """Refuse a Λ that is not finite and positive; None is the target's own.

    Raises:
        ValueError: naming the argument first.
    """
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise InputError(f"regularisation: must be a finite number > 0, got {value}")


def _check_logistic(target: Any) -> None:
    """Refuse losses without the one-sided gradients and the vanishing curvature that the proof needs."""
    model = target
    while isinstance(model, Tempered):
        model = model.target
    # A subclass may have other losses.
    if type(model) is not LogisticRegression:
        raise UnsupportedCombination(
            "objective_perturbation is proved for LogisticRegression (curvature of rank one that vanishes where the "
            f"gradient is largest), and the target is {type(model).__name__}; use output_perturbation."
        )


def _tolerance(target: Any, bounds: Bounds, strength: float, num_records: int, noise_std: float) -> float:
    """γ: a fraction of L, or twice what float64 leaves uncertain at the farthest plausible minimiser."""
    linear = noise_std * (math.sqrt(bounds.size) + 10)
    unsure = rounding(
        target,
        num_records,
        bounds.size,
        radius=radius_bound(num_records, strength, linear),
        regularisation=strength,
        linear=linear,
    )
    return max(_TOLERANCE * bounds.lipschitz, 2 * unsure)
