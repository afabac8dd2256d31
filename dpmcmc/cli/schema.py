"""``dpmcmc schema``: the JSON schema of a config, for editors."""

from __future__ import annotations

from pathlib import Path

from dpmcmc.cli.refusals import CommandError, check_new_file
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
    check_new_file("--out", path)
    try:
        write_atomically(path, lambda file: file.write_text(text(), encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"--out: {path} cannot be written ({error.strerror}); choose another file.") from None
    say(f"wrote {path}; the first line of a config beside it names it to an editor:")
    say(f"{HEADER}{path.name}")
