"""A privacy.json held against the files beside it: the plan, the config, and the draws that it is about.

``plan.json`` has the guarantee that was planned, and under ``facts`` what a privacy.json says beside it. So all keys of
the two are compared at once. Two numbers follow from the events, which the accountants of another version may say
otherwise: these may also be those that are recomputed. Their common statement is then compared with the
plan that the run's config makes anew (``planned_again.py``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dpmcmc.cli.planned_again import NotPlanned, compared, plan_again
from dpmcmc.cli.refusals import CommandError
from dpmcmc.errors import InputError
from dpmcmc.storage.files import open_regular, open_text
from dpmcmc.storage.released_files import KEY
from dpmcmc.storage.versions import versions

#: Largest text that is read. A privacy.json has a few thousand characters, and no config has more than this.
MOST_CHARACTERS = 4_000_000
_MOST_OF_A_CONFIG = 1_000_000
#: Accountants of different versions may differ in the last digits.
TOLERANCE = 1e-6
#: Keys of which no other file of a folder speaks: versions, the receipt of a ledger, and the digests of the files.
FREE = frozenset({"versions", "ledger", KEY})
#: Groups of ``draws.nc`` in the order in which the first that is there holds what was released.
_RELEASED = ("path", "draws", "posterior")


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        CommandError: it cannot be read, is too long, or is no JSON.
    """
    give = f"give a run folder's {path.name}"
    try:
        with open_text(path) as stream:
            text = stream.read(MOST_CHARACTERS + 1)
        if len(text) > MOST_CHARACTERS:
            raise CommandError(f"{path}: is longer than {MOST_CHARACTERS} characters; {give}.")
        return json.loads(text, parse_constant=_refused)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{path}: cannot be read ({reason}); {give}.") from None
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise CommandError(f"{path}: not JSON{where}; {give}.") from None


def _refused(constant: str) -> None:
    raise InputError(f"{constant} is no JSON")


def contradiction(
    folder: Path,
    body: dict[str, Any],
    again: Mapping[str, Callable[[], Any]],
) -> str | None:
    """Return a clause on the first key that the files of a folder contradict; None: there is none.

    Args:
        folder: of the run.
        body: content of its privacy.json.
        again: what follows from the events by the accountants of this version, by key.

    Raises:
        CommandError: a file cannot be read.
    """
    path = folder / "plan.json"
    if not path.exists():
        return None
    plan = read_json(path)
    doing = path
    try:
        found = next(_of_plan(plan, body, again), None)
        if found is None and (doing := folder / "config.yaml").exists():
            found = next(_of_config(_yaml(doing), body), None)
        if found is None and (doing := folder / "draws.nc").exists():
            found = next(_of_draws(doing, plan, body), None)
    except CommandError:
        raise
    except Exception as error:  # whatever a damaged file makes YAML and HDF5 raise
        raise CommandError(
            f"{doing}: is no file of this library ({type(error).__name__}); get the whole folder again.",
            code=1,
        ) from None
    return found


def _of_plan(
    plan: dict[str, Any],
    body: dict[str, Any],
    again: Mapping[str, Callable[[], Any]],
) -> Iterator[str]:
    """Yield a clause for each key that plan.json contradicts."""
    stated = plan["guarantee"]
    if stated is None:
        yield "states a guarantee, and plan.json has none"
        return
    expected = dict(stated)
    if "facts" in plan:  # earlier versions do not state them
        expected |= plan["facts"] | {"unit": plan["unit"], "data": plan.get("data")}
        if KEY not in body:
            yield f"lacks {KEY}, the digests of the files beside it"
        for name in sorted(set(body) - set(expected) - set(again) - FREE):
            yield f"states {name}, of which plan.json says nothing"
    for name in expected:
        if name not in body:
            yield f"lacks {name}, which plan.json states"
        elif not _alike(body[name], expected[name]) and not _follows(name, body, again):
            yield f"states another {name} than plan.json"
    same_version = "facts" in plan and body.get("versions") == versions()
    if same_version and not _follows("cross_check", body, again):
        yield "states another cross_check than its events have"


def check_plan(folder: Path, body: dict[str, Any]) -> str:
    """Return a sentence on the plan made again, which is that of the folder, or on why none is.

    Args:
        folder: of the run; its plan.json does not contradict its privacy.json.
        body: content of its privacy.json.

    Raises:
        CommandError: the plan made again is another.
    """
    path = folder / "plan.json"
    if not path.exists():
        return f"not made again, for there is no {path.name}: whether the events are all of the run is not checked"
    stated = read_json(path)
    try:
        again = plan_again(folder, stated, body.get("versions"))
    except NotPlanned as why:
        return f"not made again: {why}; that the events are all of the run is the word of {path.name}"
    for name, said in compared(stated).items():
        if not _near(said, again[name]):
            raise CommandError(
                f"{path}: states another {name} than the plan that is made again from the config of the run; do not "
                "rely on it.",
                code=1,
            )
    return "made again without data: events, adjacency, records, steps, chains and number of draws are the same"


def _of_config(config: dict[str, Any], body: dict[str, Any]) -> Iterator[str]:
    """Yield a clause for each key of the run that its config says otherwise."""
    for section in ("privacy", "run", "sampling", "metric"):
        stated = body.get(section, {}) if section in ("sampling", "metric") else body
        for name, asked in (config.get(section) or {}).items():
            # A config asks for an epsilon, and the accountant and the release may be those of its mechanism.
            if name in FREE | {"epsilon", "accountant", "release"} or asked is None:
                continue
            if name in stated and stated[name] != asked:
                yield f"states another {name} than config.yaml"


def _yaml(path: Path) -> Any:
    with open_text(path) as stream:
        text = stream.read(_MOST_OF_A_CONFIG + 1)
    if len(text) > _MOST_OF_A_CONFIG:
        raise InputError(f"{path} is too long")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _of_draws(path: Path, plan: dict[str, Any], body: dict[str, Any]) -> Iterator[str]:
    """Yield a clause where draws.nc is not of so many draws, or not of this guarantee."""
    import h5py  # few files have draws beside them

    chains = body.get("chains", 1)
    draws = plan["draws"] if "draws" in plan else plan["draws_per_chain"]
    if "steps" in body:
        draws = (body["steps"] - plan["burn_in"]) // plan["thin"]
    with open_regular(path) as stream, h5py.File(stream) as file:
        name = next(name for name in _RELEASED if name in file)
        shapes = {leaf.shape[:2] for leaf in file[name].values() if not leaf.is_scale}
        attributes = file[name].attrs
        said = {key: attributes.get(key) for key in ("epsilon", "delta", "adjacency")}
    if shapes != {(chains, draws)}:
        yield f"is of {chains} x {draws} draws by steps and chains, and draws.nc has others"
    for key, value in said.items():
        if value != (math.inf if body[key] is None else body[key]):
            yield f"states another {key} than draws.nc"


def _alike(one: object, other: object) -> bool:
    """Return whether two values are the same JSON, in which 1 and true differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _follows(name: str, body: dict[str, Any], again: Mapping[str, Callable[[], Any]]) -> bool:
    """Return whether a key has the value that is recomputed; false of one that is not, or cannot be."""
    try:
        return name in again and name in body and _near(body[name], again[name]())
    except CommandError:  # the events are such that nothing can be
        return False


def _near(one: Any, other: Any) -> bool:
    """Return whether two values agree up to the last digits of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(_near(one[n], other[n]) for n in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_near, one, other))
    if type(one) is float and type(other) is float:
        return math.isclose(one, other, rel_tol=TOLERANCE)
    return _alike(one, other)
