r"""Gaussian objective perturbation: the exact minimiser of a logistic objective with a random linear term.

    θ̂ = argmin J,   J(θ) = Σ ℓ_i(θ) + (Λ/2)‖θ‖² + b·θ,   b ~ N(0, σ² I)

(Chaudhuri, Monteleoni and Sarwate 2011; with Gaussian noise Kifer, Smith and Thakurta 2012.) A record's loss is a
logistic loss of one linear predictor: its gradient is a·L·u for a unit vector ±x/‖x‖ that depends on the record alone
and an a in [0, 1] that depends on θ, and its curvature, along x only, is at most 4β·a(1 − a). (With s = σ(±x·θ) and
r = ‖x‖/R <= 1, a = sr and the curvature is 4β·s(1 − s)r² = 4β·a(r − a).) An event holds z = σ/L and
epsilon = c = log(1 + κ), κ = β/Λ.

Let μ = 1/z, Z ~ N(0, 1), f_ε(l) = max(0, 1 − e^{ε − l}), g_μ the Gaussian profile of ``gaussian.py``, and

    M(m) = max over a in [0, 1] of  log(1 + 4κ·a(1 − a)) + a·m,      max(0, m) <= M(m) <= c + max(0, m)

For ε >= 0 and in both orders,

    zero_out, add_remove:   δ(ε) <= D(ε) = E f_ε(M(μZ + μ²/2))
    replace_one:            δ(ε) <= E f_ε(M(μZ + 3μ²/2) + μZ + μ²/2)   if ε >= M(μ²),   else g_μ(0) + D(ε)

Where a record pulls hard (a = 1) it has no curvature, so the tail pays almost nothing for c. With M replaced by its
upper bound these are g_μ(ε − c) and g_2μ(ε − c), the Gaussian mechanism's profile at the price c.

Proof. With F = J − b·θ, stationarity says b = −∇F(θ̂): a bijection, so θ̂ has density φ(b(θ))·det ∇²F(θ), φ that of
N(0, σ²I). For data D, D' let H, H' be the Hessians at θ. x adds αvvᵀ, ‖v‖ = 1 and α <= 4βa(1 − a), to a matrix A >= ΛI,
so det H / det H' <= det(A + αvvᵀ)/det A = 1 + α·vᵀA⁻¹v <= 1 + 4κa(1 − a), whatever D' has in its place. On any set S of
minimisers, written as a set of b under D (where det H dθ = db), and in units of σ,

    P_D(S) − e^ε P_D'(S) <= ∫_S φ(b) − e^ε φ(b + μau − μa'w)/(1 + 4κa(1 − a)) db

with a, a' in [0, 1] that depend on b, unit u, w that do not, and no gradient of an absent record. Let

    ψ(b) = min over a of  φ(b)·exp(−a(μ b·u + μ²/2))/(1 + 4κa(1 − a)) = φ(b)·exp(−M(μ b·u + μ²/2))

It is at most φ(b + μau)/(1 + 4κa(1 − a)) since a² <= a, and log-concave, a minimum of log-concave functions.

* One record present in D alone: ψ bounds the second term, b·u is a Z, and D(ε) follows. Present in D' alone: the ratio
  of determinants is at most 1, and D(ε) with κ = 0, g_μ(ε), follows: less.
* One record replaced. A log-concave function is least at an end of a segment, so the second term is at least
  e^ε·(T ψ)(b), (T ψ)(b) = min(ψ(b), ψ(b − μw)). Split S into S₂, where ψ(b − μw) < ψ(b), and the rest S₁. S₂ − μw and
  S₁ are disjoint: a common b would have ψ(b + μw) > ψ(b) <= ψ(b − μw), against log-concavity. So ∫_S T ψ = ∫_{S'} ψ
  over the SET S' = S₁ ∪ (S₂ − μw), and ∫_{S'} φ = ∫_{S₁} φ + ∫_{S₂} φ(b − μw) db >= ∫_S T φ. Two facts end it. With
  p = ∫_S φ, ∫_S (φ − e^e T φ) <= g_μ(e) for every e >= 0, hence ∫_S T φ >= t(p), which is Φ(Φ⁻¹(p) − μ) for
  p <= Φ(μ/2) and p − g_μ(0) beyond. M increases, so of all sets with ∫ φ = q the half-space b·u >= s, q = Φ(−s),
  has the least ∫ ψ = h(s). So δ <= sup over p of p − e^ε h(s), Φ(−s) = t(p). In the first regime p = Φ(μ − s),
  and the stationary s has ε = M(μs + μ²/2) + μs − μ²/2; it is in that regime, s >= μ/2, iff ε >= M(μ²), and
  Φ(μ − s) − e^ε h(s) is the expectation above, of Z = b·u − μ. In the other, ε = M(μs + μ²/2) and
  δ <= Φ(−s) + g_μ(0) − e^ε h(s) = g_μ(0) + D(ε).

**Clipped losses** (``clipped_objective_perturbation``, ``mechanisms/minimise.py``). Where residuals are clipped to
k the gradient is a·L·u still, L = kR, but a record has curvature until it pulls with all its force, so nothing is said
of its vanishing: the curvature is at most β, and the upper bound c + max(0, m) takes M's place above.
The proof holds as it stands with this M, which is convex and increases weakly. J is then strongly convex with a
Lipschitz gradient in place of a smooth one. So θ -> b is still a bijection, Lipschitz in both directions, which has a
derivative almost everywhere (Rademacher), and the change of variables is that of Lipschitz maps (the area formula). The
points without a derivative lie on one hyperplane pair a record, and have measure 0. For k <= 1/2 nothing is lost: the
curvature is largest at the kink, where a = 1, and M attains its bound for every m >= 0.

Published bounds charge c whole: Kifer et al. give ε/2 to it, and Redberg, Koskela and Wang (2023) bound one record's
loss by c + μ²/2 + μ|Z|, which also doubles δ. A loss that is linear where it matters attains g_μ and g_2μ.

Claim: The minimiser of a noisy logistic objective has the profile D(ε).
Proof: a bijection of noise and minimiser, and the determinant of its derivative.
Held by: test_no_added_record_exceeds_the_profile_and_some_nearly_attain_it,
test_no_replaced_record_exceeds_the_profile, test_no_replaced_record_exceeds_the_profile_of_clipped_losses,
test_profile_is_its_expectation_by_brute_force, "objective perturbation without the determinant"
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy
from scipy.special import log_ndtr

from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon

#: Relative room for the rounding of float64.
_ROUNDING = 1e-9
_CELLS = 512
#: Below −_FAR and beyond what is 2^-100 as likely as the first cell, a loss counts as infinite.
_FAR = 12.0


def delta(event: Event, adjacency: Adjacency, epsilon: float) -> float:
    """δ at ε >= 0, rounded up.

    Args:
        event: one of ``OBJECTIVES``.
        adjacency: of the data sets.
        epsilon: ε.
    """
    mu, _ = _parameters(event)
    loss = _loss_of(event)
    if math.isinf(mu):
        return 1.0
    if math.isinf(epsilon):
        return 0.0
    if adjacency != Adjacency.REPLACE_ONE:
        value = _expected(mu, loss, epsilon, twice=False)
    elif epsilon >= float(loss(np.array(mu**2))):
        value = _expected(mu, loss, epsilon, twice=True)
    else:
        value = gaussian_delta(mu, 0.0) + _expected(mu, loss, epsilon, twice=False)
    return min(1.0, value * (1 + _ROUNDING))


def epsilon(event: Event, adjacency: Adjacency, delta: float) -> float:
    """Smallest ε >= 0 at δ, rounded up.

    Args:
        event: one of ``OBJECTIVES``.
        adjacency: of the data sets.
        delta: δ.
    """
    mu, kappa = _parameters(event)
    if delta >= 1:
        return 0.0
    if delta <= 0 or math.isinf(mu):
        return math.inf

    def enough(e: float) -> bool:
        return _delta(event, adjacency, e) <= delta

    if enough(0.0):
        return 0.0
    high = math.log1p(kappa) + gaussian_epsilon(adjacency.sensitivity * mu, delta) + 1e-12
    while not enough(high):
        high = 1.1 * high + mu**2
    found = float(
        scipy.optimize.brentq(
            lambda e: math.log(max(_delta(event, adjacency, e), 1e-300) / delta),
            0.0,
            high,
            rtol=1e-12,
        )
    )
    while not enough(found):
        found = found * (1 + 1e-12) + 1e-15
    return found


_delta = delta


def _parameters(event: Event) -> tuple[float, float]:
    """(μ of one record, κ)."""
    assert event.epsilon is not None
    return (1 / event.noise_multiplier if event.noise_multiplier else math.inf), math.expm1(event.epsilon)


def _loss_of(event: Event) -> Callable[[np.ndarray], np.ndarray]:
    """M as a function of m."""
    kappa = _parameters(event)[1]
    if event.mechanism == "clipped_objective_perturbation":
        return lambda m: math.log1p(kappa) + np.maximum(0.0, m)
    return lambda m: _loss(m, kappa)


def _loss(m: np.ndarray, kappa: float) -> np.ndarray:
    """M(m): strictly concave in a, with its stationary point in closed form."""
    if kappa == 0:
        return np.maximum(0.0, m)
    q = 1 + 1 / kappa
    a = np.clip(0.5 + q * m / (2 * np.sqrt(q * m**2 + 4) + 4), 0.0, 1.0)
    return np.log1p(4 * kappa * a * (1 - a)) + a * m


def _expected(mu: float, loss_of: Callable[[np.ndarray], np.ndarray], epsilon: float, *, twice: bool) -> float:
    """E f_ε(W(Z)) from above, W as in the module's docstring.

    W is convex and increasing, so its chord over a cell is above it; the expectation for a chord is a difference of
    normal probabilities.
    """

    def loss(z: np.ndarray) -> np.ndarray:
        if twice:
            return loss_of(mu * z + 1.5 * mu**2) + mu * z + 0.5 * mu**2
        return loss_of(mu * z + 0.5 * mu**2)

    def excess(z: float) -> float:
        return float(loss(np.array(z))) - epsilon

    # W(z) = ε lies in here, since max(0, m) <= M(m); a start before it costs nothing.
    start = (
        -_FAR
        if excess(-_FAR) >= 0
        else float(scipy.optimize.brentq(excess, -_FAR, max(_FAR, epsilon / mu + 1.0))) - 1e-9
    )
    stop = math.sqrt(start**2 + 140.0) if start > -_FAR else _FAR
    z = np.linspace(start, max(stop, start + 1e-3), _CELLS + 1)
    w = np.maximum(loss(z), epsilon)  # convex still; what it adds before the root is nothing
    slope = np.diff(w) / np.diff(z)
    mass = _log_mass(z[:-1], z[1:])
    # ∫ φ(z)·exp(ε − w₀ − slope(z − z₀)) dz, a normal shifted by the slope.
    tilted = epsilon - w[:-1] + slope * z[:-1] + slope**2 / 2 + _log_mass(z[:-1] + slope, z[1:] + slope)
    cells = np.exp(mass) * -np.expm1(np.minimum(tilted - mass, 0.0))
    ends = math.exp(float(log_ndtr(-z[-1]))) + (math.exp(float(log_ndtr(start))) if start <= -_FAR else 0.0)
    return float(np.sum(cells)) + ends


def _log_mass(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """log P(low < Z < high), from whichever tail is the smaller."""
    right = low > 0
    near = np.where(right, log_ndtr(-low), log_ndtr(high))
    far = np.where(right, log_ndtr(-high), log_ndtr(low))
    with np.errstate(divide="ignore"):
        return near + np.log(-np.expm1(np.minimum(far - near, 0.0)))
