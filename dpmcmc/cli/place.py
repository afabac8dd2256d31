"""The folders of a run, and how a stopped run resumes in them."""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import secrets
import shutil
from collections.abc import Sequence
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
from dpmcmc.storage.checkpoint import REMOVED, Checkpoint
from dpmcmc.storage.released_files import CHECKPOINT, CONFIDENTIAL, CONFIG, PRIVACY
from dpmcmc.storage.run_folder import RunFolder, day_of, today
from dpmcmc.storage.surroundings import check_free, inside


class RunOptions(NamedTuple):
    """Options of ``dpmcmc run``, as ``commands.py`` declares them; ``pictures``: whether the page has some."""

    config: str | None = None
    overrides: Sequence[str] = ()
    allow_code: Sequence[str] = ()
    out: str | None = None
    resume: str | None = None
    confidential: str | None = None
    per_record: bool = False
    distributed: bool = False
    quiet: bool = False
    as_json: bool = False
    pictures: bool = True


@dataclass
class Place:
    """Folders that a run writes in, and what it needs to resume there.

    Attributes:
        asked: options of the command.
        folder: of what is released, with ``config.yaml`` from the start.
        confidential: of what is not.
        modules: outside this library; ``--resume`` needs ``--allow-code`` for each.
        resumed: whether the run was begun before.
        day: on which it was begun.
        per_record: whether every record has an account, once the folders are made.
        checkpoint: of the run, once the folders are made.
    """

    asked: RunOptions
    folder: Path
    confidential: Path
    modules: tuple[str, ...]
    resumed: bool
    day: datetime.date
    per_record: bool = field(init=False)
    checkpoint: Checkpoint = field(init=False)
    _made: list[Path] = field(default_factory=list, init=False, repr=False)

    @property
    def named(self) -> str:
        """Words that name the config on a command line, its changes included."""
        if self.resumed:
            return str(self.folder / CONFIG)
        return command_words(self.asked.config or "", self.asked.overrides)

    @functools.cached_property
    def run_folder(self) -> RunFolder:
        """Writer of what is released."""
        return RunFolder(self.folder, self.day)

    @functools.cached_property
    def apart(self) -> RunFolder:
        """Writer of what is confidential."""
        return RunFolder(self.confidential, self.day, owner_only=True)

    def make(self, config: Config) -> None:
        """Create the folders, the config in them, and the checkpoint."""
        wanted = [path for folder in (self.confidential, self.folder) for path in (folder, *folder.parents)]
        self._made = [path for path in wanted if not path.exists()]
        with contextlib.ExitStack() as undo:
            try:
                self.confidential.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.chmod(self.confidential, 0o700)
                refusals.keep_in(self.confidential)
                self.checkpoint = Checkpoint(self.confidential / CHECKPOINT)
                undo.callback(self.checkpoint.close)
                if self.resumed != (self.folder / CONFIG).exists():
                    raise CommandError(f"--out: another process has taken {self.folder}; give another folder.")
                self._account_as_begun()
                # Written last, so that a folder with a config can be resumed.
                self.run_folder.write(CONFIG, config_room.dump(config, self.folder))
            except OSError as error:
                where = error.filename or self.folder
                raise CommandError(
                    f"--out, --confidential: {where} cannot be used ({error.strerror}); give another folder."
                ) from None
            undo.pop_all()

    def _account_as_begun(self) -> None:
        """Note that every record has an account, or go on with what was noted."""
        asked = self.asked.per_record
        self.per_record = bool(self.checkpoint.read_note("per_record"))
        if not self.resumed and self.per_record != asked:
            self.checkpoint.note(per_record=asked)
            self.per_record = asked
        if asked and not self.per_record:
            raise CommandError(
                f"--per-record: the run in {self.folder} was begun without an account of the records; leave the option "
                "out."
            )

    def date(self) -> None:
        """Give the folders, which change with each file in them, the one time that their files bear."""
        self.run_folder.date(*(folder for folder in (self.folder, self.confidential) if folder.exists()))

    def clear(self, ledger: str | None) -> bool:
        """Remove what a new run has made, unless it has begun.

        Args:
            ledger: of the run. A checkpoint that names a reservation in it stays, so that the run is charged once.

        Returns:
            Whether nothing is left that could be resumed.
        """
        if self.resumed or self.checkpoint.begun or may_be_open(ledger, self.checkpoint):
            return False
        with contextlib.suppress(OSError):  # the same command, started again, goes on with the rest
            # The config goes first, since a folder with a config can be resumed.
            for name in (CONFIG, "plan.json", PRIVACY):
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
        together = " --distributed" if self.asked.distributed else ""
        return f"dpmcmc run --resume {self.folder}{together}{elsewhere}{allowed}"


def find_place(asked: RunOptions) -> tuple[Config, Place]:
    """Return the config of a run, and its folders: new ones, or those of a run that was stopped.

    Raises:
        CommandError: the folders hold something else; or there is nothing to go on with.
    """
    resumed = asked.resume is not None
    if resumed:
        folder = Path(asked.resume or "")
    elif asked.config is None:
        raise CommandError("config: give a YAML file, for example configs/adult.yaml, or --resume DIR.")
    else:
        config = config_file.load(asked.config, asked.overrides, allow_code=asked.allow_code, note=note)
        folder = Path(default_folder(config.name) if asked.out is None else asked.out)
    confidential = folder / CONFIDENTIAL if asked.confidential is None else Path(asked.confidential)
    if resumed or ((folder / CONFIG).is_file() and (confidential / CHECKPOINT).is_dir()):
        config = _load_begun(asked, folder, confidential)
        resumed = True
    else:
        check_free(folder, "--out")
        check_free(confidential, "--confidential", _BEFORE_BEGIN)
        if asked.confidential is not None and inside(confidential, folder):
            raise CommandError(
                f"--confidential: {confidential} lies in the run folder, which is to be published; give one outside it."
            )
    day = day_of(folder / CONFIG) if resumed else today()
    return config, Place(asked, folder, confidential, config_file.foreign_modules(config), resumed, day)


#: Names in ``confidential/`` that a start leaves if it is killed before the config is there.
_BEFORE_BEGIN = (CHECKPOINT, f"{CHECKPOINT}.lock")


def _load_begun(asked: RunOptions, folder: Path, confidential: Path) -> Config:
    """Return the config of a run that was stopped.

    Raises:
        CommandError: there is nothing to go on with, or another config is given.
    """
    devices = [word for word in asked.overrides if word.startswith("run.mesh")]
    if asked.resume is not None and (asked.out is not None or (not asked.config and devices != [*asked.overrides])):
        raise CommandError(
            "--resume: goes on in its own folder with its own config; leave --out out, and --set but of run.mesh."
        )
    if not (folder / CONFIG).is_file():
        raise CommandError(f"--resume: {folder} holds no config.yaml, so no run was begun there; start a new one.")
    shutil.rmtree(confidential / (CHECKPOINT + REMOVED), ignore_errors=True)
    if not (confidential / CHECKPOINT).is_dir():
        raise CommandError(
            f"--resume: the run in {folder} is done; there is nothing to go on with."
            if (folder / "metrics.json").exists()
            else f"--resume: {confidential} holds no checkpoint; name the run's --confidential folder, or start anew."
        )
    own = [] if asked.config else devices
    begun = config_file.load(folder / CONFIG, own, allow_code=asked.allow_code, resumed=True)
    if asked.config is not None:
        given = config_file.load(asked.config, asked.overrides, allow_code=asked.allow_code)
        changed = set(config_room.dump(given, folder).splitlines()) ^ set(config_room.dump(begun, folder).splitlines())
        if changed:
            raise CommandError(
                f"--resume: the run in {folder} was begun with another config "
                f"({', '.join(line.strip() for line in sorted(changed))}); leave CONFIG out, or start a new run "
                "elsewhere with --out."
            )
    return begun


def default_folder(name: str) -> Path:
    """Return a folder name that holds the day but not the time: who sees a run end could compute its length from its
    start."""
    return Path("runs") / f"{name}-{today():%Y%m%d}-{secrets.token_hex(4)}"
