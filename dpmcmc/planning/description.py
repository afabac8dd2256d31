"""Description of a plan, and the words and tables for it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpmcmc.errors import printable
from dpmcmc.privacy.accounting.guarantee import Guarantee


@dataclass(frozen=True)
class Description:
    """Description of a plan, or of one of its stages; a part that is left out has nothing to say.

    Attributes:
        sections: of the config that makes it, by name.
        stated: its part of ``plan.json``, by key.
        facts: its part of ``privacy.json``, by key.
        lines: (label, sentence) pairs that say to a person what it does.
        costs: pairs of a stage that stand after the guarantee: what privacy costs and buys.
    """

    sections: dict[str, Any] = field(default_factory=dict)
    stated: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    lines: Sequence[tuple[str, str]] = ()
    costs: Sequence[tuple[str, str]] = ()


def guaranteed(guarantee: Guarantee, secret: bool) -> str:
    """Return what a plan guarantees, in a sentence; ``secret`` as in ``Plan.describe``."""
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
