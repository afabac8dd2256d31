"""``dpmcmc verify privacy.json``: recompute ε from the saved events.

Exit code 0 where the stated ε is at least the recomputed one and the events cover what the file says of the run, 1
where not.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from dpmcmc.cli.refusals import CommandError
from dpmcmc.privacy.accounting import Event, discrete_gaussian
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.sampling import Poisson
from dpmcmc.storage.regular_file import opened_text

#: Accountants of different versions may differ in the last digits.
_TOLERANCE = 1e-6
#: A privacy.json has a few thousand; what is longer is something else.
_MOST_CHARACTERS = 10_000_000
#: What a posterior draw is charged as.
_DRAWS = ("posterior_draw", "pure", "noisy_descent")
#: What a step of a sampler is charged as.
_QUERIES = ("gaussian", "poisson_gaussian", "fixed_size_gaussian")


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _number(value: Any) -> float:
    """A number >= 0, and nothing that Python would make one of."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise TypeError(f"{value!r}, where a number >= 0 is needed")
    return value


def _deviates(body: dict[str, Any], events: tuple[Event, ...], promised: float) -> dict[str, tuple[float, float]]:
    """(charged, least that the run deviates by) in all its steps, by event: total variation, or a probability.

    Args:
        body: privacy.json.
        events: charged.
        promised: minibatches of all steps and chains.
    """
    need = {"batch_overflow": 0.0, "approximate_draw": 0.0}
    if "steps" in body:
        sampling = body["sampling"]
        if sampling["scheme"] == Poisson.scheme:
            scheme, records = Poisson(_number(sampling["batch_size"])), _number(body["num_records"])
            scheme.validate(int(records))
            need["batch_overflow"] = promised * scheme.truncation(int(records), int(_number(sampling["slots"])))
        if body["hardened"]:
            each = discrete_gaussian.deviation(discrete_gaussian.LEVELS[-1])
            need["approximate_draw"] = each * _number(body["coordinates"]) * body["steps"] * body["chains"]
    return {
        name: (math.fsum(e.rate * e.count for e in events if e.mechanism == name), least)
        for name, least in need.items()
    }


app = typer.Typer(add_completion=False)


@app.command()
def verify(
    privacy: Annotated[str, typer.Argument(metavar="FILE", help="The privacy.json of a run folder.")],
    group: Annotated[
        int | None, typer.Option(metavar="K", help="Also print the guarantee for any K records together.")
    ] = None,
) -> None:
    """Recompute the epsilon of a privacy.json from its events; exit code 1 where they cost more than it states."""
    path = Path(privacy)
    if group is not None and group < 1:
        raise CommandError(f"--group: {group} is not a number of records; give a whole number >= 1.")
    try:
        with opened_text(path) as stream:
            body = json.loads(stream.read(_MOST_CHARACTERS), parse_constant=_refused)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{path}: cannot be read ({reason}); give a run folder's privacy.json.") from None
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise CommandError(f"{path}: not JSON{where}; give a run folder's privacy.json.") from None
    if not isinstance(body, dict) or not body.get("events"):
        raise CommandError(f"{path}: holds no events, so it states no guarantee to verify.")
    try:
        recomputed = Guarantee.from_json(body)
        stated = math.inf if body["epsilon"] is None else _number(body["epsilon"])
        noisy = [e for e in recomputed.events if e.mechanism in _QUERIES]
        queries = sum(e.count for e in noisy)
        # Noise multipliers of a step's minibatches relative to the gradient's; one entry each.
        multiples = [_number(m) for m in body.get("multiples", [1.0])]
        promised = _number(body.get("steps", queries)) * _number(body.get("chains", 1)) * len(multiples)
        added = _number((body.get("noise_multiplier") or {}).get("min", math.inf)) * min(multiples)
        charged = min((e.noise_multiplier for e in noisy), default=0.0)
        rate = min((e.rate for e in noisy), default=1.0)
        sampled = _number((body.get("sampling") or {}).get("rate", 0.0))
        draws = sum(e.count for e in recomputed.events if e.mechanism in _DRAWS)
        kept = _number(body.get("charged_draws", draws))
        settled = _number((body.get("settings") or {}).get("noise_multiplier", math.inf))
        deviates = _deviates(body, recomputed.events, promised)
        unit = "owner" if str(body.get("unit", "")).startswith("owner") else "record"
        said, checks = str(recomputed), recomputed.cross_check()
        released = recomputed.release.split(" + ")
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise CommandError(
            f"{path}: is not a privacy.json of this library; {type(error).__name__} at {error}; give one as it was "
            "written."
        ) from None
    print(f"stated       epsilon {stated:.6g} at delta {recomputed.delta:g}")
    print(f"recomputed   {said}")
    for name, value in checks.items():
        print(f"{name:<12} {'no derivation for this combination' if value is None else f'epsilon {value:.6g}'}")
    if group is not None:
        whole = recomputed.for_group(group)
        print(f"group        {whole.about(unit)}")
        if group > 1 and recomputed.adjacency != "replace_one":
            one_sided = recomputed.for_group(group, one_sided=True)
            if one_sided.epsilon < whole.epsilon:
                print(f"             {one_sided.about(unit)}")
    if not recomputed.epsilon <= stated * (1 + _TOLERANCE):
        raise CommandError(
            f"{path}: states epsilon {stated:.6g}, and its events cost {recomputed.epsilon:.6g}; do not rely on it.",
            code=1,
        )
    if "trace" in released and not any(e.count and e.rate for e in noisy):
        raise CommandError(f"{path}: releases a trace and charges no query for it; do not rely on it.", code=1)
    for name, (paid, least) in deviates.items():
        if paid < least * (1 - _TOLERANCE):
            raise CommandError(
                f"{path}: charges {paid:.3g} for {name} where the run deviates by {least:.3g}; do not rely on it.",
                code=1,
            )
    if queries < promised:
        raise CommandError(
            f"{path}: charges {queries} queries where steps x chains x minibatches is {promised}; do not rely on it.",
            code=1,
        )
    if rate < sampled * (1 - 1e-9):
        raise CommandError(
            f"{path}: charges for rate {rate:.6g} where the run sampled at {sampled:.6g}; do not rely on it.", code=1
        )
    if draws < kept:
        raise CommandError(f"{path}: charges for {draws} of {kept} posterior draws; do not rely on it.", code=1)
    loudest = max((e.noise_multiplier for e in recomputed.events if e.mechanism in _DRAWS), default=0.0)
    if loudest > settled * (1 + _TOLERANCE):
        raise CommandError(
            f"{path}: charges for noise multiplier {loudest:.6g} where the plan settled {settled:.6g}; do not rely on "
            "it.",
            code=1,
        )
    if charged > added:
        raise CommandError(
            f"{path}: charges for noise multiplier {charged:.6g} where the run added {added:.6g}; do not rely on it.",
            code=1,
        )
    if "trace" in released and "steps" not in body:
        print("unchecked    the file does not say how many steps the run took, so they may be more than its events")
    print("verified: the stated epsilon covers the events")
