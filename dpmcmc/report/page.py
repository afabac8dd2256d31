"""``report.html``: the page of a run, one file that needs no network.

It says what was released, what may be claimed, and what ε means, and has a paragraph for a paper. Everything on it is a
public fact (``public_facts.py``) or comes from released values; names and sentences are escaped. The sentences stand in
``templates/page.html``.
"""

from __future__ import annotations

import base64
import datetime
import functools
import math
from dataclasses import dataclass, field

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.verdict import INTERVALS, PREDICTION
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.rounding import round_up
from dpmcmc.report.files import versions
from dpmcmc.report.summary import Summary

FILE = "report.html"
#: Share of false alarms at which the power of an attack is stated.
_FALSE_ALARMS = 0.05


@dataclass(frozen=True)
class Context:
    """Facts that a page states beside plan, guarantee and summary.

    Attributes:
        title: of the page.
        day: on which the run began.
        data: name and origin of the records in words; empty where nothing is known.
        note: a warning that must stand on the page, or None.
        scores: (label, sentence) pairs of released scores.
        pictures: PNG files by caption.
        secret: whether the noise of the run is.
    """

    title: str
    day: datetime.date
    data: str = ""
    note: str | None = None
    scores: list[tuple[str, str]] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    secret: bool = True


def page(plan: AnyPlan, guarantee: Guarantee | None, summary: Summary, context: Context) -> str:
    """Return the page of a run as HTML.

    Args:
        plan: that was run.
        guarantee: of what is released, or None.
        summary: of the draws, or of what follows from them.
        context: what else is said.
    """
    said = dict(summary.said)
    claims = [
        ("Predictions", PREDICTION in said["usable for"], said[PREDICTION]),
        ("Intervals", summary.intervals, said.get(INTERVALS, said.get("source"))),
    ]
    stated = plan.to_json(context.secret)
    return (
        _environment()
        .get_template("page.html")
        .render(
            plan=plan,
            method=str(stated.get("mechanism") or stated.get("sampler")),
            unit=getattr(plan.target, "unit", None) or "record",
            lines=plan.lines(context.secret),
            promise=None if guarantee is None or not math.isfinite(guarantee.epsilon) else promise(guarantee),
            claims=claims,
            summary=summary,
            rows=forest(summary),
            percent=f"{100 * summary.level:g} %",
            context=context,
            pictures={name: base64.b64encode(content).decode() for name, content in context.pictures.items()},
            versions=versions(),
        )
    )


def promise(guarantee: Guarantee) -> dict[str, object]:
    """Return a finite guarantee in the numbers of plain words; each is rounded towards less privacy.

    ``odds`` is e^ε. ``belief`` is that of an observer who took the record's presence for as likely as not, after the
    release: e^ε/(1 + e^ε). ``power`` is the largest share of true alarms of a test with 5 % false ones:
    min(e^ε a + δ, 1 − e^−ε (1 − δ − a)) (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015).
    """
    odds, delta, alarms = math.exp(min(guarantee.epsilon, 700.0)), guarantee.delta, _FALSE_ALARMS
    power = min(odds * alarms + delta, 1 - (1 - delta - alarms) / odds)
    return {
        "epsilon": round_up(guarantee.epsilon, 3),
        "delta": f"{delta:.3g}",
        "odds": round_up(odds, 2) if odds < 1e6 else "more than a million",
        "belief": math.ceil(100 * odds / (1 + odds)),
        "power": math.ceil(100 * min(1.0, power)),
        "adjacency": str(guarantee.adjacency),
        "accountant": guarantee.accountant,
        "release": guarantee.release,
        "assumptions": guarantee.assumptions,
        "strong": guarantee.epsilon <= 3,
    }


def forest(summary: Summary) -> list[dict[str, object]]:
    """Return a row for each parameter that is shown: its numbers, and its places on a common axis in percent."""
    _, rows = summary.cells()
    ends = (summary.low, summary.high) if summary.intervals else (summary.mean, summary.mean)
    shown = [values[: len(rows)] for values in (ends[0], summary.mean, ends[1])]
    least, most = min(0.0, float(np.min(shown[0]))), max(0.0, float(np.max(shown[2])))
    places = [100 * (values - least) / max(most - least, 1e-12) for values in (*shown, np.zeros(len(rows)))]
    columns = ("low", "dot", "high", "zero")
    return [
        {"cells": row, **{name: f"{place[i]:.2f}" for name, place in zip(columns, places, strict=True)}}
        for i, row in enumerate(rows)
    ]


@functools.cache
def _environment() -> Environment:
    loader = PackageLoader("dpmcmc.report")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
