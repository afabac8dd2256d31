"""``report.html`` of a sweep, and its last lines on a console: what each config was for, and what all cost together.

Everything on it is a public fact or comes from released values: swept values, how many configs ended in which way, the
verdict and the scores that a run's ``metrics.json`` has.
"""

from __future__ import annotations

import datetime
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.report.page import template

FILE = "report.html"
#: Words of the page for a status.
_SAID = {
    "released": "Released",
    "withheld": "Withheld: no guarantee covers them",
    "diverged": "Diverged: lower the step",
    "lost": "Lost with their worker, and charged",
    "stopped": "Stopped, and charged: they can go on",
    "waiting": "Not begun",
    "failed": "No release",
    "refused": "No release",
}
#: Columns of scores that the page has, where a config has them.
_MEASURES = ("accuracy", "rmse", "log_predictive_density", "ess", "rhat")

Row = Mapping[str, Any]


class _Line(NamedTuple):
    """A row of the page: configs that differ in their noise alone."""

    values: list[str]
    total: int
    released: int
    epsilon: str
    usable_for: str
    means: list[str]


def cost(together: Guarantee | None, why: str) -> str:
    """Return a sentence on what all configs cost together."""
    if together is None:
        return (
            f"No epsilon is proved for all configs together: {why}. Each config states its own promise, and whoever "
            "sees several learns more than any one of them allows."
        )
    assumed = " ".join(together.assumptions)
    return (
        f"All charged configs together are ({round_up(together.epsilon)}, {together.delta:.6g})-DP, "
        f"{together.adjacency}{f', assuming: {assumed}' if assumed else '.'} Whoever publishes several configs, or the "
        "best of them, pays for all."
    )


def page(
    name: str,
    day: datetime.date,
    keys: Sequence[str],
    rows: Sequence[Row],
    together: Guarantee | None,
    why: str,
) -> str:
    """Return the page of a sweep as HTML.

    Args:
        name: of the grid.
        day: on which it began.
        keys: swept ones.
        rows: one for each config, as ``results.csv`` has them.
        together: guarantee of all charged configs; None where none is proved.
        why: why there is none.
    """
    measures = [one for one in _MEASURES if any(_number(row, one) for row in rows)]
    counts = Counter(row["status"] for row in rows)
    return template("sweep.html").render(
        name=name,
        day=day,
        count=len(rows),
        keys=keys,
        rows=list(_combined(keys, rows, measures)),
        measures=measures,
        counts={status: counts[status] for status in _SAID if counts[status]},
        said=_SAID,
        together=together,
        epsilon="" if together is None else round_up(together.epsilon),
        delta="" if together is None else f"{together.delta:.6g}",
        cost=cost(together, why),
    )


def lines(rows: Sequence[Row], together: Guarantee | None, why: str, private: int) -> Iterator[str]:
    """Yield the last lines on the console; ``private`` configs ended for reasons that may depend on the records."""
    counts = Counter(row["status"] for row in rows)
    if private:
        return
    yield "configs  " + ", ".join(f"{counts[status]} {status}" for status in _SAID if counts[status])
    yield f"privacy  {cost(together, why)}"


def _combined(keys: Sequence[str], rows: Sequence[Row], measures: Sequence[str]) -> Iterator[_Line]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[key]) for key in keys), []).append(row)
    for values, those in groups.items():
        released = [row for row in those if row["status"] == "released"]
        said = dict.fromkeys(" and ".join(str(row.get("usable_for", "")).split()) or "nothing" for row in released)
        epsilons = dict.fromkeys(str(row["epsilon"] or "none") for row in those)
        yield _Line(
            list(values),
            len(those),
            len(released),
            ", ".join(epsilons),
            "; ".join(said),
            [_mean(released, name) for name in measures],
        )


def _mean(rows: Sequence[Row], name: str) -> str:
    found = [float(row[name]) for row in rows if _number(row, name)]
    return f"{statistics.fmean(found):.4g}" if found else ""


def _number(row: Row, name: str) -> bool:
    return row.get(name) not in (None, "")
