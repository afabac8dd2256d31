r"""Correlated noise for batches that take turns: what a run costs, and how its noise is drawn in integers alone.

Records are split into m batches in a public order, and step i reads batch i mod m (``Cyclic``, ``sampling.py``).
Each step takes back a share φ of the noise of the step before:

    y_i = g_i + n_i,     n_i = ζ_i − φζ_{i−1},     ζ_i ~ N(0, z²) independent, in units of the clip norm         (1)

So n = C⁻¹ζ and y = C⁻¹(Cg + ζ) with C lower triangular, C_{ij} = φ^{i−j}: a matrix mechanism (Denisov et al. 2022;
Choquette-Choo et al. 2023 for several epochs). φ = 0 is independent noise.

**Cost.** Take two neighbours. A record is in one batch, so g − g' is zero but at its participations j, j + m, …, at
most k of them, and there it is a vector u_p of norm at most Δ (2 under ``replace_one``, else 1). An absent record
adds zero in its slot, so ``add_remove`` and ``zero_out`` move no other record to another batch. Given the past,
(Cy)_i is a Gaussian of mean (Cg)_i. The means of the two data sets differ by some δ_i, a function of the past, with

    Σ|δ_i|² = ‖Σ_p c_p u_pᵀ‖² = Σ_{p,q} ⟨c_p, c_q⟩⟨u_p, u_q⟩ <= Δ² Σ_{p,q} ⟨c_p, c_q⟩ <= Δ² S²,

    S² = (k + 2 Σ_{0<l<k} (k − l) φ^{lm}) / (1 − φ²)                                                             (2)

for entries of C are >= 0, and columns that are lm steps apart have an inner product of at most φ^{lm}/(1 − φ²). This
holds whatever records the last batch lacks, and wherever the run ends.

An adaptive Gaussian mechanism with Σ|δ_i|² <= D² on every path costs what one Gaussian mechanism of shift D does.
Let one more release spend the rest, so that the sum is always D². Then L = Σ⟨δ_i, ζ_i⟩/z² has E exp(itL) =
exp(−t²D²/2z²), step by step from the last, so L ~ N(0, D²/z²) and the loss L + D²/2z² has the law that it has for
one Gaussian (Denisov et al. 2022, Theorem 2.1, for such C). A run is therefore μ-GDP with μ = ΔS/z, which is Δ√k/z
for φ = 0. It is charged as k Gaussian releases of noise multiplier z√k/S.

A part of a run that is taken again with fresh keys is charged as a run of its own. Before its first step is a ζ of
its own too, which is only more noise. S² is convex in k, so what was taken costs no more than what is charged.

**Slow heat.** A direction that takes many steps to relax sees the noise at frequency 0, whose variance is (1 − φ)²z²
a step (``slow``). At equal μ and for many epochs it is (1 − φ)/(1 + φ)·(1 + φᵐ)/(1 − φᵐ) of that of independent
noise: .33 at φ .5 and .053 at .9 where φᵐ is small, and 1 for full batches, m = 1. No other C does better there. A
neighbour may move every gradient by the same u, which costs Δ²·1ᵀΣ⁻¹1 under the covariance Σ of T steps' noise, and
the slow heat is 1ᵀΣ1/T. By Cauchy and Schwarz (1ᵀΣ1)(1ᵀΣ⁻¹1) >= T², with equality for independent noise. So φ > 0 is
refused there.

*Bands.* Cut to b <= m bands, the columns of a record are orthogonal, and S² is k(1 − φ^{2b})/(1 − φ²). The inverse
is then no longer (1): n_i = ζ_i − φζ_{i−1} + φᵇ n_{i−b}, which keeps b vectors. Slow heat at equal μ is the same for
b = m, since (1 − φ)²/(1 − φᵇ)²·(1 − φ^{2b})/(1 − φ²) is the expression above. So C is not cut.

**Noise in integers.** The exact sum G_i is an integer, and φζ_{i−1} is none. With ζ an integer and φ = a/2^q, y_1 +
φy_0 would be an integer plus φG_0, and give away G_0 mod 2^q. So no fraction may meet the sum. The noise of a step
is

    n_i = W_i + cX_i − c'X_{i−1},    W_i of std s a little over 2(c + c'),    X_i ~ N_Z(σ₀²) from the table (3)

with integers c, at least the std of ζ on the grid over σ₀, and c' <= φc. W_i is the independent integer noise of
``gaussian.py``, whose η, τ = 2 and σ₀ are meant here. X_{i−1} is drawn again from the key of its step, so no noise
is kept.

1. *Law.* In one coordinate n = W + MX over all T steps, M being T × (T + 1) with rows (−c', c), so ‖M‖ <= c + c'.
   For W ~ N_Z(s²), P(n) ∝ Σ_x ρ_{σ₀}(x)ρ_s(n − Mx) = exp(−nᵀΣ⁻¹n/2) Σ_x exp(−(x − μ_n)ᵀP(x − μ_n)/2) over x in
   Z^{T+1}, with Σ = s²I + σ₀²MMᵀ and P = σ₀⁻²I + MᵀM/s². As (c + c')² <= s²(τ⁻² − σ₀⁻²), P <= τ⁻²I, and Poisson
   summation in T + 1 dimensions makes the last sum a constant times 1 ± ((1 + η)^{T+1} − 1). So n is the Gaussian on
   Z^T of covariance Σ up to such factors: one convolution a number, as in ``gaussian.py``.
2. *Privacy.* Real noise of covariance Σ − τ²I on G, rounded coordinate by coordinate with ρ_τ, has that law too, up
   to two more such factors. G_i may depend on y_{<i}: a path y fixes it, and the laws are compared path by path. Now
   Σ − τ²I = σ₀²MMᵀ + (s² − τ²)I, and σ₀²MMᵀ is the covariance of (1) for a φ of c'/c and a std of cσ₀, with X_{−1}
   beside. More independent noise is post-processing, and S grows with φ, so (2) covers it.
3. *Deviation.* A number takes the draws of W, at most four, and one more. So ``gaussian.deviation(5)`` covers it: it
   has as many tables and as many convolutions, and room for X_{−1}: its convolutions are charged 2^-111 each and cost
   η < 2^-112. W has 4(1 + φ)²/σ₀² of the variance of ζ, which is not credited. It
   is 2 % of the slow heat at φ .9 and a tenth at .95, so larger φ are refused.

Claim: A run of batches that take turns, with correlated noise, costs k Gaussian releases of noise multiplier z√k/S.
Proof: a matrix mechanism with a factor whose entries are not negative (Denisov et al. 2022).
Held by: test_independent_noise_costs_one_gaussian_release_an_epoch,
test_correlated_noise_costs_what_another_library_says_of_the_matrix, test_neighbours_are_as_far_apart_as_is_declared,
test_noise_leaves_no_remainder_that_tells_of_the_sum
"""

from __future__ import annotations

import math

from dpmcmc.privacy.accounting.gaussian import BASE, SMOOTH

#: Largest φ: beyond it the independent part of integer noise takes what correlation saves.
MOST = 0.95
#: Std of W over c + c', a little more than the SMOOTH/√(1 − SMOOTH²/BASE²) of the proof.
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
