"""Sizes that suit the device that a program is compiled for.

A CPU is fastest within its cache, an accelerator when it is full. A CPU leaves out work on a condition for nothing; an
accelerator waits for the host to read the condition, longer than a step takes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpmcmc.errors import InputError
from dpmcmc.storage.pytree import PyTree

#: Most steps whose random numbers are drawn together.
DRAWN_STEPS = 32
#: Most bytes that a block's cells may work on at a time on any device.
MOST_WORK = 512 << 20


class Hardware(NamedTuple):
    """Sizes for one kind of device.

    Attributes:
        work: bytes within which one core is faster than several.
        lane: bytes that the cells of a lane should work on at a time.
        cells: so many cells make a lane even where they work on more, unless each reads rows of its own alone.
        drawn: most bytes of random numbers that are drawn together.
        chunk: most bytes of positions that a device call leaves behind.
        branches: whether a group of steps may depend on a condition: left out, or taken in fewer slots.
        overlaps: whether a chunk is computed while the host takes the draws of the one before.
    """

    work: int
    lane: int
    cells: int
    drawn: int
    chunk: int
    branches: bool
    overlaps: bool


#: By the name that JAX gives to a device's platform. On a CPU four cells beyond the cache are up to twice as fast
#: together as one by one.
KINDS = {
    "cpu": Hardware(
        work=1 << 20,
        lane=5 << 16,
        cells=4,
        drawn=1 << 20,
        chunk=32 << 20,
        branches=True,
        overlaps=False,
    )
}
#: Any other device. With 1,024 chains of logistic regression these sizes need less than 256 MB beside the records
#: (docs/performance.md).
ACCELERATOR = Hardware(
    work=MOST_WORK,
    lane=MOST_WORK,
    cells=1,
    drawn=96 << 20,
    chunk=56 << 20,
    branches=False,
    overlaps=True,
)


def hardware(platform: str) -> Hardware:
    """Return the sizes for a platform."""
    return KINDS.get(platform, ACCELERATOR)


def platform_of(mesh: Mesh | None) -> str:
    """Return the platform that programs are compiled for: of a mesh, or without one of JAX's default device."""
    devices = jax.device_put(np.float32(0)).devices() if mesh is None else set(mesh.devices.flat)
    return next(iter(devices)).platform


# ----------------------------------------------------------------------------------------------------
# Kind of device that a run computes on.

#: ``auto`` is JAX's default device: an accelerator where JAX finds one.
Device = Literal["auto", "cpu", "gpu"]


@contextlib.contextmanager
def on_device(device: Device) -> Iterator[None]:
    """Compute on a device of this kind while the context is open, whatever JAX was used for before.

    JAX's setting is that of the process, since a run computes in threads of its own as well.

    Raises:
        InputError: another name, or JAX finds no such device.
    """
    if device not in get_args(Device):
        raise InputError(
            f"device must be one of {', '.join(get_args(Device))}, got {device!r}",
            "device",
        )
    if device == "auto":
        yield
        return
    try:
        chosen = jax.local_devices(backend=device)[0]
    except (AssertionError, RuntimeError):  # JAX's own, by the platform
        hides = os.environ.get("JAX_PLATFORMS")
        why = f", where JAX_PLATFORMS is {hides!r}" if hides else ""
        mend = "" if device == "cpu" else ", or install jax[cuda13] where there is a GPU"
        raise InputError(f"device: JAX finds no {device} here{why}; use auto{mend}", "device") from None
    settings: Any = jax.config
    before = settings.jax_default_device
    jax.config.update("jax_default_device", chosen)
    try:
        yield
    finally:
        jax.config.update("jax_default_device", before)


def device_used(mesh: Mesh | None) -> dict[str, str | int]:
    """Return the devices of a run: ``platform`` and ``kind`` by JAX's names, and their ``count``. A public fact."""
    devices = list(jax.device_put(np.float32(0)).devices()) if mesh is None else list(mesh.devices.flat)
    first = devices[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": len(devices),
    }


# ----------------------------------------------------------------------------------------------------
# Devices in two axes: chains side by side along ``chain``, records split along ``data``.
#
#     mesh = dpmcmc.mesh(chain=2, data=4)          # 8 devices, of one process or of several
#     dpmcmc.sample(plan, records, mesh=mesh)
#
# A shard of the data draws its own Poisson batch, which together are the Poisson batch of the whole: records take part
# independently. The shards' exact sums are added as integers, in one ``psum`` a step, and every device adds the same
# noise to the same sum. So neither the guarantee nor the law of the draws depends on the mesh. Under one seed full
# batches draw the same up to float32 rounding, which the shapes of the shards change; Poisson batches are others. The
# rooms of the shards together overflow no more often than the plan charged (``Poisson.shard_slots``).
#
# Each process of several holds the rows of its own devices (``processes.py``).

CHAIN = "chain"
DATA = "data"
#: Sharding of what a call has for each step, steps first: along the chains; of batches along the records as well.
STEPS = PartitionSpec(None, CHAIN)
BATCHES = PartitionSpec(None, CHAIN, DATA)


def mesh(chain: int = 1, data: int | None = None) -> Mesh:
    """A mesh of the first ``chain * data`` devices of the kind that JAX computes on by default.

    Args:
        chain: devices along the chains.
        data: devices along the records; None: what the other axis leaves.

    Raises:
        ValueError: more devices than there are, with several processes not all of them, or devices of several kinds.
    """
    settings: Any = jax.config
    asked = settings.jax_default_device
    devices = jax.devices() if asked is None else jax.devices(platform_of(None))
    if data is None:
        data = len(devices) // chain if chain > 0 else 0
    if chain < 1 or data < 1 or chain * data > len(devices):
        raise InputError(
            f"mesh: chain={chain} times data={data} devices are wanted and {len(devices)} are there; "
            "on a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=8 makes 8 of one",
            "mesh",
        )
    if len({device.device_kind for device in devices}) > 1:
        raise InputError(
            "mesh: its devices must be of one kind, which rounds alike; hide the others from JAX",
            "mesh",
        )
    if jax.process_count() > 1 and chain * data != len(devices):
        said = f"mesh: with several processes it must span all {len(devices)} devices, not {chain * data}"
        raise InputError(said, "mesh")
    return Mesh(np.array(devices[: chain * data]).reshape(chain, data), (CHAIN, DATA))


def check_devices() -> None:
    """Refuse an environment that names a platform of which JAX finds no device.

    Raises:
        InputError: it does.
    """
    try:
        jax.devices()
    except (AssertionError, RuntimeError):  # JAX's own, by the platform
        raise InputError(
            f"JAX_PLATFORMS: {os.environ.get('JAX_PLATFORMS', '')!r} names devices of which JAX finds none here; unset "
            "it to run on this machine's CPU, or install jax[cuda13] where there is a GPU"
        ) from None


def checked(mesh: Mesh | None) -> Mesh | None:
    """The mesh, if it has the two axes.

    Raises:
        ValueError: it has others.
    """
    if mesh is not None and tuple(mesh.axis_names) != (CHAIN, DATA):
        raise InputError(f"mesh: its axes must be ('chain', 'data'), as dpmcmc.mesh makes them, not {mesh.axis_names}")
    return mesh


def check_repeatable(mesh: Mesh | None) -> None:
    """Refuse a checkpoint of a mesh of accelerators where JAX computes on a CPU by default.

    A resumed run would take the CPU's word (``fingerprint.platform``) that the same keys make the same bits again.

    Raises:
        InputError: it is one.
    """
    if mesh is not None and platform_of(None) == "cpu" != platform_of(mesh):
        raise InputError(
            "device: a run with a checkpoint computes on devices of the kind that JAX has by default, and this one's "
            f"mesh is of {platform_of(mesh)} beside a default of cpu; leave device out",
            "device",
        )


def sizes(mesh: Mesh | None) -> tuple[int, int]:
    """(devices along the chains, devices along the records)."""
    return (1, 1) if mesh is None else (mesh.shape[CHAIN], mesh.shape[DATA])


def spread(tree: PyTree, mesh: Mesh, axis: str) -> PyTree:
    """Arrays that every process has whole, split over the devices of an axis along their leading axis.

    Rows are padded with zeros to a multiple of the axis.
    """
    sharding = NamedSharding(mesh, PartitionSpec(axis))

    def one(leaf: np.ndarray | jax.Array) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = one(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
        host = np.asarray(leaf)
        rows = host.shape[0] + -host.shape[0] % mesh.shape[axis]

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            own = host[index]
            start, stop, _ = index[0].indices(rows)
            return np.pad(own, [(0, stop - start - len(own))] + [(0, 0)] * (host.ndim - 1))

        return jax.make_array_from_callback((rows, *host.shape[1:]), sharding, part)

    return jax.tree.map(one, tree)


def on_host(tree: PyTree) -> PyTree:
    """NumPy arrays of device ones, whole on every process."""
    if all(leaf.is_fully_addressable for leaf in jax.tree.leaves(tree)):
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)
