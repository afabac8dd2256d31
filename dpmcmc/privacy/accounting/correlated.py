r"""Correlated noise for batches that go round: what a run of them costs, and its noise in integers alone.

Records are split into m batches in a public order, and step i reads batch i mod m (``Cyclic``, ``sampling.py``). The
noise of step i takes back a share φ of the noise of the step before:

    y_i = g_i + n_i,     n_i = ζ_i − φζ_{i−1},     ζ_i ~ N(0, z²) independent, in units of the clip norm         (1)

So n = C⁻¹ζ with C lower triangular, C_{ij} = φ^{i−j}: y = C⁻¹(Cg + ζ), a matrix mechanism (Li et al. 2010; Denisov et
al. 2022; Choquette-Choo et al. 2023 for several epochs). φ = 0 is independent noise.

**Cost.** Take two neighbours. A record is in one batch, so g − g' is zero but at its participations j, j + m, …, at most
k of them, and there a vector u_p of norm at most Δ (1, or 2 under ``replace_one``). An absent record adds zero in its
slot, so ``add_remove`` and ``zero_out`` move no other record to another batch. Given the past, (Cy)_i is a Gaussian
with mean (Cg)_i, and the means of the two data sets differ by δ_i, a function of the past with

    Σ|δ_i|² = ‖Σ_p c_p u_pᵀ‖² = Σ_{p,q} ⟨c_p, c_q⟩⟨u_p, u_q⟩ <= Δ² Σ_{p,q} ⟨c_p, c_q⟩ <= Δ² S²,

    S² = (k + 2 Σ_{0<l<k} (k − l) φ^{lm}) / (1 − φ²)                                                             (2)

for the entries of C are >= 0, and columns lm steps apart have an inner product of at most φ^{lm}/(1 − φ²). It holds
whatever the last batch of an epoch lacks, and wherever a run ends. An adaptive Gaussian mechanism with Σ|δ_i|² <= D² on
every path costs what one Gaussian mechanism with shift D does: let one more Gaussian release spend the rest, so that
the sum is D² always. Then E exp(it Σ⟨δ_i, ζ_i⟩/z + t²D²/2z²) = 1 for every t, step by step from the last one, so the log
ratio Σ⟨δ_i, ζ_i⟩/z² − D²/2z² has the law that it has for one Gaussian (Denisov et al. 2022, Theorem 2.1, for such C). So a
run is μ-GDP with μ = ΔS/z: 2√k/z for φ = 0, that of k releases. It is charged as k Gaussian releases of z√k/S.

A part of a run that is taken again with fresh keys is charged as a run of its own. The noise before its first step is
then of another ζ, which is more noise. S² is convex in k, so the two parts cost no more than what both are charged.

**Slow heat.** A direction that takes many steps to relax sees the noise at frequency 0, a variance of (1 − φ)²z² a step
(``slow``). At equal μ this is (1 − φ)/(1 + φ)·(1 + φᵐ)/(1 − φᵐ) of that of independent noise, for k large: .33 at φ .5
and .053 at .9 where φᵐ is small. With m = 1, full batches, it is 1. That is no accident of this C: a neighbour may move
every gradient by the same u, which costs at least Δ²·1ᵀΣ⁻¹1 under any covariance Σ of T steps' noise, and the slow heat is
1ᵀΣ1/T. By Cauchy and Schwarz (1ᵀΣ1)(1ᵀΣ⁻¹1) >= T², with equality for independent noise: no correlation of any kind
gains with full batches, and φ > 0 is refused there.

*Bands.* C cut to b <= m bands makes the columns of a record orthogonal: k(1 − φ^{2b})/(1 − φ²) in the place of (2). Its
inverse is no longer (1): n_i = ζ_i − φζ_{i−1} + φᵇ n_{i−b}, which keeps b vectors. Its slow heat at equal μ is the same
to the last digit, for (1 − φ)²/(1 − φᵇ)²·(1 − φ^{2b})/(1 − φ²) is the expression above; so C is not cut.

**Noise in integers.** The exact sum is an integer G_i, and φζ_{i−1} is none. Integer ζ and φ = a/2^q would give away
G_0 mod 2^q, as y_1 − φy_0 would be G_1 − φG_0 + an integer. So no fraction may meet the sum. The noise of a step is

    n_i = W_i + cX_i − c'X_{i−1},     W_i of std at least 2(c + c'),   X_i ~ N_Z(σ₀²) from the table              (3)

with integers c >= zσ-of-the-grid/σ₀ and c' = ⌊φc⌋, and W_i the independent integer noise of ``gaussian.py``, whose
numbers (1) to (3), η, τ and σ₀ are meant here. Only X_{i−1} comes back, from the key of its step: nothing is kept.

1. *Law.* In one coordinate let n = W + MX over all T steps; M is T × (T + 1) with rows (−c', c), so ‖M‖ <= c + c'. For
   W ~ N_Z(s²), P(n) ∝ Σ_x ρ_{σ₀}(x)ρ_s(n − Mx) = exp(−nᵀΣ⁻¹n/2) Σ_x exp(−(x − μ_n)ᵀP(x − μ_n)/2), where x is in Z^{T+1},
   Σ = s²I + σ₀²MMᵀ and P = σ₀⁻²I + MᵀM/s². As (c + c')² <= s²(τ⁻² − σ₀⁻²), P <= τ⁻²I, and Poisson summation in T + 1
   dimensions makes the last sum a constant times 1 ± ((1 + η)^{T+1} − 1). So n is within such factors of the Gaussian on
   Z^T with covariance Σ; it is a convolution a number, as in ``gaussian.py``.
2. *Privacy.* Real noise of covariance Σ − τ²I on G, rounded coordinate by coordinate with ρ_τ, has the same law up to
   two such factors more. G_i may depend on y_{<i}: a path y fixes it, and both laws are compared path by path. Now
   Σ − τ²I = σ₀²MMᵀ + (s² − τ²)I, and σ₀²MMᵀ is the covariance of (1) with c'/c <= φ for φ, z <= cσ₀ in grid units, and
   X_{−1} beside. More independent noise is post-processing, and S grows with φ, so (2) at φ and z covers it.
3. *Deviation.* A number takes the draws of W and one more, at most five, so ``gaussian.deviation(5)`` covers it: as many
   tables, and as many convolutions. The W of a step has 4(1 + φ)²/σ₀² of the variance of ζ: not credited, and part of
   the slow heat, 2 % of it at φ .9 and a tenth at .95, so larger φ are refused.
"""

from __future__ import annotations

import math

from dpmcmc.privacy.accounting.gaussian import BASE, SMOOTH

#: Largest φ: beyond it the independent part of integer noise takes what correlation saves.
MOST = 0.95
#: Std of W over c + c'; SMOOTH/√(1 − SMOOTH²/BASE²) is needed.
WHITE = SMOOTH * (1 + 2.0**-10)


def sensitivity_squared(phi: float, participations: int, spacing: int) -> float:
    """S², the squared distance between neighbours' C·g in units of that of one participation.

    Args:
        phi: φ in [0, 1).
        participations: k, of the record that takes part most often.
        spacing: m, steps from one to the next.
    """
    lag = phi**spacing
    total = float(participations)
    power = lag
    # Geometric terms, until the rest of them together no longer moves the sum; the bound on the rest is added.
    for apart in range(1, participations):
        total += 2 * (participations - apart) * power
        power *= lag
        rest = 2 * participations * power / (1 - lag)
        if rest < 1e-15 * total:
            total += rest
            break
    return total / (1 - phi**2) * (1 + 1e-12)


def white(phi: float) -> float:
    """Std of the independent part W of integer noise, in units of ζ's."""
    return WHITE * (1 + phi) / BASE if phi else 0.0


def slow(phi: float) -> float:
    """Std of the noise of a step as slow directions see it, in units of ζ's: √(variance at frequency 0)."""
    return math.hypot(1 - phi, white(phi))


def total(phi: float) -> float:
    """Std of the noise of one step, in units of ζ's."""
    return math.sqrt(1 + phi**2 + white(phi) ** 2)
