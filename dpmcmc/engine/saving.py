"""The folder that a run's result is saved in: free, apart from what is confidential, written once the cost is spent.

``reservation.py`` is about the ledger's entry; ``result_folder.py`` says what the files hold.
"""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path

from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import Result, netcdf
from dpmcmc.errors import InputError
from dpmcmc.privacy.ledger import Ledger
from dpmcmc.privacy.ledger.place import place
from dpmcmc.storage.checkpoint import Checkpoint
from dpmcmc.storage.files import read_json
from dpmcmc.storage.released_files import CONFIDENTIAL, KEY, PRIVACY, digest, is_sealed
from dpmcmc.storage.surroundings import check_free, inside, results_around


def check_apart(
    out: str | Path,
    checkpoint: Checkpoint | str | Path | None,
    ledger: Reservation | Ledger | str | Path | None,
) -> None:
    """Refuse keys or a ledger in the folder that is to be published, and a folder that is taken.

    The folder of a run that goes on may hold its result: the run was stopped after that was saved.

    Raises:
        ValueError: one of them lies there; the folder holds something else.
        OSError: it cannot be read.
    """
    given = _paths(checkpoint, ledger)
    for name, path in given.items():
        if inside(path, out, apart=CONFIDENTIAL) or inside(out, path):
            raise InputError(
                f"{name}: {path} and {out}, which is to be published, must not lie in each other; give a place "
                f"elsewhere, or below {Path(out) / CONFIDENTIAL}"
            )
    goes_on = "checkpoint" in given and (given["checkpoint"] / "run.json").exists()
    if not (goes_on and is_sealed(Path(out))):
        check_free(out)


def check_unpublished(
    checkpoint: Checkpoint | str | Path | None,
    ledger: Reservation | Ledger | str | Path | None,
) -> None:
    """Refuse keys or a ledger in the folder of a result.

    Raises:
        ValueError: one of them lies there, and not below its ``confidential/``.
    """
    for name, path in _paths(checkpoint, ledger).items():
        for folder in results_around(path):
            if inside(path, folder, apart=CONFIDENTIAL):
                raise InputError(
                    f"{name}: {path} lies in {folder}, which is a result that is to be published; give a place "
                    f"elsewhere, or below {folder / CONFIDENTIAL}"
                )


def _paths(
    checkpoint: Checkpoint | str | Path | None,
    ledger: Reservation | Ledger | str | Path | None,
) -> dict[str, Path]:
    """Return the paths of what is confidential, by argument."""
    found: dict[str, Path] = {}
    if checkpoint is not None:
        found["checkpoint"] = checkpoint.folder if isinstance(checkpoint, Checkpoint) else Path(checkpoint)
    if isinstance(ledger, Reservation):
        ledger = ledger.ledger
    if ledger is not None:
        where = ledger.path if isinstance(ledger, Ledger) else place(ledger)
        if isinstance(where, Path):  # one in a database lies in no folder
            found["ledger"] = where
    return found


def save(result: Result, out: str | Path, day: datetime.date) -> None:
    """Save a result whose cost is spent, unless an earlier start has; where that fails, the caller still gets it."""
    folder = Path(out)
    try:
        if not is_sealed(folder) or read_json(folder / PRIVACY)[KEY].get("draws.nc") != digest(netcdf(result)):
            result.save(folder, day=day)
    except (OSError, InputError) as error:
        why = f"{error.filename or out}: {error.strerror or error}" if isinstance(error, OSError) else error
        warnings.warn(
            f"out: the result could not be saved ({why}); it is returned, so save it elsewhere with "
            "result.save(folder).",
            stacklevel=3,
        )
