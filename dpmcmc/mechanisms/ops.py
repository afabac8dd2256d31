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
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.errors import CalibrationError, InputError, UnsupportedCombination
from dpmcmc.mechanisms import nuts
from dpmcmc.mechanisms.convexity import strong_convexity
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, Target, target_offers
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

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
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
        assert plan.guarantee is not None
        spent = max(plan.guarantee.epsilon, self.draws * (charged.epsilon or 0.0))
        if spent > spec.epsilon * (1 + 1e-12):
            raise CalibrationError(
                f"temper: {found['temper']:g} gives epsilon {spent:.4g}, and {spec.epsilon:g} was asked; lower it, or "
                "leave it out",
                "temper",
            )
        return plan

    def draw(self, plan: Plan, records: PyTree, streams: Streams) -> PyTree:
        """Return the draws alone, leaves (draws, ...): no diagnostic is returned, printed or warned of.

        Raises:
            DrawError: NUTS left the range of floats; nothing leaves.
        """
        posterior = self.posterior(plan)
        return nuts.posterior_draws(posterior, records, streams, draws=self.draws, radius=self.radius, steps=self.steps)

    def posterior(self, plan: Plan) -> Tempered:
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
