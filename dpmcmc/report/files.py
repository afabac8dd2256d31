"""Contents of the files that a release is written in; functions of public facts and of released values.

``draws.nc`` follows ArviZ's schema: a netCDF file with groups ``posterior`` and ``sample_stats``, dimensions
``chain`` and ``draw`` first, so ``arviz.from_netcdf`` opens it. Where the columns of the records have names,
coefficients have them as coordinates.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.inference.metric import ReleasedMetric
from dpmcmc.inference.names import axes, leaf_names
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.permitted import Verdict
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.versions import installed

if TYPE_CHECKING:
    import h5netcdf
    import xarray

#: Arrays of a group of a netCDF file by name, with the names of their dimensions.
Variables = dict[str, tuple[tuple[str, ...], np.ndarray]]


def privacy_json(
    plan: AnyPlan, guarantee: Guarantee | None, data: dict[str, object] | None = None, receipt: Receipt | None = None
) -> dict[str, object]:
    """Return what a reader needs to defend, recompute or compose the guarantee of a run."""
    charged = {} if receipt is None else {"ledger": receipt.to_json()}
    stated = plan.facts()
    body = guarantee_json(guarantee, str(stated.get("unit", getattr(plan.target, "unit", "record"))))
    # A plan that was loaded states the guarantee of its file; the one that was computed again holds.
    return body | {name: fact for name, fact in stated.items() if name not in body} | {"data": data} | charged


def guarantee_json(guarantee: Guarantee | None, unit: str = "record") -> dict[str, object]:
    """A guarantee, or the sentence that there is none, with its unit, versions and the other accountants' ε."""
    said = ["No guarantee: privacy was not asked for, or the noise keys of this run are not secret."]
    body: dict[str, object] = dict.fromkeys(("epsilon", "delta", "adjacency", "release", "accountant"))
    body |= {"assumptions": said, "events": []} if guarantee is None else guarantee.to_json()
    cross_check = dict.fromkeys(("advanced", "rdp", "pld")) if guarantee is None else guarantee.cross_check()
    return body | {"unit": unit, "versions": versions(), "cross_check": cross_check}


def versions() -> dict[str, str]:
    """Versions of what computed the guarantee."""
    return {name: installed(name) for name in ("dpmcmc", "jax", "numpy", "scipy")}


def attributes(guarantee: Guarantee | None, verdict: Verdict) -> dict[str, str | float]:
    """Return what every group of draws says of them: guarantee, permitted uses, and the reason of each verdict."""
    uses: dict[str, str | float] = {"usable_for": ", ".join(verdict.usable_for) or "nothing", **verdict.reasons}
    if guarantee is None:
        return {"guarantee": "none", **uses}
    stated: dict[str, str | float] = {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "adjacency": str(guarantee.adjacency),
    }
    return {"guarantee": str(guarantee), **stated, **uses}


def draws_content(
    draws: PyTree,
    info: PyTree,
    said: dict[str, str | float],
    metric: ReleasedMetric | None = None,
    columns: Sequence[str] | None = None,
) -> bytes:
    """A netCDF file in ArviZ's schema, whose groups all have the attributes ``said`` (:func:`attributes`).

    ``info`` is None where a release has no steps to tell of. A released metric is the group ``metric``: its arrays, and
    an attribute ``facts`` of JSON (:meth:`ReleasedMetric.of`). ``columns`` are names of the columns of the records.
    """
    import h5netcdf  # takes a tenth of a second, which planning does not need; xarray would take another

    groups = _groups(draws, info, columns)
    if metric is not None:
        groups["metric"] = {name: (("row", "column"), matrix) for name, matrix in metric.arrays().items()}
    content = io.BytesIO()  # in memory: HDF5 does not survive a disk that fills up under it
    with h5netcdf.File(content, "w") as file:
        for name, variables in groups.items():
            group = file.create_group(name)
            for variable, (dimensions, array) in variables.items():
                for dimension, size in zip(dimensions, array.shape, strict=True):
                    if dimension not in group.dimensions:
                        group.dimensions[dimension] = size
                _write(group, variable, dimensions, array)
            group.attrs.update(said)
        if metric is not None:
            file["metric"].attrs["facts"] = json.dumps(metric.facts())
    return content.getvalue()


def _write(group: h5netcdf.Group, name: str, dimensions: Sequence[str], array: np.ndarray) -> None:
    """Write a variable; netCDF knows no booleans, and marks them as xarray does."""
    import h5py

    if array.dtype.kind == "U":
        group.create_variable(name, dimensions, h5py.string_dtype(), data=array.astype(object))
    elif array.dtype == bool:
        group.create_variable(name, dimensions, data=array.astype(np.int8)).attrs["dtype"] = "bool"
    else:
        group.create_variable(name, dimensions, data=array)


def _groups(draws: PyTree, info: PyTree, columns: Sequence[str] | None) -> dict[str, Variables]:
    """Return ArviZ's groups of a release; arguments as of :func:`draws_content`."""
    groups = {"posterior": _variables(draws, columns)}
    if info is not None:
        groups["sample_stats"] = _variables(info._asdict() if hasattr(info, "_asdict") else info)
    return groups


def _variables(tree: PyTree, columns: Sequence[str] | None = None) -> Variables:
    """Return the leaves of a pytree, named by their paths, after the coordinates of their dimensions."""
    variables: Variables = {}
    coordinates: Variables = {}
    for name, leaf in leaf_names(tree).items():
        array = np.asarray(leaf)
        along = axes(name, array.shape[2:], columns)
        variables[name] = (("chain", "draw", *(dimension for dimension, _ in along)), array)
        named = ((dimension, values) for dimension, values in along if values is not None)
        coordinates |= {dimension: ((dimension,), np.array(values)) for dimension, values in named}
    chains, draws = next(iter(variables.values()))[1].shape[:2]
    return {"chain": (("chain",), np.arange(chains)), "draw": (("draw",), np.arange(draws))} | coordinates | variables


def datasets(
    draws: PyTree, info: PyTree, said: dict[str, str | float], columns: Sequence[str] | None
) -> dict[str, xarray.Dataset]:
    """Return ArviZ's groups of a release as data sets; arguments as of :func:`draws_content`."""
    import xarray  # takes half a second

    groups = _groups(draws, info, columns)
    return {name: xarray.Dataset(dict(variables), attrs=said) for name, variables in groups.items()}
