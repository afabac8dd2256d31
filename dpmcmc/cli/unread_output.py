"""Output of a command that nobody reads to its end, as in ``dpmcmc run adult | head -5``.

Without this a run would fail at its next line once its reader has gone, and its budget would be lost. Instead it goes
on without printing, and ends with its usual exit code.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Unread(io.FileIO):
    """A file descriptor that drops what it cannot write once its reader has gone."""

    def write(self, data: Buffer) -> int:
        """Write, or drop what cannot be written."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Let this process go on after the reader of its standard output or error has gone."""
    sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)


def _outliving(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # it is None where it is closed, and a caller may have replaced it
        return stream
    stream.flush()
    raw = _Unread(stream.fileno(), "wb", closefd=False)
    unbuffered = isinstance(stream.buffer, io.RawIOBase)  # python -u
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
