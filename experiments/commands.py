"""Refusals of an experiment in one sentence, and a folder that is removed if nothing was written."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from dpmcmc.cli.refusals import CommandError, exit_code


def command(main: Callable[[list[str] | None], None]) -> Callable[..., int]:
    """Turn an error that the user can mend into a sentence on stderr and a non-zero exit code."""

    @functools.wraps(main)
    def run(argv: list[str] | None = None) -> int:
        return exit_code(lambda: main(argv))

    return run


@contextlib.contextmanager
def swept(out: Path) -> Iterator[None]:
    """Remove at the end the folders that were made for ``out`` and hold no file, as after a refusal."""
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
