"""Lines that ``plan`` and ``run`` print of a plan and of a release.

Both begin with the same lines (:func:`lines_of_plan`), and end with what the release is for (:func:`uses`). A refusal
has its reason in five words, and beside it the command that would do better and the command for all reasons. Everything
here is made of public facts and of released values.
"""

from __future__ import annotations

import math
from pathlib import Path

from dpmcmc.data.base import DataSpec
from dpmcmc.data.request import Privatised
from dpmcmc.inference.normal_law import MOST_COEFFICIENTS
from dpmcmc.inference.scores import score_of
from dpmcmc.planning.permitted_uses import IF_TRUE, Verdict
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.sampling import Full, expected_batch
from dpmcmc.privacy.accounting.shown_numbers import round_up, three_digits
from dpmcmc.report.lines import LABEL, NO, WIDTH, YES, Row
from dpmcmc.report.words import model
from dpmcmc.samplers.optax import Optax
from dpmcmc.storage.pytree import size_of
from dpmcmc.targets.base import parameter_shapes
from dpmcmc.targets.linear import LinearRegression

_UNITS = {
    "replace_one": "one {} replaced",
    "add_remove": "one {} added or removed",
    "zero_out": "one {} counted or not",
    "one_label": "label of one {} changed, features not protected",
}
_MECHANISMS = {
    "NoiseAware": "a noise-aware release, {:,} draws from its posterior",
    "LabelPosterior": "randomised labels, {:,} draws from their posterior",
}
_RELEASED = {
    "trace": "all iterates covered",
    "last_iterate": "the last iterate alone covered",
}


def lines_of_plan(
    name: str,
    plan: Plan,
    spec: DataSpec,
    *,
    secret: bool,
    asked: float | None,
    features: int | None,
    origin: str,
) -> list[Row]:
    """Return what will be done and what it costs.

    Args:
        name: of the config.
        plan: of the run.
        spec: what is declared of the data.
        secret: whether the noise of the run is.
        asked: ε that the config asks for, or None.
        features: columns of a row, or None.
        origin: where the records are from, in words.
    """
    what = f"{plan.num_records:,} {_briefly(plan.unit)}s"
    across = f" × {features:,} features" if features else ""
    lines = [
        (name, f"{_model(plan)}, {what}{across} ({origin})"),
        ("privacy", _privacy(plan, secret, asked, spec.privatised)),
        _method(plan),
    ]
    if spec.records_per_owner is not None:
        lines.insert(1, ("owners", f"of at most {spec.records_per_owner} rows each"))
    return lines


def _briefly(unit: str) -> str:
    """Return whom a guarantee speaks of, without what an owner's rows are bounded by."""
    return unit.partition(" (")[0]


def _model(plan: Plan) -> str:
    said = model(plan.target).removeprefix("Bayesian ")
    said = said.partition(" with ")[0].partition(", in which ")[0]
    # The words for an object that describes itself by nothing but its address are its class.
    plain = len(said) <= WIDTH - LABEL and " object at 0x" not in said
    return said if plain else type(plan.target).__name__


def _privacy(plan: Plan, secret: bool, asked: float | None, came_with: Privatised | None) -> str:
    if plan.guarantee is None and came_with is not None:
        return f"nothing more is charged: {came_with}"
    if plan.guarantee is None:
        return "none: nothing is promised of the draws"
    said = line_of_promise(plan.guarantee, plan.unit, asked)
    return said if secret else f"NONE: the noise is known; secret noise would give {said}"


def line_of_promise(guarantee: Guarantee, unit: str, asked: float | None = None) -> str:
    """Return a guarantee in one line.

    Args:
        guarantee: it.
        unit: what is protected: a record or an owner.
        asked: ε that was asked for, or None.
    """
    epsilon = str(round_up(guarantee.epsilon, 3)) if math.isfinite(guarantee.epsilon) else "has no bound"
    wanted = "" if asked is None else f" (asked {asked:g})"
    neighbours = _UNITS[str(guarantee.adjacency)].format(_briefly(unit))
    released = _RELEASED.get(guarantee.release, "the release covered")
    return f"ε {epsilon}{wanted}, δ {power(guarantee.delta)}, {neighbours}; {released}"


def power(value: float) -> str:
    """Return a small number in print: 1e-6."""
    return f"{value:.3g}".replace("e-0", "e-")


def _method(plan: Plan) -> Row:
    if plan.run is None:
        if plan.label in _MECHANISMS:
            return ("mechanism", _MECHANISMS[plan.label].format(plan.draws))
        what = "one draw" if plan.draws == 1 else f"{plan.draws:,} draws"
        return ("mechanism", f"{plan.label}, {what}")
    chains = "1 chain" if plan.chains == 1 else f"{plan.chains:,} chains"
    metric = " in a private metric" if plan.metric is not None else ""
    batch = (
        f"all {_briefly(plan.unit)}s"
        if isinstance(plan.sampling, Full)
        else f"batches of {expected_batch(plan.sampling, plan.num_records):,.0f}"
    )
    # A posterior that follows from a path does not have the path's temperature.
    hottest = 0.0 if plan.verdict.from_path or plan.sampler_run.offers.optimises else float(plan.temperatures.max())
    heat = f", temperature {three_digits(hottest)}" if hottest > _HOT else ""
    return (
        "sampler",
        f"{plan.label}{_rule(plan)}{metric}, {chains} × {plan.steps:,} steps, {batch}{heat}",
    )


def _rule(plan: Plan) -> str:
    """Return the name of an optimiser's rule, where it has one."""
    rule = plan.sampler.rule if isinstance(plan.sampler, Optax) else None
    return f" ({rule})" if isinstance(rule, str) else ""


#: Temperature from which on it is printed; the posterior's is 1.
_HOT = 1.05


def uses(verdict: Verdict, plan: Plan, command: str) -> list[Row]:
    """Return what a release is for; of a refusal its reason in short, what would do better, and where all reasons are.

    Args:
        verdict: on the release, or on its plan.
        plan: that was made.
        command: what names the config on a command line.
    """
    said = []
    for name, use in (("predictions", verdict.prediction), ("intervals", verdict.intervals)):
        condition = f", {IF_TRUE}" if IF_TRUE in use.why else ""
        said.append(f"{YES} {name}{condition}" if use.usable else f"{NO} {name}: {use.briefly or 'see why'}")
    lines = [("use", "   ".join(said))]
    if verdict.prediction.usable and verdict.intervals.usable:
        return lines
    better = _better(verdict, plan)
    if better:
        lines.append(("better", f"dpmcmc run {command} {better}"))
    return [*lines, ("why", f"dpmcmc plan {command} --all")]


def _better(verdict: Verdict, plan: Plan) -> str | None:
    """Return the change of a config that would lead to what is refused; None where none is known."""
    if not verdict.prediction.usable:
        if plan.guarantee is None:
            return None
        return f"--set privacy.epsilon={round_up(_MORE * plan.guarantee.epsilon, 1)}"
    if plan.label == "NoiseAware" or plan.guarantee is None or not _derived(plan):
        return None
    if plan.has_chains:
        return "--set mechanism.name=noise_aware"
    return "--set 'mechanism={name: noise_aware}'"


def _derived(plan: Plan) -> bool:
    """Whether a noise-aware release is derived for a plan's model as it is declared."""
    score = score_of(plan.target)
    if score is None:
        return False
    if isinstance(plan.target, LinearRegression):
        return plan.target.label_bound is not None
    shapes = parameter_shapes(plan.target)
    few = shapes is None or size_of(shapes) <= MOST_COEFFICIENTS
    return score.size == 1 or few


#: Factor of ε that is proposed where a release drowns in noise.
_MORE = 4.0


def width(observed: float | None, predicted: float | None) -> list[Row]:
    """Return the line on the width of intervals over that without privacy; none where nothing is known of it."""
    if observed is None and predicted is None:
        return []
    prediction = "" if predicted is None else f"predicted {three_digits(predicted)}"
    if observed is None:
        return [("intervals", f"{prediction} × as wide as without privacy")]
    more = f" ({prediction})" if prediction else ""
    return [("intervals", f"{three_digits(observed)} × as wide as without privacy{more}")]


def saved(folder: Path, then: str) -> list[Row]:
    """Return where a release is and what to do with it, in one line if it fits."""
    line = f"{folder}   {then}"
    if len(line) <= WIDTH - LABEL:
        return [("saved", line)]
    return [("saved", str(folder)), ("", then)]
