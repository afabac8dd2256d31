r"""Moments of per-instance losses bound the generalisation gap of a release.

    python -m experiments.sources.generalisation [--quick] --out DIR

Let Z have n records, z' and z'' be fresh ones, all independent, and A be per-instance private with ε(Z, z) and δ(Z, z).
For losses in [0, 1] the fresh risk of A([Z, z']) at z'' is by symmetry that of A([Z, z'']) at z', and

    E ℓ(A([Z, z'']), z') <= e^{ε(Z, z'')} E ℓ(A(Z), z') + δ(Z, z'')
                         <= e^{ε(Z, z'')}(e^{ε(Z, z')} E ℓ(A([Z, z']), z') + δ(Z, z')) + δ(Z, z''),

so that the gap, fresh risk less training risk, is at most

    E e^{ε(Z, z') + ε(Z, z'')} − 1 + E[e^{ε(Z, z'')} δ(Z, z')] + E δ(Z, z'').                                       (1)

The same holds for training less fresh risk. (Thesis, Proposition 5.9, prints ε for e^ε in the term with δ, and "=".)
Given Z, z' and z'' are independent: the first term is the mean over Z of the squared mean of e^ε over z (Definition
5.7). Proposition 5.11 and Corollary 5.12, between domains, are not built.

The release of the table is the mean of n normal records plus N(0, σ²), whose ε is the accountant's. Its loss tells
training records from fresh ones: 1 where record and release have opposite signs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from experiments.sources.per_instance import noisy_estimate_epsilon
from experiments.sources.script import script


class Generalisation(NamedTuple):
    """Bound (1), estimated: the mean of e^ε, the bound of the gap in either direction, and its standard error."""

    moment: float
    bound: float
    standard_error: float


def generalisation_bound(epsilon: np.ndarray, delta: float) -> Generalisation:
    """Return the bound that losses ε(Z, z), (data sets, records), give; z are fresh, two of each at least."""
    count = epsilon.shape[1]
    each = np.exp(epsilon)
    # Products of two different records: their mean is the squared mean, without bias.
    pairs = (each.sum(axis=1) ** 2 - np.sum(each**2, axis=1)) / (count * (count - 1))
    bounds = pairs - 1 + delta * (1 + each.mean(axis=1))
    return Generalisation(float(each.mean()), float(bounds.mean()), float(bounds.std(ddof=1) / math.sqrt(len(bounds))))


def simulated(num_records: int, noise_std: float, delta: float, repeats: int, seed: int = 0) -> dict[str, Any]:
    """Return the bound of a noisy mean, and its gap as found."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(repeats, num_records))
    fresh = rng.normal(size=(repeats, 20))
    # Adding z to n records moves their mean by (z − mean)/(n + 1).
    shifts = np.abs(fresh - base.mean(axis=1, keepdims=True))[:600] / (num_records + 1)
    found = generalisation_bound(noisy_estimate_epsilon(shifts, noise_std, delta), delta)
    train = fresh[:, 0]
    draw = (base.sum(axis=1) + train) / (num_records + 1) + noise_std * rng.normal(size=repeats)
    each = (draw * fresh[:, 1] < 0).astype(float) - (draw * train < 0)
    return {
        "num_records": num_records,
        "noise_std": noise_std,
        "delta": delta,
        "moment": found.moment,
        "bound": found.bound,
        "bound_error": found.standard_error,
        "gap": float(each.mean()),
        "gap_error": float(each.std() / math.sqrt(repeats)),
    }


def rows(quick: bool) -> list[dict[str, Any]]:
    """Return the rows of results.csv."""
    repeats = 4_000 if quick else 100_000
    return [simulated(n, std, 0.02, repeats) for n, std in ((5, 0.4), (20, 0.2), (100, 0.1))]


main = script(
    "generalisation",
    "The bound that per-instance losses give, beside the gap.",
    rows,
    "n = {num_records}: gap {gap:.4f} ± {gap_error:.4f}, at most {bound:.3f}",
)

if __name__ == "__main__":
    raise SystemExit(main())
