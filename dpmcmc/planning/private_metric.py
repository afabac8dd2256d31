"""A private metric: one release of a second moment, after which every gradient is clipped and noised in its units.

    F² ∝ Ĝ/N + floor·I,     clip ‖F⁻¹g‖ <= C,     noise s·F·Z

A direction that all records share and one that few have then get noise in proportion to what the records say of
them. The release is a Gaussian mechanism (``gaussian_release.py``), composed with the gradients in one guarantee,
and F is post-processing of it. F is scaled by what was released so that C is κ times the typical norm
(``inference/normal_law.py``). So noise, steps and temperature are settled in its units φ = Fθ, from public facts,
and step sizes are those in φ.

Second moment of what:

* ``gram``: the rows x of a generalised linear model, brought within their public bound by the access itself;
* ``second_moment``: the gradients of the records at the target's public starting point, clipped to C.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Self

from annotated_types import Gt, Lt

from dpmcmc.data.structure import RowStructure
from dpmcmc.errors import Checked, InputError, UnsupportedCombination
from dpmcmc.inference.released_metric import MetricName
from dpmcmc.planning.description import Description
from dpmcmc.planning.settings_json import settings
from dpmcmc.planning.stages import Stage
from dpmcmc.planning.whole_plan import WholePlan
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.charging import Earlier
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.own import named
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.query.gram_release import GramRelease, RowFacts
from dpmcmc.samplers.base import Sampler, sampler_offers
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import Target, parameter_shapes
from dpmcmc.targets.generalised_linear import GeneralisedLinear

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
            0.5 and 1; 1 of a chain whose end releases a curvature.
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
class PlannedMetric(Stage):
    """A private metric with the noise of its release settled; the chain after it charges for it in its own guarantee.

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

    guarantee = None

    @property
    def typical_norm(self) -> float:
        """C/κ, the typical norm in the metric of a row (``gram``) or a gradient (``second_moment``)."""
        return self.clip / self.asked.ratio

    def clipped_at(self, ratio: float) -> Self:
        """Return the metric with another κ, which its release does not depend on."""
        return dataclasses.replace(self, asked=dataclasses.replace(self.asked, clip_ratio=ratio))

    @property
    def charge(self) -> Earlier:
        """The charge of its release: events, and how many numbers have integer noise."""
        return Earlier(self.events, self.release.numbers)

    def describe(self, plan: WholePlan, secret: bool) -> Description:
        """Return what is released, and what follows in its units; nothing of it depends on the run's keys."""
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
        what = "rows" if self.asked.of_rows else "gradients at the start"
        said = (
            f"{self.asked.name}: the second moment of {what} is released with {100 * self.asked.share:.3g} % of the "
            f"squared budget; gradients are then clipped, at {self.asked.ratio:g} times the typical norm, and noised "
            "in its units, which are those of the step size"
        )
        stated = {"metric": numbers}
        sections = {"metric": settings(self.asked)} | ({"end": None} if plan.end is None else {})
        return Description(sections, stated, stated, [("metric", said)])


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
    return _check_size(target.num_features), bound


def _parameters(target: Target) -> int:
    """Number of parameters."""
    shapes = parameter_shapes(target)
    if shapes is None:
        raise InputError(
            "metric: second_moment is charged by the parameter, and this target has its shape from the data alone; "
            "give its number of features (num_features)",
            "metric",
        )
    return _check_size(size_of(shapes))


def _check_size(size: int) -> int:
    if size > _MOST_PARAMETERS:
        raise UnsupportedCombination(
            f"metric: is a dense matrix of at most {_MOST_PARAMETERS:,} parameters, and there are {size:,}; leave it "
            "out.",
            "metric",
        )
    return size
