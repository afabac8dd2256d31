"""Fingerprint that a resumed run is known by: its records, its plan, and the platform that rounds its numbers.

Whether a difference is refused or charged is for the checkpoint (``checkpoint.py``) to say.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import os
import platform as machine
import re
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CellType, CodeType
from typing import Any, Protocol

import jax
import numpy as np

from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.record_blocks import blocks
from dpmcmc.storage.versions import installed

#: Libraries whose version may decide a rounding.
_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "numpyro", "flax", "optax")


#: Environment variables, by how they begin.
_VARIABLES = ("XLA_", "JAX_", "OPENBLAS", "OMP_", "MKL_", "BLIS_", "NPROC")


#: Flags that move no bit of a CPU's: devices that are simulated are counted themselves, and the other is a GPU's.
_NO_BIT = re.compile(r"--xla_(?:force_host_platform_device_count|gpu_deterministic_ops)=\S*")


#: Variables that say which of several processes this is, and where they meet.
_WHERE = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_COORDINATOR_PORT",
    "JAX_LOCAL_DEVICE_IDS",
)


#: Keys of plan.json that hold sentences, which a later version may word otherwise.
_SENTENCES = ("usable_for_reasons", "path", "note", "unproved", "reasons", "thesis_condition")


#: Identity of this process: if nothing makes an accelerator compute the same bits again, no two are the same platform.
_ONCE = secrets.token_hex(8)


class Described(Protocol):
    """A plan, of a sampler's run or of a mechanism."""

    @property
    def parts(self) -> tuple[object, ...]:
        """Parts that a user may have written, and arrays that ``plan.json`` says in short."""

    def describe(self) -> Any:
        """Return what it says of itself (``planning/description.py``)."""


def fingerprint(key: bytes, data: PyTree) -> str:
    """HMAC-SHA256 of records: names, shapes, types and bytes of a pytree's leaves; hexadecimal.

    Args:
        key: secret, 32 bytes.
        data: pytree of arrays.
    """
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        kind = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        digest.update(repr((jax.tree_util.keystr(path), np.shape(leaf), str(kind))).encode())
        for _, part in blocks(leaf):
            digest.update(np.ascontiguousarray(part).data if part.size else b"")
    return digest.hexdigest()


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    # Not every system says which.
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def platform(own: bool = True) -> str:
    """Digest of everything that may decide how a program rounds: two equal ones compute the same bits.

    On an accelerator that holds only under ``XLA_FLAGS=--xla_gpu_deterministic_ops=true``, which the command sets
    itself; else every process is a platform of its own, unless ``own`` is false: arithmetic number by number is the
    same there too.
    """
    threads = usable_cores()
    settings: Any = jax.config
    chosen = settings.jax_default_device
    backend = getattr(chosen, "platform", chosen) or jax.default_backend()
    # A CPU's pool of threads, whose size decides how Eigen splits a product.
    if backend == "cpu":
        threads = max(threads, jax.local_device_count("cpu"))
    fixed = backend == "cpu" or "xla_gpu_deterministic_ops=true" in os.environ.get("XLA_FLAGS", "")
    facts = (
        *_of_process(),
        (threads, settings.jax_enable_x64, settings.jax_default_matmul_precision),
        sorted(
            (name, _NO_BIT.sub("", value).split())
            for name, value in os.environ.items()
            if name.startswith(_VARIABLES) and name not in _WHERE and _NO_BIT.sub("", value).strip()
        ),
        [device.device_kind for device in (jax.devices() if chosen is None else jax.devices(backend))],
        "" if fixed or not own else _ONCE,
        # Devices of one CPU or of several processes round alike; test_distributed.py. Nobody has tried GPUs.
        1 if backend == "cpu" else jax.process_count(),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@functools.cache
def _of_process() -> tuple[object, ...]:
    """Facts that stay what they are while a process lives: versions, processor, and the package's source."""
    package = Path(__file__).parents[1]
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(package.rglob("*.py"))))
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        info = machine.processor()
    return (
        (
            machine.python_version(),
            machine.machine(),
            [installed(name) for name in _LIBRARIES],
        ),
        sorted(set(re.findall(r"^(?:model name|flags|Features)\s*:.*$", info, re.M))),
        sources.hexdigest(),
    )


def rounding_facts() -> str:
    """Digest of the processor, the versions and the code that decide how one record's own numbers are rounded."""
    return hashlib.sha256(repr(_of_process()).encode()).hexdigest()


def plan_digest(plan: Described) -> str:
    """Digest of a plan: what it says of itself, its parts to the last bit, and the code that a user gave it."""
    # An object's address is no part of what it is.
    said = {key: value for key, value in plan.describe().stated.items() if key not in _SENTENCES}
    text = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(said, sort_keys=True, default=repr))
    digest = hashlib.sha256(text.encode())
    for part in plan.parts:
        for piece in _code(part, set()):
            digest.update(b"%d:" % len(piece) + piece)
    return digest.hexdigest()


def _code(value: Any, seen: set[int]) -> list[bytes]:
    """Code of the functions inside an object: their instructions, constants, defaults and what they close over."""
    if isinstance(value, (int, float, str, bytes, np.generic)):
        return [repr(value).encode()]
    if id(value) in seen or isinstance(value, type):
        return []
    seen.add(id(value))
    if isinstance(value, CodeType):
        return [
            value.co_code,
            repr(value.co_names).encode(),
            *_each(value.co_consts, seen),
        ]
    if isinstance(value, (np.ndarray, jax.Array)) and not jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return [np.ascontiguousarray(value).tobytes()]
    if isinstance(value, (list, tuple)):
        return _each(value, seen)
    if isinstance(value, dict):
        return _each(value.values(), seen)
    inner = getattr(value, "__code__", None)
    if inner is not None:
        return [*_code(inner, seen), *_each(enclosed(value), seen)]
    return _each(getattr(value, "__dict__", {}).values(), seen)


def _each(values: Iterable[object], seen: set[int]) -> list[bytes]:
    return [piece for value in values for piece in _code(value, seen)]


def enclosed(function: Any) -> list[Any]:
    """Return the defaults of a function's arguments, and what it closes over."""
    contents = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
    return [*(function.__defaults__ or ()), *contents]


def _filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # raises where it is empty
    except ValueError:
        return False
    return True
