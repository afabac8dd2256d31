"""``plan``: from what is asked of a chain to a Plan, without data."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import jax
import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.mechanisms.noise_aware.mechanism import NoiseAware
from dpmcmc.mechanisms.noise_aware.regression_plan import MOST_RELEASED
from dpmcmc.planning.noise import own_noise, settle_noise, unit_of
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.private_metric import PlannedMetric, PrivateMetric, planned_metric
from dpmcmc.planning.sampler_run import SamplerRun
from dpmcmc.planning.stages import GivenStarts, Stage
from dpmcmc.planning.verdict import with_verdict
from dpmcmc.privacy.accounting.charging import UNKNOWN_COORDINATES, Earlier, Schedule, check_proved
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.own import named
from dpmcmc.privacy.accounting.promise import Privacy, check_delta
from dpmcmc.privacy.accounting.sampling import Full, Sampling, expected_batch
from dpmcmc.privacy.calibration import asked_noise
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.second_moment import SecondMoment, asked, every_of, multiples, released_shape
from dpmcmc.samplers.base import Sampler, missing_of, sampler_offers
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.absent_records import check_absent
from dpmcmc.targets.base import Target, parameter_shapes, target_offers

#: Most of the squared budget that a metric and an end may have together.
_MOST_BESIDE_STEPS = 0.95
#: Most steps that passes may be, since a plan holds the noise of every step in memory.
MOST_STEPS = 20_000_000


def plan(
    target: Target,
    *,
    num_records: int,
    sampler: Sampler,
    sampling: Sampling | None = None,
    steps: int | None = None,
    passes: float | None = None,
    chains: int = 1,
    burn_in: float = 0,
    thin: int = 1,
    privacy: Privacy | None = ...,  # type: ignore[assignment]  # left out: refused
    curvature: float | None = None,
    after: Guarantee | Plan | None = None,
    metric: PrivateMetric | None = None,
    end: NoiseAware | Literal["auto"] | None = "auto",
    schema: Schema | None = None,
) -> Plan:
    """Decide noise and guarantee for a run, without data.

    Args:
        target: the model.
        num_records: N, a public constant.
        sampler: for example ``dpmcmc.SGLD(step_size=16.0)``.
        sampling: ``Poisson(b)`` | ``FixedSize(b)`` | ``Full()`` (the default).
        steps: per chain; give these or passes.
        passes: over the data: steps = ceil(passes·N/b).
        chains: each is charged.
        burn_in: steps before the first kept stretch, a whole number; or their share of all, as 0.5.
        thin: a draw is kept after every ``thin`` steps.
        privacy: a :class:`Privacy`, or None for plain SG-MCMC without a guarantee; it has to be said.
        curvature: public bound on the largest curvature of the MEAN loss, prior included, if one is known; a step
            beyond its stability limit is refused.
        after: what the run starts from: a mechanism's plan of one draw, which the run makes first and every chain
            starts from; or the guarantee of private starting points that ``sample`` will be given. The plan's
            guarantee, and the ε that ``privacy`` asks for, are those of both together.
        metric: a :class:`PrivateMetric` that the run releases first, part of the same guarantee; step sizes are then in
            its units. None: the identity.
        end: ``NoiseAware(...)``: a posterior follows from the path, as that of :func:`dpmcmc.fit` does. With up to 100
            coefficients, curvature and spread of scores are released where the path ends, in the same guarantee, and
            clip_ratio then is 1 where none is given. auto: every logistic regression in metric gram has one, with
            covariance sandwich where the spread is released. None: draws are the chain's own.
        schema: public ranges and levels of a table's columns. The target takes its numbers of features and classes and
            its bounds from it, and :func:`dpmcmc.sample` a table.

    Returns:
        Plan.

    Raises:
        ValueError: privacy left out, numbers that make no run, δ >= 1/N, a private step without noise.
        UnsupportedCombination: no derivation for the combination.
        CalibrationError: the target cannot be met.
    """
    if privacy is not None and not isinstance(privacy, Privacy):
        got = "" if privacy is ... else f", got {privacy!r}"
        raise InputError(
            "privacy: say privacy=dpmcmc.Privacy(epsilon=…, delta=…), or privacy=None for a run without a guarantee"
            f"{got}",
            "privacy",
        )
    sampling = Full() if sampling is None else sampling
    if not (end is None or end == "auto" or isinstance(end, NoiseAware)):
        raise InputError(f"end: must be a NoiseAware, 'auto' or None, got {end!r}", "end")
    target, metric, end = _add_facts(schema, target, metric, end, privacy)
    _check_whole("num_records", num_records, 1)
    sampling.validate(num_records)
    steps, burn_in = length(sampling, num_records, steps, passes, burn_in)
    _check_counts(steps, chains, burn_in, thin)
    starts = _starts(after, privacy)
    if privacy is not None:
        check_delta(privacy.delta, num_records)
    _check_curvature(curvature)
    bound = _bound(sampler, sampling, num_records)
    second = asked(bound.queries)
    coordinates = None if privacy is None else _coordinates(target, second)
    charges = tuple(stage.charge for stage in starts)
    size = (num_records, chains, multiples(second), coordinates, charges)
    queries = Schedule(np.zeros(steps), sampling, *size, every=every_of(second))
    _check_epsilon(privacy, queries, 0 if metric is None else 1 if end is None else 4)
    before = starts
    ends: tuple[Stage, ...] = ()
    if metric is not None:
        _check_metric(metric, starts, curvature)
        planned = planned_metric(metric, target, bound, num_records, privacy)
        before, ends = _with_end(end, planned, target, sampling, num_records, privacy)
        queries = dataclasses.replace(queries, earlier=tuple(stage.charge for stage in (*before, *ends)))
    elif isinstance(end, NoiseAware):
        raise UnsupportedCombination("end: the posterior follows from a run in a metric; give metric too.", "end")
    if sampler_offers(bound).unresolved:
        bound = _with_solved_step(bound, queries, privacy)
    check_fit(target, bound)
    _check_clipping(target, privacy)
    noise = settle_noise(own_noise(bound, steps), queries, privacy, second)
    _check_dynamics(bound, noise.noise_std, curvature)
    run = SamplerRun(
        sampler=bound,
        sampling=sampling,
        steps=steps,
        chains=chains,
        burn_in=burn_in,
        thin=thin,
        curvature=curvature,
        second=second,
        noise=noise,
    )
    return with_verdict(Plan(target, num_records, (*before, run, *ends), schema))


def _add_facts(
    schema: Schema | None,
    target: Target,
    metric: PrivateMetric | None,
    end: NoiseAware | Literal["auto"] | None,
    privacy: Privacy | None,
) -> tuple[Target, PrivateMetric | None, NoiseAware | Literal["auto"] | None]:
    """Return target, metric and end with the facts of a table."""
    if privacy is not None:
        check_absent(target, privacy.adjacency, schema is not None)
    if schema is None:
        return target, metric, end
    metric = schema.with_public_facts(metric, target)
    return schema.with_public_facts(target), metric, end if end == "auto" else schema.with_public_facts(end, target)


def _with_end(
    asked_for: NoiseAware | Literal["auto"] | None,
    metric: PlannedMetric,
    target: Target,
    sampling: Sampling,
    num_records: int,
    privacy: Privacy | None,
) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    """Return the stages before a chain in a metric, and those after it."""
    assert privacy is not None  # a metric has a share of its budget
    if asked_for is None:
        return (metric,), ()
    released = metric.release.rows.size <= MOST_RELEASED
    end = NoiseAware(covariance="sandwich" if released else "model") if asked_for == "auto" else asked_for
    try:
        ended, stage = end.end_of_chain(target, metric, sampling, num_records, privacy)
    except UnsupportedCombination:
        if asked_for != "auto":
            raise
        return (metric,), ()
    if metric.asked.share + stage.share <= _MOST_BESIDE_STEPS:
        return (ended,), (stage,)
    if asked_for == "auto":
        return (metric,), ()
    raise InputError(
        f"end: takes {stage.share:.0%} of the squared budget and the metric {metric.asked.share:.0%}, which leaves the "
        "steps too little; give the metric a smaller share",
        "end",
    )


def length(
    sampling: Sampling,
    num_records: int,
    steps: int | None,
    passes: float | None,
    burn_in: float,
) -> tuple[int, int]:
    """Return (steps, steps of burn-in); arguments as of :func:`plan`.

    Raises:
        InputError: neither or both of steps and passes, or numbers that are none of a run.
    """
    if (passes is None) == (steps is None):
        raise InputError("give exactly one of passes and steps", "steps")
    if passes is not None:
        if not (0 < passes < math.inf):
            raise InputError(f"passes must be a finite number > 0, got {passes!r}", "passes")
        # The tolerance absorbs rounding: 0.1 + 0.2 passes take no more steps than 0.3.
        steps = max(1, math.ceil(passes / sampling.rate(num_records) - 1e-9))
        if steps > MOST_STEPS:
            raise InputError(
                f"{passes:g} is {steps:.3g} steps, and a run has at most {MOST_STEPS}",
                "passes",
            )
    assert steps is not None
    _check_whole("steps", steps, 1)
    if isinstance(burn_in, float):
        if not 0 <= burn_in < 1:
            raise InputError(
                f"burn_in must be a whole number of steps, or a share of them in [0, 1), got {burn_in!r}",
                "burn_in",
            )
        burn_in = math.floor(burn_in * steps + 1e-9)
    _check_whole("burn_in", burn_in, 0)
    return steps, burn_in


def _check_whole(name: str, value: object, least: int) -> None:
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:  # type: ignore[operator]
        raise InputError(f"{name} must be a whole number >= {least}, got {value!r}", name)


def _check_counts(steps: int, chains: int, burn_in: int, thin: int) -> None:
    _check_whole("chains", chains, 1)
    _check_whole("thin", thin, 1)
    if steps - burn_in < thin:
        raise InputError(
            f"no draw would be kept: steps {steps} - burn_in {burn_in} is less than thin {thin}; "
            "take more steps, or a smaller burn_in or thin",
            "thin",
        )


def _starts(after: Guarantee | Plan | None, privacy: Privacy | None) -> tuple[Stage, ...]:
    """Return the stage of a private start, if there is one; refuse one that does not fit the run."""
    if after is None:
        return ()
    guarantee = after.guarantee if isinstance(after, Plan) else after
    if guarantee is None or privacy is None or guarantee.adjacency != privacy.adjacency:
        raise UnsupportedCombination("a private start needs a private run after it, under the same adjacency.")
    if not isinstance(after, Plan):
        return (GivenStarts(guarantee),)
    if after.release is None or after.draws != 1:
        raise InputError(
            f"after: a run starts at one draw of a mechanism, not at {after.draws} of {after.label}",
            "after",
        )
    return (after.release.replaced(verdict=after.verdict),)


def _check_curvature(curvature: float | None) -> None:
    if curvature is not None and not (curvature > 0 and math.isfinite(curvature)):
        raise InputError(f"curvature must be a finite number > 0, got {curvature}", "curvature")


def _check_epsilon(privacy: Privacy | None, queries: Schedule, matrices: int) -> None:
    """Refuse an ε beyond the largest that integer noise is proved for.

    Args:
        privacy: promise of the run.
        queries: of its steps.
        matrices: second moments that a metric and an end release at most. Their noise is settled from ε, so their
            numbers are not known yet: those of a symmetric matrix and of a trace at most.
    """
    if privacy is None or privacy.epsilon is None:
        return
    if matrices and queries.coordinates is not None:
        most = matrices * (queries.coordinates * (queries.coordinates + 1) // 2 + 1)
        queries = dataclasses.replace(queries, earlier=(Earlier((), most),))
    check_proved(privacy.epsilon, privacy.delta, queries.deviations)


def _check_metric(metric: PrivateMetric, starts: tuple[Stage, ...], curvature: float | None) -> None:
    """Refuse what is no metric, and what is in the target's own coordinates beside one that only the run releases."""
    if not isinstance(metric, PrivateMetric):
        raise InputError(f"metric must be a dpmcmc.PrivateMetric or None, got {metric!r}", "metric")
    if starts:
        raise UnsupportedCombination(
            "metric: a private start is not derived beside it; leave one of the two out.",
            "metric",
        )
    if curvature is not None:
        raise InputError(
            "curvature: is that of the model's own coordinates, and steps are taken in those of the metric; leave it "
            "out",
            "curvature",
        )


def _check_clipping(target: Target, privacy: Privacy | None) -> None:
    """Refuse label-blind clipping of a target that states no bound on its labels."""
    asked_for = privacy is not None and privacy.clipping == "label_blind"
    if asked_for and not target_offers(target).bounded_labels:
        raise InputError(
            "clipping label_blind weights a record by the longest gradient that any label would give it, and "
            f"{type(target).__name__} states no bounded labels: use clipping residual",
            "clipping",
        )


def _bound(sampler: Sampler, sampling: Sampling, num_records: int) -> Sampler:
    """The sampler, told N and the rate of its batches."""
    missing = missing_of(sampler)
    if missing:
        raise TypeError(
            f"sampler must be a Sampler such as dpmcmc.SGLD(step_size=16.0), got {sampler!r}, which lacks "
            f"{', '.join(missing)}"
        )
    bound = sampler.bind(num_records)
    with_rate = sampler_offers(bound).with_rate
    return bound if with_rate is None else with_rate(expected_batch(sampling, num_records) / num_records)


def _with_solved_step(sampler: Any, queries: Schedule, privacy: Privacy | None) -> Sampler:
    """The sampler with its step size, or friction, solved from the noise that privacy alone needs."""
    if privacy is None:
        raise InputError(
            "step_size auto and friction matched are solved from a privacy target; give numbers here",
            "step_size",
        )
    if privacy.calibrator == "free":
        raise InputError(
            "step_size auto and friction matched need a target: use calibrator numeric with an epsilon",
            "calibrator",
        )
    name = type(sampler).__name__
    with_noise = sampler_offers(sampler).with_noise
    if with_noise is None:
        raise InputError(
            f"step_size auto needs a sampler with with_noise(noise_std), and {name} has none: give a number, or write "
            "it",
            "step_size",
        )
    alone = asked_noise(queries, privacy)
    if not isinstance(alone, float):
        raise InputError(
            f"step_size auto and friction matched are solved from one noise multiplier, and calibrator "
            f"{named(privacy.calibrator)} returns one a step; give a number",
            "step_size",
        )
    solved = with_noise(alone / unit_of(queries, privacy) * (1 + 1e-9))
    if asked(solved.queries) != asked(sampler.queries):
        raise InputError(f"{name}.with_noise changes what the sampler asks for; it may not", "sampler")
    return solved


def _coordinates(target: Target, second: SecondMoment | None) -> int:
    """Return how many noisy numbers a step is charged for; the query holds the run to them.

    As many as the target has now; where only the data tell, so many that hardly any target has more: a number costs
    less than 1e-32 of δ.
    """
    params = parameter_shapes(target)
    if params is None:
        return UNKNOWN_COORDINATES
    return size_of([params] if second is None else [params, released_shape(second, params).value])


def check_fit(target: Target, sampler: Sampler) -> None:
    """Refuse a sampler whose public matrices do not fit the target, where its shapes are known already."""
    params = parameter_shapes(target)
    if params is None:  # ``sample`` checks again
        return
    state = jax.eval_shape(sampler.init, jax.random.key(0), params)
    second = asked(sampler.queries)
    moment = () if second is None else (released_shape(second, params),)
    number: Any = jax.ShapeDtypeStruct((), np.float32)
    gradient = PrivateGradient(params, number, moment)
    step = jax.ShapeDtypeStruct((), np.int32)
    following = jax.eval_shape(sampler.step, jax.random.key(0), state, gradient, step)
    name = type(sampler).__name__
    if not isinstance(following, tuple) or len(following) != 2 or not hasattr(following[0], "position"):
        raise InputError(
            f"sampler: {name}.step must return (State, Info), its State with a field position",
            "sampler",
        )
    if [leaf.shape for leaf in jax.tree.leaves(following[0])] != [leaf.shape for leaf in jax.tree.leaves(state)]:
        raise InputError(
            f"sampler: {name}.step must return a State of the form that init returns",
            "sampler",
        )


def _check_dynamics(sampler: Sampler, noise_std: np.ndarray, curvature: float | None) -> None:
    """Refuse noise the dynamics cannot take, and a step beyond the stability limit of a known curvature."""
    s = noise_std.astype(np.float64)
    t = np.arange(len(noise_std), dtype=np.float64)
    offers = sampler_offers(sampler)
    if offers.check is not None:
        offers.check(s, t)
    if curvature is None:
        return
    if offers.stability_limit is None or offers.eta is None:
        raise InputError(
            f"curvature: {type(sampler).__name__} states no stability_limit to hold against it; leave it out",
            "curvature",
        )
    largest = np.broadcast_to(np.asarray(offers.stability_limit(s, t)), t.shape) / curvature
    step_size = np.broadcast_to(np.asarray(offers.eta(t)), t.shape) * sampler.num_records  # type: ignore[attr-defined]
    if np.any(step_size >= largest):
        worst = int(np.argmax(step_size / largest))
        raise InputError(
            f"step_size {step_size[worst]:.4g} (step {worst}) is at or beyond the stability limit {largest[worst]:.4g} "
            f"of a mean loss with curvature {curvature:g}: lower it below that",
            "step_size",
        )
