"""Compiled programs that are kept between runs, and how a program that runs once is compiled.

The rule for the folder, and why there is one, is in ``cache.py``.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from dpmcmc.storage.cache import WRITABLE, UnsafeCache, cache_folder, make_private, refuse_unsafe

#: Compiler options of a program that runs once, on little: it takes a quarter of the time to compile.
RUN_ONCE = {"xla_backend_optimization_level": 0}
#: The folder of compiled programs that JAX was last seen to be given, and the one that this library gave it.
_used: str | None = None
_own: str | None = None
_checking = threading.Lock()


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
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
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
