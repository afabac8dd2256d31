"""A ledger that was edited, rolled back or cut short is noticed, and what is no ledger is refused."""

import contextlib
import random
import shutil
import sqlite3

import pytest

from dpmcmc.privacy import Ledger, LedgerError
from dpmcmc.privacy.ledger import BrokenChain, Receipt
from tests.ledger.ledgers import raw, release

COPY = "INSERT INTO entries SELECT 9, kind, run, time, text, nonce, previous, hash FROM entries WHERE sequence = 2"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET text = '{}'",
        "DELETE FROM entries WHERE sequence = 5",
        COPY,
        "UPDATE head SET sequence = 4",
        "DELETE FROM head",
        "UPDATE secret SET key = x'00'",
    ],
)
def test_triggers_refuse_what_is_typed_by_accident(used, path, statement):
    before = used.history()
    with contextlib.closing(sqlite3.connect(path)) as db, pytest.raises(sqlite3.IntegrityError):
        db.execute(statement)
    assert used.history() == before


@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM entries WHERE sequence = 3"],
        ["DELETE FROM entries WHERE sequence = 5"],
        ["DELETE FROM entries WHERE sequence > 1"],
        ["DELETE FROM entries"],
        ["DELETE FROM entries WHERE sequence = 3", "UPDATE entries SET sequence = sequence - 1 WHERE sequence > 3"],
        ["DELETE FROM entries WHERE sequence = 5", "UPDATE head SET sequence = 4"],
        ["UPDATE entries SET text = replace(text, '\"cost\": 0.', '\"cost\": 0.0') WHERE sequence = 3"],
        ["UPDATE entries SET text = replace(text, '\"budget\": 0.', '\"budget\": 9.') WHERE sequence = 1"],
        ["UPDATE entries SET kind = 'settle' WHERE sequence = 4"],
        ["UPDATE entries SET time = '2000-01-01' WHERE sequence = 5"],
        ["UPDATE entries SET nonce = '' WHERE sequence = 2"],
        ["UPDATE head SET hash = 'x'"],
        ["DELETE FROM head"],
        ["DELETE FROM secret"],
        ["UPDATE secret SET key = x'00'"],
    ],
    ids=lambda s: s[0][:60],
)
def test_what_goes_around_the_triggers_is_noticed(used, path, fifth, statements):
    receipt = Receipt(used.history()[-1].run, 5, used.history()[-1].hash, path)
    raw(path, *statements)
    with pytest.raises(BrokenChain):
        Ledger(path)
    if "secret SET" not in statements[0]:
        for call in (used.check, used.state, lambda: used.reserve(fifth, "x"), lambda: used.settle(receipt, "void")):
            with pytest.raises(BrokenChain):
                call()


def test_untouched_rows_pass_and_a_dropped_trigger_does_not(used, path):
    raw(path)
    used.check()
    raw(path, keep_schema=False)
    with pytest.raises(BrokenChain, match="triggers"):
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


@pytest.mark.parametrize("how", ["missing", "empty", "text", "other", "version", "cut", "folder"])
def test_what_is_not_a_ledger_is_refused_in_one_sentence(used, path, how):
    body = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how in ("empty", "text", "cut"):
        path.write_bytes({"empty": b"", "text": b"epsilon: 1.0\n" * 100, "cut": body[: len(body) // 2]}[how])
    elif how == "folder":
        path.unlink()
        path.mkdir()
    else:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA application_id = 1" if how == "other" else "PRAGMA user_version = 3")
    with pytest.raises(LedgerError) as refusal:
        Ledger(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with pytest.raises(LedgerError):
        used.reserve(release(1e-3), "run")


def test_a_damaged_ledger_is_refused_in_a_sentence(ledger, fifth, tmp_path):
    """Cut short anywhere, or with bytes changed: one kind of error, and never another run's budget."""
    ledger.settle(ledger.reserve(fifth, "run"), "released")
    content, path, spent = ledger.path.read_bytes(), tmp_path / "damaged", ledger.state().spent
    source, said = random.Random(0), []
    spoilt = [content[:n] for n in {*range(0, len(content), 97), *range(len(content) - 64, len(content))}]
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
