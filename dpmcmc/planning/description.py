"""The words and tables that every kind of plan has for itself."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from dpmcmc.errors import printable
from dpmcmc.privacy.accounting.guarantee import Guarantee


def guaranteed(guarantee: Guarantee, secret: bool) -> str:
    """Return what a plan guarantees, in a sentence; ``secret`` as in ``Plan.to_json``."""
    if secret:
        return str(guarantee)
    return f"NONE: insecure_noise_seed makes the noise known (secret noise would give {guarantee})"


def labelled(label: str, sentence: str) -> list[tuple[str, str]]:
    """Return a line of a plan's description; none where nothing is to be said."""
    return [(label, sentence)] if sentence else []


def html_table(rows: Iterable[Sequence[str]], titles: Sequence[str] = ()) -> str:
    """Return rows of text, the first cell of each a heading, as an HTML table for notebooks."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    cells = (
        f"<th>{html.escape(name)}</th>" + "".join(f"<td>{html.escape(s)}</td>" for s in row) for name, *row in rows
    )
    made = f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
    return printable(made, "\n")
