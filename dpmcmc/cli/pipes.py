"""Output of a command that nobody reads to its end, as in ``dpmcmc run adult | head -5``.

A run whose reader has gone would otherwise fail at its next line, with what it has spent. So it goes on, writes no more
lines, and ends with the exit code that it has earned.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Unread(io.FileIO):
    """A file descriptor that takes everything once its reader has gone."""

    def write(self, data: Buffer) -> int:
        """Write, or drop what cannot be written."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Let this process go on when nobody reads its standard output or error any longer."""
    sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)


def _outliving(stream: TextIO) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # a closed one is None, and somebody may have put another there
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
