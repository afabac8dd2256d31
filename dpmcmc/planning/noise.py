"""Noise of a run, settled before a record is read: s_t = max(what the sampler injects, what privacy needs).

It is computed once, on the host in float64, and rounded UP to float32. The engine scans that array and the accountant
reads the same array, so what is charged is what is added. A step where the sampler's own noise suffices is free.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Gt, Lt

from dpmcmc.data.schema import RowStructure
from dpmcmc.errors import CalibrationError, Checked, InputError, UnsupportedCombination
from dpmcmc.inference.released_metric import MetricName
from dpmcmc.planning.stages import Private, Stage
from dpmcmc.privacy.accounting import gaussian
from dpmcmc.privacy.accounting.charging import (
    Earlier,
    Privacy,
    Schedule,
    charged_guarantee,
    check_proved,
)
from dpmcmc.privacy.accounting.events import Adjacency, Event
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.own import named
from dpmcmc.privacy.accounting.sampling import expected_batch
from dpmcmc.privacy.calibration import asked_noise
from dpmcmc.privacy.query.exact_sums import fraction_bits
from dpmcmc.privacy.query.gram_release import GramRelease, RowFacts
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.samplers.base import Sampler, sampler_offers
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import Target, parameter_shapes
from dpmcmc.targets.generalised_linear import GeneralisedLinear


class Noise(NamedTuple):
    """Settled noise; the fields are the plan's of the same names."""

    noise_std: np.ndarray
    slots: int
    private: Private | None


def calibrated(
    own: np.ndarray,
    queries: Schedule,
    privacy: Privacy | None,
    second: SecondMoment | None,
    before: tuple[Stage, ...] = (),
) -> Noise:
    """Settle the noise of a run.

    Args:
        own: noise that the sampler injects, in gradient units, (steps,) float64.
        queries: of the run, whatever noise they have.
        privacy: the promise to keep; None for plain SG-MCMC.
        second: second moment that the sampler asks for, or None.
        before: stages that the run begins with, which ``queries`` charge for.

    Raises:
        ValueError: a private step without noise, or noise beyond float32.
        UnsupportedCombination, CalibrationError: no derivation, or a target out of reach.
    """
    if privacy is None:
        slots = queries.sampling.capacity(queries.num_records, 1e-18)[0]
        return Noise(_round_up(own), slots, None)
    unit = unit_of(queries, privacy)
    required = asked_noise(queries.with_noise(own * unit), privacy)
    # Rounding noise up to float32 can regroup a long schedule and cost a little more ε than was calibrated.
    for _ in range(6):
        noise_std = _round_up(np.maximum(own, required / unit))
        noise_multipliers, guarantee, slots = charged(noise_std, queries, privacy)
        if privacy.epsilon is None or guarantee.epsilon <= privacy.epsilon:
            break
        required = 1.002 * np.maximum(required, float(own.min()) * unit)
    else:
        name = named(privacy.calibrator)
        mend = (
            "The thesis's formula is proved by accountant advanced; use that one, or calibrator numeric"
            if name == "closed_form"
            else "Let it ask for more, or use calibrator numeric"
        )
        raise CalibrationError(
            f"calibrator {name} asks for noise that accountant {privacy.accountant} does not accept: epsilon "
            f"{guarantee.epsilon:.6g} where {privacy.epsilon:g} was asked. {mend}"
        )
    check_proved(guarantee.epsilon, privacy.delta, queries.deviations)
    free = float(np.mean(noise_std == _round_up(own)))
    loudest = float(noise_multipliers.max())
    bits = fraction_bits(loudest)
    second_bits = 0 if second is None else fraction_bits(loudest * second.ratio)
    private = Private(
        promise=privacy,
        guarantee=guarantee,
        noise_multipliers=noise_multipliers,
        required_multiplier=float(np.max(required)),
        free_fraction=free,
        bits=bits,
        second_bits=second_bits,
        levels=levels(noise_multipliers, (bits, second_bits), second),
        coordinates=queries.coordinates,
        before=before,
    )
    return Noise(noise_std, slots, private)


def unit_of(queries: Schedule, privacy: Privacy) -> float:
    """Noise multiplier of noise of size 1 in gradient units: z = s · b/(N·C)."""
    return expected_batch(queries.sampling, queries.num_records) / (queries.num_records * privacy.clip)


def charged(noise_std: np.ndarray, queries: Schedule, privacy: Privacy) -> tuple[np.ndarray, Guarantee, int]:
    """(nominal noise multipliers, guarantee, batch slots) of a noise array, (steps,) float32."""
    if not np.all(noise_std > 0):
        raise InputError(
            "a private step with no noise has no guarantee: use temperature > 0, or a calibrator other than free",
            "temperature",
        )
    if not np.all(np.isfinite(noise_std)):
        raise InputError(
            "the noise this plan needs overflows float32; use a larger clip or batch",
            "clip",
        )
    noise_multipliers = noise_std.astype(np.float64) * unit_of(queries, privacy)
    return noise_multipliers, *charged_guarantee(queries.with_noise(noise_multipliers), privacy)


def own_noise(sampler: Sampler, steps: int) -> np.ndarray:
    """Noise that the sampler injects at every step, (steps,) float64."""
    with np.errstate(all="ignore"):
        own = np.asarray(sampler.noise_std(np.arange(steps, dtype=np.float64)), np.float64)
    own = np.broadcast_to(own, (steps,))
    if not (np.all(np.isfinite(own)) and np.all(own >= 0)):
        worst = int(np.argmax(~(np.isfinite(own) & (own >= 0))))
        raise InputError(
            f"step_size: {type(sampler).__name__}.noise_std is {own[worst]:g} at step {worst}; the step size, "
            "or its schedule, must be positive and finite at every step of the run",
            "step_size",
        )
    return own


def levels(z: np.ndarray, bits: tuple[int, int], second: SecondMoment | None) -> tuple[int, int]:
    """Draws per coordinate of the integer noise of the gradient and of the second moment."""
    quietest = float(z.min())
    loudest = float(z.max())
    grid = 2.0 ** bits[0]
    gradient = gaussian.levels_for(quietest * grid, loudest * grid)
    if second is None:
        return gradient, 0
    unit = second.ratio * 2.0 ** bits[1]
    # Entries off the diagonal have 1/√2 of its noise.
    return gradient, gaussian.levels_for(quietest * unit * 0.5**0.5, loudest * unit)


def _round_up(values: np.ndarray) -> np.ndarray:
    """float32 not below the float64 values, so that no rounding takes noise away."""
    rounded = values.astype(np.float32)
    return np.where(rounded < values, np.nextafter(rounded, np.float32(np.inf)), rounded)


# ------------------------------------------------------------------------------------
# A private metric: one release of a second moment, after which every gradient is clipped and noised in its units.
#
#     F² ∝ Ĝ/N + floor·I,     clip ‖F⁻¹g‖ <= C,     noise s·F·Z
#
# A direction that all records share and one that few have then get noise in proportion to what the records say of
# them. The release is a Gaussian mechanism (``gaussian_release.py``), composed with the gradients in one guarantee,
# and F is post-processing of it. F is scaled by what was released so that C is κ times the typical norm
# (``inference/normal_law.py``). So noise, steps and temperature are settled in its units φ = Fθ, from public facts,
# and step sizes are those in φ.
#
# Second moment of what:
#
# * ``gram``: the rows x of a generalised linear model, brought within their public bound by the access itself;
# * ``second_moment``: the gradients of the records at the target's public starting point, clipped to C.


#: κ where it is not given: a logistic gradient is about half as long as its row.
_CLIP_RATIOS: dict[MetricName, float] = {"gram": 0.5, "second_moment": 1.0}
#: Part of the release's μ² for the trace of the second moment, unless that is declared.
_TRACE_SHARE = 0.05
#: Most parameters; the metric is a dense matrix of them.
_MOST_PARAMETERS = 1024


@dataclass(frozen=True)
class PrivateMetric(Checked):
    """Metric that a run releases before its first step, and then clips and adds noise in.

    Args:
        name: ``gram``: second moment of the rows of a generalised linear model with a row_bound; ``second_moment``: of
            the clipped gradients at the starting point, for any target.
        share: part of μ², the squared Gaussian budget of (ε, δ), that the release takes.
        clip_ratio: C over the typical norm, in the metric, of a row (``gram``) or a gradient (``second_moment``); null:
            0.5 and 1.
        structure: what is declared of all rows; a wrong declaration makes the metric worse, not the run less private.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> import dpmcmc
        >>> plan = dpmcmc.plan(
        ...     dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0),
        ...     num_records=1000,
        ...     sampler=dpmcmc.SGLD(step_size=1.0),
        ...     steps=10,
        ...     privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
        ...     metric=dpmcmc.PrivateMetric("gram", share=0.15),
        ... )
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    name: MetricName = "gram"
    share: Annotated[float, Gt(0), Lt(0.95)] = 0.15
    clip_ratio: Annotated[float, Gt(0)] | None = None
    structure: RowStructure | None = dataclasses.field(default=None, kw_only=True, repr=False)

    @property
    def ratio(self) -> float:
        """κ."""
        return _CLIP_RATIOS[self.name] if self.clip_ratio is None else self.clip_ratio

    @property
    def of_rows(self) -> bool:
        """Whether it is a second moment of rows."""
        return self.name == "gram"


@dataclass(frozen=True)
class PlannedMetric:
    """A private metric with the noise of its release settled: a stage of the run.

    Attributes:
        asked: what was asked for.
        clip: C of the run's gradients.
        release: the release; its size is d, its row bound the largest norm of a row or a clipped gradient.
        events: what it costs.
    """

    asked: PrivateMetric
    clip: float
    release: GramRelease
    events: tuple[Event, ...]

    @property
    def typical_norm(self) -> float:
        """C/κ, the typical norm in the metric of a row (``gram``) or a gradient (``second_moment``)."""
        return self.clip / self.asked.ratio

    @property
    def charge(self) -> Earlier:
        """The charge of its release: events, and how many numbers have integer noise."""
        return Earlier(self.events, self.release.numbers)

    def stated(self, secret: bool) -> dict[str, object]:
        """Return its part of ``plan.json``, which says nothing of the run's keys."""
        return self.facts()

    def facts(self) -> dict[str, object]:
        """Return its part of ``privacy.json``."""
        numbers = {
            "name": self.asked.name,
            "share": self.asked.share,
            "clip_ratio": self.asked.ratio,
            "size": self.release.rows.size,
            "noise_std": self.release.noise_std,
            "trace_noise_std": self.release.trace_std,
            "releases": sum(event.count for event in self.events),
            "numbers": self.release.numbers,
        }
        return {"metric": numbers}

    def lines(self) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe it to a person."""
        what = "rows" if self.asked.of_rows else "gradients at the start"
        said = (
            f"{self.asked.name}: the second moment of {what} is released with {100 * self.asked.share:.3g} % of the "
            f"squared budget; gradients are then clipped, at {self.asked.ratio:g} times the typical norm, and noised "
            "in its units, which are those of the step size"
        )
        return [("metric", said)]


def planned_metric(
    metric: PrivateMetric,
    target: Target,
    sampler: Sampler,
    num_records: int,
    privacy: Privacy | None,
) -> PlannedMetric:
    """Settle the noise of a metric's release.

    Args:
        metric: asked for.
        target: model.
        sampler: that runs in the metric.
        num_records: N.
        privacy: promise of the whole run.

    Raises:
        UnsupportedCombination: a run, sampler or target that a private metric is not derived for.
        ValueError: a public number that is not given.
        CalibrationError: a share so small that its noise has no grid.
    """
    promise, epsilon = _promised(privacy, sampler)
    adjacency = Adjacency(promise.adjacency)
    structure = metric.structure if metric.of_rows else None
    size, bound = _gram_facts(target) if metric.of_rows else (_parameters(target), promise.clip)
    if structure is not None:
        structure.check(size)
    most_records = num_records + (adjacency == Adjacency.ADD_REMOVE)
    rows = RowFacts(most_records, size, bound, structure is not None and structure.unit_norm)
    mu = gaussian_mu(epsilon, promise.delta) * math.sqrt(metric.share)
    trace = 0.0 if rows.trace_declared(adjacency) or not metric.of_rows else _TRACE_SHARE
    release = GramRelease.calibrate(rows, adjacency, mu * math.sqrt(1 - trace), mu * math.sqrt(trace or 1.0))
    if not metric.of_rows:
        # Gradients may be far shorter than their bound; the noisy matrix tells its own trace (``engine/chains.py``).
        release = dataclasses.replace(release, trace_std=0.0)
    return PlannedMetric(metric, promise.clip, release, release.events(adjacency))


def _promised(privacy: Privacy | None, sampler: Sampler) -> tuple[Privacy, float]:
    """(promise, ε) of a run that may have a private metric."""
    if privacy is None:
        raise UnsupportedCombination(
            "metric: a private metric is released at a share of a privacy budget, and this run has none; leave it out.",
            "metric",
        )
    if privacy.epsilon is None or privacy.calibrator in ("closed_form", "free"):
        raise UnsupportedCombination(
            f"metric: calibrator {named(privacy.calibrator)} leaves no room for the metric's release; use calibrator "
            "numeric with an epsilon.",
            "metric",
        )
    if sampler_offers(sampler).metric is not None:
        raise UnsupportedCombination(
            f"metric: {type(sampler).__name__} has a public metric of its own; leave one of the two out.",
            "metric",
        )
    return privacy, privacy.epsilon


def _gram_facts(target: Target) -> tuple[int, float]:
    """(d, row_bound) of a generalised linear model."""
    name = type(target).__name__
    if not isinstance(target, GeneralisedLinear):
        raise UnsupportedCombination(
            f"metric: gram is the second moment of the rows of a generalised linear model, and the target is {name}; "
            "use second_moment.",
            "metric",
        )
    bound = target.row_bound
    if bound is None:
        raise InputError(
            f"row_bound: metric gram needs this public bound of {name}; give it",
            "row_bound",
        )
    if target.num_features is None:
        raise InputError(
            f"num_features: {name} needs it before a plan with a metric; give it",
            "num_features",
        )
    return _checked(target.num_features), bound


def _parameters(target: Target) -> int:
    """Number of parameters."""
    shapes = parameter_shapes(target)
    if shapes is None:
        raise InputError(
            "metric: second_moment is charged by the parameter, and this target has its shape from the data alone; "
            "give its number of features (num_features)",
            "metric",
        )
    return _checked(size_of(shapes))


def _checked(size: int) -> int:
    if size > _MOST_PARAMETERS:
        raise UnsupportedCombination(
            f"metric: is a dense matrix of at most {_MOST_PARAMETERS:,} parameters, and there are {size:,}; leave it "
            "out.",
            "metric",
        )
    return size
