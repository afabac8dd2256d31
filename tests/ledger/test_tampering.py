"""A ledger that was edited, rolled back or cut short is noticed, and what is no ledger is refused."""

import random
import shutil

import pytest

from dpmcmc.privacy import Ledger, LedgerError
from dpmcmc.privacy.ledger import BrokenChain, Receipt
from tests.ledger.ledgers import edited, release


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
