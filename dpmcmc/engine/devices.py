"""The kind of device that a run computes on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from dpmcmc.errors import InputError

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
