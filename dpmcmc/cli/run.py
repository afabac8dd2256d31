"""``dpmcmc run CONFIG``: plan, run, and write a folder that can be published.

Released: everything in the run folder except ``confidential/``, which only its owner can read and which may
live elsewhere (``--confidential DIR``). A run without a guarantee, on records that are not public, writes all that it
computes from them there. ``public_facts.py`` makes all else that is said, named
and dated.

The budget is reserved first, where the config names a ledger; then records are read. A run that was stopped, however
and whenever, goes on with ``--resume DIR``.

With ``--distributed`` several processes run the config together (``processes.py``). Process 0 alone writes and prints;
it keeps no checkpoint and charges no ledger.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpmcmc import config as config_room
from dpmcmc import data as data_room
from dpmcmc.cli import faults
from dpmcmc.cli.options import AllowCode, Overrides
from dpmcmc.cli.out_folder import default_folder, free_folder
from dpmcmc.cli.per_record import run_and_account
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import Config, own_code
from dpmcmc.config import file as config_file
from dpmcmc.data import DataSet
from dpmcmc.diagnostics import reference
from dpmcmc.engine.blocks import DivergedError
from dpmcmc.engine.charged_again import with_charged_again
from dpmcmc.engine.checks import check_on_disk
from dpmcmc.engine.life import sample
from dpmcmc.engine.processes import connect
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import Result, draws_content, guarantee_json, privacy_json, write_json
from dpmcmc.errors import InputError
from dpmcmc.inference import predictive
from dpmcmc.mechanisms import DrawError, MechanismPlan, Release, release
from dpmcmc.planning.plan import Plan, check_fit
from dpmcmc.planning.verdict import NO_DRAWS
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.report import console as run_text
from dpmcmc.report.public_facts import PublicFacts
from dpmcmc.storage.checkpoint import REMOVED, Checkpoint, CheckpointError
from dpmcmc.storage.compiled_programs import keep_compiled_programs
from dpmcmc.storage.row_blocks import on_disk
from dpmcmc.storage.run_folder import RunFolder, day_of, today
from dpmcmc.targets import TargetError, check

app = typer.Typer(add_completion=False)


class Options(NamedTuple):
    """How a run was asked for; see :func:`run`."""

    config: str | None
    overrides: list[str]
    allow_code: list[str]
    out: str | None
    resume: str | None
    confidential: str | None


@app.command()
def run(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A YAML file, or the name of a shipped config such as adult; not needed with --resume.",
        ),
    ] = None,
    overrides: Overrides = None,
    allow_code: AllowCode = None,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Run folder; runs/NAME-DAY-RANDOM by default.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="DIR", help="Go on with the run in this folder, which was stopped.")
    ] = None,
    confidential: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where to keep what must not be published.")
    ] = None,
    per_record: Annotated[
        bool, typer.Option("--per-record", help="Account for every training record as well; confidential.")
    ] = False,
    every: Annotated[
        int | None, typer.Option(metavar="K", help="With --per-record: compute all norms every K steps; 1 by default.")
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Be one of several processes that share the config's mesh.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the folder of the draws.")] = False,
) -> None:
    """Run a configuration, and write a folder that can be published."""
    asked = Options(config, overrides or [], allow_code or [], out, resume, confidential)
    if per_record:
        return _run_per_record(asked, 1 if every is None else every, distributed or quiet)
    if every is not None:
        raise CommandError("--every: belongs to --per-record; add that, or leave it out.")
    if distributed:
        _join(asked)
    console = Console(quiet=quiet, highlight=False, soft_wrap=True, markup=False)
    keep_compiled_programs()
    if distributed and jax.process_index() > 0:
        return _take_part(asked)
    loaded, place = _new(asked) if resume is None else _resumed(asked)
    mesh = _mesh(loaded)
    started = time.perf_counter()
    plan = config_room.make_plan(loaded)
    calibrate_seconds = time.perf_counter() - started
    place.make(loaded)
    try:
        folder = _carry_out(loaded, plan, place, mesh, calibrate_seconds, console)
    finally:
        place.checkpoint.close()
    if quiet:
        print(folder)


def _run_per_record(asked: Options, every: int, more: bool) -> None:
    """A run with an account of every record, which keeps no checkpoint and is one process's."""
    if asked.config is None or asked.resume is not None or asked.confidential is not None or more:
        raise CommandError(
            "--per-record: needs CONFIG, and takes no --resume, --confidential, --distributed or --quiet; leave those "
            "out."
        )
    config = config_file.load(asked.config, asked.overrides, allow_code=asked.allow_code)
    run_and_account(asked.config, config, asked.out, every)


def _join(asked: Options) -> None:
    """Become one of several processes.

    Raises:
        CommandError: there is no saying which, or they cannot be reached.
    """
    if asked.resume is not None:
        raise CommandError("--distributed: keeps no checkpoint, so there is nothing to resume; start the run anew.")
    try:
        connect()
    except (ValueError, RuntimeError) as error:
        raise CommandError(f"--{str(error).removeprefix('--')}.", code=1) from None


def _mesh(config: Config) -> Mesh | None:
    """The config's devices.

    Raises:
        CommandError: what several processes cannot do.
    """
    if jax.process_count() > 1:
        if config.run is None or config.run.mesh is None:
            raise CommandError(
                "run.mesh: several processes need to know how their devices share the work; give it, for example by "
                "--set run.mesh.data=2."
            )
        if config.privacy is not None and config.privacy.ledger is not None:
            raise CommandError(
                "privacy.ledger: a run of several processes charges no ledger; leave it out and charge the ledger "
                "yourself, or run in one process."
            )
    return config_room.make_mesh(config)


def _take_part(asked: Options) -> None:
    """Compute what process 0 writes and prints."""
    config = config_file.load(asked.config or "", asked.overrides, allow_code=asked.allow_code)
    mesh, plan = _mesh(config), config_room.make_plan(config)
    assert isinstance(plan, Plan)  # no mechanism takes a mesh
    with _together():
        try:
            sample(plan, data_room.load(config.data).train, key=_seed(config), mesh=mesh)
        except DivergedError:
            raise CommandError("sampler.step_size: the chain diverged; process 0 says where.", code=1) from None


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Say in a sentence that another process is gone."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        raise CommandError(
            f"--distributed: the processes have lost each other, and nothing was released ({str(error).splitlines()[0]}"
            "); see what the first of them to fail says, and start the run anew.",
            code=1,
        ) from None


def _seed(config: Config) -> int | None:
    return None if config.privacy is None else config.privacy.insecure_noise_seed


def _carry_out(
    config: Config,
    plan: Plan | MechanismPlan,
    place: Place,
    mesh: Mesh | None,
    calibrate_seconds: float,
    console: Console,
) -> Path:
    """Reserve, read, run, save, settle; returns the folder that the draws are in."""
    try:
        held = _reservation(config, plan, place.checkpoint)
        try:
            data = data_room.load(config.data)
            run = ConfiguredRun(
                config, plan, data, place.folder, place.confidential, place.checkpoint, held, mesh, place.day
            )
            run.check()
        except BaseException:
            if held is not None and not held.begun:
                held.settle()
            raise
    except Exception:
        place.clear()
        raise
    try:
        run.print_plan(console)
        run.open()
        return _sample_and_save(run, place, calibrate_seconds, console)
    finally:
        place.date()


def _sample_and_save(run: ConfiguredRun, place: Place, calibrate_seconds: float, console: Console) -> Path:
    """Run, save and settle; a failure is one sentence of public facts, or of what the guarantee covers."""
    try:
        result = run.sample(console)
        folder = run.save(result, calibrate_seconds, console)
    except DivergedError as error:
        run.save_divergence(error)
        run.open()  # a run that went on elsewhere has spent more than was planned
        run.finish()
        if not run.facts.publishable(run.facts.planned):
            raise CommandError(
                f"sampler.step_size: the chain diverged, at the step that {run.confidential / 'metrics.json'} says; "
                "lower sampler.step_size.",
                code=1,
            ) from None
        raise CommandError(f"sampler.step_size: {error}", code=1) from None
    except DrawError as error:
        # Why, and that it happened, depend on the records: for the data holder alone.
        write_json(run.confidential / "failure.json", {"draw": str(error)}, mode=0o600)
        run.open()
        run.finish()
        raise CommandError(
            f"mechanism: no draw was made and nothing was released; why is in {run.confidential / 'failure.json'}. "
            f"The failure depends on the records: keep {run.folder} to yourself.",
            code=1,
        ) from None
    except KeyboardInterrupt:
        if jax.process_count() > 1:
            raise CommandError("stopped by the user; nothing was released, so start the run anew", code=130) from None
        raise CommandError(
            f"stopped by the user; what it was to spend stays spent, and it goes on with: {place.command}", code=130
        ) from None
    except OSError as error:
        raise CommandError(
            f"{error.filename or run.folder}: {error.strerror or error}; free space, then go on with: {place.command}"
        ) from None
    run.finish()
    return folder


@dataclass
class Place:
    """Where a run writes, and what it needs to go on there.

    Attributes:
        folder: of what is released, with ``config.yaml`` from the start.
        confidential: of what is not.
        modules: outside this library, that ``--resume`` has to be allowed.
        resumed: whether the run was begun before.
        day: on which it was begun.
    """

    folder: Path
    confidential: Path
    modules: tuple[str, ...] = ()
    resumed: bool = False
    day: datetime.date = field(default_factory=today)

    @property
    def run_folder(self) -> RunFolder:
        """For what is released."""
        return RunFolder(self.folder, self.day)

    def make(self, config: Config) -> None:
        """Create the folders, the config in them, and the checkpoint."""
        try:
            self.confidential.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.run_folder.make()
            os.chmod(self.confidential, 0o700)
            faults.keep_in(self.confidential)
            self.checkpoint = Checkpoint(self.confidential / _CHECKPOINT)
            if self.resumed != (self.folder / "config.yaml").exists():  # another process was faster
                self.checkpoint.close()
                raise CommandError(f"{self._option}: another process has taken {self.folder}; give another folder.")
            # Last, so that what holds a config can be resumed.
            self.run_folder.write("config.yaml", config_room.dump(config, self.folder))
            for folder in (self.folder, self.confidential):  # left by a write that was killed
                for left in (path for name in _WRITTEN for path in folder.glob(f".{name}.*")):
                    left.unlink()
                for left in (folder / "figures").glob(".*.png"):
                    left.unlink()
            self.date()
        except OSError as error:
            where = error.filename or self.folder
            raise CommandError(
                f"{self._option}: {where} cannot be used ({error.strerror}); give another folder."
            ) from None
        except CheckpointError as error:
            raise CommandError(f"{self._option}: {error}.") from None

    @property
    def _option(self) -> str:
        return "--resume" if self.resumed else "--out"

    def date(self) -> None:
        """Give all that others may see the one time."""
        self.run_folder.date_all(self.confidential)

    def clear(self) -> None:
        """Take back what :meth:`make` made, where no run has begun in it."""
        if self.resumed or self.checkpoint.begun:
            return
        self.checkpoint.remove()
        (self.folder / "config.yaml").unlink()
        for folder in (self.confidential, self.folder):
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    @property
    def command(self) -> str:
        """Command that goes on with the run."""
        elsewhere = "" if self.confidential == self.folder / _CONFIDENTIAL else f" --confidential {self.confidential}"
        allowed = "".join(f" --allow-code {module}" for module in self.modules)
        return f"dpmcmc run --resume {self.folder}{elsewhere}{allowed}"


_CONFIDENTIAL, _CHECKPOINT = "confidential", "checkpoint"
_WRITTEN = ("config.yaml", "plan.json", "privacy.json", "metrics.json", "draws.nc", "diagnostics.json", "failure.json")


def _new(asked: Options) -> tuple[Config, Place]:
    """A config, and folders that are free."""
    if asked.config is None:
        raise CommandError("config: give a YAML file, for example configs/adult.yaml, or --resume DIR.")
    config = config_file.load(asked.config, asked.overrides, allow_code=asked.allow_code)
    folder = free_folder("--out", default_folder(config.name) if asked.out is None else asked.out)
    confidential = folder / _CONFIDENTIAL
    if asked.confidential is not None:
        confidential = free_folder("--confidential", asked.confidential)
        if confidential.resolve().is_relative_to(folder.resolve()):
            raise CommandError(
                f"--confidential: {confidential} lies in the run folder, which is to be published; give one outside it."
            )
    return config, Place(folder, confidential, _own_modules(config))


def _resumed(asked: Options) -> tuple[Config, Place]:
    """The config of a run that was stopped, and its folders.

    Raises:
        CommandError: there is nothing to go on with, or another config is given.
    """
    if asked.out is not None or (asked.overrides and not asked.config):
        raise CommandError("--resume: goes on in its own folder with its own config; leave --out and --set out.")
    folder = Path(asked.resume or "")
    confidential = folder / _CONFIDENTIAL if asked.confidential is None else Path(asked.confidential)
    if not (folder / "config.yaml").is_file():
        raise CommandError(f"--resume: {folder} holds no config.yaml, so no run was begun there; start a new one.")
    done = (folder / "metrics.json").exists()
    shutil.rmtree(confidential / (_CHECKPOINT + REMOVED), ignore_errors=True)
    if not (confidential / _CHECKPOINT).is_dir():
        raise CommandError(
            f"--resume: the run in {folder} is done; there is nothing to go on with."
            if done
            else f"--resume: {confidential} holds no checkpoint; name the run's --confidential folder, or start anew."
        )
    config = config_file.load(folder / "config.yaml", allow_code=asked.allow_code, resumed=True)
    if asked.config is not None:
        same = config_file.load(asked.config, asked.overrides, allow_code=asked.allow_code)
        given = config_room.dump(same, folder)
        begun = config_room.dump(config, folder)
        if given != begun:
            changed = sorted(set(given.splitlines()) ^ set(begun.splitlines()))
            raise CommandError(
                f"--resume: the run in {folder} was begun with another config ({', '.join(s.strip() for s in changed)}"
                "); leave CONFIG out, or start a new run."
            )
    return config, Place(folder, confidential, _own_modules(config), True, day_of(folder / "config.yaml"))


def _own_modules(config: Config) -> tuple[str, ...]:
    """Modules outside this library that a config names, each once."""
    names = config_room.modules_of_ones_own(config)
    return tuple(dict.fromkeys(module for _, module in own_code.foreign(names, ())))


def _reservation(config: Config, plan: Plan | MechanismPlan, checkpoint: Checkpoint) -> Reservation | None:
    """The run's place in the ledger that its config names."""
    if config.privacy is None or config.privacy.ledger is None:
        return None
    guarantee = plan.guarantee if config_room.is_secret(config) else None
    return Reservation(config.privacy.ledger, guarantee, config.name, checkpoint, plan.num_records)


@dataclass
class ConfiguredRun:
    """One run of one config: its plan, its data, its folders, and the budget it holds."""

    config: Config
    plan: Plan | MechanismPlan
    data: DataSet
    folder: Path
    confidential: Path
    checkpoint: Checkpoint
    held: Reservation | None = None
    mesh: Mesh | None = None
    day: datetime.date = field(default_factory=today)

    @functools.cached_property
    def facts(self) -> PublicFacts:
        """Public facts of the run, known once the target has been found to fit the records."""
        return PublicFacts.of(self.config.name, self.plan, config_room.is_secret(self.config), self.data, self.day)

    @property
    def trace(self) -> Plan | None:
        """Plan of the sampler whose iterates may be published; None for a one-shot mechanism."""
        return self.plan.run if isinstance(self.plan, MechanismPlan) else self.plan

    @property
    def target(self) -> Any:
        """The plan's target, bound to the shapes of the records."""
        return self.facts.target

    @property
    def released(self) -> RunFolder:
        """For what may be published."""
        return RunFolder(self.folder, self.day)

    def run_folder(self, guarantee: Guarantee | None) -> RunFolder:
        """For draws with this guarantee, and what is computed from them."""
        if self.facts.publishable(guarantee):
            return self.released
        return RunFolder(self.confidential, self.day, owner_only=True)

    def check(self) -> None:
        """Refuse records that the target is not for or the ledger is not of, and a sampler that does not fit.

        Raises:
            CommandError, DataError: one sentence.
        """
        try:
            self._check_on_disk()
            check(self.plan.target, self.data.train)
            predictive.check(self.target, self.data.train)
            if self.trace is not None:
                check_fit(self.target, self.trace.sampler)
        except TargetError as error:
            raise CommandError(f"target: {error}.") from None
        except InputError as error:
            raise data_room.DataError(f"data.{error}.") from None
        try:  # before a file of the run that was stopped is written anew
            self.checkpoint.check(self.plan)
        except CheckpointError as error:
            raise CommandError(f"--resume: {error}.") from None
        if self.held is not None:
            self.held.identify(self.data.train)

    @property
    def on_disk(self) -> bool:
        """Whether only the rows of batches are read, and what would read all of them is not computed."""
        return on_disk(self.data.train)

    def _check_on_disk(self) -> None:
        """Refuse what needs all records at once of records that lie on disk.

        Raises:
            CommandError: a one-shot mechanism, full batches, a second batch.
        """
        if not self.on_disk:
            return
        mechanism = self.config.mechanism
        if mechanism is not None:
            raise CommandError(
                f"mechanism: {mechanism.name} computes from all records at once, and those of a folder are read batch "
                "by batch; store records that fit in memory in one .npz file, or use a sampler alone."
            )
        assert self.trace is not None
        try:
            check_on_disk(self.trace, self.data.train)
        except InputError as error:
            section = "sampler." if str(error).startswith("own_batch:") else ""
            raise CommandError(f"{section}{error}.") from None

    def finish(self) -> None:
        """Settle and erase the keys; everything that the run releases has been written."""
        if self.held is not None:
            self.held.begun = True
            with warnings.catch_warnings(record=True) as said:
                self.held.settle()
            for one in said:
                print(f"warning: {one.message}", file=sys.stderr)
        self.checkpoint.remove()

    def print_plan(self, console: Console) -> None:
        """Say what will be done."""
        run_text.print_plan(self.facts, self.mesh, console)

    def open(self) -> None:
        """State plan and guarantee before anything is released; privacy.json holds a run's cost from the start."""
        try:
            self.released.json("plan.json", self.plan.to_json(self.facts.secret))
            guarantee = self.facts.planned
            self._write_privacy(None if guarantee is None else with_charged_again(guarantee, self.checkpoint))
        except OSError as error:
            raise CommandError(
                f"--out: {error.filename or self.folder} cannot be written ({error.strerror}); give another folder."
            ) from None

    def _write_privacy(self, guarantee: Guarantee | None) -> None:
        if self.trace is None:
            body = guarantee_json(guarantee) | {"num_records": self.plan.num_records, "data": self.facts.data_json()}
        else:
            body = privacy_json(self.trace, guarantee, self.facts.data_json())
        if isinstance(self.plan, MechanismPlan):
            body |= {"mechanism": repr(self.plan.mechanism), "settings": self.plan.settings}
            body["charged_draws"] = self.plan.charged_draws
        if self.held is not None:
            body["ledger"] = self.held.receipt.to_json()
        self.released.json("privacy.json", body)

    def sample(self, console: Console) -> Result | Release:
        """Run the plan, a sampler's with a progress bar kept outside the compiled code."""
        seed, alone = _seed(self.config), jax.process_count() == 1
        if isinstance(self.plan, MechanismPlan):
            with console.status("drawing"):
                return release(self.plan, self.data.train, key=seed, checkpoint=self.checkpoint, ledger=self.held)
        columns = (
            TextColumn("sampling    "),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
        )
        # A log file or a pipe wants no bar, nor the blank line it would leave.
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar, _together():
            task = bar.add_task("", total=self.plan.steps)
            return sample(
                self.plan,
                self.data.train,
                key=seed,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
                checkpoint=self.checkpoint if alone else None,
                ledger=self.held,
                mesh=self.mesh,
            )

    def save(self, result: Result | Release, calibrate_seconds: float, console: Console) -> Path:
        """Write draws, metrics and figures, then what is confidential, and print what is released.

        Returns the folder of the draws: the confidential one where these may not be published.
        """
        guarantee = result.guarantee
        run_folder, publishable = self.run_folder(guarantee), self.facts.publishable(guarantee)
        # A run that went on elsewhere has spent more than was planned.
        self._write_privacy(guarantee)
        info = result.info if isinstance(result, Result) else None
        run_folder.write("draws.nc", draws_content(result.draws, info, guarantee))
        metrics = self.released_facts()
        metrics |= result.diagnostics | result.verdict.to_json()
        metrics |= self._seconds(result, calibrate_seconds)
        self._draw_chains(result)
        flat = result.flat_draws()
        test = self.facts.test
        shown: dict[str, predictive.Prediction] = {}
        if test is not None:
            name = "draws" if guarantee is None else "private draws"
            shown[name] = predictive.predict(self.target, flat, dict(test))
            metrics |= shown[name].to_json()
        run_folder.json("metrics.json", _finite(metrics))
        confidential, fitted = self._confidential(flat)
        # A non-private fit may leave only where the records themselves may.
        if fitted is not None and self.facts.spec.public:
            metrics["non_private"] = fitted.summary
            if fitted.prediction is not None:
                shown[f"non-private ({fitted.name})"] = fitted.prediction
            run_folder.json("metrics.json", _finite(metrics))
        elif fitted is not None:
            confidential["non_private"] = fitted.summary
        confidential["wall_seconds"] = result.seconds if isinstance(result, Release) else result.wall_seconds
        confidential["about"] = "Computed from training records without privacy. Never publish or archive this folder."
        write_json(self.confidential / "diagnostics.json", _finite(confidential), mode=0o600)
        if test is not None:
            self._draw_predictions(result, shown, test["y"])
        if publishable:
            run_text.print_result(self.facts, guarantee, metrics, self.folder, self.confidential, console)
        else:
            self.released.json("metrics.json", _finite(self.released_facts()))
            run_text.print_withheld(self.facts, self.confidential, console)
        return run_folder.folder

    def save_divergence(self, error: DivergedError) -> None:
        """Write at which step a chain left the range of floats, which is as public as its draws."""
        run_folder = self.run_folder(self.facts.planned)
        run_folder.json("metrics.json", {**self.released_facts(), **NO_DRAWS.to_json(), "diverged_at": error.step})
        if run_folder != self.released:
            self.released.json("metrics.json", self.released_facts())

    def _seconds(self, result: Result | Release, calibrate_seconds: float) -> dict[str, Any]:
        """Those that had passed before a record was read; of public records also those of a sampler's run."""
        wall: dict[str, float | None] = {"calibrate": calibrate_seconds}
        if isinstance(result, Release):
            return {"wall_seconds": wall}
        if not self.facts.spec.public:
            return {"wall_seconds": wall | {"compile": None, "run": None}}
        tenths = math.ceil(10 * result.wall_seconds["run"]) / 10
        told = dataclasses.replace(result, wall_seconds=result.wall_seconds | {"run": tenths})
        return {"wall_seconds": wall | told.wall_seconds, "steps_per_second": told.steps_per_second}

    def _draw_chains(self, result: Result | Release) -> None:
        from dpmcmc.report import figures as plots

        guarantee, plan = result.guarantee, self.trace
        run_folder, said = self.run_folder(guarantee), (self.facts.title(guarantee), self.facts.note(guarantee))
        if plan is not None:
            run_folder.figure("traces.png", plots.traces, result.draws, plan.burn_in, plan.thin, *said)
            run_folder.figure("temperature.png", plots.temperature, plan.temperatures, plan.noise_multipliers, *said)
        if guarantee is not None and np.isfinite(guarantee.epsilon):
            run_folder.figure("epsilon_delta.png", plots.epsilon_delta, guarantee, *said)

    def _draw_predictions(
        self, result: Result | Release, shown: dict[str, predictive.Prediction], y: np.ndarray
    ) -> None:
        """Reliability of classifiers, predicted against observed of other targets, on public test labels y."""
        from dpmcmc.report import figures as plots

        guarantee = result.guarantee
        run_folder, said = self.run_folder(guarantee), (self.facts.title(guarantee), self.facts.note(guarantee))
        curves = {k: predictive.reliability(p.probability, y) for k, p in shown.items() if p.probability is not None}
        means = {k: p.mean for k, p in shown.items() if p.mean is not None}
        if curves:
            two = getattr(self.target, "num_classes", None) == 2
            event = "y = 1" if two else "the likeliest class being right"
            run_folder.figure("calibration.png", plots.calibration, curves, event, *said)
        if means:
            run_folder.figure("predictions.png", plots.predictions, means, y, *said)

    def released_facts(self) -> dict[str, Any]:
        """metrics.json before anything is measured."""
        return self.facts.metrics()

    def _confidential(self, flat: Any) -> tuple[dict[str, Any], _Fitted | None]:
        """(diagnostics of records, non-private fit or None).

        Whether they can be computed, and what a library warns of, depends on the records: a failure is written here
        and changes nothing else.
        """
        out: dict[str, Any] = {"train": None}
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                out |= self._scores(flat)
            except Exception as error:  # whatever a target of a user's own raises
                out["failed"] = str(error)
            if self.on_disk:
                return out, None
            try:
                return out, self._fitted(flat)
            except Exception as error:
                out["non_private"] = {"failed": str(error)}
                return out, None

    def _scores(self, flat: Any) -> dict[str, Any]:
        """Return scores of training records, and of held-out ones that are not public."""
        if self.on_disk:
            out: dict[str, Any] = {"train": None, "skipped": _SKIPPED}
        else:
            out = {"train": predictive.predict(self.target, flat, self.data.train).to_json()}
        if self.data.test is not None and not self.data.test_is_public:
            out |= predictive.predict(self.target, flat, self.data.test).to_json()
        return out

    def _fitted(self, flat: Any) -> _Fitted:
        """The non-private fit, how far the draws are from it, and what it predicts."""
        fit = reference.fit(self.target, self.data.train)
        summary: dict[str, Any] = {"method": fit.method, "distance": None}
        if isinstance(fit, reference.Laplace):
            summary["distance"] = reference.distance(fit, flat)
        else:
            summary["reason"] = fit.reason
        prediction = None
        if self.data.test is not None:
            prediction = predictive.predict(self.target, fit.draws(200), self.data.test)
            summary |= prediction.to_json()
        return _Fitted(fit.method.split()[0], summary, prediction)


#: diagnostics.json of records on disk.
_SKIPPED = "Scores of the training records and the non-private fit would read all records, which lie on disk."


@dataclass(frozen=True)
class _Fitted:
    """A non-private fit: its short name, what metrics.json says of it, and its prediction of test rows."""

    name: str
    summary: dict[str, Any]
    prediction: predictive.Prediction | None


def _finite(body: Any) -> Any:
    """JSON has no NaN: what could not be computed is null."""
    if isinstance(body, dict):
        return {k: _finite(v) for k, v in body.items()}
    if isinstance(body, float) and not np.isfinite(body):
        return None
    return body
