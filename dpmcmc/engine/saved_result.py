"""A Result from the folder that it was saved in."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError
from dpmcmc.inference.evidence import FILE as EVIDENCE_FILE
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.metric import ReleasedMetric
from dpmcmc.inference.names import ALONE
from dpmcmc.inference.trace import FILE as TRACE_FILE
from dpmcmc.inference.trace import Trace
from dpmcmc.planning.permitted import Verdict
from dpmcmc.planning.saved import SavedPlan, target_of
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.regular_file import read_bytes, read_text
from dpmcmc.storage.released_files import PRIVACY, check_result, has_digests
from dpmcmc.targets.base import Target

if TYPE_CHECKING:
    import xarray

#: A Result, which this file only makes.
_R = TypeVar("_R")

#: Characters of an error that a refusal quotes.
_LONGEST = 200


def load(make: Callable[..., _R], folder: Path, target: Target | None) -> _R:
    """Return the result that ``make`` makes; other arguments, warnings and refusals are those of ``Result.load``."""
    if hasattr(target, "constrain"):
        said = "target: positions that a NumPyro model predicts from are not saved; leave target out"
        raise InputError(said, "target")
    try:
        facts = _json(folder / PRIVACY)
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
    if not has_digests(facts):
        warnings.warn(
            f"{folder}: an earlier version wrote it, without digests of its files; nothing shows that they are those "
            "that were released together.",
            stacklevel=3,
        )
    return result


def _none_there(folder: Path, error: Exception) -> InputError:
    """Return the refusal of a folder; what an error quotes of a damaged file is cut short."""
    why = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
    said = f"{folder}: holds no result that can be loaded ({why}); give the folder of a run that has ended, or of"
    return InputError(f"{said} result.save", "folder")


def _loaded(make: Callable[..., _R], folder: Path, facts: dict[str, Any], target: Target | None) -> _R:
    """Return the result of a folder with this ``privacy.json``; raises whatever its files lead to."""
    import xarray

    plan, judged = (_json(folder / name) for name in ("plan.json", "metrics.json"))
    with xarray.open_datatree(io.BytesIO(read_bytes(folder / "draws.nc")), engine="h5netcdf") as tree:
        groups = {name: group.to_dataset().load() for name, group in tree.children.items()}
    draws, columns = _draws(groups["posterior"])
    info = None if "sample_stats" not in groups else _arrays(groups["sample_stats"])
    guarantee = Guarantee.from_json(facts) if facts["events"] else None
    leaf = jax.tree.leaves(draws)[0]
    saved = SavedPlan(
        stated=plan,
        stated_facts=facts,
        target=target_of(plan["target"]) if target is None else target,
        num_records=plan["num_records"],
        guarantee=guarantee,
        draws=leaf.shape[0] * leaf.shape[1],
        verdict=Verdict.of_json(judged),
        schema=Schema.from_yaml(plan["schema"]) if "schema" in plan else None,
        released_path=Trace.load(folder) if (folder / TRACE_FILE).exists() else None,
    )
    evidence = Evidence.load(folder) if (folder / EVIDENCE_FILE).exists() else None
    return make(saved, draws, draws, info, guarantee, {}, metric=_metric(groups), columns=columns, evidence=evidence)


def _json(path: Path) -> dict[str, Any]:
    said = json.loads(read_text(path))
    if not isinstance(said, dict):
        raise TypeError(f"{path.name} is not a table")
    return said


def _arrays(group: xarray.Dataset) -> dict[str, np.ndarray]:
    return {str(name): leaf.values for name, leaf in group.items()}


def _draws(posterior: xarray.Dataset) -> tuple[PyTree, tuple[str, ...] | None]:
    """Return (the draws as a pytree, names of the columns of the records)."""
    columns = tuple(map(str, posterior["column"].values)) if "column" in posterior.coords else None
    draws: PyTree = {}
    for name, leaf in _arrays(posterior).items():
        *path, last = name.split(".")
        inner = draws
        for step in path:
            inner = inner.setdefault(step, {})
        inner[last] = leaf
    return (draws[ALONE] if list(draws) == [ALONE] else draws), columns


def _metric(groups: dict[str, xarray.Dataset]) -> ReleasedMetric | None:
    if "metric" not in groups:
        return None
    return ReleasedMetric.of(_arrays(groups["metric"]), json.loads(groups["metric"].attrs["facts"]))
