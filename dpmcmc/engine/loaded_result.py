"""A result, read back from the folder that it was saved in; ``result_folder.py`` says what its files hold."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.engine.result import Result
from dpmcmc.engine.result_folder import DRAWS, PATH, POSTERIOR, UNCONSTRAINED
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


def load(folder: str | Path, target: Target | None = None) -> Result:
    """Return what ``Result.save``, or ``dpmcmc run``, has written: draws, guarantee, verdict and names.

    The guarantee is computed again from its events.

    Args:
        folder: of the run.
        target: the model, where it is of your own and the result is to predict.

    Raises:
        ValueError: the folder holds no such result, or a file is missing, changed, or of another result.

    Example:
        >>> import dpmcmc
        >>> dpmcmc.load("no/such/folder")
        Traceback (most recent call last):
            ...
        dpmcmc.errors.InputError: no/such/folder: holds no result that can be loaded (there is no such folder); ...
    """
    place = Path(folder)
    try:
        facts = read_json(place / PRIVACY)
        check_result(place, facts)
    except InputError:
        raise
    except (OSError, ValueError, RecursionError, TypeError) as error:
        raise _none_there(place, error) from None
    try:
        return _read_result(place, facts, target)
    except Exception as error:  # whatever a damaged file makes NumPy, HDF5 and the accountants raise
        raise _none_there(place, error) from None


def _none_there(folder: Path, error: Exception) -> InputError:
    """Return the refusal of a folder; what an error quotes of a damaged file is cut short."""
    why = quoted(error) if folder.exists() else "there is no such folder"
    said = f"{folder}: holds no result that can be loaded ({why}); give the folder of a run that has ended, or of"
    return InputError(f"{said} result.save", "folder")


def _read_result(folder: Path, facts: dict[str, Any], target: Target | None) -> Result:
    """Return the result of a folder with this ``privacy.json``; raises whatever its files lead to."""
    plan, judged = (read_json(folder / name) for name in ("plan.json", "metrics.json"))
    held = _read_groups(read_bytes(folder / "draws.nc"))
    name = next(name for name in (PATH, DRAWS, POSTERIOR) if name in held)
    released = _draws(held[name])
    positions = _draws(held[UNCONSTRAINED + name]) if UNCONSTRAINED + name in held else released
    stats = next((name for name in ("sample_stats", "path_stats") if name in held), None)
    metric = held.get("metric")
    if judged.get("from_path") and not (folder / EVIDENCE_FILE).exists():
        raise InputError(
            f"{folder}: was saved by an earlier version, whose chains concluded otherwise; read its draws.nc with "
            "xarray or ArviZ",
            "folder",
        )
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
    return Result(
        saved,
        released,
        positions,
        None if stats is None else held[stats].leaves,
        guarantee,
        {},
        metric=None if metric is None else ReleasedMetric.of(metric.leaves, json.loads(str(metric.facts))),
        columns=held[name].columns,
        evidence=Evidence.load(folder) if (folder / EVIDENCE_FILE).exists() else None,
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


def _read_groups(content: bytes) -> dict[str, _Held]:
    """Return the groups of a ``draws.nc``, which may be a stranger's.

    A variable of ours lies in the file in one piece. So the file is at least as large as what is read from it, and one
    that asks for more is refused before room is made. xarray would follow links and unpack what it finds.

    Raises:
        InputError: it asks for more than it holds, or leads elsewhere.
    """
    import h5py

    found = {}
    room = len(content)
    with h5py.File(io.BytesIO(content), "r") as file:
        for name in file:
            group = _own(file, name, h5py.Group)
            leaves: dict[str, np.ndarray] = {}
            columns = None
            for inner in group:
                stored = _own(group, inner, h5py.Dataset)
                if stored.is_scale and stored.dtype.kind in "iuf":  # a dimension: only its size counts
                    continue
                if stored.dtype.kind not in ("S" if stored.is_scale else "biuf"):
                    raise InputError(f"draws.nc: {inner!r} holds something else than numbers or names")
                room -= stored.nbytes
                if room < 0:
                    raise InputError(f"draws.nc asks for more than its {len(content):,} bytes")
                array = stored[()]
                if inner == "column":
                    columns = tuple(row.tobytes().rstrip(b"\0").decode() for row in array)
                elif not stored.is_scale:
                    leaves[inner.removeprefix(_CLASHING)] = array.astype(bool) if "dtype" in stored.attrs else array
            told = "facts" in group.attrs and group.attrs.get_id("facts").shape == ()
            found[name] = _Held(leaves, columns, group.attrs["facts"] if told else None)
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


#: netCDF begins the name of a variable with this where a dimension has the name too.
_CLASHING = "_nc4_non_coord_"


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
