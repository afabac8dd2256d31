"""``dpmcmc verify privacy.json``: recompute ε from the saved events.

Exit code 0: the stated ε is at least the recomputed one, the events cover what the file says of the run, and the
files beside it have the digests that it states, and say the same (``verified_folder.py``), as does the plan of the
run, made again (``planned_again.py``). Exit code 1: one of these fails, or cannot be checked within the limit of work
for a file from a stranger. A file without its folder is verified by itself. A line says where no plan is made again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dpmcmc.cli.refusals import CommandError
from dpmcmc.cli.verified_folder import TOLERANCE, check_plan, contradiction, read_json
from dpmcmc.errors import InputError, UnsupportedCombination, quoted
from dpmcmc.privacy.accounting import Event, noise_tables
from dpmcmc.privacy.accounting.events import MOST_BLENDED, QUERIES
from dpmcmc.privacy.accounting.gaussian_queries import queries as kinds
from dpmcmc.privacy.accounting.group import GroupGuarantee
from dpmcmc.privacy.accounting.grouping import grouped
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.own import is_ones_own
from dpmcmc.privacy.accounting.sampling import Poisson
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.privacy.accounting.work import TooMuchWork, at_most
from dpmcmc.report.lines import YES, Row, rows
from dpmcmc.storage.released_files import KEY, PRIVACY, discrepancy, has_ended, list_released

#: A run has at most some hundred kinds of event (``MOST_BLENDED``).
_MOST_EVENTS = 2_000
#: Repetitions of one event; beyond 2⁵³ a sum of counts would be rounded.
_MOST_REPETITIONS = 10**12
#: Most work for a file, and for a question about a group, in units of ``accounting/events.py``: two to three seconds
#: each.
MOST_WORK = 36_000_000
#: Events of a posterior draw.
_DRAWS = ("posterior_draw", "pure", "noisy_descent")


def _number(value: object) -> float:
    """Return a number >= 0; refuse booleans and texts, which Python would convert."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise TypeError(f"{value!r}, where a number >= 0 is needed")
    float(value)  # refuses a whole number that is larger than any float
    return value


def _check_size(path: Path, events: object) -> None:
    """Refuse a file that no run of this library writes, before anything is computed from it."""
    if not isinstance(events, list):
        return
    if len(events) > _MOST_EVENTS:
        raise CommandError(f"{path}: holds {len(events)} events, and verify reads at most {_MOST_EVENTS}.")
    # Numbers of integer noise are many, and their distances are added up by one product.
    counts = [e.get("count") for e in events if isinstance(e, dict) and e.get("mechanism") != "approximate_draw"]
    # No count is printed: a whole number may be larger than any float.
    if any(isinstance(count, int | float) and count > _MOST_REPETITIONS for count in counts):
        raise CommandError(
            f"{path}: repeats an event more than {_MOST_REPETITIONS:g} times, which verify allows at most."
        )


@contextlib.contextmanager
def _bounded(path: Path, patient: bool) -> Iterator[None]:
    """Limit the work inside, since a stranger's file may ask for any amount; ``patient`` lifts the limit."""
    try:
        with contextlib.nullcontext() if patient else at_most(MOST_WORK):
            yield
    except TooMuchWork as error:
        raise CommandError(
            f"{path}: cannot be verified within the cap, because {error}; if the file is your own, add --patient.",
            code=1,
        ) from None


def _read(path: Path) -> dict[str, Any]:
    """The JSON of a file that holds events; refused in one sentence where it is anything else."""
    body = read_json(path)
    if not isinstance(body, dict) or not body.get("events"):
        raise CommandError(f"{path}: holds no events, so it states no guarantee to verify.")
    _check_size(path, body["events"])
    return body


def _needed_deviations(
    body: dict[str, Any], minibatches: float, events: tuple[Event, ...]
) -> Iterator[tuple[str, float]]:
    """Yield (event, least deviation of all steps of the run that it has to cover)."""
    if "steps" not in body:
        if body.get("hardened"):
            yield "approximate_draw", sum(e.rate * e.count for e in noise_tables.releases_event(events))
        return
    sampling = body["sampling"]
    if sampling["scheme"] == Poisson.scheme:
        scheme = Poisson(_number(sampling["batch_size"]))
        records = int(_number(body["num_records"]))
        scheme.validate(records)
        yield "batch_overflow", minibatches * scheme.truncation(records, int(_number(sampling["slots"])))
    if body["hardened"]:
        numbers = _number(body["coordinates"]) * body["steps"] * body["chains"]
        numbers += _around_chain(body, "numbers")
        yield "approximate_draw", noise_tables.deviation(noise_tables.LEVELS[-1]) * numbers


def _around_chain(body: dict[str, Any], fact: str) -> float:
    """Return a fact of the releases before a chain and after it, summed."""
    return sum(_number((body.get(stage) or {}).get(fact, 0)) for stage in ("metric", "end"))


def _shortfalls(body: dict[str, Any], guarantee: Guarantee) -> Iterator[str]:
    """Yield a clause for each part of the run that the events do not cover.

    A number that the file leaves out is not checked.
    """
    events = guarantee.events
    queries = [e for e in events if e.mechanism in QUERIES]
    draws = [e for e in events if e.mechanism in _DRAWS]
    asked, drawn = (sum(e.count for e in charged) for charged in (queries, draws))
    # Noise multipliers of a step's minibatches relative to the gradient's; one entry each.
    multiples = [_number(m) for m in body.get("multiples", [1.0])]
    steps = float(_number(body.get("steps", asked)))
    chains = _number(body.get("chains", 1))
    # Steps that ask for more than a gradient; the steps between have one minibatch.
    asking = math.ceil(steps / max(_number(body.get("second_every", 1)), 1.0)) * chains
    minibatches = steps * chains + asking * (len(multiples) - 1)
    wanted = minibatches + _around_chain(body, "releases")
    stated = body.get("noise_multiplier") or {}
    noise = _number(stated.get("min", math.inf)) * min(multiples)
    rate = _number((body.get("sampling") or {}).get("rate", 0.0))
    released = _number(body.get("charged_draws", drawn))
    settled = _number((body.get("settings") or {}).get("noise_multiplier", math.inf))
    needed = list(_needed_deviations(body, minibatches, events))
    if "trace" in guarantee.release.split(" + ") and not any(e.count and e.rate for e in queries):
        yield "releases a trace and charges no query for it"
    for name, least in needed:
        paid = math.fsum(e.rate * e.count for e in events if e.mechanism == name)
        if paid < least * (1 - TOLERANCE):
            yield f"charges {paid:.3g} for {name} where the run deviates by {least:.3g}"
    if asked < wanted:
        yield f"charges {asked} queries where steps x chains x minibatches, and releases around the chain, are {wanted}"
    charged_rate = min((e.rate for e in queries), default=1.0)
    if charged_rate < rate * (1 - 1e-9):
        yield f"charges for rate {charged_rate:.6g} where the run sampled at {rate:.6g}"
    if drawn < released:
        yield f"charges for {drawn} of {released} posterior draws"
    loudest = max((e.noise_multiplier for e in draws), default=0.0)
    if loudest > settled * (1 + TOLERANCE):
        yield f"charges for noise multiplier {loudest:.6g} where the plan settled {settled:.6g}"
    least_noise = min((e.noise_multiplier for e in queries), default=0.0)
    if least_noise > noise:
        yield f"charges for noise multiplier {least_noise:.6g} where the run added {noise:.6g}"
    # All steps have one noise multiplier.
    quietest = asking if "steps" in body and stated and stated["min"] == stated["max"] else 0.0
    quiet = sum(e.count for e in queries if e.noise_multiplier <= noise)
    if quiet < quietest:
        yield f"charges {quiet} queries at noise multiplier {noise:.6g} or less where the run asked {quietest:g}"


def _files(path: Path, body: dict[str, Any], recompute: Callable[[], _Recomputed]) -> Row:
    """Return which files lie beside a privacy.json; refuse those with other digests, and those that contradict it."""
    folder = path.parent
    alone = path.name != PRIVACY or not list_released(folder)
    again = {
        "epsilon": lambda: _finite(recompute().guarantee.epsilon),
        "epsilon_lower": lambda: _lower(recompute().guarantee, patient=False),
        "cross_check": lambda: recompute().checks,
    }
    try:
        wrong = None if alone else discrepancy(folder, body)
        if not alone and wrong is None:
            wrong = contradiction(folder, body, again)
    except OSError as error:
        where = f"{error.filename or folder}: cannot be read ({error.strerror or error})"
        raise CommandError(f"{where}; get the whole folder again.", code=1) from None
    if wrong is not None:
        raise CommandError(f"{path}: {wrong}; do not rely on what lies there.", code=1)
    if not has_ended(body):
        return (
            "not ended",
            "the file states what the run may cost, and nothing is released yet",
        )
    if alone:
        return (
            "alone",
            "no released file lies beside it, so none is compared with its digests",
        )
    return ("files", f"{len(body[KEY])} released files are those whose digests it states")


class _Recomputed(NamedTuple):
    """A guarantee computed from the events of a file, beside what the file states.

    Attributes:
        guarantee: computed from them.
        checks: ε by the other accountants.
        stated: ε that the file states.
        shortfall: a clause on what the events do not cover, or None.
        kinds: of query.
        groups: that these are charged in.
    """

    guarantee: Guarantee
    checks: dict[str, float | None]
    stated: float
    shortfall: str | None
    kinds: int
    groups: int


def _recompute(path: Path, body: dict[str, Any], patient: bool) -> _Recomputed:
    """Return what the events of a file say; refuse a file that is not of this library."""
    try:
        with _bounded(path, patient):
            recomputed = Guarantee.from_json(body)
            checks = recomputed.cross_check()
        stated = math.inf if body["epsilon"] is None else _number(body["epsilon"])
        shortfall = next(_shortfalls(body, recomputed), None)
        str(recomputed)
    except ArithmeticError:
        raise CommandError(
            f"{path}: is not a privacy.json of this library: it holds a number that is too large or too small to "
            "compute an epsilon from; give one as it was written."
        ) from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = quoted(error).removesuffix(".")
        raise CommandError(
            f"{path}: is not a privacy.json of this library; {reason}; give one as it was written."
        ) from None
    many = kinds(recomputed.events)
    return _Recomputed(recomputed, checks, stated, shortfall, len(many), len(grouped(many, MOST_BLENDED)))


def _load_accountant(path: Path, name: object, allow_code: Collection[str]) -> None:
    """Import the module of an accountant that is not the library's; refuse it unless the user has allowed that."""
    if not isinstance(name, str) or not is_ones_own(name):
        return
    module = name.partition(":")[0]
    if module not in allow_code:
        raise CommandError(
            f"{path}: its epsilon is that of accountant {name}, code outside this library; read that code, then verify "
            f"with --allow-code {module}."
        )
    # It waits for JAX, which no other file needs.
    from dpmcmc.config.named_code import import_named

    try:
        import_named(name)
    except InputError as error:
        raise CommandError(f"--allow-code: {name} {error}.") from None


def _refuse_shortfall(path: Path, found: _Recomputed) -> None:
    """Refuse a file whose events cost more than it states, or do not cover its run."""
    cost = found.guarantee.epsilon
    if not cost <= found.stated * (1 + TOLERANCE):
        problem = f"{path}: states epsilon {found.stated:.6g}, "
        if found.groups < found.kinds:
            problem += f"which cannot be verified within the cap: its {found.kinds} kinds of query, charged in groups, "
            raise CommandError(f"{problem}cost at most {cost:.6g}; do not rely on less than that.", code=1)
        raise CommandError(f"{problem}and its events cost {cost:.6g}; do not rely on it.", code=1)
    if found.shortfall is not None:
        raise CommandError(f"{path}: {found.shortfall}; do not rely on it.", code=1)


def verify(
    privacy: str,
    group: int | None,
    delta: float | None,
    patient: bool,
    allow_code: Collection[str],
    as_json: bool,
) -> None:
    """Recompute the epsilon of a privacy.json from its events; exit code 1 where they cost more than it states."""
    path = Path(privacy)
    if path.is_dir():
        path = path / PRIVACY
    if group is not None and group < 1:
        raise CommandError(f"--group: {group} is not a number of records; give a whole number >= 1.")
    if delta is not None and not 0 < delta < 1:
        raise CommandError(f"--delta: {delta:g} is not strictly between 0 and 1; give for example 1e-6.")
    body = _read(path)
    _load_accountant(path, body.get("accountant"), allow_code)
    recompute = functools.cache(lambda: _recompute(path, body, patient))
    files = _files(path, body, recompute)
    found = recompute()
    with _bounded(path, patient):
        together = None if group is None else found.guarantee.for_group(group)
        after = None if delta is None else _afterwards(found.guarantee, delta)
    remarks = list(_remarks(body, found))
    if not as_json:
        unit = "owner" if str(body.get("unit", "")).startswith("owner") else "record"
        grouped_cost = [] if together is None else [("group", together.about(unit))]
        print(rows([*_lines_of_epsilon(found), *grouped_cost, *_lines_of_delta(after), *remarks]))
    _refuse_shortfall(path, found)
    beside = [files]
    if path.name == PRIVACY and list_released(path.parent):
        with at_most(math.inf if patient else MOST_WORK):
            beside.insert(0, ("plan", check_plan(path.parent, body)))
    if as_json:
        stated = _as_json(found, together, [*remarks, *beside])
        stated["epsilon_lower"] = _lower(found.guarantee, patient)
        if after is not None:
            stated["after"] = {key: value if isinstance(value, str) else _finite(value) for key, value in after.items()}
        print(json.dumps(stated, indent=2))
        return
    print(rows(beside))
    print(f"{YES} verified: the stated epsilon covers the events")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _lower(guarantee: Guarantee, patient: bool) -> float | None:
    """Return a lower bound on ε; None where none is known, or none within the limit of work."""
    try:
        with contextlib.nullcontext() if patient else at_most(MOST_WORK):
            return guarantee.bracket().lower or None
    except TooMuchWork:
        return None


def _afterwards(guarantee: Guarantee, delta: float) -> dict[str, float | str]:
    """Return the same events in other terms: ε at ``delta``, a Gaussian trade-off, zCDP; a text where refused."""
    said: dict[str, float | str] = {
        "delta": delta,
        "epsilon": guarantee.epsilon_at(delta),
    }
    trade_off = guarantee.gdp()
    said |= {"mu": trade_off.mu, "slack": trade_off.slack}
    try:
        said["rho"] = guarantee.zcdp().rho
    except UnsupportedCombination as error:
        said["rho"] = str(error)
    return said | {"deviation": trade_off.deviation}


def _lines_of_delta(after: dict[str, float | str] | None) -> Iterator[Row]:
    """Yield lines of :func:`_afterwards`; no number is rounded toward less privacy."""
    if after is None:
        return
    number = {name: value if isinstance(value, str) else round_up(value) for name, value in after.items()}
    near = f", up to total variation {number['deviation']}" if after["deviation"] else ""
    yield ("at delta", f"epsilon {number['epsilon']} at delta {after['delta']:g}")
    slack = f", and delta {number['slack']} beyond it" if after["slack"] else ""
    yield ("gdp", f"mu {number['mu']}{slack}{near}")
    rho = number["rho"]
    yield ("zcdp", rho if isinstance(after["rho"], str) else f"rho {rho}{near}")


def _lines_of_epsilon(found: _Recomputed) -> list[Row]:
    """Return what a file states and what its events cost."""
    recomputed = found.guarantee
    stated = f"epsilon {found.stated:.6g} at delta {recomputed.delta:g}"
    none = "no derivation for this combination"
    return [
        ("stated", stated),
        ("computed", str(recomputed)),
        *((name, none if value is None else f"epsilon {value:.6g}") for name, value in found.checks.items()),
    ]


def _remarks(body: dict[str, Any], found: _Recomputed) -> Iterator[Row]:
    """Yield what a guarantee does not rest on a proof for, and what the file does not tell."""
    # A mechanism's file without the key is from a version whose noise was in floats, or was edited.
    if body.get("hardened", "mechanism" not in body) is False:
        yield (
            "unproved",
            "noise is in floating point: the guarantee takes it for exactly Gaussian, which is not proved",
        )
    elif body.get("in_floats"):
        yield (
            "unproved",
            "a part of this release is drawn in floating point: its plan names it",
        )
    if is_ones_own(found.guarantee.accountant):
        known = [value for value in found.checks.values() if value is not None]
        best = f"{min(known):.6g}" if known else "none"
        yield (
            "unproved",
            f"epsilon is the word of accountant {found.guarantee.accountant}; the library's accountants prove {best}",
        )
    if found.groups < found.kinds:
        yield (
            "grouped",
            f"{found.kinds} kinds of query are charged as {found.groups}, each group at its least noise and "
            "largest rate, so the recomputed epsilon is an upper bound",
        )
    if "trace" in found.guarantee.release.split(" + ") and "steps" not in body:
        yield (
            "unchecked",
            "the file does not say how many steps the run took, so they may be more than its events",
        )


def _as_json(found: _Recomputed, together: GroupGuarantee | None, remarks: list[Row]) -> dict[str, object]:
    """Return what was verified, as JSON takes it; an ε without a bound is null."""
    recomputed = found.guarantee

    return {
        "verified": True,
        "stated_epsilon": _finite(found.stated),
        "epsilon": _finite(recomputed.epsilon),
        "delta": recomputed.delta,
        "adjacency": str(recomputed.adjacency),
        "release": recomputed.release,
        "accountant": recomputed.accountant,
        "assumptions": list(recomputed.assumptions),
        "accountants": {name: _finite(value) for name, value in found.checks.items()},
        "group": []
        if together is None
        else [{"epsilon": _finite(together.epsilon), "delta": together.delta, "rule": together.rule}],
        "remarks": [text for _, text in remarks],
    }
