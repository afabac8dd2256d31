"""Certified OPS: one draw whose privacy needs no convergence.

Full-batch Langevin dynamics on F(θ) = ρ Σ ℓ_i(θ) + (m/2)‖θ‖², at temperature 1, of which only the last iterate
leaves:

    θ_{k+1} = Π( θ_k − η(∇F(θ_k) + √(2/η) Z_k) ),   k < t,   θ_0 = the target's starting point, free of data

Its price is that of ``accounting/last_iterate.py`` for any t: more steps bring the law nearer to the posterior's,
and the price up to that of an exact draw, never beyond. Nothing is assumed: the target is convex, smooth and
Lipschitz by its public bounds (proved for the targets of this library, its author's word for another, which the
guarantee then says), no gradient is clipped, and what float64 computes differs from the theorem's step by less than
is charged:

* N gradients are summed in blocks of 2^12 rows, and positions are kept within 1000·√d prior standard deviations (Π,
  a projection onto a public ball): ``minimise.rounding`` bounds what float64 moves a gradient by there;
* sum and noise are rounded to one public grid of 2^-32 noise stds and added as integers, as the query does
  (``exact_sums.py``) and for the same reason: the released bits are those of a Gaussian mechanism's post-processing.
  Rounding the sum moves it by at most √d·2^-33 noise stds.

Both enter the charge, on either of two neighbours, with ``KAPPA`` for sums within a block and the noise's own
arithmetic. A step adds the prior's gradient off the grid; that the bits of a position below it, 2^-32 of a noise
std, say nothing after further noise is argued, not proved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Gt, Le
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import CalibrationError, UnsupportedCombination
from dpmcmc.mechanisms.convexity import Bounds, bounds_of
from dpmcmc.mechanisms.minimise import rounding
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec
from dpmcmc.mechanisms.sums_in_blocks import check_losses, float64, in_float64, loss_gradient, summed_in_blocks
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting import Event, noisy_descent
from dpmcmc.privacy.accounting.bisection import largest
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter, queries
from dpmcmc.privacy.query.gaussian_release import noise_on_grid
from dpmcmc.privacy.query.integer_noise import check_numbers
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, Target, shared_by_equal_targets

_BLOCK = 1 << 12
_MOST_RECORDS = 10_000_000
_GRID = 2.0**-32
#: Radius of the projection, in prior standard deviations of a coordinate times √d.
_RADIUS = 1000.0


@dataclass(frozen=True)
class CertifiedOPS(OneShot):
    """One posterior draw by full-batch Langevin dynamics, private without any assumption on convergence.

    Args:
        steps: t, passes over the data; fewer leave the draw nearer to the start, and cost less.
        step_fraction: η as a fraction of 2/(m + M), the longest step at which contraction is best.
        temper: ρ in (0, 1], the power of the likelihood; left out: the largest that the budget allows.
        prior_precision: m, replaces the target's own prior precision.
        draws: K independent draws; each is charged.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc.mechanisms import CertifiedOPS
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = CertifiedOPS(steps=100).plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    steps: Annotated[int, Ge(1)] = 1000
    step_fraction: Annotated[float, Gt(0), Le(1)] = 0.5
    temper: Annotated[float, Gt(0), Le(1)] | None = None
    prior_precision: Positive | None = None
    draws: Annotated[int, Ge(1)] = 1

    release = "last_iterate"
    # A certificate does not count the rounding of an offset.
    honours = frozenset({"weight"})
    accountant = "last_iterate"

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
        """Settle the largest temper whose last iterate meets (ε, δ).

        Raises:
            UnsupportedCombination: a condition of the theorem that the target does not meet, named.
            CalibrationError: a given temper that costs more than (ε, δ).
        """
        bounds = bounds_of(target, "certified_ops", self.prior_precision)
        check_numbers(bounds.size)
        if spec.num_records > _MOST_RECORDS:
            raise UnsupportedCombination(
                f"certified_ops: rounding is proved for at most {_MOST_RECORDS:,} records, not for "
                f"{spec.num_records:,}.",
                "num_records",
            )
        # A hair below, so that rounding ends on the private side.
        allowed = spec.mu * (1 - 1e-9)

        def private(temper: float) -> bool:
            event = self._descent(target, bounds, spec.num_records, temper).event
            return gaussian_parameter(queries((event,)), spec.adjacency) <= allowed

        temper = self.temper
        if temper is None:
            temper = 1.0 if private(1.0) else largest(private, 0.0, 1.0)
        elif not private(temper):
            raise CalibrationError(
                f"temper: {temper:g} costs more than epsilon {spec.epsilon:g} at delta {spec.delta:g}; leave it out "
                "for the largest that does not",
                "temper",
            )
        eta, noise_std, event = self._descent(target, bounds, spec.num_records, temper)
        settings = {
            "temper": temper,
            "prior_precision": bounds.prior_precision,
            "step": eta,
            "noise_std": noise_std,
            "noise_multiplier": event.noise_multiplier,
            "contraction": event.contraction or 0.0,
            # In the slowest direction, to which the data add nothing.
            "relaxations": self.steps * eta * bounds.prior_precision,
        }
        return self.planned(target, spec, (event,), settings)

    def check(self, plan: Plan, records: PyTree) -> None:
        """Refuse losses that fail in float64."""
        check_losses(plan.target, records)

    def draw(self, plan: Plan, records: PyTree, streams: Streams) -> PyTree:
        """Return the draws, leaves (draws, ...); every step reads all records."""
        keys = jax.random.split(streams.noise, plan.draws)
        return last_iterates([plan] * plan.draws, records, keys)

    def _descent(self, target: Target, bounds: Bounds, num_records: int, temper: float) -> _Descent:
        """Return the descent at a temper; its event charges the rounding of float64."""
        precision = bounds.prior_precision
        smoothness = precision + temper * num_records * bounds.smoothness
        eta = self.step_fraction * 2 / (precision + smoothness)
        noise_std = math.sqrt(2 / eta)
        z = noise_std / (temper * bounds.lipschitz)
        # Rounding of gradients and positions at the farthest point, on either neighbour, relative to L.
        radius = _RADIUS * math.sqrt(bounds.size / precision)
        rounded = 2 * rounding(
            target,
            num_records,
            bounds.size,
            radius=radius,
            regularisation=precision / temper,
        )
        rounded += 2 * 2.0**-52 * radius / (eta * temper)
        slack = KAPPA + rounded / bounds.lipschitz + math.sqrt(bounds.size) * _GRID * z
        c = noisy_descent.contraction(eta, precision, smoothness)
        event = Event(
            "noisy_descent",
            z / (1 + slack),
            1.0,
            self.draws,
            steps=self.steps,
            contraction=c,
        )
        return _Descent(eta, noise_std, event)


class _Descent(NamedTuple):
    """Step η, noise std √(2/η), and the event of a descent."""

    step: float
    noise_std: float
    event: Event


def last_iterates(plans: list[Plan], records: PyTree, keys: jax.Array) -> PyTree:
    """Return one last iterate for each plan, all of them from one device program.

    Args:
        plans: of one target and one number of steps.
        records: pytree, leaves (N, ...).
        keys: (plans,) JAX keys, one for each.

    Returns:
        Pytree of NumPy float64, leaves (plans, ...).
    """
    target = plans[0].target
    steps = plans[0].mechanism.steps
    numbers = {
        name: np.array([p.settings[name] for p in plans]) for name in ("temper", "prior_precision", "step", "noise_std")
    }
    with float64():
        data = in_float64(records)
        out = _descend(target, steps)(jax.tree.map(jnp.asarray, numbers), keys, data)
        return jax.tree.map(np.asarray, out)


@shared_by_equal_targets(maxsize=16)
def _descend(target: Target, steps: int) -> Callable[[dict[str, jax.Array], jax.Array, PyTree], PyTree]:
    """Return the jitted program; tempers, steps, noise and keys are its arguments."""

    def one(numbers: dict[str, jax.Array], key: jax.Array, data: PyTree) -> PyTree:
        start = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), target.init(jax.random.key(0)))
        flat, unravel = ravel_pytree(start)
        m = numbers["prior_precision"]
        noise_std = numbers["noise_std"]
        radius = _RADIUS * jnp.sqrt(flat.size / m)
        grid = 2.0 ** jnp.floor(jnp.log2(noise_std)) * _GRID

        def step(position: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            noise = noise_on_grid(jax.random.fold_in(key, t), flat.size, noise_std, grid)
            gradient = summed_in_blocks(
                lambda block: loss_gradient(target, unravel, position, block),
                data,
                flat,
                _BLOCK,
            )
            total = jnp.round(numbers["temper"] * gradient / grid)
            moved = position - numbers["step"] * (m * position + (total + noise) * grid)
            return moved * jnp.minimum(1.0, radius / jnp.linalg.norm(moved)), None

        return unravel(jax.lax.scan(step, flat, jnp.arange(steps))[0])

    return jax.jit(jax.vmap(one, in_axes=(0, 0, None)))
