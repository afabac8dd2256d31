"""The one folder where downloads, calibrations and compiled programs are kept between runs. Holds no record.

Others who could write there could change what a run computes, so such a folder is refused.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import platformdirs

from dpmcmc.errors import InputError

WRITABLE = stat.S_IWGRP | stat.S_IWOTH


#: Symbolic links on one way, as many as Linux follows.
_LINKS = 40


class UnsafeCache(InputError):
    """Somebody else can change what is in a cache.

    Example:
        >>> from dpmcmc.errors import InputError
        >>> from dpmcmc.storage.cache import UnsafeCache
        >>> issubclass(UnsafeCache, InputError)
        True
    """


def cache_folder() -> Path:
    """Return the folder named by ``DPMCMC_CACHE``, else the user's cache folder for dpmcmc.

    Raises:
        UnsafeCache: somebody else can change what is in it.
    """
    named = os.environ.get("DPMCMC_CACHE")
    folder = Path(os.path.expanduser(named)) if named else Path(platformdirs.user_cache_dir("dpmcmc"))
    refuse_unsafe(folder, "DPMCMC_CACHE")
    return folder


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        if folder.parent != folder:
            make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def refuse_unsafe(path: Path, variable: str) -> None:
    """Refuse a path that somebody else can change.

    Args:
        path: folder or file; what is missing of it is not looked at.
        variable: that named it, for the message.

    Raises:
        UnsafeCache: they can.
    """
    if os.name != "posix":
        return
    reached = Path("/")
    links = 0
    waiting = list(reversed(Path(os.path.abspath("."), path).parts))
    while waiting:
        part = waiting.pop()
        if part == "..":
            reached = reached.parent
            continue
        step = reached / part
        try:
            found = step.lstat()
        except (FileNotFoundError, NotADirectoryError):  # nothing is there, nor can be
            return
        except OSError as error:
            raise UnsafeCache(
                f"{variable}: {step} cannot be looked at ({error.strerror}); name another folder"
            ) from None
        if not stat.S_ISLNK(found.st_mode):
            _refuse_changeable(step, found, variable, last=False)
            reached = step
            continue
        _refuse_other_owner(step, found, variable)
        links += 1
        if links > _LINKS:
            raise UnsafeCache(f"{variable}: {path} has too many symbolic links; name another folder")
        waiting += reversed(Path(os.readlink(step)).parts)
    _refuse_changeable(reached, reached.lstat(), variable, last=True)


def _refuse_changeable(step: Path, found: os.stat_result, variable: str, last: bool) -> None:
    """Refuse a folder or file by its owner and mode; ``last``: it is what was named, and not a folder above it."""
    _refuse_other_owner(step, found, variable, root=not (last and stat.S_ISDIR(found.st_mode)))
    if found.st_mode & WRITABLE and (last or not found.st_mode & stat.S_ISVTX):
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
