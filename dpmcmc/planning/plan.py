"""A Plan: everything a run will do, decided before a record is read. It is made by ``plan`` (``making.py``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.inference.metric import ReleasedMetric
from dpmcmc.planning import description as plan_text
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.metric import PlannedMetric
from dpmcmc.planning.noise import own_noise
from dpmcmc.planning.verdict import Verdict, of_plan, of_result
from dpmcmc.privacy.accounting.charging import Schedule
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Sampling, expected_batch
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.privacy.query.second_moment import SecondMoment, every_of, multiples
from dpmcmc.samplers.base import Sampler
from dpmcmc.targets.base import Target


@dataclass(frozen=True, eq=False)
class Plan(AnyPlan):
    """A run before it reads a record; made by :func:`dpmcmc.plan`.

    Attributes:
        target, sampler, sampling: what, how, and from which records; the sampler is bound to N.
        num_records: N.
        steps, chains, burn_in, thin: counts of steps; one draw is kept every ``thin`` steps after ``burn_in``.
        privacy: what was asked for, or None for plain SG-MCMC.
        noise_std: s_t, (steps,) float32, std of the noise in gradient units.
        noise_multipliers: s_t·b/(N·C), (steps,) float64, nominal; None without privacy.
        required_multiplier: what the calibrator asked for; 0 where the sampler's own noise suffices.
        guarantee: computed from charged events, or None without privacy.
        free_fraction: share of steps whose noise is the sampler's own.
        slots: rows a batch has room for.
        bits: grid exponent of the exact sum.
        second: the second moment that the sampler asks for beside its gradient, or None.
        second_bits: grid exponent of its sum.
        curvature: public bound on the curvature of the mean loss, or None.
        after: guarantee of the private starting points that the run is given, part of ``guarantee``; or None.
        levels: draws per coordinate of the integer noise of a hardened run, for the gradient and for the second moment.
        coordinates: of integer noise that a step is charged for; None where noise is from floats.
        metric: that the run releases first, with its noise settled, or None; noise, steps and time are then in its
            units.
        schema: public facts of a table's columns, or None where records are arrays.
        reasons: why the plan is as it is, where :func:`dpmcmc.suggest` made it.
        note: why the promise was not taken as it was asked for, where it was not.

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
    privacy: Privacy | None
    noise_std: np.ndarray
    noise_multipliers: np.ndarray | None
    required_multiplier: float
    guarantee: Guarantee | None
    free_fraction: float
    slots: int
    bits: int
    second: SecondMoment | None = None
    second_bits: int = 0
    curvature: float | None = None
    after: Guarantee | None = None
    levels: tuple[int, int] = (0, 0)
    coordinates: int | None = None
    metric: PlannedMetric | None = None
    schema: Schema | None = None
    reasons: tuple[str, ...] = ()
    note: str = ""

    @property
    def hardened(self) -> bool:
        """Whether its keys are ChaCha20's and its noise is drawn in integers."""
        return self.privacy is not None and bool(self.privacy.hardened)

    @property
    def in_metric(self) -> bool:
        """Whether noise, steps and time are in the units of a metric, the run's or the sampler's."""
        return self.metric is not None or getattr(self.sampler, "metric", None) is not None

    @property
    def label_blind(self) -> bool:
        """Whether gradients are weighted so that clipping does not bias the score (``label_blind.py``).

        The default where the target's labels are bounded.
        """
        bounded = getattr(self.target, "bounded_labels", False)
        return self.privacy is not None and self.privacy.clipping != "residual" and bounded

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
        """Temperature kept at each step, (steps,) float64; that of the plan's noise, not of minibatch noise."""
        t = np.arange(self.steps, dtype=np.float64)
        return np.broadcast_to(self.sampler.temperature_at(self.noise_std.astype(np.float64), t), t.shape)

    @property
    def own_temperatures(self) -> np.ndarray:
        """Temperature that the sampler's own noise alone would keep at each step, (steps,) float64."""
        t, own = np.arange(self.steps, dtype=np.float64), own_noise(self.sampler, self.steps)
        return np.broadcast_to(self.sampler.temperature_at(own, t), t.shape)

    @property
    def times(self) -> np.ndarray:
        """Langevin time η_t of each step, (steps,) float64; over the friction for momentum samplers."""
        t = np.arange(self.steps, dtype=np.float64)
        return np.broadcast_to(self.sampler.time_at(self.noise_std.astype(np.float64), t), t.shape)

    @property
    def time(self) -> float:
        """Langevin time the chain runs for, the sum of :attr:`times`."""
        return float(np.sum(self.times))

    @property
    def private_time(self) -> float | None:
        """Time μ²/(2C² chains) that the budget buys EACH chain at temperature 1 from full batches.

        (2μ²/C² unless replace_one.) Each step's Gaussian has μ_t = ΔC/s_t with s_t² = 2/η_t, so Σμ_t² = Δ²C²Ση_t/2
        is at most μ², the Gaussian budget of (ε, δ), less what a metric takes of it. None without privacy.
        """
        if self.privacy is None or self.guarantee is None:
            return None
        epsilon = self.privacy.epsilon if self.privacy.epsilon is not None else self.guarantee.epsilon
        if not math.isfinite(epsilon):
            return math.inf
        sensitivity = self.guarantee.adjacency.sensitivity
        left = 1.0 if self.metric is None else 1 - self.metric.asked.share
        mu = gaussian_mu(epsilon, self.privacy.delta)
        return 2 * left * (mu / (sensitivity * self.privacy.clip)) ** 2 / self.chains

    @property
    def schedule(self) -> Schedule:
        """Noisy queries of a private run."""
        assert self.noise_multipliers is not None
        return Schedule(
            self.noise_multipliers,
            self.sampling,
            self.num_records,
            self.chains,
            multiples(self.second),
            self.after,
            self.coordinates,
            () if self.metric is None else self.metric.events,
            every_of(self.second),
            metric_numbers=0 if self.metric is None else self.metric.release.numbers,
        )

    @property
    def label(self) -> str:
        """Name of the sampler."""
        return type(self.sampler).__name__

    @property
    def trace(self) -> Plan:
        """The plan itself, because the iterates of its sampler leave."""
        return self

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Draws of all chains."""
        return self.num_draws * self.chains

    def verdict_of(self, diagnostics: dict[str, float | None] | None, metric: ReleasedMetric | None = None) -> Verdict:
        """Say what the draws are good for; see :class:`AnyPlan`."""
        return of_plan(self) if diagnostics is None else of_result(self, diagnostics, metric)

    @property
    def thesis_multiplier(self) -> tuple[float | None, str | None]:
        """(z of the corrected thesis formula for this many steps, or None; why it does not apply, or None)."""
        if self.privacy is None or self.privacy.epsilon is None:
            return None, "no target epsilon"
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
        temperatures = self.temperatures
        z = self.noise_multipliers
        return {
            "target": repr(self.target),
            "sampler": repr(self.sampler),
            "sampling": {
                "scheme": self.sampling.scheme,
                "batch_size": self.batch_size,
                "rate": self.sampling.rate(self.num_records),
                "charged_rate": self.sampling.charged_rate(self.num_records),
                "slots": self.slots,
            },
            "num_records": self.num_records,
            "unit": getattr(self.target, "unit", "record"),
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
            "temperature": {"min": float(temperatures.min()), "max": float(temperatures.max())},
            "temperature_per_step": self._per_step(temperatures),
            "time": self.time,
            "private_time": self.private_time,
            "guarantee": self.guarantee.to_json() if self.guarantee is not None and secret else None,
            **self._metric_json(),
            **self.schema_json(),
            **self.sentences_json(),
            **self.verdict.to_json(),
        }

    def _metric_json(self) -> dict[str, object]:
        return {} if self.metric is None else {"metric": self.metric.to_json()}

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
        return plan_text.lines(self, secret)

    def facts(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the plan beside its guarantee."""
        z = self.noise_multipliers
        return {
            "noise_multiplier": None if z is None else {"min": float(z.min()), "max": float(z.max())},
            "multiples": list(multiples(self.second)),
            "second_every": every_of(self.second),
            "steps": self.steps,
            "chains": self.chains,
            "sampling": {
                "scheme": self.sampling.scheme,
                "batch_size": self.batch_size,
                "rate": self.sampling.rate(self.num_records),
                "slots": self.slots,
            },
            "hardened": self.hardened,
            "coordinates": self.coordinates,
            "num_records": self.num_records,
            "free_fraction": None if self.privacy is None else self.free_fraction,
            **self._metric_json(),
        }
