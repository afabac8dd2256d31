"""The one folder where downloads, calibrations and compiled programs are kept between runs. Holds no record.

A compiled program from a cache runs in place of the one that this code would compile, so whoever can write to the cache
decides what a run computes: also how much noise it adds. A folder that somebody else can change is therefore refused,
:class:`UnsafeCache`, whether ``DPMCMC_CACHE``, ``JAX_COMPILATION_CACHE_DIR`` or ``jax.config`` names it.

The rule is that of ssh for its keys. The folder belongs to the user of this process, and nobody else may write to it.
Every folder above it, and every symbolic link on the way, belongs to that user or to root; others may write to such a
folder only where it is sticky, as /tmp is. The files in it belong to the user or to root, and nobody else may write to
them. A system without user ids (Windows) is not checked.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from pathlib import Path
from typing import Any

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

from dpmcmc.errors import InputError

#: Compiler options of a program that runs once, on little: it takes a quarter of the time to compile.
RUN_ONCE = {"xla_backend_optimization_level": 0}
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
#: Symbolic links on one way, as many as Linux follows.
_LINKS = 40
#: The folder of compiled programs that JAX was last seen to be given.
_used: str | None = None
_checking = threading.Lock()


class UnsafeCache(InputError):
    """Somebody else can change what is in a cache."""


def cache_folder() -> Path:
    """The folder named by ``DPMCMC_CACHE``, else the user's cache folder for dpmcmc.

    Raises:
        UnsafeCache: somebody else can change what is in it.
    """
    named = os.environ.get("DPMCMC_CACHE")
    folder = Path(os.path.expanduser(named)) if named else Path(platformdirs.user_cache_dir("dpmcmc"))
    refuse_unsafe(folder, "DPMCMC_CACHE")
    return folder


def keep_compiled_programs() -> None:
    """Keep compiled programs between runs, readable by their owner alone.

    They hold shapes and public constants; records are arguments of everything compiled here.

    Raises:
        UnsafeCache: somebody else can change them.
    """
    folder = cache_folder() / "compiled"
    try:
        make_private(folder)
    except OSError:
        return  # a cache that cannot be made costs time, never a run
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    refuse_unsafe_caches()


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        if folder.parent != folder:
            make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


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
    """Have JAX use a folder that it was not seen to be given before, once it was checked."""
    global _used
    if named != _used:
        with contextlib.suppress(OSError):  # JAX goes without a cache that cannot be made
            make_private(folder)
        refuse_unsafe(folder, "JAX_COMPILATION_CACHE_DIR")
        _refuse_unsafe_files(folder)
        # JAX stays with the folder that it had when it first compiled, which may have been another.
        compilation_cache.reset_cache()
        _used = named


def refuse_unsafe(path: Path, variable: str) -> None:
    """Refuse a path that somebody else can change.

    Args:
        path: folder or file; what is missing of it is not looked at.
        variable: that named it, for the message.

    Raises:
        UnsafeCache: they can.
    """
    if not hasattr(os, "geteuid"):
        return
    here, links = Path("/"), 0
    waiting = list(reversed(Path(os.path.abspath("."), path).parts))
    while waiting:
        part = waiting.pop()
        if part == "..":
            here = here.parent
            continue
        step = here / part
        try:
            found = step.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnsafeCache(
                f"{variable}: {step} cannot be looked at ({error.strerror}); name another folder"
            ) from None
        if not stat.S_ISLNK(found.st_mode):
            _refuse_changeable(step, found, variable, last=False)
            here = step
            continue
        _refuse_other_owner(step, found, variable)
        links += 1
        if links > _LINKS:
            raise UnsafeCache(f"{variable}: {path} has too many symbolic links; name another folder")
        waiting += reversed(Path(os.readlink(step)).parts)
    _refuse_changeable(here, here.lstat(), variable, last=True)


def _refuse_changeable(step: Path, found: os.stat_result, variable: str, last: bool) -> None:
    """Refuse a folder or file by its owner and mode; ``last``: it is what was named, and not a folder above it."""
    _refuse_other_owner(step, found, variable, root=not (last and stat.S_ISDIR(found.st_mode)))
    if found.st_mode & _WRITABLE and (last or not found.st_mode & stat.S_ISVTX):
        raise UnsafeCache(
            f"{variable}: others may write to {step}, and so change what a run computes; name a folder that you alone "
            "can write to, or make this one so (chmod go-w)"
        )


def _refuse_other_owner(step: Path, found: os.stat_result, variable: str, root: bool = True) -> None:
    user = os.geteuid()
    if found.st_uid != user and not (root and found.st_uid == 0):
        raise UnsafeCache(
            f"{variable}: {step} belongs to user {found.st_uid} and not to you (user {user}), so somebody else can "
            "change what a run computes; name a folder of your own"
        )


def _refuse_unsafe_files(folder: Path) -> None:
    """Refuse what is in a folder of compiled programs and was put there, or can be changed, by somebody else."""
    if not hasattr(os, "geteuid"):
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
            if foreign or (found.st_mode & _WRITABLE and not closed):
                raise UnsafeCache(
                    f"JAX_COMPILATION_CACHE_DIR: somebody else can have written {path}, and a run would execute it; "
                    f"empty {folder} and chmod 700 it"
                )
