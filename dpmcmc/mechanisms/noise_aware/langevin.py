r"""A sampler's path of private gradients, in the metric of a regression's releases.

Records have about the same curvature cN in every direction of Fθ (``metric.py``), and gradient k has noise s_k F Z with
s_k = C z_k. Directions in which rows hold nothing have the prior's curvature alone. So the sampler takes its own step
(``samplers/``) on φ = Mθ, in which the potential is as round as both are known to be:

    M² = F² + P/(cN),      g̃_k = M⁻¹(Σ_i ψ_i x_i + P(θ_k − θ₀) + s_k F Z).

As M² >= F², its noise has a std of s_k at most, which is what the sampler is told.

It sees released numbers alone, so its path is post-processing, like the posterior that is concluded from it. The law of
a gradient given its position is the same wherever the path goes (``inference/normal_law.py``), so the conclusion is
that of ``descent.py``. The path itself is wider: by a step η a direction of curvature w comes nearer to the mode by the
part ηw of its distance, and the noise of the step spreads positions by ηw/(2 − ηw) of the variance s²/w² of one step
of Newton's.

A sampler that is given by its name has settings that follow from released numbers, anew from one lesson to the next
(:func:`chosen_sampler`). Its temperature is the one that the noise of privacy keeps, so it asks for no further noise. A
temperature above 1 makes the path wide, and no interval: intervals are those of the concluded posterior. A sampler of
the user's keeps its own settings, and its own noise where that is more than privacy needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.inference.decompositions import roots
from dpmcmc.mechanisms.noise_aware.descent import Path
from dpmcmc.mechanisms.noise_aware.options import SamplerName
from dpmcmc.mechanisms.noise_aware.prior import Prior
from dpmcmc.privacy.query.gram_release import within
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.report import progress
from dpmcmc.samplers import SGFS, SGHMC, SGLD, SGNHT
from dpmcmc.samplers.base import Sampler

#: ηw of the largest curvature w: the part of its distance from the mode by which a step brings a direction nearer. The
#: spread of positions is then a ninth of the noise of one step of Newton's, and a leg of 13 steps forgets its start.
_STEP_TIMES_CURVATURE = 0.2
#: Friction of SGHMC, and the friction at which SGNHT's thermostat settles.
_FRICTION, _SETTLED_FRICTION = 0.4, 0.5


class Potential(NamedTuple):
    """Units and prior of a path.

    Attributes:
        root: M, (d, d), of all parameters.
        inverse: M⁻¹, (d, d).
        precision: P of the prior, (d, d).
        centre: θ₀, its mean, (d,).
        num_records: N.
        radius: how far from 0 a position may lie.
    """

    root: np.ndarray
    inverse: np.ndarray
    precision: np.ndarray
    centre: np.ndarray
    num_records: int
    radius: float

    @classmethod
    def of(cls, square: np.ndarray, curvature: float, prior: Prior, num_records: int, radius: float) -> Potential:
        """Return the potential given F², (d, d), and c, the curvature of a record in a typical direction of the metric."""
        precision = prior.precision
        root, inverse = roots(square + precision / (curvature * num_records))
        return cls(root, inverse, precision, prior.means, num_records, radius)

    def whitened_curvature(self, likelihood: np.ndarray) -> np.ndarray:
        """Return the curvature of the potential in φ, (d, d), given that of the likelihood in θ."""
        return self.inverse @ (likelihood + self.precision) @ self.inverse


def chosen_sampler(name: SamplerName, curvature: np.ndarray, noise_std: float, num_records: int) -> Sampler:
    """Return a sampler that moves at noise of this size as far as one curvature describes the likelihood.

    Each keeps the temperature T at which its own noise is that of privacy: η s²/2 of SGLD, η s²/(2a) at friction a,
    and s²/(w(2/r − 1)) of SGFS, whose step takes the largest curvature w by the same part r.

    Args:
        name: of the sampler.
        curvature: of the potential in φ, (d, d).
        noise_std: s, of the gradients.
        num_records: N.
    """
    part = _STEP_TIMES_CURVATURE
    largest = float(np.linalg.eigvalsh(curvature)[-1])
    eta = part / largest
    damped = num_records * _FRICTION * eta
    sampler: Any
    if name == "sgld":
        sampler = SGLD(step_size=num_records * eta, temperature=eta * noise_std**2 / 2)
    elif name == "sghmc":
        # Langevin time of a step is η over the friction.
        sampler = SGHMC(step_size=damped, friction=_FRICTION, temperature=eta * noise_std**2 / 2)
    elif name == "sgnht":
        settled = _SETTLED_FRICTION
        sampler = SGNHT(step_size=num_records * settled * eta, friction=settled, temperature=eta * noise_std**2 / 2)
    else:
        temperature = noise_std**2 / (largest * (2 / part - 1))
        sampler = SGFS(
            step_size=num_records * 2 * temperature / noise_std**2,
            temperature=temperature,
            fisher="public",
            public_fisher=curvature / num_records,
        )
    return cast(Sampler, sampler.bind(num_records))


@dataclass(frozen=True)
class Chain:
    """A sampler on its way.

    Attributes:
        potential: metric and prior.
        sampler: bound to N.
        state: its own.
        first: number of the gradient that it began with.
    """

    potential: Potential
    sampler: Sampler
    state: Any
    first: int = 0

    @classmethod
    def begin(cls, potential: Potential, sampler: Sampler, position: np.ndarray, key: jax.Array, first: int) -> Chain:
        """Return a chain at a position θ, (d,); ``key`` is for what a sampler draws of its own, such as a momentum."""
        phi = jnp.asarray(potential.root @ position, jnp.float32)
        return cls(potential, sampler, sampler.init(key, phi), first)

    @property
    def position(self) -> np.ndarray:
        """Where the next gradient is released: θ, (d,), public, within the radius."""
        theta = self.potential.inverse @ np.asarray(self.state.position, np.float64)
        return within(theta[None], self.potential.radius)[0]

    def own_noise(self, k: int) -> float:
        """Return the std of the noise that the sampler asks for in step k."""
        return float(self.sampler.noise_std(np.float64(k - self.first)))

    def after(self, gradient: np.ndarray, noise_std: float, k: int, key: jax.Array) -> Chain:
        """Return the chain after step k.

        Args:
            gradient: released at :attr:`position`, of the negative log-likelihood in θ, (d,).
            noise_std: of it, in the metric.
            k: number of the gradient.
            key: for randomness of the sampler's own.
        """
        potential = self.potential
        whole = potential.inverse @ (gradient + potential.precision @ (self.position - potential.centre))
        private = PrivateGradient(jnp.asarray(whole, jnp.float32), jnp.float32(noise_std))
        state, _ = self.sampler.step(key, self.state, private, jnp.int32(k - self.first))
        return Chain(potential, self.sampler, state, self.first)


def walk(
    chain: Chain,
    path: Path,
    steps: range,
    multipliers: np.ndarray,
    gradient: Callable[[np.ndarray, float], tuple[np.ndarray, float]],
    clip: float,
    key: jax.Array,
) -> tuple[Chain, Path]:
    """Release gradients along a chain; return the chain after them, and the path with them.

    Args:
        chain: before them.
        path: gradients before these.
        steps: numbers of the gradients.
        multipliers: noise multipliers of all gradients of the run, (steps,).
        gradient: (position, noise multiplier) -> the gradient, released there, and its noise std in the metric.
        clip: C, of these gradients.
        key: for randomness of the sampler's own.
    """
    for k in steps:
        at = chain.position
        multiplier = max(float(multipliers[k]), chain.own_noise(k) / clip)
        released, std = gradient(at, multiplier)
        path = path.with_gradient(at, released, std)
        chain = chain.after(released, std, k, jax.random.fold_in(key, k))
        progress.report_steps(k + 1, len(multipliers))
    return chain, path
