"""``dpmcmc configs``: the configurations that come with the package, each with the first sentence of its file."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from dpmcmc.config.shipped import HEADER, list_shipped

#: Characters of a line.
_WIDTH = 80


def configs(as_json: bool, schema: bool) -> None:
    """List the configurations that come with the package, or print the JSON schema of one."""
    if schema:
        from dpmcmc.config.for_editors import text  # it takes a second, which the list need not wait for

        print(text(), end="")
        return
    found = {name: _said(path) for name, path in list_shipped().items()}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    room = max(map(len, found)) + 2
    for name, said in found.items():
        short = textwrap.shorten(said, _WIDTH - room, placeholder=" ...")
        print(f"{name:<{room}}{short}")


def _said(config: Path) -> str:
    """Return the first line of a config that is not for an editor."""
    lines = config.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if not line.startswith(HEADER)).lstrip("# ")
