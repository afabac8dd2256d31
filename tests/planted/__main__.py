"""``python -m tests.planted``: the table of ``docs/trust.md``."""

from tests.planted.catalogue import table

print(table())
