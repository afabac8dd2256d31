r"""Synthetic tables from a noise-aware release, and intervals from several of them, at no further cost to privacy.

    python -m experiments.sources.synthetic_tables [--quick] --out DIR

The notes of the school release synthetic data; Rubin's rules are beyond them. Each table is one draw from the posterior
predictive law of everything that a release (``NoiseAware`` of a logistic regression) says:

1. second moments of the rows. A table of N rows is made as in step 2 with the released Gram matrix, and noise of
   privacy's law is added to its own Gram matrix: errors of sampling and of privacy are in what is left;
2. rows with these second moments. The intercept is constant. A one-hot block takes a level with the probability that a
   linear regression on the columns before it predicts, cut to [0, 1]. Any other column is that regression and a normal
   residual. By the normal equations of these regressions every second moment is kept, where no probability was cut: all
   two-way tables of blocks, and every mean and covariance;
3. θ from the posterior, and labels from the model at x and θ.

So a table keeps the model and the first two moments of its columns, and nothing else of x: numeric columns are normal,
and lie beyond their public range at times.

**Rules** of Raghunathan, Reiter and Rubin (2003) for fully synthetic tables. An analysis of M tables gives estimates
q_l with variances U_l. Each q_l varies with variance U about the parameter of its own table. This is no uncertainty of
the answer, so T subtracts it:

    q̄ = mean q_l,   T = (1 + 1/M) b − Ū,   b = the variance of the q_l,   Ū = mean U_l,

with (M − 1)(1 − Ū/((1 + 1/M) b))² degrees of freedom. T may be negative by chance where M is small, so b/M is its least
value. Where all q_l are equal, b = 0 tells nothing, and T is Ū (Reiter 2002) with infinitely many degrees of freedom.

Written: how often intervals of a logistic regression's coefficients, and of column means, hold: by these rules from
several tables, and, a planted fault, from one table that is taken for the real one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit
from scipy.stats import t as student

import dpmcmc
from dpmcmc.data.structure import RowStructure
from dpmcmc.inference import Evidence
from dpmcmc.inference.denoised_moment import project
from dpmcmc.inference.normal_law import symmetric_noise
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.targets import LogisticRegression
from experiments.sources.script import script

#: N, ε, δ, tables, data sets, and levels of intervals.
N, EPSILON, DELTA, TABLES, REPEATS, LEVELS = 20_000, 1.0, 1e-6, 12, 40, (0.5, 0.9)
#: An intercept, 3 and 2 levels, and two numbers.
STRUCTURE = RowStructure(constant=0, blocks=((1, 2, 3), (4, 5)))
#: Coefficients that the columns identify, those of a block relative to its first level, as sums of all coefficients.
KEPT = [0, 2, 3, 5, 6, 7]
CONTRASTS = np.zeros((6, 8))
CONTRASTS[[0, 0, 0, 1, 2, 3, 4, 5], [0, 1, 4, 2, 3, 5, 6, 7]] = 1
CONTRASTS[[1, 2, 3], [1, 1, 4]] = -1


class Combined(NamedTuple):
    """Estimates of several synthetic tables together: q̄, T and degrees of freedom, (k,) each."""

    mean: np.ndarray
    variance: np.ndarray
    degrees: np.ndarray

    def intervals(self, level: float) -> np.ndarray:
        """Return central intervals, (k, 2)."""
        half = student.ppf((1 + level) / 2, self.degrees) * np.sqrt(self.variance)
        return np.stack([self.mean - half, self.mean + half], axis=1)


def rubin(estimates: np.ndarray, variances: np.ndarray) -> Combined:
    """Combine the estimates and variances, (M, k) each, of M >= 2 fully synthetic tables."""
    count = len(estimates)
    # Less the first table's, so that no rounding is left where all are equal.
    spread = np.var(np.subtract(estimates, estimates[0]), axis=0, ddof=1)
    between = (1 + 1 / count) * spread
    within = np.mean(variances, axis=0)
    ratio = np.ones_like(between)
    np.divide(within, between, out=ratio, where=between > within)
    degrees = (count - 1) * np.clip(1 - ratio, 1 / count, 1.0) ** 2
    told = between > 0
    return Combined(
        np.mean(estimates, axis=0),
        np.where(told, np.maximum(between - within, spread / count), within),
        np.where(told, np.maximum(degrees, 1.0), np.inf),
    )


def rows_of_moments(gram: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows (count, d) with Gram matrix ``gram`` in expectation, by step 2."""
    moments = gram / count
    out = np.zeros((count, len(gram)))
    before = [0]
    out[:, 0] = np.sqrt(max(moments[0, 0], 0.0))
    for columns in ([1, 2, 3], [4, 5], [6], [7]):
        known = np.linalg.pinv(moments[np.ix_(before, before)], rcond=1e-8, hermitian=True)
        weights = known @ moments[np.ix_(before, columns)]
        predicted = out[:, before] @ weights
        if len(columns) > 1:
            chance = np.cumsum(np.maximum(predicted, 0.0), axis=1)
            level = np.sum(rng.random((count, 1)) * chance[:, -1:] > chance, axis=1)
            out[np.arange(count), columns[0] + np.minimum(level, len(columns) - 1)] = out[:, 0]
        else:
            column = columns[0]
            left = moments[column, column] - float(moments[before, column] @ weights[:, 0])
            out[:, column] = predicted[:, 0] + np.sqrt(max(left, 0.0)) * rng.normal(size=count)
        before += columns
    return out


def tables(evidence: Evidence, count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return synthetic tables ``{"x": (N, d), "y": (N,)}`` of a logistic regression's release."""
    rng = np.random.default_rng(seed)
    noisy, size = evidence.gram, evidence.num_records
    assert noisy is not None
    out = []
    for theta in evidence.posterior().draws(count, seed):
        again = rows_of_moments(project(noisy.gram, noisy.trace, STRUCTURE), size, rng)
        moments = again.T @ again + noisy.noise_std * symmetric_noise(rng, again.shape[1])
        rows = rows_of_moments(project(moments, noisy.trace, STRUCTURE), size, rng)
        out.append({"x": rows, "y": (rng.random(size) < expit(rows @ theta)).astype(np.int32)})
    return out


def real_rows(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows of the structure whose columns depend on each other, (count, 8)."""
    z = rng.normal(size=(count, 3)) @ (np.eye(3) + 0.4)
    three = np.digitize(z[:, 0] + 0.5 * rng.normal(size=count), [-0.8, 0.9])
    two = (z[:, 1] + 0.3 * z[:, 0] > 0.3).astype(int)
    x = [np.ones((count, 1)), np.eye(3)[three], np.eye(2)[two], np.clip(z[:, 1:], -3, 3) / 3]
    return np.concatenate(x, axis=1) / math.sqrt(5)


def fit(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the maximum likelihood estimate of a logistic regression, and its variances."""
    theta = np.zeros(x.shape[1])
    for _ in range(8):
        p = expit(x @ theta)
        information = (x * (p * (1 - p))[:, None]).T @ x
        theta = theta + np.linalg.solve(information, x.T @ (y - p))
    return theta, np.diag(np.linalg.inv(information))


def coverage(repeats: int, num_tables: int) -> list[dict[str, Any]]:
    """Return how often intervals hold, a row for each analysis, way and level."""
    target = LogisticRegression(prior_scale=1.0, num_features=8, row_bound=1.0)
    plan = NoiseAware(draws=100, structure=STRUCTURE).plan(target, num_records=N, epsilon=EPSILON, delta=DELTA)
    means = real_rows(400_000, np.random.default_rng(99)).mean(0)[1:]
    found: dict[tuple[str, str, float], list[float]] = {}
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        x, theta = real_rows(N, rng), rng.normal(size=8)
        y = (rng.random(N) < expit(x @ theta)).astype(np.int32)
        evidence = dpmcmc.sample(plan, {"x": x.astype(np.float32), "y": y}, key=seed).evidence
        assert evidence is not None
        made = tables(evidence, num_tables, seed)
        analyses = {
            "coefficients": ([fit(one["x"][:, KEPT], one["y"]) for one in made], CONTRASTS @ theta),
            "column means": ([(one["x"][:, 1:].mean(0), one["x"][:, 1:].var(0) / N) for one in made], means),
        }
        for analysis, (answers, truth) in analyses.items():
            estimates, variances = (np.array(part) for part in zip(*answers, strict=True))
            one_table = Combined(estimates[0], variances[0], np.full(len(truth), np.inf))
            for way, pooled in (("Rubin's rules", rubin(estimates, variances)), ("one table as if real", one_table)):
                for level in LEVELS:
                    low, high = pooled.intervals(level).T
                    found.setdefault((analysis, way, level), []).append(float(np.mean((low < truth) & (truth < high))))
    facts = {"epsilon": EPSILON, "delta": DELTA, "tables": num_tables, "repeats": repeats}
    return [
        {"analysis": analysis, "way": way, "level": level, **facts, "coverage": float(np.mean(values)),
         "error": float(np.std(values, ddof=1) / math.sqrt(repeats))}
        for (analysis, way, level), values in found.items()
    ]  # fmt: skip


main = script(
    "synthetic_tables",
    "Coverage of intervals from synthetic tables of one release.",
    lambda quick: coverage(3, 6) if quick else coverage(REPEATS, TABLES),
    "{analysis}, {way}, {level:.0%}: {coverage:.3f} ± {error:.2g}",
)

if __name__ == "__main__":
    raise SystemExit(main())
