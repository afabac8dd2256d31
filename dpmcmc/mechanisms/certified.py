r"""Certified OPS: one draw whose privacy needs no convergence.

Full-batch Langevin dynamics on F(θ) = ρ Σ ℓ_i(θ) + (m/2)‖θ‖², at temperature 1, of which only the last iterate leaves:

    θ_{k+1} = Π( θ_k − η(∇F(θ_k) + √(2/η) Z_k) ),   k < t,   θ_0 = the target's starting point, free of data

Its price is that of ``accounting/last_iterate.py`` for any t: more steps bring the law nearer to the posterior's, and
the price up to that of an exact draw, never beyond. Nothing is assumed: the target is convex, smooth and Lipschitz by
its public bounds (proved for the targets of this library, its author's word for another, which the guarantee then
says), no gradient is clipped, and what float64 computes differs from the theorem's step by less than is
charged:

* N gradients are summed in blocks of 2^12 rows, and positions are kept within 1000·√d prior standard deviations (Π, a
  projection onto a public ball): ``minimise.rounding`` bounds what float64 moves a gradient by there;
* sum and noise are rounded to one public grid of 2^-32 noise stds and added as integers, as the query does
  (``fixed_point.py``) and for the same reason: the released bits are those of a Gaussian mechanism's post-processing.
  Rounding the sum moves it by at most √d·2^-33 noise stds.

Both enter the charge, on either of two neighbours, with ``KAPPA`` for sums within a block and the noise's own
arithmetic. A step adds the prior's gradient off the grid; that the bits of a position below it, 2^-32 of a noise std,
say nothing after further noise is argued, not proved.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import InputError
from dpmcmc.mechanisms.base import MechanismPlan, bounds_of, vouched
from dpmcmc.mechanisms.float64 import float64
from dpmcmc.mechanisms.gaussian_release import check_promise
from dpmcmc.mechanisms.minimise import rounding
from dpmcmc.privacy.accounting import Event, noisy_descent
from dpmcmc.privacy.accounting.events import UnsupportedCombination
from dpmcmc.privacy.accounting.float_excess import KAPPA
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.queries import gaussian_parameter, queries
from dpmcmc.privacy.calibration import CalibrationError
from dpmcmc.privacy.query.query import noise_on_grid
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.targets.base import immutable

_BLOCK = 1 << 12
_MOST_RECORDS = 10_000_000
_GRID = 2.0**-32
#: Radius of the projection, in prior standard deviations of a coordinate times √d.
_RADIUS = 1000.0


@dataclass(frozen=True)
class CertifiedOPS:
    """One posterior draw by full-batch Langevin dynamics, private without any assumption on convergence.

    Args:
        steps: t, passes over the data; fewer leave the draw nearer to the start, and cost less.
        step_fraction: η as a fraction of 2/(m + M), the longest step at which contraction is best.
        temper: ρ in (0, 1], the power of the likelihood; left out: the largest that the budget allows.
        prior_precision: m, replaces the target's own prior precision.
        draws: K independent draws; each is charged.

    Raises:
        ValueError: a value outside these.
    """

    steps: int = 1000
    step_fraction: float = 0.5
    temper: float | None = None
    prior_precision: float | None = None
    draws: int = 1

    release = "last_iterate"

    def __post_init__(self) -> None:
        for name in ("steps", "draws"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("step_fraction", "temper"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise InputError(f"{name} must lie in (0, 1], got {value}")
        if self.prior_precision is not None and not (self.prior_precision > 0 and math.isfinite(self.prior_precision)):
            raise InputError(f"prior_precision must be a finite number > 0, got {self.prior_precision}")

    def plan(
        self, target: Any, *, num_records: int, epsilon: float, delta: float, adjacency: str = "replace_one"
    ) -> MechanismPlan:
        """The largest temper whose last iterate meets (ε, δ); reads no record.

        Raises:
            UnsupportedCombination: a condition of the theorem that the target does not meet, named.
            CalibrationError: a given temper that costs more than (ε, δ).
        """
        check_promise(num_records, epsilon, delta)
        bounds = bounds_of(target, "certified_ops", self.prior_precision)
        if num_records > _MOST_RECORDS:
            raise UnsupportedCombination(
                f"certified_ops: rounding is proved for at most {_MOST_RECORDS:,} records, not for {num_records:,}."
            )
        # A hair below, so that rounding ends on the private side.
        allowed = gaussian_mu(epsilon, delta) * (1 - 1e-9)

        def settle(temper: float) -> tuple[float, float, Event]:
            smoothness = bounds.prior_precision + temper * num_records * bounds.smoothness
            eta = self.step_fraction * 2 / (bounds.prior_precision + smoothness)
            noise_std = math.sqrt(2 / eta)
            z = noise_std / (temper * bounds.lipschitz)
            # Rounding of gradients and positions at the farthest point, on either neighbour, relative to L.
            radius = _RADIUS * math.sqrt(bounds.size / bounds.prior_precision)
            rounded = 2 * rounding(
                target, num_records, bounds.size, radius=radius, regularisation=bounds.prior_precision / temper
            )
            rounded += 2 * 2.0**-52 * radius / (eta * temper)
            slack = KAPPA + rounded / bounds.lipschitz + math.sqrt(bounds.size) * _GRID * z
            c = noisy_descent.contraction(eta, bounds.prior_precision, smoothness)
            return (
                eta,
                noise_std,
                Event("noisy_descent", z / (1 + slack), 1.0, self.draws, steps=self.steps, contraction=c),
            )

        def cost(temper: float) -> float:
            return gaussian_parameter(queries((settle(temper)[2],)), adjacency)

        temper = self.temper
        if temper is None:
            temper = 1.0
            if cost(1.0) > allowed:
                low, high = 0.0, 1.0
                for _ in range(100):
                    middle = (low + high) / 2
                    low, high = (middle, high) if cost(middle) <= allowed else (low, middle)
                temper = low
        elif cost(temper) > allowed:
            raise CalibrationError(
                f"temper {temper:g} costs more than epsilon {epsilon:g} at delta {delta:g}; leave it out for the "
                "largest that does not"
            )
        eta, noise_std, event = settle(temper)
        guarantee = Guarantee.from_events(
            (event,),
            delta=delta,
            adjacency=adjacency,
            accountant="last_iterate",
            release=self.release,
            assumptions=vouched(target),
        )
        settings = {
            "temper": temper,
            "prior_precision": bounds.prior_precision,
            "step": eta,
            "noise_std": noise_std,
            "noise_multiplier": event.noise_multiplier,
            "contraction": event.contraction or 0.0,
            # Relaxation times of the slowest direction, to which the data add nothing.
            "relaxations": self.steps * eta * bounds.prior_precision,
        }
        return MechanismPlan(self, target, num_records, guarantee, settings, self.draws)

    def draw(self, plan: MechanismPlan, records: Any, streams: Streams) -> Any:
        """Leaves (draws, ...); reads all records in every step."""
        keys = jax.random.split(streams.noise, plan.draws)
        return last_iterates([plan] * plan.draws, records, keys)


def last_iterates(plans: list[MechanismPlan], records: Any, keys: jax.Array) -> Any:
    """One last iterate for each plan, all of them in one device program.

    Args:
        plans: of one target and one number of steps.
        records: pytree, leaves (N, ...).
        keys: (plans,) JAX keys, one for each.

    Returns:
        Pytree of NumPy float64, leaves (plans, ...).
    """
    target, steps = plans[0].target, plans[0].mechanism.steps
    numbers = {
        name: np.array([p.settings[name] for p in plans]) for name in ("temper", "prior_precision", "step", "noise_std")
    }
    with float64():
        data = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, jnp.float64 if np.issubdtype(leaf.dtype, np.floating) else None), records
        )
        program = _descend(target, steps) if immutable(target) else _descend.__wrapped__(target, steps)
        out = program(jax.tree.map(jnp.asarray, numbers), keys, data)
        return jax.tree.map(np.asarray, out)


@functools.lru_cache(maxsize=16)
def _descend(target: Any, steps: int) -> Any:
    """The jitted program; tempers, steps, noise and keys are its arguments."""

    def start() -> Any:
        params = target.init(jax.random.key(0))
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)

    def likelihood_gradient(flat: jax.Array, unravel: Any, data: Any) -> jax.Array:
        """Σ −∇ log p(record | θ), in blocks of rows."""
        count = len(jax.tree.leaves(data)[0])

        def block_sum(block: Any) -> jax.Array:
            def loss(p: jax.Array) -> jax.Array:
                return -jnp.sum(jax.vmap(lambda record: target.log_likelihood(unravel(p), record))(block))

            return jax.grad(loss)(flat)

        whole = count // _BLOCK * _BLOCK
        total = block_sum(jax.tree.map(lambda leaf: leaf[whole:], data)) if whole < count else jnp.zeros_like(flat)
        if whole:
            blocks = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, _BLOCK, *leaf.shape[1:]), data)
            total = jax.lax.scan(lambda t, b: (t + block_sum(b), None), total, blocks)[0]
        return total

    def one(numbers: dict[str, jax.Array], key: jax.Array, data: Any) -> Any:
        flat, unravel = ravel_pytree(start())
        m, noise_std = numbers["prior_precision"], numbers["noise_std"]
        radius = _RADIUS * jnp.sqrt(flat.size / m)
        grid = 2.0 ** jnp.floor(jnp.log2(noise_std)) * _GRID

        def step(position: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            noise = noise_on_grid(jax.random.fold_in(key, t), flat.size, noise_std, grid)
            total = jnp.round(numbers["temper"] * likelihood_gradient(position, unravel, data) / grid)
            moved = position - numbers["step"] * (m * position + (total + noise) * grid)
            return moved * jnp.minimum(1.0, radius / jnp.linalg.norm(moved)), None

        return unravel(jax.lax.scan(step, flat, jnp.arange(steps))[0])

    return jax.jit(jax.vmap(one, in_axes=(0, 0, None)))
