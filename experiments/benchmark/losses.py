"""The text of the page: goals, the table of each ε, and a paragraph for each loss of ``fit``.

A loss is a cell, a table at one ε, of one of these kinds.

* A private rival, or another method of the library, has a better mean CRPS or log score, beyond two standard errors of
  the difference over repeats.
* ``fit`` says that its intervals may be used, and they cover less than .85 of simulated truths, beyond two errors.
* They are more than three times as wide as without privacy.
* ``fit`` fails, or refuses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from dpmcmc.cli.refusals import CommandError
from experiments.benchmark import summary
from experiments.benchmark.run import Row
from experiments.benchmark.summary import OURS, Cell, number

#: Widest interval over that without privacy that is no loss.
_WIDE = 3.0
#: Marks in a page between which the text stands.
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"

#: A cell's ε and what was seen there, by table and kind of loss.
Seen = dict[tuple[str, str], list[tuple[float, str]]]


def paragraphs(rows: Sequence[Row]) -> list[str]:
    """Return a paragraph for each table and kind of loss, over all ε."""
    cells = summary.cells_of(rows)
    out: Seen = {}
    for cell in cells:
        if cell.method == OURS:
            for kind, said in _losses(rows, cell, cells):
                out.setdefault((cell.table, kind), []).append((cell.epsilon, said))
    for row in rows:
        if row["method"] == OURS and row["status"] in ("failed", "refused"):
            said = f"`{OURS}` {row['status']}: {row.get('reason', '')}"
            out.setdefault((str(row["table"]), str(row["status"])), []).append((number(row, "epsilon"), said))
    return [_paragraph(table, kind, seen) for (table, kind), seen in sorted(out.items())]


def _losses(rows: Sequence[Row], cell: Cell, cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """Yield the kind of each loss of a cell, and what was seen."""
    rivals = [
        other
        for other in cells
        if (other.table, other.epsilon) == (cell.table, cell.epsilon) and other.method not in {OURS, "bayes", "mle"}
    ]
    for score, name, better in (("crps", "CRPS", -1), ("log_score", "log score", 1)):
        rival = _best(rows, cell, rivals, score, better)
        if rival is not None:
            its, mine = (f"{one.mean[score]:.3g}" for one in (rival, cell))
            yield name, f"the {name} of `{rival.method}` is {its}, and that of `{OURS}` {mine}"
    coverage, width, predicted = (cell.mean.get(name, math.nan) for name in ("coverage", "width", "predicted"))
    if cell.fit and coverage < summary.BAND[0] - 2 * cell.error:
        yield "coverage", f"intervals cover {coverage:.2f} ± {cell.error:.2f} of simulated truths"
    if cell.fit and width > _WIDE:
        yield "width", f"intervals are {width:.1f} times as wide as without privacy ({predicted:.1f} predicted)"


def _best(rows: Sequence[Row], cell: Cell, rivals: Sequence[Cell], score: str, better: int) -> Cell | None:
    """Return the best rival that beats ``fit`` beyond two errors; None: none does."""
    mine = _by_repeat(rows, cell, score)
    beaten = []
    for rival in rivals:
        its = _by_repeat(rows, rival, score)
        gaps = [better * (its[repeat] - mine[repeat]) for repeat in mine.keys() & its.keys()]
        if len(gaps) > 1 and np.mean(gaps) > 2 * np.std(gaps, ddof=1) / math.sqrt(len(gaps)):
            beaten.append((float(np.mean(gaps)), rival))
    return max(beaten, key=lambda one: one[0])[1] if beaten else None


def _by_repeat(rows: Sequence[Row], cell: Cell, score: str) -> dict[float, float]:
    return {
        number(row, "repeat"): number(row, score)
        for row in rows
        if (row["table"], row["method"], number(row, "epsilon")) == (cell.table, cell.method, cell.epsilon)
        and row["status"] == "ok"
        and math.isfinite(number(row, score))
    }


def _paragraph(table: str, kind: str, seen: Sequence[tuple[float, str]]) -> str:
    by_text: dict[str, list[str]] = {}
    for epsilon, said in sorted(seen):
        by_text.setdefault(said, []).append(f"{epsilon:g}")
    parts = [f"At ε = {', '.join(dict.fromkeys(epsilons))} {said}." for said, epsilons in by_text.items()]
    return f"**{table}, {kind}.** {' '.join(parts)}"


def page(rows: Sequence[Row], found: Sequence[Row], partial: bool) -> str:
    """Return the text of the page.

    Args:
        rows: of ``results.csv``.
        found: of ``summary.csv``.
        partial: whether the run left out tables, methods, ε or repeats of the whole.
    """
    tables = sorted({str(row["table"]) for row in rows})
    repeats = sorted(set(Counter((row["table"], row["method"], row["epsilon"]) for row in rows).values()))
    several = f"{repeats[-1]}" if len(repeats) == 1 else f"{repeats[0]} to {repeats[-1]}"
    note = "This is a part of the benchmark, and no result of it: " if partial else "Run: "
    lines = [f"{note}{len(tables)} tables ({', '.join(tables)}), {several} repeats.", ""]
    lines += ["```text", *summary.goals(rows, found), "```", ""]
    for epsilon in sorted({number(row, "epsilon") for row in found}):
        lines += [f"### ε = {epsilon:g}", "", *summary.markdown(found, epsilon), ""]
    lost = paragraphs(rows) or ["No loss beyond two standard errors was seen."]
    return "\n".join([*lines, "### Where we lose", "", "\n\n".join(lost), ""])


def placed(page_text: str, text: str) -> str:
    """Return a page with the text between its marks.

    Raises:
        CommandError: the page has no such marks.
    """
    if BEGIN not in page_text or END not in page_text:
        raise CommandError(f"--page: the page has no lines {BEGIN} and {END}; give docs/benchmark.md.")
    before, _, rest = page_text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}"
