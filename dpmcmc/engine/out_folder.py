"""The folder that a run's result is saved in: apart from what is confidential, and written once the cost is spent."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path

from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import Result
from dpmcmc.errors import InputError
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.run_folder import CONFIDENTIAL, inside


def check_apart(
    out: str | Path, checkpoint: Checkpoint | str | Path | None, ledger: Reservation | Ledger | str | Path | None
) -> None:
    """Refuse keys or a ledger in the folder that is to be published.

    Raises:
        ValueError: one of them lies there.
    """
    kept = checkpoint.folder if isinstance(checkpoint, Checkpoint) else checkpoint
    book = ledger.ledger if isinstance(ledger, Reservation) else ledger
    book = book.path if isinstance(book, Ledger) else book
    for name, path in (("checkpoint", kept), ("ledger", book)):
        if path is not None and (inside(path, out, apart=CONFIDENTIAL) or inside(out, path)):
            raise InputError(
                f"{name}: {path} and {out}, which is to be published, must not lie in each other; give a place "
                f"elsewhere, or below {Path(out) / CONFIDENTIAL}"
            )


def save(result: Result, out: str | Path, day: datetime.date) -> None:
    """Save a result whose cost is spent; where that fails, the caller still gets it."""
    try:
        result.save(out, day=day)
    except OSError as error:
        warnings.warn(
            f"out: the result could not be saved ({error.filename or out}: {error.strerror or error}); it is returned, "
            "so save it elsewhere with result.save(folder).",
            stacklevel=3,
        )
