"""One config of a sweep: its folder, its reservation, and its run by a worker.

A config is an ordinary run in a folder of its own, ``cells/0007``. The sweep makes the folder with its config and its
checkpoint, reserves the config's budget under a name that the checkpoint holds, and then sends the folder's path to a
worker. A worker is given nothing else, and answers with an exit code. So neither records nor keys nor results travel: a
worker reads the data by the path in the config, takes its keys from its own system, and writes the run folder, which
every worker must see under one path. Why a config ended as it did may depend on the records, and is left in a
confidential file.

How far a config has come is read from its folder, so that nothing is lost with the process that watched it:

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpmcmc.cli import run as run_room
from dpmcmc.cli.place import Place
from dpmcmc.cli.refusals import exit_code
from dpmcmc.config.grid import SweptConfig
from dpmcmc.engine.reservation import Reservation
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.ledger import Ledger, LedgerError
from dpmcmc.storage.checkpoint import has_begun
from dpmcmc.storage.files import read_table, read_text
from dpmcmc.storage.released_files import CONFIDENTIAL, PRIVACY, is_sealed

Status = Literal["waiting", "stopped", "lost", "released", "withheld", "diverged", "failed"]
#: Those of a config that is done, and those of one that is charged.
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
        number: of the config.
        folder: of its run.
        token: confidential file that the worker makes, and in which it says how the run ended. An executor that tries
            a config again finds it there, and the config is left alone: the first try may have begun.
        allow_code: as of ``dpmcmc run``.
        pictures: whether the config's page has pictures.
    """

    number: int
    folder: Path
    token: Path
    allow_code: tuple[str, ...]
    pictures: bool


#: JAX's settings and a process's output are not of one thread, so a process carries out one config at a time.
_ONE_AT_A_TIME = threading.Lock()


def carry_out(sent: Sent) -> Ended:
    """Run a config, in a worker; a failure is an answer and no exception."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        os.close(os.open(sent.token, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return Ended(1, "the executor sent this config a second time, and it was left alone")
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
    """Return how far the config in a folder has come."""
    checkpoint = folder / CONFIDENTIAL / "checkpoint"
    if checkpoint.is_dir():
        return "stopped" if has_begun(checkpoint) else "waiting"
    if not (folder / "config.yaml").exists():
        return "waiting"
    if not is_sealed(folder):
        return "lost"
    if (folder / "draws.nc").exists():
        return "released"
    if (folder / CONFIDENTIAL / "draws.nc").exists():
        return "withheld"
    diverged = "diverged_at" in read_table(folder / "metrics.json")
    return "diverged" if diverged else "failed"


def make_run_folder(swept: SweptConfig, plan: Plan, folder: Path) -> Reservation | None:
    """Make the folder of a config that waits, and reserve its budget where the config names a ledger.

    A start that was killed in between has left the folder, or the folder and the reservation; both are found again.

    Raises:
        CommandError: the folder cannot be made.
        LedgerError: the budget does not allow the config.
    """
    begun = (folder / "config.yaml").exists()
    place = Place(folder, folder / CONFIDENTIAL, resumed=begun, named=str(folder / "config.yaml"))
    place.make(swept.config)
    try:
        promise = swept.config.privacy
        if promise is None or promise.ledger is None:
            return None
        secret = promise.insecure_noise_seed is None
        return Reservation(
            promise.ledger,
            plan.guarantee if secret else None,
            swept.config.name,
            place.checkpoint,
            plan.num_records,
        )
    finally:
        place.checkpoint.close()


def give_back(reservation: Reservation) -> str:
    """Void the reservation of a config that has not begun; return why that failed, or nothing."""
    try:
        # Another look: a copy in a worker may have begun meanwhile, and then the entry stays.
        Ledger(reservation.ledger.path).give_back(reservation.receipt)
    except (LedgerError, OSError) as error:
        return str(error)
    return ""


def read_statement(folder: Path) -> dict[str, Any]:
    """Return what the ``privacy.json`` of a config says; an empty object where it has none."""
    return read_table(folder / PRIVACY)
