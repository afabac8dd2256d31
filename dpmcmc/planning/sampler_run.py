"""The stage that a sampler adds to a plan: chains of noisy gradient steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dpmcmc.planning.description import labelled
from dpmcmc.planning.noise import Noise
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
from dpmcmc.samplers.base import Sampler

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
        return self.replaced(noise=self.noise.replaced(guarantee=self.guarantee.assuming(*sentences)))

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

    def sections(self, plan: WholePlan) -> dict[str, Any]:
        """Return sampler, sampling, run and privacy."""
        counts = {"steps": self.steps, "chains": self.chains, "burn_in": self.burn_in, "thin": self.thin}
        promise = {} if self.noise.promise is None else {"privacy": settings(self.noise.promise)}
        return {
            "sampler": section(self.sampler, SAMPLERS),
            "sampling": {"scheme": self.sampling.scheme} | settings(self.sampling),
            "run": counts,
            **promise,
        }

    def stated(self, plan: WholePlan, secret: bool) -> dict[str, object]:
        """Return the run in numbers."""
        noise = self.noise
        clipping = "label_blind" if plan.label_blind else "residual"
        facts = self.facts(plan)
        return {name: facts[name] for name in ("steps", "chains", "noise_multiplier", "free_fraction")} | {
            "sampler": repr(self.sampler),
            "sampling": self._drawn(plan) | {"charged_rate": self.sampling.charged_rate(plan.num_records)},
            "burn_in": self.burn_in,
            "thin": self.thin,
            "draws_per_chain": self.num_draws,
            "clipping": None if noise.promise is None else clipping,
            "required_multiplier": None if noise.promise is None else noise.required_multiplier,
            "thesis_multiplier": plan.thesis_multiplier[0],
            "thesis_condition": plan.thesis_multiplier[1],
            "temperature": plan.temperature_range,
            "temperature_per_step": None if plan.optimises else _per_step(plan.temperatures),
            "time": None if plan.optimises else plan.time,
            "private_time": None if plan.optimises else plan.private_time,
        }

    def facts(self, plan: WholePlan) -> dict[str, object]:
        """Return what a verifier needs beside the guarantee."""
        noise = self.noise
        return {
            "noise_multiplier": _least_and_most(noise.noise_multipliers),
            "multiples": list(multiples(self.second)),
            "second_every": every_of(self.second),
            "steps": self.steps,
            "chains": self.chains,
            "sampling": self._drawn(plan),
            "coordinates": noise.coordinates,
            "free_fraction": None if noise.promise is None else noise.free_fraction,
        }

    def _drawn(self, plan: WholePlan) -> dict[str, object]:
        return {
            "scheme": self.sampling.scheme,
            "batch_size": plan.batch_size,
            "rate": self.sampling.rate(plan.num_records),
            "slots": self.noise.slots,
        }

    def lines(self, plan: WholePlan) -> list[tuple[str, str]]:
        """Return the sampler, its batches and its steps."""
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
        unit = plan.target_offers.unit
        by_owner = "" if unit is None else f"a record is one {unit}: privacy, clipping and sampling are by owner"
        return [
            *labelled("unit", by_owner),
            ("sampler", repr(self.sampler)),
            ("sampling", batch),
            ("steps", steps),
        ]

    def costs(self, plan: WholePlan) -> list[tuple[str, str]]:
        """Return the noise of privacy, and the temperature and the Langevin time that follow."""
        heat = _range(plan.temperatures)
        z = self.noise.noise_multipliers
        promise = self.noise.promise
        if z is None or promise is None:
            alone = [] if plan.optimises else [("temperature", _with_minibatches(plan, heat))]
            return [("privacy", "none: plain SG-MCMC, no guarantee"), *alone]
        spread = f"{z.min():.4g}" if z.max() <= z.min() * 1.001 else f"{z.min():.4g} to {z.max():.4g}"
        out = [
            ("noise", f"multiplier {spread} (noise std on the clipped sum / clip {promise.clip:g})"),
            ("thesis", _thesis_line(plan, z, promise)),
        ]
        if plan.optimises:
            return out
        return [
            *out,
            ("free", _free_line(plan)),
            ("temperature", _temperature_line(plan, heat)),
            ("time", _time_line(plan)),
        ]


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


def _thesis_line(plan: WholePlan, z: np.ndarray, promise: Privacy) -> str:
    needed, failed = plan.thesis_multiplier
    if needed is None:
        return str(failed)
    ratio = three_digits(needed / float(z.min()))
    line = f"Wang's formula (constant corrected) would need a multiplier of {needed:.4g}, {ratio} times as much"
    if isinstance(plan.sampling, Poisson) and plan.sampling.rate(plan.num_records) < 1:
        line += ", with batches of fixed size (it is not proved for Poisson ones)"
    if Adjacency(promise.adjacency) != Adjacency.REPLACE_ONE:
        line += ", under replace_one (it has no other adjacency)"
    return line if failed is None else f"{line}, and does not apply: {failed}"


def _free_line(plan: WholePlan) -> str:
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


def _temperature_line(plan: WholePlan, heat: str) -> str:
    own = plan.own_temperatures
    # A temperature as asked promises nothing where time or clipping disqualify the draws.
    of_what = "as asked" if INTERVALS in plan.usable_for else "of the noise alone: see intervals below"
    line = (
        f"{heat}, {of_what}"
        if np.all(plan.temperatures <= own * 1.001)
        else f"{heat}, and the sampler alone has {_range(own)}: privacy needs more noise than the sampler injects"
    )
    return _with_minibatches(plan, line)


def _with_minibatches(plan: WholePlan, line: str) -> str:
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


def _time_line(plan: WholePlan) -> str:
    bought = plan.private_time
    assert bought is not None
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
