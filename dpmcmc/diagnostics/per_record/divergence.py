r"""Rényi divergence of one noisy step, for one record whose clipped gradient is known.

In units of the clip norm C the record moves the sum by w <= 1, and the noise has std z. Given the other records'
selection, which has one law on both sides:

* ``add_remove`` and ``zero_out``: a Gaussian step of noise multiplier z/w, sampled as the plan's: the accountant's own
  (``accounting/rdp.py``).
* ``replace_one``: the record that takes its place is arbitrary, so of norm at most C. At rate 1 the distance is at most
  1 + w. Under Poisson the pair is P = (1−q)N(0,I) + qN(u,I), P' = (1−q)N(0,I) + qN(u',I), ‖u‖ <= w/z, ‖u'‖ <= 1/z. The
  three steps by which ``accounting/rdp.py`` shows that its pair dominates keep the two norms apart: antiparallel is the
  worst direction, and on that line the hockey-stick divergence increases with either norm, and with q. So

      A = (1−q)N(0,1) + qN(w/z,1),      B = (1−q)N(0,1) + qN(−1/z,1)

  dominates, in both orders. At w = 1 it is the accountant's pair.

Fixed-size batches are refused: a record that takes part keeps another one out, which may move the sum by 2C whatever
this record's norm is.

*Quadrature* is the accountant's trapezoid rule with its spacing: the denominators' components are at most 1/z apart, as
there, and |A(x+ia)| is at most A(x) times what the normal density grows by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpmcmc.privacy.accounting import Adjacency, Event, UnsupportedCombination, rdp

#: As in the accountant: an order beyond these is left to the unsampled bound.
_LARGEST_SHIFT = 60.0
_MOST_POINTS = 6000


def check(mechanism: str) -> None:
    """Raise UnsupportedCombination for a step without a derivation."""
    if mechanism not in ("gaussian", "poisson_gaussian"):
        raise UnsupportedCombination(
            "per-record accounting has no derivation for fixed_size sampling, where a record that takes part keeps "
            "another one out; use poisson or full."
        )


def distance(moved: np.ndarray, adjacency: Adjacency) -> np.ndarray:
    """Return the largest distance between neighbours' clipped sums, in units of C: w, or w + 1 under replace_one."""
    return moved + 1 if adjacency == Adjacency.REPLACE_ONE else moved


def renyi(
    moved: np.ndarray, z: float, rate: float, mechanism: str, adjacency: Adjacency, orders: Sequence[float]
) -> np.ndarray:
    """Return D_α of one step, (w, orders).

    Args:
        moved: w in (0, 1], (n,).
        z: charged noise multiplier.
        rate: charged rate.
        mechanism: ``gaussian`` | ``poisson_gaussian``.
        adjacency: see ``accounting``.
        orders: α > 1.

    Raises:
        UnsupportedCombination: another mechanism.
    """
    check(mechanism)
    alpha = np.asarray(orders, np.float64)
    unsampled = np.multiply.outer((distance(moved, adjacency) / z) ** 2, alpha / 2)
    if mechanism == "gaussian":
        return unsampled
    if adjacency != Adjacency.REPLACE_ONE:
        return np.array([rdp.one_step(Event(mechanism, z / w, rate, 1), adjacency, orders) for w in moved])
    sampled = np.stack([_unequal_pair(moved / z, 1 / z, rate, float(a)) for a in alpha], axis=1)
    value = np.minimum(sampled, unsampled)
    # The accountant's own value, so that both agree to the last digit.
    value[moved == 1] = rdp.one_step(Event(mechanism, z, rate, 1), adjacency, orders)
    return value


def _unequal_pair(a: np.ndarray, b: float, q: float, alpha: float) -> np.ndarray:
    """Return the larger of D_α(A‖B) and D_α(B‖A), (n,).

    A = (1−q)N(0,1) + qN(a,1) and B = (1−q)N(0,1) + qN(−b,1), 0 <= a <= b.
    """
    grid = rdp.quadrature_grid(b, alpha)
    if grid is None:
        return np.full(len(a), np.inf)
    x, h = grid
    log_phi = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(h)
    log_keep = math.log1p(-q)
    log_q = math.log(q)
    log_b = np.logaddexp(log_keep, log_q - b * x - b * b / 2)
    log_a = np.logaddexp(log_keep, log_q + np.multiply.outer(a, x) - (a * a / 2)[:, None])
    ratio = alpha * (log_a - log_b)
    forward = _log_sum(log_phi + log_b + ratio)
    backward = _log_sum(log_phi + log_a - ratio)
    # A part in 1e12 for the rounding of the sum, on the private side.
    return (np.maximum(np.maximum(forward, backward), 0.0) + 1e-12) / (alpha - 1)


def _log_sum(terms: np.ndarray) -> np.ndarray:
    top = terms.max(axis=1)
    return top + np.log(np.exp(terms - top[:, None]).sum(axis=1))
