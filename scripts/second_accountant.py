"""Recompute ε of a run by an accountant that is not ours: dp-accounting's.

    python -m scripts.second_accountant RUN [RUN ...]

RUN is a run folder, a privacy.json, or a config, whose plan is then made. No code of this library computes a number
here. Each event is exported to dp-accounting's own types:

    gaussian                 GaussianDpEvent
    poisson_gaussian         PoissonSampledDpEvent(GaussianDpEvent)
    fixed_size_gaussian      SampledWithoutReplacementDpEvent
    posterior_draw           GaussianDpEvent, which it is worth
    noisy_descent            GaussianDpEvent, which it is worth
    pure                     RandomizedResponseDpEvent
    objective perturbations  no equivalent
    batch_overflow           no equivalent
    approximate_draw         no equivalent

An event without an equivalent is named, with the reason. The last two are no queries: their distance β, at the price of
(1 + e^ε)β, is taken off δ before the others are compared.

*From below.* The stated ε must reach what the exported events cost at least. dp-accounting rounds privacy losses down
on a grid, so its answer is a lower bound, up to 1e-15 of δ that its transform may round, and the row says how much the
grid may take away. A batch of fixed size holds
one record with probability b/N. On records whose other gradients are 0 its release is that of a Poisson batch, which is
the lower bound there.

*From above.* The stated ε of accountant pld, or of a one-shot release, exceeds dp-accounting's upper bound by at most
``TIGHT`` of it. The others (rdp, advanced) are looser by choice, and are shown alone. The Rényi accountant of
fixed-size batches is compared with dp-accounting's, which has the same theorem.

Exit code: 0 where all that was compared agrees; 1 where an ε does not; 2 where nothing was compared.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

#: Largest share by which a tight ε may exceed dp-accounting's upper bound.
TIGHT = 0.01
#: Share of ε that the grid of a lower bound takes away, where so fine a grid fits.
_LOST = 0.005
#: Points of all grids of a lower bound, some 12 µs each, and of an upper one.
_POINTS_BELOW, _POINTS_ABOVE = 400_000, 2_000_000
#: Points of the composed grid of a lower bound.
_POINTS_COMPOSED = 10_000_000
#: Standard deviations of the observations that a grid covers.
_REACH = 11.0
#: Relative error of closed forms, generously.
_ROUNDING = 1e-9

_NOT_A_QUERY = ("batch_overflow", "approximate_draw")
_DEVIATION = "no query: its distance is taken off delta"
_OBJECTIVE = "dp-accounting has no objective perturbation, and its curve is that of no Gaussian"
NO_EQUIVALENT = {
    "batch_overflow": _DEVIATION,
    "approximate_draw": _DEVIATION,
    "objective_perturbation": _OBJECTIVE,
    "clipped_objective_perturbation": _OBJECTIVE,
}


class Run(NamedTuple):
    """Numbers that a run states of itself.

    Attributes:
        name: of the file, or of the config.
        epsilon: stated; None where it is not finite.
        delta: total.
        adjacency, accountant: names.
        events: as privacy.json has them.
    """

    name: str
    epsilon: float | None
    delta: float
    adjacency: str
    accountant: str
    events: list[dict[str, Any]]

    @property
    def distance(self) -> float:
        """β of all events that are no queries."""
        return math.fsum(e["rate"] * e["count"] for e in self.events if e["mechanism"] in _NOT_A_QUERY)

    @property
    def delta_of_queries(self) -> float:
        """The part of δ that β leaves, at the stated ε."""
        return self.delta - (1 + math.exp(self.epsilon or 0.0)) * self.distance

    @property
    def queries(self) -> list[dict[str, Any]]:
        """Events that cost something."""
        return [e for e in self.events if e["mechanism"] not in _NOT_A_QUERY and e["count"] and e["rate"]]

    @property
    def sides(self) -> int:
        """Clipped gradients that a neighbour moves the sum by: 2 where one leaves and another joins."""
        return 2 if self.adjacency == "replace_one" else 1


class Bracket(NamedTuple):
    """Bounds that dp-accounting has for a run's exported events.

    Attributes:
        low: lower bound on ε, or None.
        high: upper bound on ε, or None.
        limit: largest ε that a run may state beside ``high``, or None where it may be looser.
        remark: how wide the grid made it, or why a bound is missing.
    """

    low: float | None
    high: float | None
    limit: float | None
    remark: str = ""


def saved(body: dict[str, Any], name: str) -> Run:
    """Read a run's statement from the JSON of its guarantee.

    Raises:
        KeyError, TypeError: it states no events, or not what ε is of.
    """
    fields = ("epsilon", "delta", "adjacency", "accountant", "events")
    for event in body["events"]:
        float(event["noise_multiplier"]), float(event["rate"]), int(event["count"]), str(event["mechanism"])
    return Run(name, *(body[field] for field in fields))


def gaussian_worth(event: dict[str, Any]) -> float | None:
    """Noise multiplier of the Gaussian release that an event is, or is exactly worth; None for other events.

    A posterior draw is one of μ = Δ/z (Gopi, Lee and Liu 2022, Theorem 4). The last of t steps that contract by c is
    one of √((1 − c^t)(1 + c)/((1 + c^t)(1 − c))) times a step's μ (Bok, Su and Altschuler 2024, Theorem 4.2).
    """
    z = event["noise_multiplier"]
    sampled = event["mechanism"] in ("poisson_gaussian", "fixed_size_gaussian")
    if event["mechanism"] in ("gaussian", "posterior_draw") or (sampled and event["rate"] == 1):
        return z
    if event["mechanism"] == "noisy_descent":
        c, t = event["contraction"], event["steps"]
        return z / math.sqrt((1 - c**t) / (1 + c**t) * (1 + c) / (1 - c))
    return None


def exported(run: Run) -> tuple[list[Any], dict[str, str]]:
    """Return the queries as ``DpEvent``, and why the others have none.

    Noise multipliers are std / C for every adjacency, as in dp-accounting's PLD accountant.
    """
    import dp_accounting

    def export(event: dict[str, Any]) -> Any:
        count = event["count"]
        z = gaussian_worth(event)
        if z is not None:
            exported = dp_accounting.GaussianDpEvent(z)
        elif event["mechanism"] == "poisson_gaussian":
            gaussian = dp_accounting.GaussianDpEvent(event["noise_multiplier"])
            exported = dp_accounting.PoissonSampledDpEvent(event["rate"], gaussian)
        elif event["mechanism"] == "fixed_size_gaussian":
            if run.adjacency != "replace_one":
                return "dp-accounting samples without replacement under replace_one alone"
            # Its Rényi accountant takes the multiplier as std / 2C under this relation.
            gaussian = dp_accounting.GaussianDpEvent(event["noise_multiplier"] / 2)
            records = event["num_records"]
            size = round(event["rate"] * records)
            exported = dp_accounting.SampledWithoutReplacementDpEvent(records, size, gaussian)
        elif event["mechanism"] == "pure":
            # Every release that is ε-DP is dominated by this one (Kairouz, Oh and Viswanath 2015).
            exported = dp_accounting.dp_event.RandomizedResponseDpEvent(2 / (1 + math.exp(event["epsilon"])), 2)
        else:
            return "unknown here"
        return dp_accounting.SelfComposedDpEvent(exported, count)

    done, missing = [], {}
    for event in run.queries:
        found = NO_EQUIVALENT.get(event["mechanism"]) or export(event)
        if isinstance(found, str):
            missing[event["mechanism"]] = found
        else:
            done.append(found)
    return done, missing


def bracket_of(run: Run, events: list[Any], whole: bool) -> Bracket:
    """Bounds of dp-accounting's privacy loss distributions, and of its Rényi accountant for batches of fixed size."""
    import dp_accounting

    assert run.epsilon is not None
    if all(isinstance(e.event, dp_accounting.GaussianDpEvent) for e in events) and run.delta_of_queries > 0:
        precision = math.fsum(e.count / e.event.noise_multiplier**2 for e in events)
        exact = dp_accounting.get_epsilon_gaussian(1 / (run.sides * math.sqrt(precision)), run.delta_of_queries)
        low, lost = exact * (1 - _ROUNDING), 0.0
    else:
        low, lost = _below(run, events)
    remark = f"the grid may take {lost:.2g} off the first" if lost else ""
    if not whole:
        return Bracket(low, None, None, "from below alone, because not all events have an equivalent")
    fixed = [isinstance(e.event, dp_accounting.SampledWithoutReplacementDpEvent) for e in events]
    if not any(fixed):
        high = _above(run, events)
        judged = run.accountant in ("pld", "one_sample", "last_iterate")
    else:
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
        accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
        halved = [e if f else _with_half_the_noise(e) for e, f in zip(events, fixed, strict=True)]
        if not accountant.supports(dp_accounting.ComposedDpEvent(halved)):
            return Bracket(low, None, None, f"{remark}; its Rényi accountant does not compose these events")
        high = accountant.compose(dp_accounting.ComposedDpEvent(halved)).get_epsilon(run.delta_of_queries)
        judged = run.accountant == "rdp"
    return Bracket(low, high, high * (1 + TIGHT) if judged else None, remark)


def _with_half_the_noise(event: Any) -> Any:
    """A Gaussian event in the units of the Rényi accountant under replace_one; others as they are."""
    import dp_accounting

    if not isinstance(event.event, dp_accounting.GaussianDpEvent):
        return event
    gaussian = dp_accounting.GaussianDpEvent(event.event.noise_multiplier / 2)
    return dp_accounting.SelfComposedDpEvent(gaussian, event.count)


def _below(run: Run, events: list[Any]) -> tuple[float, float]:
    """(lower bound on ε, how much the grid may have taken away)."""
    assert run.epsilon is not None
    steps = sum(e.count for e in events)
    span = sum(_span(run, e.event) for e in events)
    wide = 15 * run.sides * math.sqrt(sum(e.count * _spread(e.event) ** 2 for e in events))
    interval = max(_LOST * max(run.epsilon, 1e-3) / steps, span / _POINTS_BELOW, wide / _POINTS_COMPOSED)
    composed = _composed(run, events, interval, pessimistic=False)
    return composed.get_epsilon_for_delta(run.delta_of_queries), interval * steps


def _above(run: Run, events: list[Any]) -> float:
    """Upper bound on ε."""
    span = sum(_span(run, e.event) for e in events)
    finest = min(1e-4, *(_spread(e.event) / 5 for e in events))
    return _composed(run, events, max(finest, span / _POINTS_ABOVE), pessimistic=True).get_epsilon_for_delta(
        run.delta_of_queries
    )


def _noise(event: Any) -> tuple[float, float]:
    """(z, rate) of a Gaussian event, sampled or not."""
    gaussian = getattr(event, "event", event)
    rate = getattr(event, "sampling_probability", 1.0)
    if hasattr(event, "sample_size"):
        # The Poisson batch of the module's docstring; back to std / C.
        return 2 * gaussian.noise_multiplier, event.sample_size / event.source_dataset_size
    return gaussian.noise_multiplier, rate


def _span(run: Run, event: Any) -> float:
    """Width of the grid of one step's losses, about."""
    if hasattr(event, "num_buckets"):
        return 1.0
    z, rate = _noise(event)
    highest = float(np.logaddexp(math.log1p(-rate) if rate < 1 else -np.inf, math.log(rate) + _REACH / z + 0.5 / z**2))
    return 2 * run.sides * highest


def _spread(event: Any) -> float:
    """Standard deviation of one step's loss, about."""
    if hasattr(event, "num_buckets"):
        return 1.0
    z, rate = _noise(event)
    return rate / z


def _composed(run: Run, events: Iterable[Any], interval: float, *, pessimistic: bool) -> Any:
    """dp-accounting's privacy loss distribution of all events; rounded up or down to the grid."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as losses

    relation = NeighboringRelation.REPLACE_ONE if run.sides == 2 else NeighboringRelation.ADD_OR_REMOVE_ONE
    grid = {"pessimistic_estimate": pessimistic, "value_discretization_interval": interval}
    parts = []
    for repeated in events:
        event, count = repeated.event, repeated.count
        if hasattr(event, "num_buckets"):
            # The same under every adjacency, since any ε-DP release stands for it.
            law = {"neighboring_relation": NeighboringRelation.REPLACE_ONE}
            one = losses.from_randomized_response(event.noise_parameter, event.num_buckets, **law, **grid)
        else:
            z, rate = _noise(event)
            if rate == 1:  # k of them are one, exactly
                z, count = z / math.sqrt(count), 1
            law = {"neighboring_relation": relation, "use_connect_dots": pessimistic}
            one = losses.from_gaussian_mechanism(z, sampling_prob=rate, **law, **grid)
        parts.append(one.self_compose(count) if count > 1 else one)
    return functools.reduce(lambda first, second: first.compose(second), parts)


class Comparison(NamedTuple):
    """One run beside dp-accounting.

    Attributes:
        bracket: None where nothing was compared.
        missing: event -> why it has no equivalent, those that are no queries included.
        faults: sentences on what does not agree.
    """

    bracket: Bracket | None
    missing: dict[str, str]
    faults: tuple[str, ...]


def compare(run: Run) -> Comparison:
    """Bounds of dp-accounting for a run's events, and whether the stated ε lies between them."""
    events, missing = exported(run)
    whole = not missing
    missing |= {e["mechanism"]: _DEVIATION for e in run.events if e["mechanism"] in _NOT_A_QUERY and e["count"]}
    if run.epsilon is None or not events:
        return Comparison(None, missing, ())
    if run.delta_of_queries < 0 or (run.delta_of_queries == 0 and run.delta > 0):
        fault = f"(1 + e^epsilon) * {run.distance:.3g} of deviations takes all of delta {run.delta:g}"
        return Comparison(None, missing, (fault,))
    bracket = bracket_of(run, events, whole)
    return Comparison(bracket, missing, faults(run, bracket))


def faults(run: Run, bracket: Bracket) -> tuple[str, ...]:
    """Sentences on a stated ε that does not lie between the bounds."""
    assert run.epsilon is not None
    found = []
    if bracket.low is not None and run.epsilon < bracket.low:
        found.append(f"epsilon {run.epsilon:.6g} is stated, and the events cost at least {bracket.low:.6g}")
    if bracket.limit is not None and run.epsilon > bracket.limit * (1 + _ROUNDING):
        found.append(f"epsilon {run.epsilon:.6g} is stated, and the events cost at most {bracket.high:.6g}")
    return tuple(found)


def read(place: str) -> Run:
    """A run from its folder, its privacy.json, or the plan of a config.

    Raises:
        OSError, KeyError, TypeError, ValueError: there is none, or it states no guarantee.
    """
    path = Path(place)
    path = path / "privacy.json" if path.is_dir() else path
    if path.suffix == ".json":
        return saved(json.loads(path.read_text(encoding="utf-8")), place)
    from dpmcmc import config
    from dpmcmc.config import file as config_file

    guarantee = config.make_plan(config_file.load(place)).guarantee
    if guarantee is None:
        raise ValueError(f"{place}: has no guarantee, so there is nothing to compare")
    return saved(guarantee.to_json(), place)


def lines(run: Run, found: Comparison) -> list[str]:
    """Sentences for the console."""
    stated = "no finite epsilon" if run.epsilon is None else f"epsilon {run.epsilon:.6g}"
    out = [f"{run.name}: {stated} at delta {run.delta:g}, {run.adjacency}, by {run.accountant}"]
    out += [f"  no equivalent in dp-accounting: {name} ({why})" for name, why in found.missing.items()]
    if found.bracket is None:
        out.append("  dp-accounting: not compared")
    else:
        ends = [
            f"{name} {value:.6g}"
            for name, value in (("at least", found.bracket.low), ("at most", found.bracket.high))
            if value is not None
        ]
        remark = f" ({found.bracket.remark})" if found.bracket.remark else ""
        out.append(f"  dp-accounting {version('dp-accounting')}: {', '.join(ends) or 'no bound'}{remark}")
    return out + [f"  WRONG: {fault}" for fault in found.faults]


def main() -> int:
    """Compare runs."""
    options = argparse.ArgumentParser(description="Recompute epsilon of runs by an accountant that is not ours.")
    options.add_argument("runs", nargs="+", metavar="RUN", help="a run folder, a privacy.json, or a config")
    try:
        runs = [read(place) for place in options.parse_args().runs]
    except (KeyError, TypeError) as error:
        print(f"error: a file states no events ({error}); give a run folder, or its privacy.json", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = [compare(run) for run in runs]
    for run, one in zip(runs, found, strict=True):
        print("\n".join(lines(run, one)))
    if any(one.faults for one in found):
        return 1
    if all(one.bracket is None for one in found):
        print("error: nothing was compared", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
