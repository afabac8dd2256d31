"""A Plan: everything a run will do, decided before a record is read. It is made by ``plan`` (``making.py``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.description import guaranteed, labelled
from dpmcmc.planning.noise import own_noise
from dpmcmc.planning.own_code import assumed
from dpmcmc.planning.permitted_uses import INTERVALS, UNJUDGED, Verdict
from dpmcmc.planning.private_metric import PlannedMetric
from dpmcmc.planning.settings_json import section, settings
from dpmcmc.planning.stages import GivenStarts, Private, Stage, Start
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.charging import Schedule
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Poisson, Sampling, expected_batch
from dpmcmc.privacy.accounting.shown_numbers import three_digits
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.privacy.query.second_moment import SecondMoment, every_of, multiples
from dpmcmc.samplers import SAMPLERS
from dpmcmc.samplers.base import Sampler, SamplerOffers, sampler_offers
from dpmcmc.targets import TARGETS
from dpmcmc.targets.base import Target

#: Temperatures that differ less are one.
_SAME = 1e-3


@dataclass(frozen=True, eq=False)
class Plan(AnyPlan):
    """A run before it reads a record; made by :func:`dpmcmc.plan`.

    Attributes:
        target, sampler, sampling: what, how, and from which records; the sampler is bound to N.
        num_records: N.
        steps, chains, burn_in, thin: counts of steps; one draw is kept every ``thin`` steps after ``burn_in``.
        noise_std: s_t, (steps,) float32, std of the noise in gradient units, of a metric if there is one.
        slots: rows a batch has room for.
        private: all that a private run has beside, ``plan.noise_multipliers`` and ``plan.guarantee`` among it; None for
            plain SG-MCMC.
        second: the second moment that the sampler asks for beside its gradient, or None.
        curvature: public bound on the curvature of the mean loss, or None.
        schema: public facts of a table's columns, or None where records are arrays.
        reasons: why the plan is as it is, where :func:`dpmcmc.suggest` made it.
        verdict: permitted uses of the draws, from public facts.

    Example:
        >>> import dpmcmc
        >>> plan = dpmcmc.plan(
        ...     dpmcmc.targets.LogisticRegression(num_features=2),
        ...     num_records=1000,
        ...     sampler=dpmcmc.SGLD(step_size=1.0),
        ...     sampling=dpmcmc.Full(),
        ...     steps=10,
        ...     privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
        ... )
        >>> plan.guarantee.epsilon <= 1.0
        True
        >>> plan.noise_multipliers.shape
        (10,)
        >>> plan.usable_for
        ['prediction']
    """

    target: Target
    sampler: Sampler
    sampling: Sampling
    num_records: int
    steps: int
    chains: int
    burn_in: int
    thin: int
    noise_std: np.ndarray
    slots: int
    private: Private | None
    second: SecondMoment | None = None
    curvature: float | None = None
    schema: Schema | None = None
    reasons: tuple[str, ...] = ()
    verdict: Verdict = field(default=UNJUDGED, repr=False)

    def __post_init__(self) -> None:
        if self.private is not None:
            guarantee = self.private.guarantee.assuming(*assumed(self))
            object.__setattr__(self, "private", self.private.replaced(guarantee=guarantee))

    @property
    def privacy(self) -> Privacy | None:
        """The promise that was asked for, or None for plain SG-MCMC."""
        return None if self.private is None else self.private.promise

    @property
    def guarantee(self) -> Guarantee | None:  # type: ignore[override]
        """Guarantee of everything that leaves, or None without privacy."""
        return None if self.private is None else self.private.guarantee

    @property
    def noise_multipliers(self) -> np.ndarray | None:
        """s_t·b/(N·C), (steps,) float64, nominal; None without privacy."""
        return None if self.private is None else self.private.noise_multipliers

    @property
    def required_multiplier(self) -> float:
        """The multiplier that the calibrator asked for; 0 where the sampler's own noise suffices."""
        return 0.0 if self.private is None else self.private.required_multiplier

    @property
    def free_fraction(self) -> float:
        """Share of steps whose noise is the sampler's own."""
        return 1.0 if self.private is None else self.private.free_fraction

    @property
    def bits(self) -> int:
        """Grid exponent of the exact sum; 0 without privacy."""
        return 0 if self.private is None else self.private.bits

    @property
    def second_bits(self) -> int:
        """Grid exponent of the sum of the second moment; 0 without one."""
        return 0 if self.private is None else self.private.second_bits

    @property
    def levels(self) -> tuple[int, int]:
        """Draws per coordinate of the integer noise, for the gradient and for the second moment."""
        return (0, 0) if self.private is None else self.private.levels

    @property
    def coordinates(self) -> int | None:
        """Numbers of integer noise that a step is charged for; None without privacy."""
        return None if self.private is None else self.private.coordinates

    @property
    def before(self) -> tuple[Stage, ...]:
        """Stages that the run begins with, before its chain; a private metric, or a private start."""
        return () if self.private is None else self.private.before

    @property
    def metric(self) -> PlannedMetric | None:
        """Metric that the run releases first, or None; noise, steps and time are then in its units."""
        return next((stage for stage in self.before if isinstance(stage, PlannedMetric)), None)

    @property
    def start(self) -> AnyPlan | None:
        """Plan of the draw that every chain starts from, or None."""
        return self.starts.release if isinstance(self.starts, Start) else None

    @property
    def starts(self) -> GivenStarts | None:
        """Private starts that the guarantee covers, which are drawn by the run or given to ``sample``; or None."""
        return next((stage for stage in self.before if isinstance(stage, GivenStarts)), None)

    @property
    def chain(self) -> Plan:
        """Plan of the chain alone, to which ``sample`` is given its start; the guarantee covers the start too."""
        if self.private is None or self.starts is None:
            return self
        return replace(
            self,
            private=self.private.replaced(before=(GivenStarts(self.starts.guarantee),)),
        )

    @property
    def optimises(self) -> bool:
        """Whether the sampler is an optimiser, which has neither a temperature nor a Langevin time."""
        return self.sampler_offers.optimises

    @property
    def sampler_offers(self) -> SamplerOffers:
        """The sampler with a default in the place of everything that it does not offer."""
        return sampler_offers(self.sampler)

    @property
    def in_metric(self) -> bool:
        """Whether noise, steps and time are in the units of a metric, the run's or the sampler's."""
        return self.metric is not None or self.sampler_offers.metric is not None

    @property
    def label_blind(self) -> bool:
        """Whether gradients are weighted so that clipping does not bias the score (``per_record_gradients.py``).

        The default where the target's labels are bounded.
        """
        asked = self.privacy is not None and self.privacy.clipping != "residual"
        return asked and self.target_offers.bounded_labels

    @property
    def num_draws(self) -> int:
        """Draws kept per chain."""
        return (self.steps - self.burn_in) // self.thin

    @property
    def batch_size(self) -> float:
        """b, the expected batch size."""
        return expected_batch(self.sampling, self.num_records)

    @property
    def temperatures(self) -> np.ndarray:
        """Temperature kept at each step, (steps,) float64; that of the plan's noise, not of minibatch noise.

        NaN for an optimiser, which has none.
        """
        t = np.arange(self.steps, dtype=np.float64)
        return np.broadcast_to(self.sampler.temperature_at(self.noise_std.astype(np.float64), t), t.shape)

    @property
    def temperature_range(self) -> dict[str, float] | None:
        """``min`` and ``max`` of :attr:`temperatures`, as JSON takes them; None for an optimiser."""
        temperatures = self.temperatures
        if self.optimises:
            return None
        return {"min": float(temperatures.min()), "max": float(temperatures.max())}

    @property
    def own_temperatures(self) -> np.ndarray:
        """Temperature that the sampler's own noise alone would keep at each step, (steps,) float64."""
        t = np.arange(self.steps, dtype=np.float64)
        own = own_noise(self.sampler, self.steps)
        return np.broadcast_to(self.sampler.temperature_at(own, t), t.shape)

    @property
    def times(self) -> np.ndarray:
        """Langevin time η_t of each step, (steps,) float64; over the friction for momentum samplers."""
        t = np.arange(self.steps, dtype=np.float64)
        return np.broadcast_to(self.sampler.time_at(self.noise_std.astype(np.float64), t), t.shape)

    @property
    def time(self) -> float:
        """Langevin time the chain runs for, the sum of :attr:`times`; NaN for an optimiser, which has none."""
        return float(np.sum(self.times))

    @property
    def private_time(self) -> float | None:
        """Time μ²/(2C² chains) that the budget buys EACH chain at temperature 1 from full batches.

        (2μ²/C² unless replace_one.) Each step's Gaussian has μ_t = ΔC/s_t with s_t² = 2/η_t, so Σμ_t² = Δ²C²Ση_t/2
        is at most μ², the Gaussian budget of (ε, δ), less what a metric takes of it. None without privacy.
        """
        return None if self.private is None else self._time_bought(self.private)

    def _time_bought(self, private: Private) -> float:
        promise = private.promise
        guarantee = private.guarantee
        epsilon = guarantee.epsilon if promise.epsilon is None else promise.epsilon
        if not math.isfinite(epsilon):
            return math.inf
        left = 1.0 if self.metric is None else 1 - self.metric.asked.share
        mu = gaussian_mu(epsilon, promise.delta)
        return 2 * left * (mu / (guarantee.adjacency.sensitivity * promise.clip)) ** 2 / self.chains

    @property
    def schedule(self) -> Schedule:
        """Noisy queries of a private run's chain, and the charges of the stages before it.

        Raises:
            InputError: the run has no privacy.
        """
        if self.private is None:
            raise InputError("plan: has no privacy, so none of its queries is charged", "plan")
        return Schedule(
            self.private.noise_multipliers,
            self.sampling,
            self.num_records,
            self.chains,
            multiples(self.second),
            self.coordinates,
            tuple(stage.charge for stage in self.before),
            every_of(self.second),
        )

    @property
    def label(self) -> str:
        """Name of the sampler, after that of the mechanism that its start is drawn by."""
        name = type(self.sampler).__name__
        return name if self.start is None else f"{self.start.label} then {name}"

    @property
    def parts(self) -> tuple[object, ...]:
        """Target, sampler and noise, and the parts of the draw that its chains start from."""
        own = (self.target, self.sampler, self.noise_std)
        return own if self.start is None else (*own, *self.start.parts)

    @property
    def sections(self) -> dict[str, Any]:
        """Target, sampler, sampling and run of the config that makes the plan, and what else it has of them.

        ``start`` is the section ``mechanism`` of the draw that its chains start from.
        """
        parts = {
            "privacy": self.privacy,
            "metric": None if self.metric is None else self.metric.asked,
        }
        return {
            "target": section(self.target, TARGETS),
            "sampler": section(self.sampler, SAMPLERS),
            "sampling": {"scheme": self.sampling.scheme} | settings(self.sampling),
            "run": {
                "steps": self.steps,
                "chains": self.chains,
                "burn_in": self.burn_in,
                "thin": self.thin,
            },
            **{name: settings(part) for name, part in parts.items() if part is not None},
            **({} if self.start is None else {"start": self.start.sections.get("mechanism")}),
        }

    @property
    def has_chains(self) -> bool:
        """Whether the draws are chains of a sampler, as they are."""
        return True

    @property
    def unproved(self) -> str:
        """Part that the proof of the noise does not cover, which is that of the draw that its chains start from."""
        return "" if self.start is None else self.start.unproved

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Draws of all chains."""
        return self.num_draws * self.chains

    @property
    def thesis_multiplier(self) -> tuple[float | None, str | None]:
        """(z of the corrected thesis formula for this many steps, or None; why it does not apply, or None)."""
        if self.privacy is None or self.privacy.epsilon is None:
            return None, "Wang's formula takes a target epsilon, and this plan has none"
        inputs: dict[str, Any] = {
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "steps": self.schedule.minibatches,
            "rate": self.batch_size / self.num_records,
        }
        return closed_form.formula(**inputs), closed_form.condition(**inputs)

    def to_json(self, secret: bool = True) -> dict[str, object]:
        """The plan in numbers; holds no record and no key.

        Args:
            secret: whether the run's noise is; without that there is no guarantee.
        """
        z = self.noise_multipliers
        return {
            "label": self.label,
            "target": repr(self.target),
            "sampler": repr(self.sampler),
            "config": self.sections,
            "sampling": self._sampling_facts | {"charged_rate": self.sampling.charged_rate(self.num_records)},
            "num_records": self.num_records,
            "unit": self.unit,
            "steps": self.steps,
            "chains": self.chains,
            "burn_in": self.burn_in,
            "thin": self.thin,
            "draws_per_chain": self.num_draws,
            "clipping": None if self.privacy is None else "label_blind" if self.label_blind else "residual",
            "noise_multiplier": None if z is None else {"min": float(z.min()), "max": float(z.max())},
            "required_multiplier": None if z is None else self.required_multiplier,
            "thesis_multiplier": self.thesis_multiplier[0],
            "thesis_condition": self.thesis_multiplier[1],
            "free_fraction": None if self.privacy is None else self.free_fraction,
            "temperature": self.temperature_range,
            "temperature_per_step": None if self.optimises else self._per_step(self.temperatures),
            "time": None if self.optimises else self.time,
            "private_time": None if self.optimises else self.private_time,
            "guarantee": self.guarantee.to_json() if self.guarantee is not None and secret else None,
            **{key: value for stage in self.before for key, value in stage.stated(secret).items()},
            "facts": self.facts(),
            **self.schema_json(),
            **self.sentences_json(),
            **self.verdict.to_json(),
        }

    @staticmethod
    def _per_step(values: np.ndarray, most: int = 200) -> list[list[float]]:
        """[step, value] wherever the value changes; evenly spaced steps where it changes more often than ``most``."""
        # To six digits: float32 noise is rounded up, so that a constant temperature wavers in its seventh.
        unit = 10.0 ** (np.floor(np.log10(np.maximum(np.abs(values), 1e-300))) - 5)
        values = np.round(values / unit) * unit
        changes = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
        if len(changes) > most:
            changes = np.unique(np.linspace(0, len(values) - 1, most).astype(int))
        return [[int(t), float(values[t])] for t in changes]

    def lines(self, secret: bool = True) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe the plan to a person; ``secret`` as in :meth:`to_json`."""
        return _lines(self, secret)

    @property
    def _sampling_facts(self) -> dict[str, object]:
        return {
            "scheme": self.sampling.scheme,
            "batch_size": self.batch_size,
            "rate": self.sampling.rate(self.num_records),
            "slots": self.slots,
        }

    def facts(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the plan beside its guarantee."""
        z = self.noise_multipliers
        own = {
            "noise_multiplier": None if z is None else {"min": float(z.min()), "max": float(z.max())},
            "multiples": list(multiples(self.second)),
            "second_every": every_of(self.second),
            "steps": self.steps,
            "chains": self.chains,
            "sampling": self._sampling_facts,
            "hardened": self.privacy is not None,
            "coordinates": self.coordinates,
            "num_records": self.num_records,
            "free_fraction": None if self.privacy is None else self.free_fraction,
        }
        return {key: value for stage in self.before for key, value in stage.facts().items()} | own


def _lines(plan: Plan, secret: bool = True) -> list[tuple[str, str]]:
    """(label, sentence) pairs that describe the plan to a person; ``secret`` as in ``Plan.to_json``."""
    rate = plan.sampling.rate(plan.num_records)
    batch = f"all {plan.num_records:,} records"
    if rate < 1:
        about = "about " if isinstance(plan.sampling, Poisson) else ""
        batch = f"{plan.sampling.scheme}, {about}{plan.batch_size:g} of {plan.num_records:,} records (rate {rate:.4g})"
    unit = plan.target_offers.unit
    out = [
        ("target", repr(plan.target)),
        *(
            []
            if unit is None
            else [
                (
                    "unit",
                    f"a record is one {unit}: privacy, clipping and sampling are by owner",
                )
            ]
        ),
        ("sampler", repr(plan.sampler)),
        *(line for stage in plan.before for line in stage.lines()),
        ("sampling", batch),
        (
            "steps",
            f"{plan.steps:,} ({plan.steps * rate:.1f} passes) x {plan.chains} chain{'s' * (plan.chains > 1)}, "
            f"{plan.num_draws:,} draw{'s' * (plan.num_draws != 1)} each after {plan.burn_in:,} steps, "
            f"one in {plan.thin}",
        ),
    ]
    heat = _range(plan.temperatures)
    private = plan.private
    if private is None:
        out.append(("privacy", "none: plain SG-MCMC, no guarantee"))
        if not plan.optimises:
            out.append(("temperature", _with_minibatches(plan, heat)))
        return out + plan.verdict.lines()
    z = private.noise_multipliers
    spread = f"{z.min():.4g}" if z.max() <= z.min() * 1.001 else f"{z.min():.4g} to {z.max():.4g}"
    out += [
        ("guarantee", guaranteed(private.guarantee, secret)),
        ("noise", f"multiplier {spread} (noise std on the clipped sum / clip {private.promise.clip:g})"),
        ("thesis", _thesis_line(plan, private)),
    ]
    if not plan.optimises:
        out += [
            ("free", _free_line(plan)),
            ("temperature", _temperature_line(plan, heat)),
            ("time", _time_line(plan, private)),
        ]
    return out + labelled("unproved", plan.unproved) + plan.verdict.lines()


def _thesis_line(plan: Plan, private: Private) -> str:
    needed, failed = plan.thesis_multiplier
    if needed is None:
        return str(failed)
    ratio = three_digits(needed / float(private.noise_multipliers.min()))
    line = f"Wang's formula (constant corrected) would need a multiplier of {needed:.4g}, {ratio} times as much"
    if isinstance(plan.sampling, Poisson) and plan.sampling.rate(plan.num_records) < 1:
        line += ", with batches of fixed size (it is not proved for Poisson ones)"
    if Adjacency(private.promise.adjacency) != Adjacency.REPLACE_ONE:
        line += ", under replace_one (it has no other adjacency)"
    return line if failed is None else f"{line}, and does not apply: {failed}"


def _free_line(plan: Plan) -> str:
    if plan.free_fraction == 1:
        cost = "" if INTERVALS in plan.usable_for else "; clipping and a short run still rule out intervals (see there)"
        return f"privacy is free: at every step the sampler's own noise is at least what privacy needs{cost}"
    more = "noise beyond the sampler's own; a larger epsilon or a smaller step_size needs less of it"
    if plan.free_fraction == 0:
        return f"every step adds {more}"
    share = 100 * plan.free_fraction
    return f"privacy is free on {share:.0f} % of the steps; the other {100 - share:.0f} % add {more}"


def _range(values: np.ndarray) -> str:
    """Return the least and the largest number, or the one where they agree within a thousandth."""
    low = float(values.min())
    high = float(values.max())
    return f"{low:.3g}" if high <= low * 1.001 else f"{low:.3g} to {high:.3g}"


def _temperature_line(plan: Plan, heat: str) -> str:
    own = plan.own_temperatures
    # A temperature as asked promises nothing where time or clipping disqualify the draws.
    of_what = "as asked" if INTERVALS in plan.usable_for else "of the noise alone: see intervals below"
    line = (
        f"{heat}, {of_what}"
        if np.all(plan.temperatures <= own * 1.001)
        else f"{heat}, and the sampler alone has {_range(own)}: privacy needs more noise than the sampler injects"
    )
    return _with_minibatches(plan, line)


def _with_minibatches(plan: Plan, line: str) -> str:
    """Return a line on temperature with how wide draws are by it, and with what minibatches add."""
    line += _width_clause(plan.temperatures[plan.burn_in :])
    # A sampler that is told the rate allows for minibatch noise itself.
    if plan.sampling.rate(plan.num_records) < 1 and plan.sampler_offers.with_rate is None:
        line += "; the noise of minibatches adds to it"
    return line


def _width_clause(temperatures: np.ndarray) -> str:
    """Return how wide draws at these temperatures are; empty where the posterior's own is kept, or none is known."""
    low = float(temperatures.min())
    high = float(temperatures.max())
    if not np.isfinite(low + high) or (low >= 1 - _SAME and high <= 1 + _SAME):
        return ""
    if high <= 1 + _SAME:
        wide = "narrower than the posterior"
    elif low >= 1 - _SAME:
        wide = "wider than the posterior"
    else:
        wide = "at times narrower than the posterior (below temperature 1) and at times wider"
    return f"; draws of a chain that has mixed are {wide}"


def _time_line(plan: Plan, private: Private) -> str:
    bought = plan._time_bought(private)
    used = plan.time
    whose = " each chain" if plan.chains > 1 else ""
    line = f"the run takes {used:.3g} of Langevin time; at temperature 1 the budget buys{whose} {bought:.3g}"
    line += " (full batches)"
    if plan.in_metric:
        return line + " (in the units of the metric)"
    if plan.curvature is not None:
        fastest = plan.curvature * plan.num_records
        line += (
            f"; in relaxation times of the direction of curvature {plan.curvature:g}: {bought * fastest:.3g} bought, "
            f"{used * fastest:.3g} taken"
        )
    return line
