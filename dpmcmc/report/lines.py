"""Lines of a terminal: a label of ten columns and a sentence, eighty columns in all. All commands print them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from dpmcmc.errors import printable

#: A label and a sentence.
Row = tuple[str, str]

#: Columns of the screen, and of a label with the space after it.
WIDTH, LABEL = 80, 10
#: Marks of what holds, and of what does not.
YES, NO = "✓", "✗"


def rows(lines: Iterable[Row]) -> str:
    """Return labelled sentences as lines of the screen; a long sentence goes on under its beginning.

    A label that is too long has a line of its own.
    """
    out: list[str] = []
    for label, text in ((printable(label), printable(text)) for label, text in lines):
        if len(label) >= LABEL:
            out.append(label)
            label = ""
        wrapped = textwrap.wrap(
            text,
            WIDTH - LABEL,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            drop_whitespace=False,
        )
        for number, part in enumerate(wrapped or [""]):
            begin = label if number == 0 else ""
            out.append(f"{begin:<{LABEL}}{part.strip(' ') if number else part}".rstrip())
    return "\n".join(out)


def say(text: object) -> None:
    """Print a text; what a name in it holds obeys no terminal."""
    print(printable(str(text), "\n"))
