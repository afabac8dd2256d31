"""What a malformed input is, and the small good ones that are spoilt."""

import copy
import functools
import io
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dpmcmc import config as config_room
from dpmcmc.config import file as config_file

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
#: What must be refused, and what may also run.
REFUSED, EITHER = (2,), (0, 2)

#: Writes files into an empty folder and returns the command's arguments.
Make = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Case:
    """One malformed input.

    Attributes:
        name: of the test.
        command: as after ``python -m dpmcmc.`` or ``python -m experiments.``.
        make: writes its files and returns the arguments.
        codes: exit codes that are right.
        words: what the sentence must name, where it is refused.
        data: of the environment variable DPMCMC_DATA, relative to the folder; None leaves it as it is.
        bare: whether ``run`` gets no ``--out`` beside the arguments.
    """

    name: str
    command: str
    make: Make
    codes: tuple[int, ...] = REFUSED
    words: tuple[str, ...] = ()
    data: str | None = None
    bare: bool = False


class Raw(str):
    """A value as it stands in the YAML, for what no Python value would be written as."""


def raws(text: str) -> list[Raw]:
    """Values between bars."""
    return [Raw(part.strip()) for part in text.split(" | ")]


def dumped(values: Any) -> str:
    """YAML of nested values, with each :class:`Raw` put in as it is."""
    found: list[str] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Raw):
            found.append(str(value))
            return f"RAW{len(found) - 1}RAW"
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, list) else value

    text = yaml.safe_dump(plain(values), sort_keys=False, allow_unicode=True)
    for number, raw in enumerate(found):
        text = text.replace(f"RAW{number}RAW", raw)
    return text


def leaves(values: dict, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """(path, value) of everything below a mapping, sections included."""
    for key, value in values.items():
        yield (*path, key), value
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def changed(values: Any, path: tuple, value: Any) -> Any:
    """A copy with one value replaced; thousands are made, so they share what does not lie on the path."""
    out = copy.copy(values)
    out[path[0]] = changed(values[path[0]], path[1:], value) if path[1:] else value
    return out


def without(values: Any, path: tuple) -> Any:
    """A copy with one value left out; it shares what does not lie on the path."""
    if path[1:]:
        return changed(values, path[:1], without(values[path[0]], path[1:]))
    out = copy.copy(values)
    del out[path[0]]
    return out


OWN = """
name: small
data: {path: mine.npz, num_records: 40, row_bound: 1.0}
target: {name: logistic_regression}
sampler: {name: sgld, step_size: 1.0}
sampling: {scheme: full}
privacy: {epsilon: 1.0, delta: 1.0e-3}
run: {steps: 8}
"""
OWNERS = OWN.replace("num_records: 40", "owner: u, num_owners: 10, records_per_owner: 4").replace("1.0e-3", "1.0e-2")
ROWS = 40


@functools.cache
def good_configs() -> dict[str, dict]:
    """Every shipped config and two on a file of one's own, by name, with every default written out."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("own", OWN), ("owners", OWNERS)):
            (Path(folder) / f"{name}.yaml").write_text(text)
        paths = sorted(CONFIGS.glob("*.yaml")) + sorted(Path(folder).iterdir())
        return {p.stem: yaml.safe_load(config_room.dump(config_file.load(p), p.parent)) for p in paths}


def records() -> dict[str, np.ndarray]:
    """What the config ``OWN`` runs on."""
    rng = np.random.RandomState(0)
    return {"x": rng.uniform(-0.5, 0.5, (ROWS, 3)), "y": rng.randint(0, 2, ROWS)}


def zipped(files: dict[str, bytes]) -> bytes:
    """An archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    """One array in NumPy's format."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npz(arrays: dict[str, np.ndarray]) -> bytes:
    """An .npz."""
    return zipped({f"{name}.npy": npy(array) for name, array in arrays.items()})


def everything(folder: Path) -> dict[str, bytes]:
    """:func:`tree`, and every empty folder, pipe and link."""
    names = (str(p.relative_to(folder)) for p in sorted(folder.rglob("*")))
    return dict.fromkeys(names, b"") | tree(folder)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def plant(folder: Path, files: dict[str, bytes]) -> None:
    """Write what :func:`tree` read."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def config(text: dict | str | bytes, *sets: str) -> Make:
    """A config of these values or this text, and overrides."""

    def make(folder: Path) -> list[str]:
        content = text if isinstance(text, bytes) else (dumped(text) if isinstance(text, dict) else text).encode()
        plant(folder, {"config.yaml": content})
        return [str(folder / "config.yaml"), *(a for s in sets for a in ("--set", s))]

    return make


def on_file(content: bytes | None, *sets: str, text: str = OWN, **more: bytes) -> Make:
    """The config ``OWN`` on a data file of this content; ``more`` are files beside it, by stem."""

    def make(folder: Path) -> list[str]:
        plant(folder, {name.replace("_", "."): each for name, each in more.items()})
        plant(folder, {} if content is None else {"mine.npz": content})
        return config(text, *sets)(folder)

    return make


def beside(arguments: str, before: Make) -> Make:
    """These words as arguments, HERE being the folder, beside what ``before`` writes."""

    def make(folder: Path) -> list[str]:
        before(folder)
        words = [word.replace("HERE", str(folder)) for word in arguments.split(" ")]
        return ["" if word == "EMPTY" else word.replace("LONG", "x" * 5000) for word in words if word]

    return make
