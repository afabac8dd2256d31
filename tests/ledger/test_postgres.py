"""A ledger in a database keeps what a file keeps, over all machines, whatever is killed and whoever asks."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from dpmcmc.config import file as config_file
from dpmcmc.config.model import dump
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.saving import check_apart
from dpmcmc.errors import InputError
from dpmcmc.privacy import Ledger, LedgerError, OverBudget
from dpmcmc.privacy.ledger import BrokenChain, file, postgres, postgres_refusals
from dpmcmc.privacy.ledger.place import Address, place
from tests.ledger.ledgers import ROOT, TERMS, call, refused, release
from tests.ledger.proxy import Proxy
from tests.ledger.server import Server, missing, soon

needs_server = pytest.mark.skipif(missing() is not None, reason=str(missing()))
SECRET = "s3cr:t/p@w"


@pytest.fixture(scope="module")
def server():
    running = Server()
    yield running
    running.remove()


@pytest.fixture
def schema(request):
    """A schema of the test's own."""
    return re.sub(r"[^a-z0-9_]", "_", f"t_{request.node.name}".lower())[-60:].lstrip("0123456789")


@pytest.fixture
def url(server, schema):
    return server.url(schema=schema)


@pytest.fixture
def shared(url):
    return Ledger.init(url, **TERMS)


@pytest.fixture
def fifth(tmp_path):
    """A run of which five fit, and six do not."""
    terms = Ledger.init(tmp_path / "terms", **TERMS).terms
    return release(terms.additive.gaussian(terms.budget / 5.5))


@pytest.fixture
def proxy(server):
    between = Proxy(server.port)
    yield between
    between.close()


def through(proxy, server, schema):
    """URL of a ledger through the proxy."""
    return (
        server.url(port=proxy.port).replace("/postgres", "/postgres?sslmode=disable&gssencmode=disable") + f"#{schema}"
    )


def forgotten():
    """Have this process forget its connections and what it has seen, as a new process has none."""
    for session in postgres._SESSIONS.values():
        session.drop()
    postgres._SESSIONS.clear()


def lives(where, fifth):
    """Everything that a ledger is asked, once; returns what it said."""
    ledger = Ledger.init(where, **TERMS)
    first, second, third = (ledger.reserve(fifth, f"run {k}") for k in range(3))
    ledger.begin(first, "name")
    ledger.begin(first, "name")
    ledger.settle(first)
    ledger.give_back(second)
    ledger.identify(lambda key: key.hex()[:8] and "aa", lambda key: {"age": "bb"})
    said = [ledger.is_open(third), ledger.find("run 2").id == third.id, ledger.fits(fifth)]
    for _ in range(3):
        ledger.reserve(fifth, "more")
    for refused_call in (
        lambda: ledger.reserve(fifth, "sixth"),
        lambda: ledger.begin(first, "another"),
        lambda: ledger.settle(first, "void"),
        lambda: ledger.settle("none"),
        lambda: ledger.identify(lambda key: "cc", lambda key: {"age": "dd"}),
        lambda: Ledger.init(where, **TERMS),
    ):
        with pytest.raises(LedgerError) as refusal:
            refused_call()
        said.append(re.sub(r"\b[0-9a-f]{16}\b", "ID", str(refusal.value).partition(": ")[2].split(";")[0]))
    ledger.check()
    ledger.confirm(first)
    state = Ledger(where).state()
    runs = [(run.label, run.outcome, run.charges, run.read) for run in state.runs]
    return [*said, state.spent, state.overflow_left, state.epsilon_left, runs, [e.kind for e in ledger.history()]]


@needs_server
def test_a_database_answers_as_a_file_does(url, tmp_path, fifth):
    assert lives(url, fifth) == lives(tmp_path / "file", fifth)


@needs_server
def test_the_commands_work_on_a_url(url, capsys, tmp_path, fifth, schema):
    assert call("init", url, "--epsilon", 1, "--delta", "1e-6") == 0
    assert f"made {url}" in capsys.readouterr().out
    ledger = Ledger(url)
    assert ledger.terms.name == schema
    receipt = ledger.reserve(fifth, "first run")
    (tmp_path / "privacy.json").write_text(json.dumps({"ledger": receipt.to_json()}))
    assert call("show", url, "--receipt", tmp_path / "privacy.json") == 0
    assert "running or crashed  first run" in capsys.readouterr().out
    assert call("history", url, "--json") == 0
    assert [entry["kind"] for entry in json.loads(capsys.readouterr().out)] == ["init", "reserve"]
    assert "exists already" in refused(capsys, 2, "init", url, "--epsilon", 1, "--delta", "1e-6")


@needs_server
def test_a_file_is_copied_with_its_chain_and_closed(url, tmp_path, fifth, capsys, monkeypatch, server, schema):
    path = tmp_path / "old.ledger"
    old = Ledger.init(path, **TERMS)
    receipts = [old.reserve(fifth, f"run {k}") for k in range(3)]
    entries, key = file.read(path)

    def full(self, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file.Inode, "replace", full)
        with pytest.raises(LedgerError, match="disk is full"):
            old.copy(url)
    with pytest.raises(LedgerError, match="no such ledger"):
        Ledger(url)  # nothing is there while the file is still open
    old.reserve(fifth, "run 3")
    assert call("copy", path, url) == 0
    assert f"{path} is closed" in capsys.readouterr().out
    assert postgres.read(place(url)) == (file.read(path)[0][:-1], key)
    new = Ledger(url)
    assert new.history()[:4] == entries
    for receipt in receipts:
        new.confirm(receipt)
    for spend in (lambda: old.reserve(fifth, "two budgets"), lambda: Ledger(path).settle(receipts[0])):
        with pytest.raises(LedgerError, match="spent from there alone"):
            spend()
    assert call("show", path) == 0
    assert f"copied to {url}" in " ".join(capsys.readouterr().out.split())
    new.reserve(fifth, "fifth")
    with pytest.raises(OverBudget):
        new.reserve(fifth, "sixth")
    assert "exists already" in refused(capsys, 2, "copy", path, url)
    assert "already" in refused(capsys, 2, "copy", path, server.url(schema="another"))
    assert "from a file into a database" in refused(capsys, 2, "copy", url, server.url(schema="another"))


@needs_server
def test_a_copy_that_was_stopped_once_the_file_was_closed_is_finished_by_the_same_call(
    url, tmp_path, fifth, monkeypatch
):
    old = Ledger.init(tmp_path / "old.ledger", **TERMS)
    receipt = old.reserve(fifth, "run")
    real = postgres._Session.send

    def cut(self, statements, *values):
        if statements.startswith("COMMIT"):
            raise KeyboardInterrupt
        return real(self, statements, *values)

    with monkeypatch.context() as patch:
        patch.setattr(postgres._Session, "send", cut)
        with pytest.raises(KeyboardInterrupt):
            old.copy(url)
    with pytest.raises(LedgerError, match="no such ledger"):
        Ledger(url)
    with pytest.raises(LedgerError, match="spent from there alone"):
        old.reserve(fifth, "two budgets")
    old.copy(url).confirm(receipt)


@needs_server
def test_a_run_is_charged_to_a_url_that_its_config_names(shared, url, fifth, tmp_path):
    reservation = Reservation(url, fifth, "run")
    reservation.start(fifth)
    reservation.settle()
    assert [run.outcome for run in shared.state().runs] == ["released"]
    check_apart(tmp_path / "out", None, url)
    config = config_file.load(str(ROOT / "configs" / "breast_cancer.yaml"), [f"privacy.ledger={url}"])
    assert config.privacy.ledger == url
    assert f"ledger: {url}" in dump(config, tmp_path)


# Processes that race

CHILDREN = """
import json, os, sys, time
from dpmcmc.privacy import Event, Guarantee, Ledger, LedgerError, OverBudget
from dpmcmc.privacy.ledger import postgres
from tests.ledger.ledgers import release

def forked(count, body):
    pipes = []
    for at in range(count):
        into, out = os.pipe()
        if os.fork() == 0:
            try:
                os.write(out, body(at).encode())
            finally:
                os._exit(0)
        os.close(out)
        pipes.append(into)
    return [os.fdopen(into).read() for into in pipes]

def reserve(url, mu, count, reckless):
    run, start = release(mu), time.time() + 0.5
    parent = Ledger(url)  # whose connection no child may use

    def body(at):
        ledger = Ledger(url) if at % 2 else parent
        time.sleep(max(0.0, start - time.time()))
        try:
            if not reckless:
                return ledger.reserve(run, f"run {at}").id
            charge = ledger._charge(run.events, run.adjacency, "run")
            fits = ledger.fits(run)
            time.sleep(max(0.0, start + 2.0 - time.time()))  # until all have looked
            with postgres.change(ledger.path) as (_, append):
                return append("reserve", str(os.getpid()), charge | {"label": "run"}).run if fits else "over"
        except OverBudget:
            return "over"

    told = forked(count, body)
    parent.check() if not reckless else None
    return told

def begin(url, count):
    name = Ledger(url).state().runs[0].id

    def body(at):
        try:
            Ledger(url).begin(name, str(at))
            return str(at)
        except LedgerError as error:
            return "refused" if "one run" in str(error) else str(error)
    return forked(count, body)

print(json.dumps(eval(sys.argv[1])))
"""


def children(expression):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILDREN, expression],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_server
def test_of_sixteen_processes_that_race_for_a_budget_of_five_five_get_it_and_one_begins(shared, url, fifth):
    mu = 2.0 / fifth.events[0].noise_multiplier
    told, starts = children(f"[reserve({url!r}, {mu!r}, 16, False), begin({url!r}, 8)]")
    assert told.count("over") == 11
    state = shared.state()
    assert sorted(run.id for run in state.runs) == sorted(set(told) - {"over"})
    assert len(state.runs) == 5
    assert state.spent <= state.terms.budget
    assert starts.count("refused") == 7
    assert shared.state().runs[0].begun in starts


@needs_server
def test_threads_that_share_a_ledger_get_what_fits(shared, fifth):
    told = []

    def reserve():
        try:
            told.append(shared.reserve(fifth, "run").id)
        except OverBudget:
            told.append("over")

    threads = [threading.Thread(target=reserve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told.count("over") == 3
    assert len({run.id for run in shared.state().runs} & set(told)) == 5
    shared.check()


@needs_server
def test_a_client_that_looks_before_it_locks_is_caught_and_the_ledger_says_so(shared, url, fifth, capsys):
    mu = 2.0 / fifth.events[0].noise_multiplier
    assert children(f"reserve({url!r}, {mu!r}, 8, True)").count("over") < 3
    assert "overspent" in refused(capsys, 1, "show", url)


# Processes that are killed

#: Statements of a change in which the server can be caught: where it sleeps, and in which message.
SLEEPS = {
    "insert": "CREATE TRIGGER slow BEFORE INSERT ON {0}.entries FOR EACH ROW EXECUTE FUNCTION {0}.slow()",
    "update": "CREATE TRIGGER slow BEFORE UPDATE ON {0}.head FOR EACH ROW EXECUTE FUNCTION {0}.slow()",
    "commit": "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON {0}.entries DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    "EXECUTE FUNCTION {0}.slow()",
}
#: (message, moment, statement): each change sends two messages.
POINTS = [
    *((1, moment, "lock") for moment in ("before", "while", "after")),
    *((2, "while", statement) for statement in SLEEPS),
    *((2, moment, "all") for moment in ("before", "after")),
]
STEPS = ("reserve", "begin", "settle")


def step(ledger, run, name, receipt):
    """One change of a ledger's; returns the id of its run."""
    if name == "reserve":
        return ledger.reserve(run, "raced").id
    ledger.begin(receipt) if name == "begin" else ledger.settle(receipt, "released")
    return receipt.id


def slow(server, schema, statement, seconds):
    """Have the server sleep in one statement of a change."""
    if statement in SLEEPS:
        body = f"BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END"
        function = f"CREATE OR REPLACE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS '{body}'"
        server.sql(function, SLEEPS[statement].format(schema))


def fast(server, schema, statement):
    if statement in SLEEPS:
        server.sql(f"DROP TRIGGER slow ON {schema}.{'head' if statement == 'update' else 'entries'}")


def changed_once(ledger, before, name, told):
    """Check that the ledger is whole, and that a change which was told is there, once."""
    ledger.check()
    new = ledger.history()[before:]
    assert [(entry.kind, entry.run) for entry in new] == [(name, told)]


@needs_server
@pytest.mark.parametrize("name", STEPS)
def test_a_connection_that_is_cut_anywhere_in_a_change_loses_nothing_and_repeats_nothing(
    shared, server, schema, proxy, name
):
    tiny = release(1e-4)
    ledger = Ledger(through(proxy, server, schema))
    for number, moment, _ in POINTS:
        receipt = ledger.reserve(tiny, "before")
        before = len(ledger.history())
        proxy.arm(number, moment, lambda: None, delay=0.001)
        told = step(ledger, tiny, name, receipt)
        assert proxy.acted.is_set()
        changed_once(shared, before, name, told)


@needs_server
@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_a_server_that_is_killed_at_any_statement_loses_nothing_that_was_told(shared, server, schema, proxy, name):
    tiny = release(1e-4)
    ledger = Ledger(through(proxy, server, schema))

    def kill():
        server.kill()
        threading.Thread(target=server.start).start()

    for number, moment, statement in POINTS:
        receipt = ledger.reserve(tiny, "before")
        before = len(ledger.history())
        slow(server, schema, statement, 0.3)
        proxy.arm(number, moment, kill, delay=0.15 if statement in SLEEPS else 0.001)
        told = step(ledger, tiny, name, receipt)
        assert proxy.acted.is_set()
        fast(server, schema, statement)
        changed_once(shared, before, name, told)


WORKER = """
import os, sys
from dpmcmc.privacy import Ledger
from tests.ledger.ledgers import release
from tests.ledger.test_postgres import step

for line in sys.stdin:
    url, name, run = line.split()
    pid = os.fork()
    if pid == 0:
        ledger = Ledger(url)
        print(os.getpid(), flush=True)
        sys.stdin.readline()
        step(ledger, release(1e-4), name, run)
        os._exit(0)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


@needs_server
@pytest.mark.slow
def test_a_client_that_is_killed_anywhere_leaves_all_of_a_change_or_none_and_the_ledger_free(
    shared, server, schema, proxy
):
    tiny = release(1e-4)
    worker = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WORKER.replace("receipt.id", "receipt")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT,
    )  # fmt: skip
    with worker:
        for name in STEPS:
            for number, moment, statement in POINTS:
                receipt = shared.reserve(tiny, "before")
                before = len(shared.history())
                slow(server, schema, statement, 0.1)
                worker.stdin.write(f"{through(proxy, server, schema)} {name} {receipt.id}\n")
                pid = int(worker.stdout.readline())
                kill = lambda pid=pid: os.kill(pid, signal.SIGKILL)  # noqa: E731
                proxy.arm(number, moment, kill, delay=0.05 if statement in SLEEPS else 0.001)
                worker.stdin.write("go\n")
                assert int(worker.stdout.readline()) == signal.SIGKILL
                start = time.monotonic()
                after = shared.reserve(tiny, "after")
                assert time.monotonic() - start < 5.0
                fast(server, schema, statement)
                shared.check()
                kinds = [entry.kind for entry in shared.history()[before:]]
                made = [[name, "reserve"]] if (number, moment) == (2, "after") else [["reserve"]]
                assert kinds in (made if moment != "while" else [["reserve"], [name, "reserve"]])
                shared.confirm(after)
        worker.stdin.close()


@needs_server
@pytest.mark.parametrize("planted", [False, True])
def test_what_was_told_is_on_the_disk_of_a_server_that_is_killed(shared, url, server, fifth, monkeypatch, planted):
    """Without the flush that ends a change, the last ones are lost, and a process that saw them says so."""
    if planted:
        monkeypatch.setattr(postgres, "_FLUSH", "")
    # Nobody else writes to the disk what a change leaves in memory.
    ((writer,),) = server.sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(writer, signal.SIGSTOP)
    try:
        told = [shared.reserve(fifth, f"run {k}") for k in range(3)]
        threading.Timer(0.2, os.kill, (writer, signal.SIGCONT)).start()  # to end with the others
        server.kill()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(writer, signal.SIGCONT)
    server.start()
    if planted:
        with pytest.raises(BrokenChain, match="older state was put back"):
            shared.history()
        forgotten()
        with pytest.raises(BrokenChain, match="old copy"):
            Ledger(url).confirm(told[-1])
    else:
        for receipt in told:
            shared.confirm(receipt)


@needs_server
def test_an_older_state_that_a_standby_or_a_backup_brings_back_is_noticed(shared, url, server, schema, fifth):
    shared.reserve(fifth, "kept")
    kept = shared.history()[-1]
    lost = shared.reserve(fifth, "lost")
    server.sql(
        f"DELETE FROM {schema}.entries WHERE sequence = 3",
        f"UPDATE {schema}.head SET sequence = 2, hash = '{kept.hash}'",
    )
    for use in (lambda: shared.reserve(fifth, "more"), shared.check):
        with pytest.raises(BrokenChain, match="older state was put back"):
            use()
    forgotten()
    other = Ledger(url)
    with pytest.raises(BrokenChain, match="old copy"):
        other.confirm(lost)


@needs_server
def test_a_silent_client_does_not_keep_the_ledger(shared, url, fifth, monkeypatch):
    """The server ends its change, which is then made again."""
    monkeypatch.setattr(postgres, "_LOCK", postgres._LOCK.replace(f"'{postgres._STALLED}s'", "'300ms'"))
    real, calls = Ledger._replayed, []

    def asleep(self, entries):
        calls.append(len(entries))
        if len(calls) == 1:
            time.sleep(0.6)
        return real(self, entries)

    monkeypatch.setattr(Ledger, "_replayed", asleep)
    shared.reserve(fifth, "run")
    assert calls == [1, 1]
    assert [run.label for run in shared.state().runs] == ["run"]


# Tables that were edited

EDITS = {
    "entry removed": "DELETE FROM {0}.entries WHERE sequence = 3",
    "last removed": "DELETE FROM {0}.entries WHERE sequence = 5",
    "all removed": "DELETE FROM {0}.entries",
    "cost lowered": "UPDATE {0}.entries SET text = replace(text, '\"cost\": 0.', '\"cost\": 0.0') WHERE sequence = 3",
    "kind changed": "UPDATE {0}.entries SET kind = 'settle' WHERE sequence = 4",
    "renumbered": "UPDATE {0}.entries SET sequence = 9 WHERE sequence = 5",
    "head moved": "UPDATE {0}.head SET sequence = 4",
    "head's hash": "UPDATE {0}.head SET hash = 'x'",
    "head removed": "DELETE FROM {0}.head",
    "key removed": "DELETE FROM {0}.secret",
    "key changed": "UPDATE {0}.secret SET key = 'x'",
}


@needs_server
@pytest.mark.parametrize("edit", EDITS)
def test_what_was_edited_is_noticed(shared, url, server, schema, fifth, edit, capsys):
    for k in range(4):
        shared.reserve(fifth, f"run {k}")
    server.sql(EDITS[edit].format(schema))
    with pytest.raises(BrokenChain):
        Ledger(url)
    forgotten()
    assert len(refused(capsys, 1, "show", url)) > 20


@needs_server
def test_a_client_that_takes_a_lost_reply_for_no_change_is_caught(shared, server, schema, proxy, monkeypatch):
    monkeypatch.setattr(postgres._Session, "_has", lambda self, entry: False)
    ledger = Ledger(through(proxy, server, schema))
    proxy.arm(2, "after", lambda: None)
    told = ledger.reserve(release(1e-4), "raced").id
    with pytest.raises(AssertionError):
        changed_once(shared, 1, "reserve", told)
    assert len(shared.history()) == 3


def statements(role):
    """GRANTs of a role that the guide gives."""
    guide = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    return re.findall(rf"^ *(GRANT .* TO {role});$", guide, re.MULTILINE)


@needs_server
def test_an_analyst_reserves_and_an_auditor_reads(server, fifth, capsys, tmp_path):
    keeper = Ledger.init(server.url(schema="adult"), **TERMS)
    server.sql("CREATE ROLE analyst LOGIN", "CREATE ROLE auditor LOGIN", "CREATE ROLE nobody_else LOGIN")
    analyst, auditor, nobody = (server.url(user, schema="adult") for user in ("analyst", "auditor", "nobody_else"))
    assert "may not read" in refused(capsys, 2, "show", analyst)
    assert (len(statements("analyst")), len(statements("auditor"))) == (4, 2)
    server.sql(*statements("analyst"), *statements("auditor"))
    ledger = Ledger(analyst)
    receipt = ledger.reserve(fifth, "run")
    ledger.begin(receipt)
    ledger.identify(lambda key: "aa")
    ledger.settle(receipt)
    import psycopg

    with psycopg.connect(server.url("analyst"), autocommit=True) as connection:
        for edit in ("DELETE FROM adult.entries", "UPDATE adult.entries SET kind = 'x'", "DELETE FROM adult.head"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(edit)
    reader = Ledger(auditor)
    assert reader.state() == keeper.state()
    reader.confirm(receipt)
    assert reader._key is None
    for spend in (lambda: reader.reserve(fifth, "run"), lambda: reader.begin("x"), lambda: reader.identify(str)):
        with pytest.raises(LedgerError, match="your role may only read this ledger") as refusal:
            spend()
        assert "\n" not in str(refusal.value)
    assert "may not read" in refused(capsys, 2, "show", nobody)
    assert "CREATE on it" in refused(
        capsys, 2, "init", server.url("auditor", schema="x"), "--epsilon", 1, "--delta", "1e-6"
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("mysql://ana@db.example/x", "in a database of PostgreSQL"),
        (f"postgresql://ana:{SECRET}@db.example/x", "PGPASSFILE"),
        (f"postgres://ana:{SECRET}@db.example/x#y", "PGPASSFILE"),
        (f"postgresql://ana@db.example/x?password={SECRET}", "PGPASSFILE"),
        (f"postgresql://ana@db.example/x?pass%77ord={SECRET}", "PGPASSFILE"),
        (f"postgresql://ana:{SECRET} x@db.example/x", "PGPASSFILE"),
        ("postgresql://ana@db.example/x#No-Name", "schema"),
        ("postgresql://ana@db.example/x y", "spaces"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_and_no_password_is_shown(wrong, words, capsys, tmp_path):
    with pytest.raises(InputError, match=words) as refusal:
        Ledger(wrong)
    said = str(refusal.value)
    said += refused(capsys, 2, "show", wrong) + refused(capsys, 2, "init", wrong, "--epsilon", 1, "--delta", "1e-6")
    said += refused(capsys, 2, "show", "a", wrong)
    config = str(ROOT / "configs" / "breast_cancer.yaml")
    for setting in (f"privacy.ledger={wrong}", f"privacy.ledger=[{wrong}]", f"privacy.ledgr={wrong}", f"x={wrong}"):
        from dpmcmc.cli.commands import main

        assert main(["plan", config, "--set", setting]) == 2
        said += "".join(capsys.readouterr())
    assert "s3cr" not in said
    assert "p@w" not in said
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_or_a_server_one_sentence_says_so(monkeypatch, capsys):
    url = "postgresql://ana@127.0.0.1:1/budgets"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "psycopg", None)
        assert "pip install 'psycopg[binary]'" in refused(capsys, 2, "show", url)
    if missing() is None:
        assert "cannot be reached" in refused(capsys, 2, "show", url)
        assert "cannot be reached" in refused(capsys, 2, "init", url, "--epsilon", 1, "--delta", "1e-6")
        assert "no URL of a database" in refused(capsys, 2, "show", "postgresql://ana@127.0.0.1/x?colour=red")


@needs_server
def test_what_is_no_ledger_is_refused_in_one_sentence(shared, url, server, schema, fifth, capsys):
    assert "no such ledger" in refused(capsys, 2, "show", server.url(schema="none"))
    server.sql("CREATE SCHEMA wrong", "CREATE TABLE wrong.head (a int)", "CREATE TABLE wrong.entries (b int)")
    assert "not a ledger" in refused(capsys, 2, "show", server.url(schema="wrong"))
    assert "exists already" in refused(capsys, 2, "init", server.url(schema="wrong"), "--epsilon", 1, "--delta", "1e-6")
    for database, user in (("postgres", "stranger"), ("none", "keeper")):
        other = server.url(user).replace("/postgres", f"/{database}")
        assert "cannot be reached" in refused(capsys, 2, "show", other)
    server.sql("CREATE ROLE standby LOGIN SUPERUSER", "ALTER ROLE standby SET default_transaction_read_only = on")
    with pytest.raises(LedgerError, match="as a standby does"):
        Ledger(server.url("standby", schema=schema)).reserve(fifth, "run")
    server.sql("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
    try:
        soon(lambda: server.sql("SHOW fsync") == [("off",)])
        with pytest.raises(LedgerError, match="fsync"):
            shared.reserve(fifth, "run")
    finally:
        server.sql("ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
    soon(lambda: server.sql("SHOW fsync") == [("on",)])
    server.sql(f"UPDATE {schema}.head SET version = 7")
    assert "version 7" in refused(capsys, 2, "show", url)
    assert shared.path == Address(server.url(), schema)


@needs_server
def test_a_ledger_that_others_keep_locked_is_said_to_be(shared, server, schema, fifth, monkeypatch):
    import psycopg

    monkeypatch.setattr(postgres, "_LOCK", postgres._LOCK.replace(f"'{postgres_refusals.PATIENCE}s'", "'100ms'"))
    with psycopg.connect(server.url()) as other:
        other.execute(f"SELECT * FROM {schema}.head FOR UPDATE")
        with pytest.raises(LedgerError, match="kept the ledger locked"):
            shared.reserve(fifth, "run")
    shared.reserve(fifth, "run")
