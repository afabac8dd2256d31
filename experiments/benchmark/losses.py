"""The text of the page, goals and one table; and of ``losses.md``, where a paragraph for each loss of ``fit`` follows.

A loss is a cell, a table at one ε, of one of these kinds.

* A private rival, or another method of the library, has a better mean CRPS or log score, beyond two standard errors of
  the difference over repeats.
* ``fit`` says that its intervals may be used, and they cover less than .85 of simulated truths, beyond two errors.
* They are more than three times as wide as without privacy.
* ``fit`` fails, or refuses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd

from dpmcmc.cli.refusals import CommandError
from experiments.benchmark import summary
from experiments.benchmark.run import Row
from experiments.benchmark.summary import OURS

#: Widest interval over that without privacy that is no loss.
_WIDE = 3.0
#: Marks in a page between which the text stands.
BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"

#: A cell's ε and what was seen there, by table and kind of loss.
Seen = dict[tuple[str, str], list[tuple[float, str]]]


def paragraphs(rows: Sequence[Row]) -> list[str]:
    """Return a paragraph for each table and kind of loss, over all ε."""
    frame = summary.frame_of(rows)
    ours = frame[frame["method"] == OURS]
    out: Seen = {}
    for (table, epsilon), cells in summary.cells_of(frame).groupby(["table", "epsilon"]):
        here = frame[(frame["table"] == table) & (frame["epsilon"] == epsilon) & (frame["status"] == "ok")]
        for kind, said in _losses(here, cells.set_index("method")):
            out.setdefault((table, kind), []).append((epsilon, said))
    for row in ours[ours["status"].isin(["failed", "refused"])].itertuples():
        out.setdefault((row.table, row.status), []).append((row.epsilon, f"`{OURS}` {row.status}: {row.reason}"))
    return [_paragraph(table, kind, seen) for (table, kind), seen in sorted(out.items())]


def _losses(rows: pd.DataFrame, cells: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the kind of each loss on a table at one ε, and what was seen.

    Args:
        rows: that are ok, of every method and repeat.
        cells: means of every method.
    """
    if OURS not in cells.index:
        return
    for score, name, better in (("crps", "CRPS", -1), ("log_score", "log score", 1)):
        rival = _best(better * rows.pivot_table(score, "repeat", "method"))
        if rival is not None:
            its, mine = (f"{cells.loc[one, score]:.3g}" for one in (rival, OURS))
            yield name, f"the {name} of `{rival}` is {its}, and that of `{OURS}` {mine}"
    ours = cells.loc[OURS]
    if ours["fit"] and ours["coverage"] < summary.BAND[0] - 2 * ours["error"]:
        yield "coverage", f"intervals cover {ours['coverage']:.2f} ± {ours['error']:.2f} of simulated truths"
    if ours["fit"] and ours["width"] > _WIDE:
        predicted = f"({ours['predicted']:.1f} predicted)"
        yield "width", f"intervals are {ours['width']:.1f} times as wide as without privacy {predicted}"


def _best(scores: pd.DataFrame) -> str | None:
    """Return the best rival that beats ``fit`` beyond two errors; None: none does.

    Args:
        scores: more is better; a row a repeat, a column a method.
    """
    if OURS not in scores:
        return None
    gaps = scores.drop(columns=[OURS, "bayes", "mle"], errors="ignore").sub(scores[OURS], axis=0)
    means = gaps.mean()
    beaten = means[(gaps.count() > 1) & (means > 2 * gaps.sem())]
    return beaten.idxmax() if len(beaten) else None


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
    note = "A part of the benchmark: " if partial else "Run: "
    lines = [f"{note}{len(tables)} tables ({', '.join(tables)}), {several} repeats.", ""]
    lines += ["```text", *summary.goals(rows, found), "```", ""]
    epsilon = summary.nearest_to_one(found)
    return "\n".join([*lines, f"### ε = {epsilon:g}", "", *summary.markdown(found, epsilon), ""])


def placed(page_text: str, text: str) -> str:
    """Return a page with the text between its marks.

    Raises:
        CommandError: the page has no such marks.
    """
    if BEGIN not in page_text or END not in page_text:
        raise CommandError(f"--page: the page has no lines {BEGIN} and {END}; give docs/benchmark.md.")
    before, _, rest = page_text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}"
