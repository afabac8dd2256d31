r"""Posterior from a chain's trace: points θ_k and the private gradients g̃_k that were released there.

With Σ_i over all records and κ(m, y) = w(m)(μ(m) − y)/φ the score of a record at its margin m = x·θ, weighted blindly
to its label y, a step released

    g̃_k = Σ_i κ(x_i·θ_k, y_i) x_i + minibatch error + s_k F Z_k.

The mean of all steps, with weights ∝ 1/s_k² that sum to 1, is one gradient with a known law:

    ḡ = r(θ*) + score + noise,     score ~ N(0, B),   noise ~ N(0, V),   V = F²/Σ s_k⁻² + M Σ weights²,

r(θ*) the path's mean of Σ_i w(μ(x_i·θ_k) − μ(x_i·θ*)) x_i/φ, and M the variance of a minibatch. Near the posterior's
mean m, r(θ*) = r(m) − H(θ* − m), and ``noise_aware.posterior`` concludes from there. It is iterated.

Rows enter as if they were normal with their second moment G and mean row x̄, which is 0 where no intercept is declared:
Σ = G/N − x̄x̄ᵀ. Then a = x·m = x̄·m + √v·t with v = mᵀΣm. With δ = θ̄ − m, the point where the path is on average adds
to the margin x·δ = x̄·δ + ρ√v·t + e, and the path's spread about θ̄ an independent normal. So
z = x·θ_k = a + x̄·δ + ρ√v·t + ςε with ς² = Var e + tr(G·spread)/N, and by Stein's identity

    r(m) = N(x̄ E[f] + Σm E[f t]/√v + Σ(δ − ρm) E[f ε]/ς),      f = w(z)(μ(z) − μ(a))/φ,
    H    = G E[h] + N(E[h t]/√v (x̄(Σm)ᵀ + Σm x̄ᵀ) + E[h(t² − 1)]/v Σm(Σm)ᵀ),      h = w(z)μ'(a)/φ,

and B is alike, of h = E[w(z) | a]²μ'(a)/φ.

For linear regression without clipping these are G(θ̄ − m)/φ, G/φ and G/φ, exactly.

Minibatches. Poisson sampling at rate q counts a record with probability q, so its error has the uncentred second
moment of records' scores, M = (1 − q)/q·Σ_i κ_i² x_i x_iᵀ, which is like H, of h = E[f² + w²μ'(a)/φ | a]. How κ²
varies with e is left out, an approximation. A batch of fixed size has the centred one, less by r rᵀ/N at each point.
Both are made of releases, and of no record.

Everything here is a pure function of released numbers and costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import ndtri

from dpmcmc.inference import noise_aware
from dpmcmc.inference.noise_aware import Denoised, Gaussian, GradientRelease, Local, bent
from dpmcmc.inference.scores import LABEL_BLIND, LabelBlind

#: Standard normal margins a, one by one, since weights have kinks; those of the path about it, and their weights.
_NODES = ndtri((np.arange(400) + 0.5) / 400)[:, None]
_NODES = _NODES / _NODES.std()
_ABOUT, _ABOUT_WEIGHTS = hermegauss(12)
_ABOUT_WEIGHTS = _ABOUT_WEIGHTS / _ABOUT_WEIGHTS.sum()
#: Least standard deviation of a margin about a.
_LEAST = 1e-3
_ROUNDS = 12


Scheme = Literal["full", "poisson", "fixed_size"]


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
        return {"family": name, "dispersion": self.family.dispersion, "clip": self.clip, "norm": self.norm}

    @classmethod
    def of(cls, family: str, dispersion: float, clip: float, norm: float) -> Self:
        """Return the score of :meth:`facts`."""
        return cls(LABEL_BLIND[family](dispersion), clip, norm)


class Path(NamedTuple):
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


class Known(NamedTuple):
    """Public facts of a run.

    Attributes:
        num_records: N.
        metric: F², (d, d).
        prior: P of the prior N(0, P⁻¹), (d, d).
        scheme: how a minibatch is selected.
        rate: q, expected batch over N.
        mean_row: x̄, (d,), where an intercept is declared (``curvature.mean_row``); None: 0.
    """

    num_records: int
    metric: np.ndarray
    prior: np.ndarray
    scheme: Scheme = "full"
    rate: float = 1.0
    mean_row: np.ndarray | None = None


class Expected(NamedTuple):
    """Mean gradient of a path and its derivatives, under a parameter m.

    Attributes:
        gradient: r(m), (d,).
        local: H, B, and the covariance of the Gram matrix' error in the gradient.
        squares: Σ_i E κ_i² x_i x_iᵀ at a point of the path, (d, d).
    """

    gradient: np.ndarray
    local: Local
    squares: np.ndarray


def conclude(path: Path, known: Known, gram: Denoised, score: Score) -> Gaussian:
    """Return the posterior given a path.

    Args:
        path: mean of the steps after burn-in.
        known: public facts.
        gram: estimate of Σ x xᵀ and of its error.
        score: of a record.
    """

    def law(now: Gaussian) -> tuple[GradientRelease, Local]:
        here = expected(path, now.mean, known, gram, score)
        noise = known.metric / path.precision + path.share * minibatch(here, path, known)
        # The model is linear in θ* once the rest of the gradient is taken off.
        beyond = here.gradient - here.local.curvature @ (path.position - now.mean)
        return GradientRelease(path.position, path.gradient - beyond, noise), here.local

    start = Gaussian(path.position, np.linalg.inv(known.prior))
    return noise_aware.conclude(law, known.prior, start, rounds=_ROUNDS, inner=2)


def expected(path: Path, mean: np.ndarray, known: Known, gram: Denoised, score: Score) -> Expected:
    """Return what the mean gradient of a path is expected to be under the parameter ``mean``."""
    count = known.num_records
    away = path.position - mean
    row = np.zeros_like(mean) if known.mean_row is None else known.mean_row
    covariance = gram.gram / count - np.outer(row, row)
    towards = covariance @ mean
    variance = max(float(mean @ towards), 1e-9)
    ratio = float(away @ towards) / variance
    rest = away - ratio * mean
    about = float(rest @ covariance @ rest) + float(np.sum(gram.gram * path.spread)) / count
    std = math.sqrt(max(about, _LEAST**2))
    along = math.sqrt(variance) * _NODES
    margin = row @ mean + along
    visited = margin + row @ away + ratio * along + std * _ABOUT
    family = score.family
    weight = score.weight(visited)
    slope = family.slope(margin) / family.dispersion
    gap = weight * (family.mean(visited) - family.mean(margin)) / family.dispersion

    def second_moment(h: np.ndarray) -> np.ndarray:
        """Σ_i E h(a) x_i x_iᵀ of h (margins, 1)."""
        slope = np.mean(h * _NODES) / math.sqrt(variance)
        bend = np.mean(h * (_NODES**2 - 1)) / variance
        return np.mean(h) * gram.gram + count * bent(slope, bend, row, towards)

    mean_weight = weight @ _ABOUT_WEIGHTS[:, None]
    h = mean_weight * slope
    curvature = float(np.mean(h))
    gradient = np.mean(gap @ _ABOUT_WEIGHTS) * row
    gradient = gradient + np.mean((gap * _NODES) @ _ABOUT_WEIGHTS) / math.sqrt(variance) * towards
    gradient = count * (gradient + np.mean((gap * _ABOUT) @ _ABOUT_WEIGHTS) / std * (covariance @ rest))
    squares = (gap**2 + weight**2 * slope) @ _ABOUT_WEIGHTS[:, None]
    local = Local(second_moment(h), second_moment(mean_weight**2 * slope), lambda q: curvature**2 * gram.error(q))
    return Expected(gradient, local, second_moment(squares))


def minibatch(here: Expected, path: Path, known: Known) -> np.ndarray:
    """Return M, the covariance of one step's minibatch error, (d, d)."""
    squares = here.squares
    if known.scheme == "fixed_size":
        h = here.local.curvature
        squares = squares - (np.outer(here.gradient, here.gradient) + h @ path.spread @ h) / known.num_records
    return (1 - known.rate) / known.rate * squares
