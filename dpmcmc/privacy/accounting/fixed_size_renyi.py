"""Rényi divergence of a fixed-size, without-replacement Gaussian step under replace_one.

Wang, Balle and Kasiviswanathan 2019, Theorem 27: for integer α >= 2, with a Gaussian base mechanism whose
neighbours are c = 2/z standard deviations apart,

    (α−1) D_α <= log( 1 + q²C(α,2) min{4(e^{c²} − 1), 2e^{c²}} + Σ_{j=3}^{α} q^j C(α,j) t_j ),
    t_j = min{ 4√(B(2⌊j/2⌋) B(2⌈j/2⌉)), 2 e^{j(j−1)c²/2} },      B(l) = E[(e^{cX − c²/2} − 1)^l],  X ~ N(0, 1).

B at even l is an integral of a nonnegative function, computed as one. As the alternating sum of the paper it
loses all its digits at large z, where these terms decide whether a small ε can be certified at all. The
tests compare with dp-accounting where both apply.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln, logsumexp

# Moments beyond this order use the cruder bound 2e^{j(j−1)c²/2}: with them comes a factor q^j C(α,j).
_MOST_MOMENTS = 128
# Beyond it, the cruder terms alone rule the order out.
_LARGEST_ORDER = 40_000


def renyi(z: float, q: float, orders: Sequence[float]) -> np.ndarray:
    """D_α of one step at integer orders; inf where the theorem is of no use.

    Args:
        z: charged noise multiplier.
        q: batch size / N.
        orders: integers >= 2.
    """
    c = 2 / z
    moments = _log_moments(c)
    log_c2 = c * c + (math.log(-math.expm1(-c * c)) if c * c < 700 else 0.0)
    second = min(math.log(4) + log_c2, math.log(2) + c * c)
    out = []
    for alpha in orders:
        if alpha > _LARGEST_ORDER:
            out.append(math.inf)
            continue
        a = int(alpha)
        j = np.arange(2, a + 1)
        log_choose = gammaln(a + 1) - gammaln(j + 1) - gammaln(a - j + 1)
        log_t = math.log(2) + j * (j - 1) * (c * c / 2)
        fine = j[j < _MOST_MOMENTS]
        log_t[: len(fine)] = np.minimum(
            log_t[: len(fine)],
            math.log(4) + (moments[fine // 2] + moments[(fine + 1) // 2]) / 2,
        )
        log_t[0] = second
        log_sum = float(logsumexp(j * math.log(q) + log_choose + log_t))
        # A part in 1e9 for the quadrature and the logarithms of gamma functions.
        total = math.log1p(math.exp(log_sum)) if log_sum < 30 else log_sum + math.exp(-log_sum)
        out.append(total * (1 + 1e-9) / (a - 1))
    return np.array(out)


@functools.lru_cache(maxsize=256)
def _log_moments(c: float) -> np.ndarray:
    """log B(2m) at index m = 0 .. _MOST_MOMENTS/2, by the trapezoid rule; inf where it does not fit.

    The integrand is entire with a Gaussian envelope, so the rule's error is far below rounding at this spacing.
    """
    half = np.arange(_MOST_MOMENTS // 2 + 1)
    out = np.full(len(half), np.inf)
    out[0] = 0.0
    h = 0.02
    usable = half[(half >= 1) & (2 * half * c <= 200)]
    if len(usable):
        x = np.arange(-30.0, 2 * usable[-1] * c + 30.0, h)
        exponent = c * x - c * c / 2
        with np.errstate(divide="ignore"):
            # log|e^u − 1| without overflow
            log_size = np.where(
                exponent > 30,
                exponent,
                np.log(np.abs(np.expm1(np.minimum(exponent, 30)))),
            )
        log_phi = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(h)
        for m in usable:
            out[m] = logsumexp(2 * m * log_size + log_phi)
    return out
