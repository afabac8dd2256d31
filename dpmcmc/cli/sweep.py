"""``dpmcmc sweep GRID.yaml``: every cell of a grid, in workers, into one folder with one table and one page.

    sweep.yaml                      the grid, with every override
    cells/0001/, cells/0002/, ...   run folders: ``dpmcmc verify`` and ``dpmcmc run --resume`` take each
    results.csv, report.html        a row for each cell, and a page: public facts and released values alone
    confidential/                   results.csv with what is for the data holder alone, and why a cell ended as it did

Every cell is planned before anything is written, and reserved in its ledger before any is sent: all of them, or none. A
cell is tried once. One whose worker died stays charged, and the table says ``lost``; the same command goes on with its
checkpoint at no further charge. Where that is gone too, a further run is a further charge, which ``--again-lost`` asks
for. ``swept_cell.py`` is one cell.

**Cost.** Cells that are published together cost their composition, not the largest of them: the page states the epsilon
of all that were charged, where an accountant covers them together. A person may be in the data of every cell, whatever
the cells name as their data, so all cells are composed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dpmcmc import config as config_room
from dpmcmc.cli import sweep_folder, swept_cell
from dpmcmc.cli.options import note
from dpmcmc.cli.place import default_folder, own_modules
from dpmcmc.cli.refusals import CODE, CommandError, keep_in
from dpmcmc.cli.swept_cell import CHARGED, DONE, MEASURES, Ended, Sent, status_of
from dpmcmc.config import grid as grids
from dpmcmc.config.grid import Cell, Grid
from dpmcmc.engine.mesh import check_devices
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.results_table import Row, Table
from dpmcmc.engine.tasks import Lost, outcomes
from dpmcmc.engine.workers import connected, is_cluster
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.planning.stages import AnyPlan
from dpmcmc.privacy.accounting.events import round_up
from dpmcmc.privacy.accounting.guarantee import Guarantee, composed
from dpmcmc.privacy.ledger import LedgerError
from dpmcmc.report import sweep_page
from dpmcmc.report.console import Screen
from dpmcmc.report.lines import say
from dpmcmc.storage.compiled_programs import keep_compiled_programs
from dpmcmc.storage.files import CELLS, CONFIDENTIAL, GRID, RESULTS

#: Seconds that the scheduler of ``--on`` may take to answer.
_ANSWER = 10.0
#: Most processes of ``--workers``.
_MOST_WORKERS = 256
#: A cell that ended without being done: it was refused before anything was computed from a record.
REFUSED = "refused"
#: Assumption of a sweep of which a cell was run again.
RUN_AGAIN = "a cell was lost, and run again, for reasons that do not depend on the records."


@dataclass
class Swept:
    """Outcome of a sweep.

    Attributes:
        folder: of the sweep.
        rows: one for each cell; public facts and released values alone.
        together: guarantee of all cells that were charged; None where none is proved.
        why: why there is none.
        private_end: numbers of cells whose end depends on the records, which nobody but their holder may learn.
    """

    folder: Path
    rows: list[Row]
    together: Guarantee | None = None
    why: str = ""
    private_end: list[int] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every cell has released its draws, or withheld them for want of a guarantee."""
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
    """Run every cell of a grid; the exit code is 0 where all have released their draws."""
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
            executor, there = stack.enter_context(_cluster(on))
            workers = workers or there
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
    told = [] if done.private_end else done.rows
    return {
        "folder": str(done.folder),
        "cells": told,
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
    """Run every cell of a grid of configs, as ``dpmcmc sweep`` does; each is a run of its own, charged by itself.

    Args:
        grid: YAML file, a config with a section ``sweep``.
        overrides: ``a.b=value`` strings, applied to the whole grid.
        out: folder of the sweep; a new one below ``runs`` by default. A sweep that was stopped goes on in its folder.
        workers: processes of one thread each; None: this process. With an executor: cells that it gets at a time.
        executor: carries out the cells in place of own processes, for example a Dask client's ``get_executor()``. It
            must not try a call again. Its workers see the folder and the data under the same paths; nothing of the
            records is sent.
        again_lost: whether to run cells again that were lost with their checkpoint; each is charged again.
        pictures: whether each cell's page has pictures, which take longer than most cells.
        allow_code: modules outside this library that a grid in a run folder may name.

    Returns:
        :class:`~dpmcmc.cli.sweep.Swept`: folder, a row for each cell, and the guarantee of all together.

    Raises:
        InputError: a value that makes no config; another sweep's folder, or one in use; a plan that is refused, with
            the cell's values; a ledger that does not allow all cells.
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


# ------------------------------------------------------------------------------------
# A cluster of Dask. Its links carry the path of a cell's folder and the worker's answer, and nothing of the records.


@contextlib.contextmanager
def _cluster(url: str) -> Iterator[tuple[Executor, int]]:
    """Yield (an executor of the scheduler at ``dask://HOST:PORT``, threads of its workers)."""
    if not is_cluster(url):
        raise CommandError(f"--on: {url!r} is not dask://HOST:PORT or tls://HOST:PORT of a Dask scheduler.")
    with connected(url, "--on", _ANSWER) as client:
        client.run_on_scheduler(_try_once)
        there = sum(client.nthreads().values())
        if not there:
            raise CommandError(f"--on: {url} has no worker; start some with dask worker.")
        yield client.get_executor(pure=False, retries=0), there


def _try_once(dask_scheduler: Any) -> None:
    """Let a scheduler give a task up when its first worker dies."""
    dask_scheduler.allowed_failures = 0


# ------------------------------------------------------------------------------------
# The sweep.


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
    """Run the cells of a grid that are not done, and write the table and the page.

    Args:
        grid: cells.
        folder: new, or of an earlier start of the same grid.
        workers: processes of one thread each; None: this process. With an executor: cells that it gets at a time.
        executor: that carries out cells in place of own processes; its workers see ``folder`` under the same path.
        again_lost: whether to run cells again that were lost and have no checkpoint; each is charged again.
        pictures: whether each cell's page has pictures.
        allow_code: modules outside this library that the configs name.
        console: to print on; None: nothing is printed.

    Raises:
        CommandError, InputError: a cell's plan is refused, with the cell's values; the folder is another sweep's or in
            use; the ledger does not allow all cells. Then nothing is charged.
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
                told = None if done.private_end else page
                sweep_folder.publish(done.rows, told, released, public)
    finally:
        keep_in(None)
        sweep_folder.date(folder)
    for line in sweep_page.lines(done.rows, done.together, done.why, len(done.private_end)):
        console.print(line)
    console.print(_where(done))
    return done


def _plans(grid: Grid) -> list[AnyPlan]:
    """Return the plan of every cell; cells that differ in nothing but their number share one."""
    found: dict[str, AnyPlan] = {}
    plans = []
    for cell in grid.cells:
        key = json.dumps(cell.values, sort_keys=True)
        if key not in found:
            try:
                if cell.config.run is not None and cell.config.run.mesh is not None:
                    raise InputError("run.mesh: a sweep gives each cell one device; leave it out")
                with config_room.run_device(cell.config):
                    found[key] = config_room.make_plan(cell.config)
                _check_charged(cell, found[key])
            except InputError as error:
                raise CommandError(
                    f"{str(error).removesuffix('.')}; this refuses {cell}, and nothing was run."
                ) from None
        plans.append(found[key])
    return plans


def _check_charged(cell: Cell, plan: AnyPlan) -> None:
    """Refuse a ledger of a cell that it cannot charge."""
    promise = cell.config.privacy
    if promise is None or promise.ledger is None:
        return
    if plan.guarantee is None or promise.insecure_noise_seed is not None:
        raise InputError(
            "privacy.ledger: a run without a guarantee (privacy null, or known noise) cannot be charged; take the "
            "ledger out, or make the run private"
        )


class _Sweep:
    """The cells of one start of a sweep."""

    def __init__(
        self,
        grid: Grid,
        plans: list[AnyPlan],
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
        self._console.print(f"sweep    {grid.name}: {len(grid.cells)} cells over {over}{each}")
        guarantee, why = together(list(zip(grid.cells, self._plans, strict=True)))
        self._console.print(f"privacy  {sweep_page.cost(guarantee, why)}")

    def folders(self, cell: Cell) -> list[Path]:
        """Return the folders of a cell: its first, and one for each time that it was run again."""
        return [self._cells / f"{cell.number:04d}", *self._again.get(cell.number, ())]

    def folder(self, cell: Cell) -> Path:
        """Return the last folder of a cell."""
        return self.folders(cell)[-1]

    def plan(self, cell: Cell) -> AnyPlan:
        """Return the plan of a cell."""
        return self._plans[cell.number - 1]

    def reserved(self, again_lost: bool) -> dict[int, Reservation]:
        """Make the folders of all cells that wait, and reserve their budget; all of them, or none.

        Args:
            again_lost: whether cells that were lost get a new folder and a further reservation.

        Returns:
            Number of a cell -> its reservation, where it has a ledger.
        """
        self._tokens.mkdir(exist_ok=True, mode=0o700)
        held: dict[int, Reservation] = {}
        again: list[Cell] = []
        cell = None
        try:
            for cell in self._grid.cells:
                folder = self.folder(cell)
                status = status_of(folder)
                if status == "lost" and again_lost:
                    count = len(self.folders(cell))
                    folder = folder.with_name(f"{cell.number:04d}-again-{count}")
                    self._again.setdefault(cell.number, []).append(folder)
                    again.append(cell)
                    status = "waiting"
                if status == "waiting":
                    reservation = swept_cell.made(cell, self.plan(cell), folder)
                    if reservation is not None:
                        held[cell.number] = reservation
        except BaseException as error:
            self.give_back(held)
            for one in again:  # or the next start would run it without being asked to
                shutil.rmtree(self._again[one.number].pop(), ignore_errors=True)
            if not isinstance(error, LedgerError):
                raise
            raise CommandError(
                f"{str(error).removesuffix('.')}; the cells of a sweep are reserved together, so none was run "
                f"(this is {cell})."
            ) from None
        return held

    def give_back(self, held: dict[int, Reservation]) -> None:
        """Void the reservations of cells that have not begun."""
        for cell in self._grid.cells:
            reservation = held.get(cell.number)
            if reservation is not None and status_of(self.folder(cell)) == "waiting":
                failed = swept_cell.give_back(reservation)
                if failed:
                    note(f"{cell}: {failed} What its ledger holds for it stays reserved.")

    def run(self, workers: int | None, executor: Executor | None, pictures: bool) -> None:
        """Send every cell that waits or was stopped, and take note of how each ends."""
        cells = [cell for cell in self._grid.cells if status_of(self.folder(cell)) in ("waiting", "stopped")]
        # Cells of one program follow one another: numbers alone compile nothing anew.
        cells.sort(key=lambda cell: _structure(cell))
        count = len(self._grid.cells)
        number_of = {cell.number: cell for cell in cells}
        sent = [
            Sent(
                cell.number,
                self.folder(cell),
                self._tokens / secrets.token_hex(8),
                tuple(dict.fromkeys((*self._allowed, *own_modules(cell.config)))),
                pictures,
            )
            for cell in cells
        ]
        finished = count - len(cells)
        try:
            for one, end in outcomes(swept_cell.carry_out, sent, workers=workers, executor=executor):
                cell = number_of[one.number]
                if isinstance(end, Lost):
                    self._dead.add(cell.number)
                    end = Ended(1, f"its worker died ({end.why})")
                if end.code == 130:
                    raise KeyboardInterrupt
                if end.code:
                    self._ends[cell.number] = swept_cell.why_of(one, end)
                if end.code == CODE:
                    self._faults.add(cell.number)
                finished += 1
                status = self.note(cell)
                shown = status if status not in (REFUSED, "failed") else "no release"
                self._console.print(f"{finished:>4} of {count}  {cell}: {shown}")
        finally:
            shutil.rmtree(self._tokens, ignore_errors=True)

    def status(self, cell: Cell) -> str:
        """Return the status of a cell as the table has it."""
        found = status_of(self.folder(cell))
        if found == "stopped" and cell.number in self._dead:
            return "lost"
        if found == "waiting" and cell.number in self._ends:
            return "waiting" if cell.number in self._dead else REFUSED
        return found

    def note(self, cell: Cell) -> str:
        """Write the row of a cell in the table of the data holder; return its status."""
        status = self.status(cell)
        row = self._row(cell, status) | {"reason": self._ends.get(cell.number, "")}
        if status in DONE:
            row |= swept_cell.confidential_row(self.folder(cell))
        self._table.add([row])
        return status

    def _row(self, cell: Cell, status: str) -> Row:
        said = swept_cell.stated(self.folder(cell)) if status in DONE else {}
        planned = self.plan(cell).guarantee if config_room.is_secret(cell.config) else None
        epsilon = said.get("epsilon") if said else getattr(planned, "epsilon", None)
        delta = said.get("delta") if said else getattr(planned, "delta", None)
        values = {key: _plain(value) for key, value in cell.values.items()}
        return {
            "cell": cell.number,
            **values,
            "repeat": cell.repeat,
            "status": status,
            "epsilon": None if epsilon is None else round_up(epsilon),
            "delta": None if delta is None else repr(delta),
        }

    def done(self) -> Swept:
        """Return the rows that may be released, and what the charged cells cost together."""
        rows = []
        charged = []
        private = []
        for cell in self._grid.cells:
            status = self.status(cell)
            row = self._row(cell, status)
            if status in (REFUSED, "failed") or cell.number in self._faults:
                private.append(cell.number)
            if status in DONE:
                row |= swept_cell.released_row(self.folder(cell))
            rows.append(row)
            for folder in self.folders(cell):
                if status_of(folder) in CHARGED:
                    charged.append((cell, _as_charged(self.plan(cell), folder)))
        guarantee, why = together(charged)
        return Swept(self._folder, rows, guarantee, why, private)


@dataclass(frozen=True)
class _Charged:
    """A plan's unit with the guarantee that its run came to cost, which is more where it went on elsewhere."""

    guarantee: Guarantee | None
    unit: str


def _as_charged(plan: AnyPlan, folder: Path) -> _Charged:
    said = swept_cell.stated(folder)
    planned = plan.guarantee
    if planned is None or not said.get("events"):
        return _Charged(planned, plan.unit)
    if said["events"] == [event.to_json() for event in planned.events]:
        return _Charged(planned, plan.unit)
    return _Charged(Guarantee.from_json(said), plan.unit)


def together(
    cells: Iterable[tuple[Cell, AnyPlan | _Charged]],
) -> tuple[Guarantee | None, str]:
    """Return (guarantee of all cells together, or None; why there is none).

    The losses of cells add, whatever data they name: a person may be in all of them (:func:`composed`).
    """
    found = list(cells)
    if not found:
        return None, "no cell was charged"
    without = [cell.number for cell, plan in found if plan.guarantee is None or not config_room.is_secret(cell.config)]
    if without:
        return None, f"{len(without)} of {len(found)} cells have no guarantee"
    if len({plan.unit for _, plan in found}) > 1:
        return None, "cells protect different units, records and owners"
    try:
        whole = composed([plan.guarantee for _, plan in found if plan.guarantee])
    except UnsupportedCombination as error:
        return None, f"nothing covers all cells ({str(error).removesuffix('.')})"
    if len({cell.number for cell, _ in found}) == len(found):
        return whole, ""
    # The events do not cover a decision to run a cell once more that looked at the records.
    return whole.assuming(RUN_AGAIN), ""


def _structure(cell: Cell) -> tuple[str, ...]:
    """Return the values of a cell that are no numbers: cells that agree in them mostly share a program."""
    return tuple(_plain(value) if not isinstance(value, int | float) else "" for value in cell.values.values())


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _where(done: Swept) -> str:
    if done.private_end:
        cells = ", ".join(map(str, done.private_end[:10]))
        more = " and more" if len(done.private_end) > 10 else ""
        return (
            f"saved    {done.folder / CONFIDENTIAL / RESULTS} says why cells {cells}{more} released nothing. "
            f"It may depend on the records: keep {done.folder} to yourself."
        )
    left = [row for row in done.rows if row["status"] in ("waiting", "stopped", "lost")]
    goes_on = f"; the rest goes on with: dpmcmc sweep --resume {done.folder}" if left else ""
    return f"saved    {done.folder / sweep_page.FILE}{goes_on}"
