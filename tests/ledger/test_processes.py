"""Processes that race for a budget, and processes that are killed, leave a ledger as it told them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpmcmc.privacy import Ledger
from dpmcmc.privacy.ledger import BrokenChain
from tests.ledger.ledgers import TERMS, refused, release

CHILDREN = """
import ctypes, json, math, os, random, signal, sys, time
from dpmcmc.privacy import Event, Guarantee, Ledger, LedgerError, OverBudget
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.privacy.ledger import file as store

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
            outcome = random_.choice(["released", "void", "begin"])
            if outcome == "begin":
                ledger.begin(receipt)
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
            elif words[0] == "begin":
                assert runs[words[1]].read
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
    """Answers to eight processes that raced for a budget of five, and paths of the ledger, by how it is named."""
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
