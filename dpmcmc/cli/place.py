"""The folders of a run, and how a stopped run resumes in them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from dpmcmc import config as config_room
from dpmcmc.cli import refusals
from dpmcmc.cli.options import command_words, note
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import Config
from dpmcmc.config import file as config_file
from dpmcmc.engine.reservation import may_be_open
from dpmcmc.storage.checkpoint import REMOVED, Checkpoint, CheckpointError, has_begun
from dpmcmc.storage.released_files import CHECKPOINT, COMPUTED, CONFIDENTIAL, CONFIG, HELD, PRIVACY
from dpmcmc.storage.run_folder import RunFolder, day_of, today
from dpmcmc.storage.surroundings import checkpoint_around, inside

#: Files that a run writes before anything is computed from a record.
_STATED = ("plan.json", PRIVACY, CONFIG)
_WRITTEN = (*_STATED, *COMPUTED, *HELD)


class RunOptions(NamedTuple):
    """Options of ``dpmcmc run``; see ``run.run``."""

    config: str | None
    overrides: list[str]
    allow_code: list[str]
    out: str | None
    resume: str | None
    confidential: str | None
    per_record: bool
    distributed: bool = False

    @property
    def named(self) -> str:
        """Words that name the config on a command line, its changes included."""
        return command_words(self.config or "", self.overrides)


@dataclass
class Place:
    """Folders that a run writes in, and what it needs to resume there.

    Attributes:
        folder: of what is released, with ``config.yaml`` from the start.
        confidential: of what is not.
        modules: outside this library; ``--resume`` needs ``--allow-code`` for each.
        resumed: whether the run was begun before.
        day: on which it was begun.
        per_record: whether every record has an account.
        named: what names the config on a command line.
        distributed: whether several processes share the run.
        checkpoint: of the run, once the folders are made.
    """

    folder: Path
    confidential: Path
    modules: tuple[str, ...] = ()
    resumed: bool = False
    day: datetime.date = field(default_factory=today)
    per_record: bool = False
    named: str = ""
    distributed: bool = False
    checkpoint: Checkpoint = field(init=False)
    _made: list[Path] = field(default_factory=list, init=False, repr=False)

    @functools.cached_property
    def run_folder(self) -> RunFolder:
        """Folder of what is released, which knows the digest of each file that was written."""
        return RunFolder(self.folder, self.day)

    def make(self, config: Config) -> None:
        """Create the folders, the config in them, and the checkpoint."""
        wanted = [path for folder in (self.confidential, self.folder) for path in (folder, *folder.parents)]
        self._made = [path for path in wanted if not path.exists()]
        try:
            self._fill(config)
        except OSError as error:
            where = error.filename or self.folder
            raise CommandError(
                f"{self._option}: {where} cannot be used ({error.strerror}); give another folder."
            ) from None
        except CheckpointError as error:
            raise CommandError(f"{self._option}: {error}.") from None

    def _fill(self, config: Config) -> None:
        """Create what :meth:`make` describes; the checkpoint is closed if that fails."""
        with contextlib.ExitStack() as undo:
            self.confidential.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.run_folder.make()
            os.chmod(self.confidential, 0o700)
            refusals.keep_in(self.confidential)
            self.checkpoint = Checkpoint(self.confidential / CHECKPOINT)
            undo.callback(self.checkpoint.close)
            if self.resumed != (self.folder / CONFIG).exists():  # another process was faster
                raise CommandError(f"{self._option}: another process has taken {self.folder}; give another folder.")
            self._account_as_begun()
            # Written last, so that a folder with a config can be resumed.
            self.run_folder.write(CONFIG, config_room.dump(config, self.folder))
            for folder in (
                self.folder,
                self.confidential,
            ):  # left by a write that was killed
                for left in (path for name in _WRITTEN for path in folder.glob(f".{name}.*")):
                    left.unlink()
                for left in (folder / "figures").glob(".*.png"):
                    left.unlink()
            self.date()
            undo.pop_all()

    def _account_as_begun(self) -> None:
        """Note that every record has an account, or go on with what was noted."""
        begun = bool(self.checkpoint.read_note("per_record"))
        if not self.resumed and self.per_record != begun:
            self.checkpoint.note(per_record=self.per_record)
            begun = self.per_record
        if self.per_record and not begun:
            raise CommandError(
                f"--per-record: the run in {self.folder} was begun without an account of the records; leave the option "
                "out."
            )
        self.per_record = begun

    @property
    def _option(self) -> str:
        return "--resume" if self.resumed else "--out"

    def date(self) -> None:
        """Give every file that others may see the same time of change."""
        if self.folder.exists():
            self.run_folder.date_all(self.confidential)

    def clear(self, ledger: str | Path | None) -> bool:
        """Remove what :meth:`make` created, unless a run has begun there.

        Args:
            ledger: of the run. A checkpoint that names a reservation in it stays, so that the run is charged once.

        Returns:
            Whether nothing is left that could be resumed.
        """
        if self.resumed or self.checkpoint.begun or may_be_open(ledger, self.checkpoint):
            return False
        with contextlib.suppress(OSError):  # the same command, started again, removes the rest
            # The config goes first, since a folder with a config can be resumed.
            for name in sorted(_STATED, key=CONFIG.__ne__):
                (self.folder / name).unlink(missing_ok=True)
            self.checkpoint.remove()
        for folder in self._made:
            with contextlib.suppress(OSError):  # it holds something
                folder.rmdir()
        return True

    @property
    def command(self) -> str:
        """Command that goes on with the run."""
        elsewhere = "" if self.confidential == self.folder / CONFIDENTIAL else f" --confidential {self.confidential}"
        allowed = "".join(f" --allow-code {module}" for module in self.modules)
        together = " --distributed" if self.distributed else ""
        return f"dpmcmc run --resume {self.folder}{together}{elsewhere}{allowed}"


def make_place(asked: RunOptions) -> tuple[Config, Place]:
    """Return the config of a new run, and its folders."""
    if asked.config is None:
        raise CommandError("config: give a YAML file, for example configs/adult.yaml, or --resume DIR.")
    config = config_file.load(asked.config, asked.overrides, allow_code=asked.allow_code, note=note)
    wanted = Path(default_folder(config.name) if asked.out is None else asked.out)
    apart = wanted / CONFIDENTIAL if asked.confidential is None else Path(asked.confidential)
    if _left_unbegun(wanted, apart) and (asked.confidential is None or not inside(apart, wanted)):
        if (wanted / CONFIG).exists():
            return resume_place(asked._replace(out=None, resume=str(wanted)))
        return config, Place(
            wanted,
            apart,
            own_modules(config),
            per_record=asked.per_record,
            named=asked.named,
            distributed=asked.distributed,
        )
    folder = _free_folder("--out", wanted)
    confidential = folder / CONFIDENTIAL
    if asked.confidential is not None:
        confidential = _free_folder("--confidential", asked.confidential)
        if inside(confidential, folder):
            raise CommandError(
                f"--confidential: {confidential} lies in the run folder, which is to be published; give one outside it."
            )
    return config, Place(
        folder,
        confidential,
        own_modules(config),
        per_record=asked.per_record,
        named=asked.named,
        distributed=asked.distributed,
    )


def resume_place(asked: RunOptions) -> tuple[Config, Place]:
    """The config of a run that was stopped, and its folders.

    Raises:
        CommandError: there is nothing to go on with, or another config is given.
    """
    devices = [word for word in asked.overrides if word.startswith("run.mesh")]
    other = len(devices) < len(asked.overrides)
    if asked.out is not None or (other and not asked.config):
        raise CommandError(
            "--resume: goes on in its own folder with its own config; leave --out out, and --set but of run.mesh."
        )
    folder = Path(asked.resume or "")
    confidential = folder / CONFIDENTIAL if asked.confidential is None else Path(asked.confidential)
    if not (folder / CONFIG).is_file():
        raise CommandError(f"--resume: {folder} holds no config.yaml, so no run was begun there; start a new one.")
    done = (folder / "metrics.json").exists()
    shutil.rmtree(confidential / (CHECKPOINT + REMOVED), ignore_errors=True)
    if not (confidential / CHECKPOINT).is_dir():
        raise CommandError(
            f"--resume: the run in {folder} is done; there is nothing to go on with."
            if done
            else f"--resume: {confidential} holds no checkpoint; name the run's --confidential folder, or start anew."
        )
    config = config_file.load(
        folder / CONFIG,
        devices if asked.config is None else [],
        allow_code=asked.allow_code,
        resumed=True,
    )
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
    day = day_of(folder / CONFIG)
    words = str(folder / CONFIG)
    return config, Place(
        folder,
        confidential,
        own_modules(config),
        True,
        day,
        asked.per_record,
        words,
        asked.distributed,
    )


def own_modules(config: Config) -> tuple[str, ...]:
    """Modules outside this library that a config names, each once."""
    names = config_room.modules_of_ones_own(config)
    return tuple(dict.fromkeys(module for _, module in config_file.foreign(names, ())))


def _left_unbegun(folder: Path, confidential: Path) -> bool:
    """Whether the folders hold only the files of a start that ended before anything was computed from a record."""
    checkpoint = confidential / CHECKPOINT
    try:
        if not confidential.is_dir() or ((folder / CONFIG).exists() and not checkpoint.is_dir()):
            return False
        found = [
            *folder.iterdir(),
            *checkpoint.parent.rglob("*"),
            *(folder / "figures").rglob("*"),
        ]
    except OSError:  # whoever writes there says it
        return False
    known = {
        folder: _STATED,
        confidential: (f"{CHECKPOINT}.lock",),
        checkpoint: ("run.json",),
        checkpoint.with_name(CHECKPOINT + REMOVED): ("run.json",),
    }
    folders = (*known, folder / "figures")
    for path in found:
        if path.is_dir() and not path.is_symlink():
            left = path in folders
        else:
            names = known.get(path.parent, ())
            left = path.name in names or any(path.name.startswith(f".{name}.") for name in names)
        if not left:
            return False
    return not has_begun(checkpoint)


def _free_folder(option: str, wanted: str | Path) -> Path:
    """Return a folder to write in; refuse one that is not empty or cannot be created."""
    folder = Path(wanted)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CommandError(f"{option}: {folder} {_held(folder)}; give a folder that is new or empty.")
        folder.resolve()  # refuses a link that leads back to itself
        parent = folder.absolute()
        while not parent.exists():
            parent = parent.parent
    except OSError as error:
        raise CommandError(f"{option}: {folder} cannot be read ({error.strerror}); give another folder.") from None
    except RuntimeError:
        raise CommandError(f"{option}: {folder} is a link that leads back to itself; give another folder.") from None
    if checkpoint_around(folder) is not None:
        raise CommandError(f"{option}: {folder} lies in a checkpoint, which holds keys of a run; give another folder.")
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise CommandError(f"{option}: {folder} cannot be created, because {parent} is not a folder you can write to.")
    return folder


def _held(folder: Path) -> str:
    """Say what a folder that is not empty holds."""
    if not folder.is_dir() or not (folder / CONFIG).is_file():
        return "already holds something"
    if (folder / CONFIDENTIAL / CHECKPOINT).is_dir():
        return f"holds a run that was begun, which goes on with dpmcmc run --resume {folder}"
    return "already holds a run that is done" if (folder / "metrics.json").exists() else "already holds a run"


def default_folder(name: str) -> Path:
    """Return a folder name that holds the day but not the time: who sees a run end could compute its length from its
    start."""
    return Path("runs") / f"{name}-{today():%Y%m%d}-{secrets.token_hex(4)}"
