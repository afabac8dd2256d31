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

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.permitted import FROM_PATH, INTERVALS, PREDICTION
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.rounding import round_up
from dpmcmc.report import words
from dpmcmc.report.circumstances import Circumstances
from dpmcmc.report.files import versions
from dpmcmc.report.summary import Summary

FILE = "report.html"
#: Share of false alarms at which the power of an attack is stated.
_FALSE_ALARMS = 0.05
#: Events that add noise to what they release; others draw what they release at random.
_ADDED = ("gaussian", "poisson_gaussian", "fixed_size_gaussian", "noisy_descent", "batch_overflow", "approximate_draw")


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
        told: whose records these are, and who vouches for the settings; None: what the plan tells of it.
    """

    title: str
    day: datetime.date
    data: str = ""
    note: str | None = None
    scores: list[tuple[str, str]] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    secret: bool = True
    told: Circumstances | None = None


def page(plan: AnyPlan, guarantee: Guarantee | None, summary: Summary, context: Context) -> str:
    """Return the page of a run as HTML.

    Args:
        plan: that was run.
        guarantee: of what is released, or None.
        summary: of the draws, or of what follows from them.
        context: what else is said.
    """
    said, assumed = dict(summary.said), words.prior(plan)
    claims = {
        "Predictions": (PREDICTION in said["usable for"], said[PREDICTION]),
        "Intervals": (summary.intervals, said[INTERVALS]),
    }
    unit, method = getattr(plan.target, "unit", None) or "record", words.method(plan)
    names = {
        "method": method,
        "unit": unit,
        "estimated": words.estimated(plan),
        "fitted": f"We fitted a {words.model(plan.target)}{f' with {assumed}' if assumed else ''} to "
        f"N = {plan.num_records:,} {unit}s with dpmcmc {versions()['dpmcmc']}, by {method}",
        "noise_aware": plan.label == "NoiseAware" or said[INTERVALS].startswith(FROM_PATH),
        # The plan's verdict was given before the draws, whose own is on the page.
        "lines": [line for line in plan.lines(context.secret) if line[0] not in ("usable for", PREDICTION, INTERVALS)],
        "pictures": {name: base64.b64encode(content).decode() for name, content in context.pictures.items()},
        "claims": claims,
        "versions": versions(),
        "told": context.told or Circumstances.of_plan(plan),
    }
    if guarantee is not None and math.isfinite(guarantee.epsilon):
        names["promise"] = guarantee
        names["accounting"] = words.accounting(guarantee)
        names["p"] = plain_numbers(guarantee)
        names["added_noise"] = all(event.mechanism in _ADDED for event in guarantee.events)
    return _template().render(plan=plan, summary=summary, context=context, **names)


def plain_numbers(guarantee: Guarantee) -> dict[str, object]:
    """Return a finite guarantee in the numbers of plain words; each is rounded towards less privacy.

    ``odds`` is e^ε. ``belief`` is that of an observer after the release who held both data sets for equally likely:
    e^ε/(1 + e^ε). ``power`` is the largest share of right answers of a test that is wrong in a = 5 % of runs on the
    other data set: min(e^ε a + δ, 1 − e^−ε (1 − δ − a)) (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015).
    """
    odds, delta, alarms = math.exp(min(guarantee.epsilon, 700.0)), guarantee.delta, _FALSE_ALARMS
    power = min(odds * alarms + delta, 1 - (1 - delta - alarms) / odds)
    return {
        "epsilon": round_up(guarantee.epsilon, 3),
        "delta": f"{delta:.3g}",
        "odds": round_up(odds, 2) if odds < 1e6 else "more than a million",
        "belief": math.ceil(100 * odds / (1 + odds)),
        "power": math.ceil(100 * min(1.0, power)),
    }


@functools.cache
def _template() -> Template:
    loader = PackageLoader("dpmcmc.report")
    known = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return known.get_template("page.html")
