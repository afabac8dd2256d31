r"""Moments of per-instance losses bound the generalisation gap of a release.

CONFIDENTIAL where ε is computed from records: never in the released folder.

Let Z have n records, z' and z'' be fresh ones, all independent, and A be per-instance private with ε(Z, z) and δ(Z, z).
For losses in [0, 1] the fresh risk of A([Z, z']) at z'' is by symmetry that of A([Z, z'']) at z', and

    E ℓ(A([Z, z'']), z') <= e^{ε(Z, z'')} E ℓ(A(Z), z') + δ(Z, z'')
                         <= e^{ε(Z, z'')}(e^{ε(Z, z')} E ℓ(A([Z, z']), z') + δ(Z, z')) + δ(Z, z''),

so that the gap, fresh risk less training risk, is at most

    E e^{ε(Z, z') + ε(Z, z'')} − 1 + E[e^{ε(Z, z'')} δ(Z, z')] + E δ(Z, z'').                                       (1)

The same holds for training less fresh risk. (Thesis, Proposition 5.9, prints ε for e^ε in the term with δ, and "=".)
Given Z, z' and z'' are independent: the first term is the mean over Z of the squared mean of e^ε over z (Definition
5.7).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpmcmc.errors import InputError


@dataclass(frozen=True)
class Generalisation:
    """Bound (1), estimated. CONFIDENTIAL where ε is computed from records.

    Attributes:
        moment: mean of e^ε over data sets and records.
        bound: of the generalisation gap of losses in [0, 1], in either direction.
        standard_error: of the bound, over data sets.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.diagnostics.per_instance import generalisation_bound
        >>> round(generalisation_bound(np.full((3, 4), 0.1), 0.0).bound, 4)
        0.2214
    """

    moment: float
    bound: float
    standard_error: float


def generalisation_bound(epsilon: ArrayLike, delta: float) -> Generalisation:
    """Return the bound on the generalisation gap that per-instance losses give.

    CONFIDENTIAL where ε is computed from records: never in the released folder.

    Args:
        epsilon: ε(Z, z), (data sets, records): of fresh records z, none of them in Z, drawn from the law of Z's own.
        delta: δ in [0, 1), the same for all.

    Raises:
        ValueError: fewer than two data sets or records, an ε that is negative or NaN, or a δ outside [0, 1).
    """
    epsilon = np.asarray(epsilon, np.float64)
    if epsilon.ndim != 2 or min(epsilon.shape) < 2:
        raise InputError(
            f"epsilon: must be (data sets, records), two of each at least, got shape {epsilon.shape}",
            "epsilon",
        )
    if not np.all(epsilon >= 0):
        raise InputError("epsilon: must be >= 0 and not NaN", "epsilon")
    if not 0 <= delta < 1:
        raise InputError(f"delta: must be in [0, 1), got {delta}", "delta")
    count = epsilon.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):
        each = np.exp(epsilon)
        # Products of two different records: their mean is the squared mean, without bias.
        total = each.sum(axis=1)
        pairs = (total**2 - np.sum(each**2, axis=1)) / (count * (count - 1))
        bounds = pairs - 1 + delta * (1 + each.mean(axis=1))
        bounds = np.where(np.isnan(bounds), np.inf, bounds)
        error = float(bounds.std(ddof=1) / np.sqrt(len(bounds)))
        return Generalisation(float(each.mean()), float(bounds.mean()), error)
