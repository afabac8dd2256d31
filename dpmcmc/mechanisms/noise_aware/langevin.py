r"""A sampler's path of private gradients, in the metric of a regression's releases.

The sampler takes its own step (``samplers/``) on φ = Mθ, in units in which the mean potential has about the curvature
1 in every direction. H is the curvature of the likelihood under normal rows, at the posterior's mean so far, P that of
the prior N(θ₀, P⁻¹), and gradient k has noise s_k F Z in the metric F, s_k = C z_k:

    M² = (H + cF² + P)/2N,      g̃_k = M⁻¹(Σ_i ψ_i x_i + P(θ_k − θ₀) + s_k F Z).

The noise of φ's gradient has a std of about s_k √(tr(M⁻¹F²M⁻¹)/d). c is the mean curvature in the metric: without cF²
a direction that the prior alone tells of would be noised far beyond the prior.

It sees released numbers alone, so its path is post-processing, like the posterior that is concluded from it. The law
of a gradient given its position is the same wherever the path goes (``inference/normal_law.py``), so the conclusion is
that of ``descent.py``. The path itself is wider: a step size r brings a direction nearer to the mode by the part r of
its distance, and the noise of steps spreads positions by r/(2 − r) of the variance that one step of Newton's has.

A sampler that is given by its name has settings that follow from released numbers, anew from one lesson to the next
(:meth:`Units.sampler`). Its temperature is the one that the noise of privacy keeps, so it asks for no further noise. A
temperature above 1 makes the path wide, and no interval: intervals are those of the concluded posterior. A sampler of
the user's keeps its own settings, and its own noise where that is more than privacy needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.engine.result import DivergedError
from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference.decompositions import roots
from dpmcmc.mechanisms.noise_aware.descent import Path
from dpmcmc.mechanisms.noise_aware.options import SamplerName
from dpmcmc.mechanisms.noise_aware.prior import Prior
from dpmcmc.privacy.query.gram_release import within
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.report import progress
from dpmcmc.samplers import SGFS, SGHMC, SGLD, SGNHT
from dpmcmc.samplers.base import Sampler, sampler_offers

#: Step size of SGLD, before the gradients that the posterior is made of, and in these, where positions spread by a
#: ninth of the noise of one step of Newton's. The other samplers are as fast.
_APPROACHING, _SETTLED = 0.3, 0.2
#: Friction of SGHMC, and the friction at which SGNHT's thermostat settles.
_FRICTION, _SETTLED_FRICTION = 0.4, 0.5


def check_sampler(asked: SamplerName | Sampler | None) -> None:
    """Refuse a sampler that one gradient a step does not drive.

    Raises:
        UnsupportedCombination: naming ``sampler``.
    """
    if asked is None or isinstance(asked, str):
        return
    kind = type(asked).__name__
    offers = sampler_offers(asked)
    for holds, why in (
        (offers.optimises, f"{kind} is an optimiser, which has no noise and no temperature of its own"),
        (len(asked.queries) > 1, f"{kind} asks for a second moment beside the gradient, which is not released here"),
        (offers.unresolved, f"{kind} has a setting that waits for the noise of privacy, which a run alone knows here"),
    ):
        if holds:
            raise UnsupportedCombination(
                f"sampler: {why}; give sgld, sghmc, sgnht or sgfs by its name, or a sampler with numbers", "sampler"
            )


class Units(NamedTuple):
    """Units of a path.

    Attributes:
        root: M, (d, d), of all parameters.
        inverse: M⁻¹, (d, d).
        noise: √(tr(M⁻¹F²M⁻¹)/d), the std of noise whose std in the metric F is 1.
        prior: of the parameters.
        num_records: N, or N c² where φ is measured in c.
    """

    root: np.ndarray
    inverse: np.ndarray
    noise: float
    prior: Prior
    num_records: int

    @classmethod
    def of(
        cls, curvature: np.ndarray, square: np.ndarray, prior: Prior, num_records: int, noise_std: float = 0.0
    ) -> Units:
        """Return the units given H and F², (d, d) each, and the std of gradients' noise in the metric.

        SGNHT's thermostat has the unit of φ², and diverges where the noise moves φ by much more than 1 a step. So φ
        is measured in c: the same potential has the curvature c² of as many records as it then counts.
        """
        # In the metric directions with records have about one curvature, the mean one.
        typical = float(np.trace(np.linalg.solve(square, curvature))) / len(square)
        root, inverse = roots((curvature + typical * square + prior.precision) / (2 * num_records))
        noise = math.sqrt(float(np.sum((inverse @ square) * inverse)) / len(square))
        counted = max(num_records, math.ceil((noise * noise_std) ** 2 / num_records))
        scale = math.sqrt(counted / num_records)
        return cls(root / scale, scale * inverse, scale * noise, prior, counted)

    def sampler(self, asked: SamplerName | Sampler, noise_std: float, settled: bool) -> Sampler:
        """Return a sampler with a step as long as one curvature describes the likelihood; the user's own as it is.

        Each keeps the temperature T at which its own noise is that of privacy, of std s: T = η s²/(2a) at friction a,
        η = ar/N, and s²/(N(2/r − 1)) of SGFS, whose step takes a direction of curvature N by the part r.

        Args:
            asked: the sampler, or its name.
            noise_std: of the gradients, in the metric.
            settled: whether the posterior is made of these gradients.
        """
        if not isinstance(asked, str):
            return asked
        part = _SETTLED if settled else _APPROACHING
        heat = part * (self.noise * noise_std) ** 2 / (2 * self.num_records)
        if asked == "sgld":
            return SGLD(step_size=part, temperature=heat)
        if asked == "sghmc":
            return SGHMC(step_size=_FRICTION * part, friction=_FRICTION, temperature=heat)
        if asked == "sgnht":
            friction = _SETTLED_FRICTION
            return SGNHT(step_size=friction * part, friction=friction, temperature=heat)
        longer = 1 / (1 - part / 2)
        return SGFS(step_size=longer * part, temperature=longer * heat, fisher="public", public_fisher=1.0)


@dataclass(frozen=True)
class Chain:
    """A sampler on its way.

    Attributes:
        units: of its steps.
        sampler: bound to N.
        state: its own.
        first: number of the gradient that it began with.
    """

    units: Units
    sampler: Sampler
    state: Any
    first: int

    @classmethod
    def begin(cls, units: Units, sampler: Sampler, position: np.ndarray, key: jax.Array, first: int) -> Chain:
        """Return a chain at a position θ, (d,); ``key`` is for what a sampler draws of its own, such as a momentum."""
        bound = sampler.bind(units.num_records)
        phi = jnp.asarray(units.root @ position, jnp.float32)
        return cls(units, bound, bound.init(key, phi), first)

    @property
    def position(self) -> np.ndarray:
        """θ, (d,)."""
        return self.units.inverse @ np.asarray(self.state.position, np.float64)

    def own_noise(self, k: int) -> float:
        """Return the std of the noise that the sampler asks for in step k, in the metric."""
        return float(self.sampler.noise_std(np.float64(k - self.first))) / self.units.noise

    def after(self, gradient: np.ndarray, noise_std: float, k: int, key: jax.Array) -> Chain:
        """Return the chain after step k.

        Args:
            gradient: of the negative log-likelihood in θ, as it was released, (d,).
            noise_std: of it, in the metric.
            k: number of the gradient.
            key: for randomness of the sampler's own.
        """
        units, prior = self.units, self.units.prior
        whole = units.inverse @ (gradient + prior.precision @ (self.position - prior.means))
        private = PrivateGradient(jnp.asarray(whole, jnp.float32), jnp.float32(units.noise * noise_std))
        state, _ = self.sampler.step(key, self.state, private, jnp.int32(k - self.first))
        return replace(self, state=state)


def walk(
    chain: Chain,
    path: Path,
    steps: range,
    multipliers: np.ndarray,
    gradient: Callable[[np.ndarray, float], tuple[np.ndarray, float]],
    clip: float,
    radius: float,
    key: jax.Array,
) -> tuple[Chain, Path]:
    """Release gradients along a chain; return the chain after them, and the path with them.

    Args:
        chain: before them.
        path: gradients before these.
        steps: numbers of the gradients.
        multipliers: least noise multipliers of all gradients of the run, (steps,).
        gradient: (position, noise multiplier) -> the gradient, released there, and its noise std in the metric.
        clip: C, of these gradients.
        radius: how far from 0 a gradient is released.
        key: for randomness of the sampler's own.

    Raises:
        DivergedError: the chain left the range of floats.
    """
    for k in steps:
        position = chain.position
        if not np.isfinite(position).all():
            raise DivergedError(k, 0.0, None)
        at = within(position[None], radius)[0]
        released, std = gradient(at, max(float(multipliers[k]), chain.own_noise(k) / clip))
        path = path.with_gradient(at, released, std)
        chain = chain.after(released, std, k, jax.random.fold_in(key, k))
        progress.report_steps(k + 1, len(multipliers))
    return chain, path
