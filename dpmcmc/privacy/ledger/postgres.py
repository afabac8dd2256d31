"""The database of a ledger: its entries in a schema of PostgreSQL, changed one at a time behind one locked row.

A schema has three tables. ``head`` has one row: the format, and the number and hash of the last entry. ``entries`` has
the entries of ``chain.py``. ``secret`` has the key of fingerprints, which those who may only read do not see: with it
they could try out whether a record is in the data.

**Change.** Two messages, in one transaction:

    1. BEGIN; lock the row of ``head``; read the entries that this process has not seen
    2. INSERT the new entries; UPDATE ``head``; COMMIT

Every change of every machine waits for the same row, so each sees all changes before it and none beside it. Nothing is
kept in the server's session, so a pool that shares connections by transaction is as good as a connection.

**Lost reply.** A connection may end after message 2 was sent and before its reply came. The change is made or not, and
a new connection finds out which: it locks the row, which waits for the old transaction to end, and looks for the
entry's own hash. If it is there, the change was made. If not, it never will be, and :class:`~.chain.NotMade` says so.

**A hung client** would keep the row locked. The server ends a transaction that waits for its client for longer than
``_STALLED`` seconds.

**On the disk.** Message 2 ends with a second transaction, and a change is reported once that one is on the disk, which
all before it is then. The row is free before that, so one flush of the disk serves all machines that wait. A crash
loses the last changes from some point on, of which none was reported. A server with ``fsync = off`` is refused.

**Entries seen before.** A process keeps the entries up to its own last change, which it has verified, and reads
only the others. A server that has lost one of them, as a standby has that lagged when it took over, is refused.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dpmcmc.privacy.ledger import chain
from dpmcmc.privacy.ledger.chain import (
    Append,
    BrokenChain,
    Entry,
    LedgerError,
    NotMade,
)
from dpmcmc.privacy.ledger.place import Address
from dpmcmc.privacy.ledger.postgres_refusals import (
    LOST,
    NO_LEDGER,
    PATIENCE,
    import_psycopg,
    is_lost,
    reason_of,
    refusing,
    unknown_change,
)

#: Name of the format in ``head``, and its version.
_FORMAT = "dpmcmc ledger"
_VERSION = 1
#: Seconds to wait for a connection, and for what became of a change whose reply was lost.
_CONNECT, _RECONNECT = 10, 60
#: Seconds after which the server ends a change whose client is silent.
_STALLED = 30

_FIELDS = "sequence, kind, run, time, text, nonce, previous, hash"
_TABLES = """
CREATE TABLE {schema}.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    format text NOT NULL, version integer NOT NULL, sequence bigint NOT NULL, hash text NOT NULL
);
CREATE TABLE {schema}.entries (
    sequence bigint PRIMARY KEY, kind text NOT NULL, run text NOT NULL, time text NOT NULL, text text NOT NULL,
    nonce text NOT NULL, previous text NOT NULL, hash text NOT NULL UNIQUE
);
CREATE UNIQUE INDEX one_reservation ON {schema}.entries (run) WHERE kind = 'reserve';
CREATE TABLE {schema}.secret (one boolean PRIMARY KEY DEFAULT true CHECK (one), key bytea NOT NULL);
"""
#: A statement whose own transaction ends once all before it is on the disk, for which it must write something.
_FLUSH = """
SELECT pg_logical_emit_message(true, 'dpmcmc', ''),
    CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
    THEN set_config('synchronous_commit', 'on', true) END;
"""
_HEAD = "SELECT format, version, sequence, hash, current_setting('fsync') FROM {schema}.head"
_LOCK = f"""
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT set_config('lock_timeout', '{PATIENCE}s', true), set_config('synchronous_commit', 'off', true),
    set_config('idle_in_transaction_session_timeout', '{_STALLED}s', true);
{_HEAD} FOR UPDATE;
SELECT {_FIELDS} FROM {{schema}}.entries WHERE sequence >= %s ORDER BY sequence;
"""
_READ = f"""
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
{_HEAD};
SELECT {_FIELDS} FROM {{schema}}.entries ORDER BY sequence;
SELECT has_table_privilege('{{schema}}.secret', 'SELECT');
COMMIT;
"""
_INSERT = f"INSERT INTO {{schema}}.entries ({_FIELDS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s);\n"
_MOVE = "UPDATE {schema}.head SET sequence = %s, hash = %s;\n"
_FILL = """
INSERT INTO {schema}.head (format, version, sequence, hash) VALUES (%s, %s, %s, %s);
INSERT INTO {schema}.secret (key) VALUES (%s);
"""


def create(address: Address, key: bytes, entries: Sequence[Entry]) -> None:
    """Make a ledger of these entries; it appears whole or not at all.

    Raises:
        LedgerError: there is one already, or it cannot be made.
    """
    with making(address, key) as fill:
        fill(entries)


@contextlib.contextmanager
def making(address: Address, key: bytes) -> Iterator[Callable[[Sequence[Entry]], None]]:
    """Make a ledger; the block gives its entries to what this yields, and the ledger is there once the block ends.

    Raises:
        LedgerError: as :func:`create`; if the block raises, nothing is made.
    """
    session = _session(address)
    with session.lock, refusing(address, "make"):
        session.drop()
        try:
            (((here,),),) = session.send("BEGIN; SELECT to_regnamespace(%s) IS NOT NULL", address.schema)
            session.send(("" if here else "CREATE SCHEMA {schema};") + _TABLES)

            def fill(entries: Sequence[Entry]) -> None:
                session.add(entries)
                session.send(_FILL, *_head(entries), key)

            yield fill
            try:
                session.send(f"COMMIT; {_FLUSH}")
            except import_psycopg(address).Error as error:
                raise unknown_change(address, error) from None
        finally:
            session.drop()


def read(address: Address) -> tuple[list[Entry], bytes | None]:
    """(entries, key), the chain verified; the key is None for a role that may not read it.

    Raises:
        LedgerError: missing, another table, of another version, or a server that cannot be reached.
        BrokenChain: edited, truncated or put back.
    """
    session = _session(address)
    with session.lock, refusing(address, "read"):
        return session.all()


@contextlib.contextmanager
def change(address: Address) -> Iterator[tuple[list[Entry], Append]]:
    """One change that nobody else shares: (verified entries, append); nothing is changed if the block raises.

    Raises:
        NotMade: the server was lost before the change was made.
        LedgerError: as :func:`read`; a role that may only read; another process kept the ledger for too long.
    """
    session = _session(address)
    with session.lock, refusing(address, "change"):
        entries = session.locked()
        before = len(entries)

        def append(kind: str, run: str, body: dict[str, Any]) -> Entry:
            entries.append(chain.following(entries, kind, run, body))
            return entries[-1]

        try:
            yield entries, append
        except BaseException:
            session.rollback()
            raise
        if len(entries) > before:
            session.commit(entries, before)
        else:
            session.rollback()


class _Session:
    """Connection to the server of a ledger; one thread at a time uses it.

    Attributes:
        lock: held while it is in use.
        entries: verified, and on the disk.
    """

    def __init__(self, address: Address) -> None:
        self.lock = threading.Lock()
        self.entries: list[Entry] = []
        self._address = address
        self._connection: Any = None

    def send(self, statements: str, *values: object) -> list[list[tuple]]:
        """Send statements as one message; return the rows of each that has some."""
        if self._connection is None:
            self._connection = self._connected()
        found = []
        try:
            cursor = self._connection.execute(statements.format(schema=f'"{self._address.schema}"'), values or None)
            while True:
                if cursor.description is not None:
                    found.append(cursor.fetchall())
                if not cursor.nextset():
                    return found
        except BaseException as error:
            if not isinstance(error, import_psycopg(self._address).Error) or is_lost(error):
                self.drop()  # nobody knows what it is about to say
            raise

    def all(self) -> tuple[list[Entry], bytes | None]:
        """Read and verify every entry; a connection that has ended since it was used is made again."""
        old = self._connection is not None
        try:
            heads, rows, ((may_read_key,),) = self.send(_READ)
        except import_psycopg(self._address).Error as error:
            self.rollback()
            if not (old and is_lost(error)):
                raise
            heads, rows, ((may_read_key,),) = self.send(_READ)
        entries = self._verified(heads, rows, [])
        if entries[: len(self.entries)] != self.entries:
            raise self._put_back()
        if not may_read_key:
            return entries, None
        keys = self.send("SELECT key FROM {schema}.secret")[0]
        if len(keys) != 1:
            raise BrokenChain(f"{self._address}: the ledger's key was removed; restore an untouched copy.")
        return entries, bytes(keys[0][0])

    def locked(self) -> list[Entry]:
        """Begin a change: lock the ledger, and return its entries, verified."""
        try:
            _, heads, rows = self.send(_LOCK, max(1, len(self.entries)))
            return self._verified(heads, rows, self.entries)
        except BaseException:
            self.rollback()
            raise

    def commit(self, entries: list[Entry], before: int) -> None:
        """End a change: add the entries after the first ``before``.

        Raises:
            NotMade: the server was lost, and they are not there.
            LedgerError: it was lost for so long that nobody knows.
        """
        library = import_psycopg(self._address)
        try:
            self.add(entries[before:], f"{_MOVE}COMMIT;{_FLUSH}", *_head(entries)[2:])
        except library.Error as error:
            known = self._connection is not None
            self.rollback()
            if self._has(entries[-1]):
                self.entries = entries
                return
            if known:  # the server answered: it refuses
                raise
            raise NotMade(f"{self._address}: {LOST.format(reason_of(error))}.") from None
        self.entries = entries

    def add(self, entries: Sequence[Entry], after: str = "", *values: object) -> None:
        """Send the entries, and the statements after them, as one message."""
        fields = [value for entry in entries for value in entry.__dict__.values()]
        self.send(_INSERT * len(entries) + after, *fields, *values)

    def rollback(self) -> None:
        """Give up a change; without a connection, the server does."""
        if self._connection is not None:
            try:
                self.send("ROLLBACK")
            except import_psycopg(self._address).Error:
                self.drop()

    def drop(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> Any:
        library = import_psycopg(self._address)
        try:
            given = library.conninfo.conninfo_to_dict(self._address.url)
        except library.ProgrammingError as error:
            raise LedgerError(
                f"{self._address}: is no URL of a database ({reason_of(error)}); give "
                "postgresql://USER@HOST:PORT/DATABASE."
            ) from None
        usual = {
            "connect_timeout": _CONNECT,
            "fallback_application_name": "dpmcmc ledger",
            # a network that is cut without a word is noticed within a minute
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
        }
        return library.connect(
            **usual | given | {"client_encoding": "utf8"},
            autocommit=True,
            cursor_factory=library.ClientCursor,
            prepare_threshold=None,
        )

    def _verified(self, heads: list[tuple], rows: list[tuple], seen: list[Entry]) -> list[Entry]:
        """The entries seen before and those of ``rows``, which begin with the last one that was seen."""
        where = self._address
        if len(heads) != 1:
            raise BrokenChain(f"{where}: the ledger's head was removed; {chain.MEND}")
        format_, version, sequence, hash_, fsync = heads[0]
        if format_ != _FORMAT:
            raise LedgerError(f"{where}: {NO_LEDGER}.")
        if version != _VERSION:
            raise LedgerError(
                f"{where}: is a ledger of version {version} and this library reads {_VERSION}; update it."
            )
        if fsync != "on":
            raise LedgerError(
                f"{where}: the server may forget what it has said (fsync is {fsync}), and with it what was spent; set "
                "fsync = on in its postgresql.conf."
            )
        found = [Entry(*row) for row in rows]
        if seen and (not found or found[0] != seen[-1]):
            raise self._put_back()
        entries = [*seen, *found[1:]] if seen else found
        try:
            chain.verify(entries, (sequence, hash_), where, seen=len(seen))
        except TypeError:  # columns of another type
            raise LedgerError(f"{where}: {NO_LEDGER}.") from None
        return entries

    def _put_back(self) -> BrokenChain:
        return BrokenChain(
            f"{self._address}: the server lacks entry {len(self.entries)}, which this process has seen: an older state "
            "was put back (a backup, or a standby that lagged when it took over), so what was spent since is not "
            "counted; do not spend from it."
        )

    def _has(self, entry: Entry) -> bool:
        """Whether an entry is there, after the reply was lost that would have said so; its transaction has ended then.

        Raises:
            LedgerError: nobody knows.
        """
        end = time.monotonic() + _RECONNECT
        while True:
            try:
                found = self.locked()
                self.send(f"COMMIT;{_FLUSH}")
                return len(found) >= entry.sequence and found[entry.sequence - 1] == entry
            except import_psycopg(self._address).Error as error:
                self.rollback()
                if not is_lost(error) or time.monotonic() > end:
                    raise unknown_change(self._address, error) from None
            time.sleep(0.1)


def _head(entries: Sequence[Entry]) -> tuple[str, int, int, str]:
    return _FORMAT, _VERSION, entries[-1].sequence, entries[-1].hash


#: By process, since a connection is not shared with a child, and by address.
_SESSIONS: dict[tuple[int, Address], _Session] = {}


def _session(address: Address) -> _Session:
    return _SESSIONS.setdefault((os.getpid(), address), _Session(address))


@atexit.register
def _close() -> None:
    for (process, _), session in _SESSIONS.items():
        if process == os.getpid():
            session.drop()
