r"""Realised loss of one record in a release by objective perturbation, from the release and that record alone.

    θ̂ = argmin Σ ℓ_i(θ) + (Λ/2)‖θ‖² + b·θ,   b ~ N(0, σ² I)

(``privacy/accounting/objective.py``; Redberg and Wang 2021, "Privately Publishable Per-instance Privacy".) A record's
loss is f(x·θ), so that its gradient is f'x and its curvature f''xxᵀ. On data D, which hold the record, θ̂ has density
φ(b_D(θ))·det H_D(θ) with b_D = −∇F_D, F_D the sum without b·θ, and H_D its Hessian. D' is D without the record, so that
b_D' = b_D + ∇ℓ and H_D = H_D' + f''xxᵀ with H_D' >= ΛI. Hence

    log p_D/p_D' = (2 b_D·∇ℓ + ‖∇ℓ‖²)/2σ² + log(1 + f''·xᵀH_D'⁻¹x),       |∇ℓ| = |f'|‖x‖ = g

b_D·∇ℓ = ±g·(b_D·u) for the unit vector u = x/‖x‖, which does not depend on the noise. Under D b_D·u is N(0, σ²), so it
lies within σz of 0 but with probability ρ, z = Φ⁻¹(1 − ρ/2), wherever f' lies. Therefore

    |log p_D/p_D'| <= log(1 + f''‖x‖²/Λ) + g²/2σ² + gz/σ     except with probability ρ.

Under D' b_D' is the N(0, σ²I), b_D = b_D' − ∇ℓ, and the first term is (2 b_D'·∇ℓ − ‖∇ℓ‖²)/2σ²: the same bound, whether
the record was in the data or not. The log ratio itself, one of the two signs, passes it with probability ρ/2 at most.

``replace_one``: another record of gradient ∇ℓ', of norm at most L, has the record's place in D'. Then
b_D' = b_D + ∇ℓ − ∇ℓ', so that g becomes g + L. The two projections of b each lie within σz but with probability ρ/2,
z = Φ⁻¹(1 − ρ/4), for one counterpart that was fixed before the run. The ratio of determinants lies within 1 + β/Λ of 1
either way, β the largest curvature.

Everything increases in g and in f''. Where the margin x·θ̂ is known up to an error, each is taken at its largest there.

**What is released.** The bound is at the exact minimiser θ̂, and released is θ = θ_c + N(0, τ²I) with ‖θ_c − θ̂‖ <= γ/Λ
for the computed minimiser θ_c (``objective_perturbation.py``). So what is bounded is the loss of an observer who sees
both θ̂ and θ, the sum of two. The first is bounded by the largest of its bounds at the margins that x·θ̂ may have:

    |x·(θ − θ̂)| <= ‖x‖(γ/Λ + τ|Z|) with Z ~ N(0, 1) along x, plus the rounding of θ to float32.

The second is that of a Gaussian release whose neighbours are at most μ₂ noise stds apart, given θ̂: at most
μ₂²/2 + μ₂|Z'|. The tilt has all of ρ but 2 %, which |Z| and |Z'| share. Normals stand for the noise as it is drawn:
in floating point for b, and in integers for the other. The guarantee says of both what it proves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le
from scipy.special import expit, ndtri

from dpmcmc.errors import Checked, InputError
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.guarantee import Guarantee

#: Share of the failure probability that each of |Z| and |Z'| has.
_SMALL = 0.01
#: Rounding of a float32, relative; both of θ's and of the row's.
_ROUNDED = 2.0**-22


@dataclass(frozen=True)
class ObjectiveRelease(Checked):
    """Public facts of one release of logistic regression by objective perturbation, exact minimiser.

    Args:
        regularisation: Λ.
        noise_std: σ of the tilt.
        row_bound: R, on ‖x‖.
        clip: c that residuals are clipped to; 1: they are not.
        adjacency: ``add_remove`` or ``zero_out``: the record against its absence; ``replace_one``: against any other.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.diagnostics.objective import ObjectiveRelease
        >>> released = ObjectiveRelease(regularisation=10.0, noise_std=5.0, row_bound=1.0)
        >>> mine = released.loss(np.array([2.0, -1.0]), np.array([0.3, 0.1]), 1, failure=0.05)
        >>> mine < released.worst_case(failure=0.05)
        True
    """

    regularisation: Annotated[float, Gt(0)]
    noise_std: Annotated[float, Gt(0)]
    row_bound: Annotated[float, Gt(0)]
    clip: Annotated[float, Gt(0), Le(1)] = 1.0
    adjacency: Adjacency | str = "add_remove"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))

    def loss(
        self,
        theta: np.ndarray,
        x: np.ndarray,
        y: int,
        *,
        failure: float,
        margin_error: Annotated[float, Ge(0)] = 0.0,
    ) -> float:
        """Return the bound on the realised loss of one record, in both directions.

        Args:
            theta: released, (d,).
            x: row of the record, (d,).
            y: its label, 0 or 1.
            failure: ρ in (0, 1), the probability over the noise of the run that the loss exceeds the bound.
            margin_error: how far x·θ may be from that of the exact minimiser.

        Raises:
            ValueError: a failure outside (0, 1); a row that is longer than the row bound, or a label that is neither.
        """
        x = np.asarray(x, np.float64)
        length = float(np.linalg.norm(x))
        # A float32 row may pass the bound by its rounding, and a NaN passes no comparison.
        if not length <= self.row_bound * (1 + 1e-6) or y not in (0, 1):
            raise InputError(
                f"record: needs a row of norm at most {self.row_bound:g} and a label 0 or 1",
                "record",
            )
        wrong = (1 - 2 * int(y)) * float(x @ np.asarray(theta, np.float64))
        low = wrong - margin_error
        high = wrong + margin_error
        residual = min(float(expit(high)), self.clip)
        # Residuals have curvature up to where they are clipped, and most of it at a margin of 0.
        end = math.inf if self.clip == 1 else math.log(self.clip / (1 - self.clip))
        nearest = min(max(0.0, low), high, end)
        slope = float(expit(nearest) * expit(-nearest)) if low <= end else 0.0
        return self._bound(residual * length, slope * length**2, failure)

    def worst_case(self, *, failure: float) -> float:
        """Return the most that :meth:`loss` can be, whatever the record and the release."""
        return self._bound(self._longest, self._most_curvature, failure)

    @property
    def _longest(self) -> float:
        """Largest norm L of a gradient."""
        return self.clip * self.row_bound

    @property
    def _most_curvature(self) -> float:
        """Largest curvature β."""
        steepest = min(self.clip, 0.5)
        return steepest * (1 - steepest) * self.row_bound**2

    def _bound(self, norm: float, curvature: float, failure: float) -> float:
        check_failure(failure)
        tail = failure / 2
        if self.adjacency == Adjacency.REPLACE_ONE:
            norm = norm + self._longest
            curvature = self._most_curvature
            tail = failure / 4
        ratio = norm / self.noise_std
        determinants = math.log1p(curvature / self.regularisation)
        return determinants + ratio**2 / 2 - ratio * float(ndtri(tail))


def check_failure(failure: float) -> None:
    """Raise InputError unless ``failure`` is a probability in (0, 1)."""
    if not 0 < failure < 1:
        raise InputError(f"failure: must be a probability in (0, 1), got {failure!r}", "failure")


def released_loss(
    exact: ObjectiveRelease,
    settings: Mapping[str, float],
    guarantee: Guarantee,
    theta: np.ndarray,
    record: tuple[np.ndarray, int],
    failure: float,
) -> tuple[float, float]:
    """Return the bound on the realised loss of one record in the release of θ, and the most that it can be.

    Args:
        exact: the release of the exact minimiser.
        settings: settled numbers of the mechanism.
        guarantee: of the release.
        theta: released, (d,).
        record: row (d,) and label.
        failure: ρ in (0, 1).
    """
    x, y = record
    tail = -float(ndtri(_SMALL * failure / 2))
    tau = settings["output_noise_std"]
    error = np.linalg.norm(x) * (
        settings["gradient_tolerance"] / exact.regularisation + tau * tail + _ROUNDED * np.linalg.norm(theta)
    )
    # The noise on the computed minimiser is an event of its own, with the same distance under every adjacency.
    noise = next(event for event in guarantee.events if event.mechanism == "gaussian")
    apart = guarantee.adjacency.sensitivity / noise.noise_multiplier
    second = apart**2 / 2 + apart * tail
    chance = (1 - 2 * _SMALL) * failure
    mine = exact.loss(theta, x, y, failure=chance, margin_error=float(error))
    return mine + second, exact.worst_case(failure=chance) + second
