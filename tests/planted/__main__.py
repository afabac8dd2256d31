"""``python -m tests.planted``: each planted fault, how it comes about, and what catches it."""

from tests.planted.catalogue import table

print(table())
