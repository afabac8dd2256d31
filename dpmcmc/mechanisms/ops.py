"""OPS: one posterior sample, or a few (Wang, thesis, Algorithm 2; Wang, Fienberg and Smola 2015).

A draw from a posterior is private by itself if no record can move the posterior far. With ℓ_i = −log p(x_i|θ), temper
ρ = min(1, the most that ε allows), and K independent draws in all:

form ``range``   exp(−ρΣℓ_i)·π on ‖θ‖ <= R, |ℓ_x(θ) − ℓ_x'(θ)| <= Δ there for any two records: replacing one moves ρΣℓ
                 by at most ρΔ at every θ, so the density by e^{ρΔ} and its normaliser by as much: 2ρΔ-DP. For logistic
                 regression Δ = R·row_bound. The thesis charges 4ρB, |ℓ| <= B: about half the temper for the same ε
                 (``experiments/panel/printed.py`` draws that curve).
form ``gdp``     exp(−ρΣℓ_i − (m/2)‖θ‖²), ℓ convex with gradients of norm <= L: the draw is μ-GDP with μ = 2ρL/√m
                 (Gopi, Lee and Liu 2022, arXiv 2203.00263; first, with another constant, Minami et al. 2016). It
                 needs no ball, and holds on one: a ball is convex.

Adding, removing or zeroing a record changes the potential by h = ρℓ_x alone. The log density then changes by
h(θ) − log E[e^h], which lies within sup h − inf h over the ball. For ``range`` this is ρ times the most that one
record's loss varies over θ: at most 2B, and 2RL by the mean value theorem; B where losses are −log probabilities, which
are never negative. For ``gdp``, h is ρL-Lipschitz: μ = ρL/√m.

K draws cost Kε, and √K·μ. Tempering costs accuracy: as N grows, a draw's variance around the truth is 1 + 1/ρ times
the efficient one (thesis, Propositions 3.8 and 3.9; ``docs/figures.md`` measures it).

Claim: A draw of OPS costs what its form says.
Proof: bounded losses (range), or a Lipschitz perturbation of a strongly log-concave law (gdp).
Held by: test_pure_loss_on_worst_neighbours_is_within_what_is_charged, test_range_constant_is_attained,
test_hockey_stick_of_neighbours_is_within_gdp, "draws of an unconverged chain charged as exact"
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import CalibrationError, InputError, UnsupportedCombination
from dpmcmc.mechanisms import nuts
from dpmcmc.mechanisms.base import MechanismPlan, OneShot, PrivacySpec
from dpmcmc.mechanisms.minimise import (
    Bounds,
    bounds_of,
    check_losses,
    float64,
    in_float64,
    loss_gradient,
    rounding,
    strong_convexity,
    summed_in_blocks,
)
from dpmcmc.privacy.accounting import Event, noisy_descent
from dpmcmc.privacy.accounting.events import (
    KAPPA,
    Adjacency,
    gaussian_parameter,
    largest,
    queries,
)
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.gaussian_release import noise_on_grid
from dpmcmc.privacy.query.integer_noise import check_numbers
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, Target, shared_by_equal_targets, target_offers
from dpmcmc.targets.tempered import Tempered


@dataclass(frozen=True)
class OPS(OneShot):
    """Draws from a posterior that is tempered until they are private.

    Args:
        form: ``range`` (pure DP on a ball) | ``gdp`` (convex losses, Gaussian prior).
        radius: R: parameters are restricted to ‖θ‖ <= R; needed by ``range``.
        temper: ρ in (0, 1], refused where it does not meet the target; left out: the largest that does.
        prior_precision: m: the prior is N(0, I/m) in place of the target's own.
        draws: K independent draws; each is charged.
        total_variation: your claim of how far one draw is from an exact one, charged; left out: assumed to be 0.
        steps: transitions of NUTS before each draw; left out: 60.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc.mechanisms import OPS
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = OPS(prior_precision=1.0).plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
        >>> 0 < plan.settings["temper"] <= 1
        True
    """

    form: Literal["range", "gdp"] = "gdp"
    radius: Positive | None = None
    temper: Annotated[float, Gt(0), Le(1)] | None = None
    prior_precision: Positive | None = None
    draws: Annotated[int, Ge(1)] = 1
    total_variation: Annotated[float, Gt(0), Lt(1)] | None = None
    steps: Annotated[int, Ge(2)] | None = None

    release = "one_sample"
    honours = frozenset({"offset", "weight"})
    in_floats = "the draw from the posterior"

    @property
    def pure(self) -> bool:  # type: ignore[override]
        """Whether the draws are pure ε-DP, since losses are bounded and no distance from an exact draw is charged."""
        return self.form != "gdp" and self.total_variation is None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form != "gdp" and self.radius is None:
            raise InputError(
                f"radius: form {self.form} bounds losses on a ball; give the public radius of one",
                "radius",
            )

    def calibrate(self, target: Target, spec: PrivacySpec) -> MechanismPlan:
        """Settle ρ.

        Args:
            target: with ``loss_bounds`` (range), or log-concave with ``gradient_bound_within`` and a
                ``prior_precision`` (gdp).
            asked: ``range`` spends none of its δ except on ``total_variation``.

        Raises:
            UnsupportedCombination: the target lacks what the form rests on.
            ValueError: a public bound that is not given.
            CalibrationError: ``temper`` does not meet the promise, or ``total_variation`` leaves no δ.
        """
        left = self._delta_left(spec)
        charged, found = self._gdp(target, spec, left) if self.form == "gdp" else self._pure(target, spec)
        ball = {} if self.radius is None else {"radius": float(self.radius)}
        settings = ball | found
        events: tuple[Event, ...] = (charged,)
        if self.total_variation is not None:
            events += (
                Event(
                    "approximate_draw",
                    0.0,
                    self.total_variation,
                    self.draws,
                    per_data_set=True,
                ),
            )
        plan = self.planned(target, spec, events, settings, self.assumptions())
        # A pure release is charged at δ 0, whatever the accountant could make of a positive one.
        spent = max(plan.guarantee.epsilon, self.draws * (charged.epsilon or 0.0))
        if spent > spec.epsilon * (1 + 1e-12):
            raise CalibrationError(
                f"temper: {found['temper']:g} gives epsilon {spent:.4g}, and {spec.epsilon:g} was asked; lower it, or "
                "leave it out",
                "temper",
            )
        return plan

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> PyTree:
        """Return the draws alone, leaves (draws, ...): no diagnostic is returned, printed or warned of.

        Raises:
            DrawError: NUTS left the range of floats; nothing leaves.
        """
        posterior = self.posterior(plan)
        return nuts.posterior_draws(posterior, records, streams, draws=self.draws, radius=self.radius, steps=self.steps)

    def posterior(self, plan: MechanismPlan) -> Tempered:
        """Return the density that is drawn from, on the ball where a radius is set."""
        return Tempered(plan.target, plan.settings["temper"], new_prior_precision=self.prior_precision)

    def assumptions(self) -> tuple[str, ...]:
        """Return the assumptions of a guarantee of these draws."""
        if self.total_variation is None:
            return (nuts.ASSUMES,)
        return (
            f"each draw of NUTS is within total variation {self.total_variation:g} of an exact one, which is the "
            "user's claim: no finite run certifies it.",
        )

    def _gdp(self, target: Target, spec: PrivacySpec, delta: float) -> tuple[Event, dict[str, float]]:
        """Return the event of form gdp, and the numbers it rests on."""
        precision = strong_convexity(target, "form gdp", self.prior_precision)
        lipschitz = self._lipschitz(target)
        # μ for each unit of temper; a hair below, so that rounding ends on the private side.
        unit = spec.moved * lipschitz / math.sqrt(precision) * math.sqrt(self.draws)
        temper = self._settled(gaussian_mu(spec.epsilon, delta) / unit * (1 - 1e-9))
        event = Event("posterior_draw", math.sqrt(precision) / (temper * lipschitz), 1.0, self.draws)
        bounds = {
            "gradient_bound": lipschitz,
            "prior_precision": precision,
            "mu": temper * unit,
        }
        return event, bounds | {"temper": temper}

    def _pure(self, target: Target, spec: PrivacySpec) -> tuple[Event, dict[str, float]]:
        """Return the event of form range, and the numbers it rests on."""
        largest, unit = self._loss_bounds(target, spec.adjacency)
        temper = self._settled(spec.epsilon / (unit * self.draws))
        event = Event("pure", 0.0, 1.0, self.draws, epsilon=unit * temper)
        return event, {
            "loss_bound": largest,
            "epsilon_per_draw": unit * temper,
            "temper": temper,
        }

    def _settled(self, largest: float) -> float:
        return min(1.0, largest) if self.temper is None else float(self.temper)

    def _delta_left(self, spec: PrivacySpec) -> float:
        """Return δ of exact draws, once K·(1 + e^ε)·τ is spent on draws that are not (thesis, Proposition 3.10)."""
        if self.total_variation is None:
            return spec.delta
        spent = self.draws * (1 + math.exp(min(spec.epsilon, 700.0))) * self.total_variation
        if not spent < spec.delta:
            raise CalibrationError(
                f"total_variation: {self.draws} draws within {self.total_variation:g} cost (1 + e^epsilon) times that, "
                f"{spent:.3g}, of delta {spec.delta:g}; it must be below "
                f"{spec.delta * self.total_variation / spent:.3g}",
                "total_variation",
            )
        return spec.delta - spent

    def _lipschitz(self, target: Target) -> float:
        """Return L on the ball, or everywhere."""
        name = type(target).__name__
        offers = target_offers(target)
        within = offers.gradient_bound_within or (lambda radius: offers.gradient_bound)
        bound = within(math.inf if self.radius is None else self.radius)
        if bound is None and self.radius is None and within(1.0) is not None:
            raise InputError(
                f"radius: gradients of {name} are bounded on a ball only; give the public radius of one",
                "radius",
            )
        if bound is None:
            raise InputError(
                f"row_bound: form gdp needs a public bound on one record's gradient, and {name} has none; give the "
                "bounds on rows (and labels) that it follows from",
                "row_bound",
            )
        return float(bound)

    def _loss_bounds(self, target: Target, adjacency: Adjacency) -> tuple[float, float]:
        """Return (B, ε of one draw at temper 1)."""
        offers = target_offers(target)
        if offers.loss_bounds is None:
            raise UnsupportedCombination(
                f"form {self.form} needs bounded losses, and {type(target).__name__} has no loss_bounds(radius).",
                "target",
            )
        assert self.radius is not None
        largest, difference = offers.loss_bounds(self.radius)
        if adjacency == Adjacency.REPLACE_ONE:
            return float(largest), 2.0 * difference
        varies = largest if offers.num_classes is not None else 2 * largest
        within = None if offers.gradient_bound_within is None else offers.gradient_bound_within(self.radius)
        return float(largest), float(varies if within is None else min(varies, 2 * self.radius * within))


# ------------------------------------------------------------------------------------
# Certified OPS: one draw whose privacy needs no convergence.
#
# Full-batch Langevin dynamics on F(θ) = ρ Σ ℓ_i(θ) + (m/2)‖θ‖², at temperature 1, of which only the last iterate
# leaves:
#
#     θ_{k+1} = Π( θ_k − η(∇F(θ_k) + √(2/η) Z_k) ),   k < t,   θ_0 = the target's starting point, free of data
#
# Its price is that of ``accounting/last_iterate.py`` for any t: more steps bring the law nearer to the posterior's,
# and the price up to that of an exact draw, never beyond. Nothing is assumed: the target is convex, smooth and
# Lipschitz by its public bounds (proved for the targets of this library, its author's word for another, which the
# guarantee then says), no gradient is clipped, and what float64 computes differs from the theorem's step by less than
# is charged:
#
# * N gradients are summed in blocks of 2^12 rows, and positions are kept within 1000·√d prior standard deviations (Π,
#   a projection onto a public ball): ``minimise.rounding`` bounds what float64 moves a gradient by there;
# * sum and noise are rounded to one public grid of 2^-32 noise stds and added as integers, as the query does
#   (``exact_sums.py``) and for the same reason: the released bits are those of a Gaussian mechanism's post-processing.
#   Rounding the sum moves it by at most √d·2^-33 noise stds.
#
# Both enter the charge, on either of two neighbours, with ``KAPPA`` for sums within a block and the noise's own
# arithmetic. A step adds the prior's gradient off the grid; that the bits of a position below it, 2^-32 of a noise
# std, say nothing after further noise is argued, not proved.


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

    def calibrate(self, target: Target, spec: PrivacySpec) -> MechanismPlan:
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

    def check(self, plan: MechanismPlan, records: PyTree) -> None:
        """Refuse losses that fail in float64."""
        check_losses(plan.target, records)

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> PyTree:
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


def last_iterates(plans: list[MechanismPlan], records: PyTree, keys: jax.Array) -> PyTree:
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
