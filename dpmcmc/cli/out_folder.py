"""Folders that a command writes in, and removes if nothing was written."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from dpmcmc.cli.refusals import CommandError
from dpmcmc.storage.run_folder import today


@contextlib.contextmanager
def swept(out: Path) -> Iterator[None]:
    """Remove the folders that were made for ``out`` meanwhile and hold no file, as after a refusal."""
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        yield
    finally:
        if out in missing and out.is_dir() and all(path.is_dir() for path in out.rglob("*")):
            shutil.rmtree(out, ignore_errors=True)
        for folder in missing:
            with contextlib.suppress(OSError):  # it holds something
                folder.rmdir()


@contextlib.contextmanager
def folder_for(out: Path) -> Iterator[None]:
    """Make a folder to write in, :func:`swept` at the end.

    Raises:
        CommandError: it cannot be made.
    """
    with swept(out):
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"--out: {out} cannot be made ({error.strerror}); give another folder.") from None
        yield


def free_folder(option: str, wanted: str | Path) -> Path:
    """Return a folder to write in; one that holds something, or that cannot be made, is refused."""
    folder = Path(wanted)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CommandError(f"{option}: {folder} already holds something; give a folder that is new or empty.")
        folder.resolve()  # refuses a link that leads back to itself
        parent = folder.absolute()
        while not parent.exists():
            parent = parent.parent
    except OSError as error:
        raise CommandError(f"{option}: {folder} cannot be read ({error.strerror}); give another folder.") from None
    except RuntimeError:
        raise CommandError(f"{option}: {folder} is a link that leads back to itself; give another folder.") from None
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise CommandError(f"{option}: {folder} cannot be created, because {parent} is not a folder you can write to.")
    return folder


def default_folder(name: str) -> Path:
    """Return a name with the day alone: the time of the start would tell the length of a run to whoever saw its end."""
    return Path("runs") / f"{name}-{today():%Y%m%d}-{secrets.token_hex(4)}"
