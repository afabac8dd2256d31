"""Priors of coefficients in the units of their columns: as a user gives them, and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import numpy as np

from dpmcmc.data.column_kinds import Range
from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError, shown
from dpmcmc.inference.scores import score_of
from dpmcmc.mechanisms.noise_aware import Normal
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.owners import row_model
from dpmcmc.mechanisms.noise_aware.prior import FACTORS, Prior
from dpmcmc.targets.base import Target
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.ordinal import OrdinalRegression
from dpmcmc.targets.softmax import SoftmaxRegression

#: Share of the prior that a sentence is about, its standard normal quantile, and most columns that it names.
_SHARE, _QUANTILE, _MOST = 0.9, 1.645, 3
#: Standard deviation of a first level's effect where another has a prior of its own, over that one's.
_HELD = 0.01
#: Ratio beyond which a number would say nothing.
_HUGE = 1e6


def encoded_priors(schema: Schema, prior: Mapping[str, Normal]) -> tuple[Normal | None, ...]:
    """Return a prior for each encoded column that has one of its own.

    Args:
        schema: of the table.
        prior: by the name of a coefficient in its own units.

    Raises:
        InputError: a name that no coefficient has, or no normal law.
    """
    names = list(schema.own_names)
    out: list[Normal | None] = [None] * len(names)
    for name, given in prior.items():
        if name not in names:
            raise InputError(
                f"prior: {shown(name)} is no coefficient; the names are {', '.join(names)}",
                "prior",
            )
        mean, std = given
        if not (math.isfinite(mean) and 0 < std < math.inf):
            raise InputError(
                f"prior: {name} needs a finite mean and a standard deviation > 0, got {shown(given)}",
                "prior",
            )
        at = names.index(name)
        nothing, unit = _units(schema, at)
        if not unit:
            raise InputError(
                f"prior: {name} is the first level, whose own effect is 0; give priors of the other levels",
                "prior",
            )
        out[at] = Normal((mean - nothing) / unit, std / abs(unit))
    start = 0
    for block in schema.blocks:
        columns = range(start, start + len(block))
        start += len(block)
        given_here = [one.std for one in map(out.__getitem__, columns) if one is not None]
        for first in set(columns).intersection(schema.first_levels if given_here else ()):
            # A level is compared with the first one, whose own effect would add to what was given.
            out[first] = Normal(0.0, _HELD * min(given_here))
    return tuple(out)


def _units(schema: Schema, at: int) -> tuple[float, float]:
    """Return a coefficient in its own units where the encoded ones are 0, and by how much more where it is 1."""
    size = len(schema.own_names)
    alone = np.zeros((size, 1) if schema.outcome.kind == "classes" else size)
    alone[at] = 1.0
    nothing, one = (float(schema.to_original_units(times * alone).flat[at]) for times in (0.0, 1.0))
    return nothing, one - nothing


def prior_lines(schema: Schema, target: Target, options: Options) -> list[str]:
    """Return the sentence about changes over whole ranges; none where nothing has a range, or units, to be said in.

    Args:
        schema: of the table.
        target: bound to the schema's public facts.
        options: of the release.
    """
    model = cast(GeneralisedLinear, row_model(target)[0])
    score = score_of(model)
    assert score is not None
    prior = Prior.of(options, model, score.size)
    said: list[str] = []
    for at, name in enumerate(schema.own_names):
        column = schema.columns.get(name)
        if not isinstance(column, Range) or name == schema.label or len(said) == _MOST:
            continue
        reach = abs(_units(schema, at)[1]) * (column.high - column.low)
        # Between two classes the difference counts.
        differs = math.sqrt(2) if isinstance(target, SoftmaxRegression) else 1.0
        own = slice(at * score.size, (at + 1) * score.size)
        centre = float(prior.means[own][0]) * reach
        spread = _QUANTILE * float(prior.scales[own][0]) * reach * differs
        said.append(f"{name} from {column.low:g} to {column.high:g} {_moves(schema, target, centre, spread)}")
    if not said:
        return []
    line = f"prior: in {_SHARE:.0%} of it, a change of " + ", of ".join(said)
    if prior.free.any():
        line += (
            "; the releases tell by how much narrower or wider it is, up to "
            f"{FACTORS[-1]:g} times, and whether it is wider still for a column that fills "
            "little of its range"
        )
    return [line]


def _moves(schema: Schema, target: Target, centre: float, spread: float) -> str:
    low, high = centre - spread, centre + spread
    if isinstance(target, LinearRegression):
        return f"moves {schema.label} by {low:.3g} to {high:.3g}"
    odds = {
        LogisticRegression: "the odds",
        OrdinalRegression: "the odds of a higher level",
        SoftmaxRegression: "the odds of two classes",
    }.get(type(target), "the mean")
    return f"multiplies {odds} by {_ratio(low)} to {_ratio(high)}"


def _ratio(log: float) -> str:
    if abs(log) > math.log(_HUGE):
        return f"{'less than 1/' if log < 0 else 'more than '}{_HUGE:,.0f}"
    return f"1/{math.exp(-log):.3g}" if log < 0 else f"{math.exp(log):.3g}"
