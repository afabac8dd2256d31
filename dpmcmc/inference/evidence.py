"""Law of a noise-aware release, with checks, replicates and comparisons of models that follow from it.

    u = Hθ* + e,     e ~ N(0, 𝒞),     θ* ~ N(0, diag(scales²))                                                   (1)

u = Hθ̄ − ḡ is made of the last release, and 𝒞 is the variance of score, privacy's noise and the error of Ĥ together
(``noise_aware.py``), at the posterior that was concluded. Everything here is a function of released numbers, so it
costs no privacy, however often it is called. No function here compares with records of the run.

**Check of the prior.** Under (1) u ~ N(0, 𝒞 + H diag(scales²) H), so its squared whitened norm is χ² with d degrees of
freedom. A small p-value means that the release contradicts model and prior.

**Check of the declared rows.** Every equation that a ``RowStructure`` states is linear in the Gram matrix: zeros within
blocks, G v = 0 for v = (a block's indicator) − (the intercept's), and the trace N of rows of norm 1. The released
matrix deviates from them by its noise alone, which is isotropic in Frobenius norm with variance σ². So for A g = a,

    (A g̃ − a)ᵀ (A Aᵀ)⁻¹ (A g̃ − a)/σ² ~ χ² with as many degrees of freedom as equations,

exactly. A small p-value means that rows are not as declared, so intervals may not hold.

**Comparison.** A model without some columns is (1) with their coefficients at 0, and another prior is (1) with other
scales. The density of u under each, with 𝒞 as it is, gives Bayes factors that account for the noise. The Savage–Dickey
ratio, posterior over prior density at 0, is the same number. For linear regression without noise u = Xᵀy/φ is
sufficient, H = 𝒞 = XᵀX/φ, and the factors are those of the exact marginal likelihoods.

**No lack of fit.** u has as many numbers as θ, so no degree of freedom is left for a test of fit. The path of gradients
adds almost
nothing: an unclipped score of a generalised linear model with its own link, Σ (μ(x·θ) − y) x, depends on labels through
Xᵀy alone, wherever it is taken. Whether a further term (a square, an interaction) is needed is a comparison: give its
column to the model, and ask for the Bayes factor without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import chdtrc
from scipy.stats import t as student

from dpmcmc.data.schema import RowStructure, Schema
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import names as saved
from dpmcmc.inference.noise_aware import Gaussian, project, symmetric_noise
from dpmcmc.inference.trace import NoiseAwarePosterior
from dpmcmc.privacy.query.gaussian_release import NoisyGram, svec
from dpmcmc.storage.fingerprint import check_not_forked
from dpmcmc.targets.base import Target, target_offers
from dpmcmc.targets.glm import (
    LinearRegression,
    NegativeBinomialRegression,
    PoissonRegression,
)

#: Coefficients, by number or by name.
Without = str | Sequence[int | str]
#: Name of the file in a run folder.
FILE = "evidence.npz"


@dataclass(frozen=True, eq=False)
class Evidence:
    """Law (1) of a noise-aware release.

    Attributes:
        curvature: H, (d, d).
        statistic: u, (d,).
        covariance: 𝒞, (d, d).
        scales: standard deviations of the prior, (d,).
        num_records: N.
        gram: released Σ x xᵀ, or None where none was.
        structure: declared of the rows, or None.
        names: that each coefficient answers to: its own, its term's, those of its source columns; empty: not known.

    Example:
        >>> import dpmcmc
        >>> import numpy as np
        >>> target = dpmcmc.targets.LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
        >>> x = np.random.default_rng(0).uniform(-0.7, 0.7, size=(1000, 2))
        >>> result = dpmcmc.sample(dpmcmc.suggest(target, num_records=1000, epsilon=1.0), {"x": x, "y": x[:, 0]})
        >>> posterior = result.evidence.posterior()
        >>> posterior.mean.shape, posterior.intervals(0.9).shape
        ((2,), (2, 2))
    """

    curvature: np.ndarray
    statistic: np.ndarray
    covariance: np.ndarray
    scales: np.ndarray
    num_records: int
    gram: NoisyGram | None = None
    structure: RowStructure | None = None
    names: tuple[tuple[str, ...], ...] = ()

    def __repr__(self) -> str:
        return f"Evidence(of {len(self.scales)} coefficients)"

    def posterior(
        self, *, without: Without = (), scales: np.ndarray | None = None
    ) -> NoiseAwarePosterior:
        """Return the posterior; of a nested model or under another prior with ``without`` or ``scales``.

        Args:
            without: coefficients that are 0, by number or by name; they have variance 0 in what is returned. A column
                of the table stands for every coefficient that it takes part in, such as those of all its levels; an
                interaction, ``age:job``, stands for its own.
            scales: standard deviations of the prior, (d,); None: the plan's.
        """
        prior = self._prior(without, scales)
        gain = np.linalg.solve(self._marginal(prior), self.curvature @ prior).T
        covariance = prior - gain @ self.curvature @ prior
        return NoiseAwarePosterior(gain @ self.statistic, (covariance + covariance.T) / 2)

    def log_density(
        self, *, without: Without = (), scales: np.ndarray | None = None
    ) -> float:
        """Return log N(u; 0, 𝒞 + H diag(scales²) H), arguments as of :meth:`posterior`."""
        factor = cho_factor(self._marginal(self._prior(without, scales)), lower=True)
        square = float(self.statistic @ cho_solve(factor, self.statistic))
        half_log_determinant = float(np.sum(np.log(np.diag(factor[0]))))
        return (
            -0.5 * (square + len(self.statistic) * math.log(2 * math.pi))
            - half_log_determinant
        )

    def log_bayes_factor(self, without: Without) -> float:
        """Return log p(u | those coefficients are 0) − log p(u | the whole model).

        A value above 0 favours the model without them. Under a true nested model the factor against it is beyond c with
        a probability of at most 1/c. ``without`` is as of :meth:`posterior`.
        """
        return self.log_density(without=without) - self.log_density()

    def prior_check(self) -> float:
        """Return the p-value of u under model and prior; uniform if both are true.

        Under ``prior_scale: evidence`` the scales were chosen from u, and the p-value is too large.
        """
        marginal = self._marginal(self._prior((), None))
        return _beyond(
            float(self.statistic @ np.linalg.solve(marginal, self.statistic)),
            len(self.statistic),
        )

    def rows_check(self) -> float:
        """Return the p-value of the released Gram matrix under what is declared of the rows.

        Raises:
            UnsupportedCombination: no Gram matrix was released, or nothing is declared that it could contradict.
        """
        noisy = self.gram
        equations = (
            [] if noisy is None else _equations(self.structure or RowStructure(), noisy)
        )
        if noisy is None or not equations:
            raise UnsupportedCombination(
                "rows_check: nothing is declared of the rows that a released Gram matrix could contradict; declare "
                "one-hot blocks or rows of norm 1 (RowStructure)."
            )
        left = np.stack([svec(matrix) for matrix, _ in equations])
        apart = left @ svec(noisy.gram) - np.array(
            [self.num_records * value for _, value in equations]
        )
        square = float(apart @ np.linalg.solve(left @ left.T, apart)) / noisy.noise_std**2
        return _beyond(square, len(equations))

    def replicates(
        self, count: int, seed: int = 0, *, of_prior: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return replicates (θ, u), each (count, d): a draw, and a release that the model simulates under it.

        Args:
            count: how many.
            seed: may be public.
            of_prior: draw θ from the prior, not from the posterior.
        """
        rng = np.random.default_rng(seed)
        size = (count, len(self.scales))
        prior = Gaussian(np.zeros(len(self.scales)), self._prior((), None))
        found = self.posterior()
        theta = (prior if of_prior else Gaussian(found.mean, found.covariance)).draws(
            rng.normal(size=size)
        )
        return theta, theta @ self.curvature + Gaussian(
            np.zeros(size[1]), self.covariance
        ).draws(rng.normal(size=size))

    def predictive_check(
        self,
        discrepancy: Callable[[np.ndarray, np.ndarray], float],
        count: int = 1000,
        seed: int = 0,
    ) -> float:
        """Return the share of replicates whose ``discrepancy(θ, u)`` is at least that of the release at the same θ.

        It is a posterior predictive p-value (Gelman, Meng and Stern 1996): near .5 more often than uniform, since u was
        used to draw θ. ``prior_check`` is uniform.
        """
        pairs = zip(*self.replicates(count, seed), strict=True)
        return float(
            np.mean(
                [
                    discrepancy(theta, u) >= discrepancy(theta, self.statistic)
                    for theta, u in pairs
                ]
            )
        )

    def _prior(self, without: Without, scales: np.ndarray | None) -> np.ndarray:
        """Return the prior's covariance, (d, d)."""
        own = self.scales if scales is None else np.asarray(scales, np.float64)
        if own.shape != self.scales.shape or not np.all(own > 0):
            raise InputError(f"scales: must be {len(self.scales)} numbers > 0", "scales")
        columns = self._numbers(without)
        if columns.size and not (columns.min() >= 0 and columns.max() < len(own)):
            raise InputError(
                f"without: must number coefficients 0 to {len(own) - 1}, got {list(without)}",
                "without",
            )
        own = own.copy()
        own[columns] = 0.0
        return np.diag(own**2)

    def _numbers(self, without: Without) -> np.ndarray:
        """Return the indices of coefficients that are given by number or by name."""
        out: list[int] = []
        for one in [without] if isinstance(without, str) else without:
            found = (
                [k for k, names in enumerate(self.names) if one in names]
                if isinstance(one, str)
                else [int(one)]
            )
            if not found:
                known = dict.fromkeys(name for names in self.names for name in names)
                there = (
                    f"names are {', '.join(known)}"
                    if known
                    else "none has a name here; give numbers"
                )
                raise InputError(
                    f"without: no coefficient is called {one!r}; {there}", "without"
                )
            out += found
        return np.array(out, int)

    def _marginal(self, prior: np.ndarray) -> np.ndarray:
        return self.covariance + self.curvature @ prior @ self.curvature

    def content(self) -> bytes:
        """Return the file of a run folder."""
        gram = None if self.gram is None else self.gram._asdict()
        structure = None if self.structure is None else self.structure.to_json()
        return saved.packed({**vars(self), "gram": gram, "structure": structure})

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return what :meth:`content` holds."""
        facts = saved.unpacked(content)
        gram = None if facts["gram"] is None else NoisyGram(**facts["gram"])
        structure = (
            None
            if facts["structure"] is None
            else RowStructure.of_json(facts["structure"])
        )
        names = tuple(map(tuple, facts["names"]))
        return cls(**{**facts, "gram": gram, "structure": structure, "names": names})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the evidence of a run folder.

        Raises:
            ValueError: there is none, or it is of another version.
        """
        return saved.loaded(
            Path(folder) / FILE, cls.of, "a run of mechanism noise_aware has it"
        )


def _beyond(square: float, degrees: int) -> float:
    """P(χ² > square); ``scipy.stats`` gives the same bits and takes half a second to import."""
    return float(chdtrc(degrees, np.maximum(square, 0.0)))


def _equations(
    structure: RowStructure, noisy: NoisyGram
) -> list[tuple[np.ndarray, float]]:
    """Return independent pairs (A, a): Σ A·G = a·N for every Gram matrix of such rows; A (d, d) is symmetric."""
    out: list[tuple[np.ndarray, float]] = []
    size = len(noisy.gram)

    def add(row: np.ndarray, column: np.ndarray) -> None:
        out.append(((np.outer(row, column) + np.outer(column, row)) / 2, 0.0))

    unit = np.eye(size)
    firsts = [block[0] for block in structure.blocks]
    intercept = 0 if structure.constant is None else structure.constant
    for number, block in enumerate(structure.blocks):
        for at, one in enumerate(block):
            for other in block[at + 1 :]:
                add(unit[one], unit[other])
        against = unit[list(block)].sum(0) - unit[intercept]
        # (G v)·v' = (G v')·v for two blocks is stated once.
        for column in sorted(set(range(size)) - set(firsts[:number])):
            add(unit[column], against)
    if structure.unit_norm and not noisy.trace_std:
        out.append((np.eye(size), 1.0))
    return out


# ------------------------------------------------------------------------------------
# Synthetic tables from a noise-aware release, and intervals from several of them, at no further cost to privacy.
#
#     tables = synthetic.tables(result.plan.target, result.evidence, 20)     # [{"x": (N, d), "y": (N,)}, ...] tables =
#     synthetic.tables(result.plan.target, result.evidence, 20, schema=schema)   # columns by name, as they were
#     combined = synthetic.rubin(estimates, covariances)                      # of an analysis of each table
#
# Each table is one draw from the posterior predictive law of everything that was released:
#
# 1. second moments of the rows. A table of N rows is made as in step 2 with the released Gram matrix, and noise of
#    privacy's law is added to its own Gram matrix: errors of sampling and of privacy are in what is left;
# 2. rows with these second moments. The intercept is constant. A one-hot block takes a level with the probability that
#    a linear regression on the columns before it predicts, cut to [0, 1]. Any other column is that regression and a
#    normal residual. By the normal equations of these regressions every second moment is kept, where no probability
#    was cut: all two-way tables of blocks, and every mean and covariance;
# 3. θ from the posterior, and labels from the model at x and θ.
#
# So a table keeps the model and the first two moments of its columns. Nothing else of x is kept: numeric columns are
# normal, lie beyond their public range at times, and have no interaction that moments do not show. With a schema every
# row is brought to the nearest one that a table may have, before its label is made: numbers are clipped to their
# range, and products of columns are those of the columns. If rows x are public, give them, and steps 1 and 2 are left
# out.
#
# **Rules** of Raghunathan, Reiter and Rubin (2003) for fully synthetic tables. An analysis of M tables gives estimates
# q_l with covariances U_l. Each q_l varies with covariance U about the parameter of its own table. This is no
# uncertainty of the answer, so T subtracts it:
#
#     q̄ = mean q_l,   T = (1 + 1/M) b − Ū,   b = the covariance of the q_l,   Ū = mean U_l,
#
# with (M − 1)(1 − Ū/((1 + 1/M) b))² degrees of freedom. T may be negative by chance where M is small, so b/M is its
# least value. Take M = 20 or more.


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
    """
    count = len(estimates)
    between = (1 + 1 / count) * np.var(estimates, axis=0, ddof=1)
    within = np.mean(variances, axis=0)
    least = np.var(estimates, axis=0, ddof=1) / count
    degrees = (count - 1) * np.clip(1 - within / between, 1 / count, 1.0) ** 2
    return Combined(
        np.mean(estimates, axis=0),
        np.maximum(between - within, least),
        np.maximum(degrees, 1.0),
    )


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
        rows = (
            _rows(evidence, rng) if public_x is None else np.asarray(public_x, np.float64)
        )
        if schema is not None:
            rows = schema.encode_features(schema.decode_features(rows))
        labels = _labels(target, theta, rows, rng)
        out.append(
            {"x": rows, "y": labels} if schema is None else schema.decode(rows, labels)
        )
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
    return rows_of_moments(
        project(moments, noisy.trace, structure), count, structure, rng
    )


def rows_of_moments(
    gram: np.ndarray, count: int, structure: RowStructure, rng: np.random.Generator
) -> np.ndarray:
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
        known = np.linalg.pinv(
            moments[np.ix_(before, before)], rcond=1e-8, hermitian=True
        )
        weights = known @ moments[np.ix_(before, columns)]
        predicted = out[:, before] @ weights
        if columns[0] in hot:
            chance = np.cumsum(np.maximum(predicted, 0.0), axis=1)
            level = np.sum(rng.random((count, 1)) * chance[:, -1:] > chance, axis=1)
            out[
                np.arange(count), np.array(columns)[np.minimum(level, len(columns) - 1)]
            ] = out[:, before[0]]
        else:
            column = columns[0]
            left = moments[column, column] - float(
                moments[before, column] @ weights[:, 0]
            )
            out[:, column] = predicted[:, 0] + np.sqrt(max(left, 0.0)) * rng.normal(
                size=count
            )
        before += columns
    return out


def _labels(
    target: Target, theta: np.ndarray, x: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return labels (n,) of the model at one θ."""
    classes = target_offers(target).num_classes
    parameter = theta.reshape(x.shape[1], -1) if theta.size > x.shape[1] else theta
    mean = np.asarray(target.predict(jnp.asarray(parameter), jnp.asarray(x)), np.float64)
    if classes == 2:
        return (rng.random(len(x)) < mean).astype(np.int32)
    if classes is not None:
        return (
            np.sum(rng.random((len(x), 1)) > np.cumsum(mean, axis=1), axis=1)
            .clip(max=classes - 1)
            .astype(np.int32)
        )
    if isinstance(target, LinearRegression):
        return mean + target.noise_scale * rng.normal(size=len(x))
    if isinstance(target, PoissonRegression):
        return rng.poisson(mean).astype(np.float64)
    if isinstance(target, NegativeBinomialRegression):
        # A Poisson whose rate is gamma: mean μ and variance μ + αμ².
        return rng.poisson(
            rng.gamma(1 / target.dispersion, target.dispersion * mean)
        ).astype(np.float64)
    raise UnsupportedCombination(
        f"synthetic tables: labels of {type(target).__name__} are not made; use its own model"
    )
