"""The ledger's file: budgets survive crashes, races, full disks and tampering, or say that they did not."""

import contextlib
import errno
import fcntl
import itertools
import json
import math
import os
import resource
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dpmcmc.cli.commands import main
from dpmcmc.privacy import Event, Full, Guarantee, Ledger, LedgerError, OverBudget, Poisson
from dpmcmc.privacy.accounting.account import account
from dpmcmc.privacy.ledger import BrokenChain, Receipt, chain, inode, store
from dpmcmc.privacy.ledger import older as older_room
from dpmcmc.storage.checkpoint import Checkpoint, CheckpointError

ROOT = Path(__file__).resolve().parents[1]


def release(mu, adjacency="replace_one", **terms):
    """A guarantee of one Gaussian release that spends μ."""
    z = (2.0 if adjacency == "replace_one" else 1.0) / mu
    return Guarantee.from_events(
        (Event("gaussian", z, 1.0, 1),), delta=1e-6, adjacency=adjacency, accountant="pld", **terms
    )


TERMS = {"name": "test", "num_records": None, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-6}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test.ledger"


@pytest.fixture
def ledger(path):
    return Ledger.init(path, **TERMS)


@pytest.fixture
def fifth(ledger):
    """A run of which five fit, and six do not."""
    return release(ledger.terms.additive.gaussian(ledger.terms.budget / 5.5))


# One process


def test_a_reservation_is_spent_until_it_is_void(ledger, fifth):
    cost = ledger.terms.additive.cost(fifth.events, ledger.terms.adjacency)
    first, second = ledger.reserve(fifth, "first"), ledger.reserve(fifth, "second")
    state = ledger.state()
    assert state.spent == pytest.approx(2 * cost)
    assert state.spent + state.left == pytest.approx(ledger.terms.budget)
    assert [run.label for run in state.open] == ["first", "second"]
    ledger.settle(first, "released")
    assert ledger.state().spent == state.spent
    ledger.settle(second.id, "void")
    assert ledger.state().spent == pytest.approx(cost)
    assert ledger.state().open == ()
    assert [e.kind for e in ledger.history()] == ["init", "reserve", "reserve", "settle", "settle"]


def test_runs_are_admitted_until_the_budget_is_spent(ledger, fifth):
    for k in range(5):
        assert ledger.fits(fifth)
        ledger.reserve(fifth, f"run {k}")
    assert not ledger.fits(fifth)
    before = ledger.history()
    with pytest.raises(OverBudget, match="is left"):
        ledger.reserve(fifth, "run 5")
    assert ledger.history() == before
    state = ledger.state()
    assert state.spent <= ledger.terms.budget
    assert 0.8 < state.epsilon <= 1.0
    assert 0 < state.epsilon_left < fifth.epsilon


def test_settling_twice_or_an_unknown_run_is_refused(ledger, fifth):
    receipt = ledger.reserve(fifth, "run")
    ledger.settle(receipt, "released")
    for call in (
        lambda: ledger.settle(receipt, "void"),
        lambda: ledger.settle(receipt, "released"),
        lambda: ledger.extend(receipt, fifth.events, "more"),
        lambda: ledger.settle("nobody", "void"),
        lambda: ledger.settle(ledger.reserve(fifth, "other"), "lost"),
    ):
        with pytest.raises(LedgerError):
            call()


def test_an_extension_is_charged_and_cannot_be_taken_back(ledger, fifth):
    receipt = ledger.reserve(fifth, "run")
    spent = ledger.state().spent
    assert ledger.extend(receipt, fifth.events, "resumed elsewhere").sequence == receipt.sequence + 1
    assert ledger.state().spent == pytest.approx(2 * spent)
    with pytest.raises(LedgerError, match="extended"):
        ledger.settle(receipt, "void")
    with pytest.raises(OverBudget, match="cannot go on"):
        ledger.extend(receipt, fifth.events * 4, "resumed elsewhere")


def test_another_adjacency_another_size_and_no_noise_are_refused(path, tmp_path, ledger):
    with pytest.raises(LedgerError, match="adjacency=replace_one"):
        ledger.reserve(release(0.01, "zero_out"), "run")
    silent = Guarantee.from_events(
        (Event("gaussian", 0.0, 1.0, 1),), delta=1e-6, adjacency="replace_one", accountant="pld"
    )
    with pytest.raises(LedgerError, match="without noise") as refusal:
        ledger.reserve(silent, "run")
    assert not isinstance(refusal.value, OverBudget)
    sized = Ledger.init(tmp_path / "sized", **TERMS | {"num_records": 1000})
    other = Event("fixed_size_gaussian", 100.0, 0.01, 1, num_records=2000)
    with pytest.raises(LedgerError, match="1000"):
        sized.reserve(Guarantee.from_events((other,), delta=1e-6, adjacency="replace_one", accountant="rdp"), "run")
    assert len(ledger.history()) == len(sized.history()) == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"num_records": 10**7}, "1/N"),
        ({"adjacency": "both"}, "adjacency"),
        ({"filter": "sum"}, "filter"),
        ({"filter": "programme"}, "programme"),
        ({"filter": "gdp", "order": 8}, "order"),
        ({"order": 2, "epsilon": 0.1}, "order 2"),
        ({"overflow_share": 1.0}, "overflow_share"),
    ],
)
def test_terms_that_make_no_budget_are_refused_and_leave_no_file(path, wrong, words):
    with pytest.raises(LedgerError, match=words):
        Ledger.init(path, **TERMS | wrong)
    assert list(path.parent.iterdir()) == []


def test_a_ledger_is_never_made_twice(ledger, path):
    with pytest.raises(LedgerError, match="exists"):
        Ledger.init(path, **TERMS | {"epsilon": 100.0})
    assert Ledger(path).terms.epsilon == 1.0
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_file_is_its_owners_alone(ledger, path):
    with store.change(path):
        for file in path.parent.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        # SQLite's log, journal or lock would go by a name, and a file may have several.
        assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_only_the_data_that_came_first_are_accepted(ledger, path):
    keys = []

    def of(text):
        return lambda key: keys.append(key) or text

    ledger.identify(of("aa"))
    Ledger(path).identify(of("aa"))
    with pytest.raises(LedgerError, match="not the data"):
        ledger.identify(of("bb"))
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32
    assert keys[0].hex() not in json.dumps([e.to_json() for e in ledger.history()])
    assert ledger.state().identified


def test_a_stopped_run_finds_its_reservation_only_unchanged(ledger, fifth):
    assert ledger.find("run 1") is None
    receipt = ledger.reserve(fifth, "run 1")
    assert ledger.find("run 1", fifth) == receipt
    assert ledger.is_open(receipt)
    with pytest.raises(LedgerError, match="unchanged"):
        ledger.find("run 1", release(0.01))
    ledger.settle(receipt, "void")
    assert not ledger.is_open(receipt)
    assert ledger.find("run 1") is None


# Programmes


def programme():
    run = {"num_records": 10_000, "delta": 1e-6}
    return [
        account(2.5, steps=100, sampling=Poisson(100), **run),
        account(2.5, steps=100, sampling=Poisson(100), **run),
        account(30.0, steps=4, sampling=Full(), **run),
    ]


def test_a_programme_admits_each_of_its_runs_once_in_any_order(path):
    items = programme()
    ledger = Ledger.init(path, **TERMS | {"epsilon": 4.0}, filter="programme", programme=items)
    joint = ledger.terms.joint_epsilon
    assert joint < math.fsum(g.epsilon for g in items)
    whole = Guarantee.from_events(
        tuple(e for g in items for e in g.events), delta=1e-6, adjacency="replace_one", accountant="pld"
    )
    assert joint == whole.epsilon
    with pytest.raises(OverBudget, match="none of the 3"):
        ledger.reserve(account(2.6, steps=100, sampling=Poisson(100), num_records=10_000, delta=1e-6), "quieter")
    void = ledger.reserve(items[2], "full")
    ledger.settle(void, "void")
    for k in (2, 0, 1):
        assert ledger.fitting_epsilon(items[k]) == items[k].epsilon
        ledger.reserve(items[k], str(k))
    for item in items:
        with pytest.raises(OverBudget, match="none of the 0 of 3"):
            ledger.reserve(item, "again")
    assert ledger.state().epsilon == joint


def test_a_programme_beyond_its_promise_is_refused(path):
    with pytest.raises(LedgerError, match="cost epsilon"):
        Ledger.init(path, **TERMS | {"epsilon": 0.5}, filter="programme", programme=programme())
    assert not path.exists()


# Tampering


def raw(path, *statements, keep_schema=True):
    """Run SQL around the triggers, which are put back."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
        for _, sql in triggers if keep_schema else []:
            db.execute(sql)


@pytest.fixture
def used(ledger, fifth):
    for k in range(4):
        ledger.reserve(fifth, f"run {k}")
    return ledger


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


# Files that are none


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


def test_a_full_database_leaves_the_ledger_as_it_was(used, path, monkeypatch):
    before = used.history()
    database = store._database

    @contextlib.contextmanager
    def no_more_pages(file):
        with database(file) as db:
            db.execute(f"PRAGMA max_page_count = {db.execute('PRAGMA page_count').fetchone()[0]}")
            yield db

    monkeypatch.setattr(store, "_database", no_more_pages)
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


# Several processes

CHILDREN = """
import ctypes, json, math, os, random, signal, sys, time
from dpmcmc.privacy import Event, Guarantee, Ledger, LedgerError, OverBudget
from dpmcmc.privacy.ledger import Receipt, store

def child(body):
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            body(out)
        finally:
            os._exit(0)
    os.close(out)
    return pid, into

def release(z):
    return Guarantee.from_events((Event("gaussian", z, 1.0, 1),), delta=1e-6, adjacency="replace_one", accountant="pld")

def text(into):
    with os.fdopen(into) as pipe:
        return pipe.read()

def bound(path, other):
    # Mount a file under another name, in the view that this process alone has of the file system.
    open(other, "x").close()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) or libc.mount(b"none", b"/", None, 0x44000, None) or libc.mount(
        path.encode(), other.encode(), None, 0x1000, None
    ):
        os.remove(other)
        return False
    return True

def race(paths, processes, z, reckless):
    run, start = release(z), time.time() + 0.3
    path = paths[0]

    def body(out, at):
        try:
            ledger = Ledger(paths[at % len(paths)])
        except LedgerError as error:
            os.write(out, str(error).encode())
            return
        time.sleep(max(0.0, start - time.time()))
        try:
            if reckless:  # what a ledger would be that looks first and locks later
                charge = ledger._charge(run.events, run.adjacency, "run")
                if not ledger.fits(run):
                    raise OverBudget
                # Nobody locks before all have looked, however late the machine lets them look.
                open(f"{path}.{at}", "x").close()
                while not all(os.path.exists(f"{path}.{other}") for other in range(processes)):
                    time.sleep(0.01)
                with store.change(ledger.path) as (_, append):
                    append("reserve", str(os.getpid()), charge | {"label": "run"})
            else:
                ledger.reserve(run, "run")
            os.write(out, b"in")
        except OverBudget:
            os.write(out, b"over")

    running = [child(lambda out, at=at: body(out, at)) for at in range(processes)]
    told = [text(into) for pid, into in running]
    other = [words for words in told if words not in ("in", "over")]
    try:
        state = Ledger(path).state()
    except LedgerError:
        return {"in": told.count("in"), "over": told.count("over"), "other": other}
    return {"in": told.count("in"), "over": told.count("over"), "other": other, "runs": len(state.runs),
            "spent": state.spent, "budget": state.terms.budget}

def mounted_race(path, other, z):
    return race([path, other], 8, z, False) if bound(path, other) else None

def kills(path, times):
    run, random_ = release(1e5), random.Random(0)
    told = []

    def body(out):
        ledger = Ledger(path)
        while True:
            receipt = ledger.reserve(run, "run")
            os.write(out, f"reserved {receipt.id} {receipt.sequence} {receipt.hash}\\n".encode())
            outcome = random_.choice(["released", "void", "extend"])
            if outcome == "extend":
                ledger.extend(receipt, run.events, "more")
            else:
                ledger.settle(receipt, outcome)
            os.write(out, f"{outcome} {receipt.id}\\n".encode())

    last = 0
    for turn in range(20 * times):
        if turn >= times and last > 20 and len(told) > 10:  # a busy machine lets a child do little before it is killed
            break
        random_.seed(turn)
        pid, into = child(body)
        time.sleep(random_.uniform(0.0, 0.12))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        told += [line.split() for line in text(into).splitlines()]
        ledger = Ledger(path)
        ledger.check()
        runs = {r.id: r for r in ledger.state().runs}
        entries = ledger.history()
        assert len(entries) >= last
        last = len(entries)
        for words in told:
            if words[0] == "reserved":
                ledger.confirm(Receipt(words[1], int(words[2]), words[3], path))
            elif words[0] == "extend":
                assert len(runs[words[1]].charges) == 2
            else:
                assert runs[words[1]].outcome == words[0]
        cost = ledger.terms.additive.cost(run.events, ledger.terms.adjacency)
        counted = sum(len(r.charges) for r in runs.values() if r.outcome != "void")
        assert math.isclose(ledger.state().spent, counted * cost, rel_tol=1e-9, abs_tol=1e-15)
    return {"entries": last, "told": len(told), "open": len(ledger.state().open)}

def crash(path):
    def body(out):
        receipt = Ledger(path).reserve(release(1e4), "crashed")
        os.write(out, receipt.id.encode())
        os.kill(os.getpid(), signal.SIGKILL)

    pid, into = child(body)
    return {"id": text(into), "status": os.waitpid(pid, 0)[1]}

print(json.dumps(eval(sys.argv[1])))
"""


def children(expression):
    """Evaluate ``expression`` in a process of its own, which forks before anything else runs in it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILDREN, expression], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def raced(tmp_path_factory):
    """What eight processes were told that raced for a budget of five, and paths of the ledger, by how it is named."""
    folder = tmp_path_factory.mktemp("raced")
    paths = {name: [str(folder / name)] for name in ("plain", "reckless", "linked", "symbolic", "mounted")}
    for name, own in paths.items():
        made = Ledger.init(own[0], **TERMS)
        if name in ("linked", "symbolic", "mounted"):
            own.append(str(folder / f"other-{name}"))
    Path(paths["linked"][1]).hardlink_to(paths["linked"][0])
    Path(paths["symbolic"][1]).symlink_to(paths["symbolic"][0])
    z = release(made.terms.additive.gaussian(made.terms.budget / 5.5)).events[0].noise_multiplier
    calls = [f"race({own}, 8, {z!r}, {name == 'reckless'})" for name, own in paths.items() if name != "mounted"]
    told = children(f"[{', '.join(calls)}, mounted_race(*{paths['mounted']}, {z!r})]")
    return dict(zip(paths, told, strict=True)), {name: [Path(p) for p in own] for name, own in paths.items()}


@pytest.mark.parametrize("name", ["plain", "symbolic", "mounted"])
def test_of_processes_that_race_for_the_last_of_a_budget_only_as_many_as_fit_get_it(raced, name):
    """Half of them by another name, where there is one."""
    told = raced[0][name]
    if told is None:
        pytest.skip("only root, or a user with namespaces, can mount")
    assert told["other"] == []
    assert (told["in"], told["over"], told["runs"]) == (5, 3, 5)
    assert told["spent"] <= told["budget"]


def test_of_processes_that_race_over_a_hard_link_none_gets_anything(raced):
    told, paths = raced[0]["linked"], raced[1]["linked"]
    assert told["in"] == 0
    assert len(told["other"]) == 8
    assert all("2 names" in words for words in told["other"])
    paths[1].unlink()
    assert Ledger(paths[0]).state().runs == ()


def test_a_ledger_that_looks_before_it_locks_is_caught_and_says_so_afterwards(raced, capsys):
    path = raced[1]["reckless"][0]
    assert raced[0]["reckless"]["in"] > 5
    with pytest.raises(BrokenChain, match="overspent"):
        Ledger(path).check()
    assert "overspent" in refused(capsys, 1, "show", path)


@pytest.mark.slow
def test_of_sixteen_processes_exactly_five_get_a_budget_for_five(ledger, fifth, path):
    one = CHILDREN.replace(
        "print(json.dumps(eval(sys.argv[1])))",
        "ledger, run = Ledger(sys.argv[1]), release(float(sys.argv[2]))\n"
        "try:\n    ledger.reserve(run, 'run'); print('in')\nexcept OverBudget:\n    print('over')",
    )
    z = repr(fifth.events[0].noise_multiplier)
    running = [
        subprocess.Popen([sys.executable, "-c", one, str(path), z], stdout=subprocess.PIPE, text=True)
        for _ in range(16)
    ]
    told = [process.communicate()[0].strip() for process in running]
    assert (told.count("in"), told.count("over")) == (5, 11)
    forked = path.with_name("forked")
    Ledger.init(forked, **TERMS)
    assert children(f"race([{str(forked)!r}], 16, {z}, False)")["in"] == 5


# One file, whatever it is called


def test_a_second_hard_link_is_refused_with_exit_code_2(ledger, path, fifth, tmp_path, capsys):
    other = tmp_path / "other"
    other.hardlink_to(path)
    for name in (path, other):
        assert "2 names" in refused(capsys, 2, "show", name)
    with pytest.raises(LedgerError, match="2 names"):
        ledger.reserve(fifth, "run")
    other.unlink()
    assert ledger.state().runs == ()
    # What a killed init leaves is its own to remove.
    path.with_name(f".{path.name}.{'0' * 16}").hardlink_to(path)
    ledger.reserve(fifth, "run")
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_ledger_that_is_moved_while_a_run_reserves_is_said_to_be(ledger, path, fifth, monkeypatch):
    real = inode.Inode.replace

    def moved(self, content):
        path.rename(path.with_name("moved"))
        real(self, content)

    monkeypatch.setattr(inode.Inode, "replace", moved)
    with pytest.raises(LedgerError, match="moved or replaced"):
        ledger.reserve(fifth, "run")
    monkeypatch.undo()
    assert len(Ledger(path.with_name("moved")).state().open) == 1


def test_a_moved_ledger_is_locked_under_its_new_name(ledger, path, monkeypatch):
    monkeypatch.setattr(store, "_PATIENCE", 0.05)
    other = path.with_name("moved")
    with store.change(path):
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
    """What no handler survives."""


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
    """Of a change and of what the next process finishes of it."""
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
        store._insert(db, chain.following(entries, "settle", entries[1].run, {"outcome": "released"}))
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
    monkeypatch.setattr(store, "_PATIENCE", 0.05)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="older version of this library is using"):
            Ledger(path)
    monkeypatch.setattr(older_room, "_mounted", lambda path: True)
    with pytest.raises(LedgerError, match="mounted as a single file"):
        Ledger(path)
    monkeypatch.undo()
    assert len(Ledger(path).history()) == 5


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """(path, what the processes said) of a ledger whose runs were killed."""
    folder = tmp_path_factory.mktemp("killed")
    ledgers = [Ledger.init(folder / name, **TERMS).path for name in ("one", "many")]
    return ledgers, children(f"[crash({str(ledgers[0])!r}), kills({str(ledgers[1])!r}, 20)]")


@pytest.mark.slow
def test_a_run_that_is_killed_stays_spent_and_open(killed):
    ledger, told = Ledger(killed[0][0]), killed[1][0]
    assert told["status"] == 9
    state = ledger.state()
    assert [run.id for run in state.open] == [told["id"]]
    assert state.spent == ledger.terms.additive.cost(release(2e-4).events, ledger.terms.adjacency)


def test_a_kill_at_any_moment_leaves_what_was_told(killed):
    told = killed[1][1]
    assert told["entries"] > 20
    assert told["told"] > 10
    Ledger(killed[0][1]).check()


@pytest.mark.exhaustive
def test_hundreds_of_kills_leave_what_was_told(ledger, path):
    told = children(f"kills({str(path)!r}, 120)")
    assert told["entries"] > 20


# The command


def call(*arguments):
    """Run ``dpmcmc ledger ...`` in this process; returns the exit code."""
    return main(["ledger", *map(str, arguments)])


def refused(capsys, code, *arguments):
    assert call(*arguments) == code
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


def test_the_command_makes_shows_and_lists_a_ledger(path, capsys, fifth, tmp_path):
    path = tmp_path / "adult.ledger"
    assert call("init", path, "--epsilon", 1, "--delta", "1e-6", "--num-records", 32561) == 0
    assert "promise" in capsys.readouterr().out
    ledger = Ledger(path)
    assert ledger.terms.name == "adult"
    receipt = ledger.reserve(fifth, "first run")
    assert call("show", path) == 0
    shown = capsys.readouterr().out
    assert "1 open" in shown
    assert "first run: running, or crashed" in shown
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
    raw(path, "UPDATE head SET hash = 'x'")
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
