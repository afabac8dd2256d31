"""The prior, and the posterior that follows under it.

``prior_scale: evidence`` takes the prior of all coefficients but the intercept, and but those with a prior of their
own, for N(0, (f·scale)²) with an unknown factor f, log-normal about 1 with a standard deviation of _LOG_SCALE_STD of
its logarithm. The released u = Hθ̄ − ḡ has the law N(H m₀, 𝒞 + H P(f)⁻¹ H) given f, and the posterior is the mixture
over candidates of f, by these densities.

Draws of a release are of the mixture, and so are the intervals that it reports. Its evidence
(``inference/evidence.py``) is one normal law that stands in for the mixture in checks and Bayes factors: that of the
likeliest factor, with what not knowing H adds to its width. A chain's end reports that law itself.

Two priors have such a factor: one of effects that are alike over the declared ranges of their columns, and one of
effects that are alike per standard deviation of them (``metric.spreads``). A column that fills a twentieth of its
range needs a coefficient many times as large for the same effect on a record. Both are as likely before the release.

One fact of the predictors η = x·θ is public: those of real labels within ±B have a mean square of at most B² over the
rows, if θ fits best, and logits and logarithms of means are seldom beyond six. So under ``evidence`` a prior N(0, D)
has the density N(θ; 0, D)·exp(−½‖Rθ‖²), ‖Rθ‖² being that mean square over its bound's square, by the released second
moment. It says as much as one record does. Where noise hides the records it keeps predictions in their range.

Where H is released, it may be any of the matrices that its release leaves possible (``inference/corrected_matrix.py``),
and the posterior is the mixture over these too: each has a posterior of its own, without an error of H. Where rows
alone tell H, 𝒞 has the error of H times the distance of θ* from θ̄, which depends on f. So each f has the 𝒞 that is
right if it is true. One of the widest f for all of them would have directions that the releases say nothing of so
uncertain that it hid every other.

Effects that differ by group have a normal prior with an unknown standard deviation in the same way, one for each of
``group_effects``: a hierarchical model, whose only hyperparameters are these, so that the mixture is exact.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.inference import normal_law
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.evidence import Evidence, prior_covariance
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local
from dpmcmc.mechanisms.noise_aware.options import Normal, Options
from dpmcmc.privacy.query.gaussian_release import standard_normal
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.linear import LinearRegression

#: How often the law of the last release is taken where the posterior is, and iterations of a covariance under one law.
#: Both are fixed points; more of them move a mean by less than a thousandth of its standard deviation.
_LAWS, _INNER_ROUNDS = 3, 4
#: Farthest position, in prior standard deviations times √d.
_RADIUS_IN_STD = 30.0
#: Candidates for the factor, in ascending order, and the standard deviation of its logarithm under its hyperprior.
FACTORS, _LOG_SCALE_STD = 2.0 ** np.arange(-4, 7.25, 0.5), 1.5
#: Logit, or logarithm of a mean, beyond which there are hardly any: the largest root mean square of predictors, and the
#: least standard deviation of what an intercept adds to them under ``evidence``. For real labels both are B.
_LARGEST_PREDICTOR = 6.0
#: More coefficients than this have no factor chosen while gradients are released, and every second candidate with one
#: iteration of its 𝒞 afterwards: inverses take long.
_MANY_COEFFICIENTS = 200
#: Least weight of a candidate, over the largest, that is kept.
_LEAST_WEIGHT = 1e-4
#: Standard deviation of a group's effect in units of the target's prior_scale, and candidates for its factor.
_GROUP_STD, _GROUP_FACTORS = 0.5, 2.0 ** np.arange(-5, 3.25, 0.5)


class Factors(NamedTuple):
    """Candidate for what scales are multiplied by.

    Attributes:
        common: f.
        per_deviation: whether effects are alike per standard deviation of the columns, and not over their ranges.
        groups: factors of group effects.
    """

    common: float
    per_deviation: bool = False
    groups: tuple[float, ...] = ()


class Mixture(NamedTuple):
    """A mixture of normal laws.

    Attributes:
        weights: (k,).
        parts: (k,).
    """

    weights: np.ndarray
    parts: tuple[Gaussian, ...]

    @property
    def whole(self) -> Gaussian:
        """The normal law with its mean and covariance."""
        means = np.array([part.mean for part in self.parts])
        mean = self.weights @ means
        spread = sum(
            weight * (part.covariance + np.outer(part.mean - mean, part.mean - mean))
            for weight, part in zip(self.weights, self.parts, strict=True)
        )
        return Gaussian(mean, np.asarray(spread))

    def draws(self, noise: np.ndarray) -> np.ndarray:
        """Return shuffled draws (count, d) made of standard normals (count, d); parts have their shares of them."""
        count = len(noise)
        ends = np.floor(np.cumsum(self.weights) * count + 0.5).astype(int)
        ends[-1] = count
        out = np.empty_like(noise)
        start = 0
        for end, part in zip(ends, self.parts, strict=True):
            out[start:end] = part.draws(noise[start:end])
            start = end
        # Public: which draw is of which part says nothing, but halves of the draws must be alike.
        return out[np.random.default_rng(0).permutation(count)]


class Concluded(NamedTuple):
    """A posterior of the coefficients, and the law of the release that it was concluded from."""

    mixture: Mixture
    evidence: Evidence

    @property
    def posterior(self) -> Gaussian:
        """Mean and covariance."""
        return self.mixture.whole

    def draws(self, count: int, streams: Streams) -> np.ndarray:
        """Return draws from the posterior, (count, d)."""
        size = len(self.mixture.parts[0].mean)
        return self.mixture.draws(standard_normal(streams.dynamics, (count, size)))


@dataclass(frozen=True)
class Prior:
    """N(means, diag(scales²)), or one whose free scales have a common factor that released numbers tell.

    Attributes:
        means: (d,); those of K predictors one row after the other, (d·K,).
        scales: standard deviations, (d,).
        family: of each scale, (d,): 0 where it has the common factor, g where it is that of group effect g, and -1
            where it has no factor.
        spreads: by how much wider scales with the common factor are where effects are alike per standard deviation of
            the columns, (d,); None: not known.
        largest: root mean square of predictors over rows beyond which there are hardly any; None: no bound.
        predictors: R, (d, d): ‖Rθ‖² is the mean square of predictors over rows, in units of the largest; None: no
            second moment is known, or no bound.
    """

    means: np.ndarray
    scales: np.ndarray
    family: np.ndarray
    spreads: np.ndarray | None = None
    largest: float | None = None
    predictors: np.ndarray | None = None

    @property
    def free(self) -> np.ndarray:
        """Whether each scale has a factor, (d,)."""
        return self.family >= 0

    @classmethod
    def of(cls, options: Options, target: GeneralisedLinear, predictors: int = 1) -> Prior:
        """Return the prior of a regression with K predictors, with a scale of its own for the declared intercept.

        Raises:
            ValueError: num_features is not known, or ``coefficients`` has another length.
        """
        if target.num_features is None:
            raise InputError(
                f"num_features: {type(target).__name__} needs it before a plan; give it",
                "num_features",
            )
        size = target.num_features
        by_evidence = options.prior_scale == "evidence"
        largest = _largest_predictor(target) if by_evidence else None
        means = np.zeros((size, predictors))
        scales = np.full((size, predictors), target.prior_scale)
        family = np.full((size, predictors), 0 if by_evidence else -1)
        constant = None if options.structure is None else options.structure.constant
        if constant is not None:
            if options.intercept_scale is not None:
                scales[constant] = options.intercept_scale
            elif largest is not None:
                scales[constant] = max(target.prior_scale, largest * math.sqrt(size))
            family[constant] = -1
        for number, columns in enumerate(options.group_effects, start=1):
            scales[list(columns)] = _GROUP_STD * target.prior_scale
            family[list(columns)] = number
        for column, own in _own_priors(options, size):
            means[column], scales[column] = own
            family[column] = -1
        return cls(means.ravel(), scales.ravel(), family.ravel(), largest=largest)

    @property
    def size(self) -> int:
        """Number of coefficients, d·K."""
        return len(self.scales)

    @property
    def radius(self) -> float:
        """How far from 0 a public position may lie."""
        far = _RADIUS_IN_STD * float(np.max(self.scales)) * math.sqrt(self.size)
        return far + float(np.linalg.norm(self.means))

    def with_spreads(self, spreads: np.ndarray | None) -> Prior:
        """Return the prior that also knows how much of their ranges columns fill, (d / K,) for K predictors."""
        if spreads is None:
            return self
        each = np.repeat(spreads, self.size // len(spreads))
        return dataclasses.replace(self, spreads=each)

    def with_rows(self, moment: np.ndarray, row_bound: float) -> Prior:
        """Return the prior that also knows the estimated second moment of rows ‖x‖ <= b, (d / K, d / K)."""
        if self.largest is None:
            return self
        values, vectors = eigh(moment)
        values = np.maximum(values, 0.0)
        # Noise may make the estimate larger than any rows can be.
        values *= min(1.0, row_bound**2 / max(float(np.sum(values)), 1e-300)) / self.largest**2
        root = (vectors * np.sqrt(values)) @ vectors.T
        each = np.kron(root, np.eye(self.size // len(root)))
        return dataclasses.replace(self, predictors=each)

    def with_factors(self, factors: Factors) -> Prior:
        """Return the prior whose scales are multiplied by the factors of their families."""
        each = np.array((factors.common, *factors.groups, 1.0))[self.family]
        if factors.per_deviation and self.spreads is not None:
            each = np.where(self.family == 0, each * self.spreads, each)
        none = np.full_like(self.family, -1)
        return Prior(self.means, each * self.scales, none, predictors=self.predictors)

    @property
    def precision(self) -> np.ndarray:
        """P, (d, d)."""
        own = np.diag(self.scales**-2)
        return own if self.predictors is None else own + self.predictors.T @ self.predictors

    @property
    def gaussian(self) -> Gaussian:
        """The prior itself."""
        return Gaussian(self.means, prior_covariance(self.scales, self.predictors))

    # The mixture over factors.

    @functools.cached_property
    def _common(self) -> list[Factors]:
        """Candidates for the common factor, from the one under which all effects together are as large as one.

        With few coefficients a narrower prior would stand for much that is not known. Factors of groups are 1 here.
        """
        count = int(np.sum(self.family == 0))
        every = FACTORS[:: 2 if self.size > _MANY_COEFFICIENTS else 1]
        kept = every[every**2 * count >= 0.99] if count else np.ones(1)
        kinds = (False,) if self.spreads is None or not count else (False, True)
        groups = (1.0,) * int(np.max(self.family, initial=0))
        return [Factors(float(factor), kind, groups) for kind in kinds for factor in kept]

    @functools.cached_property
    def _candidates(self) -> list[Factors]:
        """All candidates for the factors: those of the common one, under each of the groups' in turn."""
        of_groups = itertools.product(map(float, _GROUP_FACTORS), repeat=len(self._common[0].groups))
        return [one._replace(groups=groups) for groups in of_groups for one in self._common]

    def _log_densities(self, release: GradientRelease, local: Local, covariances: np.ndarray) -> np.ndarray:
        """Return the logarithms of the candidates' posterior densities up to a constant, (candidates,).

        With the prior density N(m₀, D²)·exp(−½‖R(θ − m₀)‖²), D = diag(scales), and 𝒞 = LLᵀ the release u has

            log p = −½ min_z (‖w − ADz‖² + ‖RDz‖² + ‖z‖²) − ½ log|I + D(AᵀA + RᵀR)D| − log|L|,

        A = L⁻¹H and w = L⁻¹(u − Hm₀); θ = m₀ + Dz is the posterior's mean.

        Args:
            release: of the gradient.
            local: model of the gradient.
            covariances: 𝒞 under each common factor, (k, d, d), or one of all, (1, d, d).
        """
        h = local.curvature
        bound = np.zeros_like(h) if self.predictors is None else self.predictors
        statistic = h @ (release.position - self.means) - release.gradient
        roots = np.linalg.cholesky(covariances)
        white = np.linalg.solve(roots, np.column_stack([h, statistic]))
        a, w = white[..., :-1], white[..., -1:]
        information = a.swapaxes(-1, -2) @ a + bound.T @ bound
        towards = a.swapaxes(-1, -2) @ w
        scales = np.stack([self.with_factors(one).scales for one in self._candidates])
        logs = []
        for each in scales.reshape(-1, len(self._common), self.size, 1):
            inside = np.eye(self.size) + each * information * each.swapaxes(-1, -2)
            z = np.linalg.solve(inside, each * towards)
            misfit = sum(np.sum(part**2, axis=(1, 2)) for part in (w - a @ (each * z), bound @ (each * z), z))
            logs.append(-0.5 * (misfit + np.linalg.slogdet(inside)[1] + np.linalg.slogdet(covariances)[1]))
        log_factors = np.log([(one.common, *one.groups) for one in self._candidates])
        return np.concatenate(logs) - 0.5 * np.sum((log_factors / _LOG_SCALE_STD) ** 2, axis=1)

    def best(self, release: GradientRelease, local: Local, now: Gaussian) -> Prior:
        """Return the prior with the factor that a release favours, for the next position."""
        if not self.free.any() or self.size > _MANY_COEFFICIENTS:
            return self
        covariance = normal_law.total_covariance(release, local, now)
        logs = self._log_densities(release, local, covariance[None])
        return self.with_factors(self._candidates[int(np.argmax(logs))])

    def concluded(
        self,
        law: normal_law.Releases,
        at: Gaussian,
        num_records: int,
    ) -> Concluded:
        """Return what follows from the last release.

        Args:
            law: posterior -> (the gradient's release, the model of it about the posterior's mean).
            at: first guess of the posterior.
            num_records: N.
        """
        release, local = law(at)
        found = self._mixed(release, local, at._replace(mean=release.position), num_records)
        for _ in range(1 if self.size > _MANY_COEFFICIENTS else _LAWS):
            at = found.posterior
            found = self._mixed(*law(at), at, num_records)
        return found

    def _mixed(self, release: GradientRelease, local: Local, at: Gaussian, num_records: int) -> Concluded:
        """Return the mixture over the curvatures that H may be, and over factors under each of them.

        The curvatures have equal weights. A density of u would favour the smallest: it takes θ̄ for a point that does
        not depend on θ*, and gradients led there.

        Args:
            release: of the gradient.
            local: model of the gradient.
            at: guess of the posterior, from whose mean θ̄ is so far away.
            num_records: N.
        """
        if local.curvatures is None:
            curvatures = local.curvature[None]
            covariances = self._own_covariances(release, local, at)
        else:
            curvatures = local.curvatures
            covariances = (local.spread + release.noise)[None]
        models = [local._replace(curvature=h) for h in curvatures]
        logs = np.stack([self._log_densities(release, one, covariances) for one in models])
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        if len(models) > 1:
            weights /= weights.sum(axis=1, keepdims=True)
        weights[weights <= _LEAST_WEIGHT] = 0.0

        kept = np.nonzero(weights)
        parts = []
        for number, k in zip(*kept, strict=True):
            prior = self.with_factors(self._candidates[k])
            covariance = covariances[k % len(covariances)]
            parts.append(prior._evidence(release, models[number], covariance, num_records).gaussian(prior.scales))
        k = int(np.argmax(weights.sum(axis=0)))
        likeliest = self.with_factors(self._candidates[k])
        covariance = covariances[k % len(covariances)]
        if local.curvatures is not None:
            # The posterior under each of them is taken about the prior's mean.
            about = release._replace(position=release.position - self.means)
            covariance = covariance + normal_law.error_of_curvatures(about, local, curvatures, likeliest.precision)
        evidence = likeliest._evidence(release, local, covariance, num_records)
        chosen = dataclasses.replace(evidence, chosen=bool(self.free.any()))
        return Concluded(Mixture(weights[kept] / weights.sum(), tuple(parts)), chosen)

    def _own_covariances(self, release: GradientRelease, local: Local, at: Gaussian) -> np.ndarray:
        """Return the 𝒞 that is right under each common factor, (k, d, d), where the posterior has this mean."""
        away = at
        found = []
        for common in self._common:
            prior = self.with_factors(common)
            for _ in range(1 if self.size > _MANY_COEFFICIENTS else _INNER_ROUNDS):
                covariance = normal_law.total_covariance(release, local, away)
                _, spread = normal_law.conjugate_update(local.curvature, covariance, prior.precision)
                away = away._replace(covariance=spread)
            found.append(normal_law.total_covariance(release, local, away))
        return np.stack(found)

    def _evidence(
        self,
        release: GradientRelease,
        local: Local,
        covariance: np.ndarray,
        num_records: int,
    ) -> Evidence:
        """Return the law of a release under these scales."""
        statistic = local.curvature @ release.position - release.gradient
        return Evidence(
            local.curvature,
            statistic,
            covariance,
            self.scales,
            num_records,
            means=self.means,
            predictors=self.predictors,
        )


def _largest_predictor(target: GeneralisedLinear) -> float:
    """Return B, beyond which predictors of rows hardly lie."""
    bound = target.label_bound if isinstance(target, LinearRegression) else None
    return bound or _LARGEST_PREDICTOR


def _own_priors(options: Options, size: int) -> list[tuple[int, Normal]]:
    """Return the columns of ``coefficients`` that have a prior of their own, and these priors."""
    given = options.coefficients
    if given is None:
        return []
    if len(given) != size:
        raise InputError(
            f"coefficients: {len(given)} priors, and rows have {size} columns; give one, or None, for each",
            "coefficients",
        )
    return [(column, own) for column, own in enumerate(given) if own is not None]
