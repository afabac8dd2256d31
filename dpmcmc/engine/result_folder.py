"""The folder of a result: what ``draws.nc`` holds, and how it is written; ``loaded_result.py`` reads one back.

``draws.nc`` follows ArviZ's schema, so ``arviz.from_netcdf`` opens it: a netCDF file whose variables have the
dimensions ``chain`` and ``draw`` first. Coefficients have the names of the columns as coordinates, where these are
known. Its groups are:

``posterior``    draws that may be reported; there is no such group where nothing may be
``path``         kept iterates of chains, where they are not the posterior's draws
``draws``        draws of a mechanism, or of a posterior that follows from a path, where they may not be reported
``sample_stats`` what a sampler says of its kept steps; ``path_stats`` where the iterates are not the posterior's draws
``unconstrained_…``  the same draws on the real line, which a NumPyro model predicts from
``metric``       that the run released
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmcmc.inference.names import axes, leaf_names
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.planning.permitted_uses import INTERVALS, Verdict
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.pytree import PyTree

if TYPE_CHECKING:
    import xarray


POSTERIOR, PATH, DRAWS = "posterior", "path", "draws"
UNCONSTRAINED = "unconstrained_"


class Group(NamedTuple):
    """A group of ``draws.nc``.

    Attributes:
        leaves: a pytree, leaves (chains, draws, ...).
        verdict: on them.
    """

    leaves: PyTree
    verdict: Verdict


def groups(
    draws: PyTree,
    released: PyTree,
    positions: PyTree,
    info: PyTree,
    verdict: Verdict,
    chains: bool,
) -> dict[str, Group]:
    """Return the groups of a result.

    Args:
        draws: of the posterior; the released ones where it has none.
        released: iterates of chains, or draws of a mechanism.
        positions: the released ones on the real line, or ``released`` itself.
        info: of the kept steps, or None.
        verdict: on the draws.
        chains: whether the released ones are iterates of chains.
    """
    usable = INTERVALS in verdict.usable_for
    own = usable and not verdict.from_path
    name = POSTERIOR if own else PATH if chains else DRAWS
    of_released = verdict.of_path if verdict.from_path else verdict
    found = {}
    if verdict.from_path:
        found[POSTERIOR if usable else DRAWS] = Group(draws, verdict)
    found[name] = Group(released, of_released)
    if positions is not released:
        found[UNCONSTRAINED + name] = Group(positions, of_released)
    if info is not None:
        stats = info._asdict() if hasattr(info, "_asdict") else info
        found["sample_stats" if own else "path_stats"] = Group(stats, of_released)
    return found


def attributes(guarantee: Guarantee | None, verdict: Verdict) -> dict[str, str | float]:
    """Return the attributes of every group of draws: guarantee, permitted uses, and the reason of each verdict."""
    uses: dict[str, str | float] = {
        "usable_for": ", ".join(verdict.usable_for) or "nothing",
        **verdict.reasons,
    }
    if guarantee is None:
        return {"guarantee": "none", **uses}
    stated: dict[str, str | float] = {
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "adjacency": str(guarantee.adjacency),
    }
    return {"guarantee": str(guarantee), **stated, **uses}


def datasets(
    held: Mapping[str, Group],
    guarantee: Guarantee | None,
    columns: Sequence[str] | None,
) -> dict[str, xarray.Dataset]:
    """Return groups as data sets, each with guarantee and verdict as attributes.

    Args:
        held: groups by name.
        guarantee: of the run, or None.
        columns: names of the columns of the records, or None.
    """
    return {
        # Statistics of steps have no columns.
        name: _dataset(leaves, None if name.endswith("_stats") else columns, attributes(guarantee, verdict))
        for name, (leaves, verdict) in held.items()
    }


def content(made: Mapping[str, xarray.Dataset], metric: ReleasedMetric | None) -> bytes:
    """Return a netCDF file of data sets, the same bytes for the same values.

    Texts are arrays of characters, so that all that is read lies in the file itself.

    Args:
        made: data sets by the name of their group.
        metric: that the run released, the group ``metric``: its arrays, and an attribute ``facts`` of JSON; or None.
    """
    import h5netcdf
    import xarray

    groups = dict(made)
    if metric is not None:
        matrices = {name: (("row", "column"), array) for name, array in metric.arrays().items()}
        groups["metric"] = xarray.Dataset(matrices, attrs={"facts": json.dumps(metric.facts())})
    stored = io.BytesIO()  # in memory, since HDF5 crashes where the disk fills up
    with h5netcdf.File(stored, "w") as file:
        for name, group in groups.items():
            texts = {text: {"dtype": "S1"} for text, each in group.variables.items() if each.dtype.kind == "U"}
            # A lock would be one of the cluster's in a worker of Dask, and would not know a file in memory.
            store = xarray.backends.H5NetCDFStore(file.create_group(name), mode="a", lock=False)
            group.dump_to_store(store, encoding=texts)
    return stored.getvalue()


def _dataset(tree: PyTree, columns: Sequence[str] | None, said: dict[str, str | float]) -> xarray.Dataset:
    """Return the leaves of a pytree, named by their paths, after the coordinates of their dimensions."""
    import xarray  # takes a third of a second, and planning does not need it

    variables: dict[str, tuple] = {}
    coordinates: dict[str, tuple] = {}
    for name, leaf in leaf_names(tree).items():
        array = np.asarray(leaf)
        along = axes(name, array.shape[2:], columns)
        variables[name] = ("chain", "draw", *(dimension for dimension, _ in along)), array
        coordinates |= {dimension: (dimension, np.array(values)) for dimension, values in along if values is not None}
    chains, draws = array.shape[:2]
    counted = {"chain": ("chain", np.arange(chains)), "draw": ("draw", np.arange(draws))}
    return xarray.Dataset(counted | coordinates | variables, attrs=said)
