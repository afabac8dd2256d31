r"""OPS: one posterior sample, or a few (Wang, thesis, Algorithm 2; Wang, Fienberg and Smola 2015).

A draw from a posterior is private by itself if no record can move the posterior far. With ℓ_i = −log p(x_i|θ), temper
ρ = min(1, the most that ε allows), and K independent draws in all:

form ``printed``   exp(−ρΣℓ_i)·π^ρ on ‖θ‖ <= R, |ℓ| <= B there: replacing a record moves ρΣℓ by at most 2ρB at every
                   θ, so the density by e^{2ρB} and its normaliser by as much: 4ρB-DP.
form ``range``     exp(−ρΣℓ_i)·π on ‖θ‖ <= R, |ℓ_x(θ) − ℓ_x'(θ)| <= Δ for any two records: by the same steps 2ρΔ-DP.
                   For logistic regression Δ = R·row_bound, and B is a little more: half the loss, twice the temper.
form ``gdp``       exp(−ρΣℓ_i − (m/2)‖θ‖²), ℓ convex with gradients of norm <= L: the draw is μ-GDP with μ = 2ρL/√m
                   (Gopi, Lee and Liu 2022, arXiv 2203.00263; first, with another constant, Minami et al. 2016). It
                   needs no ball, and holds on one: a ball is convex.

Adding, removing or zeroing a record changes the potential by h = ρℓ_x alone. The log density then changes by
h(θ) − log E[e^h], which lies within sup h − inf h over the ball. For ``printed`` and ``range`` this is ρ times the most
that one record's loss varies over θ: at most 2B, and 2RL by the mean value theorem; B where losses are −log
probabilities, which are never negative. For ``gdp``, h is ρL-Lipschitz: μ = ρL/√m.

K draws cost Kε, and √K·μ. Tempering costs accuracy: with ρ < 1 a draw's variance around the truth is 1 + 1/ρ times the
efficient one (thesis, Proposition 3.9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.errors import CalibrationError, InputError, UnsupportedCombination
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.engines import ENGINES, EngineName, Wanted, drawn
from dpmcmc.mechanisms.engines.closed_form import MOST_TRIES
from dpmcmc.mechanisms.minimise import strong_convexity, vouched
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.events import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Positive, Target, target_offers
from dpmcmc.targets.transformed import Tempered


@dataclass(frozen=True)
class OPS(OneShot):
    """Draws from a posterior that is tempered until they are private.

    Args:
        form: ``printed`` | ``range`` (pure DP on a ball) | ``gdp`` (convex losses, Gaussian prior).
        engine: how a draw is made: ``nuts`` (assumed to converge) | ``closed_form`` (linear regression).
        radius: R: parameters are restricted to ‖θ‖ <= R; needed by ``printed`` and ``range``.
        temper: ρ in (0, 1], refused where it does not meet the target; left out: the largest that does.
        prior_precision: m: the prior is N(0, I/m) in place of the target's own.
        draws: K independent draws; each is charged.
        total_variation: your claim of how far one draw is from an exact one, charged; left out: assumed to be 0.
        steps: transitions of nuts before each draw; left out: 60.

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

    form: Literal["printed", "range", "gdp"] = "gdp"
    engine: EngineName = "nuts"
    radius: Positive | None = None
    temper: Annotated[float, Gt(0), Le(1)] | None = None
    prior_precision: Positive | None = None
    draws: Annotated[int, Ge(1)] = 1
    total_variation: Annotated[float, Gt(0), Lt(1)] | None = None
    steps: Annotated[int, Ge(2)] | None = None

    release = "one_sample"
    in_floats = "the draw from the posterior"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total_variation is not None and ENGINES[self.engine].EXACT:
            raise InputError(
                f"total_variation: draws of engine {self.engine} are exact; leave it out", "total_variation"
            )
        if self.engine == "closed_form" and self.radius is not None and self.draws > MOST_TRIES:
            raise InputError(
                f"draws: engine closed_form makes at most {MOST_TRIES:,} draws on a ball; take fewer, or engine nuts",
                "draws",
            )
        if self.form != "gdp" and self.radius is None:
            raise InputError(
                f"radius: form {self.form} bounds losses on a ball; give the public radius of one", "radius"
            )

    def calibrate(self, target: Target, spec: PrivacySpec) -> MechanismPlan:
        """Settle ρ.

        Args:
            target: with ``loss_bounds`` (printed, range), or log-concave with ``gradient_bound_within`` and a
                ``prior_precision`` (gdp).
            asked: ``printed`` and ``range`` spend none of its δ except on ``total_variation``.

        Raises:
            UnsupportedCombination: the target lacks what the form, or the engine, rests on.
            ValueError: a public bound that is not given.
            CalibrationError: ``temper`` does not meet the promise, or ``total_variation`` leaves no δ.
        """
        ENGINES[self.engine].check(target)
        left = self._delta_left(spec)
        charged, found = self._gdp(target, spec, left) if self.form == "gdp" else self._pure(target, spec)
        ball = {} if self.radius is None else {"radius": float(self.radius)}
        settings = ball | found | {"prior_temper": found["temper"] if self.form == "printed" else 1.0}
        events: tuple[Event, ...] = (charged,)
        if self.total_variation is not None:
            events += (Event("approximate_draw", 0.0, self.total_variation, self.draws, per_data_set=True),)
        plan = self.planned(target, spec, events, settings, self.assumptions(target))
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
            DrawError: the engine has no draw; nothing leaves.
        """
        wanted = Wanted(self.draws, self.radius, self.steps)
        return drawn(self.engine, self.posterior(plan), records, wanted, streams)

    def posterior(self, plan: MechanismPlan) -> Tempered:
        """Return the density that is drawn from, on the ball where a radius is set."""
        return Tempered(plan.target, plan.settings["temper"], plan.settings["prior_temper"], self.prior_precision)

    def assumptions(self, target: Target) -> tuple[str, ...]:
        """Return the assumptions of a guarantee of these draws."""
        first = ENGINES[self.engine].ASSUMES
        if self.total_variation is not None:
            first = (
                f"each draw of engine {self.engine} is within total variation {self.total_variation:g} of an exact "
                "one, which is the user's claim: no finite run certifies it."
            )
        # An engine that rejects draws outside a ball may have none left, which depends on the records.
        rejects = self.radius is not None and self.engine != "nuts"
        kept_secret = "that a draw could be made within the radius tells nothing; should none be, that is kept secret."
        return (first, *[kept_secret] * rejects, *vouched(target))

    def unit_epsilon(self, target: Target, adjacency: Adjacency) -> float:
        """Return ε of one draw at temper 1, for forms with bounded losses.

        Raises:
            UnsupportedCombination: the target has no ``loss_bounds``.
        """
        return self._loss_bounds(target, adjacency)[1]

    def _gdp(self, target: Target, spec: PrivacySpec, delta: float) -> tuple[Event, dict[str, float]]:
        """Return the event of form gdp, and the numbers it rests on."""
        precision = strong_convexity(target, "form gdp", self.prior_precision)
        lipschitz = self._lipschitz(target)
        # μ for each unit of temper; a hair below, so that rounding ends on the private side.
        unit = spec.moved * lipschitz / math.sqrt(precision) * math.sqrt(self.draws)
        temper = self._settled(gaussian_mu(spec.epsilon, delta) / unit * (1 - 1e-9))
        event = Event("posterior_draw", math.sqrt(precision) / (temper * lipschitz), 1.0, self.draws)
        bounds = {"gradient_bound": lipschitz, "prior_precision": precision, "mu": temper * unit}
        return event, bounds | {"temper": temper}

    def _pure(self, target: Target, spec: PrivacySpec) -> tuple[Event, dict[str, float]]:
        """Return the event of forms printed and range, and the numbers it rests on."""
        largest, unit = self._loss_bounds(target, spec.adjacency)
        temper = self._settled(spec.epsilon / (unit * self.draws))
        event = Event("pure", 0.0, 1.0, self.draws, epsilon=unit * temper)
        return event, {"loss_bound": largest, "epsilon_per_draw": unit * temper, "temper": temper}

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
                f"radius: gradients of {name} are bounded on a ball only; give the public radius of one", "radius"
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
            return float(largest), 4.0 * largest if self.form == "printed" else 2.0 * difference
        varies = largest if offers.num_classes is not None else 2 * largest
        within = None if offers.gradient_bound_within is None else offers.gradient_bound_within(self.radius)
        return float(largest), float(varies if within is None else min(varies, 2 * self.radius * within))
