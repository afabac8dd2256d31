"""``report.html``: the page of a run, one file that needs no network.

It states what was released, what may be claimed, and what ε means, and it has a paragraph for a paper. Everything on it
is a public fact (``report/console.py``) or comes from released values. Names and sentences are escaped. The text is in
``templates/page.html``.
"""

from __future__ import annotations

import base64
import datetime
import functools
import math
from dataclasses import dataclass, field

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from dpmcmc.errors import printable
from dpmcmc.planning.permitted_uses import INTERVALS, PREDICTION
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_up
from dpmcmc.report.circumstances import Circumstances
from dpmcmc.report.effects import Effects
from dpmcmc.report.hazards import hazards
from dpmcmc.report.summary import Summary
from dpmcmc.report.words import accounting, estimated, method_in_words, model, prior
from dpmcmc.storage.versions import versions

FILE = "report.html"
#: Rate of false alarms at which the page states the power of an attack.
_FALSE_ALARMS = 0.05
#: Events that add noise to a computed value; the others draw a release at random.
_ADDED = (
    "gaussian",
    "poisson_gaussian",
    "fixed_size_gaussian",
    "noisy_descent",
    "batch_overflow",
    "approximate_draw",
)


@dataclass(frozen=True)
class Context:
    """Facts of a page that are not in its plan, guarantee and summary.

    Attributes:
        title: of the page.
        day: on which the run began.
        data: name and origin of the records in words; empty where nothing is known.
        note: a warning that must stand on the page, or None.
        scores: (label, sentence) pairs of released scores.
        pictures: PNG files by caption.
        secret: whether the noise of the run is.
        circumstances: whose records these are, and who vouches for the settings; None: those of the plan.
    """

    title: str
    day: datetime.date
    data: str = ""
    note: str | None = None
    scores: list[tuple[str, str]] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)
    secret: bool = True
    circumstances: Circumstances | None = None


#: Labels of a plan's verdict.
_JUDGED = ("usable for", PREDICTION, INTERVALS)
#: Rows of a table that the page shows open; a longer one is folded.
_OPEN_ROWS = 30


def page(
    plan: Plan,
    guarantee: Guarantee | None,
    summary: Summary,
    context: Context,
    effects: Effects | None = None,
) -> str:
    """Return the page of a run as HTML.

    Args:
        plan: that was run.
        guarantee: of what is released, or None.
        summary: of the draws, or of what follows from them.
        context: what else is said.
        effects: of the columns, where they are more than the coefficients; None: no table of them.
    """
    said = dict(summary.said)
    assumed = prior(plan)
    claims = {
        "Predictions": (PREDICTION in said["usable for"], said[PREDICTION]),
        "Intervals": (summary.intervals, said[INTERVALS]),
    }
    unit = plan.unit
    from_path = summary.from_path
    method = method_in_words(plan)
    if from_path:
        method += ", and the posterior given all that its path released"
    kept = f"{plan.draws:,}"
    if from_path:
        kept = f"of the posterior, and {plan.draws:,} points of the path,"
    circumstances = context.circumstances or Circumstances.of_plan(plan)
    names = {
        "method": method,
        "unit": unit,
        "estimated": estimated(plan),
        "fitted": f"We fitted a {model(plan.target)}{f' with {assumed}' if assumed else ''} to "
        f"N = {plan.num_records:,} {unit}s with dpmcmc {versions()['dpmcmc']}, by {method}",
        "noise_aware": plan.label == "NoiseAware" or from_path,
        "kept": kept,
        # The plan's verdict was given before the draws; the page has the verdict on the draws.
        "lines": [line for line in plan.describe(context.secret).lines if line[0] not in _JUDGED],
        "pictures": {name: base64.b64encode(content).decode() for name, content in context.pictures.items()},
        "claims": claims,
        # The reason for intervals is "Yes, CONDITION: WHY" (``planning/description.py``).
        "condition": said[INTERVALS].removeprefix("Yes, ").partition(":")[0],
        "versions": versions(),
        "circumstances": circumstances,
        "forest": summary.forest(),
        "effects": effects,
        "open_rows": _OPEN_ROWS,
    }
    if guarantee is not None and math.isfinite(guarantee.epsilon):
        names["promise"] = guarantee
        names["accounting"] = accounting(guarantee)
        names["p"] = plain_numbers(guarantee)
        names["hazards"] = hazards(plan, circumstances, summary.intervals)
        names["added_noise"] = all(event.mechanism in _ADDED for event in guarantee.events)
    return template("page.html").render(plan=plan, summary=summary, context=context, **names)


def plain_numbers(guarantee: Guarantee) -> dict[str, object]:
    """Return the numbers by which the page explains a finite guarantee; each is rounded towards less privacy.

    ``odds`` is e^ε. ``belief`` is that of an observer after the release who held both data sets for equally likely:
    e^ε/(1 + e^ε). ``power`` is the largest share of right answers of a test that is wrong in a = 5 % of runs on the
    other data set: min(e^ε a + δ, 1 − e^−ε (1 − δ − a)) (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015).
    """
    odds = math.exp(min(guarantee.epsilon, 700.0))
    delta = guarantee.delta
    alarms = _FALSE_ALARMS
    power = min(odds * alarms + delta, 1 - (1 - delta - alarms) / odds)
    return {
        "epsilon": round_up(guarantee.epsilon, 3),
        "delta": f"{delta:.3g}",
        "odds": round_up(odds, 2) if odds < 1e6 else "more than a million",
        "belief": math.ceil(100 * odds / (1 + odds)),
        "power": math.ceil(100 * min(1.0, power)),
    }


@functools.cache
def template(name: str) -> Template:
    """Return a template of this room; what is put into it is escaped."""
    loader = PackageLoader("dpmcmc.report")
    known = Environment(
        loader=loader,
        autoescape=True,
        finalize=lambda value: printable(value, "\n") if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return known.get_template(name)
