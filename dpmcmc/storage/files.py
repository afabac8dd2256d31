"""A lock on a file that ends with the process that holds it.

The lock belongs to the inode, so it locks every name of one file. On Linux and macOS it is ``flock``, which does not
interact with SQLite's own locks (``fcntl``). On a network file system the mount decides: NFS passes ``flock`` to the
server, or with ``local_lock=flock`` keeps it to one machine.
"""

from __future__ import annotations

import datetime
import errno
import hashlib
import io
import json
import os
import random
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from dpmcmc.errors import DataError, InputError

# ----------------------------------------------------------------------------------------------------
# Files that are complete or absent, even after a kill, a full disk or a loss of power.


def write_atomically(path: Path, write: Callable[[Path], object], mode: int = 0o644, last: bool = True) -> None:
    """Call ``write(temporary_path)`` beside ``path``, then rename; nothing is left behind on failure.

    The content reaches the disk before the name does, and the name before this returns.

    Args:
        path: of the file.
        write: fills the file it is given.
        mode: who may read the file: everybody by default.
        last: whether to flush the folder too. The flush after the last of several files puts all their names on disk.

    Raises:
        OSError: the file could not be written; what stood at ``path`` before still does.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        os.chmod(temporary, mode)
        _flush(temporary, os.O_RDWR)
        os.replace(temporary, path)
        if last:
            flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def flush_folder(path: Path) -> None:
    """Flush the names in a folder to the disk; on Windows, where a folder cannot be opened, renaming is durable."""
    if os.name != "nt":
        _flush(path, os.O_RDONLY)


def _flush(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ----------------------------------------------------------------------------------------------------
# Files that must stay as they are while they are read.
#
# Nobody sets the time of a file's last change (ctime): a rewrite that keeps size and time of writing changes it too.

#: Facts that a file is known by: its device and number there, its size, and the times of its last writing and change;
#: none of a file that cannot be looked at.
Stamps: TypeAlias = dict[Path, tuple[int, ...]]


def stamps_of(paths: Iterable[Path]) -> Stamps:
    """Return what these files are known by; a link stands for the file that it leads to."""
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        at = path.stat()
    except OSError:
        return ()
    return at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns


def check_unchanged(before: Stamps) -> None:
    """Refuse files that are not what they were.

    Raises:
        DataError: one has changed.
    """
    for path, stamp in before.items():
        if _stamp(path) != stamp:
            raise DataError(f"{path} has changed since it was first looked at: start again when nothing writes to it.")


# ----------------------------------------------------------------------------------------------------
# Open a file that somebody named as input; anything but a regular file is refused at once.
#
# A pipe without a writer would keep a reader waiting for ever, and a device may never end.


def opened(path: str | os.PathLike[str]) -> io.BufferedReader:
    """The file, open for reading bytes.

    Raises:
        OSError: it cannot be opened, or is a folder, a pipe, a socket or a device.
    """
    # Without O_NONBLOCK, opening a pipe waits for a writer. Regular files ignore it.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))


def opened_text(path: str | os.PathLike[str], encoding: str = "utf-8", newline: str | None = None) -> TextIO:
    """The file, open for reading text.

    Raises:
        OSError: as :func:`opened`.
    """
    return io.TextIOWrapper(opened(path), encoding=encoding, newline=newline)


def read_bytes(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Return all of a file.

    Args:
        path: of the file.
        most: bytes that it may have; None: as many as this machine has memory.

    Raises:
        OSError: as :func:`opened`; it is longer.
    """
    with opened(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        room = memory() if most is None else most
        if room is not None and size > room:
            why = f"it has {size:,} bytes, and {room:,} are read at most"
            raise OSError(errno.EFBIG, why, os.fspath(path))
        return stream.read()


def memory() -> int | None:
    """Return the bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


#: Bytes of a JSON file, at most; Python's objects may take 25 times as many. A plan of 10,000 columns has 1 MB.
_MOST_JSON = 1 << 25


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the table that a JSON file holds.

    Raises:
        OSError: as :func:`read_bytes`.
        ValueError, RecursionError: it is no JSON, or too deep.
        TypeError: it holds something else.
    """
    said = json.loads(read_bytes(path, _MOST_JSON))
    if not isinstance(said, dict):
        raise TypeError(f"{os.path.basename(path)} is not a table")
    return said


def table_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the table that a JSON file holds; an empty one where there is none."""
    try:
        return read_json(path)
    except (OSError, ValueError, RecursionError, TypeError):
        return {}


def read_text(path: str | os.PathLike[str]) -> str:
    """Return all of a text file.

    Raises:
        OSError: as :func:`opened`.
        UnicodeDecodeError: it is no text.
    """
    with opened_text(path) as stream:
        return stream.read()


#: Byte of a file that Windows locks: beyond every content, for there a locked byte cannot be read.
_FAR = 1 << 30


def lock(handle: int, patience: float = 0.0) -> None:
    """Lock an open file until :func:`unlock`, until it is closed, or until the process ends.

    Args:
        handle: of the file, open for writing.
        patience: seconds to wait for others.

    Raises:
        BlockingIOError: another holds it.
        OSError: it cannot be locked; ``strerror`` says why.
    """
    end = time.monotonic() + patience
    while True:
        try:
            _lock(handle)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise
        time.sleep(random.uniform(0.001, 0.02))


def unlock(handle: int) -> None:
    """Release the lock, also if a forked child still has the file open."""
    if os.name == "nt":
        import msvcrt

        os.lseek(handle, _FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)


def names(path: Path, handle: int) -> bool:
    """Whether a path still names an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _lock(handle: int) -> None:
    if os.name == "nt":
        import errno
        import msvcrt

        os.lseek(handle, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                raise BlockingIOError(error.errno, error.strerror) from None
            raise
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


# ------------------------------------------------------------------------------------
# A folder that a run writes: who may read its files, and the one time that they bear.
#
# The modification time of a file tells when its computation ended, and the length of a run depends on secret batches
# and on records. Every file that others may read therefore bears the day on which the run began, in UTC, from its
# first moment. The file system's own times (change and birth) cannot be set; a copy does not have them.


# ----------------------------------------------------------------------------------------------------
# A folder is one result: its released files, and the SHA-256 digests of them that ``privacy.json`` states.
#
#     "files": null                       the run has not ended; nothing in the folder is a result yet
#     "files": {"draws.nc": "5f0c…", …}   it has: these files, and no other of a released name
#     no "files"                          a version without digests wrote it
#
# ``privacy.json`` is written twice, before the first and after the last of the others. So a kill at any moment leaves a
# folder that says that it is unfinished, or a whole result. The digests are those of the bytes that the writer had in
# hand: where two writers share a folder, the mixture is refused.
#
# Digests are functions of released files, which hold public facts and privatised values alone. Files of
# ``confidential/`` have none.

#: The file that states the digests, and its key of them.
PRIVACY, KEY = "privacy.json", "files"
#: Names of a released file: what is stated before a record is read, and what is computed. Pictures have any name.
STATED = ("config.yaml", "plan.json")
COMPUTED = ("draws.nc", "evidence.npz", "metrics.json", "report.html", "trace.npz")
PICTURES = "figures"
#: Names of the pictures, in the order of the page.
DRAWN = (
    "traces",
    "temperature",
    "epsilon_delta",
    "calibration",
    "predictions",
)
#: Folder of a run folder that is never published, and names of what it holds.
CONFIDENTIAL = "confidential"
CHECKPOINT = "checkpoint"
HELD = ("diagnostics.json", "failure.json", "per_record.csv")
#: Names of tables and of what is written beside them, by sweeps and by the experiments.
RESULTS, ABOUT, CELLS = "results.csv", "about.json", "cells"
_TABLES = (
    *(RESULTS, ABOUT, CELLS, "summary.csv", "comparison.csv", "predictive.csv"),
    *("beside.csv", "choose.csv", "noise_multipliers.csv", "losses.md", "ranks.png"),
)
#: The config of a run and of a sweep, which a user's own may be called too.
CONFIG, GRID = "config.yaml", "sweep.yaml"
#: All other names that this library writes into folders that are passed on.
OURS = (
    *(PRIVACY, "plan.json", *COMPUTED, CONFIDENTIAL, CHECKPOINT, *HELD, *_TABLES),
    *(f"{CHECKPOINT}.lock", *(f"{PICTURES}/{name}.png" for name in DRAWN)),
)
#: Those that no other program writes.
_OURS_ALONE = (PRIVACY, "draws.nc", "evidence.npz")


def written_beside(path: Path) -> Path | None:
    """Return a file or folder of ours by which a path lies in a folder that may be somebody else's, or None.

    In the path's own folder any name of ours shows it. In a folder above, where other programs write too, one name of
    ours alone does, or two names. Each link on the way counts with the folders that it lies in.
    """
    for way in _ways(path):
        for folder in way.parents:
            found = [folder / name for name in OURS if os.path.lexists(folder / name)]
            configs = any(os.path.lexists(folder / name) for name in (CONFIG, GRID))
            alone = any(one.name in _OURS_ALONE for one in found)
            if found and (folder == way.parent or alone or configs or len(found) > 1):
                return found[0]
    return None


def _ways(path: Path) -> Iterator[Path]:
    """Yield a path, and the path that it becomes by each link on the way."""
    place = Path(os.path.abspath(path))
    yield place
    done, *rest = place.parts
    while rest:
        step = os.path.join(done, rest.pop(0))
        if os.path.islink(step):
            # The rest of the path is looked up where the link leads to.
            place = Path(os.path.join(done, os.readlink(step), *rest))
            done, *rest = place.parts
            yield Path(os.path.normpath(place))
        else:
            done = os.path.normpath(step)


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


def released(folder: Path) -> tuple[str, ...]:
    """Return the names of the released files that lie in a folder, beside ``privacy.json``."""
    pictures = folder / PICTURES
    drawn = sorted(path.name for path in pictures.iterdir()) if pictures.is_dir() else []
    names = (
        *STATED,
        *COMPUTED,
        *(f"{PICTURES}/{name}" for name in drawn if not name.startswith(".")),
    )
    return tuple(name for name in names if os.path.lexists(folder / name))


def has_digests(said: dict[str, Any]) -> bool:
    """Whether a ``privacy.json`` states digests, or that the run has not ended."""
    return KEY in said


def has_ended(said: dict[str, Any]) -> bool:
    """Whether a ``privacy.json`` is of a run that has ended, as far as it tells."""
    return said.get(KEY, {}) is not None


def is_sealed(folder: Path) -> bool:
    """Whether a folder holds a whole result, as far as its ``privacy.json`` tells."""
    return isinstance(table_of(folder / PRIVACY).get(KEY), dict)


def discrepancy(folder: Path, said: dict[str, Any]) -> str | None:
    """Return a clause on the first file that is not as ``privacy.json`` says; None: there is none.

    Args:
        folder: that it lies in.
        said: its content.

    Raises:
        OSError: a file cannot be read.
    """
    if not has_digests(said):
        return None
    lying = released(folder)
    if not has_ended(said):
        computed = [name for name in lying if name not in STATED]
        return f"{computed[0]} lies beside it, and the run has not ended" if computed else None
    stated = said[KEY]
    if not isinstance(stated, dict):
        return "its digests are not a table of files"
    for name in (*lying, *sorted(stated)):
        if name not in stated:
            return f"{_shown(name)} is not a file of this result"
        if name not in lying:
            return f"{_shown(name)} is missing"
        with opened(folder / name) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != stated[name]:
            return f"{_shown(name)} is not the file that was released"
    return None


def check_result(folder: Path, said: dict[str, Any]) -> None:
    """Refuse a folder that is no whole result.

    Raises:
        InputError: its run has not ended, or a file is missing, changed, or of another result.
        OSError: a file cannot be read.
    """
    if not has_ended(said):
        raise InputError(
            f"{folder}: the run in it has not ended, or was stopped while it was saved; go on with it, or save the "
            "result again",
            "folder",
        )
    wrong = discrepancy(folder, said)
    if wrong is not None:
        raise InputError(
            f"{folder}: {wrong}; get the whole folder again from where it was released",
            "folder",
        )


def check_free(folder: str | Path) -> None:
    """Refuse a folder that holds something, or that lies in a checkpoint.

    A result that was not saved to its end may be saved there again. ``confidential/`` may be there.

    Raises:
        InputError: it is not free.
        OSError: it cannot be read.
    """
    place = Path(folder)
    kept = checkpoint_around(place)
    if kept is not None:
        raise InputError(f"folder: {place} lies in {kept}, which holds the keys of a run; give a folder elsewhere")
    if not place.exists():
        return
    there = {path.name for path in place.iterdir() if not _left_over(path.name)} - {CONFIDENTIAL}
    if there and not (there <= {PRIVACY, PICTURES, "plan.json", *COMPUTED} and _is_unfinished(place)):
        what = "a result" if PRIVACY in there else "something"
        raise InputError(f"folder: {place} already holds {what}; a folder is one result: give one that is new or empty")


def checkpoint_around(folder: Path) -> Path | None:
    """Return the checkpoint that a folder is or lies in, or None."""
    return next((parent for parent in _around(folder) if _is_checkpoint(parent)), None)


def results_around(path: Path) -> Iterator[Path]:
    """Yield the folders of results, or of runs that go on, that a path is or lies in."""
    return (parent for parent in _around(path) if has_digests(table_of(parent / PRIVACY)))


def remove_others(folder: Path, mine: dict[str, str]) -> None:
    """Remove the released files that an earlier start of the run left, and what killed writes left."""
    for name in released(folder):
        if name not in mine:
            (folder / name).unlink()
    for path in folder.iterdir():
        if _left_over(path.name):
            path.unlink()


def _around(folder: Path) -> Iterator[Path]:
    """Yield a folder and those around it, by its name and by what links lead to."""
    for way in (os.path.abspath, os.path.realpath):
        place = Path(way(folder))
        yield from (place, *place.parents)


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint: ``run.json`` of it, and not of something else, lies there."""
    said = table_of(folder / "run.json")
    return "version" in said and not {"plan", "notes"}.isdisjoint(said)


def _is_unfinished(folder: Path) -> bool:
    """Whether a result was not saved to its end there; what cannot be read may be one that was."""
    return not has_ended(table_of(folder / PRIVACY))


def _left_over(name: str) -> bool:
    """Whether a name is of a write that was killed."""
    return any(name.startswith(f".{each}.") for each in (PRIVACY, *STATED, *COMPUTED))


def _shown(name: object) -> str:
    """Return the name of a file, or a quotation of what is none; the file that says it may be a stranger's."""
    known = isinstance(name, str) and (name in (*STATED, *COMPUTED) or name.startswith(f"{PICTURES}/"))
    return str(name)[:80] if known else repr(name)[:80]


def today() -> datetime.date:
    """Today's date in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def inside(path: str | Path, folder: str | Path, apart: str | None = None) -> bool:
    """Whether a path is a folder or lies in it, by its name or by what links lead to.

    Args:
        path, folder: need not exist.
        apart: name of a folder in it, below which nothing counts.
    """
    ways = (os.path.abspath, os.path.realpath)
    return any(
        place.is_relative_to(top) and (apart is None or not place.parent.is_relative_to(top / apart))
        for place in {Path(way(path)) for way in ways}
        for top in {Path(way(folder)) for way in ways}
    )


def day_of(path: Path) -> datetime.date:
    """Return the day that a file bears."""
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).date()


@dataclass(frozen=True)
class RunFolder:
    """A folder for files of a run.

    Attributes:
        folder: where they lie.
        day: on which the run began.
        owner_only: whether only the owner may read it.
        written: digest of each file that was written here, by name.
    """

    folder: Path
    day: datetime.date
    owner_only: bool = False
    written: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def make(self) -> None:
        """Create the folder.

        Raises:
            OSError: it cannot be made.
        """
        self._make(self.folder)

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        path = self.folder / name
        self._make(path.parent)
        whole = content.encode() if isinstance(content, str) else content

        def filled(temporary: Path) -> None:
            temporary.write_bytes(whole)
            self.date(temporary)

        write_atomically(path, filled, 0o600 if self.owner_only else 0o644)
        self.written[name] = digest(whole)
        self.date(path.parent, self.folder)

    def json(self, name: str, body: object) -> None:
        """Write strict JSON, which has no NaN."""
        self.write(name, json.dumps(body, indent=2, allow_nan=False) + "\n")

    def state(self, said: dict[str, Any]) -> None:
        """Write ``privacy.json`` of a run that has not ended: before the first of the other files, or anew."""
        self.json(PRIVACY, said | {KEY: None})

    def seal(self, said: dict[str, Any]) -> None:
        """Write ``privacy.json`` with the digests of all that was written here, after the last of the other files.

        Released files that an earlier start of the run wrote, and this one did not, are removed.
        """
        mine = {name: self.written[name] for name in sorted(self.written) if name != PRIVACY}
        remove_others(self.folder, mine)
        self.json(PRIVACY, said | {KEY: mine})
        if (self.folder / PICTURES).is_dir():
            self.date(self.folder / PICTURES, self.folder)

    def date(self, *paths: Path) -> None:
        """Give files and folders the one time."""
        midnight = datetime.datetime.combine(self.day, datetime.time(), datetime.UTC).timestamp()
        for path in paths:
            os.utime(path, (midnight, midnight))

    def date_all(self, *others: Path) -> None:
        """Give the one time to everything outside ``others``, and to these folders, whose time others may see."""
        for path in (*self.folder.rglob("*"), self.folder):
            # A link is not of the run, and what it leads to even less.
            if not path.is_symlink() and not any(path.is_relative_to(other) for other in others):
                self.date(path)
        self.date(*(other for other in others if other.exists()))

    def _make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700 if self.owner_only else 0o777)
