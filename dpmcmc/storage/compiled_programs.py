"""Compiled programs that are kept between runs, and how a program that runs once is compiled.

The rule for the folder, and why there is one, is in ``cache.py``.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from dpmcmc.storage.cache import (
    WRITABLE,
    UnsafeCache,
    cache_folder,
    make_private,
    refuse_unsafe,
)
from dpmcmc.storage.pytree import PyTree

#: Compiler options of a program that runs once, on little: it takes a quarter of the time to compile.
RUN_ONCE = {"xla_backend_optimization_level": 0}
#: The folder of compiled programs that JAX was last seen to be given, and the one that this library gave it.
_used: str | None = None
_own: str | None = None
_checking = threading.Lock()
#: Held while JAX is told to keep no program.
_keeping_none = threading.Lock()
_LEAST_SECONDS = "jax_persistent_cache_min_compile_time_secs"


def keep_compiled_programs() -> None:
    """Keep compiled programs between runs, readable by their owner alone.

    They hold shapes and public constants; records are arguments of everything compiled here. A folder that the user
    gave to JAX stays.

    Raises:
        UnsafeCache: somebody else can change them.
    """
    global _own
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir in (None, "", _own):
        folder = cache_folder() / "compiled"
        try:
            make_private(folder)
        except OSError:
            return  # a cache that cannot be made costs time, never a run
        _own = str(folder)
        jax.config.update("jax_compilation_cache_dir", _own)
        # The small ones too: a run has some thirty, and each takes five times as long to compile as to load.
        jax.config.update(_LEAST_SECONDS, 0)
    refuse_unsafe_caches()


def refuse_unsafe_caches() -> None:
    """Refuse to run while somebody else can change a cache: ours, or the one that JAX takes compiled programs from.

    Raises:
        UnsafeCache: they can, or JAX's is no local folder.
    """
    cache_folder()
    settings: Any = jax.config
    named: str | None = settings.jax_compilation_cache_dir
    if not named or not settings.jax_enable_compilation_cache:
        return
    if "://" in named and not named.startswith("file://"):
        raise UnsafeCache(f"JAX_COMPILATION_CACHE_DIR: who can write to {named} cannot be checked; name a local folder")
    folder = Path(named.removeprefix("file://"))
    with _checking:
        _use(named, folder)
    refuse_unsafe(folder, "JAX_COMPILATION_CACHE_DIR")


def _use(named: str, folder: Path) -> None:
    """Check a folder that JAX was given since the last call, and have JAX use it."""
    global _used
    if named != _used:
        with contextlib.suppress(OSError):  # JAX goes without a cache that cannot be made
            make_private(folder)
        refuse_unsafe(folder, "JAX_COMPILATION_CACHE_DIR")
        _refuse_unsafe_files(folder)
        # JAX stays with the folder that it had when it first compiled, which may have been another.
        compilation_cache.reset_cache()
        _used = named


def _refuse_unsafe_files(folder: Path) -> None:
    """Refuse what is in a folder of compiled programs and was put there, or can be changed, by somebody else."""
    if os.name != "posix":
        return
    if not folder.is_dir():
        return
    # Nobody else reaches the files of a closed folder, whatever their own mode, which JAX leaves to the umask.
    closed = not folder.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH)
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(at, name)
            try:
                found = path.lstat()
            except FileNotFoundError:  # another run's, that was just renamed
                continue
            foreign = found.st_uid not in (0, os.geteuid()) or stat.S_ISLNK(found.st_mode)
            if foreign or (found.st_mode & WRITABLE and not closed):
                raise UnsafeCache(
                    f"JAX_COMPILATION_CACHE_DIR: somebody else can have written {path}, and a run would execute it; "
                    f"empty {folder} and chmod 700 it"
                )


@functools.cache
def _quick() -> dict[str, Any]:
    """Compiler options of a program that is compiled in every process: the least work for XLA on a CPU.

    ChaCha20's and the noise's kernels take a quarter of the time that they take with fusion emitters.
    """
    quick = RUN_ONCE | {
        "xla_llvm_disable_expensive_passes": True,
        "xla_cpu_parallel_codegen_split_count": 1,
        "xla_cpu_use_fusion_emitters": False,
    }
    try:
        jax.jit(lambda: 0, compiler_options=quick)()
    except jax.errors.JaxRuntimeError:  # an XLA that no longer has one of them
        return RUN_ONCE
    return quick


def compiled_afresh(
    function: Callable[..., PyTree], arguments: tuple[PyTree, ...], device: jax.Device
) -> Callable[..., PyTree]:
    """Return a function compiled in this process, by a program that no cache has and that none will keep.

    Args:
        function: of arrays.
        arguments: their shapes and dtypes.
        device: that it is compiled for, and that its arguments must be on.
    """
    fresh = np.uint32(secrets.randbits(32))

    def with_fresh_number(*arguments: PyTree) -> tuple[PyTree, jax.Array]:
        return function(*arguments), jnp.uint32(fresh)

    with jax.default_device(device):
        lowered = jax.jit(with_fresh_number).lower(*arguments)
    with _no_program_kept():
        executable = lowered.compile(_quick())
    return lambda *arguments: executable(*arguments)[0]


@contextlib.contextmanager
def _no_program_kept() -> Iterator[None]:
    """Have JAX write no program to its folder; what other threads compile meanwhile is not kept either."""
    with _keeping_none:
        before = getattr(jax.config, _LEAST_SECONDS)
        jax.config.update(_LEAST_SECONDS, math.inf)
        try:
            yield
        finally:
            jax.config.update(_LEAST_SECONDS, before)
