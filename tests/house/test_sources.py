"""docs/sources.md: each row has a place that exists, a command that is understood, and its correction."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
from pathlib import Path

import pytest

from dpmcmc.config import file as config_file

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
HEAD = "| row | status | place | command | correction, or why not |"
STATUSES = ("as printed", "corrected", "partly", "ours", "not built", "other kind")


def rows() -> list[list[str]]:
    tables = [part.split("\n\n")[0].splitlines()[1:] for part in PAGE.split(HEAD + "\n")[1:]]
    return [[cell.strip() for cell in line[1:-1].split("|")] for table in tables for line in table]


ROWS = rows()


def test_every_row_of_the_reading_is_there():
    assert len(ROWS) >= 75
    names = [row[0] for row in ROWS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_row_is_whole(row):
    assert len(row) == 5, row
    _, status, place, command, note = row
    assert status in STATUSES
    if status in ("not built", "other kind"):
        assert (place, command) == ("", "")
        assert len(note.split()) >= 1
        return
    (path,) = re.findall(r"`([\w/.]+)`", place)
    assert (ROOT / path).exists(), path
    assert command
    assert note or status == "as printed"


COMMANDS = [words for row in ROWS for words in re.findall(r"`((?:dpmcmc|python) [^`]+)`", row[3])]


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_a_command_of_a_row_is_understood(command):
    program, *words = shlex.split(command)
    if program == "python":
        assert words[0] == "-m"
        assert importlib.util.find_spec(words[1]) is not None
        return
    if words[0] in ("plan", "run"):
        changes = [change for option, change in itertools.pairwise(words[2:]) if option == "--set"]
        config_file.load(words[1], changes)
        return
    assert words[0] in ("verify", "audit", "receipt", "per-record", "ledger")
