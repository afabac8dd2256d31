"""The page "Where we lose, and why": a paragraph for each loss of ``fit``, from the rows of a run.

A loss is a cell, a table at one ε, of one of these kinds.

* A private rival, or another method of the library, has a better mean CRPS or log score, beyond two standard errors of
  the difference over repeats.
* ``fit`` says that its intervals may be used, and they cover less than .85 of simulated truths, beyond two errors.
* They are more than three times as wide as without privacy.
* ``fit`` fails, or refuses.

:data:`WHY` has the causes that were found by hand. A loss without an entry says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpmcmc.cli.refusals import CommandError
from experiments.benchmark import summary
from experiments.benchmark.run import Row
from experiments.benchmark.summary import OURS, Cell, number

#: Widest interval over that without privacy that is no loss.
_WIDE = 3.0
#: Marks in a page between which the text stands.
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"

_LOST = (
    "The smallest eigenvalue of Σ x x′ over rows of norm at most 1 is {} here. The noise of the released second moment "
    "has a standard deviation of about 17 at ε = 1 and 45 at .3. The declared ranges are wide beside the data, so a "
    "direction of the coefficients is lost in the noise. Verdict and predicted width suppose rows that fill their "
    "ranges."
)
_PRECISION = (
    "`fit` learns the residual's standard deviation, and its draws then predicted with a public one. The direction "
    "that the noise hides makes its predictions uncertain, and a ridge estimate leaves that direction out."
)
#: Causes by (table, kind of loss), found by reading the rows and by experiments of their own.
WHY: dict[tuple[str, str], str] = {
    **{
        (table, "width"): _LOST.format(value)
        for table, value in (
            *(("arrests", "0.2"), ("computers", "6.9"), ("nmes1988", "6.3"), ("wells", "8.4"), ("maths", "27")),
            ("default", "57, and 0.6 of the logistic curvature,"),
        )
    },
    **{(table, "log_score"): _PRECISION for table in ("computers", "maths")},
}


def paragraphs(rows: Sequence[Row]) -> list[str]:
    """Return a paragraph for each loss, by table and then ε."""
    cells = summary.cells_of(rows)
    ours = {(cell.table, cell.epsilon): cell for cell in cells if cell.method == OURS}
    limit = {"bayes", "mle"}
    out: list[tuple[str, float, str]] = []
    for (table, epsilon), cell in ours.items():
        for score, better in (("crps", -1), ("log_score", 1)):
            rivals = [
                other
                for other in cells
                if (other.table, other.epsilon) == (table, epsilon) and other.method not in {OURS, *limit}
            ]
            found = _best(rows, cell, rivals, score, better)
            if found:
                out.append((table, epsilon, found))
        coverage, width = (cell.mean.get(name, math.nan) for name in ("coverage", "width"))
        if cell.fit and coverage < summary.BAND[0] - 2 * cell.error:
            share = f"{coverage:.2f} ± {cell.error:.2f}"
            said = f"intervals of `{OURS}` cover {share} of simulated truths; their width is {width:.2f}"
            out.append((table, epsilon, _paragraph(table, epsilon, said, "coverage")))
        if cell.fit and width > _WIDE:
            said = f"observed intervals of `{OURS}` are {width:.1f} times as wide as without privacy"
            out.append((table, epsilon, _paragraph(table, epsilon, said, "width")))
    for row in rows:
        if row["method"] == OURS and row["status"] in ("failed", "refused"):
            said = f"`{OURS}` {row['status']}: {row.get('reason', '')}"
            out.append((str(row["table"]), number(row, "epsilon"), _paragraph(str(row["table"]), number(row, "epsilon"),
                                                                               said, str(row["status"]))))  # fmt: skip
    return list(dict.fromkeys(text for _, _, text in sorted(out)))


def _best(rows: Sequence[Row], cell: Cell, rivals: Sequence[Cell], score: str, better: int) -> str:
    """Return the paragraph on the best rival that beats ``fit`` beyond two errors; empty: none does."""
    mine = _by_repeat(rows, cell, score)
    beaten = []
    for rival in rivals:
        its = _by_repeat(rows, rival, score)
        gaps = [better * (its[repeat] - mine[repeat]) for repeat in mine.keys() & its.keys()]
        if len(gaps) > 1 and np.mean(gaps) > 2 * np.std(gaps, ddof=1) / math.sqrt(len(gaps)):
            beaten.append((float(np.mean(gaps)), rival))
    if not beaten:
        return ""
    rival = max(beaten, key=lambda one: one[0])[1]
    name = {"crps": "CRPS", "log_score": "log score"}[score]
    said = f"the {name} of `{rival.method}` is {rival.mean[score]:.3g}, and that of `{OURS}` {cell.mean[score]:.3g}"
    return _paragraph(cell.table, cell.epsilon, said, score)


def _by_repeat(rows: Sequence[Row], cell: Cell, score: str) -> dict[float, float]:
    return {
        number(row, "repeat"): number(row, score)
        for row in rows
        if (row["table"], row["method"], number(row, "epsilon")) == (cell.table, cell.method, cell.epsilon)
        and row["status"] == "ok"
        and math.isfinite(number(row, score))
    }


def _paragraph(table: str, epsilon: float, said: str, kind: str) -> str:
    why = WHY.get((table, kind), "The cause is not known yet.")
    return f"**{table}, ε = {epsilon:g}.** Here {said}. {why}"


def page(rows: Sequence[Row], found: Sequence[Row], partial: bool) -> str:
    """Return the text of the page: goals, the table of each ε, and the losses.

    Args:
        rows: of ``results.csv``.
        found: of ``summary.csv``.
        partial: whether the run left out tables, methods, ε or repeats of the whole.
    """
    tables = sorted({str(row["table"]) for row in rows})
    repeats = {number(row, "repeat") for row in rows}
    about = f"{len(tables)} tables ({', '.join(tables)}), {len(repeats)} repeats"
    note = "This is a part of the benchmark, and no result of it: " if partial else "Run: "
    lines = [f"{note}{about}.", "", "```text", *summary.goals(rows, found), "```", ""]
    for epsilon in sorted({number(row, "epsilon") for row in found}):
        lines += [f"### ε = {epsilon:g}", "", *summary.markdown(found, epsilon), ""]
    lost = paragraphs(rows)
    lines += ["### Where we lose, and why", ""]
    lines += ["\n\n".join(lost) if lost else "No loss beyond two standard errors was seen.", ""]
    return "\n".join(lines)


def placed(page_text: str, text: str) -> str:
    """Return a page with the text between its marks.

    Raises:
        CommandError: the page has no such marks.
    """
    if BEGIN not in page_text or END not in page_text:
        raise CommandError(f"--page: the page has no lines {BEGIN} and {END}; give docs/benchmark.md.")
    before, _, rest = page_text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}"
