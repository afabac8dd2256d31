r"""Synthetic tables from a noise-aware release, and intervals from several of them, at no further cost to privacy.

    tables = synthetic.tables(result.plan.target, result.evidence, 20)     # [{"x": (N, d), "y": (N,)}, ...]
    tables = synthetic.tables(result.plan.target, result.evidence, 20, schema=schema)   # columns by name, as they were
    combined = synthetic.rubin(estimates, covariances)                      # of an analysis of each table

Each table is one draw from the posterior predictive law of everything that was released:

1. second moments of the rows. A table of N rows is made as in step 2 with the released Gram matrix, and noise of
   privacy's law is added to its own Gram matrix: errors of sampling and of privacy are in what is left;
2. rows with these second moments. The intercept is constant. A one-hot block takes a level with the probability that a
   linear regression on the columns before it predicts, cut to [0, 1]. Any other column is that regression and a normal
   residual. By the normal equations of these regressions every second moment is kept, where no probability was cut: all
   two-way tables of blocks, and every mean and covariance;
3. θ from the posterior, and labels from the model at x and θ.

So a table keeps the model and the first two moments of its columns. Nothing else of x is kept: numeric columns are
normal, lie beyond their public range at times, and have no interaction that moments do not show. With a schema every
row is brought to the nearest one that a table may have, before its label is made: numbers are clipped to their range,
and products of columns are those of the columns. If rows x are public, give them, and steps 1 and 2 are left out.

**Rules** of Raghunathan, Reiter and Rubin (2003) for fully synthetic tables. An analysis of M tables gives estimates
q_l with covariances U_l. Each q_l varies with covariance U about the parameter of its own table. This is no uncertainty
of the answer, so T subtracts it:

    q̄ = mean q_l,   T = (1 + 1/M) b − Ū,   b = the covariance of the q_l,   Ū = mean U_l,

with (M − 1)(1 − Ū/((1 + 1/M) b))² degrees of freedom. T may be negative by chance where M is small, so b/M is its least
value. Where all q_l are equal, b = 0 tells nothing, and T is Ū (Reiter 2002) with infinitely many degrees of freedom.
Take M = 20 or more.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.stats import t as student

from dpmcmc.data.schema import RowStructure, Schema
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.noise_aware import project, symmetric_noise
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.targets.base import Target, target_offers
from dpmcmc.targets.glm import (
    LinearRegression,
    NegativeBinomialRegression,
    PoissonRegression,
)


class Combined(NamedTuple):
    """Estimates of several synthetic tables together.

    Attributes:
        mean: q̄, (k,).
        variance: T, (k,).
        degrees: of freedom, (k,).

    Example:
        >>> import numpy as np
        >>> from dpmcmc.inference import synthetic
        >>> combined = synthetic.rubin(estimates=np.array([[1.0], [1.2], [0.9]]), variances=np.full((3, 1), 0.01))
        >>> combined.mean.round(2)
        array([1.03])
        >>> combined.intervals(0.9).shape
        (1, 2)
    """

    mean: np.ndarray
    variance: np.ndarray
    degrees: np.ndarray

    def intervals(self, level: float = 0.9) -> np.ndarray:
        """Return central intervals, (k, 2)."""
        half = student.ppf((1 + level) / 2, self.degrees) * np.sqrt(self.variance)
        return np.stack([self.mean - half, self.mean + half], axis=1)


def rubin(estimates: np.ndarray, variances: np.ndarray) -> Combined:
    """Combine the analyses of M fully synthetic tables.

    Args:
        estimates: q_l, (M, k).
        variances: of each, as the analysis of one table states them, (M, k).

    Raises:
        InputError: fewer than two tables, numbers that are not finite, or negative variances.
    """
    count = len(estimates)
    if count < 2:
        raise InputError(
            f"estimates: are of {count} tables, and their spread needs two or more",
            "estimates",
        )
    if not (np.isfinite(estimates).all() and np.isfinite(variances).all()):
        raise InputError(
            "estimates, variances: must be finite; leave out what an analysis could not estimate",
            "estimates",
        )
    if np.min(variances, initial=0.0) < 0:
        raise InputError("variances: must not be negative", "variances")
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


@on_one_blas_thread
def tables(
    target: Target,
    evidence: Evidence,
    count: int,
    *,
    schema: Schema | None = None,
    public_x: np.ndarray | None = None,
    seed: int = 0,
) -> list[dict[str, np.ndarray]]:
    """Return synthetic tables ``{"x": (N, d), "y": (N,)}``, or with a schema column name -> values (N,).

    Args:
        target: the model that the release is of.
        evidence: of the release.
        count: M.
        schema: of the table that the release is of; every row is then one that this schema encodes.
        public_x: rows (n, d) that may be published, since every table contains them unchanged; never private rows.
            None: made from the released Gram matrix.
        seed: may be public.

    Raises:
        UnsupportedCombination: rows are not given and no Gram matrix was released; or labels of such a target.
        InputError: see :meth:`dpmcmc.data.Schema.decode_features`.
    """
    check_not_forked()
    rng = np.random.default_rng(seed)
    parameters = evidence.posterior().draws(count, seed)
    out = []
    for theta in parameters:
        rows = _rows(evidence, rng) if public_x is None else np.asarray(public_x, np.float64)
        if schema is not None:
            rows = schema.encode_features(schema.decode_features(rows))
        labels = _labels(target, theta, rows, rng)
        out.append({"x": rows, "y": labels} if schema is None else schema.decode(rows, labels))
    return out


def _rows(evidence: Evidence, rng: np.random.Generator) -> np.ndarray:
    """Return rows (N, d) of one table."""
    noisy = evidence.gram
    structure = evidence.structure or RowStructure()
    count = evidence.num_records
    if noisy is None:
        raise UnsupportedCombination(
            "synthetic tables: this release holds no second moment of rows; give public rows, tables(..., public_x=...)"
        )
    nearest = project(noisy.gram, noisy.trace, structure)
    again = rows_of_moments(nearest, count, structure, rng)
    moments = again.T @ again + noisy.noise_std * symmetric_noise(rng, len(nearest))
    return rows_of_moments(project(moments, noisy.trace, structure), count, structure, rng)


def rows_of_moments(gram: np.ndarray, count: int, structure: RowStructure, rng: np.random.Generator) -> np.ndarray:
    """Return rows (count, d) with Gram matrix ``gram`` in expectation; see above."""
    size = len(gram)
    moments = gram / count
    out = np.zeros((count, size))
    before = []
    if structure.constant is not None:
        before = [structure.constant]
        out[:, before[0]] = np.sqrt(max(moments[before[0], before[0]], 0.0))
    hot = [column for block in structure.blocks for column in block]
    rest = [column for column in range(size) if column not in (*before, *hot)]
    for group in (*structure.blocks, *([column] for column in rest)):
        columns = list(group)
        known = np.linalg.pinv(moments[np.ix_(before, before)], rcond=1e-8, hermitian=True)
        weights = known @ moments[np.ix_(before, columns)]
        predicted = out[:, before] @ weights
        if columns[0] in hot:
            chance = np.cumsum(np.maximum(predicted, 0.0), axis=1)
            level = np.sum(rng.random((count, 1)) * chance[:, -1:] > chance, axis=1)
            out[np.arange(count), np.array(columns)[np.minimum(level, len(columns) - 1)]] = out[:, before[0]]
        else:
            column = columns[0]
            left = moments[column, column] - float(moments[before, column] @ weights[:, 0])
            out[:, column] = predicted[:, 0] + np.sqrt(max(left, 0.0)) * rng.normal(size=count)
        before += columns
    return out


def _labels(target: Target, theta: np.ndarray, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return labels (n,) of the model at one θ."""
    classes = target_offers(target).num_classes
    parameter = theta.reshape(x.shape[1], -1) if theta.size > x.shape[1] else theta
    mean = np.asarray(target.predict(jnp.asarray(parameter), jnp.asarray(x)), np.float64)
    if classes == 2:
        return (rng.random(len(x)) < mean).astype(np.int32)
    if classes is not None:
        return np.sum(rng.random((len(x), 1)) > np.cumsum(mean, axis=1), axis=1).clip(max=classes - 1).astype(np.int32)
    if isinstance(target, LinearRegression):
        return mean + target.noise_scale * rng.normal(size=len(x))
    if isinstance(target, PoissonRegression):
        return rng.poisson(mean).astype(np.float64)
    if isinstance(target, NegativeBinomialRegression):
        # A Poisson whose rate is gamma: mean μ and variance μ + αμ².
        return rng.poisson(rng.gamma(1 / target.dispersion, target.dispersion * mean)).astype(np.float64)
    raise UnsupportedCombination(f"synthetic tables: labels of {type(target).__name__} are not made; use its own model")
