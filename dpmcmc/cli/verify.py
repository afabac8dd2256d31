"""``dpmcmc verify privacy.json``: recompute ε from the saved events.

Exit code 0: the stated ε is at least the recomputed one, the events cover what the file says of the run, and the
files beside it have the digests that it states, and say the same (``verified_folder.py``). Exit code 1: one of these
fails, or cannot be checked within the limit of work for a file from a stranger. A file without its folder is verified
by itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dpmcmc.cli.refusals import CommandError
from dpmcmc.cli.verified_folder import TOLERANCE, contradiction, read_json
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


@dataclass(frozen=True)
class SavedRun:
    """Numbers that a privacy.json states of its run. A number that it leaves out is not checked.

    Attributes:
        epsilon: stated ε.
        queries: minibatches of all steps and chains, and releases of a metric.
        noise: least noise multiplier of a minibatch.
        quiet: number of minibatches with that noise, where all steps have one noise multiplier; else 0.
        rate: at which records were sampled.
        draws: posterior draws that left.
        settled: noise multiplier of a one-shot plan.
        deviations: least probability, or total variation, that all steps deviate by, for each event of a deviation.
        says_steps: whether it says how many steps it took.
        unit: what privacy is about, ``record`` or ``owner``.
    """

    epsilon: float
    queries: float
    noise: float
    quiet: float
    rate: float
    draws: float
    settled: float
    deviations: dict[str, float]
    says_steps: bool
    unit: str

    @classmethod
    def from_json(cls, body: dict[str, Any], events: tuple[Event, ...]) -> SavedRun:
        """Read the numbers; ``events`` stand in for counts that the file leaves out."""
        # Noise multipliers of a step's minibatches relative to the gradient's; one entry each.
        multiples = [_number(m) for m in body.get("multiples", [1.0])]
        steps = float(_number(body.get("steps", _count(events, QUERIES))))
        chains = _number(body.get("chains", 1))
        # Steps that ask for more than a gradient; the steps between have one minibatch.
        asking = math.ceil(steps / max(_number(body.get("second_every", 1)), 1.0)) * chains
        minibatches = steps * chains + asking * (len(multiples) - 1)
        noise = body.get("noise_multiplier") or {}
        # A metric's releases are queries too.
        released = _number((body.get("metric") or {}).get("releases", 0))
        return cls(
            epsilon=math.inf if body["epsilon"] is None else _number(body["epsilon"]),
            queries=minibatches + released,
            noise=_number(noise.get("min", math.inf)) * min(multiples),
            quiet=asking if "steps" in body and noise and noise["min"] == noise["max"] else 0.0,
            rate=_number((body.get("sampling") or {}).get("rate", 0.0)),
            draws=_number(body.get("charged_draws", _count(events, _DRAWS))),
            settled=_number((body.get("settings") or {}).get("noise_multiplier", math.inf)),
            deviations=_deviations(body, minibatches, events),
            says_steps="steps" in body,
            unit=unit_of(body),
        )


def unit_of(body: dict[str, Any]) -> str:
    """Return what a privacy.json is about: record or owner."""
    return "owner" if str(body.get("unit", "")).startswith("owner") else "record"


def _count(events: tuple[Event, ...], mechanisms: tuple[str, ...]) -> int:
    return sum(e.count for e in events if e.mechanism in mechanisms)


def _deviations(body: dict[str, Any], minibatches: float, events: tuple[Event, ...]) -> dict[str, float]:
    """Return the least deviation of all steps of a run, by event."""
    need = {"batch_overflow": 0.0, "approximate_draw": 0.0}
    if "steps" in body:
        sampling = body["sampling"]
        if sampling["scheme"] == Poisson.scheme:
            scheme = Poisson(_number(sampling["batch_size"]))
            records = _number(body["num_records"])
            scheme.validate(int(records))
            need["batch_overflow"] = minibatches * scheme.truncation(int(records), int(_number(sampling["slots"])))
        if body["hardened"]:
            numbers = _number(body["coordinates"]) * body["steps"] * body["chains"]
            numbers += _number((body.get("metric") or {}).get("numbers", 0))
            need["approximate_draw"] = noise_tables.deviation(noise_tables.LEVELS[-1]) * numbers
    elif body.get("hardened"):
        need["approximate_draw"] = sum(e.rate * e.count for e in noise_tables.releases_event(events))
    return need


def _shortfalls(run: SavedRun, guarantee: Guarantee) -> Iterator[str]:
    """Yield a clause for each part of the run that the events do not cover."""
    events = guarantee.events
    queries = [e for e in events if e.mechanism in QUERIES]
    if "trace" in guarantee.release.split(" + ") and not any(e.count and e.rate for e in queries):
        yield "releases a trace and charges no query for it"
    for name, least in run.deviations.items():
        paid = math.fsum(e.rate * e.count for e in events if e.mechanism == name)
        if paid < least * (1 - TOLERANCE):
            yield f"charges {paid:.3g} for {name} where the run deviates by {least:.3g}"
    asked = _count(events, QUERIES)
    drawn = _count(events, _DRAWS)
    if asked < run.queries:
        yield f"charges {asked} queries where steps x chains x minibatches, and releases of a metric, are {run.queries}"
    rate = min((e.rate for e in queries), default=1.0)
    if rate < run.rate * (1 - 1e-9):
        yield f"charges for rate {rate:.6g} where the run sampled at {run.rate:.6g}"
    if drawn < run.draws:
        yield f"charges for {drawn} of {run.draws} posterior draws"
    loudest = max((e.noise_multiplier for e in events if e.mechanism in _DRAWS), default=0.0)
    if loudest > run.settled * (1 + TOLERANCE):
        yield f"charges for noise multiplier {loudest:.6g} where the plan settled {run.settled:.6g}"
    charged = min((e.noise_multiplier for e in queries), default=0.0)
    if charged > run.noise:
        yield f"charges for noise multiplier {charged:.6g} where the run added {run.noise:.6g}"
    quiet = sum(e.count for e in queries if e.noise_multiplier <= run.noise)
    if quiet < run.quiet:
        yield f"charges {quiet} queries at noise multiplier {run.noise:.6g} or less where the run asked {run.quiet:g}"


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
        run: numbers that the file states.
        shortfall: a clause on what the events do not cover, or None.
    """

    guarantee: Guarantee
    checks: dict[str, float | None]
    run: SavedRun
    shortfall: str | None


def _recompute(path: Path, body: dict[str, Any], patient: bool) -> _Recomputed:
    """Return what the events of a file say; refuse a file that is not of this library."""
    try:
        with _bounded(path, patient):
            recomputed = Guarantee.from_json(body)
            checks = recomputed.cross_check()
        run = SavedRun.from_json(body, recomputed.events)
        str(recomputed)
        shortfall = next(_shortfalls(run, recomputed), None)
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
    return _Recomputed(recomputed, checks, run, shortfall)


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
    run = found.run
    recomputed = found.guarantee
    many = kinds(recomputed.events)
    few = grouped(many, MOST_BLENDED)
    if not recomputed.epsilon <= run.epsilon * (1 + TOLERANCE):
        problem = f"{path}: states epsilon {run.epsilon:.6g}, "
        if len(few) < len(many):
            problem += f"which cannot be verified within the cap: its {len(many)} kinds of query, charged in groups, "
            problem += f"cost at most {recomputed.epsilon:.6g}; do not rely on less than that."
            raise CommandError(problem, code=1)
        raise CommandError(
            f"{problem}and its events cost {recomputed.epsilon:.6g}; do not rely on it.",
            code=1,
        )
    if found.shortfall is not None:
        raise CommandError(f"{path}: {found.shortfall}; do not rely on it.", code=1)


def verify(
    privacy: str,
    group: int | None = None,
    patient: bool = False,
    as_json: bool = False,
    allow_code: Collection[str] = (),
    *,
    delta: float | None = None,
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
    together = None
    if group is not None:
        with _bounded(path, patient):
            together = found.guarantee.for_group(group)
    after = None
    if delta is not None:
        with _bounded(path, patient):
            after = _afterwards(found.guarantee, delta)
    remarks = list(_remarks(body, found))
    if not as_json:
        print(rows([*_lines_of_epsilon(found, together), *_lines_of_delta(after), *remarks]))
    _refuse_shortfall(path, found)
    if as_json:
        stated = _as_json(found, together, [*remarks, files])
        stated["epsilon_lower"] = _lower(found.guarantee, patient)
        if after is not None:
            stated["after"] = {
                name: value if isinstance(value, str) or math.isfinite(value) else None for name, value in after.items()
            }
        print(json.dumps(stated, indent=2))
        return
    print(rows([files]))
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


def _lines_of_epsilon(found: _Recomputed, together: GroupGuarantee | None) -> list[Row]:
    """Return what a file states and what its events cost."""
    recomputed = found.guarantee
    stated = f"epsilon {found.run.epsilon:.6g} at delta {recomputed.delta:g}"
    none = "no derivation for this combination"
    return [
        ("stated", stated),
        ("computed", str(recomputed)),
        *((name, none if value is None else f"epsilon {value:.6g}") for name, value in found.checks.items()),
        *([] if together is None else [("group", together.about(found.run.unit))]),
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
    many = kinds(found.guarantee.events)
    few = grouped(many, MOST_BLENDED)
    if len(few) < len(many):
        yield (
            "grouped",
            f"{len(many)} kinds of query are charged as {len(few)}, each group at its least noise and "
            "largest rate, so the recomputed epsilon is an upper bound",
        )
    if "trace" in found.guarantee.release.split(" + ") and not found.run.says_steps:
        yield (
            "unchecked",
            "the file does not say how many steps the run took, so they may be more than its events",
        )


def _as_json(found: _Recomputed, together: GroupGuarantee | None, remarks: list[Row]) -> dict[str, object]:
    """Return what was verified, as JSON takes it; an ε without a bound is null."""
    recomputed = found.guarantee

    return {
        "verified": True,
        "stated_epsilon": _finite(found.run.epsilon),
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
