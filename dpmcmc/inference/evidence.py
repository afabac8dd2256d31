"""Law of a noise-aware release, with checks and comparisons of models that follow from it.

    u = Hθ* + e,     e ~ N(0, 𝒞),     θ* ~ N(m₀, P⁻¹),     P = diag(scales⁻²) + RᵀR                              (1)

u = Hθ̄ − ḡ is made of the last release, and 𝒞 is the variance of score, privacy's noise and the error of Ĥ together
(``normal_law.py``), at the posterior that was concluded. Everything here is a function of released numbers, so it
costs no privacy, however often it is called. No function here compares with records of the run.

m₀ is 0, and so is R, unless the prior says more (``mechanisms/noise_aware/prior.py``).

**Check of the prior.** Under (1) u ~ N(Hm₀, 𝒞 + HP⁻¹H), so its squared whitened norm is χ² with d degrees of freedom. A
small p-value means that the release contradicts model and prior.

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
adds almost nothing: an unclipped score of a generalised linear model with its own link, Σ (μ(x·θ) − y) x, depends on
labels through Xᵀy alone, wherever it is taken. Whether a further term (a square, an interaction) is needed is a
comparison: give its column to the model, and ask for the Bayes factor without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
from scipy.linalg import solve_triangular

from dpmcmc.data.structure import RowStructure, contrasts
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import normal_law, saved_arrays
from dpmcmc.inference.normal_law import PULLED, RARE, Gaussian, chi_square_tail, moved_by_prior, pull
from dpmcmc.inference.path_posterior import PathPosterior
from dpmcmc.inference.predicted_width import elasticity, variances
from dpmcmc.privacy.query.gram_release import NoisyGram, svec
from dpmcmc.storage.blas import on_one_blas_thread

#: Coefficients, by number or by name.
Without = str | Sequence[int | str]
#: Share of the prior's variance that a release must remove.
LEAST_LEARNED = 0.1
#: Part of what is known of a coefficient beyond which it is the prior's, and part of the coefficients of which too
#: little may be said. On public tables the prior's covered .3 to 1, by how they lie to the others that the prior was
#: chosen by.
OF_PRIOR, MOST_LEFT = 1 / 2, 1 / 2
#: By how much the interval of a coefficient may grow under the curvature that the releases confirm; standard deviations
#: by which a prior twice as wide may move it. On public tables coefficients beyond these covered 0 to .7.
MOST_GROWTH, MOST_PULL = 1.5, 0.5
#: Name of the file in a run folder.
FILE = "evidence.npz"


class IntervalUse(NamedTuple):
    """Whether an interval may be reported, and why not.

    Attributes:
        use: ``yes``; ``prior``: it is mostly the prior's; ``no``.
        why: not ``yes``.
    """

    use: Literal["yes", "prior", "no"]
    why: str = ""


CALLED = IntervalUse("yes")
OF_NOISE = IntervalUse("no", "it would be far wider were the curvature what the releases confirm")
OF_RARE_LEVEL = IntervalUse("no", "its level has hardly any record with some label")
OF_THE_PRIOR = IntervalUse("prior", "the prior says more of it than the records")
PULLED_BY_PRIOR = IntervalUse("prior", "a prior twice as wide would move it")
#: An interval of a release whose verdict refuses all.
REFUSED_WITH_ALL = IntervalUse("no", "the verdict on the whole release")


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
        means: of the prior, (d,); None: 0.
        doubts: why intervals may not hold, clauses that the release itself gave.
        chosen: whether the scales were chosen from the release.
        supposed: whether intervals are claimed only if the model and its prior are true.
        label_scale: standard deviation of residuals, or dispersion of counts, which the release tells; or None.
        predictors: R, (d, d), what is public of predictors; None: 0.
        least: what of H the releases confirm, (d, d): one standard deviation of their noise below it; None: not known.
        rare: whether a coefficient is of a level where some label is too rare, (d,) bool; None: of none.

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
    means: np.ndarray | None = None
    doubts: tuple[str, ...] = ()
    chosen: bool = False
    supposed: bool = False
    label_scale: float | None = None
    predictors: np.ndarray | None = None
    least: np.ndarray | None = None
    rare: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"Evidence(of {len(self.scales)} coefficients)"

    @on_one_blas_thread
    def posterior(self, *, without: Without = (), scales: np.ndarray | None = None) -> PathPosterior:
        """Return the posterior; of a nested model or under another prior with ``without`` or ``scales``.

        Args:
            without: coefficients that are 0, by number or by name; they have variance 0 in what is returned. A column
                of the table stands for every coefficient that it takes part in, such as those of all its levels; an
                interaction, ``age:job``, stands for its own.
            scales: standard deviations of the prior, (d,); None: the plan's.
        """
        nested = self._under(without, scales)
        prior = nested._prior
        gain = np.linalg.solve(nested._marginal, self.curvature @ prior).T
        covariance = prior - gain @ self.curvature @ prior
        return PathPosterior(nested._prior_mean + gain @ nested._away, (covariance + covariance.T) / 2)

    @on_one_blas_thread
    def gaussian(self, scales: np.ndarray) -> Gaussian:
        """Return the posterior under other scales, (d,)."""
        found = self.posterior(scales=scales)
        return Gaussian(found.mean, found.covariance)

    @on_one_blas_thread
    def log_density(self, *, without: Without = (), scales: np.ndarray | None = None) -> float:
        """Return log N(u; Hm₀, 𝒞 + HP⁻¹H), arguments as of :meth:`posterior`."""
        nested = self._under(without, scales)
        root = _root(nested.scales, self.predictors)
        return normal_law.log_density(nested._away, self.covariance, self.curvature @ root)

    @on_one_blas_thread
    def log_bayes_factor(self, without: Without) -> float:
        """Return log p(u | those coefficients are 0) − log p(u | the whole model).

        A value above 0 favours the model without them. Under a true nested model the factor against it is beyond c with
        a probability of at most 1/c. ``without`` is as of :meth:`posterior`.
        """
        return self.log_density(without=without) - self.log_density()

    @on_one_blas_thread
    def prior_check(self) -> float:
        """Return the p-value of u under model and prior; uniform if both are true.

        Under ``prior_scale: evidence`` the scales were chosen from u, and the p-value is too large.
        """
        square = float(self._away @ np.linalg.solve(self._marginal, self._away))
        return chi_square_tail(square, len(self._away))

    @on_one_blas_thread
    def rows_check(self) -> float:
        """Return the p-value of the released Gram matrix under what is declared of the rows.

        Raises:
            UnsupportedCombination: no Gram matrix was released, or nothing is declared that it could contradict.
        """
        noisy, structure = self.gram, self.structure or RowStructure()
        known_trace = structure.unit_norm and noisy is not None and not noisy.trace_std
        if noisy is None or not (structure.blocks or known_trace):
            raise UnsupportedCombination(
                "rows_check: nothing is declared of the rows that a released Gram matrix could contradict; declare "
                "one-hot blocks or rows of norm 1 (RowStructure)."
            )
        zeros, equations = _equations(structure, len(noisy.gram))
        values = np.zeros(len(equations) + known_trace)
        if known_trace:
            equations.append(np.eye(len(zeros)))
            values[-1] = self.num_records
        # Entries that are declared zero are equations of one number each, and leave the others' numbers.
        zero = svec(zeros) > 0
        released = svec(noisy.gram)
        left = np.stack([svec(matrix) for matrix in equations])
        left[:, zero] = 0.0
        apart = left @ released - values
        square = float(apart @ np.linalg.solve(left @ left.T, apart)) + float(np.sum(released[zero] ** 2))
        return chi_square_tail(square / noisy.noise_std**2, len(equations) + int(zero.sum()))

    @property
    @on_one_blas_thread
    def objections(self) -> tuple[str, ...]:
        """Why intervals of this release may not hold, clauses with what would mend it; empty where nothing speaks so.

        They are what was seen while it was released, and checks that are wrong for one right model in a thousand.
        """
        out = list(self.doubts)
        # A prior that the release contradicts does harm where it draws coefficients to itself.
        if not self.chosen and self.prior_check() < RARE and pull(self.gaussian(self.scales), self._moved()) > PULLED:
            out.append(
                f"the release contradicts the prior (p {self.prior_check():.1g}), which draws coefficients to itself; "
                "take prior_scale evidence or a wider prior"
            )
        try:
            rows = self.rows_check()
        except UnsupportedCombination:
            rows = 1.0
        if rows < RARE:
            out.append(f"rows are not as they are declared (p {rows:.1g}); declare no structure that they do not have")
        left_of_prior = np.diag(self.posterior().covariance) / np.diag(self._prior)
        if float(np.mean(left_of_prior)) > 1 - LEAST_LEARNED:
            out.append(
                f"the release lowers the variance of the prior by less than {LEAST_LEARNED:.0%}, so that intervals "
                "are the prior's; take a larger epsilon, more records or fewer columns"
            )
        elif (left := self._left()) > MOST_LEFT:
            out.append(
                f"the releases say too little of {left:.0%} of the coefficients; take a larger epsilon, more records, "
                "fewer columns or ranges that the rows fill"
            )
        return tuple(out)

    def _left(self) -> float:
        """Return the share of coefficients of which the releases say too little for the whole to be reported.

        A prior that is supposed to be true speaks for what is mostly its own, and for levels with hardly any record.
        """
        found = self.uses(self._coefficients())
        return float(np.mean([use is OF_NOISE or (use is not CALLED and not self.supposed) for use in found]))

    @on_one_blas_thread
    def uses(self, directions: np.ndarray) -> tuple[IntervalUse, ...]:
        """Return for what the interval of each of m sums of coefficients is, and why not where it is for nothing.

        Args:
            directions: weights of the coefficients in each sum, (m, d).
        """
        # A level that others are compared with has no weights, and nothing can be wrong with it.
        some = np.any(directions != 0, axis=1)
        weights = directions[some]
        covariance = widened = self.posterior().covariance
        if self.least is not None:
            widened = dataclasses.replace(self, curvature=self.least).posterior().covariance
        std, widest = (np.sqrt(variances(one, weights)) for one in (covariance, widened))
        rare = np.zeros(len(self.scales), bool) if self.rare is None else self.rare
        precision = np.linalg.inv(self._prior)
        judged = (
            (OF_NOISE, widest > MOST_GROWTH * std),
            (OF_RARE_LEVEL, np.any(weights[:, rare] != 0, axis=1)),
            (OF_THE_PRIOR, elasticity(widened, precision, weights) > OF_PRIOR),
            (PULLED_BY_PRIOR, np.abs(weights @ self._moved()) > MOST_PULL * std),
        )
        found = iter([next((use for use, holds in judged if holds[k]), CALLED) for k in range(len(weights))])
        return tuple(next(found) if one else CALLED for one in some)

    def _coefficients(self) -> np.ndarray:
        """Return the sums of coefficients that rows identify, one for each of them, (m, d)."""
        size = len(self.scales) if self.gram is None else len(self.gram.gram)
        each = len(self.scales) // size
        identified = contrasts(self.structure, size)
        if each > 1:  # records tell contrasts of K predictors alone
            identified = np.kron(identified, (np.eye(each) - 1 / each)[:-1])
        return identified

    def _moved(self) -> np.ndarray:
        """Return how far a prior twice as wide moves the mean, (d,)."""
        return moved_by_prior(self.gaussian(self.scales), np.diag(self.scales**-2.0), self._prior_mean)

    @property
    def _prior(self) -> np.ndarray:
        """The prior's covariance, (d, d)."""
        return prior_covariance(self.scales, self.predictors)

    @property
    def _prior_mean(self) -> np.ndarray:
        """The prior's mean, (d,)."""
        return np.zeros(len(self.scales)) if self.means is None else self.means

    @property
    def _away(self) -> np.ndarray:
        """u less its mean under model and prior, (d,)."""
        return self.statistic - self.curvature @ self._prior_mean

    @property
    def _marginal(self) -> np.ndarray:
        """Covariance of u under model and prior, (d, d)."""
        return self.covariance + self.curvature @ self._prior @ self.curvature

    def _under(self, without: Without, scales: np.ndarray | None) -> Self:
        """Return the law under other scales, (d,), and with some coefficients at 0; see :meth:`posterior`."""
        own = np.array(self.scales if scales is None else scales, np.float64)
        if own.shape != self.scales.shape or not np.all(own > 0):
            raise InputError(f"scales: must be {len(self.scales)} numbers > 0", "scales")
        columns = self._numbers(without)
        if columns.size and not (columns.min() >= 0 and columns.max() < len(own)):
            raise InputError(
                f"without: must number coefficients 0 to {len(own) - 1}, got {list(without)}",
                "without",
            )
        means = self._prior_mean.copy()
        own[columns] = means[columns] = 0.0
        return dataclasses.replace(self, scales=own, means=means)

    def _numbers(self, without: Without) -> np.ndarray:
        """Return the indices of coefficients that are given by number or by name."""
        out: list[int] = []
        for one in [without] if isinstance(without, str) else without:
            found = [k for k, names in enumerate(self.names) if one in names] if isinstance(one, str) else [int(one)]
            if not found:
                known = dict.fromkeys(name for names in self.names for name in names)
                there = f"names are {', '.join(known)}" if known else "none has a name here; give numbers"
                raise InputError(f"without: no coefficient is called {one!r}; {there}", "without")
            out += found
        return np.array(out, int)

    def content(self) -> bytes:
        """Return the file of a run folder."""
        gram = None if self.gram is None else self.gram._asdict()
        structure = None if self.structure is None else self.structure.to_json()
        return saved_arrays.packed({**vars(self), "gram": gram, "structure": structure})

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return what :meth:`content` holds."""
        facts = saved_arrays.unpacked(content)
        gram = None if facts["gram"] is None else NoisyGram(**facts["gram"])
        structure = None if facts["structure"] is None else RowStructure.of_json(facts["structure"])
        names = tuple(map(tuple, facts["names"]))
        more = {"names": names, "doubts": tuple(facts["doubts"])}
        return cls(**{**facts, "gram": gram, "structure": structure, **more})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the evidence of a run folder.

        Raises:
            ValueError: there is none, or it is of another version.
        """
        return saved_arrays.loaded(Path(folder) / FILE, cls.of, "a run of mechanism noise_aware has it")


def prior_covariance(scales: np.ndarray, predictors: np.ndarray | None) -> np.ndarray:
    """Return (diag(scales⁻²) + RᵀR)⁻¹, (d, d), given R, (d, d); None is 0. A scale may be 0."""
    root = _root(scales, predictors)
    return root @ root.T


def _root(scales: np.ndarray, predictors: np.ndarray | None) -> np.ndarray:
    """Return a root of :func:`prior_covariance`: diag(scales) L⁻ᵀ, with L Lᵀ = I + diag(scales) RᵀR diag(scales)."""
    if predictors is None:
        return np.diag(scales)
    inside = predictors * scales
    lower = np.linalg.cholesky(np.eye(len(scales)) + inside.T @ inside)
    return solve_triangular(lower, np.diag(scales), lower=True).T


def _equations(structure: RowStructure, size: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return (1 where an entry of every Gram matrix of such rows is zero, symmetric matrices A with Σ A·G = 0).

    Both kinds of equations together are independent. The second says G v = 0 of each block.
    """
    unit = np.eye(size)
    zeros = np.zeros((size, size))
    products: list[np.ndarray] = []
    stated: list[int] = []
    for block in structure.blocks:
        zeros[np.ix_(block, block)] = 1.0 - np.eye(len(block))
        against = unit[list(block)].sum(0) - unit[structure.constant or 0]
        # (G v)·v' = (G v')·v for two blocks is stated once.
        products += [np.outer(unit[column], against) for column in range(size) if column not in stated]
        stated.append(block[0])
    return zeros, [(product + product.T) / 2 for product in products]
