"""Posterior from a chain's trace: points θ_k and the private gradients g̃_k that were released there.

With Σ_i over all records and κ(m, y) = w(m)(μ(m) − y)/φ the score of a record at its margin m = x·θ, weighted blindly
to its label y, a step released

    g̃_k = Σ_i κ(x_i·θ_k, y_i) x_i + minibatch error + s_k F Z_k.

The mean of all steps, with weights ∝ 1/s_k² that sum to 1, is one gradient with a known law:

    ḡ = r(θ*) + score + noise,     score ~ N(0, B),   noise ~ N(0, V),   V = F²/Σ s_k⁻² + M Σ weights²,

r(θ*) the path's mean of Σ_i w(μ(x_i·θ_k) − μ(x_i·θ*)) x_i/φ, and M the variance of a minibatch. Near the posterior's
mean m, r(θ*) = r(m) − H(θ* − m), and ``normal_law.posterior`` concludes from there. It is iterated.

Rows are taken as normal, with their second moment G and mean row x̄ (``curvature.py``). x̄ is 0 where no intercept is
declared. With Σ = G/N − x̄x̄ᵀ, v = mᵀΣm and A = Σm/√v a row is x̄ + A t + e, and its margin under m is
a = x·m = x̄·m + √v t. With δ = θ̄ − m, the point where the path is on average adds x·δ = x̄·δ + (A·δ) t + e·δ to the
margin, and the path's spread about θ̄ an independent normal. So z = x·θ_k = a + x̄·δ + (A·δ) t + ςε with
ς² = δᵀΣδ − (A·δ)² + tr(G·spread)/N, and by Stein's identity

    r(m) = N(x̄ E[f] + A E[f t] + (Σδ − (A·δ)A) E[f ε]/ς),      f = w(z)(μ(z) − μ(a))/φ,
    H    = Σ_i E[h(a_i)] x_i x_iᵀ,      h = E[w(z) | a]μ'(a)/φ,

H by equation (1) of ``curvature.py``; B is alike, of h = E[w(z) | a]²μ'(a)/φ.

For linear regression without clipping these are G(θ̄ − m)/φ, G/φ and G/φ, exactly.

Minibatches. Poisson sampling at rate q counts a record with probability q, so its error has the uncentred second
moment of records' scores, M = (1 − q)/q·Σ_i κ_i² x_i x_iᵀ, which is like H, of h = E[f² + w²μ'(a)/φ | a]. How κ²
varies with e is left out, an approximation. A batch of fixed size has the centred one, less by r rᵀ/N at each point.
Both are made of releases, and of no record.

G itself is told by its release and by the path (``path_curvature.py``).

Everything here is a pure function of released numbers and costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference import normal_law, predicted_width
from dpmcmc.inference.bounded_score import LabelBlind
from dpmcmc.inference.curvature import PredictorLaw
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.denoised_moment import Denoised
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local
from dpmcmc.inference.scores import LABEL_BLIND

#: Points ε of the path about its mean, and their weights: Gauss and Hermite's, since a path's spread smooths kinks.
PATH_POINTS, PATH_WEIGHTS = hermegauss(12)
PATH_WEIGHTS = PATH_WEIGHTS / PATH_WEIGHTS.sum()
#: Least standard deviation ς of a margin about a: of a path that does not move, E[f ε] is still a quotient.
LEAST_MARGIN_STD = 1e-3
#: How often the path's law is taken at the posterior that followed from it, and iterations of the posterior under one
#: law.
NUM_LAWS, NUM_ROUNDS = 12, 2
Scheme = Literal["full", "poisson", "fixed_size"]
#: Elasticity of a variance to the prior's from which on an interval counts as the prior's, and up to which as the
#: records', in a run with noise and in one without. An elasticity below .1 leaves a truth three prior standard
#: deviations out a coverage of .77, one above .5 less than .26.
OF_PRIOR, OF_RECORDS, OF_RECORDS_ALONE = 1 / 2, 1 / 3, 0.1


@dataclass(frozen=True)
class Score:
    """Score of a record as the run clipped it, weighted blindly to its label.

    Attributes:
        family: of the labels.
        clip: C; math.inf where no record is clipped, as none of linear regression's may be.
        norm: typical ‖F⁻¹x‖ of a record, √(tr(F⁻²G)/N).
    """

    family: LabelBlind
    clip: float = math.inf
    norm: float = 1.0

    def weight(self, margin: np.ndarray) -> np.ndarray:
        """Return w, a function of the margin and of no label."""
        return self.family.weight(margin, self.clip / self.norm)

    def facts(self) -> dict[str, object]:
        """Return JSON values; :meth:`of` takes them."""
        name = next(name for name, family in LABEL_BLIND.items() if type(self.family) is family)
        return {
            "family": name,
            "dispersion": self.family.dispersion,
            "clip": self.clip,
            "norm": self.norm,
        }

    @classmethod
    def of(cls, family: str, dispersion: float, clip: float, norm: float) -> Self:
        """Return the score of :meth:`facts`."""
        return cls(LABEL_BLIND[family](dispersion), clip, norm)


class PathGradients(NamedTuple):
    """Mean of a path, with weights ∝ 1/s_k² of its steps.

    Attributes:
        position: θ̄, (d,).
        gradient: ḡ of the negative log-likelihood, (d,).
        spread: covariance of single positions about θ̄, (d, d).
        precision: Σ 1/s_k².
        share: Σ weights² of the steps, one over their number where s_k is constant.
    """

    position: np.ndarray
    gradient: np.ndarray
    spread: np.ndarray
    precision: float
    share: float


class PathLaw(NamedTuple):
    """Facts of a run besides its path.

    Attributes:
        num_records: N.
        metric: F², (d, d).
        prior: P of the prior N(0, P⁻¹), (d, d).
        gram: estimate of Σ x xᵀ and of its error.
        score: of a record.
        scheme: how a minibatch is selected.
        rate: q, expected batch over N.
        mean_row: x̄, (d,), where an intercept is declared (``curvature.mean_row``); None: 0.
    """

    num_records: int
    metric: np.ndarray
    prior: np.ndarray
    gram: Denoised
    score: Score
    scheme: Scheme = "full"
    rate: float = 1.0
    mean_row: np.ndarray | None = None


class Expected(NamedTuple):
    """Mean gradient of a path and its derivatives, under a parameter m.

    Attributes:
        gradient: r(m), (d,).
        local: H, B, and the covariance of the Gram matrix' error in the gradient.
        squares: Σ_i E κ_i² x_i x_iᵀ at a point of the path, (d, d).
        slope: c, of a record's score along the path.
        fisher: mean of μ'(a)/φ over that of h, by which weights cut what a record tells.
        response: J, by which the gradient changes along the path, (d, d): E[f ε | a]/ς in the place of h.
    """

    gradient: np.ndarray
    local: Local
    squares: np.ndarray
    slope: float
    fisher: float
    response: np.ndarray


def conclude(path: PathGradients, law: PathLaw) -> Gaussian:
    """Return the posterior given a path: the mean of the steps after burn-in."""

    def release(now: Gaussian) -> tuple[GradientRelease, Local]:
        found = expected(path, now.mean, law)
        # The model is linear in θ* once the rest of the gradient is taken off.
        nonlinear = found.gradient - found.local.curvature @ (path.position - now.mean)
        return GradientRelease(path.position, path.gradient - nonlinear, noise_of(found, path, law)), found.local

    start = Gaussian(path.position, np.linalg.inv(law.prior))
    return normal_law.conclude(release, law.prior, start, rounds=NUM_LAWS, inner=NUM_ROUNDS)


def expected(path: PathGradients, mean: np.ndarray, law: PathLaw) -> Expected:
    """Return what the mean gradient of a path is expected to be under the parameter ``mean``.

    Raises:
        UnsupportedCombination: no score has a slope along the path.
    """
    count = law.num_records
    gram = law.gram
    row = np.zeros_like(mean) if law.mean_row is None else law.mean_row
    rows = PredictorLaw.of(gram.gram / count, row, mean[:, None])
    along = rows.along[:, 0]
    away = path.position - mean
    shift = float(along @ away)
    towards = rows.moment @ away - row * (row @ away) - shift * along
    variance = float(away @ towards) + float(np.sum(gram.gram * path.spread)) / count
    std = math.sqrt(max(variance, LEAST_MARGIN_STD**2))
    margin = rows.eta
    visited = margin + row @ away + shift * rows.points + std * PATH_POINTS
    family = law.score.family
    weight = law.score.weight(visited)
    slope = family.mean_slope(margin) / family.dispersion
    gap = weight * (family.mean(visited) - family.mean(margin)) / family.dispersion
    mean_weight = weight @ PATH_WEIGHTS[:, None]
    mean_curvature = float(np.mean(mean_weight * slope))
    if not mean_curvature > 0:
        raise UnsupportedCombination(
            "noise_aware: the path lies where no record's score has a slope, so its gradients do not identify the "
            "posterior; take a smaller step_size, a larger ε, or mechanism noise_aware."
        )
    along_path = (gap * PATH_POINTS) @ PATH_WEIGHTS / std
    path_slope = float(np.mean(along_path))
    local = Local(
        count * rows.second_moment(mean_weight * slope),
        count * rows.second_moment(mean_weight**2 * slope),
        lambda q: mean_curvature**2 * gram.error(q),
    )
    return Expected(
        count * (rows.first_moment(gap @ PATH_WEIGHTS) + path_slope * towards),
        local,
        count * rows.second_moment((gap**2 + weight**2 * slope) @ PATH_WEIGHTS),
        path_slope,
        float(np.mean(slope)) / mean_curvature,
        count * rows.second_moment(along_path),
    )


def lost(found: Gaussian, local: Local, fisher: float, noise: np.ndarray, prior: np.ndarray) -> float:
    """Return the share of coefficients that the noise of privacy leaves to the prior.

    How far a coefficient is the prior's is the elasticity of its variance to it (``predicted_width.elasticity``). A
    coefficient is lost whose interval is the prior's (OF_PRIOR), and would be the records' in one of two runs that know
    the curvature to be the estimate with one standard deviation of its error on top: one with the same noise
    (OF_RECORDS), or one without privacy (OF_RECORDS_ALONE).

    Args:
        found: the posterior.
        local: model of the mean gradient.
        fisher: what a record tells without privacy, over what its weighted score tells.
        noise: V, of the mean gradient.
        prior: P, (d, d).
    """
    vectors = eigh(local.curvature)[1]
    errors = [float(v @ local.curvature_error(np.outer(v, v)) @ v) for v in vectors.T]
    more = (vectors * np.sqrt(np.maximum(errors, 0.0))) @ vectors.T
    most = Local(local.curvature + more, local.score + more, np.zeros_like)
    alone = np.linalg.inv(prior + fisher * most.curvature)
    private = predicted_width.predicted(most, noise, prior, alone).private
    own, with_noise, without = (predicted_width.elasticity(s, prior) for s in (found.covariance, private, alone))
    hidden = (with_noise < OF_RECORDS) | (without < OF_RECORDS_ALONE)
    return float(np.mean((own > OF_PRIOR) & hidden))


def noise_of(found: Expected, path: PathGradients, law: PathLaw) -> np.ndarray:
    """Return V, the covariance of noise and minibatch error in the mean gradient, (d, d)."""
    return law.metric / path.precision + path.share * minibatch(found, path, law)


def minibatch(found: Expected, path: PathGradients, law: PathLaw) -> np.ndarray:
    """Return M, the covariance of one step's minibatch error, (d, d)."""
    squares = found.squares
    if law.scheme == "fixed_size":
        h = found.local.curvature
        squares = squares - (np.outer(found.gradient, found.gradient) + h @ path.spread @ h) / law.num_records
    return (1 - law.rate) / law.rate * squares
