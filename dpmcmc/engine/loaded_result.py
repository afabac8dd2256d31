"""A result, read back from the folder that it was saved in; ``result_folder.py`` says what its files hold."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError, quoted
from dpmcmc.inference.evidence import FILE as EVIDENCE_FILE
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.names import ALONE
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.inference.trace import FILE as TRACE_FILE
from dpmcmc.inference.trace import Trace
from dpmcmc.planning.permitted_uses import Verdict
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.saved import SavedRun, target_of
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.files import read_bytes, read_json
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.released_files import PRIVACY, check_result
from dpmcmc.targets.base import Target

if TYPE_CHECKING:
    import h5py
from dpmcmc.engine.result_folder import DRAWS, PATH, POSTERIOR, UNCONSTRAINED

#: A Result, which this file only makes.
_R = TypeVar("_R")


def load(make: Callable[..., _R], folder: Path, target: Target | None) -> _R:
    """Return the result that ``make`` makes; other arguments, warnings and refusals are those of ``Result.load``."""
    try:
        facts = read_json(folder / PRIVACY)
    except (OSError, ValueError, RecursionError, TypeError) as error:
        raise _none_there(folder, error) from None
    try:
        check_result(folder, facts)
    except OSError as error:
        raise _none_there(folder, error) from None
    try:
        result = _loaded(make, folder, facts, target)
    except Exception as error:  # whatever a damaged file makes NumPy, HDF5 and the accountants raise
        raise _none_there(folder, error) from None
    return result


def _none_there(folder: Path, error: Exception) -> InputError:
    """Return the refusal of a folder; what an error quotes of a damaged file is cut short."""
    why = quoted(error) if folder.exists() else "there is no such folder"
    said = f"{folder}: holds no result that can be loaded ({why}); give the folder of a run that has ended, or of"
    return InputError(f"{said} result.save", "folder")


def _loaded(make: Callable[..., _R], folder: Path, facts: dict[str, Any], target: Target | None) -> _R:
    """Return the result of a folder with this ``privacy.json``; raises whatever its files lead to."""
    plan, judged = (read_json(folder / name) for name in ("plan.json", "metrics.json"))
    held = _held(read_bytes(folder / "draws.nc"))
    name = next(name for name in (PATH, DRAWS, POSTERIOR) if name in held)
    released = _draws(held[name])
    positions = _draws(held[UNCONSTRAINED + name]) if UNCONSTRAINED + name in held else released
    stats = next((name for name in ("sample_stats", "path_stats") if name in held), None)
    info = None if stats is None else held[stats].leaves
    guarantee = Guarantee.from_json(facts) if facts["events"] else None
    leaf = jax.tree.leaves(released)[0]
    run = SavedRun(
        stated_plan=plan,
        stated_facts=facts,
        guarantee=guarantee,
        draws=leaf.shape[0] * leaf.shape[1],
        released_path=Trace.load(folder) if (folder / TRACE_FILE).exists() else None,
    )
    saved = Plan(
        target=target_of(plan) if target is None else target,
        num_records=plan["num_records"],
        stages=(run,),
        schema=Schema.from_yaml(plan["schema"]) if "schema" in plan else None,
        verdict=Verdict.of_json(judged),
    )
    evidence = Evidence.load(folder) if (folder / EVIDENCE_FILE).exists() else None
    return make(
        saved,
        released,
        positions,
        info,
        guarantee,
        {},
        metric=_metric(held),
        columns=held[name].columns,
        evidence=evidence,
    )


class _Held(NamedTuple):
    """A group that was read.

    Attributes:
        leaves: arrays by name.
        columns: names of the columns of the records, or None.
        facts: JSON of a metric, or None.
    """

    leaves: dict[str, np.ndarray]
    columns: tuple[str, ...] | None
    facts: str | None


def _held(content: bytes) -> dict[str, _Held]:
    """Return the groups of a ``draws.nc``, which may be a stranger's.

    A variable of ours lies in the file in one piece. So the file is at least as large as what is read from it, and one
    that asks for more is refused before room is made.

    Raises:
        InputError: it asks for more than it holds, or leads elsewhere.
    """
    import h5py

    found = {}
    room = len(content)
    with h5py.File(io.BytesIO(content), "r") as file:
        for name in file:
            group = _own(file, name, h5py.Group)
            inside = {inner: _own(group, inner, h5py.Dataset) for inner in group}
            # A dimension is a variable too; of these, texts alone are read.
            column = inside.pop("column", None)
            named = column is not None and column.dtype.hasobject
            arrays = {inner: one for inner, one in inside.items() if not one.is_scale}
            for stored in (*arrays.values(), *([column] if named else [])):
                room -= math.prod(stored.shape) * stored.dtype.itemsize
            if room < 0:
                raise InputError(f"draws.nc asks for more than its {len(content):,} bytes")
            told = "facts" in group.attrs and group.attrs.get_id("facts").shape == ()
            found[name] = _Held(
                {inner.removeprefix(_CLASHING): _array(stored) for inner, stored in arrays.items()},
                _texts(column, len(content)) if named else None,
                group.attrs["facts"] if told else None,
            )
    return found


def _own(group: h5py.Group, name: str, kind: type) -> Any:
    """Return a member of a group; refuse what lies elsewhere, in other files too, or is to be unpacked."""
    import h5py

    own = isinstance(group.get(name, getlink=True), h5py.HardLink)
    found = group[name] if own else None
    if isinstance(found, h5py.Dataset):
        own = not (found.external or found.is_virtual or found.chunks)
    if not own or not isinstance(found, kind):
        raise InputError(f"draws.nc: {name!r} is no array that lies whole in the file")
    return found


def _array(stored: h5py.Dataset) -> np.ndarray:
    """Return the numbers of a variable."""
    if stored.dtype.kind not in "biuf":
        raise InputError(f"draws.nc: {stored.name!r} holds no numbers")
    array = stored[()]
    return array.astype(bool) if "dtype" in stored.attrs else array


#: netCDF begins the name of a variable with this where a dimension has the name too.
_CLASHING = "_nc4_non_coord_"
#: Bytes of texts that are read at a time, at most about.
_TEXTS = 1 << 24


def _texts(stored: h5py.Dataset, most: int) -> tuple[str, ...]:
    """Return the texts of a variable; refuse longer ones than the file, as one that it names many times is."""
    found: list[str] = []
    step = max(1, _TEXTS // most)
    for start in range(0, len(stored), step):
        found += stored.asstr()[start : start + step].tolist()
        if sum(map(len, found)) > most:
            raise InputError(f"draws.nc asks for more than its {most:,} bytes")
    return tuple(found)


def _draws(group: _Held) -> PyTree:
    """Return the draws as a pytree."""
    draws: PyTree = {}
    for name, leaf in group.leaves.items():
        *path, last = name.split(".")
        inner = draws
        for step in path:
            inner = inner.setdefault(step, {})
        inner[last] = leaf
    return draws[ALONE] if list(draws) == [ALONE] else draws


def _metric(held: dict[str, _Held]) -> ReleasedMetric | None:
    if "metric" not in held:
        return None
    metric = held["metric"]
    return ReleasedMetric.of(metric.leaves, json.loads(str(metric.facts)))
