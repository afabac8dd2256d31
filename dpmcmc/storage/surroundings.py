"""Folders that a path lies in: a result, a checkpoint, or a folder with other files that this library wrote.

A path is looked at by its name and by what links lead to. Nothing is opened but ``privacy.json`` and ``run.json``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from dpmcmc.errors import InputError
from dpmcmc.storage.files import read_table
from dpmcmc.storage.released_files import (
    CHECKPOINT,
    COMPUTED,
    CONFIDENTIAL,
    CONFIG,
    DRAWN,
    HELD,
    KEY,
    PICTURES,
    PRIVACY,
    TABLES,
    has_ended,
    is_left_over,
    is_sealed,
)

#: All other names that this library writes into folders that are passed on.
OURS = (
    *(PRIVACY, "plan.json", *COMPUTED, CONFIDENTIAL, CHECKPOINT, *HELD, *TABLES),
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
            configs = os.path.lexists(folder / CONFIG)
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


def check_free(folder: str | Path, option: str = "folder", left: Collection[str] = (CONFIDENTIAL,)) -> None:
    """Refuse a folder that holds something, or that lies in a checkpoint.

    A result that was not saved to its end may be saved there again.

    Args:
        folder: to write in; need not exist.
        option: that named it.
        left: names that may be there.

    Raises:
        InputError: it is not free.
        OSError: it cannot be read.
    """
    place = Path(folder)
    checkpoint = checkpoint_around(place)
    if checkpoint is not None:
        raise InputError(
            f"{option}: {place} lies in a checkpoint, {checkpoint}, which holds the keys of a run; give a folder "
            "elsewhere"
        )
    if place.is_dir():
        held = {path.name for path in place.iterdir() if not is_left_over(path.name)} - set(left)
    else:
        held = {place.name} if os.path.lexists(place) else set()
    unfinished = not has_ended(read_table(place / PRIVACY))
    if not held or (unfinished and held <= {PRIVACY, PICTURES, "plan.json", *COMPUTED}):
        return
    what = "a run" if CONFIG in held else "a result" if PRIVACY in held else "something"
    done = " that is done" if CONFIG in held and is_sealed(place) else ""
    raise InputError(
        f"{option}: {place} already holds {what}{done}; a folder is one result: give one that is new or empty"
    )


def checkpoint_around(folder: Path) -> Path | None:
    """Return the checkpoint that a folder is or lies in, or None."""
    return next((parent for parent in _around(folder) if _is_checkpoint(parent)), None)


def results_around(path: Path) -> Iterator[Path]:
    """Yield the folders of results, or of runs that go on, that a path is or lies in."""
    return (parent for parent in _around(path) if KEY in read_table(parent / PRIVACY))


def _around(folder: Path) -> Iterator[Path]:
    """Yield a folder and those around it, by its name and by what links lead to."""
    for way in (os.path.abspath, os.path.realpath):
        place = Path(way(folder))
        yield from (place, *place.parents)


def _is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint: ``run.json`` of it, and not of something else, lies there."""
    said = read_table(folder / "run.json")
    return "version" in said and not {"plan", "notes"}.isdisjoint(said)


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
