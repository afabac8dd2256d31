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
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from dpmcmc.data.column_kinds import Column, Counts, Levels, Range
from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError, check_fields
from dpmcmc.planning.description import FROM_PATH, INTERVALS, PREDICTION
from dpmcmc.planning.saved import SavedPlan
from dpmcmc.planning.stages import AnyPlan
from dpmcmc.privacy.accounting.events import DEVIATIONS, round_up
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import Receipt
from dpmcmc.report.summary import Summary
from dpmcmc.storage.cache import installed
from dpmcmc.targets.base import Target
from dpmcmc.targets.glm import LinearRegression
from dpmcmc.targets.transformed import PerOwner

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
        | {"data": data}
        | charged
    )


def guarantee_json(
    guarantee: Guarantee | None, unit: str = "record"
) -> dict[str, object]:
    """Return a guarantee, or the sentence that there is none, with unit, versions and the ε of the other
    accountants."""
    said = [
        "No guarantee: privacy was not asked for, or the noise keys of this run are not secret."
    ]
    body: dict[str, object] = dict.fromkeys(
        ("epsilon", "delta", "adjacency", "release", "accountant")
    )
    body |= (
        {"assumptions": said, "events": []} if guarantee is None else guarantee.to_json()
    )
    cross_check = (
        dict.fromkeys(("advanced", "rdp", "pld"))
        if guarantee is None
        else guarantee.cross_check()
    )
    return body | {"unit": unit, "versions": versions(), "cross_check": cross_check}


def versions() -> dict[str, str]:
    """Return the versions of the packages that computed the guarantee."""
    return {name: installed(name) for name in ("dpmcmc", "jax", "numpy", "scipy")}


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

    Raises:
        InputError: an unknown fact, or numbers without noise published of private records.
    """

    records: Kind | None = None
    settings: Settings | None = None
    fit: bool = False
    times: bool = False

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
            circumstances = cls(stated.get("records"), stated.get("settings"))
        return (
            replace(circumstances, records="public")
            if public and not circumstances.nobodys
            else circumstances
        )

    def to_json(self) -> dict[str, object]:
        """Return the part ``circumstances`` of plan.json."""
        return {"circumstances": asdict(self)}

    @property
    def nobodys(self) -> bool:
        """Whether a program generated the records."""
        return self.records in ("generated", "stand_in")

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
            these = (
                f"the {unit}s that these stand in for"
                if self.records == "stand_in"
                else f"these {unit}s"
            )
            return f"Settings were chosen by looking at {these}, as the config declares. ε does not cover that choice."
        if self.settings == "without_these_records":
            return (
                f"The author of the config vouches that {public} are public constants, chosen without looking at "
                f"these {unit}s."
            )
        ours = self.settings == "by_dpmcmc"
        given = f"ranges and levels of columns, ε, the number of {unit}s and other facts that were given"
        unseen = (
            f"{given if ours else public} were chosen without looking at these {unit}s"
        )
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
        return (
            f"Everything released, except {exposed},"
            if exposed
            else "Everything released"
        )


# ----------------------------------------------------------------------------------------------------
# A release in words, for its page and for a paper: what was estimated, by which method, and how ε was computed.
#
# It is computed from public facts: the plan, its schema, and the events of its guarantee.

#: Most columns that a title names where the user gave no formula.
_TITLE_COLUMNS = 6

_MODELS = {
    "LogisticRegression": "logistic regression",
    "LinearRegression": "linear regression with normal noise",
    "OrdinalRegression": "ordinal logistic regression (proportional odds)",
    "SoftmaxRegression": "softmax (multinomial logistic) regression",
    "PoissonRegression": "Poisson regression with a log link",
    "NegativeBinomialRegression": "negative binomial regression with a log link",
    "LastLayer": "softmax regression on fixed features",
}
_METHODS = {
    "NoiseAware": "a noise-aware release: sums over the records were released with Gaussian noise, and draws come from "
    "the posterior given these sums, which knows the law of their noise",
    "SGLD": "stochastic gradient Langevin dynamics",
    "SGHMC": "stochastic gradient Hamiltonian Monte Carlo",
    "SGNHT": "stochastic gradient Nosé–Hoover thermostats",
    "SGFS": "stochastic gradient Fisher scoring",
    "OPS": "one-posterior sampling",
}
#: Name of each event's mechanism, in the singular and in the plural.
_RELEASES = {
    "gaussian": ("Gaussian mechanism", "Gaussian mechanisms"),
    "poisson_gaussian": (
        "Gaussian mechanism on a Poisson sample",
        "Gaussian mechanisms on Poisson samples",
    ),
    "fixed_size_gaussian": (
        "Gaussian mechanism on a random subset",
        "Gaussian mechanisms on random subsets",
    ),
    "noisy_descent": (
        "last iterate of a noisy descent",
        "last iterates of noisy descents",
    ),
    "posterior_draw": (
        "draw from a log-concave posterior",
        "draws from log-concave posteriors",
    ),
    "objective_perturbation": (
        "minimiser of a perturbed objective",
        "minimisers of perturbed objectives",
    ),
    "clipped_objective_perturbation": (
        "minimiser of a perturbed clipped objective",
        "minimisers of such objectives",
    ),
    "pure": ("purely private release", "purely private releases"),
}
_ACCOUNTANTS = {
    "pld": "privacy loss distributions",
    "rdp": "Rényi differential privacy",
    "advanced": "advanced composition",
    "last_iterate": "the theorem of last iterates",
    "one_sample": "the theorems of these releases",
}


def title(plan: AnyPlan) -> str:
    """Return the title of a run that has no name: its formula where it has a schema, else its method."""
    return plan.label if plan.schema is None else _formula(plan.schema, _TITLE_COLUMNS)


def model(target: Target) -> str:
    """Return a model in words, without an article."""
    inner, name = _named(target)
    if name is not None and isinstance(inner, LinearRegression):
        name += f" of standard deviation {inner.noise_scale:g}"
    owners = (
        ", in which all rows of an owner are one record" if inner is not target else ""
    )
    return (
        f"Bayesian model {inner!r}{owners}"
        if name is None
        else f"Bayesian {name}{owners}"
    )


def prior(plan: AnyPlan) -> str | None:
    """Return the prior of a regression in words; None of other models."""
    inner, name = _named(plan.target)
    if name is None:
        return None
    settled = plan.sections.get("mechanism", {})
    scale = f"{inner.prior_scale:g}"  # type: ignore[attr-defined]
    if settled.get("prior_scale") == "evidence":
        scale = f"that follows from the released numbers, around {scale}"
    wide = settled.get("intercept_scale")
    columns = "of the encoded columns" if plan.schema is not None else "of the columns"
    more = "" if wide is None else f" ({wide} for the intercept)"
    return f"independent normal priors of mean 0 and standard deviation {scale} for the coefficients {columns}{more}"


def method_in_words(plan: AnyPlan) -> str:
    """Return the method in words, with its name in this library."""
    said = _METHODS.get(plan.label)
    if plan.has_chains and plan.guarantee is not None:
        said = f"{said or plan.label} on gradients with noise for privacy"
    robust = plan.sections.get("mechanism", {}).get("covariance") == "sandwich"
    sandwich = ", a sandwich variance" if robust else ""
    return plan.label if said is None else f"{said} ({plan.label}{sandwich})"


def estimated(plan: AnyPlan) -> list[tuple[str, str]]:
    """Return (label, sentence) pairs that say what was estimated."""
    out = [("model", model(plan.target))]
    said = prior(plan)
    schema = plan.schema
    if schema is not None:
        apart = [name for name in (schema.exposure, schema.weights) if name]
        used = list(dict.fromkeys([*schema.sources, *apart]))
        out += [("formula", _formula(schema)), (f"label {schema.label}", _label(schema))]
        out += [(f"column {name}", _column(schema.columns[name])) for name in used]
        if schema.exposure:
            out.append(("offset", f"the log of {schema.exposure}"))
        if schema.weights:
            scale = schema.leaf_facts["weight_scale"]
            weighted = f"{schema.weights} over the end of its range, times {scale:.3g}"
            out.append(("weights", f"log-likelihoods are multiplied by {weighted}"))
        if any(
            isinstance(schema.columns[name], Range | Counts)
            for name in (*used, schema.label)
        ):
            clipped = "A value outside its range was counted as its nearest bound; report the ranges with the result."
            out.append(("clipping", clipped))
        encoded = "a range is mapped to [-1, 1], and a level is 0 or 1; then every row is multiplied by "
        out.append(
            (
                "encoding",
                f"{encoded}{schema.row_scale:.3g}, so that its norm is at most 1",
            )
        )
    return out if said is None else [*out, ("prior", said)]


def accounting(guarantee: Guarantee) -> str:
    """Return how ε was computed: from which releases, by which theorem."""
    counts: Counter[str] = Counter()
    for event in guarantee.events:
        if event.mechanism not in DEVIATIONS and event.count:
            counts[event.mechanism] += event.count
    released = " and ".join(
        f"{count:,} {_RELEASES[kind][count > 1]}" for kind, count in counts.items()
    )
    law = _ACCOUNTANTS[guarantee.accountant]
    if guarantee.accountant == "one_sample" and set(counts) == {"gaussian"}:
        law = "Gaussian differential privacy, which is exact"
    return f"ε is that of {released or 'no release'}, by {law} (accountant {guarantee.accountant})"


def _named(target: Target) -> tuple[Target, str | None]:
    """Return (the model of one row, its name where it is this library's)."""
    inner = target.target if isinstance(target, PerOwner) else target
    ours = type(inner).__module__.startswith("dpmcmc.")
    return inner, _MODELS.get(type(inner).__name__) if ours else None


def _formula(schema: Schema, most: int | None = None) -> str:
    if schema.formula is not None and "~" in schema.formula:
        return schema.formula
    if schema.formula is not None and "(" in schema.formula:
        return f"{schema.label} ~ {schema.formula}"
    terms = [":".join(term) for term in schema.terms] or ["1"]
    right = (
        f"{len(terms)} terms"
        if most is not None and len(terms) > most
        else " + ".join(terms)
    )
    return f"{schema.label} ~ {right}{'' if schema.intercept else ' - 1'}"


def _label(schema: Schema) -> str:
    kind = schema.columns[schema.label]
    levels = schema.outcome.levels or ("", "")
    scale: Mapping[str, str] = {
        "binary": f"log odds of {levels[1]!r} against {levels[0]!r}",
        "classes": f"log odds of every level against the first, {levels[0]!r}",
        "ordered": f"log odds of being above a level, {levels[0]!r} where no other is named",
        "count": "log of the expected count",
        "real": f"mean of {schema.own_name(schema.label)}",
    }
    return f"{_column(kind)}; coefficients are of the {scale[schema.outcome.kind]}"


def _column(column: Column) -> str:
    """Return the public facts of a column in words."""
    if isinstance(column, Counts):
        return f"counts from 0 to {column.largest:,}"
    if isinstance(column, Levels):
        other = "; any other value is the level other" if column.other else ""
        said = f"levels {', '.join(column.texts)}{other}"
    else:
        scale = ", on the scale of log(1 + value)" if column.scale == "log1p" else ""
        said = f"a number from {column.low:g} to {column.high:g}{scale}"
    return f"{said}; a missing value has a level of its own" if column.missing else said


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


def page(
    plan: AnyPlan, guarantee: Guarantee | None, summary: Summary, context: Context
) -> str:
    """Return the page of a run as HTML.

    Args:
        plan: that was run.
        guarantee: of what is released, or None.
        summary: of the draws, or of what follows from them.
        context: what else is said.
    """
    said = dict(summary.said)
    assumed = prior(plan)
    claims = {
        "Predictions": (PREDICTION in said["usable for"], said[PREDICTION]),
        "Intervals": (summary.intervals, said[INTERVALS]),
    }
    unit = plan.unit
    method = method_in_words(plan)
    names = {
        "method": method,
        "unit": unit,
        "estimated": estimated(plan),
        "fitted": f"We fitted a {model(plan.target)}{f' with {assumed}' if assumed else ''} to "
        f"N = {plan.num_records:,} {unit}s with dpmcmc {versions()['dpmcmc']}, by {method}",
        "noise_aware": plan.label == "NoiseAware"
        or said[INTERVALS].startswith(FROM_PATH),
        # The plan's verdict was given before the draws; the page has the verdict on the draws.
        "lines": [
            line
            for line in plan.lines(context.secret)
            if line[0] not in ("usable for", PREDICTION, INTERVALS)
        ],
        "pictures": {
            name: base64.b64encode(content).decode()
            for name, content in context.pictures.items()
        },
        "claims": claims,
        "versions": versions(),
        "circumstances": context.circumstances or Circumstances.of_plan(plan),
    }
    if guarantee is not None and math.isfinite(guarantee.epsilon):
        names["promise"] = guarantee
        names["accounting"] = accounting(guarantee)
        names["p"] = plain_numbers(guarantee)
        names["added_noise"] = all(
            event.mechanism in _ADDED for event in guarantee.events
        )
    return _template().render(plan=plan, summary=summary, context=context, **names)


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
def _template() -> Template:
    loader = PackageLoader("dpmcmc.report")
    known = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return known.get_template("page.html")
