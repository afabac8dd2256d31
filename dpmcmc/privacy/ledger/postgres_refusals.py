"""Words of PostgreSQL's server, as one sentence: what, where, how to mend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dpmcmc.errors import redacted
from dpmcmc.privacy.ledger.chain import (
    LedgerError,
    NotMade,
)
from dpmcmc.privacy.ledger.place import Address

#: Seconds that a process waits for the locked row.
PATIENCE = 120


def import_psycopg(address: Address) -> Any:
    """Return the library of PostgreSQL, which is imported when a database is named.

    Raises:
        LedgerError: it is not installed.
    """
    try:
        import psycopg
    except ImportError:
        raise LedgerError(
            f"{address}: a ledger in a database needs psycopg, which is not installed; run pip install "
            "'psycopg[binary]'."
        ) from None
    return psycopg


#: Beginnings of the codes of a server that ends the connection or does not accept it.
_ENDS = ("08", "28", "3D", "57P", "25P03", "25P04", "53300")


def is_lost(error: BaseException) -> bool:
    """Whether a connection was not made, or has ended."""
    import psycopg

    if not isinstance(error, psycopg.OperationalError | psycopg.InternalError):
        return isinstance(error, psycopg.InterfaceError)
    return error.sqlstate is None or error.sqlstate.startswith(_ENDS)


def unknown_change(address: Address, error: Any) -> LedgerError:
    """Return the refusal of a change whose outcome nobody knows."""
    return LedgerError(
        f"{address}: the server was lost while a change was being made ({reason_of(error)}), and nobody knows whether "
        "it was; dpmcmc ledger history tells, once the server runs."
    )


def reason_of(error: Any) -> str:
    """Return what the server says, without a password."""
    said = " ".join((error.diag.message_primary or str(error)).split())
    return redacted(said if len(said) <= _MOST_LETTERS else f"{said[:_MOST_LETTERS]}...")


@contextlib.contextmanager
def refusing(address: Address, doing: str) -> Iterator[None]:
    """Raise LedgerError for what the server refuses inside; ``doing`` is make, read or change."""
    library = import_psycopg(address)
    try:
        yield
    except library.Error as error:
        if is_lost(error):
            kind = NotMade if doing == "change" else LedgerError
            raise kind(f"{address}: {LOST.format(reason_of(error))}.") from None
        said = _REFUSALS.get(error.sqlstate, _OTHERWISE)
        said = said[doing] if isinstance(said, dict) else said
        raise LedgerError(f"{address}: {said.format(reason_of(error))}.") from None


_MOST_LETTERS = 240
LOST = (
    "the server cannot be reached, and nothing was changed ({}); see that it runs and that host, port, database and "
    "role are right (a password belongs in PGPASSWORD or PGPASSFILE)"
)
_OTHERWISE = "the database refuses ({}), and nothing was changed; ask its administrator"
NO_LEDGER = "is not a ledger of this library; make one with dpmcmc ledger init, in a schema of its own"
_MISSING = "no such ledger; make one with dpmcmc ledger init"
_THERE = (
    "exists already, and a ledger's budget is fixed for good; name another schema, postgresql://.../DATABASE#SCHEMA"
)
_FULL = "the server's disk is full ({}), and the ledger is as it was before; free space and try again"
#: By the code of SQL, and where it differs by what is being done.
_REFUSALS: dict[str | None, str | dict[str, str]] = {
    "42P01": _MISSING,
    "3F000": _MISSING,
    "42703": NO_LEDGER,
    "42809": NO_LEDGER,
    "42883": NO_LEDGER,
    "42P06": _THERE,
    "42P07": _THERE,
    "23505": {
        "make": "was made by another process meanwhile; use that one",
        "read": _OTHERWISE,
        "change": _OTHERWISE,
    },
    "42501": {
        "make": "your role may not make tables here ({}); ask the owner of the database for CREATE on it",
        "read": "your role may not read this ledger ({}); ask its owner for SELECT (docs/ledger.md has the statements)",
        "change": "your role may only read this ledger ({}); ask its owner for the rights to reserve (docs/ledger.md "
        "has the statements)",
    },
    "55P03": f"other processes kept the ledger locked for {PATIENCE} seconds; try again",
    "25006": "the server only reads, as a standby does ({}); name the primary, or add "
    "?target_session_attrs=read-write to the URL",
    "53100": _FULL,
}
