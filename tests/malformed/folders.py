"""--out, --confidential and --resume on what is no place for a run, and command lines that are none."""

import contextlib
import functools
import hashlib
import io
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmcmc.cli.commands import main
from dpmcmc.engine.life import Life
from tests.malformed.case import EITHER, REFUSED, Case, Make, beside, npz, on_file, plant, records, tree, zipped

#: Beside those that every command refuses.
_OUT = """
--out HERE/full
--out HERE/hidden
--out HERE/nested
--out HERE/broken
--out HERE/LONG/LONG
--out EMPTY
--out HERE/out --confidential HERE/out/mine
--out HERE/out --confidential HERE/out
--out HERE/a/../a --confidential HERE/b/../a/c
--out HERE/out --confidential HERE/file
--out HERE/out --confidential HERE/full
--out HERE/out --confidential /dev/null
--out HERE/out --confidential HERE/LONG
--out HERE/out --confidential EMPTY
--out HERE/out --confidential HERE/loop
--out HERE/out --confidential HERE/loop/a
""".strip().splitlines()
_LINES = """
--set
--resume
--confidential
--set a=1
--out x --resume x
--resume x --set name=y
--resume EMPTY
--resume /
--resume /dev/null
--resume HERE
--resume HERE/nowhere
--resume HERE/config.yaml
--resume LONG
--resume HERE HERE/config.yaml
--quiet=yes
--quie --ou
""".splitlines()


def places() -> Iterator[Case]:
    """Folders that are taken, impossible, or inside one another; command lines."""
    start = on_file(npz(records()))

    def before(folder: Path) -> list[str]:
        full = {
            "file": b"precious",
            "full/draws.nc": b"precious",
            "hidden/.a": b"precious",
            "nested/a/b/c": b"precious",
        }
        plant(folder, full)
        (folder / "broken").symlink_to(folder / "nowhere")
        (folder / "loop").symlink_to(folder / "loop")
        return start(folder)

    for number, line in enumerate(_OUT):
        make = beside(f"HERE/config.yaml {line}", before)
        yield Case(f"place-{number}-{line}", "run", make, REFUSED, (line.split()[-2],))
    for number, line in enumerate(_LINES):
        for command in ("run", "plan"):
            yield Case(f"line-{number}-{line}-{command}", command, beside(line, start), bare=True)


@functools.cache
def stopped() -> dict[str, bytes]:
    """A run of the small config in ``out`` that was stopped after its first chunk."""

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder, carry_out = Path(name), Life.carry_out
        patch.setattr(Life, "carry_out", lambda life, progress=None: carry_out(life, stop))
        with contextlib.redirect_stderr(io.StringIO()):
            code = main(["run", *on_file(npz(records()))(folder), "--out", str(folder / "out"), "--quiet"])
        assert code == 130
        return tree(folder)


_KEPT = "out/confidential/checkpoint/"
_RUN, _STATES = _KEPT + "run.json", (_KEPT + "state-0.bin", _KEPT + "state-1.bin")
_RUN_JSON = {
    "empty": b"",
    "random": random.Random(6).randbytes(300),
    "dict": b"{}",
    "version": b'{"version": 99}',
    "bare": b'{"version": 2}',
    "plan-alone": b'{"version": 2, "plan": "x"}',
    "deep": b"[" * 100_000,
    "nan": b'{"version": NaN}',
    "long-number": b'{"version": ' + b"9" * 10_000 + b"}",
}
_STATE = {
    "random": random.Random(7).randbytes(500),
    "empty": b"",
    "signed-nonsense": b"nonsense",
    "signed-zip": zipped({"a": b"b"}),
    "signed-bare": npz({"body": np.frombuffer(b"{}", np.uint8)}),
    "signed-other": npz({"body": np.frombuffer(b'{"more": 1}', np.uint8)}),
    "signed-text": npz({"body": np.frombuffer(b"words", np.uint8)}),
}


def _resumed(files: Callable[[], dict[str, bytes | None]], arguments: str = "--resume HERE/out --quiet") -> Make:
    """``--resume`` of the stopped run with some files replaced, or taken away."""

    def make(folder: Path) -> list[str]:
        plant(folder, {name: content for name, content in {**stopped(), **files()}.items() if content is not None})
        (folder / "out" / "figures").mkdir(parents=True, exist_ok=True)  # empty, so not among the files
        return beside(arguments, lambda folder: [])(folder)

    return make


def _piped(name: str) -> Make:
    """``--resume`` of the stopped run with a pipe in the place of a file."""
    resumed = _resumed(lambda: {name: None})

    def make(folder: Path) -> list[str]:
        arguments = resumed(folder)
        os.mkfifo(folder / name)
        return arguments

    return make


def _flipped(name: str, seed: int) -> bytes:
    content, rng = bytearray(stopped()[name]), random.Random(seed)
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def resumes() -> Iterator[Case]:
    """``--resume`` on folders that are no stopped run, or no longer."""
    whole: dict[str, Callable[[], dict[str, bytes | None]]] = {
        "no-config": lambda: {"out/config.yaml": None},
        "empty-config": lambda: {"out/config.yaml": b""},
        "other-config": lambda: {"out/config.yaml": stopped()["out/config.yaml"].replace(b"size: 1.0", b"size: 2.0")},
        "random-config": lambda: {"out/config.yaml": random.Random(5).randbytes(500)},
        "no-checkpoint": lambda: {name: None for name in stopped() if name.startswith(_KEPT)},
        "no-run-json": lambda: {_RUN: None},
        "no-data": lambda: {"mine.npz": None},
        "other-data": lambda: {"mine.npz": npz({**records(), "x": records()["x"] / 2})},
        "fewer-data": lambda: {"mine.npz": npz({k: v[:-1] for k, v in records().items()})},
        "damaged-data": lambda: {"mine.npz": b"PK"},
        "done": lambda: {name: None for name in stopped() if name.startswith(_KEPT)} | {"out/metrics.json": b"{}"},
    }
    for name, files in whole.items():
        yield Case(f"resume-{name}", "run", _resumed(files), REFUSED if name != "no-run-json" else EITHER)
    for name in (_RUN, *_STATES):
        codes = REFUSED if name == _RUN else EITHER
        yield Case(f"resume-pipe-{Path(name).name}", "run", _piped(name), codes)
    for name, content in _RUN_JSON.items():
        codes = EITHER if name == "bare" else REFUSED
        yield Case(f"resume-run-json-{name}", "run", _resumed(lambda content=content: {_RUN: content}), codes)
    for key in ("plan", "records", "records_key", "platform", "secret", "keys", "again", "notes", "stages"):
        for number, value in enumerate([None, 1, "x", [], {}, [[1, 2]], True]):

            def spoilt(key: str = key, value: Any = value) -> dict[str, bytes | None]:
                return {_RUN: json.dumps({**json.loads(stopped()[_RUN]), key: value}).encode()}

            yield Case(f"resume-{key}-{number}", "run", _resumed(spoilt), EITHER)
    for name, content in _STATE.items():
        signed = hashlib.sha256(content).digest() + content if name.startswith("signed") else content
        states = _resumed(lambda signed=signed: dict.fromkeys(_STATES, signed))
        yield Case(f"resume-state-{name}", "run", states, EITHER)
    for seed in range(4):
        flipped = _resumed(lambda seed=seed: {_STATES[0]: _flipped(_STATES[0], seed)})
        yield Case(f"resume-state-flipped-{seed}", "run", flipped, EITHER)
    for line in ("HERE/config.yaml --set run.steps=9", "--confidential HERE/nowhere"):
        make = _resumed(dict, f"--resume HERE/out {line}")
        yield Case(f"resume-with-{line}", "run", make, REFUSED, ("--resume",))
