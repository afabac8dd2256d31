"""Objective perturbation: the minimiser of the regularised loss with a random linear term.

    θ̂ = argmin Σ ℓ_i(θ) + (Λ/2)‖θ‖² + b·θ,    b ~ N(0, σ² I)

It costs little more than the Gaussian mechanism of noise std σ on a sum of gradients, as long as log(1 + β/Λ) is
below ε for the curvature β of a record (proof: ``privacy/accounting/objective.py``).

This holds for the exact minimiser. The release is θ + N(0, τ²I) with a certified ‖∇J(θ)‖ <= γ, hence ‖θ − θ̂‖ <= γ/Λ
(approximate minima perturbation, Iyengar et al. 2019). Given θ̂, b is known, so θ is a function of θ̂ and the
records: the second step is a Gaussian release of sensitivity 2γ/Λ under EVERY adjacency, beside the first. γ is so
small that 2^-11 of the first step's μ buys a τ of about 2^-11·σ/Λ or less.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import jax
from annotated_types import Gt, Le

from dpmcmc.errors import CalibrationError, UnsupportedCombination
from dpmcmc.mechanisms.convexity import Bounds, bounds_of
from dpmcmc.mechanisms.huberised import HuberisedLogistic
from dpmcmc.mechanisms.minimise import tolerance_of
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec
from dpmcmc.mechanisms.output_perturbation import noisy_minimiser
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting import Event, one_sample
from dpmcmc.privacy.accounting.bisection import smallest
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.shown_numbers import three_digits
from dpmcmc.privacy.query.gaussian_release import mu_std, standard_normal
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree, size_of
from dpmcmc.targets.base import Positive, Target
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.tempered import untempered

#: μ of the second step relative to that of the first.
_SHARE = 2.0**-11
#: γ relative to L, where float64 allows it.
_TOLERANCE_OF_OBJECTIVE = 2.0**-22
#: Calibration ``tight`` ends within this share above the smallest noise.
_PRECISION = 1e-5


@dataclass(frozen=True)
class ObjectivePerturbation(OneShot):
    """The minimiser of a randomly tilted regularised logistic loss.

    Args:
        regularisation: Λ > 0; more of it leaves more of ε to the noise. None: the target's prior precision, or where
            that is larger the one at which the curvature costs ε/2.
        clip: c in (0, 1]: residuals are clipped to it, which takes c times the noise (``minimise.py``); None: not.
        calibration: ``tight``: the smallest noise that meets (ε, δ). ``kst12``: the published noise and
            regularisation of Kifer, Smith and Thakurta (2012), to redraw curves; the guarantee is computed, not quoted.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc.mechanisms import ObjectivePerturbation
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = ObjectivePerturbation(regularisation=10.0).plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    in_floats = "the tilt of the objective"

    regularisation: Positive | None = None
    calibration: Literal["tight", "kst12"] = "tight"
    clip: Annotated[float, Gt(0), Le(1)] | None = None

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
        """Settle Λ, σ, γ and τ.

        Raises:
            UnsupportedCombination: losses that the proof does not cover.
            CalibrationError: the curvature alone costs ε.
        """
        _check_logistic(target)
        bounds = bounds_of(self._losses(target), "objective_perturbation", self.regularisation)
        published = self.calibration == "kst12"
        strength = bounds.prior_precision
        if published:
            strength = max(strength, 2 * bounds.smoothness / spec.epsilon)
        elif self.regularisation is None:
            strength = max(strength, _at_half(bounds.smoothness, spec.epsilon))
        tilted = _Tilted(self._losses(target), spec, bounds, strength)
        tilted.check()
        noise_std = tilted.published_std() if published else tilted.smallest_std()
        gamma, tau = tilted.second_step(noise_std)
        events = tilted.events(noise_std)
        settings = {
            "regularisation": strength,
            "noise_std": noise_std,
            "noise_multiplier": events[0].noise_multiplier,
            "curvature_epsilon": tilted.curvature,
            "gradient_tolerance": gamma,
            "output_noise_std": tau,
        }
        return self.planned(target, spec, events, settings)

    def draw(self, plan: Plan, records: PyTree, streams: Streams) -> PyTree:
        """Return the perturbed minimiser, leaves (1, ...).

        Raises:
            NotConverged: the minimiser was not reached; for the data holder alone.
        """
        shapes = jax.eval_shape(plan.target.init, jax.random.key(0))
        tilt, last = jax.random.split(streams.noise)
        noise = plan.settings["noise_std"] * standard_normal(tilt, (size_of(shapes),))
        clipped = dataclasses.replace(plan, target=self._losses(plan.target))
        return noisy_minimiser(clipped, records, plan.settings["output_noise_std"], last, noise)

    def _losses(self, target: Target) -> Target:
        """Return the target whose losses are minimised."""
        if self.clip is None:
            return target
        if type(target) is not LogisticRegression:
            raise UnsupportedCombination(
                "clip: is for a LogisticRegression that is not tempered; leave it out.",
                "clip",
            )
        return HuberisedLogistic.of(target, self.clip)


@dataclass(frozen=True)
class _Tilted:
    """A tilted objective of regularisation Λ, and the cost of each noise std σ of its tilt."""

    target: Target
    spec: PrivacySpec
    bounds: Bounds
    strength: float

    @property
    def mechanism(self) -> str:
        """Name of the tilt's event."""
        clipped = isinstance(self.target, HuberisedLogistic)
        return "clipped_objective_perturbation" if clipped else "objective_perturbation"

    @property
    def curvature(self) -> float:
        """ε that the curvature costs at any noise: log(1 + β/Λ)."""
        return math.log1p(self.bounds.smoothness / self.strength)

    def check(self) -> None:
        """Raise CalibrationError where the curvature leaves nothing of ε to the noise."""
        epsilon = self.spec.epsilon
        beta = self.bounds.smoothness
        if self.curvature >= epsilon:
            raise CalibrationError(
                f"regularisation: at {self.strength:.6g} the curvature alone costs log(1 + {beta:g}/"
                f"{self.strength:.6g}) = {self.curvature:.4g}, and epsilon is {epsilon:g}; give "
                f"{three_digits(_at_half(beta, epsilon))}, where it costs half of epsilon, or leave regularisation out",
                "regularisation",
            )

    def second_step(self, noise_std: float) -> tuple[float, float]:
        """Return (γ, τ) of the release of the computed minimiser."""
        gamma = self._tolerance(noise_std)
        mu = _SHARE * self.spec.moved / self._multiplier(noise_std)
        return gamma, mu_std(2 * gamma / self.strength, self.bounds.size, mu)

    def events(self, noise_std: float) -> tuple[Event, Event]:
        """Return the events of the tilt and of the noise on the computed minimiser."""
        gamma, tau = self.second_step(noise_std)
        return (
            Event(
                self.mechanism,
                self._multiplier(noise_std),
                1.0,
                1,
                epsilon=self.curvature,
            ),
            self.spec.gaussian(tau, 2 * gamma / self.strength, self.bounds.size),
        )

    def published_std(self) -> float:
        """Return σ of Kifer, Smith and Thakurta (2012)."""
        # ζ is how far a neighbour moves the gradient of the sum.
        zeta = self.spec.moved * self.bounds.lipschitz
        return zeta * math.sqrt(8 * math.log(2 / self.spec.delta) + 4 * self.spec.epsilon) / self.spec.epsilon

    def smallest_std(self) -> float:
        """Return the smallest σ that meets (ε, δ), on the private side.

        Raises:
            CalibrationError: no σ does.
        """
        spec = self.spec
        zeta = self.bounds.lipschitz * self.spec.moved

        def enough(noise_std: float) -> bool:
            return one_sample.epsilon(self.events(noise_std), spec.adjacency, spec.delta) <= spec.epsilon

        # Between the noise of the Gaussian mechanism, and that at the price of the curvature, with 1 % for the rest.
        low = zeta / spec.mu
        high = 1.01 * zeta / gaussian_mu(spec.epsilon - self.curvature, spec.delta)
        while not enough(high):
            high = 1.1 * high
            if high > 1e15 * self.bounds.lipschitz:
                raise CalibrationError(
                    f"epsilon: {spec.epsilon:g} at delta {spec.delta:g} is out of reach of any noise",
                    "epsilon",
                )
        return smallest(enough, low, high, _PRECISION)

    def _multiplier(self, noise_std: float) -> float:
        return noise_std / (self.bounds.lipschitz * (1 + KAPPA))

    def _tolerance(self, noise_std: float) -> float:
        linear = noise_std * (math.sqrt(self.bounds.size) + 10)
        return tolerance_of(
            self.target,
            self.bounds,
            self.strength,
            self.spec.num_records,
            share=_TOLERANCE_OF_OBJECTIVE,
            linear=linear,
        )


def _at_half(smoothness: float, epsilon: float) -> float:
    """Return the Λ at which the curvature β of a record costs ε/2: log(1 + β/Λ) = ε/2."""
    # 1/(e^x − 1) without an overflow of e^x.
    return smoothness * math.exp(-epsilon / 2) / -math.expm1(-epsilon / 2)


def _check_logistic(target: Target) -> None:
    """Refuse losses without the one-sided gradients and the vanishing curvature that the proof needs."""
    model = untempered(target)
    # A subclass may have other losses.
    if type(model) is not LogisticRegression:
        raise UnsupportedCombination(
            "objective_perturbation is proved for LogisticRegression (curvature of rank one that vanishes where the "
            f"gradient is largest), and the target is {type(model).__name__}; use output_perturbation.",
            "target",
        )
