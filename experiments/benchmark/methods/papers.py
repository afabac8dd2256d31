r"""Two methods with intervals, from the formulas of their papers.

**DP bootstrap** (Wang, Cheng and Awan 2022, arXiv 2210.06140). B estimates, each from a bootstrap sample and μ_B-GDP,
together are asymptotically μ-GDP if μ_B = μ/√((2 − 2/e)B). An estimate is the minimiser of the mean logistic loss plus
(c/2)‖θ‖², whose sensitivity is 2/(nc) for rows of norm at most 1, with Gaussian noise. The noise is known, so the
variance of sampling is the variance of the B estimates less that of the noise: the deconvolution of normal laws. The
centre is the mean of the estimates. B = 50, and c = .01.

**BinAgg** (Lin, Slavković and Bhoomireddy 2025, arXiv 2510.16974). A private tree (PrivTree) cuts the features' box
into bins. The count c, the sum s of rows and the sum t of labels of each bin are released with Gaussian noise, with
budgets 1:3:3:3 for μ of the tree, counts, rows and labels. Weighted least squares of t on s, weights 1/c, are corrected
for the noise of s: β = (Σ s s'/c − Σ D/c)⁻¹ Σ s t/c, where D is the covariance of a bin's noise, with the sandwich of
the scores s(t − s'β)/c + Dβ/c. Bins of a noisy count below 2 are left out. The noise of s has standard deviation √d
Δ/μ_s in each of d coordinates, Δ being the largest entry of the bin in that coordinate, so that all coordinates
together are μ_s-GDP. Neighbours differ by one record added or removed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr

from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from experiments import glm
from experiments.benchmark.methods.contract import Method, Outcome, Refused, normal_draws, system_rng
from experiments.benchmark.problem import Problem

_BOOTSTRAPS, _RIDGE = 50, 0.01
#: Least side of a bin, over the widest of the box.
_FINEST = 1 / 32


def _bootstrap(problem: Problem, epsilon: float) -> Outcome:
    rng = system_rng()
    x, y, n = problem.x, problem.y, len(problem.y)
    mu = gaussian_mu(epsilon, problem.delta)
    each = mu / math.sqrt((2 - 2 / math.e) * _BOOTSTRAPS)
    noise = 2 / (n * _RIDGE) / each
    released = []
    for _ in range(_BOOTSTRAPS):
        rows = rng.integers(n, size=n)
        fit = glm.fitted(x[rows], y[rows], "binary", precision=_RIDGE * n, ridge=0.0)
        released.append(fit.theta + noise * rng.normal(size=x.shape[1]))
    found = np.array(released)
    sampling = np.cov(found.T) - noise**2 * np.eye(x.shape[1])
    value, vector = np.linalg.eigh(sampling)
    covariance = (vector * np.maximum(value, 0)) @ vector.T + noise**2 / _BOOTSTRAPS * np.eye(x.shape[1])
    draws = normal_draws(found.mean(axis=0), covariance, rng)
    return Outcome(draws, True, f"({epsilon:g}, {problem.delta:.1e})-DP asymptotically, replace_one")


class Bins(NamedTuple):
    """Bins of a tree: ends (k, d, 2), and the rows of each."""

    ends: np.ndarray
    rows: list[np.ndarray]


def tree(x: np.ndarray, low: np.ndarray, high: np.ndarray, epsilon: float, rng: np.random.Generator) -> Bins:
    """Return the leaves of a PrivTree of threshold 0 that halves the widest side (Zhang, Xiao and Xie 2016).

    Args:
        x: rows, (n, d).
        low: lower ends of the box, (d,).
        high: upper ends.
        epsilon: pure ε of the tree.
        rng: of the noise.
    """
    scale = 3 / epsilon  # (2β − 1)/((β − 1) ε) of a fan-out β = 2
    decay = scale * math.log(2)
    finest = _FINEST * (high - low).max()
    leaves, rows = [], []
    waiting = [(np.stack([low, high], axis=1), np.arange(len(x)), 0)]
    while waiting:
        ends, inside, depth = waiting.pop()
        score = max(len(inside) - decay * depth, -decay) + rng.laplace(scale=scale)
        widths = ends[:, 1] - ends[:, 0]
        side = int(np.argmax(widths))
        if score <= 0 or widths[side] <= finest:
            leaves.append(ends)
            rows.append(inside)
            continue
        middle = ends[side].mean()
        left, right = ends.copy(), ends.copy()
        left[side, 1] = right[side, 0] = middle
        below = x[inside, side] < middle
        waiting += [(left, inside[below], depth + 1), (right, inside[~below], depth + 1)]
    return Bins(np.array(leaves), rows)


def binagg(
    x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray, most: float, mu: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return estimate (d,) and covariance (d, d) of a linear regression without intercept; give a column of ones.

    Args:
        x: rows, (n, d).
        y: labels, (n,).
        low: lower ends of the columns' ranges, (d,).
        high: upper ends.
        most: bound on ``|y|``.
        mu: Gaussian budget.
        rng: of the noise.

    Raises:
        Refused: fewer bins than coefficients are left, or the corrected matrix is singular.
    """
    of_tree, of_count, of_rows, of_labels = mu * np.array([1, 3, 3, 3]) / math.sqrt(28)
    # ε-DP implies μ-GDP for the μ with Φ(−μ/2) = 1/(1 + e^ε) (Dong, Roth and Su 2022, Proposition 2.9).
    epsilon = math.log(math.expm1(-float(log_ndtr(-of_tree / 2))))
    bins = tree(x, low, high, epsilon, rng)
    d = x.shape[1]
    count = np.array([len(rows) for rows in bins.rows]) + rng.normal(size=len(bins.rows)) / of_count
    std = math.sqrt(d) * np.abs(bins.ends).max(axis=2) / of_rows
    s = np.array([x[rows].sum(axis=0) for rows in bins.rows]) + std * rng.normal(size=std.shape)
    t = np.array([y[rows].sum() for rows in bins.rows]) + most / of_labels * rng.normal(size=len(bins.rows))
    keep = np.rint(count) >= 2
    if keep.sum() <= d:
        raise Refused(f"{keep.sum()} bins are left for {d} coefficients")
    count, s, t, variance = np.rint(count[keep]), s[keep], t[keep], std[keep] ** 2
    matrix = (s / count[:, None]).T @ s - np.diag((variance / count[:, None]).sum(axis=0))
    try:
        inverse = np.linalg.inv(matrix)
    except np.linalg.LinAlgError:
        raise Refused("the corrected matrix is singular") from None
    beta = inverse @ (s.T @ (t / count))
    scores = (s * (t - s @ beta)[:, None] + variance * beta) / count[:, None]
    middle = len(t) / (len(t) - d) * scores.T @ scores
    return beta, inverse @ middle @ inverse


def _binagg(problem: Problem, epsilon: float) -> Outcome:
    rng = system_rng()
    schema = problem.schema
    scale = schema.row_scale
    levels = {at for block in schema.structure.blocks for at in block}
    columns = problem.columns
    low = np.array([0.0 if at in levels else -scale for at in columns])
    high = np.full(len(columns), scale)
    low[-1] = scale  # the intercept's column is constant
    beta, covariance = binagg(
        problem.x[:, columns], problem.y, low, high, 1.0, gaussian_mu(epsilon, problem.delta), rng
    )
    draws = np.zeros((1000, problem.x.shape[1]))
    draws[:, columns] = normal_draws(beta, covariance, rng)
    return Outcome(draws, True, f"({epsilon:g}, {problem.delta:.1e})-DP, add_or_remove_one")


METHODS = (
    Method("dp_bootstrap", "rival", ("binary",), "(ε, δ) asymptotically, one record replaced", "B = 50, c = .01",
           _bootstrap, intervals=True),
    Method("binagg", "rival", ("real",), "(ε, δ), one record added or removed", "budgets 1:3:3:3, bins of 2 and more",
           _binagg, intervals=True),
)  # fmt: skip
