"""One file, whatever it is called: full disks, links, moves, kills between two writes, older versions."""

import contextlib
import errno
import fcntl
import itertools
import os
import resource
import sqlite3
from pathlib import Path

import pytest

from dpmcmc.privacy import Event, Guarantee, Ledger, LedgerError
from dpmcmc.privacy.ledger import chain, file
from dpmcmc.privacy.ledger import file as older_room
from dpmcmc.storage.checkpoint import Checkpoint, CheckpointError
from tests.ledger.ledgers import TERMS, refused, release


def test_a_full_database_leaves_the_ledger_as_it_was(used, path, monkeypatch):
    before = used.history()
    database = file._database

    @contextlib.contextmanager
    def no_more_pages(file):
        with database(file) as db:
            db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
            yield db

    monkeypatch.setattr(file, "_database", no_more_pages)
    with pytest.raises(LedgerError, match="disk is full"):
        used.reserve(Guarantee.from_events(
            tuple(Event("gaussian", 1e4 + k, 1.0, 1) for k in range(200)),
            delta=1e-6, adjacency="replace_one", accountant="pld"), "large")  # fmt: skip
    monkeypatch.undo()
    assert used.history() == before
    used.reserve(release(1e-3), "after")


@pytest.mark.parametrize("room", [0, 1000, 6000])
def test_a_full_disk_leaves_the_ledger_as_it_was(used, path, room):
    before, limits = used.history(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(LedgerError, match="full") as refusal:
            used.reserve(release(1e-3), "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(refusal.value)
    assert used.history() == before
    used.reserve(release(1e-3), "after")


def test_a_new_ledger_on_a_full_disk_is_not_there(path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
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

    limited("write", os.write, 4000)
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
        for again in range(0, 12, 3):
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
    assert moment > 12
    assert {entries for _, entries in seen} == {len(before), len(before) + 1}
    # A reader sees what is appended before it is in its place.
    assert (True, len(before) + 1) in seen


def older(path, *, logged):
    """Make a ledger as version 1 left it: a write-ahead log beside it, with an entry in it where it was killed."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA user_version = 1")
        db.execute("PRAGMA journal_mode = WAL")
        if not logged:
            return
        entries = [chain.Entry(*row) for row in db.execute("SELECT * FROM entries ORDER BY sequence")]
        db.execute("BEGIN")
        file._insert(db, chain.following(entries, "settle", entries[1].run, {"outcome": "released"}))
        db.execute("COMMIT")
        left = {name: Path(f"{path}{name}").read_bytes() for name in ("", "-wal")}
    for name, body in left.items():
        Path(f"{path}{name}").write_bytes(body)


@pytest.mark.parametrize("logged", [False, True])
def test_a_ledger_of_the_older_version_is_renewed_with_its_log(used, path, fifth, logged):
    older(path, logged=logged)
    assert Path(f"{path}-wal").exists() == logged
    ledger = Ledger(path)
    assert len(ledger.history()) == 5 + logged
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    # Older libraries, which would lock it by SQLite alone, refuse it.
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
    ledger.reserve(fifth, "next")
    assert len(ledger.history()) == 6 + logged


def test_an_older_ledger_in_use_or_mounted_alone_is_refused(used, path, monkeypatch):
    older(path, logged=False)
    monkeypatch.setattr(file, "_PATIENCE", 0.05)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="older version of this library is using"):
            Ledger(path)
    monkeypatch.setattr(older_room, "_mounted", lambda path: True)
    with pytest.raises(LedgerError, match="mounted as a single file"):
        Ledger(path)
    monkeypatch.undo()
    assert len(Ledger(path).history()) == 5
