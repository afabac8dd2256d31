"""``python -m dpmcmc.run CONFIG``: plan, run, and write a folder that can be published.

Released: everything in the run folder except ``confidential/``, which only its owner can read and which may
live elsewhere (``--confidential DIR``).

The budget is reserved first, where the config names a ledger; then records are read. A run that was stopped, however
and whenever, goes on with ``--resume DIR``.

With ``--distributed`` several processes run the config together (``processes.py``). Process 0 alone writes and prints;
it keeps no checkpoint and charges no ledger.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpmcmc import config as config_room
from dpmcmc import config_file, faults
from dpmcmc import data as data_room
from dpmcmc.atomic import write_atomically
from dpmcmc.cache import keep_compiled_programs
from dpmcmc.checkpoint import REMOVED, Checkpoint, CheckpointError
from dpmcmc.command import CommandError, Parser, command
from dpmcmc.config import Config
from dpmcmc.data import DataSet
from dpmcmc.diagnostics import convergence, predictive, reference
from dpmcmc.engine import DivergedError, check_on_disk, sample
from dpmcmc.errors import InputError
from dpmcmc.mechanisms import DrawError, MechanismPlan, Release, release
from dpmcmc.mesh import sizes
from dpmcmc.planning import Plan, check_fit
from dpmcmc.privacy import Guarantee, round_up
from dpmcmc.processes import connect, leave
from dpmcmc.records_on_disk import on_disk
from dpmcmc.reservation import Reservation
from dpmcmc.result import Result, guarantee_json, privacy_json, write_draws, write_json
from dpmcmc.targets import TargetError, bind, check, record_shapes


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = Parser(prog="python -m dpmcmc.run", description="Run a configuration.")
    out.add_argument("config", nargs="?", help="YAML file, for example configs/adult.yaml; not needed with --resume")
    out.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="override one key")
    out.add_argument("--out", metavar="DIR", help="run folder (default: runs/NAME-TIME)")
    out.add_argument("--resume", metavar="DIR", help="go on with the run in this folder, which was stopped")
    out.add_argument("--confidential", metavar="DIR", help="where to keep what must not be published")
    out.add_argument("--distributed", action="store_true", help="one of several processes that share the config's mesh")
    out.add_argument("--quiet", action="store_true", help="print only where the run was saved")
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point; see :func:`parser`."""
    arguments = parser().parse_args(argv)
    if arguments.distributed:
        _join(arguments)
    console = Console(quiet=arguments.quiet, highlight=False, soft_wrap=True, markup=False)
    keep_compiled_programs()
    if arguments.distributed and jax.process_index() > 0:
        return _take_part(arguments)
    config, place = _new(arguments) if arguments.resume is None else _resumed(arguments)
    mesh = _mesh(config)
    started = time.perf_counter()
    plan = config_room.make_plan(config)
    calibrate_seconds = time.perf_counter() - started
    place.make(config)
    try:
        _carry_out(config, plan, place, mesh, calibrate_seconds, console)
    finally:
        place.checkpoint.close()
    if arguments.quiet:
        print(place.folder)


def _join(arguments: argparse.Namespace) -> None:
    """Become one of several processes.

    Raises:
        CommandError: there is no saying which, or they cannot be reached.
    """
    if arguments.resume is not None:
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


def _take_part(arguments: argparse.Namespace) -> None:
    """Compute what process 0 writes and prints."""
    config = config_file.load(arguments.config or "", arguments.set)
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
) -> None:
    """Reserve, read, run, save, settle."""
    try:
        held = _reservation(config, plan, place.checkpoint)
        try:
            data = data_room.load(config.data)
            run = Run(config, plan, data, place.folder, place.confidential, place.checkpoint, held, mesh)
            run.check()
        except BaseException:
            if held is not None and not held.begun:
                held.settle()
            raise
    except Exception:
        place.clear()
        raise
    run.print_plan(console)
    run.open()
    try:
        result = run.sample(console)
        run.save(result, calibrate_seconds, console)
    except DivergedError as error:
        write_json(run.folder / "metrics.json", {**run.released_facts(), "diverged_at": error.step})
        run.open()  # a run that went on elsewhere has spent more than was planned
        run.finish()
        raise CommandError(f"sampler.step_size: {error}", code=1) from None
    except DrawError as error:
        # Why, and that it happened, depend on the records: for the data holder alone.
        write_json(run.confidential / "failure.json", {"draw": str(error)}, mode=0o600)
        run.open()
        run.finish()
        raise CommandError(
            f"mechanism: no draw was made and nothing was released; why is in {run.confidential / 'failure.json'}. "
            f"That it failed depends on the records: keep {run.folder} to yourself.",
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


@dataclass
class Place:
    """Where a run writes, and what it needs to go on there.

    Attributes:
        folder: of what is released, with ``config.yaml`` from the start.
        confidential: of what is not.
        resumed: whether the run was begun before.
    """

    folder: Path
    confidential: Path
    resumed: bool = False

    def make(self, config: Config) -> None:
        """Create the folders, the config in them, and the checkpoint."""
        try:
            self.confidential.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self.folder / "figures").mkdir(parents=True, exist_ok=True)
            os.chmod(self.confidential, 0o700)
            faults.keep_in(self.confidential)
            self.checkpoint = Checkpoint(self.confidential / _CHECKPOINT)
            if self.resumed != (self.folder / "config.yaml").exists():  # another process was faster
                self.checkpoint.close()
                raise CommandError(f"{self._option}: another process has taken {self.folder}; give another folder.")
            # Last, so that what holds a config can be resumed.
            text = config_room.dump(config, self.folder)
            write_atomically(self.folder / "config.yaml", lambda path: path.write_text(text, encoding="utf-8"))
            for folder in (self.folder, self.confidential):  # of a write that was killed
                for left in (path for name in _WRITTEN for path in folder.glob(f".{name}.*")):
                    left.unlink()
        except OSError as error:
            where = error.filename or self.folder
            raise CommandError(f"--out: {where} cannot be written ({error.strerror}); give another folder.") from None
        except CheckpointError as error:
            raise CommandError(f"{self._option}: {error}.") from None

    @property
    def _option(self) -> str:
        return "--resume" if self.resumed else "--out"

    def clear(self) -> None:
        """Take back what :meth:`make` made, where no run has begun in it."""
        if self.resumed or self.checkpoint.begun:
            return
        self.checkpoint.remove()
        (self.folder / "config.yaml").unlink()
        for folder in (self.confidential, self.folder / "figures", self.folder):
            if folder.exists() and not any(folder.iterdir()):
                folder.rmdir()

    @property
    def command(self) -> str:
        """What goes on with the run."""
        elsewhere = "" if self.confidential == self.folder / _CONFIDENTIAL else f" --confidential {self.confidential}"
        return f"python -m dpmcmc.run --resume {self.folder}{elsewhere}"


_CONFIDENTIAL, _CHECKPOINT = "confidential", "checkpoint"
_WRITTEN = ("config.yaml", "plan.json", "privacy.json", "metrics.json", "draws.nc", "diagnostics.json", "failure.json")


def _new(arguments: argparse.Namespace) -> tuple[Config, Place]:
    """A config, and folders that are free."""
    if arguments.config is None:
        raise CommandError("config: give a YAML file, for example configs/adult.yaml, or --resume DIR.")
    config = config_file.load(arguments.config, arguments.set)
    folder = _free_folder("--out", _default_folder(config.name) if arguments.out is None else arguments.out)
    confidential = folder / _CONFIDENTIAL
    if arguments.confidential is not None:
        confidential = _free_folder("--confidential", arguments.confidential)
        if confidential.resolve().is_relative_to(folder.resolve()):
            raise CommandError(
                f"--confidential: {confidential} lies in the run folder, which is to be published; give one outside it."
            )
    return config, Place(folder, confidential)


def _resumed(arguments: argparse.Namespace) -> tuple[Config, Place]:
    """The config of a run that was stopped, and its folders.

    Raises:
        CommandError: there is nothing to go on with, or another config is given.
    """
    if arguments.out is not None or (arguments.set and not arguments.config):
        raise CommandError("--resume: goes on in its own folder with its own config; leave --out and --set out.")
    folder = Path(arguments.resume)
    confidential = folder / _CONFIDENTIAL if arguments.confidential is None else Path(arguments.confidential)
    if not (folder / "config.yaml").is_file():
        raise CommandError(f"--resume: {folder} holds no config.yaml, so no run was begun there; start a new one.")
    place = Place(folder, confidential, resumed=True)
    done = (folder / "metrics.json").exists()
    shutil.rmtree(confidential / (_CHECKPOINT + REMOVED), ignore_errors=True)
    if not (confidential / _CHECKPOINT).is_dir():
        raise CommandError(
            f"--resume: the run in {folder} is done; there is nothing to go on with."
            if done
            else f"--resume: {confidential} holds no checkpoint; name the run's --confidential folder, or start anew."
        )
    config = config_file.load(folder / "config.yaml")
    if arguments.config is not None:
        given = config_room.dump(config_file.load(arguments.config, arguments.set), folder)
        begun = config_room.dump(config, folder)
        if given != begun:
            changed = sorted(set(given.splitlines()) ^ set(begun.splitlines()))
            raise CommandError(
                f"--resume: the run in {folder} was begun with another config ({', '.join(s.strip() for s in changed)}"
                "); leave CONFIG out, or start a new run."
            )
    return config, place


def _reservation(config: Config, plan: Plan | MechanismPlan, checkpoint: Checkpoint) -> Reservation | None:
    """The run's place in the ledger that its config names."""
    if config.privacy is None or config.privacy.ledger is None:
        return None
    guarantee = plan.guarantee if config_room.is_secret(config) else None
    return Reservation(config.privacy.ledger, guarantee, config.name, checkpoint, plan.num_records)


@dataclass
class Run:
    """One run of one config: its plan, its data, its folders, and the budget it holds."""

    config: Config
    plan: Plan | MechanismPlan
    data: DataSet
    folder: Path
    confidential: Path
    checkpoint: Checkpoint
    held: Reservation | None = None
    mesh: Mesh | None = None

    @property
    def trace(self) -> Plan | None:
        """Plan of the sampler whose iterates may be published; None for a one-shot mechanism."""
        return self.plan.run if isinstance(self.plan, MechanismPlan) else self.plan

    @property
    def secret(self) -> bool:
        """Whether the noise is."""
        return config_room.is_secret(self.config)

    @functools.cached_property
    def target(self) -> Any:
        """The plan's target, bound to the shapes of the records."""
        return bind(self.plan.target, record_shapes(self.data.train))

    @property
    def note(self) -> str | None:
        """What must stand on every figure, or None."""
        if self.data.origin == "stand-in":
            return f"generated stand-in for {self.data.spec.name}: not the real data"
        return None if self.secret else "insecure noise seed: no privacy guarantee"

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
        """What the run was to release has been written: settle, and erase the keys."""
        if self.held is not None:
            self.held.begun = True
            with warnings.catch_warnings(record=True) as said:
                self.held.settle()
            for one in said:
                print(f"warning: {one.message}", file=sys.stderr)
        self.checkpoint.remove()

    def print_plan(self, console: Console) -> None:
        """Say what will be done."""
        x = self.data.train["x"]
        test = "no" if self.data.test is None else f"{len(self.data.test['y']):,}"
        what = "records" if self.data.spec.records_per_owner is None else "owners"
        console.print(self.config.name, style="bold")
        console.print(
            f"data         {self.data.spec.name}: {len(x):,} training {what} and {test} test records, {x.shape[-1]} "
            f"features, from {self.data.origin}"
        )
        if self.on_disk:
            console.print("             on disk: no training-set scores and no non-private fit, which read all records")
        if self.note:
            console.print(f"             {self.note}", style="bold red")
        for name, text in self.plan.lines(self.secret):
            console.print(f"{name:<12} {text}")
        if self.mesh is not None:
            chain, data = sizes(self.mesh)
            console.print(f"devices      {chain} along the chains, {data} along the records")
        if jax.process_count() > 1:
            console.print(f"processes    {jax.process_count()}, without a checkpoint: a run that is stopped is lost")

    def open(self) -> None:
        """State plan and guarantee before anything is released; privacy.json holds a run's cost from the start."""
        try:
            write_json(self.folder / "plan.json", self.plan.to_json(self.secret))
            guarantee = self.plan.guarantee if self.secret else None
            self._write_privacy(None if guarantee is None else self.checkpoint.guarantee(guarantee))
        except OSError as error:
            raise CommandError(
                f"--out: {error.filename or self.folder} cannot be written ({error.strerror}); give another folder."
            ) from None

    def _write_privacy(self, guarantee: Guarantee | None) -> None:
        facts = {
            "name": self.data.spec.name,
            "origin": self.data.origin,
            "public": self.data.spec.public,
            "encoding": self.data.spec.encoding,
            "sha256": self.data.sha256 or None,
        }
        if self.trace is None:
            body = guarantee_json(guarantee) | {"num_records": self.plan.num_records, "data": facts}
        else:
            body = privacy_json(self.trace, guarantee, facts)
        if isinstance(self.plan, MechanismPlan):
            body |= {"mechanism": repr(self.plan.mechanism), "settings": self.plan.settings}
            body["charged_draws"] = self.plan.charged_draws
        if self.held is not None:
            body["ledger"] = self.held.receipt.to_json()
        write_json(self.folder / "privacy.json", body)

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

    def save(self, result: Result | Release, calibrate_seconds: float, console: Console) -> None:
        """Write draws, metrics and figures, then what is confidential, and print what is released."""
        info = result.info if isinstance(result, Result) else None
        # A run that went on elsewhere has spent more than was planned.
        self._write_privacy(result.guarantee)
        write_draws(self.folder / "draws.nc", result.draws, info, result.guarantee)
        released = self.released_facts()
        if self.trace is not None:
            released |= convergence.summary(result.draws)
        released["wall_seconds"] = {"calibrate": calibrate_seconds}
        if isinstance(result, Result):
            # To a tenth: a step takes longer for a batch larger than usual, and batches are secret.
            tenths = math.ceil(10 * result.wall_seconds["run"]) / 10
            told = dataclasses.replace(result, wall_seconds=result.wall_seconds | {"run": tenths})
            released["wall_seconds"] |= told.wall_seconds
            released["steps_per_second"] = told.steps_per_second
        self._draw_chains(result)
        flat = result.flat_draws()
        test = self.data.test if self.data.test_is_public else None
        shown: dict[str, predictive.Prediction] = {}
        if test is not None:
            name = "draws" if result.guarantee is None else "private draws"
            shown[name] = predictive.predict(self.target, flat, test)
            released |= shown[name].to_json()
        write_json(self.folder / "metrics.json", _finite(released))
        confidential, fitted = self._confidential(flat)
        # A non-private fit may leave only where the records themselves may.
        if fitted is not None and self.data.spec.public:
            released["non_private"] = fitted.summary
            if fitted.prediction is not None:
                shown[f"non-private ({fitted.name})"] = fitted.prediction
            write_json(self.folder / "metrics.json", _finite(released))
        elif fitted is not None:
            confidential["non_private"] = fitted.summary
        if isinstance(result, Release):
            confidential["wall_seconds"] = result.seconds
        confidential["about"] = "Computed from training records without privacy. Never publish or archive this folder."
        write_json(self.confidential / "diagnostics.json", _finite(confidential), mode=0o600)
        if test is not None:
            self._draw_predictions(result, shown, test["y"])
        if isinstance(result, Release):
            self._same_times()
        self._print_result(result, released, console)

    def _same_times(self) -> None:
        """One time for all released files: the time between them would be that of the draw, which is confidential."""
        now = time.time()
        for path in (*self.folder.rglob("*"), self.folder):
            if not path.is_relative_to(self.confidential):
                os.utime(path, (now, now))

    def _title(self, result: Result | Release) -> str:
        if result.guarantee is None:
            return f"{self.config.name}: no guarantee"
        guarantee = result.guarantee
        return f"{self.config.name}: ε = {round_up(guarantee.epsilon, 3)}, δ = {guarantee.delta:.3g}"

    def _draw_chains(self, result: Result | Release) -> None:
        from dpmcmc import plots

        figures, title, plan = self.folder / "figures", self._title(result), self.trace
        if plan is not None:
            plots.traces(figures / "traces.png", result.draws, plan.burn_in, plan.thin, title, self.note)
            plots.temperature(figures / "temperature.png", plan.temperatures, plan.noise_multipliers, title, self.note)
        if result.guarantee is not None and np.isfinite(result.guarantee.epsilon):
            plots.epsilon_delta(figures / "epsilon_delta.png", result.guarantee, title, self.note)

    def _draw_predictions(
        self, result: Result | Release, shown: dict[str, predictive.Prediction], y: np.ndarray
    ) -> None:
        """Reliability of classifiers, predicted against observed of other targets, on public test labels y."""
        from dpmcmc import plots

        figures, title = self.folder / "figures", self._title(result)
        curves = {k: predictive.reliability(p.probability, y) for k, p in shown.items() if p.probability is not None}
        means = {k: p.mean for k, p in shown.items() if p.mean is not None}
        if curves:
            two = getattr(self.target, "num_classes", None) == 2
            event = "y = 1" if two else "the likeliest class being right"
            plots.calibration(figures / "calibration.png", curves, event, title, self.note)
        if means:
            plots.predictions(figures / "predictions.png", means, y, title, self.note)

    def released_facts(self) -> dict[str, Any]:
        """metrics.json before anything is measured: every key it always has."""
        heat = None if self.trace is None else self.trace.temperatures
        plan = self.plan
        return {
            "accuracy": None,
            "rmse": None,
            "log_predictive_density": None,
            "non_private": None,
            "ess": None,
            "rhat": None,
            "steps_per_second": None,
            "temperature": None if heat is None else {"min": float(heat.min()), "max": float(heat.max())},
            "draws": plan.draws if isinstance(plan, MechanismPlan) else plan.num_draws * plan.chains,
            "data": {"name": self.data.spec.name, "origin": self.data.origin},
        }

    def _confidential(self, flat: Any) -> tuple[dict[str, Any], _Fitted | None]:
        """(training-set diagnostics, non-private fit or None).

        Whether the fit succeeds depends on the records, so its failure is written here and changes nothing else.
        """
        if self.on_disk:
            out: dict[str, Any] = {"train": None, "skipped": _SKIPPED}
        else:
            out = {"train": predictive.predict(self.target, flat, self.data.train).to_json()}
        held_out = self.data.test if not self.data.test_is_public else None
        if held_out is not None:
            out |= predictive.predict(self.target, flat, held_out).to_json()
        if self.on_disk:
            return out, None
        try:
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
            return out, _Fitted(fit.method.split()[0], summary, prediction)
        except ValueError as error:  # numpy's LinAlgError is one
            out["non_private"] = {"failed": str(error)}
            return out, None

    def _print_result(self, result: Result | Release, released: dict, console: Console) -> None:
        """Released numbers only: a console is often a log that others read."""
        plain = released["non_private"] or {}
        self._print_score(released, plain, console)
        if plain.get("distance"):
            d = plain["distance"]
            width = "" if d["std_ratio"] is None else f"; draws {d['std_ratio']:.2f} times as wide"
            console.print(
                f"posterior    marginal W₁ to the non-private posterior {d['wasserstein_mean']:.2f} of its std "
                f"(mean over coordinates){width}"
            )
        if released["ess"] is not None:
            console.print(f"mixing       ESS {released['ess']:.0f}, split R-hat {released['rhat']:.3f}")
        if isinstance(result, Result):
            wall = released["wall_seconds"]
            console.print(
                f"wall clock   calibrate {wall['calibrate']:.1f} s, compile {wall['compile']:.1f} s, "
                f"run {wall['run']:.1f} s ({released['steps_per_second']:,.0f} steps/s)"
            )
        spent = str(result.guarantee) if result.guarantee else "no guarantee (see privacy.json)"
        console.print(f"spent        {spent}", style="bold")
        console.print(f"saved        {self.folder}")
        console.print(f"never publish or archive {self.confidential}", style="red")

    def _print_score(self, released: dict, plain: dict, console: Console) -> None:
        """Accuracy or rmse where the target predicts, log predictive density where it does not."""
        measure = predictive.measure(self.target)
        density = released["log_predictive_density"]
        if self.data.test is None or not self.data.test_is_public:
            console.print(f"{measure or 'density':<12} confidential: in {self.confidential / 'diagnostics.json'}")
        elif measure is None:
            against = f"; non-private fit {_number(plain['log_predictive_density'])}" if plain else ""
            console.print(f"density      {_number(density)} log predictive density of a test row{against}")
        else:
            score = released[measure]
            against = f"; non-private fit {_number(plain[measure]['posterior_predictive'])}" if plain else ""
            console.print(
                f"{measure:<12} {_number(score['posterior_predictive'])} posterior predictive, "
                f"{_number(score['mean'])} ± {_number(score['std'])} single draw{against}"
            )


#: diagnostics.json of records on disk.
_SKIPPED = "Scores of the training records and the non-private fit would read all records, which lie on disk."


@dataclass(frozen=True)
class _Fitted:
    """A non-private fit: its short name, what metrics.json says of it, and its prediction of test rows."""

    name: str
    summary: dict[str, Any]
    prediction: predictive.Prediction | None


def _number(value: float | None) -> str:
    return "not finite" if value is None or not np.isfinite(value) else f"{value:.4f}"


def _default_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{datetime.datetime.now().strftime('%Y%m%d-%H%M%S')}"


def _free_folder(option: str, wanted: str | Path) -> Path:
    """A folder to write in; refuses one that holds something, or that cannot be made."""
    folder = Path(wanted)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CommandError(f"{option}: {folder} already holds something; give a folder that is new or empty.")
        parent = folder.absolute()
        while not parent.exists():
            parent = parent.parent
    except OSError as error:
        raise CommandError(f"{option}: {folder} cannot be read ({error.strerror}); give another folder.") from None
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise CommandError(f"{option}: {folder} cannot be created, because {parent} is not a folder you can write to.")
    return folder


def _finite(body: Any) -> Any:
    """JSON has no NaN: what could not be computed is null."""
    if isinstance(body, dict):
        return {k: _finite(v) for k, v in body.items()}
    if isinstance(body, float) and not np.isfinite(body):
        return None
    return body


if __name__ == "__main__":
    leave(main())
