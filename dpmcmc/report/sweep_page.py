"""``report.html`` of a sweep: what each config was for, and what all cost together.

Everything on it is a public fact or comes from released values: it is the table ``results.csv``.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.report.page import template

FILE = "report.html"

Row = Mapping[str, Any]


def cost(together: Guarantee | None, why: str) -> str:
    """Return a sentence on what all configs cost together."""
    if together is None:
        return (
            f"No epsilon is proved for all configs together: {why}. Each config states its own promise, and whoever "
            "sees several learns more than any one of them allows."
        )
    assumed = " ".join(together.assumptions)
    return (
        f"All configs together are ({round_up(together.epsilon)}, {together.delta:.6g})-DP, "
        f"{together.adjacency}{f', assuming: {assumed}' if assumed else '.'} Whoever publishes several configs, or the "
        "best of them, pays for all."
    )


def count(rows: Sequence[Row]) -> str:
    """Return how many configs have which status."""
    counts = Counter(row["status"] for row in rows)
    return ", ".join(f"{number:,} {status}" for status, number in counts.most_common())


def page(
    name: str,
    day: datetime.date,
    rows: Sequence[Row],
    together: Guarantee | None,
    why: str,
) -> str:
    """Return the page of a sweep as HTML.

    Args:
        name: of the grid.
        day: on which it began.
        rows: one for each config, as ``results.csv`` has them; columns without a value are left out.
        together: guarantee of all configs; None where none is proved.
        why: why there is none.
    """
    shown = [column for column in rows[0] if any(_text(row, column) for row in rows)]
    return template("sweep.html").render(
        name=name,
        day=day,
        columns=shown,
        rows=[[_text(row, column) for column in shown] for row in rows],
        count=count(rows),
        together=together,
        epsilon="" if together is None else round_up(together.epsilon),
        cost=cost(together, why),
    )


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
