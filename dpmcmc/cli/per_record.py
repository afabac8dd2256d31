"""``dpmcmc run CONFIG --per-record --every K``: a run, and what it cost each training record.

The run is one of its own: it is charged to the config's ledger, and its draws and guarantee may be published. Its
cost to each record may not: it is in ``confidential/``, which only its owner can read.

It keeps no checkpoint: a run that is stopped is spent, and lost. So whatever can be refused is refused before the run
is charged for good, the cost is on disk before the first step, and the draws before the account.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from dpmcmc import config as config_room
from dpmcmc import data as data_room
from dpmcmc.cli.out_folder import default_folder, free_folder
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import Config
from dpmcmc.diagnostics import per_record
from dpmcmc.engine.blocks import DivergedError
from dpmcmc.engine.checks import check_records
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import Result, privacy_json
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.report.per_record import plot
from dpmcmc.storage.atomic import check_room
from dpmcmc.storage.compiled_programs import keep_compiled_programs
from dpmcmc.storage.run_folder import RunFolder, today


def run_and_account(name: str, config: Config, out: str | None, every: int) -> None:
    """Run a config, and account for every training record along the way that the run took.

    Args:
        name: of the config, for messages.
        config: what to run.
        out: run folder, or None for one of the usual name.
        every: steps between two computations of all records' norms.

    Raises:
        CommandError: a run without a guarantee of its own, or one that failed.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    keep_compiled_programs()
    folder = free_folder("--out", default_folder(config.name) if out is None else out)
    if config.privacy is None or not config_room.is_secret(config):
        raise CommandError(f"{name}: its run has no guarantee, so there is nothing that a record spends.")
    plan = config_room.make_plan(config)
    if not isinstance(plan, Plan) or plan.after is not None:
        raise CommandError(f"{name}: its release is a mechanism's; this accounts for a sampler's own run.")
    try:
        per_record.check(plan, every)
    except InputError as error:
        raise CommandError(f"--{error}" if str(error).startswith("every:") else str(error)) from None
    held = None
    if config.privacy.ledger is not None:
        held = Reservation(config.privacy.ledger, plan.guarantee, config.name, None, plan.num_records)
    run = AccountedRun(config, plan, RunFolder(folder, today()), held)
    try:
        account, records = run.prepared(every)
        result, positions = run.sampled(account, records)
        run.save(result)
        run.accounted(account, records, positions)
    finally:
        run.date()
    console.print(f"spent        {result.guarantee}")
    console.print(f"saved        {folder}")
    console.print(f"never publish or archive {run.confidential}", style="red")


@dataclasses.dataclass
class AccountedRun:
    """One run: what is refused is refused before it is charged, and what it cost is on disk before a draw is.

    Attributes:
        config, plan: of what.
        released: folder of what is released, new or empty.
        held: its place in the ledger, or None without one.
    """

    config: Config
    plan: Plan
    released: RunFolder
    held: Reservation | None

    @property
    def folder(self) -> Path:
        """Folder of what is released."""
        return self.released.folder

    @property
    def confidential(self) -> Path:
        """Folder of the account."""
        return self.folder / "confidential"

    def prepared(self, every: int) -> tuple[per_record.Account, Any]:
        """(account to be made, records), with the cost and the room for all files in the folder.

        Whatever is refused here gives the budget back, and leaves no folder.
        """
        try:
            records = data_room.load(self.config.data).train
            check_records(self.plan, records, host=True)
            if self.held is not None:
                self.held.identify(records)
            account = per_record.Account(self.plan, records, every)
            self._claim()
        except BaseException:
            self._settle()
            raise
        try:
            check_room(self.confidential, account.num_bytes)
            self.released.json("plan.json", self.plan.to_json())
            receipt = None if self.held is None else self.held.receipt
            self.released.json("privacy.json", privacy_json(self.plan, self.plan.guarantee, receipt=receipt))
        except BaseException:
            self._undo()
            raise
        return account, records

    def _claim(self) -> None:
        """Make the folders, unless another process has."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.confidential.mkdir(mode=0o700)
        except FileExistsError:
            raise CommandError(f"--out: another process has taken {self.folder}; give another folder.") from None

    def date(self) -> None:
        """Give every file that others may see the day on which the run began."""
        if self.folder.exists():
            self.released.date_all(self.confidential)

    def _undo(self) -> None:
        """Take back what was made for a run that has not begun."""
        self._settle()
        for name in ("plan.json", "privacy.json"):
            (self.folder / name).unlink(missing_ok=True)
        self.confidential.rmdir()
        self.folder.rmdir()

    def sampled(self, account: per_record.Account, records: Any) -> tuple[Result, Any]:
        """(result of the kept draws, positions before each step)."""
        try:
            result, positions = account.sample(records, ledger=self.held)
        except BaseException as error:
            if self.held is not None and not self.held.begun:
                self._undo()
                raise
            self._settle()
            if isinstance(error, DivergedError):
                raise CommandError(f"sampler.step_size: {error}", code=1) from None
            if isinstance(error, KeyboardInterrupt):
                raise CommandError(f"stopped by the user, and no draw was saved; {self._spent}", code=130) from None
            if isinstance(error, (MemoryError, jax.errors.JaxRuntimeError)):
                reason = str(error).partition("\n")[0] or "too little memory"
                raise CommandError(f"the run failed ({reason}), and no draw was saved; {self._spent}", code=1) from None
            raise
        return _kept(result, self.plan), positions

    def save(self, result: Result) -> None:
        """Write the draws, and settle."""
        try:
            result.save(self.folder, day=self.released.day)
        except OSError as error:
            self._settle()
            raise CommandError(
                f"{error.filename or self.folder}: {error.strerror or error}, so the draws are lost; {self._spent}.", 1
            ) from None
        self._settle()

    def accounted(self, account: per_record.Account, records: Any, positions: Any) -> None:
        """Write what the run cost each record."""
        every = account.every
        title = f"{self.config.name}: what the run cost each record"
        title += "" if every == 1 else f", at most (norms every {every} steps)"
        try:
            cost = account.of(records, positions)
            assert self.plan.guarantee is not None
            cost.save(self.confidential / "per_record.npz")
            plot(self.confidential / "per_record.png", cost, self.plan.guarantee.epsilon, title)
        except (OSError, MemoryError, KeyboardInterrupt) as error:
            raise CommandError(
                f"{self.confidential}: the account of the records is not there ({error or type(error).__name__}); the "
                f"draws are in {self.folder}, and {self._spent}.",
                code=130 if isinstance(error, KeyboardInterrupt) else 1,
            ) from None

    @property
    def _spent(self) -> str:
        return f"the run has spent {self.plan.guarantee}, as {self.folder / 'privacy.json'} states"

    def _settle(self) -> None:
        if self.held is None:
            return
        with warnings.catch_warnings(record=True) as said:
            self.held.settle()
        for one in said:
            print(f"warning: {one.message}", file=sys.stderr)


def _kept(result: Result, plan: Plan) -> Result:
    """The draws that the plan keeps, out of all."""
    first = plan.burn_in + plan.thin - 1

    def thinned(leaf: jax.Array) -> jax.Array:
        return leaf[:, first :: plan.thin]

    draws, positions, info = (jax.tree.map(thinned, t) for t in (result.draws, result.positions, result.info))
    return dataclasses.replace(result, plan=plan, draws=draws, positions=positions, info=info)
