"""The place of a ledger: a file's path, or the URL of a schema in a database of PostgreSQL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dpmcmc.errors import InputError, without_password

#: Schema that a ledger has where its URL names none.
SCHEMA = "dpmcmc"
_SCHEMES = ("postgresql://", "postgres://")
#: Longer names are cut by PostgreSQL; others would need quotes in every GRANT.
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


@dataclass(frozen=True)
class Address:
    """URL of a ledger in a database; it holds no password.

    Attributes:
        url: as PostgreSQL's own programs take it.
        schema: of the ledger's tables.
    """

    url: str
    schema: str = SCHEMA

    def __str__(self) -> str:
        return self.url if self.schema == SCHEMA else f"{self.url}#{self.schema}"

    @property
    def stem(self) -> str:
        """Name of the ledger for people, as a path has one."""
        database = self.url.partition("://")[2].partition("?")[0].partition("/")[2]
        return self.schema if self.schema != SCHEMA else database or self.schema


Place: TypeAlias = Path | Address


def place(given: str | Path | Address) -> Place:
    """Return the path of a ledger's file, or the address of its database.

    Args:
        given: a path, or ``postgresql://USER@HOST:PORT/DATABASE#SCHEMA``, of which libpq has the details.

    Raises:
        InputError: a URL of something else, with a password, or with another schema than letters make.
    """
    if isinstance(given, Path | Address):
        return given
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", given)
    if scheme is None:
        return Path(given)
    shown = without_password(given)
    if scheme[0] not in _SCHEMES:
        raise InputError(
            f"{shown!r}: a ledger is a file or lies in a database of PostgreSQL; give a path, or "
            "postgresql://USER@HOST/DATABASE"
        )
    if shown != given:
        raise InputError(
            f"{shown!r}: a password in a URL is read by whoever reads the config; take it out, and set PGPASSWORD, or "
            "name a file with it in PGPASSFILE (an @ that is none's end is written %40)"
        )
    if not given.isprintable() or " " in given:
        raise InputError(f"{shown!r}: holds spaces or signs that no URL has; write them %XX")
    url, _, schema = given.partition("#")
    if not _NAME.fullmatch(schema or SCHEMA):
        raise InputError(
            f"{shown!r}: the part after # names the ledger's schema; make it of at most 63 small letters, digits and _"
        )
    return Address(url, schema or SCHEMA)
