r"""Output and objective perturbation of a ridge regression, to compare AdaOPS with.

The mechanisms of ``dpmcmc.mechanisms`` refuse linear regression: its gradients have no bound. Here the minimiser itself
is bounded, ‖x‖ <= b, |y| <= Y: a residual at θ̂ = H⁻¹Xᵀy is at most R = Y(1 + b√N/(2√λ)) (``sources/adaops.py``). k = 2
for replace_one.

Output: θ̂ + N(0, σ²I). H'(θ̂' − θ̂) = x'(y' − x'·θ̂) − x(y − x·θ̂), so its sensitivity is kbR/λ.

Objective: θ = argmin ½‖y − Xθ‖² + (λ/2)‖θ‖² + β·θ, β ~ N(0, σ²I), that is θ = H⁻¹(Xᵀy − β). Its density is that of
β(θ) = Xᵀy − Hθ times |det H|, and another record moves β by Δ = x'(y' − x'·θ) − x(y − x·θ). Except for probability
4kΦ(−t) = δ, |x·β| <= tσb and |y − x·θ| <= R' = R + tσb/λ for the records that differ, so that with u = R'/σ

    ε = log(1 + b²/λ) + kt·bu + (kbu)²/2.

σ = R/(u − tb/λ) for the u that this leaves; none where u <= tb/λ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from dpmcmc.privacy import CalibrationError
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.query.gaussian_release import calibrated_std, gaussian_release, standard_normal


@dataclass(frozen=True)
class Ridge:
    """A ridge regression's public facts: b, Y, d, N, λ and k."""

    row: float
    label: float
    size: int
    num_records: int
    ridge: float
    adjacency: str

    @property
    def residual(self) -> float:
        """R."""
        return self.label * (1 + self.row * math.sqrt(self.num_records) / (2 * math.sqrt(self.ridge)))

    def fit(self, records: Any) -> tuple[np.ndarray, np.ndarray]:
        """(θ̂, H)."""
        x = np.asarray(records["x"], np.float64)
        y = np.asarray(records["y"], np.float64)
        hessian = x.T @ x + self.ridge * np.eye(self.size)
        return np.linalg.solve(hessian, x.T @ y), hessian


def output_std(facts: Ridge, epsilon: float, delta: float) -> float:
    """σ of output perturbation."""
    sensitivity = Adjacency(facts.adjacency).sensitivity * facts.row * facts.residual / facts.ridge
    return calibrated_std(sensitivity, facts.size, epsilon=epsilon, delta=delta)


def objective_std(facts: Ridge, epsilon: float, delta: float) -> float:
    """σ of objective perturbation.

    Raises:
        CalibrationError: λ is too small for this (ε, δ).
    """
    k = Adjacency(facts.adjacency).sensitivity
    t = -float(ndtri(delta / (4 * k)))
    left = epsilon - math.log1p(facts.row**2 / facts.ridge)
    # kt·bu + (kbu)²/2 = left.
    u = (math.sqrt(t * t + 2 * left) - t) / (k * facts.row) if left > 0 else 0.0
    room = u - t * facts.row / facts.ridge
    if not room > 0:
        raise CalibrationError(f"ridge: {facts.ridge:g} leaves nothing of epsilon {epsilon:g}; raise it")
    return facts.residual / room


def perturb_output(facts: Ridge, std: float, records: Any, seed: int) -> np.ndarray:
    """One release from a seed, (d,)."""
    return gaussian_release(facts.fit(records)[0], std, jax.random.key(seed))


def perturb_objective(facts: Ridge, std: float, records: Any, seed: int) -> np.ndarray:
    """One release from a seed, (d,)."""
    centre, hessian = facts.fit(records)
    return centre - np.linalg.solve(hessian, std * standard_normal(jax.random.key(seed), (facts.size,)))
