"""The words that every kind of plan has for itself."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, NamedTuple, Self

import numpy as np

from dpmcmc.errors import printable
from dpmcmc.privacy.accounting.events import three_digits
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.own import named


def guaranteed(guarantee: Guarantee, secret: bool) -> str:
    """Return what a plan guarantees, in a sentence; ``secret`` as in ``Plan.to_json``."""
    if secret:
        return str(guarantee)
    return f"NONE: insecure_noise_seed makes the noise known (secret noise would give {guarantee})"


def labelled(label: str, sentence: str) -> list[tuple[str, str]]:
    """Return a line of a plan's description; none where nothing is to be said."""
    return [(label, sentence)] if sentence else []


def html_table(rows: Iterable[Sequence[str]], titles: Sequence[str] = ()) -> str:
    """Return rows of text, the first cell of each a heading, as an HTML table for notebooks."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    cells = (
        f"<th>{html.escape(name)}</th>" + "".join(f"<td>{html.escape(s)}</td>" for s in row) for name, *row in rows
    )
    made = f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
    return printable(made, "\n")


# ----------------------------------------------------------------------------------------------------
# Sections of a config: what made each part of a plan, and with which settings. ``plan.json`` holds them.

#: Values that a section holds as they are.
_PLAIN = (bool, int, float, str)


def section(made: object, known: Mapping[str, type] | None = None) -> dict[str, object]:
    """Return the section of a config that makes an object.

    Args:
        made: for example a sampler. A dataclass's arguments are keys; one that is None is left out.
        known: classes by the names that a YAML gives them; another class is named ``module:attribute``.
    """
    kind = type(made)
    name = next(
        (name for name, one in (known or {}).items() if one is kind),
        f"{kind.__module__}:{kind.__qualname__}",
    )
    return {"name": name} | settings(made)


def settings(made: object) -> dict[str, object]:
    """Return the arguments of a dataclass that are not None, as JSON takes them; none of another object."""
    if not dataclasses.is_dataclass(made):
        return {}
    values: dict[str, object] = {}
    for one in dataclasses.fields(made):
        value = getattr(made, one.name)
        if "rest" in one.metadata:
            values |= dict(value)
        elif one.init:
            values[one.name] = value
    return {name: _said(value) for name, value in values.items() if value is not None}


def _said(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_said(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _said(part) for key, part in value.items()}
    if isinstance(value, FunctionType):
        return named(value)
    return section(value)


# ------------------------------------------------------------------------------------
# A Verdict: the permitted uses of draws, which a plan stores. ``verdict.py`` gives it.


PREDICTION, INTERVALS = "prediction", "intervals"


class Use(NamedTuple):
    """Whether draws are for a use, why, and the reason in about five words where they are not."""

    usable: bool
    why: str
    briefly: str = ""


#: How the reason against intervals begins.
REFUSED = "Do not report intervals"
#: Under what intervals hold that have the model's own covariance, and those that have a sandwich.
IF_TRUE = "if the model and its prior are true"
BEST_FIT = "for the best-fitting coefficients, whether or not the model is true"
#: Reason for intervals of a posterior that follows from a released path.
FROM_PATH = f"Yes, {IF_TRUE}: the posterior given the whole released path accounts for the noise of privacy."
#: Relaxation times of directions left to the prior that the draws of all chains span, at least, for intervals.
SPAN = 50.0


@dataclass(frozen=True)
class Verdict:
    """Permitted uses of draws; the reason for intervals is "Yes, CONDITION: WHY".

    Attributes:
        usable_for: out of ``prediction`` and ``intervals``; empty for nothing.
        reasons: one sentence for each of the two.
        relaxations: that the budget buys each chain in its slowest direction at temperature 1; None where unknown.
        predicted_inflation: predicted_width squared; None where unknown.
        clip_bias: ``none``, ``likely`` or ``unknown``; None without clipping, and for every one-shot release.
        predicted_from: ``public_facts`` or, once it has been released, ``metric``; None without a prediction.
        from_path: whether intervals are those of the posterior given the path of a chain, and not of its iterates.
        briefly: reason in about five words for each use that is refused, for a screen; files do not hold it.
    """

    usable_for: tuple[str, ...]
    reasons: dict[str, str] = field(hash=False)
    relaxations: float | None = None
    predicted_inflation: float | None = None
    clip_bias: str | None = None
    predicted_from: str | None = None
    from_path: bool = False
    briefly: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    @property
    def predicted_width(self) -> float | None:
        """Width of an interval that accounts for the noise of privacy over that of the non-private posterior.

        It is an average over coefficients, for rows that stand in for the real ones (``inference/normal_law.py``);
        once a metric of rows is released, for those rows. A chain's is that of an ideal answer from the run's
        gradients, and a real answer is wider. A mechanism's is that of its own answer.
        """
        return None if self.predicted_inflation is None else math.sqrt(self.predicted_inflation)

    def to_json(self) -> dict[str, Any]:
        """The keys of plan.json and metrics.json."""
        return {
            "usable_for": list(self.usable_for),
            "usable_for_reasons": dict(self.reasons),
            "relaxations": self.relaxations,
            "predicted_inflation": self.predicted_inflation,
            "predicted_width": self.predicted_width,
            "clip_bias": self.clip_bias,
            "predicted_from": self.predicted_from,
            "from_path": self.from_path,
        }

    def with_path(self) -> Verdict:
        """Return the verdict on a run whose released path gives a posterior, which its iterates are not draws of."""
        others = tuple(use for use in self.usable_for if use != INTERVALS)
        return replace(
            self,
            usable_for=(*others, INTERVALS),
            reasons=self.reasons | {INTERVALS: FROM_PATH},
            from_path=True,
        )

    def without_path(self, why: str) -> Verdict:
        """Return the verdict on a run whose path gives no posterior.

        Args:
            why: the refusal, one sentence.
        """
        reason = why.removeprefix("noise_aware: ").replace(". ", "; ")
        told = self.reasons[INTERVALS].removesuffix(".")
        said = f"{REFUSED}: {reason}" if self.from_path else f"{told}; no posterior follows from the path: {reason}"
        usable = tuple(use for use in self.usable_for if use != INTERVALS)
        reasons = self.reasons | {INTERVALS: said}
        brief = {INTERVALS: "the path identifies no posterior", **self.briefly}
        return replace(self, usable_for=usable, reasons=reasons, from_path=False, briefly=brief)

    def without_intervals(self, why: Sequence[str]) -> Verdict:
        """Return the verdict on a release that says of itself why its intervals may not hold.

        Args:
            why: clauses, each with what would mend it; none leave the verdict as it is.
        """
        if not why or INTERVALS not in self.usable_for:
            return self
        reason = f"{REFUSED}: {'; '.join(why)}."
        usable = tuple(use for use in self.usable_for if use != INTERVALS)
        brief = {**self.briefly, INTERVALS: "the release speaks against them"}
        reasons = self.reasons | {INTERVALS: reason}
        return replace(self, usable_for=usable, reasons=reasons, briefly=brief)

    def without_prediction(self, why: str | None) -> Verdict:
        """Return the verdict on a release that says of itself why its predictions are of no use; None: as it is."""
        if why is None or PREDICTION not in self.usable_for:
            return self
        usable = tuple(use for use in self.usable_for if use != PREDICTION)
        brief = {**self.briefly, PREDICTION: "the release speaks against them"}
        reasons = self.reasons | {PREDICTION: f"No: {why}."}
        return replace(self, usable_for=usable, reasons=reasons, briefly=brief)

    @classmethod
    def of_json(cls, said: dict[str, Any]) -> Self:
        """Return the verdict that plan.json or metrics.json holds."""
        facts = {name: said[name] for name in ("relaxations", "predicted_inflation", "clip_bias")}
        # Files of version 0.2.0 and before do not say what a prediction is from.
        return cls(
            tuple(said["usable_for"]),
            said["usable_for_reasons"],
            **facts,
            predicted_from=said.get(_FROM),
            from_path=said.get("from_path", False),
        )

    def lines(self) -> list[tuple[str, str]]:
        """(label, sentence) pairs for a person."""
        out = [
            ("usable for", " and ".join(self.usable_for) or "nothing"),
            *self.reasons.items(),
        ]
        if self.relaxations is not None and not self.from_path:
            count = three_digits(self.relaxations)
            buys = f"the budget buys each chain {count} relaxation times of its slowest direction"
            out.append(
                (
                    "relaxations",
                    f"{buys} at temperature 1; for intervals, all chains together need {SPAN:g}",
                )
            )
        if self.predicted_inflation is not None:
            width = f"about {three_digits(math.sqrt(self.predicted_inflation))} times as wide as without privacy"
            more = f"(variance {three_digits(self.predicted_inflation)} times)"
            if self.clip_bias is None:
                wide = f"intervals are {width} {more}, for simulated rows"
            else:
                wide = f"an ideal answer from the run's gradients has intervals {width} {more}, and a real one wider"
            facts = "the released metric" if self.predicted_from == "metric" else "public facts"
            out.append(
                (
                    "width",
                    f"predicted from {facts}, not observed: {wide}, if the model is true",
                )
            )
        if self.clip_bias is not None:
            out.append(("clip bias", _CLIP_BIAS[self.clip_bias]))
        return out


#: A key of plan.json, and its value before a run has released a metric.
_FROM, FACTS = "predicted_from", "public_facts"
_CLIP_BIAS = {
    "none": "none: clipping leaves the centre of the draws where it is",
    "likely": "likely: records with large gradients count for less than the model says",
    "unknown": "unknown: gradients of records have no public bound",
}
#: Verdict of a run that released no draws.
NO_DRAWS = Verdict(
    (),
    dict.fromkeys((PREDICTION, INTERVALS), "No: the run diverged and released no draws."),
)
#: Verdict of a plan that nobody has judged.
UNJUDGED = Verdict(
    (),
    dict.fromkeys((PREDICTION, INTERVALS), "No: the plan has not been judged; make it with plan."),
)
