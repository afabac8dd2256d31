r"""The Laplace mechanism: sums of bounded vectors with noise, at a pure ε (Dwork, McSherry, Nissim and Smith 2006).

    python -m experiments.sources.laplace_mechanism [--quick] [--out DIR]

Σ φ for vectors φ with ‖φ‖₁ <= b, plus discrete Laplace noise of scale Δ/ε a coordinate, Δ = 2b where a record is
replaced and b where one is added or removed. Proof: a shift of the integer x of noise of scale s by m costs a ratio of
e^{|m|/s} at most, and the shifts of the coordinates add up to Δ. The largest error of d coordinates is at most
(Δ/ε) log(d/β) with probability 1 − β. Vectors are cut to b and rounded toward zero to multiples of 2^-20 of it, so that
their sum and its noise are whole numbers. The table has a histogram's largest error beside that bound.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from experiments.sources.discrete_laplace import sample
from experiments.sources.script import script

#: A record's largest norm, in grid steps.
ONE = 1 << 20


def sum_in_steps(rows: np.ndarray, bound: float) -> np.ndarray:
    """Return Σ φ of (n, d) rows in grid steps of 2^-20·b, int64 (d,); what is not finite counts as 0."""
    rows = np.where(np.isfinite(rows), rows, 0.0)
    longest = np.maximum(np.abs(rows).sum(axis=1, keepdims=True), bound)
    return np.trunc(rows / longest * ONE).astype(np.int64).sum(axis=0)


def noisy_sum(rows: np.ndarray, epsilon: float, bound: float, replaced: bool = True) -> np.ndarray:
    """Return Σ φ with noise, (d,), ε-DP where one record is replaced, or else added or removed."""
    scale = (2 if replaced else 1) * ONE / Fraction(epsilon)
    noisy = [int(step) + sample(scale) for step in sum_in_steps(rows, bound)]
    return np.array(noisy, np.float64) * (bound / ONE)


def rows_of_table(repeats: int, bins: int = 20, num_records: int = 1000) -> list[dict[str, Any]]:
    """Return the rows of results.csv."""
    histogram = np.eye(bins)[np.random.default_rng(0).integers(0, bins, num_records)]
    truth = histogram.sum(axis=0)
    found = []
    for epsilon in (0.1, 1.0, 10.0):
        errors = [np.abs(noisy_sum(histogram, epsilon, 1.0) - truth).max() for _ in range(repeats)]
        found.append({
            "epsilon": epsilon,
            "bins": bins,
            "median_error": float(np.median(errors)),
            "error_95": float(np.quantile(errors, 0.95)),
            "bound_95": 2 / epsilon * math.log(bins / 0.05),
        })  # fmt: skip
    return found


main = script(
    "laplace_mechanism",
    "Largest error of a private histogram against its bound.",
    lambda quick: rows_of_table(20 if quick else 400),
    "ε = {epsilon:g}: 95 of 100 releases err by {error_95:.3g} at most in all {bins} bins; "
    "the bound says {bound_95:.3g}",
)

if __name__ == "__main__":
    raise SystemExit(main())
