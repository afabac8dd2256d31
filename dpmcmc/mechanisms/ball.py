"""A smooth map of ℝ^d onto the open ball of radius R that carries N(0, I) to the uniform law.

    θ = R · F(‖u‖²)^{1/d} · u/‖u‖,     F the distribution function of χ²_d

‖u‖² ~ χ²_d makes F uniform, and the radius of a uniform point is R·(uniform)^{1/d}. So a density p on the ball, in
the coordinates u, is p(θ(u))·exp(−‖u‖²/2): no Jacobian is left to compute, and tails are Gaussian, which Hamiltonian
dynamics likes. (θ = Ru/√(1+‖u‖²) gives the uniform law the tails of a t with 2 degrees of freedom.)

With a = d/2, t = ‖u‖²/2 the series P(a, t) = t^a e^{−t}/Γ(a+1) · M(t), M(t) = Σ_k t^k/((a+1)…(a+k)) (DLMF 8.7.1)
leaves

    θ = R·u · exp( (log M(t) − t − log Γ(a+1) − a log 2) / d ),

smooth at 0. Beyond the t with 1 − P < 10⁻¹², θ = R·u/‖u‖ to float32.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammainccinv, gammaln


@functools.lru_cache(maxsize=32)
def _series(size: int) -> tuple[np.ndarray, float]:
    """Return (log of the series' denominators, largest t it is used for)."""
    a = size / 2
    largest = float(gammainccinv(a, 1e-12))
    terms = int(largest - a + 12 * np.sqrt(largest) + 40)
    return np.concatenate([[0.0], np.cumsum(np.log(a + np.arange(1, terms)))]), largest


def onto_ball(u: jax.Array, radius: jax.Array | float) -> jax.Array:
    """Return θ of norm < radius, (d,), or of norm radius where ‖u‖ is so large that float32 sees no difference.

    Args:
        u: (d,).
        radius: R.
    """
    size = u.shape[-1]
    denominators, largest = _series(size)
    square = jnp.sum(jnp.square(u))
    # Below 1e-10 the series is 1 to float32, and its second derivative would overflow.
    t = jnp.clip(square / 2, 1e-10, largest)
    terms = jnp.arange(len(denominators)) * jnp.log(t) - denominators.astype(np.float32)
    constant = np.float32(gammaln(size / 2 + 1) + size / 2 * np.log(2.0))
    inner = jnp.exp((jax.nn.logsumexp(terms) - t - constant) / size)
    outer = jax.lax.rsqrt(jnp.maximum(square, largest))
    return radius * u * jnp.where(square / 2 < largest, inner, outer)
