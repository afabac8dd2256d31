"""Bad input gives exit code 2 and one sentence, or runs correctly: never a traceback, never a half-written file."""

import collections
import contextlib
import functools
import importlib
import io
import json
import os
import random
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import xarray

from dpmcmc.cli.commands import COMMANDS as SUBCOMMANDS
from dpmcmc.cli.commands import main
from dpmcmc.data import store
from dpmcmc.errors import InputError
from experiments.commands import command
from tests import malformed
from tests.malformed import Case

ROOT = Path(__file__).resolve().parents[2]
#: Files of experiments: those that can be started, but for the one that imports nothing of ours, its refusals included,
#: the picture of the README, which takes no options, and the plain scripts of sources, which take a folder alone.
FILES = [
    path
    for path in sorted((ROOT / "experiments").rglob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8") and path.stem not in ("from_scratch", "front_picture")
    if path.parent.name != "sources"
]


def _main(path: Path) -> Callable[[list[str]], int]:
    """An experiment's entry point, imported when it is called."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return lambda arguments: importlib.import_module(name).main(arguments)


def _experiment(path: Path) -> str:
    """Its name; one that a subcommand has too stands behind ``experiments.``."""
    name = (path.parent if path.stem == "__main__" else path).stem
    return f"experiments.{name}" if name in SUBCOMMANDS else name


def _dpmcmc(*words: str) -> Callable[[list[str]], int]:
    return lambda arguments: main([words[0], *arguments, *words[1:]])


#: By what stands after ``dpmcmc``, or after ``python -m experiments.``.
COMMANDS = {
    **{name: _dpmcmc(name) for name in SUBCOMMANDS},
    "per_record": _dpmcmc("run", "--per-record"),
    **{_experiment(path): _main(path) for path in FILES},
}
#: A message is read in a terminal: two or three of its lines and a path.
LONGEST = 700


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No network, and nothing left in this process of a user's module."""

    def offline(name):
        raise store.FileUnavailable(f"{name} is in no folder: set data.standin: allow.")

    monkeypatch.setattr(store, "_download", offline)


class Waits(BaseException):
    """A command was not done in time; no ``except`` of its own may catch it."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise :class:`Waits` in a command that does, as one does that opens a pipe."""

    def stop(*_: object) -> None:
        raise Waits(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def called(case: Case, folder) -> tuple[int, str, str, dict[str, bytes], dict[str, bytes]]:
    """(exit code, stdout, stderr, files before, files after) of a case's command, called in this process."""
    arguments = case.make(folder)
    if case.command == "run" and not case.bare and not {"--out", "--resume"} & set(arguments):
        arguments += ["--out", str(folder / "out"), "--quiet"]
    before, out, err = malformed.everything(folder), io.StringIO(), io.StringIO()
    paths, modules = list(sys.path), set(sys.modules)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(folder)
        if case.data is not None:
            patch.setenv("DPMCMC_DATA", case.data if case.data.startswith("~") else str(folder / case.data))
        try:
            with within(seconds=120):
                code = COMMANDS[case.command](arguments)
        finally:
            sys.path[:] = paths
            for name in set(sys.modules) - modules:
                if name.startswith("malformed"):
                    del sys.modules[name]
    after = {name: content for name, content in malformed.everything(folder).items() if "__pycache__" not in name}
    return code, out.getvalue(), err.getvalue(), before, after


def faults(case: Case, folder) -> tuple[int | None, list[str]]:
    """(exit code, or None after an exception; what is wrong with how the command took the case)."""
    try:
        code, out, err, before, after = called(case, folder)
    except (Exception, SystemExit, Waits) as error:
        return None, [f"raised {type(error).__name__}: {error}"]
    wrong = [] if code in case.codes else [f"exit code {code}, expected one of {case.codes}"]
    if code == 0:
        wrong += [f"printed an error and succeeded: {err}"] if err else []
        wrong += [] if out.strip() else ["printed nothing"]
        wrong += ["printed a number that is none"] if re.search(r"\bnan\b", out) else []
    else:
        wrong += not_one_sentence(err)
        wrong += [f"names no {word!r}" for word in case.words if word not in err]
    if code == 2 and before != after:
        wrong.append(f"left or changed {sorted(n for n in before | after if before.get(n) != after.get(n))}")
    return code, [*wrong, *half_written(case, folder, code)] if wrong == [] or code == 0 else [*wrong, err]


def not_one_sentence(error: str) -> list[str]:
    """What keeps a message from being one printable line of one sentence."""
    wrong = [] if error.startswith("error: ") else ["no error:"]
    wrong += [] if error.count("\n") == 1 and error.endswith(".\n") else ["not one line that ends in a stop"]
    wrong += ["a traceback"] if "Traceback" in error else []
    wrong += ["two sentences"] if re.search(r"[.!?][)'\"]?\s+[A-Z(]", error.replace("Wang's", "")) else []
    wrong += ["characters that a terminal obeys"] if not error[:-1].isprintable() else []
    wrong += [f"{len(error)} characters"] if len(error) > LONGEST else []
    return wrong


def half_written(case: Case, folder, code: int) -> list[str]:
    """Files of a run that ended which do not parse, or a cost that does not cover its events."""
    out = folder / "out"
    if case.command != "run" or code == 2 or not out.is_dir():
        return []
    for path in out.rglob("*.json"):
        json.loads(path.read_bytes(), parse_constant=pytest.fail)
    if code == 0:
        with xarray.open_datatree(out / "draws.nc", engine="h5netcdf") as draws:
            held = [name for name in ("posterior", "path", "draws") if name in draws.children]
            assert held
            assert all(draws[name].sizes["draw"] >= 1 for name in held)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as error:
        stated = json.loads((out / "privacy.json").read_bytes())["epsilon"] is not None
        if stated and main(["verify", str(out / "privacy.json")]):
            return [f"privacy.json does not verify: {error.getvalue()}"]
    leftover = [str(p) for p in out.rglob("*") if p.name.startswith(".") or "checkpoint" in p.name]
    return [f"left {leftover}"] if leftover else []


@functools.cache
def sample(seed: int, **sizes: int) -> list[Case]:
    """So many cases of each group; all of a smaller one."""
    out: list[Case] = []
    for group in malformed.GROUPS:
        of_group = list(group())
        size = sizes.get(group.__name__, 0)
        out += of_group if size >= len(of_group) else random.Random(seed).sample(of_group, size)
    return out


#: How many of each group are quick.
QUICK = dict(
    values=16, pairs=4, sections=8, files=7, overrides=7, modules=6, arrays=2, archives=3, declared=3,
    official=1, places=3, resumes=3, saved=5, damaged=3, ledgers=3,
)  # fmt: skip


# By number, since it takes seconds to list the cases, which collecting would for every worker.
@pytest.mark.parametrize("number", range(sum(QUICK.values())))
def test_bad_input_is_refused_in_one_sentence_or_runs(number, tmp_path):
    cases = sample(1, **QUICK)
    assert len(cases) == sum(QUICK.values())
    assert (cases[number].name, faults(cases[number], tmp_path)[1]) == (cases[number].name, [])


def all_faults(cases: Iterable[Case], folder: Path) -> tuple[collections.Counter, dict[str, list[str]]]:
    """(How many cases ended with which exit code; what is wrong, by case)."""
    codes: collections.Counter = collections.Counter()
    found = {}
    for number, case in enumerate(cases):
        place = folder / str(number)
        place.mkdir()
        code, wrong = faults(case, place)
        codes[code] += 1
        if wrong:
            found[case.name] = wrong
    return codes, found


@pytest.mark.parametrize("rest", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "rest"])
@pytest.mark.parametrize("group", malformed.EVERYWHERE, ids=lambda group: group.__name__)
def test_every_command_and_experiment_refuses_in_one_sentence_and_leaves_nothing(group, rest, tmp_path):
    """Every fifth case, in which each command and each kind of input occurs, and then the others."""
    cases = [case for number, case in enumerate(group()) if (number % 5 != 0) == rest]
    assert all_faults(cases, tmp_path)[1] == {}


def test_the_table_has_every_command_and_experiment():
    cases = [case for group in malformed.EVERYWHERE for case in group()]
    assert {case.command for case in cases} == {name for name in COMMANDS if name != "fake"}
    assert len(COMMANDS) >= 16


@pytest.mark.slow
@pytest.mark.parametrize("most", [8, pytest.param(999, marks=pytest.mark.exhaustive)])
def test_two_thousand_bad_inputs(tmp_path, most):
    """The same, of every kind; prints how many there were and how they ended."""
    cases = sample(
        2, values=min(500, 3 * most), pairs=min(150, most), sections=min(150, most), files=most,
        overrides=most, modules=most, arrays=most, archives=most, declared=most, owners=most, official=most,
        places=most, resumes=min(60, most // 4), saved=most, ledgers=most,
    )  # fmt: skip
    codes, found = all_faults(cases, tmp_path)
    print(f"{sum(codes.values())} cases: " + ", ".join(f"exit {code} {count}" for code, count in codes.items()))
    assert found == {}
    assert sum(codes.values()) >= (2000 if most > 500 else 100)


def fake(main, codes=(2,), words=()):
    """A case whose command is ``main``."""
    COMMANDS["fake"] = command(main)
    return Case("fake", "fake", lambda folder: [str(folder)], codes, words)


def says(text):
    """A command that refuses with this text, unedited."""

    def main(argv):
        print(text, file=sys.stderr)
        raise SystemExit(2)

    return main


def test_the_check_finds_what_it_is_for(tmp_path):
    """A traceback, a wrong code, two sentences, a message that names nothing, files left behind and odd output."""

    def raises(argv):
        raise KeyError("a fault of the library")

    def refuses(argv):
        raise InputError("data.x: is wrong; mend it")

    def two(argv):
        raise InputError("data.x: is wrong. Mend it")

    def leaves(argv):
        with open(os.path.join(argv[0], "half"), "w") as file:
            file.write("{")
        raise InputError("data.x: is wrong; mend it")

    def not_a_number(argv):
        print("epsilon nan")

    assert faults(fake(refuses, words=("data.x",)), tmp_path) == (2, [])
    assert "exit code 70" in faults(fake(raises), tmp_path)[1][0]
    assert "raised SystemExit" in faults(fake(says("usage: nothing")), tmp_path)[1][0]
    assert "exit code 2" in faults(fake(refuses, codes=(0,)), tmp_path)[1][0]
    assert "two sentences" in faults(fake(two), tmp_path)[1]
    assert "names no 'data.y'" in faults(fake(refuses, words=("data.y",)), tmp_path)[1]
    assert "printed a number that is none" in faults(fake(not_a_number, codes=(0,)), tmp_path)[1]
    assert faults(fake(leaves), tmp_path)[1][0] == "left or changed ['half']"
    assert not_one_sentence("error: a\nb.\n") == [
        "not one line that ends in a stop",
        "characters that a terminal obeys",
    ]
    assert not_one_sentence("error: \x1b[31m.\n") == ["characters that a terminal obeys"]
