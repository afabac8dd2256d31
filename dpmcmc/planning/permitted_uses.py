"""A Verdict: the permitted uses of draws, which a plan stores, in its sentences.

``verdict.py`` decides which uses are permitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from dpmcmc.privacy.accounting.shown_numbers import three_digits

PREDICTION, INTERVALS = "prediction", "intervals"


@dataclass(frozen=True)
class Use:
    """Whether draws are for a use, why, and the reason in about five words where they are not.

    The short reason is for a screen, and files do not hold it.
    """

    usable: bool
    why: str
    briefly: str = field(default="", compare=False)


#: How the reason against intervals begins.
REFUSED = "Do not report intervals"
#: Under what intervals hold that have the model's own covariance, and those that have a sandwich.
IF_TRUE = "if the model and its prior are true"
BEST_FIT = "for the best-fitting coefficients, whether or not the model is true"
#: Relaxation times of directions left to the prior that the draws of all chains span, at least, for intervals.
SPAN = 50.0


@dataclass(frozen=True)
class Verdict:
    """Permitted uses of draws; the reason for intervals is "Yes, CONDITION: WHY".

    Attributes:
        prediction, intervals: whether the draws are for them.
        relaxations: that the budget buys each chain in its slowest direction at temperature 1; None where unknown.
        predicted_inflation: predicted_width squared; None where unknown.
        clip_bias: ``none``, ``likely`` or ``unknown``; None without clipping, and for every one-shot release.
        predicted_from: ``public_facts`` or, once it has been released, ``metric``; None without a prediction.
        from_path: whether intervals are those of the posterior given the path of a chain, and not of its iterates.
        path: why the iterates of that path are draws of a posterior by themselves, too; empty where they are not.
    """

    prediction: Use
    intervals: Use
    relaxations: float | None = None
    predicted_inflation: float | None = None
    clip_bias: str | None = None
    predicted_from: str | None = None
    from_path: bool = False
    path: str = ""

    @property
    def uses(self) -> dict[str, Use]:
        """Both uses by name."""
        return {PREDICTION: self.prediction, INTERVALS: self.intervals}

    @property
    def usable_for(self) -> tuple[str, ...]:
        """Out of ``prediction`` and ``intervals``; empty for nothing."""
        return tuple(name for name, use in self.uses.items() if use.usable)

    @property
    def reasons(self) -> dict[str, str]:
        """One sentence for each of the two."""
        return {name: use.why for name, use in self.uses.items()}

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
            "path": self.path,
        }

    def with_path(self, intervals: Use) -> Verdict:
        """Return the verdict on a run whose released path gives a posterior, where this is one on its iterates."""
        own = self.intervals.why if self.intervals.usable else ""
        return replace(self, intervals=intervals, from_path=True, path=own)

    @property
    def of_path(self) -> Verdict:
        """The verdict on the iterates of the path that a posterior follows from."""
        why = f"{REFUSED} of the path: it is hotter or shorter than the posterior that follows from it."
        return replace(self, intervals=Use(bool(self.path), self.path or why), from_path=False, path="")

    def without_intervals(self, why: Sequence[str]) -> Verdict:
        """Return the verdict on a release that says of itself why its intervals may not hold.

        Args:
            why: clauses, each with what would mend it; none leave the verdict as it is.
        """
        if not why or not self.intervals.usable:
            return self
        return replace(self, intervals=Use(False, f"{REFUSED}: {'; '.join(why)}.", _OWN_WORDS))

    def without_prediction(self, why: str | None) -> Verdict:
        """Return the verdict on a release that says of itself why its predictions are of no use; None: as it is."""
        if why is None or not self.prediction.usable:
            return self
        return replace(self, prediction=Use(False, f"No: {why}.", _OWN_WORDS))

    @classmethod
    def of_json(cls, said: dict[str, Any]) -> Self:
        """Return the verdict that plan.json or metrics.json holds."""
        reasons = said["usable_for_reasons"]
        prediction, intervals = (Use(name in said["usable_for"], reasons[name]) for name in (PREDICTION, INTERVALS))
        facts = {name: said[name] for name in ("relaxations", "predicted_inflation", "clip_bias")}
        facts |= {name: said[name] for name in ("predicted_from", "from_path", "path") if name in said}
        return cls(prediction, intervals, **facts)

    def permissions(self) -> list[tuple[str, str]]:
        """(label, sentence) pairs that say what the draws are for, and why."""
        return [("usable for", " and ".join(self.usable_for) or "nothing"), *self.reasons.items()]

    def lines(self) -> list[tuple[str, str]]:
        """(label, sentence) pairs for a person: permissions, and what privacy costs and buys."""
        out = self.permissions()
        if self.relaxations is not None and not self.from_path:
            buys = (
                f"the budget buys each chain {three_digits(self.relaxations)} relaxation times of its slowest direction"
            )
            out.append(("relaxations", f"{buys} at temperature 1; for intervals, all chains together need {SPAN:g}"))
        if self.predicted_width is not None and self.predicted_inflation is not None:
            width = f"about {three_digits(self.predicted_width)} times as wide as without privacy"
            width += f" (variance {three_digits(self.predicted_inflation)} times)"
            wide = f"an ideal answer from the run's gradients has intervals {width}, and a real one wider"
            if self.clip_bias is None:
                wide = f"intervals are {width}, for simulated rows"
            facts = "the released metric" if self.predicted_from == "metric" else "public facts"
            out.append(("width", f"predicted from {facts}, not observed: {wide}, if the model is true"))
        if self.clip_bias is not None:
            out.append(("clip bias", _CLIP_BIAS[self.clip_bias]))
        return out


#: Short reason of a refusal that a release gives itself.
_OWN_WORDS = "the release speaks against them"
#: ``predicted_from`` before a run has released a metric.
FACTS = "public_facts"
_CLIP_BIAS = {
    "none": "none: clipping leaves the centre of the draws where it is",
    "likely": "likely: records with large gradients count for less than the model says",
    "unknown": "unknown: gradients of records have no public bound",
}


def _refused(why: str) -> Verdict:
    """Return the verdict that refuses both uses for one reason."""
    return Verdict(Use(False, why), Use(False, why))


#: Verdict of a run that released no draws.
NO_DRAWS = _refused("No: the run diverged and released no draws.")
#: Verdict of a plan that nobody has judged.
UNJUDGED = _refused("No: the plan has not been judged; make it with plan.")
