"""What the command faces share: one sentence and exit code 2 for a user's error, never a traceback."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import NoReturn

from dpmcmc.config import ConfigError
from dpmcmc.data import DataError
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


def command(main: Callable[[list[str] | None], None]) -> Callable[..., int]:
    """Turn what a user can mend into a sentence on stderr and a non-zero exit code."""

    @functools.wraps(main)
    def run(argv: list[str] | None = None) -> int:
        try:
            main(argv)
        except CommandError as error:
            return _say(str(error), error.code)
        except UnsupportedCombination as error:
            return _say(f"privacy: {error}", 2)
        except CalibrationError as error:
            return _say(f"privacy.calibrator: {error}", 2)
        except (ConfigError, DataError, ValueError) as error:
            return _say(str(error), 2)
        except MiscompiledError as error:
            return _say(str(error), 1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return _say(f"{where}{error.strerror or error}; mend its permissions, free space, or name another.", 2)
        except MemoryError as error:
            return _say(f"memory: there is too little ({error}); take fewer steps, chains or records.", 2)
        except KeyboardInterrupt:
            return _say("stopped by the user; every step already taken counts as released.", 130)
        return 0

    return run


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
