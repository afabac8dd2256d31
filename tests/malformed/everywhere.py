"""Every command and every experiment, with names that are no files, folders that are no places, and flags of nonsense.

``INPUTS`` are command lines that read a file, whose name IN stands for; ``OUTPUTS`` write to OUT. A command is refused
before it computes anything, so a line costs milliseconds.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml

from experiments.panel.summary import Mean
from tests.malformed.case import CONFIGS, REFUSED, Case, Make, beside, changed, leaves, npz, on_file, plant, records
from tests.malformed.ledgers import good as good_ledger

#: Experiments that take nothing but --quick, --config and --out.
FIGURES = (
    "coverage",
    "efficiency",
    "fig3_1",
    "fig4_2",
    "fig5_1",
    "fig_pdp_1",
    "fig_per_record",
    "intervals",
)
_SUMMARY = [field.name for field in dataclasses.fields(Mean)]
_BUDGET = "--epsilon 1 --delta 1e-6"
INPUTS = (
    "plan IN",
    "suggest IN",
    "run IN --out HERE/out --quiet",
    "run --resume IN --quiet",
    "fit IN HERE/schema.yaml --epsilon 1 --out HERE/out",
    "fit HERE/rows.parquet IN --epsilon 1 --out HERE/out",
    "schema IN --out HERE/out",
    "sweep IN --out HERE/out --quiet",
    "audit IN",
    "per_record IN --out HERE/out",
    "verify IN",
    "verify IN --json",
    "receipt IN --record HERE/me.npz",
    "receipt HERE/objective --record IN",
    "ledger show IN",
    "ledger history IN --json",
    "ledger copy IN postgresql://ana@127.0.0.1:1/x",
    "ledger show HERE/small.ledger --receipt IN",
    f"ledger init HERE/new {_BUDGET} --typical IN",
    f"ledger init HERE/new {_BUDGET} --programme HERE/config.yaml IN",
    "data IN HERE/out --x a --y b",
    "data HERE/rows.parquet HERE/out --x a --y b --test IN",
    *(f"{name} --config IN --out HERE/out" for name in FIGURES),
    "fig3_2 --panel IN --out HERE/out",
    "fig3_2 choose --panel IN --out HERE/out",
    "headline --config IN --results HERE --out HERE/out",
    "settings IN",
)
#: Names of bad inputs; ``_before`` makes them.
BAD_INPUTS = (
    "HERE/nowhere.yaml",
    "HERE/folder.yaml",
    "HERE/pipe.yaml",
    "HERE/zero.yaml",
    "HERE/null.yaml",
    "HERE/loop.yaml",
    "HERE/loop.yaml/a.yaml",
    "HERE/config.yaml/a.yaml",
    "HERE/empty.yaml",
    "HERE/bytes.yaml",
    "HERE/list.yaml",
    "HERE/LONG.yaml",
)
OUTPUTS = (
    "run HERE/config.yaml --quiet --out OUT",
    "run HERE/config.yaml --quiet --out HERE/out --confidential OUT",
    "sweep HERE/grid.yaml --quiet --out OUT",
    "per_record HERE/config.yaml --out OUT",
    "data HERE/rows.parquet OUT --x a --y b",
    f"ledger init OUT {_BUDGET}",
    "schema HERE/rows.parquet --out OUT",
    "fit HERE/rows.parquet HERE/schema.yaml --epsilon 1 --out OUT",
    "receipt HERE/objective --record HERE/me.npz --out OUT",
    *(f"{name} --quick --out OUT" for name in FIGURES),
    "fig3_2 --panel two_normals --quick --out OUT",
    "fig3_2 choose --panel two_normals --out OUT",
    "headline --quick --results HERE/good --out OUT",
)
BAD_OUTPUTS = (
    "HERE/file",
    "HERE/file/deeper/still",
    "HERE/pipe.yaml",
    "HERE/loop.yaml",
    "HERE/loop.yaml/a",
    "/dev/null",
    "/dev/null/run",
    "/proc/dpmcmc",
    "HERE/LONG",
)
_NUMBERS = ("9" * 31, "-1", "0", "x", "nan", "1.5", "EMPTY", "--quick=1")
#: Options that take a number, which NUMBER stands for.
NUMBERED = (
    "sweep HERE/grid.yaml --out HERE/out --workers NUMBER",
    "audit HERE/config.yaml --runs NUMBER",
    "audit HERE/config.yaml --steps NUMBER",
    "audit HERE/config.yaml --seed NUMBER",
    "audit HERE/config.yaml --confidence NUMBER",
    "audit HERE/config.yaml --records NUMBER",
    "audit HERE/config.yaml --features NUMBER",
    "audit HERE/config.yaml --method one_run --canaries NUMBER",
    "audit HERE/ops.yaml --records NUMBER",
    "audit HERE/ops.yaml --features NUMBER",
    "audit HERE/ops.yaml --steps NUMBER",
    "receipt HERE/objective --record HERE/me.npz --failure NUMBER",
    "suggest --num-records NUMBER --num-features 3 --epsilon 1",
    "suggest --num-records 5000 --num-features NUMBER --epsilon 1",
    "suggest --num-features 3 --epsilon NUMBER --num-records 5000",
    "suggest --delta NUMBER HERE/config.yaml",
    "fit HERE/rows.parquet HERE/schema.yaml --epsilon NUMBER --out HERE/out",
    "fit HERE/rows.parquet HERE/schema.yaml --epsilon 1 --delta NUMBER --out HERE/out",
    "settings HERE/config.yaml --runs NUMBER",
)
#: Ledgers in databases that cannot be reached.
_URLS = (
    "postgresql://ana@127.0.0.1:1/x",
    "postgresql://ana:secret@127.0.0.1:1/x",
    "postgresql://[/x",
    "mysql://ana@h/x",
)
#: Two of them are numbers.
_RIGHT = ("--seed 0", "--epsilon 1.5")
FLAGS = (
    *(f"{command} --nonsense" for command in ("plan", "run", "audit", "per_record", "verify", "ledger", "data")),
    *("configs --nonsense", "configs a", "schema --nonsense", "schema a", "schema --out"),
    *("fit", "fit a", "fit a b", "fit a b --epsilon 1", "fit a b --nonsense", "schema"),
    *("plan", "run", "audit", "per_record", "verify", "ledger", "ledger show", "ledger init HERE/new", "data"),
    *("plan a b", "run a b", "audit a b", "per_record a b --out c", "verify a b", "ledger show a b", "data a b c"),
    *("run a --out", "per_record a", "per_record a --out", "data HERE/rows.parquet HERE/out --x a", "audit a --set"),
    *("sweep", "sweep a b", "sweep --nonsense", "sweep HERE/config.yaml --out HERE/out"),
    *(f"sweep HERE/grid.yaml --out HERE/out --on {url}" for url in ("here", "dask://", "http://h:1", "dask://[")),
    *("plan a --allow-code", "run a --allow-code", "audit a --allow-code", "per_record a --out b --allow-code"),
    *("data HERE/rows.parquet HERE/out --x EMPTY --y b", "data HERE/rows.parquet HERE/out --x a --y a"),
    *("data HERE/rows.parquet HERE/out --x z --y b", "data HERE HERE/out --x a --y b"),
    "audit HERE/config.yaml --method guess",
    "per_record HERE/config.yaml --set privacy.ledger=nowhere --out HERE/out/deep",
    "per_record HERE/ops.yaml --out HERE/out",
    *(f"ledger show HERE/small.ledger --receipt HERE/{name}.json" for name in ("receipt", "deep")),
    *("ledger copy", "ledger copy HERE/small.ledger", "ledger copy HERE/small.ledger HERE/other", "ledger copy a b c"),
    *(f"ledger copy HERE/small.ledger {url}" for url in _URLS),
    *(f"ledger show {url}" for url in _URLS),
    *(f"{name} --{flag}" for name in FIGURES for flag in ("nonsense", "out", "config", "quick=1")),
    *(f"{name} extra" for name in FIGURES),
    *("receipt", "receipt a", "receipt HERE/objective", "receipt HERE/objective --record"),
    *(
        f"receipt HERE/{run} --record HERE/me.npz{more}"
        for run, more in (("released", ""), ("objective", " --nonsense"))
    ),
    *("suggest", "suggest a b", "suggest --nonsense", "suggest --goal fun HERE/config.yaml", "suggest --json"),
    *(f"experiments.suggest --{flag}" for flag in ("nonsense", "out", "tables nothing", "splits x", "truths x")),
    *(
        f"benchmark --{flag}"
        for flag in ("nonsense", "out", "tables diamonds", "methods x", "epsilons 0", "epsilons nan", "repeats x")
    ),
    *(f"benchmark --{flag}" for flag in ("repeats 0", "workers 0", "page HERE/nowhere", "page HERE/config.yaml")),
    *("fig3_2", "fig3_2 --panel", "fig3_2 --panel two_normals", "fig3_2 --out HERE/out", "fig3_2 --nonsense"),
    *(f"fig3_2 --panel {panel} --out HERE/out" for panel in ("nothing", "EMPTY", "../adult", "LONG")),
    *("fig3_2 guess --panel two_normals --out HERE/out", "fig3_2 --panel two_normals --out HERE/out extra"),
    *(f"fig3_2{name} --panel two_normals --out HERE/out --methods none" for name in ("", " choose")),
    *(f"fig3_2{name} --panel two_normals --out HERE/out --encodings none" for name in ("", " choose")),
    *("headline", "headline --results HERE", "headline --out HERE/out", "headline --nonsense", "headline extra"),
    *(f"headline --results HERE/{place} --out HERE/out" for place in ("nowhere", "file", "pipe.yaml", "bad", "piped")),
    *("settings", "settings guess", "settings --nonsense", "settings HERE/ops.yaml", "settings HERE/config.yaml"),
)
_OPS = """
name: ops
data: {path: mine.npz, num_records: 40, row_bound: 1.0}
target: {name: logistic_regression}
mechanism: {name: ops}
privacy: {epsilon: 1.0, delta: 1.0e-3}
"""


@functools.cache
def _parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.parquet"
        parquet.write_table(pyarrow.table({"a": [0.5, 0.25], "b": [0, 1]}), path)
        return path.read_bytes()


@functools.cache
def _released() -> dict[str, bytes]:
    """Files of two results, for commands that read one, and the row of a record."""
    from dpmcmc.mechanisms import ObjectivePerturbation
    from tests.storage.test_result import logistic, released

    plan = ObjectivePerturbation(regularisation=10.0).plan(logistic(), num_records=5000, epsilon=1.0, delta=1e-6)
    made = {"released": released(), "objective": released(np.zeros((1, 1, 3), np.float32), plan)}
    files = {"me.npz": npz({"x": np.full((1, 3), 0.1), "y": np.zeros(1, int)})}
    with tempfile.TemporaryDirectory() as name:
        for place, result in made.items():
            folder = result.save(Path(name) / place)
            files |= {f"{place}/{path.name}": path.read_bytes() for path in Path(folder).iterdir()}
    return files


def _before(folder: Path) -> list[str]:
    on_file(npz(records()))(folder)
    plant(
        folder,
        {
            "file": b"precious",
            "empty.yaml": b"",
            "bytes.yaml": random.Random(12).randbytes(3000),
            "list.yaml": b"[1, 2]\n",
            "ops.yaml": _OPS.encode(),
            "grid.yaml": f"{_OPS}sweep: {{repeats: 2}}\n".encode(),
            "small.ledger": good_ledger(),
            "rows.parquet": _parquet(),
            "schema.yaml": b"{columns: {a: {range: [0, 1]}, b: {levels: [0, 1]}}, label: b}",
            "receipt.json": b'{"id": "a", "sequence": Infinity, "hash": "b"}',
            "deep.json": b"[" * 100_000,
            **_released(),
            "bad/summary.csv": b"epsilon,accuracy\nx,y\n",
            "good/summary.csv": ",".join(_SUMMARY).encode() + b"\n" + b"1" + b",1" * (len(_SUMMARY) - 1) + b"\n",
        },
    )
    (folder / "folder.yaml").mkdir()
    (folder / "piped").mkdir()
    for name in ("pipe.yaml", "piped/summary.csv"):
        os.mkfifo(folder / name)
    for name, target in (("zero.yaml", "/dev/zero"), ("null.yaml", "/dev/null"), ("loop.yaml", folder / "loop.yaml")):
        (folder / name).symlink_to(target)
    return []


def _case(line: str, *words: str) -> Case:
    command, _, rest = line.partition(" ")
    named = tuple(word.removeprefix("HERE/") for word in words if "LONG" not in word)
    return Case(line, command, beside(rest, _before), REFUSED, named, bare=True)


def inputs() -> Iterator[Case]:
    """Every command that reads a file, on every name that is none."""
    for line in INPUTS:
        for bad in BAD_INPUTS:
            yield _case(" ".join(bad if word == "IN" else word for word in line.split(" ")), bad)


def outputs() -> Iterator[Case]:
    """Every command that writes, to every place that is none."""
    for line in OUTPUTS:
        for bad in BAD_OUTPUTS:
            yield _case(line.replace("OUT", bad), bad)


def flags() -> Iterator[Case]:
    """Command lines that are none."""
    for line in FLAGS:
        yield _case(line)


def numbers() -> Iterator[Case]:
    """Numbers that make no sense."""
    for line in NUMBERED:
        option = line.split(" ")[line.split(" ").index("NUMBER") - 1]
        words = [option] if line.endswith("NUMBER") else []
        for number in _NUMBERS:
            if f"{option} {number}" not in _RIGHT:
                yield _case(line.replace("NUMBER", number), *words)


def _spoilt(command: str, what: str, values: dict, word: str) -> Case:
    """An experiment on a YAML of these values."""
    option = {"fig3_2": "--panel", "headline": "--results HERE/good --config"}.get(command, "--config")

    def before(folder: Path) -> list[str]:
        _before(folder)
        return plant(folder, {"spoilt.yaml": yaml.safe_dump(values, sort_keys=False).encode()}) or []

    make = beside(f"{option} HERE/spoilt.yaml --out HERE/out", before)
    return Case(f"{command}-{what}", command, make, REFUSED, ("spoilt.yaml", word), bare=True)


def experiment_settings() -> Iterator[Case]:
    """Every value of an experiment's YAML of a wrong type, lists that are empty, and unknown keys."""
    for command in (*FIGURES, "headline", "fig3_2"):
        stem = "fig3_2_two_normals" if command == "fig3_2" else command
        body = yaml.safe_load((CONFIGS / "figures" / f"{stem}.yaml").read_text(encoding="utf-8"))
        if command == "fig3_2":  # whose methods take what they take
            body = {key: value for key, value in body.items() if key != "settings"} | {"grids": {}}
        yield _spoilt(command, "unknown", body | {"epsilom": 1}, "epsilom")
        for path, value in leaves(body):
            name, wrong = ".".join(path), 3 if isinstance(value, dict) else {"a": 1}
            yield _spoilt(command, f"type-{name}", changed(body, path, wrong), path[-1])
            odd = {"name": "no/such", "adjacency": "swap"}.get(path[-1]) or (10**14 if isinstance(value, int) else None)
            if odd is not None:
                yield _spoilt(command, f"odd-{name}", changed(body, path, odd), path[-1])
            if isinstance(value, list):
                yield _spoilt(command, f"empty-{name}", changed(body, path, []), path[-1])


def _piped(*names: str, sets: tuple[str, ...] = ()) -> Make:
    """The small config on its file, with pipes under these names."""

    def make(folder: Path) -> list[str]:
        out = on_file(npz(records()), *sets)(folder)
        for name in names:
            (folder / name).unlink(missing_ok=True)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(folder / name)
        return out

    return make


def pipes() -> Iterator[Case]:
    """Pipes and devices where a config or an environment names data."""
    yield Case("pipe-data", "run", _piped("mine.npz"), REFUSED, ("mine.npz",))
    yield Case("pipe-rows", "run", _piped("mine/x.npy", "mine/y.npy", sets=("data.path=mine",)), REFUSED, ("x.npy",))
    yield Case("pipe-ledger", "run", _piped("budget", sets=("privacy.ledger=budget",)), REFUSED, ("budget",))
    own = "experiments.preconditioned:PreconditionedSGLD"
    for metric in ("metric.npy", "/dev/zero"):
        sets = (f"sampler={{name: '{own}', step_size: 1.0, metric: {metric}}}",)
        yield Case(f"pipe-{metric}", "plan", _piped("metric.npy", sets=sets), REFUSED, ("metric",))
        sets = (f"sampler={{name: sgfs, step_size: 1.0, noise_ratio: 1.0, metric: {metric}}}",)
        yield Case(f"pipe-sgfs-{metric}", "plan", _piped("metric.npy", sets=sets), REFUSED, ("metric",))

    def official(folder: Path) -> list[str]:
        (folder / "data").mkdir()
        os.mkfifo(folder / "data" / "abalone.data")
        return [str(CONFIGS / "abalone.yaml"), "--set", "data.standin=allow"]

    yield Case("pipe-official", "run", official, REFUSED, ("abalone.data",), data="data")
