"""What the command faces share: one sentence and exit code 2 for a user's error, never a traceback."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

from dpmcmc.config import ConfigError
from dpmcmc.data import DataError
from dpmcmc.privacy import CalibrationError, UnsupportedCombination


class CommandError(Exception):
    """A sentence for the person at the terminal, and an exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


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
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return _say(f"{where}{error.strerror or error}; free space or choose another folder.", 2)
        except KeyboardInterrupt:
            return _say("stopped by the user; every step already taken counts as released.", 130)
        return 0

    return run


def _say(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
