r"""Correlated noise for batches in a fixed public order: what a run costs, and what its noise does to SGLD.

    python -m experiments.sources.correlated_noise [--quick] [--out DIR]

This study is ours; no source of this project has it. Records are split into m batches in a public order, and step i
reads batch i mod m. A record takes part every m steps, k times in all. Each step takes back a share φ of the noise of
the step before:

    y_i = g_i + n_i,     n_i = ζ_i − φζ_{i−1},     ζ_i ~ N(0, z²) independent, in units of the clip norm         (1)

So n = C⁻¹ζ and y = C⁻¹(Cg + ζ), C lower triangular with C_{ij} = φ^{i−j}: a matrix mechanism (Denisov et al. 2022).

**Cost.** Two neighbours differ by u_p of norm at most Δ (2 for a replaced record, else 1) at the record's
participations j, j + m, …, and nowhere else. Given the past, (Cy)_i is a Gaussian of mean (Cg)_i, and the two means
differ by some δ_i with, c_p being the columns of C at the participations,

    Σ|δ_i|² = Σ_{p,q} ⟨c_p, c_q⟩⟨u_p, u_q⟩ <= Δ² Σ_{p,q} ⟨c_p, c_q⟩ <= Δ²S²,
    S² = (k + 2 Σ_{0<l<k} (k − l) φ^{lm}) / (1 − φ²)                                                             (2)

because entries of C are >= 0, and columns lm steps apart have an inner product of at most φ^{lm}/(1 − φ²). An adaptive
Gaussian mechanism with Σ|δ_i|² <= D² on every path costs what one Gaussian mechanism of shift D does (Denisov et al.
2022, Theorem 2.1). A run is therefore μ-GDP with μ = ΔS/z: k Gaussian releases of noise multiplier z√k/S. Where C is
cut to at most m bands the columns are orthogonal, and μ = Δ√k‖c‖/z. The order of the records may not depend on
what is in them: in a sorted file, one changed record moves others to another batch, and (2) does not hold.

**SGLD.** θ' = aθ − η(n_i + …) on a direction of curvature w has a = 1 − ηw and, with s the std of ζ in gradient units,

    Var θ = η²s²(1 + φ² − 2φa) / (1 − a²)                                                                        (3)

because θ holds −ηs times the ζ that is taken back. A direction that takes many steps to relax sees the variance
(1 − φ)²z² a step. At equal μ and for many batches it is (1 − φ)/(1 + φ) of that of independent noise. With all records
in every batch nothing is gained: a neighbour may move every gradient by the same u, which costs Δ²·1ᵀΣ⁻¹1 under the
covariance Σ of T steps' noise, and (1ᵀΣ1)(1ᵀΣ⁻¹1) >= T² with equality for independent noise.

The table compares these variances at equal ε with those of Poisson batches, whose randomness is worth more in all but
one of its rows, so the scheme is for batches that cannot be random. The noise here is in floating point.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpmcmc.privacy import Event, Full, Guarantee, Poisson, calibrate
from experiments.sources.script import script

NUM_RECORDS, DELTA = 10_000, 1e-6
#: Batch size, epochs, ε.
SETTINGS = ((100, 10, 1.0), (100, 10, 8.0), (1000, 10, 1.0))
PHIS = (0.0, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95)


def sensitivity_squared(phi: float, participations: int, spacing: int) -> float:
    """S² of (2): squared distance of C·g between neighbours, in units of that of one participation; k >= 1."""
    lags = np.arange(1, participations)
    return (participations + 2 * float(np.sum((participations - lags) * phi ** (lags * spacing)))) / (1 - phi**2)


def charged(noise_multiplier: float, phi: float, participations: int, spacing: int, delta: float) -> Guarantee:
    """Return what a run costs whose ζ has this std over the clip norm, by the library's accountant."""
    share = math.sqrt(participations / sensitivity_squared(phi, participations, spacing))
    event = Event("gaussian", noise_multiplier * share, 1.0, participations)
    return Guarantee.from_events(
        (event,), delta=delta, adjacency="replace_one", accountant="pld", release="trace",
        assumptions=("The order of the records does not depend on what is in them.",),
    )  # fmt: skip


def sgld_variance(eta: float, std: float, curvature: float, phi: float) -> float:
    """Return (3): variance of SGLD on a direction of this curvature, where ζ has this std in gradient units."""
    a = 1 - eta * curvature
    return (eta * std) ** 2 * (1 + phi**2 - 2 * phi * a) / (1 - a**2)


def rows(settings: tuple[tuple[int, int, float], ...] = SETTINGS) -> list[dict[str, Any]]:
    """Rows of results.csv: noise at equal ε, as slow directions and as single steps see it, over that of Poisson."""
    found = []
    for batch, epochs, epsilon in settings:
        spacing = NUM_RECORDS // batch
        asked: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "num_records": NUM_RECORDS}
        random = calibrate(steps=epochs * spacing, sampling=Poisson(batch), **asked)
        one = calibrate(steps=1, sampling=Full(), **asked)
        for phi in PHIS:
            z = one * math.sqrt(sensitivity_squared(phi, epochs, spacing))
            found.append({
                "batch_size": batch,
                "epochs": epochs,
                "epsilon": epsilon,
                "phi": phi,
                "noise_multiplier": z,
                "epsilon_of_event": charged(z, phi, epochs, spacing, DELTA).epsilon,
                "slow": (z * (1 - phi) / random) ** 2,
                "single": (z / random) ** 2 * (1 + phi**2),
            })  # fmt: skip
    return found


SAID = (
    "batch {batch_size}, {epochs} epochs, ε {epsilon_of_event:.4g}, φ {phi:g}: {slow:.3g} of the variance of Poisson "
    "batches for slow directions, {single:.3g} a step"
)
main = script(
    "correlated_noise",
    "Correlated noise in a fixed order of batches: its cost and heat.",
    lambda quick: rows(SETTINGS[:1] if quick else SETTINGS),
    SAID,
)

if __name__ == "__main__":
    raise SystemExit(main())
