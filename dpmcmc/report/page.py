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
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from dpmcmc.data.request import Privatised
from dpmcmc.errors import InputError, check_fields, printable
from dpmcmc.planning.description import INTERVALS, PREDICTION
from dpmcmc.planning.saved import SavedPlan
from dpmcmc.planning.stages import AnyPlan
from dpmcmc.privacy.accounting.events import round_up
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.report.effects import Effects
from dpmcmc.report.hazards import hazards
from dpmcmc.report.summary import Summary
from dpmcmc.report.words import accounting, estimated, method_in_words, model, prior
from dpmcmc.storage.versions import versions

# ----------------------------------------------------------------------------------------------------
# Contents of the files of a release, computed from public facts and released values.


def privacy_json(
    plan: AnyPlan,
    guarantee: Guarantee | None,
    data: dict[str, object] | None = None,
    receipt: Receipt | None = None,
) -> dict[str, object]:
    """Return the content of ``privacy.json``: a reader can check, recompute or compose the guarantee with it."""
    charged = {} if receipt is None else {"ledger": receipt.to_json()}
    stated = plan.facts()
    body = guarantee_json(guarantee, str(stated.get("unit", plan.unit)))
    # A loaded plan states the guarantee of its file; the recomputed one takes precedence.
    return (
        body
        | {name: fact for name, fact in stated.items() if name not in body}
        | {"data": stated.get("data", data)}
        | charged
    )


def guarantee_json(guarantee: Guarantee | None, unit: str = "record") -> dict[str, object]:
    """Return a guarantee, or the sentence that there is none, with unit, versions and the ε of the other
    accountants."""
    said = ["No guarantee: privacy was not asked for, or the noise keys of this run are not secret."]
    body: dict[str, object] = dict.fromkeys(("epsilon", "delta", "adjacency", "release", "accountant"))
    body |= {"assumptions": said, "events": []} if guarantee is None else guarantee.to_json()
    cross_check = dict.fromkeys(("advanced", "rdp", "pld")) if guarantee is None else guarantee.cross_check()
    return body | {"unit": unit, "versions": versions(), "cross_check": cross_check}


# ----------------------------------------------------------------------------------------------------
# Whose records a run used, who vouches for its settings, and which published numbers have no noise.
#
# ``report.html`` states them in sentences that follow from the facts below. ``plan.json`` holds these facts as
# ``circumstances``. None is computed from a private record.

#: How settings were chosen: as the author of the config declares, or by ``dpmcmc`` from public facts.
Settings = Literal["without_these_records", "on_these_records", "by_dpmcmc"]
#: Whose records a run used.
Kind = Literal["private", "public", "generated", "stand_in"]


@dataclass(frozen=True)
class Circumstances:
    """Facts from which the page of a run makes its sentences.

    Attributes:
        records: ``private``, ``public``, ``generated``, or ``stand_in`` for generated records that replace a known data
            set; None where it is not declared.
        settings: how they were chosen; None where nobody vouches for it.
        fit: whether a fit without privacy is published with the draws.
        times: whether the seconds that the run took are published too.
        came_with: promise that the records had before they came, or None.

    Raises:
        InputError: an unknown fact, or numbers without noise published of private records.
    """

    records: Kind | None = None
    settings: Settings | None = None
    fit: bool = False
    times: bool = False
    came_with: Privatised | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.records in (None, "private") and (self.fit or self.times):
            raise InputError(
                "a fit and times have no noise: they are shown of public or generated records alone",
                "fit",
            )

    @classmethod
    def of_plan(cls, plan: AnyPlan, public: bool = False) -> Circumstances:
        """Return the circumstances that a plan alone tells. A plan with reasons has settings that ``dpmcmc`` chose.

        Args:
            plan: of a run; the plan of a saved one states its circumstances.
            public: whether the records are.
        """
        stated = plan.stated.get("circumstances") if isinstance(plan, SavedPlan) else None
        circumstances = cls(settings="by_dpmcmc" if plan.reasons else None)
        if isinstance(stated, dict):  # a saved result holds neither the fit nor the times
            came_with = stated.get("came_with")
            circumstances = cls(
                stated.get("records"),
                stated.get("settings"),
                came_with=Privatised(**came_with) if came_with else None,
            )
        return replace(circumstances, records="public") if public and not circumstances.nobodys else circumstances

    def to_json(self) -> dict[str, object]:
        """Return the part ``circumstances`` of plan.json."""
        return {"circumstances": asdict(self)}

    @property
    def nobodys(self) -> bool:
        """Whether a program generated the records."""
        return self.records in ("generated", "stand_in")

    def carried(self) -> str:
        """Return a sentence on the promise that the records came with; empty if there is none."""
        if self.came_with is None:
            return ""
        return (
            f"Noise was added before this run: {self.came_with}, for {self.came_with.relation}. Nothing that is "
            "computed from them weakens that promise."
        )

    def source(self, unit: str) -> str:
        """Return whose records these are, in a clause."""
        return {
            None: f"nobody has said that the {unit}s are public, so they are taken for private",
            "private": "private",
            "public": f"public: whoever has the {unit}s needs no release to know them",
            "generated": "generated by a program: nobody's data are in them",
            "stand_in": "generated by a program in place of the real ones: nobody's data are in them",
        }[self.records]

    def reach(self, unit: str) -> str:
        """Return what the promise means for records that are not private; empty where they may be private."""
        if self.nobodys:
            return (
                f"A program generated the {unit}s, so the promise protects nobody. It says what the same run would "
                f"promise on {unit}s of people."
            )
        if self.records == "public":
            return (
                f"The {unit}s are public, so the promise hides none of them. It says what the same run would promise "
                f"on private {unit}s."
            )
        return ""

    def settings_said(self, unit: str) -> str:
        """Return a sentence on how settings were chosen and who vouches for it."""
        public = f"settings, ranges and levels of columns, ε and the number of {unit}s"
        if self.settings == "on_these_records":
            these = f"the {unit}s that these stand in for" if self.records == "stand_in" else f"these {unit}s"
            return f"Settings were chosen by looking at {these}, as the config declares. ε does not cover that choice."
        if self.settings == "without_these_records":
            return (
                f"The author of the config vouches that {public} are public constants, chosen without looking at "
                f"these {unit}s."
            )
        ours = self.settings == "by_dpmcmc"
        given = f"ranges and levels of columns, ε, the number of {unit}s and other facts that were given"
        unseen = f"{given if ours else public} were chosen without looking at these {unit}s"
        rest = " dpmcmc chose the other settings from these facts alone." if ours else ""
        return f"Nobody has vouched that {unseen}. The promise needs it.{rest}"

    def without_noise(self) -> str:
        """Return the names of the published numbers without noise; empty if there are none."""
        kinds = {
            "a fit without privacy": self.fit,
            "the seconds that the run took": self.times,
        }
        return " and ".join(name for name, there in kinds.items() if there)

    def noise_said(self, unit: str, added: bool) -> str:
        """Return a sentence on where the randomness of the release comes from.

        Args:
            unit: what a record is.
            added: whether noise was added; otherwise the release was drawn at random.
        """
        exposed = self.without_noise()
        draws = "the draws" if exposed else "this release"
        drawn = "The draws are" if exposed else "The release is"
        how = f"{drawn} random, and a single {unit} can change the chance of what is released only within bounds."
        if added:
            how = f"Random noise was added to every number that was computed from the {unit}s for {draws}."
        if not exposed:
            return how
        whose = f"the {unit}s are nobody's" if self.nobodys else f"the {unit}s are public"
        return f"{how} No noise was added to {exposed}, published beside the draws because {whose}."

    def people_said(self, unit: str, count: int) -> str:
        """Return a sentence on whether a reader may be in the data."""
        if self.nobodys:
            return f"Nobody is in the data: a program generated the {count:,} {unit}s that this model was fitted to."
        if self.records == "public":
            return (
                f"This model was fitted to {count:,} {unit}s that are public already. If yours is one of them, this "
                f"release does not make it more public."
            )
        return f"Your {unit} may be one of the {count:,} that this model was fitted to."

    def covered(self) -> str:
        """Return the subject of a sentence on what the guarantee covers, in the singular."""
        exposed = self.without_noise()
        return f"Everything released, except {exposed}," if exposed else "Everything released"


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


#: Rows of a table that the page shows open; a longer one is folded.
_OPEN_ROWS = 30


def page(
    plan: AnyPlan,
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
        "lines": [line for line in plan.lines(context.secret) if line[0] not in ("usable for", PREDICTION, INTERVALS)],
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
