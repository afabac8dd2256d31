"""Contents of the files that a release is written in; functions of public facts and of released values.

``draws.nc`` follows ArviZ's schema: a netCDF file with groups ``posterior`` and ``sample_stats``, dimensions
``chain`` and ``draw`` first, so ``arviz.from_netcdf`` opens it. Where the columns of the records have names,
coefficients have them as coordinates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.inference.metric import ReleasedMetric
from dpmcmc.inference.names import axes, leaf_names
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    import xarray


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
    out = {}
    for name in ("dpmcmc", "jax", "numpy", "scipy"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "source"
    return out


def draws_content(
    draws: PyTree,
    info: PyTree,
    guarantee: Guarantee | None,
    metric: ReleasedMetric | None = None,
    columns: Sequence[str] | None = None,
) -> bytes:
    """A netCDF file in ArviZ's schema; ε, δ and adjacency are attributes of its groups.

    ``info`` is None where a release has no steps to tell of. A released metric is the group ``metric``: its arrays, and
    an attribute ``facts`` of JSON (:meth:`ReleasedMetric.of`). ``columns`` are names of the columns of the records.
    """
    groups = datasets(draws, info, columns)
    import xarray  # takes half a second, which planning does not need

    if metric is not None:
        matrices = {name: (("row", "column"), matrix) for name, matrix in metric.arrays().items()}
        groups["metric"] = xarray.Dataset(matrices, attrs={"facts": json.dumps(metric.facts())})
    tree = xarray.DataTree.from_dict(groups)
    for group in tree.children.values():
        group.attrs["guarantee"] = "none" if guarantee is None else str(guarantee)
    # In memory: HDF5 does not survive a disk that fills up under it.
    return bytes(tree.to_netcdf(None, engine="h5netcdf"))


def datasets(draws: PyTree, info: PyTree, columns: Sequence[str] | None) -> dict[str, xarray.Dataset]:
    """Return ArviZ's groups of a release; arguments as of :func:`draws_content`."""
    groups = {"posterior": to_dataset(draws, columns)}
    if info is not None:
        groups["sample_stats"] = to_dataset(info._asdict() if hasattr(info, "_asdict") else info)
    return groups


def to_dataset(tree: PyTree, columns: Sequence[str] | None = None) -> xarray.Dataset:
    """Return a Dataset with dimensions (chain, draw, ...), one variable per leaf, named by its path."""
    import xarray

    variables: dict[str, tuple] = {}
    coordinates: dict[str, list[str]] = {}
    for name, leaf in leaf_names(tree).items():
        array = np.asarray(leaf)
        along = axes(name, array.shape[2:], columns)
        variables[name] = (("chain", "draw", *(dimension for dimension, _ in along)), array)
        coordinates |= {dimension: list(values) for dimension, values in along if values is not None}
    chains, draws = next(iter(variables.values()))[1].shape[:2]
    counted = {"chain": np.arange(chains), "draw": np.arange(draws)}
    return xarray.Dataset(variables, coords=counted | coordinates)
