"""The configs that come with the package, by name: ``dpmcmc run adult``."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import dpmcmc

#: They lie inside an installed package, and next to the package in a checkout.
_PACKAGE = Path(dpmcmc.__file__).parent
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")

#: Begins the line by which a YAML names its JSON schema to an editor (yaml-language-server).
HEADER = "# yaml-language-server: $schema="


def list_shipped() -> dict[str, Path]:
    """Name -> file of every shipped config."""
    for folder in _FOLDERS:
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def title_of(config: Path) -> str:
    """Return the first sentence of a config's comment, which says what it is."""
    lines = config.read_text(encoding="utf-8").splitlines()
    said = itertools.takewhile(lambda line: line.startswith("#"), (one for one in lines if not one.startswith(HEADER)))
    return re.split(r"(?<=[.:;]) ", " ".join(line.lstrip("# ") for line in said))[0].rstrip(":;.")


def find_config(path: str | Path) -> Path:
    """The file that a user names: a path, or the name of a shipped config where no such file exists."""
    if re.fullmatch(r"[\w-]+", str(path)) and not Path(path).exists():
        return list_shipped().get(str(path), Path(path))
    return Path(path)
