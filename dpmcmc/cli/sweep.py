"""``dpmcmc sweep GRID.yaml``: every config of a grid, in workers, into one folder with one table and one page.

    sweep.yaml                      the grid, with every override
    cells/0001/, cells/0002/, ...   run folders: ``dpmcmc verify`` and ``dpmcmc run --resume`` take each
    results.csv, report.html        a row for each config, and a page: public facts and released values alone
    confidential/                   results.csv with what is for the data holder alone, and why a config ended as it did

Every config is planned before anything is written, and reserved in its ledger before any is sent: all of them, or
none. A config is tried once. One whose worker died stays charged, and the table says ``lost``; the same command goes on
with its checkpoint at no further charge. Where that is gone too, a further run is a further charge, which
``--again-lost`` asks for. ``swept_config.py`` is one config.

**Cost.** Configs that are published together cost their composition, not the largest of them: the page states the
epsilon of all that were charged, where an accountant covers them together (``sweep_cost.py``). A person may be in the
data of every config, whatever the configs name as their data, so all configs are composed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dpmcmc import config as config_room
from dpmcmc.cli import sweep_folder, sweep_scores, swept_config
from dpmcmc.cli.faults import keep_in
from dpmcmc.cli.options import note
from dpmcmc.cli.place import default_folder, own_modules
from dpmcmc.cli.refusals import CODE, CommandError
from dpmcmc.cli.sweep_cluster import connect_cluster
from dpmcmc.cli.sweep_cost import charge_of, together
from dpmcmc.cli.sweep_scores import MEASURES
from dpmcmc.cli.swept_config import CHARGED, DONE, Ended, Sent, status_of
from dpmcmc.config import grid as grids
from dpmcmc.config.grid import Grid, SweptConfig
from dpmcmc.engine.mesh import check_devices
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.results_table import Row, Table
from dpmcmc.engine.tasks import Lost, outcomes
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.privacy.ledger import LedgerError
from dpmcmc.report import sweep_page
from dpmcmc.report.console import Screen
from dpmcmc.report.lines import say
from dpmcmc.storage.compiled_programs import keep_compiled_programs
from dpmcmc.storage.released_files import CELLS, CONFIDENTIAL, GRID, RESULTS

#: Most processes of ``--workers``.
_MOST_WORKERS = 256
#: A config that ended without being done: it was refused before anything was computed from a record.
REFUSED = "refused"


@dataclass
class Swept:
    """Outcome of a sweep.

    Attributes:
        folder: of the sweep.
        rows: one for each config; public facts and released values alone.
        together: guarantee of all configs that were charged; None where none is proved.
        why: why there is none.
        private_end: numbers of configs whose end depends on the records, which nobody but their holder may learn.
    """

    folder: Path
    rows: list[Row]
    together: Guarantee | None = None
    why: str = ""
    private_end: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every config has released its draws, or withheld them for want of a guarantee."""
        return all(row["status"] in ("released", "withheld") for row in self.rows)


def command(
    grid: str | None,
    overrides: list[str] | None,
    allow_code: list[str] | None,
    *,
    out: str | None,
    resume: str | None,
    workers: int | None,
    on: str | None,
    again_lost: bool,
    pictures: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run every config of a grid; the exit code is 0 where all have released their draws."""
    if quiet and as_json:
        raise CommandError("--json: prints the folder already; leave --quiet out.")
    if resume is not None and (out is not None or overrides or grid is not None):
        raise CommandError("--resume: goes on in its own folder with its own grid; leave GRID, --out and --set out.")
    if grid is None and resume is None:
        raise CommandError("grid: give a YAML file with a section sweep, or --resume DIR.")
    if resume is not None and not (Path(resume) / GRID).is_file():
        raise CommandError(f"--resume: {resume} holds no {GRID}, so no sweep was begun there; start a new one.")
    if workers is not None and not 1 <= workers <= _MOST_WORKERS:
        raise CommandError(f"--workers: must lie in 1..{_MOST_WORKERS}, got {workers}.")
    loaded = grids.load(
        Path(resume) / GRID if resume is not None else str(grid),
        overrides,
        allow_code=allow_code or [],
        resumed=resume is not None,
        note=note,
    )
    wanted = resume or out
    folder = Path(wanted) if wanted is not None else default_folder(loaded.name)
    console = Screen(quiet or as_json)
    with contextlib.ExitStack() as stack:
        executor = None
        if on is not None:
            executor, threads = stack.enter_context(connect_cluster(on))
            workers = workers or threads
        done = carry_out(
            loaded,
            folder,
            workers=workers,
            executor=executor,
            again_lost=again_lost,
            pictures=pictures,
            allow_code=tuple(allow_code or ()),
            console=console,
        )
    if as_json:
        print(json.dumps(_as_json(done), indent=2, allow_nan=False))
    elif quiet:
        say(done.folder)
    return 0 if done.complete else 1


def _as_json(done: Swept) -> dict[str, Any]:
    public_rows = [] if done.private_end else done.rows
    return {
        "folder": str(done.folder),
        "cells": public_rows,
        "together": None
        if done.together is None
        else {
            "epsilon": done.together.epsilon,
            "delta": done.together.delta,
            "adjacency": done.together.adjacency,
        },
    }


def sweep(
    grid: str | Path,
    *,
    overrides: list[str] | None = None,
    out: str | Path | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    again_lost: bool = False,
    pictures: bool = False,
    allow_code: Collection[str] = (),
) -> Swept:
    """Run every config of a grid, as ``dpmcmc sweep`` does; each is a run of its own, charged by itself.

    Args:
        grid: YAML file, a config with a section ``sweep``.
        overrides: ``a.b=value`` strings, applied to the whole grid.
        out: folder of the sweep; a new one below ``runs`` by default. A sweep that was stopped goes on in its folder.
        workers: processes of one thread each; None: this process. With an executor: configs that it gets at a time.
        executor: carries out the configs in place of own processes, for example a Dask client's ``get_executor()``. It
            must not try a call again. Its workers see the folder and the data under the same paths; nothing of the
            records is sent.
        again_lost: whether to run configs again that were lost with their checkpoint; each is charged again.
        pictures: whether each config's page has pictures, which take longer than most configs.
        allow_code: modules outside this library that a grid in a run folder may name.

    Returns:
        :class:`~dpmcmc.cli.sweep.Swept`: folder, a row for each config, and the guarantee of all together.

    Raises:
        InputError: a value that makes no config; another sweep's folder, or one in use; a plan that is refused, with
            the config's values; a ledger that does not allow all configs.
    """
    loaded = grids.load(grid, overrides, allow_code=allow_code)
    folder = default_folder(loaded.name) if out is None else Path(out)
    try:
        return carry_out(
            loaded,
            folder,
            workers=workers,
            executor=executor,
            again_lost=again_lost,
            pictures=pictures,
            allow_code=tuple(allow_code),
        )
    except CommandError as error:
        raise InputError(str(error)) from None


def carry_out(
    grid: Grid,
    folder: Path,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    again_lost: bool = False,
    pictures: bool = False,
    allow_code: tuple[str, ...] = (),
    console: Console | None = None,
) -> Swept:
    """Run the configs of a grid that are not done, and write the table and the page.

    Args:
        grid: configs.
        folder: new, or of an earlier start of the same grid.
        workers: processes of one thread each; None: this process. With an executor: configs that it gets at a time.
        executor: that carries out configs in place of own processes; its workers see ``folder`` under the same path.
        again_lost: whether to run configs again that were lost and have no checkpoint; each is charged again.
        pictures: whether each config's page has pictures.
        allow_code: modules outside this library that the configs name.
        console: to print on; None: nothing is printed.

    Raises:
        CommandError, InputError: a config's plan is refused, with its values; the folder is another sweep's or in use;
            the ledger does not allow all configs. Then nothing is charged.
        KeyboardInterrupt: stopped; what has not begun is given back.
    """
    console = Screen(quiet=True) if console is None else console
    keep_compiled_programs()
    check_devices()
    folder = folder.absolute()
    sweep_folder.check_place(folder)
    made = not folder.exists()
    new = made or not any(folder.iterdir())
    plans = _plans(grid)
    about = {"grid": sweep_folder.relative(grid, folder)}
    columns = ("cell", *grid.keys, "repeat", "status", "epsilon", "delta")
    public = (*columns, "usable_for", *MEASURES)
    try:
        with (
            contextlib.ExitStack() as undo,  # left last, when the folder is not locked
            Table(folder / CONFIDENTIAL, (*public, "reason"), ("cell",), about) as table,
        ):
            if new:  # a sweep that was refused leaves nothing
                undo.callback(sweep_folder.remove_unbegun, folder, made)
            os.chmod(folder / CONFIDENTIAL, 0o700)
            keep_in(folder / CONFIDENTIAL)
            released = sweep_folder.released_folder(folder, about["grid"])
            sweep = _Sweep(grid, plans, folder, table, allow_code, console)
            sweep.tell()
            reservations = sweep.reserved(again_lost)
            undo.pop_all()
            try:
                sweep.run(workers, executor, pictures)
            finally:
                sweep.give_back(reservations)
                done = sweep.done()
                page = sweep_page.page(grid.name, released.day, grid.keys, done.rows, done.together, done.why)
                shown = None if done.private_end else page
                sweep_folder.publish(done.rows, shown, released, public)
    finally:
        keep_in(None)
        sweep_folder.date(folder)
    for line in sweep_page.lines(done.rows, done.together, done.why, len(done.private_end)):
        console.print(line)
    console.print(_where(done))
    return done


def _plans(grid: Grid) -> list[Plan]:
    """Return the plan of every config; configs that differ in nothing but their number share one."""
    found: dict[str, Plan] = {}
    plans = []
    for swept in grid.configs:
        key = json.dumps(swept.values, sort_keys=True)
        if key not in found:
            try:
                if swept.config.run is not None and swept.config.run.mesh is not None:
                    raise InputError("run.mesh: a sweep gives each config one device; leave it out")
                with config_room.run_device(swept.config):
                    found[key] = config_room.make_plan(swept.config)
                _check_charged(swept, found[key])
            except InputError as error:
                raise CommandError(
                    f"{str(error).removesuffix('.')}; this refuses {swept}, and nothing was run."
                ) from None
        plans.append(found[key])
    return plans


def _check_charged(swept: SweptConfig, plan: Plan) -> None:
    """Refuse a ledger of a config that it cannot charge."""
    promise = swept.config.privacy
    if promise is None or promise.ledger is None:
        return
    if plan.guarantee is None or promise.insecure_noise_seed is not None:
        raise InputError(
            "privacy.ledger: a run without a guarantee (privacy null, or known noise) cannot be charged; take the "
            "ledger out, or make the run private"
        )


class _Sweep:
    """The configs of one start of a sweep."""

    def __init__(
        self,
        grid: Grid,
        plans: list[Plan],
        folder: Path,
        table: Table,
        allow_code: tuple[str, ...],
        console: Console,
    ) -> None:
        self._grid = grid
        self._plans = plans
        self._folder = folder
        self._table = table
        self._allowed = allow_code
        self._console = console
        self._tokens = folder / CONFIDENTIAL / "sent"
        self._cells = folder / CELLS
        self._again: dict[int, list[Path]] = {}
        for path in sorted(self._cells.glob("*-again-*"), key=lambda p: (len(p.name), p.name)):
            self._again.setdefault(int(path.name.partition("-")[0]), []).append(path)
        self._ends: dict[int, str] = {}
        self._dead: set[int] = set()
        self._faults: set[int] = set()

    def tell(self) -> None:
        """Say what will be run and what it costs together."""
        grid = self._grid
        over = ", ".join(grid.keys) or "repeats alone"
        each = f", {grid.repeats} repeats" if grid.repeats > 1 else ""
        self._console.print(f"sweep    {grid.name}: {len(grid.configs)} configs over {over}{each}")
        guarantee, why = together(list(zip(grid.configs, self._plans, strict=True)))
        self._console.print(f"privacy  {sweep_page.cost(guarantee, why)}")

    def folders(self, swept: SweptConfig) -> list[Path]:
        """Return the folders of a config: its first, and one for each time that it was run again."""
        return [self._cells / f"{swept.number:04d}", *self._again.get(swept.number, ())]

    def folder(self, swept: SweptConfig) -> Path:
        """Return the last folder of a config."""
        return self.folders(swept)[-1]

    def plan(self, swept: SweptConfig) -> Plan:
        """Return the plan of a config."""
        return self._plans[swept.number - 1]

    def reserved(self, again_lost: bool) -> dict[int, Reservation]:
        """Make the folders of all configs that wait, and reserve their budget; all of them, or none.

        Args:
            again_lost: whether configs that were lost get a new folder and a further reservation.

        Returns:
            Number of a config -> its reservation, where it has a ledger.
        """
        self._tokens.mkdir(exist_ok=True, mode=0o700)
        held: dict[int, Reservation] = {}
        again: list[SweptConfig] = []
        swept = None
        try:
            for swept in self._grid.configs:
                folder = self.folder(swept)
                status = status_of(folder)
                if status == "lost" and again_lost:
                    count = len(self.folders(swept))
                    folder = folder.with_name(f"{swept.number:04d}-again-{count}")
                    self._again.setdefault(swept.number, []).append(folder)
                    again.append(swept)
                    status = "waiting"
                if status == "waiting":
                    reservation = swept_config.make_run_folder(swept, self.plan(swept), folder)
                    if reservation is not None:
                        held[swept.number] = reservation
        except BaseException as error:
            self.give_back(held)
            for one in again:  # or the next start would run it without being asked to
                shutil.rmtree(self._again[one.number].pop(), ignore_errors=True)
            if not isinstance(error, LedgerError):
                raise
            raise CommandError(
                f"{str(error).removesuffix('.')}; the configs of a sweep are reserved together, so none was run "
                f"(this is {swept})."
            ) from None
        return held

    def give_back(self, held: dict[int, Reservation]) -> None:
        """Void the reservations of configs that have not begun."""
        for swept in self._grid.configs:
            reservation = held.get(swept.number)
            if reservation is not None and status_of(self.folder(swept)) == "waiting":
                failed = swept_config.give_back(reservation)
                if failed:
                    note(f"{swept}: {failed} What its ledger holds for it stays reserved.")

    def run(self, workers: int | None, executor: Executor | None, pictures: bool) -> None:
        """Send every config that waits or was stopped, and take note of how each ends."""
        configs = [swept for swept in self._grid.configs if status_of(self.folder(swept)) in ("waiting", "stopped")]
        # Configs of one program follow one another: numbers alone compile nothing anew.
        configs.sort(key=lambda swept: _structure(swept))
        count = len(self._grid.configs)
        number_of = {swept.number: swept for swept in configs}
        sent = [
            Sent(
                swept.number,
                self.folder(swept),
                self._tokens / secrets.token_hex(8),
                tuple(dict.fromkeys((*self._allowed, *own_modules(swept.config)))),
                pictures,
            )
            for swept in configs
        ]
        finished = count - len(configs)
        try:
            for one, end in outcomes(swept_config.carry_out, sent, workers=workers, executor=executor):
                swept = number_of[one.number]
                if isinstance(end, Lost):
                    self._dead.add(swept.number)
                    end = Ended(1, f"its worker died ({end.why})")
                if end.code == 130:
                    raise KeyboardInterrupt
                if end.code:
                    self._ends[swept.number] = swept_config.why_of(one, end)
                if end.code == CODE:
                    self._faults.add(swept.number)
                finished += 1
                status = self.note(swept)
                shown = status if status not in (REFUSED, "failed") else "no release"
                self._console.print(f"{finished:>4} of {count}  {swept}: {shown}")
        finally:
            shutil.rmtree(self._tokens, ignore_errors=True)

    def status(self, swept: SweptConfig) -> str:
        """Return the status of a config as the table has it."""
        found = status_of(self.folder(swept))
        if found == "stopped" and swept.number in self._dead:
            return "lost"
        if found == "waiting" and swept.number in self._ends:
            return "waiting" if swept.number in self._dead else REFUSED
        return found

    def note(self, swept: SweptConfig) -> str:
        """Write the row of a config in the table of the data holder; return its status."""
        status = self.status(swept)
        row = self._row(swept, status) | {"reason": self._ends.get(swept.number, "")}
        if status in DONE:
            row |= sweep_scores.confidential_row(self.folder(swept))
        self._table.add([row])
        return status

    def _row(self, swept: SweptConfig, status: str) -> Row:
        said = swept_config.read_statement(self.folder(swept)) if status in DONE else {}
        planned = self.plan(swept).guarantee if config_room.is_secret(swept.config) else None
        epsilon = said.get("epsilon") if said else getattr(planned, "epsilon", None)
        delta = said.get("delta") if said else getattr(planned, "delta", None)
        values = {key: grids.text_of(value) for key, value in swept.values.items()}
        return {
            "cell": swept.number,
            **values,
            "repeat": swept.repeat,
            "status": status,
            "epsilon": None if epsilon is None else round_up(epsilon),
            "delta": None if delta is None else repr(delta),
        }

    def done(self) -> Swept:
        """Return the rows that may be released, and what the charged configs cost together."""
        rows = []
        charged = []
        private = []
        for swept in self._grid.configs:
            status = self.status(swept)
            row = self._row(swept, status)
            if status in (REFUSED, "failed") or swept.number in self._faults:
                private.append(swept.number)
            if status in DONE:
                row |= sweep_scores.released_row(self.folder(swept))
            rows.append(row)
            for folder in self.folders(swept):
                if status_of(folder) in CHARGED:
                    charged.append((swept, charge_of(self.plan(swept), folder)))
        guarantee, why = together(charged)
        return Swept(self._folder, rows, guarantee, why, private)


def _structure(swept: SweptConfig) -> tuple[str, ...]:
    """Return the values of a config that are no numbers: configs that agree in them mostly share a program."""
    return tuple(grids.text_of(value) if not isinstance(value, int | float) else "" for value in swept.values.values())


def _where(done: Swept) -> str:
    if done.private_end:
        configs = ", ".join(map(str, done.private_end[:10]))
        more = " and more" if len(done.private_end) > 10 else ""
        return (
            f"saved    {done.folder / CONFIDENTIAL / RESULTS} says why configs {configs}{more} released nothing. "
            f"It may depend on the records: keep {done.folder} to yourself."
        )
    left = [row for row in done.rows if row["status"] in ("waiting", "stopped", "lost")]
    goes_on = f"; the rest goes on with: dpmcmc sweep --resume {done.folder}" if left else ""
    return f"saved    {done.folder / sweep_page.FILE}{goes_on}"
