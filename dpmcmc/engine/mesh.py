"""Devices in two axes: chains side by side along ``chain``, records split along ``data``.

    mesh = dpmcmc.mesh(chain=2, data=4)          # 8 devices, of one process or of several
    dpmcmc.sample(plan, records, mesh=mesh)

A shard of the data draws its own Poisson batch, which together are the Poisson batch of the whole: records take part
independently. The shards' exact sums are added as integers, in one ``psum`` a step, and every device adds the same
noise to the same sum. So neither the guarantee nor the law of the draws depends on the mesh. Under one seed full
batches draw the same up to float32 rounding, which the shapes of the shards change; Poisson batches are others. The
rooms of the shards together overflow no more often than the plan charged (``Poisson.shard_slots``).

Each process of several holds the rows of its own devices (``processes.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpmcmc.errors import InputError
from dpmcmc.storage.pytree import PyTree

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


def platform_of(mesh: Mesh | None) -> str:
    """Return the platform that programs are compiled for: of a mesh, or without one of JAX's default device."""
    devices = jax.device_put(np.float32(0)).devices() if mesh is None else set(mesh.devices.flat)
    return next(iter(devices)).platform


def sizes(mesh: Mesh | None) -> tuple[int, int]:
    """(devices along the chains, devices along the records)."""
    return (1, 1) if mesh is None else (mesh.shape[CHAIN], mesh.shape[DATA])


def spread(tree: PyTree, mesh: Mesh, axis: str) -> PyTree:
    """Arrays that every process has whole, split over the devices of an axis along their leading axis.

    Rows are padded with zeros to a multiple of the axis.
    """

    def one(leaf: np.ndarray | jax.Array) -> jax.Array:
        host = np.asarray(leaf)
        rows = host.shape[0] + -host.shape[0] % mesh.shape[axis]

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            own = host[index]
            start, stop, _ = index[0].indices(rows)
            return np.pad(own, [(0, stop - start - len(own))] + [(0, 0)] * (host.ndim - 1))

        return jax.make_array_from_callback((rows, *host.shape[1:]), NamedSharding(mesh, PartitionSpec(axis)), part)

    return _words_first(one, tree)


def on_every_device(tree: PyTree, mesh: Mesh) -> PyTree:
    """Arrays that every process has whole, as every device has them whole."""

    def one(leaf: np.ndarray | jax.Array) -> jax.Array:
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, NamedSharding(mesh, PartitionSpec()), lambda index: host[index])

    return _words_first(one, tree)


def _words_first(place: Callable[[np.ndarray | jax.Array], jax.Array], tree: PyTree) -> PyTree:
    """Place arrays, and keys by their words."""

    def one(leaf: np.ndarray | jax.Array) -> jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(place(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        return place(leaf)

    return jax.tree.map(one, tree)


def on_host(tree: PyTree) -> PyTree:
    """NumPy arrays of device ones, whole on every process."""
    if all(leaf.is_fully_addressable for leaf in jax.tree.leaves(tree)):
        return jax.tree.map(np.asarray, tree)
    return multihost_utils.process_allgather(tree, tiled=True)
