"""A folder that a run writes: who may read its files, and the one time that they bear.

The modification time of a file tells when its computation ended, and the length of a run depends on secret batches
and on records. Every file that others may read therefore bears the day on which the run began, in UTC, from its
first moment. The file system's own times (change and birth) cannot be set; a copy does not have them.
"""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.released_files import KEY, PICTURES, PRIVACY, digest, is_left_over, list_released


def remove_others(folder: Path, mine: dict[str, str]) -> None:
    """Remove the released files that an earlier start of the run left, and what killed writes left."""
    for name in list_released(folder):
        if name not in mine:
            (folder / name).unlink()
    for path in folder.iterdir():
        if is_left_over(path.name):
            path.unlink()


def today() -> datetime.date:
    """Today's date in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def day_of(path: Path) -> datetime.date:
    """Return the day that a file bears."""
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).date()


@dataclass(frozen=True)
class RunFolder:
    """A folder for files of a run.

    Attributes:
        folder: where they lie.
        day: on which the run began.
        owner_only: whether only the owner may read it.
        written: digest of each file that was written here, by name.
    """

    folder: Path
    day: datetime.date
    owner_only: bool = False
    written: dict[str, str] = field(default_factory=dict, compare=False, repr=False)

    def make(self) -> None:
        """Create the folder.

        Raises:
            OSError: it cannot be made.
        """
        self._make(self.folder)

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        path = self.folder / name
        self._make(path.parent)
        whole = content.encode() if isinstance(content, str) else content

        def filled(temporary: Path) -> None:
            temporary.write_bytes(whole)
            self.date(temporary)

        write_atomically(path, filled, 0o600 if self.owner_only else 0o644)
        self.written[name] = digest(whole)
        self.date(path.parent, self.folder)

    def json(self, name: str, body: object) -> None:
        """Write strict JSON, which has no NaN."""
        self.write(name, json.dumps(body, indent=2, allow_nan=False) + "\n")

    def state(self, said: dict[str, Any]) -> None:
        """Write ``privacy.json`` of a run that has not ended: before the first of the other files, or anew."""
        self.json(PRIVACY, said | {KEY: None})

    def seal(self, said: dict[str, Any]) -> None:
        """Write ``privacy.json`` with the digests of all that was written here, after the last of the other files.

        Released files that an earlier start of the run wrote, and this one did not, are removed.
        """
        mine = {name: self.written[name] for name in sorted(self.written) if name != PRIVACY}
        remove_others(self.folder, mine)
        self.json(PRIVACY, said | {KEY: mine})
        if (self.folder / PICTURES).is_dir():
            self.date(self.folder / PICTURES, self.folder)

    def date(self, *paths: Path) -> None:
        """Give files and folders the one time."""
        midnight = datetime.datetime.combine(self.day, datetime.time(), datetime.UTC).timestamp()
        for path in paths:
            os.utime(path, (midnight, midnight))

    def date_all(self, *others: Path) -> None:
        """Give the one time to everything outside ``others``, and to these folders, whose time others may see."""
        for path in (*self.folder.rglob("*"), self.folder):
            # A link is not of the run, and what it leads to even less.
            if not path.is_symlink() and not any(path.is_relative_to(other) for other in others):
                self.date(path)
        self.date(*(other for other in others if other.exists()))

    def _make(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700 if self.owner_only else 0o777)
