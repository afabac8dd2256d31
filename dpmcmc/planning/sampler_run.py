"""The stage that a sampler adds to a plan: chains of noisy gradient steps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

import numpy as np

from dpmcmc.planning.description import Description, labelled
from dpmcmc.planning.noise import Noise, own_noise
from dpmcmc.planning.permitted_uses import INTERVALS
from dpmcmc.planning.settings_json import section, settings
from dpmcmc.planning.stages import Stage
from dpmcmc.planning.whole_plan import WholePlan
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Poisson, Sampling
from dpmcmc.privacy.accounting.shown_numbers import three_digits
from dpmcmc.privacy.query.second_moment import SecondMoment, every_of, multiples
from dpmcmc.samplers import SAMPLERS
from dpmcmc.samplers.base import Sampler, SamplerOffers, sampler_offers
from dpmcmc.targets.base import target_offers

#: Temperatures that differ less are one.
_SAME = 1e-3


@dataclass(frozen=True, eq=False)
class SamplerRun(Stage):
    """A sampler's run.

    Attributes:
        sampler, sampling: how, and from which records; the sampler is bound to N.
        steps, chains, burn_in, thin: counts of steps; one draw is kept every ``thin`` steps after ``burn_in``.
        noise: of every step, and what it costs.
        second: the second moment that the sampler asks for beside its gradient, or None.
        curvature: public bound on the curvature of the mean loss, or None.
    """

    sampler: Sampler
    sampling: Sampling
    steps: int
    chains: int
    burn_in: int
    thin: int
    noise: Noise
    second: SecondMoment | None = None
    curvature: float | None = None

    @property
    def guarantee(self) -> Guarantee | None:  # type: ignore[override]
        """Guarantee of everything that leaves, or None without privacy."""
        return self.noise.guarantee

    def assuming(self, *sentences: str) -> Self:
        """Return it with a guarantee that assumes more."""
        if self.guarantee is None:
            return self
        return self.replaced(noise=dataclasses.replace(self.noise, guarantee=self.guarantee.assuming(*sentences)))

    @property
    def num_draws(self) -> int:
        """Draws kept per chain."""
        return (self.steps - self.burn_in) // self.thin

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Draws of all chains."""
        return self.num_draws * self.chains

    @property
    def label(self) -> str:
        """Name of the sampler."""
        return type(self.sampler).__name__

    @property
    def has_chains(self) -> bool:
        """Whether the draws are chains of a sampler, as they are."""
        return True

    @property
    def parts(self) -> tuple[object, ...]:
        """Sampler and noise."""
        return (self.sampler, self.noise.noise_std)

    @property
    def offers(self) -> SamplerOffers:
        """The sampler with a default in the place of everything that it does not offer."""
        return sampler_offers(self.sampler)

    @property
    def steps_taken(self) -> np.ndarray:
        """Numbers of the steps, (steps,) float64."""
        return np.arange(self.steps, dtype=np.float64)

    @property
    def temperatures(self) -> np.ndarray:
        """Temperature kept at each step, (steps,) float64; that of the plan's noise, not of minibatch noise.

        NaN for an optimiser, which has none.
        """
        return self.temperatures_at(self.noise.noise_std.astype(np.float64))

    def temperatures_at(self, noise: np.ndarray) -> np.ndarray:
        """Return the temperature that the sampler would keep at each step with other noise, (steps,) float64."""
        t = self.steps_taken
        return np.broadcast_to(self.sampler.temperature_at(noise, t), t.shape)

    @property
    def temperature_range(self) -> dict[str, float] | None:
        """``min`` and ``max`` of :attr:`temperatures`, as JSON takes them; None for an optimiser."""
        return _least_and_most(None if self.offers.optimises else self.temperatures)

    @property
    def times(self) -> np.ndarray:
        """Langevin time η_t of each step, (steps,) float64; over the friction for momentum samplers."""
        t = self.steps_taken
        return np.broadcast_to(self.sampler.time_at(self.noise.noise_std.astype(np.float64), t), t.shape)

    @property
    def time(self) -> float:
        """Langevin time the chain runs for, the sum of :attr:`times`; NaN for an optimiser, which has none."""
        return float(np.sum(self.times))

    def describe(self, plan: WholePlan, secret: bool) -> Description:
        """Return sampler, batches, steps and noise, and the temperature and the Langevin time that follow."""
        counts = {"steps": self.steps, "chains": self.chains, "burn_in": self.burn_in, "thin": self.thin}
        noise = self.noise
        promise = noise.promise
        private = promise is not None
        drawn = {
            "scheme": self.sampling.scheme,
            "batch_size": plan.batch_size,
            "rate": self.sampling.rate(plan.num_records),
            "slots": noise.slots,
        }
        shared = {
            "steps": self.steps,
            "chains": self.chains,
            "noise_multiplier": _least_and_most(noise.noise_multipliers),
            "free_fraction": noise.free_fraction if private else None,
        }
        formula = plan.thesis_multiplier
        stated = {
            **shared,
            "sampler": repr(self.sampler),
            "sampling": drawn | {"charged_rate": self.sampling.charged_rate(plan.num_records)},
            "burn_in": self.burn_in,
            "thin": self.thin,
            "draws_per_chain": self.num_draws,
            "clipping": ("label_blind" if plan.label_blind else "residual") if private else None,
            "required_multiplier": noise.required_multiplier if private else None,
            "thesis_multiplier": formula[0],
            "thesis_condition": formula[1],
            "temperature": self.temperature_range,
            **dict.fromkeys(("temperature_per_step", "time", "private_time")),
        }
        if not self.offers.optimises:
            stated |= {"temperature_per_step": _per_step(self.temperatures), "time": self.time}
            stated["private_time"] = plan.private_time
        return Description(
            sections={
                "sampler": section(self.sampler, SAMPLERS),
                "sampling": {"scheme": self.sampling.scheme} | settings(self.sampling),
                "run": counts,
                **({"privacy": settings(promise)} if private else {}),
            },
            stated=stated,
            facts={
                "noise_multiplier": shared["noise_multiplier"],
                "multiples": list(multiples(self.second)),
                "second_every": every_of(self.second),
                "steps": self.steps,
                "chains": self.chains,
                "sampling": drawn,
                "coordinates": noise.coordinates,
                "free_fraction": shared["free_fraction"],
            },
            lines=self._lines(plan),
            costs=self._costs(plan),
        )

    def _lines(self, plan: WholePlan) -> list[tuple[str, str]]:
        rate = self.sampling.rate(plan.num_records)
        batch = f"all {plan.num_records:,} records"
        if rate < 1:
            about = "about " if isinstance(self.sampling, Poisson) else ""
            of_all = f"{plan.batch_size:g} of {plan.num_records:,} records (rate {rate:.4g})"
            batch = f"{self.sampling.scheme}, {about}{of_all}"
        steps = (
            f"{self.steps:,} ({self.steps * rate:.1f} passes) x {self.chains} chain{'s' * (self.chains > 1)}, "
            f"{self.num_draws:,} draw{'s' * (self.num_draws != 1)} each after {self.burn_in:,} steps, "
            f"one in {self.thin}"
        )
        unit = target_offers(plan.target).unit
        by_owner = "" if unit is None else f"a record is one {unit}: privacy, clipping and sampling are by owner"
        lines = [("sampler", repr(self.sampler)), ("sampling", batch), ("steps", steps)]
        return labelled("unit", by_owner) + lines

    def _costs(self, plan: WholePlan) -> list[tuple[str, str]]:
        z = self.noise.noise_multipliers
        promise = self.noise.promise
        if z is None or promise is None:
            heat = [("temperature", self._with_minibatches(plan, low_to_high(self.temperatures)))]
            return [("privacy", "none: plain SG-MCMC, no guarantee"), *([] if self.offers.optimises else heat)]
        out = [
            ("noise", f"multiplier {low_to_high(z, 4)} (noise std on the clipped sum / clip {promise.clip:g})"),
            ("thesis", self._thesis_line(plan, z, promise)),
        ]
        if self.offers.optimises:
            return out
        intervals = INTERVALS in plan.usable_for
        heat_line = self._with_minibatches(plan, self._heat(intervals))
        free = _free_line(self.noise.free_fraction, intervals)
        return [*out, ("free", free), ("temperature", heat_line), ("time", self._time_line(plan))]

    def _thesis_line(self, plan: WholePlan, z: np.ndarray, promise: Privacy) -> str:
        needed, failed = plan.thesis_multiplier
        if needed is None:
            return str(failed)
        ratio = three_digits(needed / float(z.min()))
        line = f"Wang's formula (constant corrected) would need a multiplier of {needed:.4g}, {ratio} times as much"
        if isinstance(self.sampling, Poisson) and self.sampling.rate(plan.num_records) < 1:
            line += ", with batches of fixed size (it is not proved for Poisson ones)"
        if Adjacency(promise.adjacency) != Adjacency.REPLACE_ONE:
            line += ", under replace_one (it has no other adjacency)"
        return line if failed is None else f"{line}, and does not apply: {failed}"

    def _heat(self, intervals: bool) -> str:
        """Return the temperature of the noise, and whether it is the sampler's own."""
        heat = low_to_high(self.temperatures)
        own = self.temperatures_at(own_noise(self.sampler, self.steps))
        if np.all(self.temperatures <= own * 1.001):
            # A temperature as asked promises nothing where time or clipping disqualify the draws.
            return f"{heat}, {'as asked' if intervals else 'of the noise alone: see intervals below'}"
        return (
            f"{heat}, and the sampler alone has {low_to_high(own)}: privacy needs more noise than the sampler injects"
        )

    def _with_minibatches(self, plan: WholePlan, line: str) -> str:
        """Return a line on temperature with how wide draws are by it, and with what minibatches add."""
        line += _width_clause(self.temperatures[self.burn_in :])
        # A sampler that is told the rate allows for minibatch noise itself.
        if self.sampling.rate(plan.num_records) < 1 and self.offers.with_rate is None:
            line += "; the noise of minibatches adds to it"
        return line

    def _time_line(self, plan: WholePlan) -> str:
        bought = plan.private_time
        assert bought is not None
        used = self.time
        whose = " each chain" if self.chains > 1 else ""
        line = f"the run takes {used:.3g} of Langevin time; at temperature 1 the budget buys{whose} {bought:.3g}"
        line += " (full batches)"
        if plan.in_metric:
            return line + " (in the units of the metric)"
        if self.curvature is not None:
            fastest = self.curvature * plan.num_records
            line += (
                f"; in relaxation times of the direction of curvature {self.curvature:g}: {bought * fastest:.3g} "
                f"bought, {used * fastest:.3g} taken"
            )
        return line


def _least_and_most(values: np.ndarray | None) -> dict[str, float] | None:
    """Return ``min`` and ``max``, as JSON takes them; None without values."""
    return None if values is None else {"min": float(values.min()), "max": float(values.max())}


def _per_step(values: np.ndarray, most: int = 200) -> list[list[float]]:
    """[step, value] wherever the value changes; evenly spaced steps where it changes more often than ``most``."""
    # To six digits: float32 noise is rounded up, so that a constant temperature wavers in its seventh.
    unit = 10.0 ** (np.floor(np.log10(np.maximum(np.abs(values), 1e-300))) - 5)
    values = np.round(values / unit) * unit
    changes = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    if len(changes) > most:
        changes = np.unique(np.linspace(0, len(values) - 1, most).astype(int))
    return [[int(t), float(values[t])] for t in changes]


def _free_line(free: float, intervals: bool) -> str:
    """Return how many steps need no noise for privacy, by their share."""
    if free == 1:
        cost = "" if intervals else "; clipping and a short run still rule out intervals (see there)"
        return f"privacy is free: at every step the sampler's own noise is at least what privacy needs{cost}"
    more = "noise beyond the sampler's own; a larger epsilon or a smaller step_size needs less of it"
    if free == 0:
        return f"every step adds {more}"
    return f"privacy is free on {100 * free:.0f} % of the steps; the other {100 - 100 * free:.0f} % add {more}"


def low_to_high(values: np.ndarray, digits: int = 3) -> str:
    """Return the least and the largest number, or the one where they agree within a thousandth."""
    low = float(values.min())
    high = float(values.max())
    return f"{low:.{digits}g}" if high <= low * 1.001 else f"{low:.{digits}g} to {high:.{digits}g}"


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
