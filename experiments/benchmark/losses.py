"""The page "Where we lose, and why": a paragraph for each loss of ``fit``, from the rows of a run.

A loss is a cell, a table at one ε, of one of these kinds.

* A private rival, or another method of the library, has a better mean CRPS or log score, beyond two standard errors of
  the difference over repeats.
* ``fit`` says that its intervals may be used, and they cover less than .85 of simulated truths, beyond two errors.
* They are more than three times as wide as without privacy.
* ``fit`` fails, or refuses.

A paragraph tells what was seen at each ε, and the cause where a measured fact of the table shows it. One is a direction
of rows whose sum of squares is below the noise of its release. The other is noise of the gradients that moves estimates
by more than sampling does, as where records are few, labels rare or residuals small. Otherwise the cause is not known.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh

from dpmcmc.cli.refusals import CommandError
from dpmcmc.estimators.fitting import model_of, settings_of
from dpmcmc.estimators.suggestion import ask
from dpmcmc.inference.bounded_score import BoundedScore
from dpmcmc.inference.noise_aware import error_of_noise
from dpmcmc.inference.scores import Huber, score_of
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.noise_aware.facts import last_gradients
from dpmcmc.mechanisms.noise_aware.metric import clip_of, planned
from dpmcmc.privacy.query.gram_release import NoisyGram
from experiments.benchmark import summary
from experiments.benchmark.problem import prepared
from experiments.benchmark.run import Row
from experiments.benchmark.summary import OURS, Cell, number

#: Widest interval over that without privacy that is no loss.
_WIDE = 3.0
#: Part of the largest eigenvalue of Σ x xᵀ below which rows have no such direction.
_HELD = 1e-6
#: Precision that keeps a fit finite where classes are separated.
_PRECISION = 0.01
#: Marks in a page between which the text stands.
BEGIN, END = "<!-- {}: begin -->", "<!-- {}: end -->"

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


class Facts(NamedTuple):
    """Sizes of a table's records beside the noise of a release; no method sees them.

    Attributes:
        weakest: least sum of squares of rows along a direction that they have.
        left: noise that the releases of rows leave in it.
        gradients: standard deviation of estimates by gradients' noise over that by sampling, median of directions.
    """

    weakest: float
    left: float
    gradients: float


@functools.cache
def facts_of(name: str, epsilon: float) -> Facts | None:
    """Return the facts of a table.

    Returns:
        None where the table's package is not installed, or the plan releases no gradients and second moment.
    """
    try:
        table = prepared(name)
    except (ImportError, KeyError):
        return None
    whole = table.whole
    schema = whole.schema
    target = model_of(schema)
    given = settings_of(target, "intervals", schema.num_features)
    plan = ask(target, len(whole.y), epsilon, whole.delta, schema, None, given).suggested("intervals")
    if not isinstance(plan, MechanismPlan) or "first_noise_multiplier" not in plan.settings:
        return None
    settings = plan.settings
    noise = settings["gram_noise_std"]
    gram = whole.x.T @ whole.x
    values, vectors = np.linalg.eigh(gram)
    at = int(np.argmax(values > _HELD * values[-1]))
    own = error_of_noise(NoisyGram(gram, noise, float(np.trace(gram)), 0.0), schema.structure)
    metric = planned(gram, noise, settings.get("whitened_noise_std", noise), len(whole.y), 1.0, own)
    left = own if "whitened_noise_std" not in settings else metric.error
    error = float(vectors[:, at] @ left(np.outer(vectors[:, at], vectors[:, at])) @ vectors[:, at])
    fit = table.fit(whole, precision=_PRECISION)
    score = _score(target, settings, fit.dispersion)
    clip = clip_of(score, metric.norm, metric.longest)
    eta = whole.x[:, table.columns] @ fit.theta
    if whole.kind == "classes":
        eta = np.insert(eta, 0, 0.0, axis=1)

    def curved(limit: float) -> float:
        slopes = score.law(eta, limit).curvature
        return float(np.sum(slopes if slopes.ndim == 1 else np.einsum("nkk->n", slopes)))

    # A clipped label moves a gradient less than its own score would.
    size = last_gradients(settings, plan.mechanism.steps) * clip * curved(np.inf) / curved(score.limit)
    kept = table.units.kept
    added = size**2 * np.kron(metric.square, np.eye(whole.classes))[np.ix_(kept, kept)]
    curvature = np.linalg.inv(fit.inverse)
    sampled = curvature @ fit.covariance @ curvature
    # Directions that the table does not identify have no noise of sampling.
    sizes, directions = np.linalg.eigh(sampled)
    held = directions[:, sizes > _HELD * sizes[-1]]
    ratios = eigh(held.T @ added @ held, held.T @ sampled @ held, eigvals_only=True)
    return Facts(float(values[at]), math.sqrt(error), math.sqrt(float(np.median(ratios))))


def _score(target: object, settings: dict[str, float], residual: float) -> BoundedScore:
    """Return the score that a plan expects, where residuals have this standard deviation."""
    if "bound_deviations" in settings:
        return Huber.of(residual, settings["bound_deviations"])
    score = score_of(target)
    assert score is not None
    return dataclasses.replace(score, clip=settings["clip_ratio"])  # type: ignore[type-var]


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
    by_text: dict[str, list[float]] = {}
    for epsilon, said in sorted(seen):
        by_text.setdefault(said, []).append(epsilon)
    parts = []
    for said, epsilons in by_text.items():
        parts.append(f"At ε = {', '.join(f'{one:g}' for one in dict.fromkeys(epsilons))} {said}.")
    text = f"**{table}, {kind}.** {' '.join(parts)}"
    if kind in ("failed", "refused"):
        return text
    found = {epsilon: facts_of(table, epsilon) for epsilon, _ in sorted(seen)}
    known = {epsilon: one for epsilon, one in found.items() if one is not None}
    causes = []
    hidden = {epsilon: one for epsilon, one in known.items() if one.weakest < one.left}
    if hidden:
        noises = _at({epsilon: f"{one.left:.2g}" for epsilon, one in hidden.items()})
        causes.append(
            f"The least sum of squares of rows along a direction is {next(iter(hidden.values())).weakest:.2g}. The "
            f"noise that the releases of rows leave in it is {noises}, so that it is lost."
        )
    loud = {epsilon: f"{one.gradients:.1f}" for epsilon, one in known.items() if one.gradients > 1}
    if loud:
        causes.append(
            "The noise of the gradients moves estimates by more than sampling does. Over it, the standard deviation is "
            f"{_at(loud)} (median over directions)."
        )
    return " ".join([text, *causes]) if causes else f"{text} The cause is not known."


def _at(said: dict[float, str]) -> str:
    """Return what was said of the first and the last ε, or of one."""
    ends = dict.fromkeys((min(said), max(said)))
    return " and ".join(f"{said[epsilon]} at ε = {epsilon:g}" for epsilon in ends)


def page(rows: Sequence[Row], found: Sequence[Row], partial: bool, beside: Sequence[str] = ()) -> str:
    """Return the text of the page: goals, the table of each ε, and the losses.

    Args:
        rows: of ``results.csv``.
        found: of ``summary.csv``.
        partial: whether the run left out tables, methods, ε or repeats of the whole.
        beside: lines of a table of this run beside an earlier one.
    """
    tables = sorted({str(row["table"]) for row in rows})
    repeats = sorted(set(Counter((row["table"], row["method"], row["epsilon"]) for row in rows).values()))
    several = f"{repeats[-1]}" if len(repeats) == 1 else f"{repeats[0]} to {repeats[-1]}"
    about = f"{len(tables)} tables ({', '.join(tables)}), {several} repeats"
    note = "This is a part of the benchmark, and no result of it: " if partial else "Run: "
    lines = [f"{note}{about}.", "", "```text", *summary.goals(rows, found), "```", ""]
    for epsilon in sorted({number(row, "epsilon") for row in found}):
        lines += [f"### ε = {epsilon:g}", "", *summary.markdown(found, epsilon), ""]
    if beside:
        lines += ["### Beside the earlier run", "", *beside, ""]
    lost = paragraphs(rows)
    lines += ["### Where we lose, and why", ""]
    lines += ["\n\n".join(lost) if lost else "No loss beyond two standard errors was seen.", ""]
    return "\n".join(lines)


def placed(page_text: str, text: str, section: str = "benchmark") -> str:
    """Return a page with the text between the marks of a section.

    Raises:
        CommandError: the page has no such marks.
    """
    begin, end = BEGIN.format(section), END.format(section)
    if begin not in page_text or end not in page_text:
        raise CommandError(f"--page: the page has no lines {begin} and {end}; give docs/benchmark.md.")
    before, _, rest = page_text.partition(begin)
    return f"{before}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}"
