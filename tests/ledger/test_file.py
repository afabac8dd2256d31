"""One file, whatever it is called: full disks, links, moves, kills between two writes, older versions.

A ledger that was edited, rolled back or cut short is noticed, and what is no ledger is refused.

``dpmcmc ledger``: init, show and history.
"""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import random
import re
import resource
import shutil
from pathlib import Path

import pytest
import yaml

from dpmcmc.privacy import Event, Guarantee, Ledger, LedgerError
from dpmcmc.privacy.ledger import BrokenChain, Receipt, file
from dpmcmc.storage.checkpoint import Checkpoint, CheckpointError
from tests.ledger.ledgers import ROOT, TERMS, call, edited, refused, release

#: Rows and tables of a ledger that version 2 wrote.
OLD = Path(__file__).with_name("version_2.sql")


@pytest.mark.parametrize("room", [0, 0.3, 1, 1.5, 1.9])
@pytest.mark.parametrize("kinds", [1, 200])
def test_a_full_disk_leaves_the_ledger_as_it_was(used, path, room, kinds):
    """As there is room for so many times the ledger's size, and its change of one or of many kinds of event."""
    before, whole, limits = used.history(), path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    events = tuple(Event("gaussian", 1e4 + k, 1.0, 1) for k in range(kinds))
    run = Guarantee.from_events(events, delta=1e-6, adjacency="replace_one", accountant="pld")
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room * len(whole)), limits[1]))
    try:
        with pytest.raises(LedgerError, match="disk is full") as refusal:
            used.reserve(run, "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(refusal.value)
    assert path.read_bytes() == whole
    assert used.history() == before
    used.reserve(run, "after")
    assert len(used.history()) == len(before) + 1


def test_a_new_ledger_on_a_full_disk_is_not_there(path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises(LedgerError):
            Ledger.init(path, **TERMS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(path.parent.iterdir()) == []


def test_a_second_hard_link_is_refused_with_exit_code_2(ledger, path, fifth, tmp_path, capsys):
    other = tmp_path / "other"
    other.hardlink_to(path)
    for name in (path, other):
        assert "2 names" in refused(capsys, 2, "show", name)
    with pytest.raises(LedgerError, match="2 names"):
        ledger.reserve(fifth, "run")
    other.unlink()
    assert ledger.state().runs == ()
    # The remains of a killed init are the ledger's own to remove.
    path.with_name(f".{path.name}.{'0' * 16}").hardlink_to(path)
    ledger.reserve(fifth, "run")
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_ledger_that_is_moved_while_a_run_reserves_is_said_to_be(ledger, path, fifth, monkeypatch):
    real = file.Inode.replace

    def moved(self, content):
        path.rename(path.with_name("moved"))
        real(self, content)

    monkeypatch.setattr(file.Inode, "replace", moved)
    with pytest.raises(LedgerError, match="moved or replaced"):
        ledger.reserve(fifth, "run")
    monkeypatch.undo()
    assert len(Ledger(path.with_name("moved")).state().open) == 1


def test_a_moved_ledger_is_locked_under_its_new_name(ledger, path, monkeypatch):
    monkeypatch.setattr(file, "_PATIENCE", 0.05)
    other = path.with_name("moved")
    with file.change(path):
        path.rename(other)
        with pytest.raises(LedgerError, match="kept the ledger locked"):
            Ledger(other)
        other.rename(path)
    Ledger(path).check()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_called_that(ledger, path, monkeypatch, number, tmp_path):
    def none(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", none)
    with pytest.raises(LedgerError, match=f"cannot be locked .{os.strerror(number)}.*local disk"):
        ledger.state()
    with pytest.raises(CheckpointError, match=f"cannot be locked .{os.strerror(number)}.*local disk"):
        Checkpoint(tmp_path / "checkpoint")


class Killed(BaseException):
    """An end that no handler survives."""


def kill_at(patch, moment):
    """Let so many writes, cuts and flushes of a ledger happen; every one after is refused, as after a kill."""
    count = itertools.count()

    def limited(name, real, most=None):
        def call(handle, *arguments):
            if next(count) < moment:
                return real(handle, *((bytes(arguments[0][:most]),) if most else arguments))
            if most and next(count) == moment + 1:
                real(handle, bytes(arguments[0][: most // 2]))  # torn in the middle
            raise Killed

        patch.setattr(os, name, call)

    limited("write", os.write, 300)
    limited("ftruncate", os.ftruncate)
    limited("fsync", os.fsync)


def test_a_kill_between_any_two_writes_leaves_all_or_nothing(used, path, tmp_path, fifth, monkeypatch):
    """A change, and the part of it that the next process finishes."""
    whole, before = path.read_bytes(), used.history()
    seen = set()
    for moment in itertools.count():
        path.write_bytes(whole)
        told = None
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            kill_at(patch, moment)
            told = used.reserve(fifth, "killed")
        left = path.read_bytes()
        for again in range(0, 60, 7):
            path.write_bytes(left)
            entries = used.history()
            assert entries[: len(before)] == before
            assert len(entries) - len(before) in ({1} if told else {0, 1})
            seen.add((len(left) > len(whole), len(entries)))
            with monkeypatch.context() as patch, contextlib.suppress(Killed, LedgerError):
                kill_at(patch, again)
                used.settle(used.history()[2].run, "released")
            after = used.history()
            assert after[: len(entries)] == entries
            assert len(after) - len(entries) in (0, 1)
        if told is not None:
            break
    assert moment > 30
    assert {entries for _, entries in seen} == {len(before), len(before) + 1}
    # A reader sees what is appended before it is in its place.
    assert (True, len(before) + 1) in seen


def test_a_database_of_an_older_version_is_refused_and_left_as_it_was(path):
    path.write_bytes(b"SQLite format 3\0" + bytes(4080))
    with pytest.raises(LedgerError, match="is a database, as ledgers of versions 1 and 2 were"):
        Ledger(path)
    assert path.read_bytes() == b"SQLite format 3\0" + bytes(4080)


def test_a_ledger_that_cannot_be_written_is_read_and_not_spent_from(used, path, fifth, monkeypatch):
    """On a mount that is read-only."""
    real = os.open

    def read_only(name, flags, *mode):
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(name, flags, *mode)

    for made, runs in ((lambda: None, 4),):
        made()
        whole = path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", read_only)
            ledger = Ledger(path)
            assert len(ledger.state().runs) == runs
            with pytest.raises(LedgerError, match="cannot be changed"):
                ledger.reserve(fifth, "run")
        assert path.read_bytes() == whole


def renumbered(entries):
    for place, entry in enumerate(entries, start=1):
        entry["sequence"] = place


def replaced(entry, old, new):
    assert old in entry["text"]
    entry["text"] = entry["text"].replace(old, new)


EDITS = {
    "third removed": lambda first, entries: entries.pop(2),
    "last removed": lambda first, entries: entries.pop(),
    "all but the terms removed": lambda first, entries: entries.__delitem__(slice(1, None)),
    "all removed": lambda first, entries: entries.clear(),
    "third removed, others renumbered": lambda first, entries: (entries.pop(2), renumbered(entries)),
    "last removed, head set back": lambda first, entries: (entries.pop(), first.update(entries=4)),
    "second repeated at the end": lambda first, entries: entries.append(entries[1] | {"sequence": 6}),
    "second repeated, head moved": lambda first, entries: (entries.append(dict(entries[1])), first.update(entries=6)),
    "order changed": lambda first, entries: entries.reverse(),
    "cost lowered": lambda first, entries: replaced(entries[2], '"cost": 0.', '"cost": 0.0'),
    "budget raised": lambda first, entries: replaced(entries[0], '"budget": 0.', '"budget": 9.'),
    "kind changed": lambda first, entries: entries[3].update(kind="settle"),
    "time changed": lambda first, entries: entries[4].update(time="2000-01-01"),
    "nonce changed": lambda first, entries: entries[1].update(nonce=""),
    "head changed": lambda first, entries: first.update(hash="x"),
    "head removed": lambda first, entries: (first.pop("entries"), first.pop("hash")),
    "key removed": lambda first, entries: first.pop("key"),
    "key changed": lambda first, entries: first.update(key="00"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_was_edited_is_noticed(used, path, fifth, edit):
    receipt = Receipt(used.history()[-1].run, 5, used.history()[-1].hash, path)
    edited(path, EDITS[edit])
    with pytest.raises(BrokenChain):
        Ledger(path)
    if edit != "key changed":
        for call in (used.check, used.state, lambda: used.reserve(fifth, "x"), lambda: used.settle(receipt, "void")):
            with pytest.raises(BrokenChain):
                call()


def test_the_same_lines_written_again_pass(used, path):
    edited(path, lambda first, entries: None)
    used.check()


def test_an_old_copy_is_noticed_by_a_receipt(ledger, path, fifth, tmp_path):
    first = ledger.reserve(fifth, "first")
    shutil.copy(path, tmp_path / "old")
    second = ledger.reserve(fifth, "second")
    ledger.confirm(first)
    ledger.confirm(second)
    shutil.copy(tmp_path / "old", path)
    old = Ledger(path)
    old.confirm(first)
    with pytest.raises(BrokenChain, match="old copy"):
        old.confirm(second)
    # Gone on with, it has as many entries, but not those.
    old.reserve(fifth, "second")
    with pytest.raises(BrokenChain, match="old copy"):
        old.confirm(second)
    with pytest.raises(BrokenChain):
        old.settle(second, "void")


def test_every_entry_has_a_nonce_of_its_own(used):
    entries = used.history()
    assert len({e.nonce for e in entries}) == len(entries)
    assert min(len(e.nonce) for e in entries) == 32


TEXTS = {"empty": b"", "text": b"epsilon: 1.0\n" * 100, "json": b"{}\n", "list": b"[1]\n", "deep": b"[" * 10**5 + b"\n"}


@pytest.mark.parametrize("how", ["missing", *TEXTS, "other", "version", "cut", "folder"])
def test_what_is_not_a_ledger_is_refused_in_one_sentence(used, path, how):
    body = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how in TEXTS or how == "cut":
        path.write_bytes(TEXTS.get(how, body[: len(body) // 2]))
    elif how == "folder":
        path.unlink()
        path.mkdir()
    else:
        edited(path, lambda first, entries: first.update({"format": "x"} if how == "other" else {"version": 4}))
    with pytest.raises(LedgerError) as refusal:
        Ledger(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(LedgerError):
        used.reserve(release(1e-3), "run")


def test_a_name_that_no_file_can_have_is_no_ledger():
    with pytest.raises(LedgerError, match="no such ledger"):
        Ledger("a\0b")


def test_a_damaged_ledger_is_refused_in_a_sentence(ledger, fifth, tmp_path):
    """Cut short anywhere, or with bytes changed: one kind of error, and never another run's budget."""
    ledger.settle(ledger.reserve(fifth, "run"), "released")
    content, path, spent = ledger.path.read_bytes(), tmp_path / "damaged", ledger.state().spent
    source, said = random.Random(0), []
    ends = [place + step for place, byte in enumerate(content) if byte == ord("\n") for step in (0, 1)]
    cuts = {*range(0, len(content), 17), *range(len(content) - 64, len(content)), *ends} - {len(content)}
    spoilt = [content[:n] for n in cuts]
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(source.choice((1, 4, 50))):
            changed[source.randrange(len(changed))] = source.randrange(256)
        spoilt.append(bytes(changed))
    for one in spoilt:
        path.write_bytes(one)
        try:
            found = Ledger(path).state().spent
        except LedgerError as error:
            said.append(str(error))
        else:
            assert (found, len(one)) == (spent, len(content))
    assert len(said) > 200
    assert not any("\n" in sentence for sentence in said)


def test_the_command_makes_shows_and_lists_a_ledger(path, capsys, fifth, tmp_path):
    path = tmp_path / "adult.ledger"
    assert call("init", path, "--epsilon", 1, "--delta", "1e-6", "--num-records", 32561) == 0
    assert "ε 1, δ 1e-06, replace_one; 32,561 records" in capsys.readouterr().out
    ledger = Ledger(path)
    assert ledger.terms.name == "adult"
    receipt = ledger.reserve(fifth, "first run")
    assert call("show", path) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^run .*running or crashed  first run$", shown, re.MULTILINE)
    assert re.search(r"^spent .*next run up to ε [\d.]+$", shown, re.MULTILINE)
    assert call("show", path, "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["spent"] == ledger.state().spent
    assert body["epsilon_left"] < body["epsilon"] == 1.0
    assert call("history", path) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert call("history", path, "--json") == 0
    (init, entry) = json.loads(capsys.readouterr().out)
    assert init["kind"] == "init"
    assert entry["hash"] == receipt.hash
    assert entry["body"]["events"] == [e.to_json() for e in fifth.events]


def test_the_command_checks_receipts(ledger, path, capsys, tmp_path, fifth):
    shutil.copy(path, tmp_path / "old")
    receipt = ledger.reserve(fifth, "run")
    assert "path" not in receipt.to_json()
    alone, folder = tmp_path / "receipt.json", tmp_path / "privacy.json"
    alone.write_text(json.dumps(receipt.to_json()))
    folder.write_text(json.dumps({"epsilon": 1.0, "ledger": receipt.to_json()}))
    assert call("history", path, "--receipt", alone, "--receipt", folder) == 0
    capsys.readouterr()
    shutil.copy(tmp_path / "old", path)
    assert "old copy" in refused(capsys, 1, "show", path, "--receipt", folder)
    folder.write_text("{}")
    assert "no receipt" in refused(capsys, 2, "show", path, "--receipt", folder)
    assert "cannot be read" in refused(capsys, 2, "show", path, "--receipt", tmp_path / "none.json")


def test_the_command_refuses_in_one_sentence(ledger, path, capsys, tmp_path):
    assert "no such ledger" in refused(capsys, 2, "show", tmp_path / "none")
    (tmp_path / "text").write_text("hello" * 1000)
    assert "not a ledger" in refused(capsys, 2, "history", tmp_path / "text")
    assert "exists" in refused(capsys, 2, "init", path, "--epsilon", 1, "--delta", "1e-6")
    assert "order" in refused(capsys, 2, "init", tmp_path / "a", "--epsilon", 0.1, "--delta", "1e-6", "--order", 2)
    edited(path, lambda first, entries: first.update(hash="x"))
    assert "do not spend" in refused(capsys, 1, "show", path)


def test_the_command_plans_a_programme_from_configs(tmp_path, capsys):
    body = yaml.safe_load((ROOT / "configs" / "breast_cancer.yaml").read_text())
    body["run"] = {"steps": 40, "chains": 1, "burn_in": 0.5, "thin": 2}
    config = tmp_path / "small.yaml"
    config.write_text(yaml.safe_dump(body))
    path = tmp_path / "programme"
    terms = ["--epsilon", 3, "--delta", body["privacy"]["delta"], "--programme", config, "--programme", config]
    assert call("init", path, *terms, "--set", "privacy.epsilon=1.0") == 0
    assert "0 of 2 runs" in capsys.readouterr().out
    assert len(Ledger(path).terms.items) == 2
    assert 1.0 < Ledger(path).terms.joint_epsilon < 2.0
    missing = refused(capsys, 2, "init", tmp_path / "b", *terms, "--set", "privacy=null")
    assert "no guarantee" in missing
    assert not (tmp_path / "b").exists()
    typical = ["--epsilon", 3, "--delta", 1e-4, "--typical", config]
    assert call("init", tmp_path / "typical", *typical) == 0
