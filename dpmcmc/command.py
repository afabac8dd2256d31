"""What the command faces share: one sentence and exit code 2 for a user's error, never a traceback.

A user's error is an InputError, an OSError or too little memory. Anything else is a fault of the library: exit code 70,
one sentence, and the traceback in a private file.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from dpmcmc import faults
from dpmcmc.errors import InputError
from dpmcmc.interrupt import STOPPED, heeded
from dpmcmc.privacy import CalibrationError, UnsupportedCombination
from dpmcmc.self_test import MiscompiledError


class CommandError(Exception):
    """A sentence for the person at the terminal, and an exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


class Parser(argparse.ArgumentParser):
    """Refuses a command line as everything else is refused: in one sentence, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        """Say what argparse found."""
        raise CommandError(f"{message}; see {self.prog} --help.")


def add_allow_code(parser: argparse.ArgumentParser) -> None:
    """The option ``--allow-code``, whose values :func:`dpmcmc.config_file.load` takes."""
    parser.add_argument(
        "--allow-code",
        action="append",
        default=[],
        metavar="MODULE",
        help="let a config that lies in a run folder import MODULE; read it first",
    )


def command(main: Callable[[list[str] | None], None]) -> Callable[..., int]:
    """Turn what a user can mend into a sentence on stderr and a non-zero exit code."""

    @functools.wraps(main)
    def run(argv: list[str] | None = None) -> int:
        try:
            with heeded():
                main(argv)
        except CommandError as error:
            return _say(str(error), error.code)
        except UnsupportedCombination as error:
            return _say(f"privacy: {error}", 2)
        except CalibrationError as error:
            return _say(f"privacy.calibrator: {error}", 2)
        except InputError as error:
            return _say(str(error), 2)
        except MiscompiledError as error:
            return _say(str(error), 1)
        except OSError as error:
            if error.errno is None and error.filename is None:  # no file's: a library below raised it
                return _say(faults.sentence(error), faults.CODE)
            where = f"{error.filename}: " if error.filename else ""
            return _say(f"{where}{error.strerror or error}; mend its permissions, free space, or name another.", 2)
        except MemoryError as error:
            return _say(f"memory: there is too little ({error}); take fewer steps, chains or records.", 2)
        except KeyboardInterrupt:
            return _say("stopped by the user; every step already taken counts as released.", STOPPED)
        except Exception as error:
            return _say(faults.sentence(error), faults.CODE)
        finally:
            faults.keep_in(None)
        return 0

    return run


def free_folder(option: str, wanted: str | Path) -> Path:
    """A folder to write in; refuses one that holds something, or that cannot be made."""
    folder = Path(wanted)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CommandError(f"{option}: {folder} already holds something; give a folder that is new or empty.")
        folder.resolve()  # which refuses a link that leads back to itself
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


#: Characters of a sentence; what stands in the middle of a longer one is somebody's data.
_LONGEST = 600


def _say(message: str, code: int) -> int:
    text = " ".join(message.split()).removesuffix(".") + "."
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 4 :]}"
    # A quoted value may hold what a terminal would obey.
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    print(f"error: {text}", file=sys.stderr)
    return code
