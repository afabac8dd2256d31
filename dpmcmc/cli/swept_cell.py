"""One cell of a sweep: its folder, its reservation, and its run by a worker.

A cell is an ordinary run in a folder of its own, ``cells/0007``. The sweep makes the folder with its config and its
checkpoint, reserves the cell's budget under a name that the checkpoint holds, and then sends the folder's path to a
worker. A worker is given nothing else, and answers with an exit code. So neither records nor keys nor results travel: a
worker reads the data by the path in the config, takes its keys from its own system, and writes the run folder, which
every worker must see under one path. Why a cell ended as it did may depend on the records, and is left in a
confidential file.

How far a cell has come is read from its folder, so that nothing is lost with the process that watched it:

=============  =====================================================================================
``waiting``    nothing was computed from a record; what is reserved can be given back
``stopped``    it has begun, is charged, and its checkpoint lets it go on at no further charge
``lost``       it may have begun, is charged, and no checkpoint is there: a further run is a further charge
``released``   done: draws that may be published
``withheld``   done: no guarantee covers the draws, so they lie in ``confidential/``
``diverged``   done: a chain left the range of floats, at a step that may be published
``failed``     done: there is no draw, for a reason that depends on the records and may not be published
=============  =====================================================================================
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpmcmc.cli import run as run_room
from dpmcmc.cli.place import Place
from dpmcmc.cli.refusals import exit_code
from dpmcmc.config.grid import Cell
from dpmcmc.engine.reservation import Reservation
from dpmcmc.planning.stages import AnyPlan
from dpmcmc.privacy.ledger import Ledger, LedgerError
from dpmcmc.storage.checkpoint import has_begun
from dpmcmc.storage.files import CONFIDENTIAL, PRIVACY, is_sealed, read_text, table_of

Status = Literal["waiting", "stopped", "lost", "released", "withheld", "diverged", "failed"]
#: Those of a cell that is done, and those of one that is charged.
DONE = ("released", "withheld", "diverged", "failed")
CHARGED = ("stopped", "lost", *DONE)


class Ended(NamedTuple):
    """A worker's answer: exit code of the run, as ``dpmcmc run`` has it, and a sentence of public facts, or none."""

    code: int
    said: str


@dataclass(frozen=True)
class Sent:
    """All that a worker is given.

    Attributes:
        number: of the cell.
        folder: of its run.
        token: confidential file that the worker makes, and in which it says how the run ended. An executor that tries
            a cell again finds it there, and the cell is left alone: the first try may have begun.
        allow_code: as of ``dpmcmc run``.
        pictures: whether the cell's page has pictures.
    """

    number: int
    folder: Path
    token: Path
    allow_code: tuple[str, ...]
    pictures: bool


#: JAX's settings and a process's output are not of one thread, so a process carries out one cell at a time.
_ONE_AT_A_TIME = threading.Lock()


def carry_out(sent: Sent) -> Ended:
    """Run a cell, in a worker; a failure is an answer and no exception."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        os.close(os.open(sent.token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return Ended(1, "the executor sent this cell a second time, and it was left alone")
    except OSError as error:
        return Ended(
            2,
            f"the worker cannot write to {sent.token.parent} ({error.strerror}); give it the sweep's folder under the "
            "same path",
        )
    said = io.StringIO()
    with (
        _ONE_AT_A_TIME,
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        code = exit_code(lambda: _run(sent))
    lines = said.getvalue().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    # Links of an executor may be open to others, and a refusal may name rows.
    with contextlib.suppress(OSError):
        sent.token.write_text(errors[-1].removeprefix("error: ") if errors else "")
    return Ended(code, "")


def why_of(sent: Sent, ended: Ended) -> str:
    """Return why a run ended with its exit code, as its worker says; for the data holder alone."""
    try:
        return ended.said or read_text(sent.token)
    except (OSError, UnicodeDecodeError):
        return ""


def _run(sent: Sent) -> None:
    run_room.run(
        None,
        None,
        list(sent.allow_code),
        out=None,
        resume=str(sent.folder),
        confidential=None,
        per_record=False,
        distributed=False,
        quiet=True,
        as_json=False,
        pictures=sent.pictures,
    )


def status_of(folder: Path) -> Status:
    """Return how far the cell in a folder has come."""
    kept = folder / CONFIDENTIAL / "checkpoint"
    if kept.is_dir():
        return "stopped" if has_begun(kept) else "waiting"
    if not (folder / "config.yaml").exists():
        return "waiting"
    if not is_sealed(folder):
        return "lost"
    if (folder / "draws.nc").exists():
        return "released"
    if (folder / CONFIDENTIAL / "draws.nc").exists():
        return "withheld"
    told = "diverged_at" in table_of(folder / "metrics.json")
    return "diverged" if told else "failed"


def made(cell: Cell, plan: AnyPlan, folder: Path) -> Reservation | None:
    """Make the folder of a cell that waits, and reserve its budget where the config names a ledger.

    A start that was killed in between has left the folder, or the folder and the reservation; both are found again.

    Raises:
        CommandError: the folder cannot be made.
        LedgerError: the budget does not allow the cell.
    """
    begun = (folder / "config.yaml").exists()
    place = Place(folder, folder / CONFIDENTIAL, resumed=begun, named=str(folder / "config.yaml"))
    place.make(cell.config)
    try:
        promise = cell.config.privacy
        if promise is None or promise.ledger is None:
            return None
        secret = promise.insecure_noise_seed is None
        return Reservation(
            promise.ledger,
            plan.guarantee if secret else None,
            cell.config.name,
            place.checkpoint,
            plan.num_records,
        )
    finally:
        place.checkpoint.close()


def give_back(reservation: Reservation) -> str:
    """Void the reservation of a cell that has not begun; return why that failed, or nothing."""
    try:
        # Another look: a copy in a worker may have begun meanwhile, and then the entry stays.
        Ledger(reservation.ledger.path).give_back(reservation.receipt)
    except (LedgerError, OSError) as error:
        return str(error)
    return ""


# ------------------------------------------------------------------------------------
# Rows of a cell in the tables: released numbers, and those of the data holder alone.

#: Names in the table, and how a run's JSON files say them.
MEASURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "accuracy": lambda said: (said.get("accuracy") or {}).get("posterior_predictive"),
    "rmse": lambda said: (said.get("rmse") or {}).get("posterior_predictive"),
    "log_predictive_density": lambda said: said.get("log_predictive_density"),
    "expected_calibration_error": lambda said: said.get("expected_calibration_error"),
    "ess": lambda said: said.get("ess"),
    "rhat": lambda said: said.get("rhat"),
}


def released_row(folder: Path) -> dict[str, Any]:
    """Return what a finished cell has released: its verdict, and scores of its draws on public test rows."""
    said = table_of(folder / "metrics.json")
    row = {name: of(said) for name, of in MEASURES.items()}
    return row | {"usable_for": " ".join(said.get("usable_for") or [])}


def confidential_row(folder: Path) -> dict[str, Any]:
    """Return :func:`released_row` with scores that are for the data holder alone in the place of those that lack."""
    rows = [released_row(folder)]
    rows += [released_row(folder / CONFIDENTIAL)]
    said = table_of(folder / CONFIDENTIAL / "diagnostics.json")
    rows += [{name: of(said) for name, of in MEASURES.items()}]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: next((row[name] for row in rows if row.get(name) not in (None, "")), None) for name in names}


def stated(folder: Path) -> dict[str, Any]:
    """Return what the ``privacy.json`` of a cell says; an empty object where it has none."""
    return table_of(folder / PRIVACY)
