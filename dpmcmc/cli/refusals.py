"""Refusals of all commands: one sentence and exit code 2 for a user's error, never a traceback.

An exception that nobody meant to raise is a fault of ours, and goes to a private file (``faults.py``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from dpmcmc.cli.faults import keep_in, write_fault
from dpmcmc.cli.interrupt import STOPPED, was_interrupted
from dpmcmc.errors import (
    DataError,
    InputError,
    RunFailed,
    SaidByFirst,
    printable,
    redacted,
)

#: EX_SOFTWARE of sysexits.h: a fault of the program, not of what it was given.
CODE = 70


class CommandError(Exception):
    """A sentence for the person at the terminal, and an exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def check_new_file(option: str, path: Path) -> None:
    """Refuse a file that is there already, or whose folder is not.

    Raises:
        CommandError: it cannot be made.
    """
    try:
        if os.path.lexists(path):
            raise CommandError(f"{option}: {path} exists already; choose another file.")
        if not path.parent.is_dir():
            raise CommandError(f"{option}: the folder of {path} does not exist; make it first.")
    except OSError as error:
        raise CommandError(f"{option}: {path} cannot be written ({error.strerror}); choose another file.") from None


def exit_code(work: Callable[[], object]) -> int:
    """Do the work of a command, and return its exit code; an error that the user can mend is one sentence on stderr.

    Only what the library refuses on purpose is the user's to mend: an :class:`InputError`, a file that the system will
    not open, too little memory. Any other exception is a fault of the library, and has a code of its own.
    """
    try:
        code = work()
    except CommandError as error:
        return _say(str(error), error.code)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a command without a word shows its help
            print(error.format_message())
            return 2
        where = "dpmcmc" if error.ctx is None else error.ctx.command_path
        said = error.format_message().removesuffix(".")
        return _say(f"{said}{_key_of(error)}; see {where} --help.", 2)
    except SaidByFirst as error:
        return error.code
    except InputError as error:
        # A config's refusals begin with their YAML path; others have the usual one of their kind.
        located = error.about and str(error).startswith(f"{error.about}: ")
        code = _say(str(error) if located or not error.section else f"{error.section}: {error}", 2)
        _show_rows(error.rows if isinstance(error, DataError) else ())
        return code
    except RunFailed as error:
        return _say(str(error), 1)
    except OSError as error:
        if error.errno is None and error.filename is None:  # no file's: a library below raised it
            return _say(write_fault(error), CODE)
        where = f"{error.filename}: " if error.filename else ""
        return _say(
            f"{where}{error.strerror or error}; mend its permissions, free space, or name another.",
            2,
        )
    except MemoryError as error:
        return _say(
            f"memory: there is too little ({error}); take fewer steps, chains or records.",
            2,
        )
    except typer.Abort as error:  # typer takes the end of a file for the user's
        end = error.__cause__
        return _say(write_fault(end), CODE) if isinstance(end, EOFError) else _say_stopped()
    except KeyboardInterrupt:
        return _say_stopped()
    except Exception as error:
        return _say_stopped() if was_interrupted(error) else _say(write_fault(error), CODE)
    finally:
        keep_in(None)
    if code == STOPPED:  # typer returns it since version 0.29, where it raised Abort before
        return _say_stopped()
    return code if isinstance(code, int) else 0


def _say_stopped() -> int:
    return _say("stopped by the user.", STOPPED)


def _key_of(error: Any) -> str:
    """Return how to set the key of a config that an unknown option has the name of; empty where it has none's."""
    option = vars(error).get("option_name")
    takes_keys = error.ctx is not None and any(parameter.name == "overrides" for parameter in error.ctx.command.params)
    if not option or not takes_keys:
        return ""
    from dpmcmc.config.model import path_of  # loads JAX

    path = path_of(option.lstrip("-").replace("-", "_"))
    return f"; a key of the config is given as --set {path}=VALUE" if path else ""


#: Usage error of the click that typer uses; since version 0.27 typer has its own copy.
_UsageError: Any = typer.BadParameter.__bases__[0]
#: Most characters of a sentence. The middle of a longer one is cut, since it quotes data.
_LONGEST = 600


def _show_rows(rows: Sequence[int]) -> None:
    """Print which rows were refused to a terminal only: others may read a log or a pipe."""
    if rows and sys.stderr.isatty():
        more = " and more" if len(rows) > _MOST_ROWS else ""
        print(
            f"rows, counted from 0: {', '.join(map(str, rows[:_MOST_ROWS]))}{more}",
            file=sys.stderr,
        )


#: Rows that a terminal shows.
_MOST_ROWS = 20


def _say(message: str, code: int) -> int:
    text = redacted(" ".join(message.split()).removesuffix(".") + ".")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 4 :]}"
    print(f"error: {printable(text)}", file=sys.stderr)
    return code
