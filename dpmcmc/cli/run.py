"""``dpmcmc run CONFIG``: plan, run, and write a folder that can be published.

Everything in the run folder is released except ``confidential/``, which only its owner can read and which may lie
elsewhere (``--confidential DIR``). A run without a guarantee on private records writes there all that it computes from
them. ``report/console.py`` makes the lines that are printed.

Where the config names a ledger, the budget is reserved before records are read. ``--resume DIR`` continues a run that
was stopped at any time and in any way.

With ``--distributed`` several processes run the config together (``processes.py``). Process 0 alone writes, prints,
keeps the checkpoint and charges the ledger. With ``--resume`` it gives the others the config of its run folder.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh
from rich.console import Console

from dpmcmc import config as config_room
from dpmcmc.cli.place import Place, RunOptions, find_place
from dpmcmc.cli.refusals import CommandError
from dpmcmc.cli.saved import ConfiguredRun
from dpmcmc.config import Config
from dpmcmc.config import file as config_file
from dpmcmc.engine.agreement import said_by_first
from dpmcmc.engine.life import Life, reserved
from dpmcmc.engine.mesh import check_devices
from dpmcmc.engine.processes import connect
from dpmcmc.engine.result import DivergedError
from dpmcmc.errors import InputError, RunFailed
from dpmcmc.mechanisms import DrawError
from dpmcmc.planning.plan import Plan
from dpmcmc.report.console import Screen
from dpmcmc.report.lines import say
from dpmcmc.report.pictures import Pictures
from dpmcmc.report.progress import show_progress
from dpmcmc.storage.compiled_programs import keep_compiled_programs
from dpmcmc.storage.files import read_json

if TYPE_CHECKING:
    from dpmcmc.cli.per_record import RecordAccount


def run(**options: Any) -> None:
    """Run a configuration, and write a folder that can be published; options as of :class:`RunOptions`."""
    asked = RunOptions(**options)
    if asked.per_record and asked.distributed:
        raise CommandError("--per-record: is one process's; leave --distributed out.")
    if asked.distributed:
        _join(asked)
    if asked.quiet and asked.as_json:
        raise CommandError("--json: prints the folder already; leave --quiet out.")
    console = Screen(asked.quiet or asked.as_json)
    keep_compiled_programs()
    if asked.distributed and jax.process_index() > 0:
        return _take_part(asked)
    config, place = _find_place(asked)
    check_devices()
    with config_room.run_device(config):
        mesh = _mesh(config)
        started = time.perf_counter()
        plan = config_room.make_plan(config)
        calibrate_seconds = time.perf_counter() - started
        if asked.resume is None and asked.per_record:
            _account(config, plan)  # refused before a folder is made
        said_by_first(lambda: place.make(config))
        try:
            folder = _carry_out(config, plan, place, mesh, calibrate_seconds, console)
        finally:
            place.checkpoint.close()
    if asked.as_json:
        print(json.dumps(_read_released(place.folder, folder), indent=2, allow_nan=False))
    elif asked.quiet:
        say(folder)


def _read_released(run_folder: Path, draws: Path) -> dict[str, object]:
    """Return what a run has released, from its files.

    Args:
        run_folder: of the run, which may be published.
        draws: folder of the draws; another one where these may not be.
    """
    stated, measured = (read_json(run_folder / name) for name in ("privacy.json", "metrics.json"))
    promised = ("epsilon", "delta", "adjacency", "release", "unit")
    return {
        "folder": str(run_folder),
        "draws": str(draws),
        **{name: stated[name] for name in promised},
        "metrics": measured,
    }


def _find_place(asked: RunOptions) -> tuple[Config, Place]:
    """Config of a run, new or resumed, and its folders; other processes are told which, and the config."""
    found: list[tuple[Config, Place]] = []

    def find() -> tuple[bool, str]:
        found.append(find_place(asked))
        ((config, place),) = found
        return place.resumed, config_room.dump(config, _ROOT)

    said_by_first(find)
    return found[0]


#: Folder that paths are relative to in a config that goes from one process to another.
_ROOT = Path("/")


def _load_config(asked: RunOptions) -> Config:
    """Config of a run on another process than the first: its own of a new run, if it has one, else process 0's."""
    resumed, text = said_by_first(lambda: (False, ""))
    if asked.config is None or resumed:
        return config_file.of_text(text, _ROOT, "--resume", asked.allow_code)
    return _load(asked)


def _load(asked: RunOptions) -> Config:
    assert asked.config is not None
    return config_file.load(asked.config, asked.overrides, allow_code=asked.allow_code)


def _join(asked: RunOptions) -> None:
    """Become one of several processes.

    Raises:
        CommandError: this process cannot tell its number, or cannot reach the others.
    """
    trusted = asked.config is not None and _load(asked).where.trusted_network
    try:
        connect(trusted)
    except (ValueError, RuntimeError) as error:
        raise CommandError(f"--{str(error).removeprefix('--')}.", code=1) from None


def _mesh(config: Config) -> Mesh | None:
    """The config's devices.

    Raises:
        CommandError: what several processes cannot do.
    """
    if jax.process_count() > 1 and config.where.mesh is None:
        raise CommandError(
            "run.mesh: several processes need to know how their devices share the work; give it, for example by "
            "--set run.mesh.data=2."
        )
    return config_room.make_mesh(config)


def _take_part(asked: RunOptions) -> None:
    """Compute what process 0 writes and prints."""
    try:
        config = _load_config(asked)
        check_devices()
        with config_room.run_device(config):
            mesh = _mesh(config)
            plan = config_room.make_plan(config)
            said_by_first(lambda: None)  # the folders are made
            with reserved(plan, key=config.noise_seed, mesh=mesh) as life:
                life.read(config_room.load_data(config).train)
                life.carry_out()
    except DivergedError:
        raise CommandError("sampler.step_size: the chain diverged; process 0 says where.", code=1) from None
    except jax.errors.JaxRuntimeError as error:
        raise _lost(error, "go on as process 0 says.") from None


def _lost(error: jax.errors.JaxRuntimeError, mend: str) -> CommandError:
    """Say that the processes have lost each other."""
    return CommandError(
        f"--distributed: the processes have lost each other, and nothing was released ({str(error).splitlines()[0]}); "
        f"see what the first of them to fail says, and {mend}",
        code=1,
    )


def _account(config: Config, plan: Plan) -> RecordAccount:
    from dpmcmc.cli.per_record import RecordAccount  # few runs ask for one

    return RecordAccount(config, plan)


def _carry_out(
    config: Config,
    plan: Plan,
    place: Place,
    mesh: Mesh | None,
    calibrate_seconds: float,
    console: Console,
) -> Path:
    """Carry out the run, from the reservation to its end in the ledger; return the folder of the draws."""
    life: Life | None = None

    def begun() -> bool:
        return (life or place.checkpoint).begun

    try:
        account = _account(config, plan) if place.per_record else None
        with reserved(
            plan if account is None else account.whole,
            key=config.noise_seed,
            checkpoint=place.checkpoint,
            ledger=config.ledger,
            mesh=mesh,
            label=config.name,
            engine=config.where.engine,
            trusted_network=config.where.trusted_network,
        ) as life:
            data = config_room.load_data(config, plan)
            run = ConfiguredRun(config, plan, data, place, life, account, Pictures(place.asked.pictures))
            run.read()
            run.print_plan(console)
            run.open()
            return _compute_and_save(run, calibrate_seconds, console)
    except KeyboardInterrupt:
        spent = "what it was to spend stays spent"
        if not begun():
            spent = "nothing was computed from a record, and nothing is spent"
        raise CommandError(f"stopped by the user; {spent}; it goes on with: {place.command}", code=130) from None
    except _DiskFull:  # there may be room when the run is resumed
        raise
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        # A run that has not begun leaves nothing.
        goes_on = begun() or not place.clear(config.ledger)
        mend = f"go on with: {place.command}" if goes_on else "start the run anew."
        raise _lost(error, mend) from None
    except (CommandError, InputError, RunFailed, OSError, MemoryError) as error:
        if not begun() and not place.clear(config.ledger) and not place.resumed:
            raise CommandError(
                f"{str(error).removesuffix('.')}; the ledger may hold budget for this run, which goes on with: "
                f"{place.command}"
            ) from None
        raise
    finally:
        place.date()


class _DiskFull(CommandError):
    """Something could not be written while the run was computed or saved."""


def _compute_and_save(run: ConfiguredRun, calibrate_seconds: float, console: Console) -> Path:
    """Compute, save, and close the ledger's entry; a failure is one sentence of public facts or of released values."""
    place = run.place
    try:
        with show_progress(True, run.life, console) as report:
            result = run.life.carry_out(report)
        folder = run.save(result, calibrate_seconds, console)
    except DivergedError as error:
        run.save_divergence(error)
        run.open(ended=True)
        run.finish()
        if not run.facts.publishable(run.facts.planned):
            raise CommandError(
                f"sampler.step_size: the chain diverged, at the step that {place.confidential / 'metrics.json'} says; "
                "lower sampler.step_size.",
                code=1,
            ) from None
        raise CommandError(f"sampler.step_size: {error}", code=1) from None
    except DrawError as error:
        # The failure and its reason depend on the records, so they are for the data holder alone.
        place.apart.json("failure.json", {"draw": str(error)})
        run.open(ended=True)
        run.finish()
        raise CommandError(
            f"mechanism: no draw was made and nothing was released; why is in {place.confidential / 'failure.json'}. "
            f"The failure depends on the records: keep {place.folder} to yourself.",
            code=1,
        ) from None
    except OSError as error:
        raise _DiskFull(
            f"{error.filename or place.folder}: {error.strerror or error}; free space, then go on with: {place.command}"
        ) from None
    run.finish()
    return folder
