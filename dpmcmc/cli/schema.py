"""``dpmcmc schema``: the JSON schema of a config, for editors."""

from __future__ import annotations

import os
from pathlib import Path

from dpmcmc.cli.refusals import CommandError
from dpmcmc.config.for_editors import text
from dpmcmc.config.shipped import HEADER
from dpmcmc.report.lines import say
from dpmcmc.storage.atomic import write_atomically


def schema(out: str | None) -> None:
    """Print the schema, or write it to a new file and print the line that names it in a config."""
    if out is None:
        print(text(), end="")
        return
    path = Path(out)
    if os.path.lexists(path):
        raise CommandError(f"--out: {path} exists already; choose another file.")
    if not path.parent.is_dir():
        raise CommandError(f"--out: the folder of {path} does not exist; make it first.")
    try:
        write_atomically(path, lambda file: file.write_text(text(), encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"--out: {path} cannot be written ({error.strerror}); choose another file.") from None
    say(f"wrote {path}; the first line of a config beside it names it to an editor:")
    say(f"{HEADER}{path.name}")
