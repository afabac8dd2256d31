"""Rényi divergence of one noisy step, for one record whose clipped gradient is known.

It reads no record, and adds nothing up over steps: that is ``account``.

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

import numpy as np

from dpmcmc.privacy.accounting import Event, UnsupportedCombination, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query.second_moment import SecondMoment


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


def renyi(moved: float, z: float, rate: float, adjacency: Adjacency, orders: np.ndarray) -> np.ndarray:
    """Return D_α of one Poisson-sampled step, (orders,).

    Args:
        moved: w in (0, 1].
        z: charged noise multiplier.
        rate: charged rate.
        adjacency: see ``accounting``.
        orders: α > 1.
    """
    if adjacency != Adjacency.REPLACE_ONE or moved == 1:
        return np.array(rdp.one_step(Event("poisson_gaussian", z / moved, rate, 1), adjacency, tuple(orders)))
    unsampled = orders / 2 * ((moved + 1) / z) ** 2
    sampled = [_unequal_pair(moved / z, 1 / z, rate, float(alpha)) for alpha in orders]
    return np.minimum(sampled, unsampled)


def _unequal_pair(a: float, b: float, q: float, alpha: float) -> float:
    """Return the larger of D_α(A‖B) and D_α(B‖A).

    A = (1−q)N(0,1) + qN(a,1) and B = (1−q)N(0,1) + qN(−b,1), 0 <= a <= b.
    """
    grid = rdp.quadrature_grid(b, alpha)
    if grid is None:
        return math.inf
    x, h = grid
    log_phi = -0.5 * x * x - 0.5 * math.log(2 * math.pi) + math.log(h)
    log_keep = math.log1p(-q)
    log_q = math.log(q)
    log_b = np.logaddexp(log_keep, log_q - b * x - b * b / 2)
    log_a = np.logaddexp(log_keep, log_q + a * x - a * a / 2)
    ratio = alpha * (log_a - log_b)
    larger = max(_log_sum(log_phi + log_b + ratio), _log_sum(log_phi + log_a - ratio), 0.0)
    # A part in 1e12 for the rounding of the sum, on the private side.
    return (larger + 1e-12) / (alpha - 1)


def _log_sum(terms: np.ndarray) -> float:
    top = terms.max()
    return float(top + np.log(np.exp(terms - top).sum()))


def sensitivities(share: np.ndarray, second: SecondMoment | None) -> list[np.ndarray]:
    """How far a record of norm ``share``·C moves each query of a step, relative to one of norm C.

    The second moment moves by the square of the norm; from the same batch, the two are one query
    (``metric.py``).
    """
    if second is None:
        return [share]
    if second.own_batch:
        return [share, share**2]
    ratio = second.ratio / (1 + KAPPA)
    return [np.sqrt((share**2 + share**4 / ratio**2) / (1 + 1 / ratio**2))]
