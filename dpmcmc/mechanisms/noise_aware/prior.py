"""The prior, and the posterior that follows under it.

``prior_scale: evidence`` takes the prior of all coefficients but the intercept, and but those with a prior of their
own, for N(0, (f·scale)²) with an unknown factor f, log-normal about 1 with a standard deviation of _LOG_SCALE_STD of
its logarithm. The released u = Hθ̄ − ḡ has the law N(H m₀, 𝒞 + H P(f)⁻¹ H) given f, and the posterior is the mixture
over candidates of f, by these densities.

Two priors have such a factor: one of effects that are alike over the declared ranges of their columns, and one of
effects that are alike per standard deviation of them (``metric.spreads``). A column that fills a twentieth of its
range needs a coefficient many times as large for the same effect on a record. Both are as likely before the release.

One fact of the predictors η = x·θ is public: those of real labels within ±B have a mean square of at most B² over the
rows, if θ fits best, and logits and logarithms of means are seldom beyond six. So under ``evidence`` a prior N(0, D)
has the density N(θ; 0, D)·exp(−½‖Rθ‖²), ‖Rθ‖² being that mean square over its bound's square, by the released second
moment. It says as much as one record does. Where noise hides the records it keeps predictions in their range.

Where H is released, it may be any of the matrices that its release leaves possible (``inference/curvature.py``), and
the posterior is the mixture over these too: each has a posterior of its own, without an error of H. Where rows alone
tell H, 𝒞 has the error of H times the distance of θ* from θ̄, which depends on f. So each f has the 𝒞 that is right if
it is true. One of the widest f for all of them would have directions that the releases say nothing of so uncertain
that it hid every other.

Effects that differ by group have a normal prior with an unknown standard deviation in the same way, one for each of
``group_effects``: a hierarchical model, whose only hyperparameters are these, so that the mixture is exact.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from dpmcmc.errors import InputError
from dpmcmc.inference import normal_law
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.evidence import Evidence, prior_covariance
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local, Whitening
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.privacy.query.gaussian_release import standard_normal
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.linear import LinearRegression

#: Iterations of the posterior given the last release, and those of them under one law of it.
_ROUNDS, _INNER_ROUNDS = 12, 4
#: Farthest position, in prior standard deviations times √d.
_RADIUS_IN_STD = 30.0
#: Candidates for the factor, in ascending order, and the standard deviation of its logarithm under its hyperprior.
FACTORS, _LOG_SCALE_STD = 2.0 ** np.arange(-4, 7.25, 0.5), 1.5
#: Logit, or logarithm of a mean, beyond which there are hardly any. It is the standard deviation of an intercept under
#: ``evidence``, before rows are scaled, and the largest root mean square of predictors. For real labels both are B.
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


#: H, u and 𝒞 of what a release and the bound of predictors say, and a constant of its negative log density.
_Likelihood = tuple[np.ndarray, np.ndarray, np.ndarray, float]


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
        means = np.zeros((size, predictors))
        scales = np.full((size, predictors), target.prior_scale)
        family = np.full((size, predictors), 0 if by_evidence else -1)
        wide = _LARGEST_PREDICTOR
        if isinstance(target, LinearRegression) and target.label_bound:
            wide = target.label_bound
        constant = None if options.structure is None else options.structure.constant
        if constant is not None:
            if options.intercept_scale is not None:
                scales[constant] = options.intercept_scale
            elif by_evidence:
                scales[constant] = max(target.prior_scale, wide * math.sqrt(size))
            family[constant] = -1
        for number, columns in enumerate(options.group_effects, start=1):
            scales[list(columns)] = _GROUP_STD * target.prior_scale
            family[list(columns)] = number
        given = options.coefficients
        if given is not None and len(given) != size:
            raise InputError(
                f"coefficients: {len(given)} priors, and rows have {size} columns; give one, or None, for each",
                "coefficients",
            )
        for column, one in enumerate(given or ()):
            if one is not None:
                means[column], scales[column] = one
                family[column] = -1
        largest = wide if by_evidence else None
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

    def best(self, release: GradientRelease, local: Local, now: Gaussian) -> Prior:
        """Return the prior with the factor that a release favours, for the next position."""
        if not self.free.any() or self.size > _MANY_COEFFICIENTS:
            return self
        covariance = normal_law.total_covariance(release, local, now)
        weighed = self._weighed(release, local, covariance, self._common)
        return self.with_factors(max(weighed, key=lambda one: one[1])[0])

    @property
    def _common(self) -> list[Factors]:
        """Candidates for the common factor, from the one under which all effects together are as large as one.

        With few coefficients a narrower prior would stand for much that is not known.
        """
        count = int(np.sum(self.family == 0))
        every = FACTORS[:: 2 if self.size > _MANY_COEFFICIENTS else 1]
        kept = every[every**2 * count >= 0.99] if count else np.ones(1)
        kinds = (False,) if self.spreads is None or not count else (False, True)
        return [Factors(float(factor), kind) for kind in kinds for factor in kept]

    def _weighed(
        self,
        release: GradientRelease,
        local: Local,
        covariance: np.ndarray,
        common: Sequence[Factors],
    ) -> list[tuple[Factors, float]]:
        """Return candidates for the factors, and their log densities up to a constant, given 𝒞 and the common ones."""
        statistic = local.curvature @ (release.position - self.means) - release.gradient
        h, u, seen, rest = self._likelihood(local.curvature, statistic, covariance)
        has_common = self.family == 0
        found = []
        for of_groups in itertools.product(map(float, _GROUP_FACTORS), repeat=self._groups):
            for per_deviation, alike in itertools.groupby(common, key=lambda one: one.per_deviation):
                scales = self.with_factors(Factors(1.0, per_deviation, of_groups)).scales
                whitened = Whitening.of(seen, h * np.where(has_common, 0.0, scales))
                # Under a factor f the whitened u has the covariance I + f² A Aᵀ.
                part = whitened(h * np.where(has_common, scales, 0.0))
                values, vectors = eigh(part @ part.T)
                white = vectors.T @ whitened(u)
                size = whitened.log_size + rest
                for factor, _, _ in alike:
                    spread = 1 + factor**2 * np.maximum(values, 0.0)
                    misfit = -0.5 * float(np.sum(np.log(spread) + white**2 / spread))
                    hyper = math.log(factor) ** 2 + float(np.sum(np.log(of_groups) ** 2))
                    log = misfit - size - 0.5 * hyper / _LOG_SCALE_STD**2
                    found.append((Factors(factor, per_deviation, of_groups), log))
        return found

    def _likelihood(self, h: np.ndarray, u: np.ndarray, covariance: np.ndarray) -> _Likelihood:
        """Return H, u and 𝒞 of a release that says of θ what u = Hθ + e and the bound of predictors say together.

        The bound is d observations 0 = Rθ + e with e ~ N(0, I). So both are 2d, of which an orthogonal map makes d that
        depend on θ. The last value is the negative log density of the others, up to a constant.
        """
        if self.predictors is None:
            return h, u, covariance, 0.0
        root = np.linalg.cholesky(covariance)
        first = solve_triangular(root, np.column_stack([h, u]), lower=True)
        white = np.append(first[:, -1], np.zeros(len(u)))
        turned, left = np.linalg.qr(np.vstack([first[:, :-1], self.predictors]))
        found = turned.T @ white
        apart = white - turned @ found
        rest = 0.5 * float(apart @ apart) + float(np.sum(np.log(np.diag(root))))
        return left, found, np.eye(len(u)), rest

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
        if local.curvatures is not None:
            for _ in range(_ROUNDS // _INNER_ROUNDS):
                found = self._over_curvatures(release, local, num_records)
                release, local = law(found.posterior)
            return self._over_curvatures(release, local, num_records)
        if self.free.any():
            found = self._mixed(release, local, None, num_records)
            for _ in range(1 if self.size > _MANY_COEFFICIENTS else _ROUNDS // _INNER_ROUNDS):
                at = found.posterior
                found = self._mixed(*law(at), at.mean, num_records)
            return found

        def centred(now: Gaussian) -> tuple[GradientRelease, Local]:
            release, local = law(self.moved(now))
            return self.about_zero(release), local

        near = normal_law.conclude(
            centred,
            self.precision,
            at._replace(mean=at.mean - self.means),
            rounds=_ROUNDS // _INNER_ROUNDS,
            inner=_INNER_ROUNDS,
        )
        at = self.moved(near)
        release, local = law(at)
        covariance = normal_law.total_covariance(release, local, at)
        evidence = self._evidence(release, local, covariance, num_records)
        return Concluded(Mixture(np.ones(1), (evidence.gaussian(self.scales),)), evidence)

    def _over_curvatures(self, release: GradientRelease, local: Local, num_records: int) -> Concluded:
        """Return the mixture over curvatures that H may be, and over factors under each of them.

        The curvatures have equal weights. A density of u would favour the smallest: it takes θ̄ for a point that does
        not depend on θ*, and gradients led there.
        """
        assert local.curvatures is not None
        covariance = local.score + release.noise
        weights: list[float] = []
        parts: list[Gaussian] = []
        total: dict[Factors, float] = {}
        for h in local.curvatures:
            one = local._replace(curvature=h)
            candidates = self._weighed(release, one, covariance, self._common)
            own = _relative(candidates)
            own /= own.sum()
            for k in np.flatnonzero(own > _LEAST_WEIGHT):
                factors = candidates[k][0]
                prior = self.with_factors(factors)
                parts.append(prior._evidence(release, one, covariance, num_records).gaussian(prior.scales))
                weights.append(float(own[k]))
                total[factors] = total.get(factors, 0.0) + own[k]
        likeliest = self.with_factors(max(total, key=total.__getitem__))
        added = normal_law.error_of_curvatures(self.about_zero(release), local, local.curvatures, likeliest.precision)
        evidence = likeliest._evidence(release, local, covariance + added, num_records)
        shares = np.array(weights) / np.sum(weights)
        return Concluded(
            Mixture(shares, tuple(parts)),
            dataclasses.replace(evidence, chosen=bool(self.free.any())),
        )

    def _mixed(
        self,
        release: GradientRelease,
        local: Local,
        mean: np.ndarray | None,
        num_records: int,
    ) -> Concluded:
        """Return the mixture over factors, each with a 𝒞 of its own.

        Args:
            release: of the gradient.
            local: model of the gradient.
            mean: that of the posterior, from which θ̄ is so far away; None: θ̄.
            num_records: N.
        """
        position = release.position
        away = Gaussian(position if mean is None else mean, np.zeros_like(local.score))
        h = local.curvature
        weighed = []
        for common in self._common:
            prior = self.with_factors(common._replace(groups=(1.0,) * self._groups))
            for _ in range(1 if self.size > _MANY_COEFFICIENTS else _INNER_ROUNDS):
                covariance = normal_law.total_covariance(release, local, away)
                left = np.linalg.inv(prior.precision + h @ np.linalg.solve(covariance, h))
                away = away._replace(covariance=(left + left.T) / 2)
            covariance = normal_law.total_covariance(release, local, away)
            weighed.append([(one, covariance) for one in self._weighed(release, local, covariance, [common])])
        candidates = [one for of_groups in zip(*weighed, strict=True) for one in of_groups]
        weights = _relative([one for one, _ in candidates])
        kept = np.flatnonzero(weights > _LEAST_WEIGHT)
        weights = weights[kept] / weights[kept].sum()
        found = []
        for k in kept:
            (factors, _), covariance = candidates[k]
            found.append(self.with_factors(factors)._evidence(release, local, covariance, num_records))
        likeliest = dataclasses.replace(found[int(np.argmax(weights))], chosen=True)
        return Concluded(Mixture(weights, tuple(one.gaussian(one.scales) for one in found)), likeliest)

    @property
    def _groups(self) -> int:
        """Number of group effects."""
        return int(np.max(self.family, initial=0))

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

    def about_zero(self, release: GradientRelease) -> GradientRelease:
        """Return a release for coefficients less their prior means, for which formulas are written."""
        return release._replace(position=release.position - self.means)

    def moved(self, found: Gaussian) -> Gaussian:
        """Return a posterior of coefficients less their prior means as one of the coefficients."""
        return found._replace(mean=found.mean + self.means)


def _relative(weighed: Sequence[tuple[Factors, float]]) -> np.ndarray:
    """Return the densities of candidates over the largest one."""
    logs = np.array([log for _, log in weighed])
    return np.exp(logs - logs.max())
