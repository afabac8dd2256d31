"""A folder that a run writes: who may read its files, their digests, and the one time that they bear.

``state`` writes ``privacy.json`` before the first other file, and ``seal`` writes it with all digests after the last.

The modification time of a file tells when its computation ended, and the length of a run depends on secret batches
and on records. Every file that others may read therefore bears the day on which the run began, in UTC, from its
first moment, and so do the folders once they are sealed. The file system's own times (change and birth) cannot be set;
a copy does not have them.
"""

from __future__ import annotations

import datetime
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.released_files import KEY, PICTURES, PRIVACY, digest, is_left_over, list_released


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

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if self.owner_only else 0o777)
        whole = content.encode() if isinstance(content, str) else content

        def fill(temporary: Path) -> None:
            temporary.write_bytes(whole)
            self.date(temporary)

        write_atomically(path, fill, 0o600 if self.owner_only else 0o644)
        self.written[name] = digest(whole)

    def json(self, name: str, body: object) -> None:
        """Write strict JSON, in which a number that is not finite is null."""
        self.write(name, json.dumps(_without_nan(body), indent=2, allow_nan=False) + "\n")

    def state(self, said: dict[str, Any]) -> None:
        """Write ``privacy.json`` of a run that has not ended: before the first of the other files, or anew."""
        self.json(PRIVACY, said | {KEY: None})

    def seal(self, said: dict[str, Any]) -> None:
        """Write ``privacy.json`` with the digests of all that was written here, after the last of the other files.

        Released files that an earlier start of the run wrote, and this one did not, are removed, and so is what killed
        writes left.
        """
        mine = {name: self.written[name] for name in sorted(self.written) if name != PRIVACY}
        others = [self.folder / name for name in list_released(self.folder) if name not in mine]
        left = [path for path in self.folder.iterdir() if is_left_over(path.name)]
        pictures = self.folder / PICTURES
        for path in (*others, *left, *pictures.glob(".*.png")):
            path.unlink()
        self.json(PRIVACY, said | {KEY: mine})
        self.date(*([pictures] if pictures.is_dir() else []), self.folder)

    def date(self, *paths: Path) -> None:
        """Give files and folders the one time."""
        midnight = datetime.datetime.combine(self.day, datetime.time(), datetime.UTC).timestamp()
        for path in paths:
            os.utime(path, (midnight, midnight))


def _without_nan(body: object) -> object:
    if isinstance(body, dict):
        return {key: _without_nan(value) for key, value in body.items()}
    return None if isinstance(body, float) and not math.isfinite(body) else body
