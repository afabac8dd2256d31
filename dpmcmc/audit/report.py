"""Findings of an audit, for people and for programs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dpmcmc.privacy.accounting.rounding import round_down, round_up

_MEANING = {
    "consistent": "not contradicted, which proves nothing",
    "VIOLATED": "the claim is wrong, or the code is",
    "suspicious": "above the claim if scores are Gaussian: confirm with --method clopper_pearson or histogram",
}


@dataclass(frozen=True)
class AuditReport:
    """Findings of an audit. They can contradict a claim and never certify one.

    Attributes:
        subject: what was run, and on which records.
        claimed: ε claimed at ``delta``.
        delta: δ of the claim.
        adjacency, release: of the claim.
        method: one of ``METHODS``.
        lower_bound: on ε at ``delta``; smaller than the truth with probability ``confidence``, or, for gdp, an estimate
            of such a bound.
        proved: whether it is a bound without assumptions on the scores.
        confidence: of the bound and of the verdict together; where nothing is proved, only if scores are Gaussian.
        runs: on one data set and on its neighbour (canaries in and out, for one_run).
        seconds: wall time.
        exceeded: whether the bound is above the claim, or shown to be above its curve.
        notes: sentences on what was found.

    Example:
        >>> import dpmcmc
        >>> from dpmcmc.mechanisms import OutputPerturbation
        >>> target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = OutputPerturbation(regularisation=10.0).plan(target, num_records=100, epsilon=1.0, delta=1e-5)
        >>> report = dpmcmc.audit.audit(plan, runs=50, method="gdp")
        >>> report.method, report.adjacency, report.runs
        ('gdp', 'replace_one', (50, 50))
    """

    subject: str
    claimed: float
    delta: float
    adjacency: str
    release: str
    method: str
    lower_bound: float
    proved: bool
    confidence: float
    runs: tuple[int, int]
    seconds: float
    exceeded: bool
    notes: tuple[str, ...] = ()

    @property
    def violated(self) -> bool:
        """Whether the runs contradict the claim, with proof."""
        return self.exceeded and self.proved

    @property
    def verdict(self) -> str:
        """``consistent``, ``VIOLATED``, or ``suspicious``: above the claim by an estimate, which proves nothing."""
        if not self.exceeded:
            return "consistent"
        return "VIOLATED" if self.proved else "suspicious"

    def to_json(self) -> dict[str, object]:
        """Return a plain dict, for programs."""
        out = dataclasses.asdict(self)
        return out | {
            "violated": self.violated,
            "verdict": self.verdict,
            "runs": list(self.runs),
            "notes": list(self.notes),
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, text) rows of a table."""
        certainty = f"confidence {self.confidence:g}"
        if not self.proved:
            certainty = f"an ESTIMATE, of {certainty} only if scores are Gaussian: not proved"
        units = "canaries in, out" if self.method == "one_run" else "runs on either side"
        rows = [
            ("audited", self.subject),
            ("claimed", f"epsilon {round_up(self.claimed)} at delta {self.delta:g}, {self.adjacency}, {self.release}"),
            ("lower bound", f"epsilon {round_down(self.lower_bound):.4g} at the same delta; {certainty}"),
            ("method", self.method),
            ("runs", f"{self.runs[0]:,} + {self.runs[1]:,} ({units}), {self.seconds:.1f} s"),
        ]
        rows += [("", note) for note in self.notes]
        return [*rows, ("verdict", f"{self.verdict}: {_MEANING[self.verdict]}")]

    def __str__(self) -> str:
        return "\n".join(f"{name:<12} {text}".rstrip() for name, text in self.lines())
