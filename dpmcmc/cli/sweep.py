"""``dpmcmc sweep GRID.yaml``: every config of a grid by ``dpmcmc run``, in one folder with one table and one page.

    configs/0001/, configs/0002/, ...   run folders: ``dpmcmc verify`` and all else take each
    results.csv, report.html            a row for each config, and a page: public facts and released values alone
    confidential/0001.yaml, 0001.txt    what a config is, and why it has no result, which may depend on the records

Every config is planned before anything is run, so one that is impossible refuses the whole sweep. A worker then runs a
config by the function of ``dpmcmc run``: it reserves, resumes and refuses as one run does. The same command in the same
folder leaves alone what has ended, and goes on with what was stopped.

**Secrets.** A worker is given paths and answers with a status. It reads records by the path in the config, takes keys
from its own system, and writes the run folder, which every worker must see under one path. Whether a config fails may
depend on the records. A sweep with such a config has neither table nor page, and says so to the data holder alone.

**Cost.** Configs that are published together cost their composition, not the largest of them. A person may be in the
data of every config, whatever the configs name as their data, so all configs of the grid are composed.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dpmcmc import config as config_room
from dpmcmc.cli import run as run_room
from dpmcmc.cli.interrupt import STOPPED
from dpmcmc.cli.place import default_folder
from dpmcmc.cli.refusals import CommandError, exit_code
from dpmcmc.config import grid as grids
from dpmcmc.config.file import foreign_modules
from dpmcmc.config.grid import Grid, SweptConfig
from dpmcmc.engine.results_table import Row, alone, csv_of
from dpmcmc.engine.tasks import Lost, outcomes
from dpmcmc.engine.workers import connected, is_cluster
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee, composed
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.privacy.ledger import Ledger, OverBudget
from dpmcmc.report import sweep_page
from dpmcmc.storage.files import read_table
from dpmcmc.storage.released_files import CHECKPOINT, CONFIDENTIAL, CONFIG, KEY, PRIVACY, RESULTS
from dpmcmc.storage.run_folder import RunFolder, day_of, today
from dpmcmc.storage.surroundings import checkpoint_around

#: Scores of a run's ``metrics.json`` that the table has.
MEASURES = ("accuracy", "rmse", "log_predictive_density", "expected_calibration_error", "ess", "rhat")
#: Seconds that the scheduler of ``--on`` may take to answer.
_ANSWER = 10.0


@dataclass(frozen=True)
class Swept:
    """Outcome of a sweep.

    Attributes:
        folder: of the sweep.
        rows: one for each config, of public facts and released values; none where a config failed.
        together: guarantee of all configs; None where none is proved.
        why: why there is none.
    """

    folder: Path
    rows: list[Row]
    together: Guarantee | None
    why: str

    @property
    def complete(self) -> bool:
        """Whether every config has released its draws, or withheld them for want of a guarantee."""
        return bool(self.rows) and all(row["status"] in ("released", "withheld") for row in self.rows)

    def to_json(self) -> dict[str, object]:
        """Return the outcome as JSON."""
        whole = self.together
        stated = whole and {"epsilon": whole.epsilon, "delta": whole.delta, "adjacency": whole.adjacency}
        return {"folder": str(self.folder), "configs": self.rows, "together": stated}


@contextlib.contextmanager
def executor_of(url: str) -> Iterator[Executor]:
    """Yield an executor of the workers of the Dask scheduler at ``dask://HOST:PORT``."""
    if not is_cluster(url):
        raise CommandError(f"--on: {url!r} is not dask://HOST:PORT or tls://HOST:PORT of a Dask scheduler.")
    with connected(url, "--on", _ANSWER) as client:
        if not client.nthreads():
            raise CommandError(f"--on: {url} has no worker; start some with dask worker.")
        yield client.get_executor(pure=False)


def sweep(
    grid: str | Path,
    *,
    overrides: list[str] | None = None,
    out: str | Path | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    allow_code: Collection[str] = (),
) -> Swept:
    """Run every config of a grid, as ``dpmcmc sweep`` does; each is a run of its own, charged by itself.

    Args:
        grid: YAML file, a config with a section ``sweep``.
        overrides: ``a.b=value`` strings, applied to the whole grid.
        out: folder of the sweep; a new one below ``runs`` by default. A sweep that was stopped goes on in its folder.
        workers: processes of one thread each; 1: this process.
        executor: carries out the configs in place of own processes, for example a Dask client's ``get_executor()``.
            Its workers see the folder and the data under the same paths; nothing of the records is sent.
        allow_code: modules outside this library that a grid in a run folder may name.

    Returns:
        :class:`~dpmcmc.cli.sweep.Swept`: folder, a row for each config, and the guarantee of all together.

    Raises:
        InputError: a value that makes no config; another sweep's folder, or one in use; a plan that is refused, with
            the config's values; a ledger without room for all configs.
    """
    loaded = grids.load(grid, overrides, allow_code=allow_code)
    try:
        return carry_out(loaded, out, allow_code, workers=workers, executor=executor)
    except CommandError as error:
        raise InputError(str(error)) from None


class Task(NamedTuple):
    """All that a worker is given: a config's file, the folder of its run, and modules that it may import."""

    config: Path
    folder: Path
    allow_code: tuple[str, ...]

    @property
    def reason(self) -> Path:
        """Confidential file that says why the config has no result."""
        return self.config.with_suffix(".txt")


@dataclass(frozen=True)
class _Run:
    """A config of the sweep, its plan, and what a worker is given."""

    swept: SweptConfig
    plan: Plan
    task: Task

    def cost(self) -> Guarantee | None:
        """Return the guarantee of the run."""
        return self.plan.guarantee if config_room.is_secret(self.swept.config) else None

    def row(self, status: str, cost: Guarantee | None) -> Row:
        """Return the config's row of the table."""
        said = read_table(self.task.folder / "metrics.json") if status == "released" else {}
        scores = {name: said.get(name) for name in MEASURES}
        return {
            "config": self.swept.number,
            **{key: grids.text_of(value) for key, value in self.swept.values.items()},
            "repeat": self.swept.repeat,
            "status": status,
            "epsilon": None if cost is None else round_up(cost.epsilon),
            "delta": None if cost is None else repr(cost.delta),
            "usable_for": " and ".join(said.get("usable_for") or []),
            **{name: one["posterior_predictive"] if isinstance(one, dict) else one for name, one in scores.items()},
        }


def carry_out(
    grid: Grid,
    out: str | Path | None,
    allow_code: Collection[str],
    tell: Callable[[str], object] = lambda line: None,
    **workers: Any,
) -> Swept:
    """Run the configs of a grid that have not ended, and write the table and the page.

    Args:
        grid: configs.
        out, allow_code: as of :func:`sweep`.
        tell: takes the lines for a terminal.
        workers: as of :func:`~dpmcmc.engine.tasks.outcomes`.

    Raises:
        CommandError, InputError: as :func:`sweep`; then nothing is charged.
        KeyboardInterrupt: stopped; the table says how far each config has come.
    """
    folder = (default_folder(grid.name) if out is None else Path(out)).absolute()
    runs = _plan_configs(grid, folder, allow_code)
    texts = {run.task.config: config_room.dump(run.swept.config, folder / CONFIDENTIAL) for run in runs}
    _check_folder(folder, texts)
    _check_ledgers(runs)
    tell(f"sweep    {grid.name}: {len(runs)} configs over {', '.join(grid.keys) or 'repeats'}, in {folder}")
    tell(f"privacy  {sweep_page.cost(*together(runs, [run.cost() for run in runs]))}")
    with alone(folder / CONFIDENTIAL):
        os.chmod(folder / CONFIDENTIAL, 0o700)
        begun = [path for path in texts if path.exists()]
        released = RunFolder(folder, day_of(begun[0]) if begun else today())
        for path in texts.keys() - begun:
            released.write(f"{CONFIDENTIAL}/{path.name}", texts[path])
        names = {run.task: str(run.swept) for run in runs}
        statuses = {task: status_of(task.folder) for task in names}
        try:
            for task, end in outcomes(run_config, [task for task in names if statuses[task] is None], **workers):
                statuses[task] = None if isinstance(end, Lost) else end
                why = f"; why is in {task.reason}" if task.reason.exists() else ""
                tell(f"{names[task]}: {statuses[task] or 'its worker died'}{why}")
        finally:
            done = _publish(grid, runs, statuses, released)
            tell(_last_line(done))
    return done


def _last_line(done: Swept) -> str:
    """Return what is said at the end."""
    if not done.rows:
        where = done.folder / CONFIDENTIAL
        return f"failed   why is in {where}. It may depend on the records: keep {done.folder} to yourself."
    goes_on = "" if done.complete else f"; the same command with --out {done.folder} runs the rest"
    return f"saved    {done.folder / sweep_page.FILE}: {sweep_page.count(done.rows)}{goes_on}"


def _plan_configs(grid: Grid, folder: Path, allow_code: Collection[str]) -> list[_Run]:
    """Return each config with its plan, which the repeats of a config share."""
    runs: list[_Run] = []
    for swept in grid.configs:
        plan = _plan(swept) if swept.repeat == 1 else runs[-1].plan
        name = f"{swept.number:04d}"
        allowed = (*allow_code, *foreign_modules(swept.config))
        task = Task(folder / CONFIDENTIAL / f"{name}.yaml", folder / "configs" / name, allowed)
        runs.append(_Run(swept, plan, task))
    return runs


def _plan(swept: SweptConfig) -> Plan:
    try:
        with config_room.run_device(swept.config):
            return config_room.make_plan(swept.config)
    except InputError as error:
        raise CommandError(f"{str(error).removesuffix('.')}; this refuses {swept}, and nothing was run.") from None


def _check_folder(folder: Path, texts: dict[Path, str]) -> None:
    """Refuse a folder that holds something else than this sweep."""
    if checkpoint_around(folder) is not None:
        raise CommandError(f"--out: {folder} lies in a checkpoint, which holds keys of a run; give another folder.")
    begun = sorted((folder / CONFIDENTIAL).glob("*.yaml"))
    for path in begun:
        if path.read_text() != texts.get(path):
            raise CommandError(f"--out: {folder} holds another sweep, as {path} shows; give its grid, or a new folder.")
    if not begun and folder.is_dir() and {path.name for path in folder.iterdir()} - {CONFIDENTIAL}:
        raise CommandError(f"--out: {folder} holds something else than a sweep; give a folder that is new or empty.")


def _check_ledgers(runs: Sequence[_Run]) -> None:
    """Refuse configs that their ledger cannot charge, or has no room for."""
    charged: dict[str, list[Guarantee]] = {}
    for run in runs:
        ledger, cost = run.swept.config.ledger, run.cost()
        if ledger is None or (run.task.folder / CONFIG).exists():
            continue
        if cost is None:
            raise CommandError(
                f"privacy.ledger: {run.swept} has no guarantee (privacy null, or known noise), so it cannot be "
                "charged; take the ledger out, or make the config private."
            )
        charged.setdefault(ledger, []).append(cost)
    for ledger, costs in charged.items():
        with contextlib.suppress(UnsupportedCombination):  # then each run asks by itself
            if not Ledger(ledger).fits(composed(costs)):
                raise CommandError(
                    f"privacy.ledger: {ledger} has no room for the {len(costs)} configs that are to be charged, and "
                    "nothing was run; sweep over fewer values, or ask for a smaller privacy.epsilon."
                )


def together(runs: Sequence[_Run], costs: Sequence[Guarantee | None]) -> tuple[Guarantee | None, str]:
    """Return (guarantee of whoever sees all configs of these costs, or None; why there is none)."""
    private = [cost for cost in costs if cost is not None]
    if len(private) < len(costs):
        return None, f"{len(costs) - len(private)} of {len(costs)} configs have no guarantee"
    if len({run.plan.unit for run in runs}) > 1:
        return None, "configs protect different units, records and owners"
    try:
        return composed(private), ""
    except UnsupportedCombination as error:
        return None, f"nothing covers all configs ({str(error).removesuffix('.')})"


def _publish(grid: Grid, runs: Sequence[_Run], statuses: dict[Task, str | None], released: RunFolder) -> Swept:
    """Write the table and the page, or remove them where a config failed."""
    folder = released.folder
    ended = [statuses[run.task] or status_of(run.task.folder) or "unfinished" for run in runs]
    costs = [run.cost() for run in runs]
    failed = "failed" in ended
    rows = [] if failed else [run.row(end, cost) for run, end, cost in zip(runs, ended, costs, strict=True)]
    done = Swept(folder, rows, *together(runs, costs))
    if failed:
        for name in (RESULTS, sweep_page.FILE):
            (folder / name).unlink(missing_ok=True)
    else:
        released.write(RESULTS, csv_of(tuple(rows[0]), rows))
        released.write(sweep_page.FILE, sweep_page.page(grid.name, released.day, rows, done.together, done.why))
    released.date(*(path for path in (folder / "configs", folder / CONFIDENTIAL, folder) if path.exists()))
    return done


#: JAX's settings and a process's output are not of one thread, so a process runs one config at a time.
_ONE_AT_A_TIME = threading.Lock()


def run_config(task: Task) -> str:
    """Run a config as ``dpmcmc run`` does, or go on with it, in a worker; return its status.

    The links of an executor may be open to others, and a refusal may name rows: why there is no result stays in a file.
    """
    said = io.StringIO()
    refused: list[OverBudget] = []

    def run() -> None:
        begun = (task.folder / CONFIG).exists()
        try:
            folder = str(task.folder)
            place = {"resume": folder} if begun else {"config": str(task.config), "out": folder}
            run_room.run(**place, allow_code=task.allow_code, quiet=True, pictures=False)
        except OverBudget as error:
            refused.append(error)
            raise

    with _ONE_AT_A_TIME, contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = exit_code(run)
    if code == STOPPED:
        raise KeyboardInterrupt
    status = status_of(task.folder) or ("refused" if refused else "failed")
    task.reason.unlink(missing_ok=True)
    if code:
        task.reason.write_text(said.getvalue())
    return status


def status_of(folder: Path) -> str | None:
    """Return how the run in a folder has ended, as the files that its ``privacy.json`` lists tell.

    =============  ====================================================================================
    ``released``   draws that may be published
    ``withheld``   no guarantee covers the draws, so they lie in ``confidential/``
    ``diverged``   a chain left the range of floats, at a step that may be published
    ``failed``     no draw was made, for a reason that depends on the records and may not be published
    None           it has not ended, or its ledger does not know: then its checkpoint is still there
    =============  ====================================================================================
    """
    if (folder / CONFIDENTIAL / CHECKPOINT).is_dir():
        return None
    said = read_table(folder / PRIVACY)
    files = said.get(KEY)
    if not isinstance(files, dict):
        return None
    if "draws.nc" in files:
        return "released"
    if "metrics.json" not in files:
        return "failed"
    return "withheld" if said.get("epsilon") is None else "diverged"
