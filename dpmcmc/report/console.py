"""Console lines of a run: its plan, its result, and where both are.

They hold public facts (``public_facts.py``) and released values alone, because others often read a console's log.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from dpmcmc.errors import printable
from dpmcmc.inference import predictive
from dpmcmc.planning.permitted_uses import INTERVALS, Verdict
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.report import page
from dpmcmc.report.lines import rows
from dpmcmc.report.public_facts import PublicFacts
from dpmcmc.report.screen import line_of_promise, lines_of_plan, saved, uses, width


class Screen(Console):
    """A terminal of whole sentences, whose names it cannot be led by; ``quiet`` prints nothing."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet=quiet, highlight=False, soft_wrap=True, markup=False)

    def print(self, *said: Any, **how: Any) -> None:
        """Print sentences, in the style that is given."""
        shown = (printable(one, "\n") if isinstance(one, str) else one for one in said)
        super().print(*shown, **how)


def print_plan(
    facts: PublicFacts,
    devices: tuple[int, int] | None,
    device: Mapping[str, str | int] | None,
    console: Console,
) -> None:
    """Print the plan.

    Args:
        facts: of the run.
        devices: along the chains and along the records, of a run that shares them; None: one.
        device: ``platform`` and ``kind`` of the device, where it is worth a line, or None.
        console: to print on.
    """
    lines = lines_of_plan(
        facts.name,
        facts.plan,
        facts.spec,
        secret=facts.secret,
        asked=facts.asked,
        features=facts.num_features,
        origin=facts.whence,
    )
    if facts.on_disk:
        lines.append(("on disk", "no fit without privacy, which reads all records"))
    if device is not None:
        platform = str(device["platform"])
        kind = str(device["kind"])
        lines.append(("device", platform if kind == platform else f"{platform} ({kind})"))
    if devices is not None:
        lines.append(("devices", f"{devices[0]} along the chains, {devices[1]} along the records"))
    if jax.process_count() > 1:
        lines.append(
            (
                "processes",
                f"{jax.process_count()}; this one keeps the checkpoint",
            )
        )
    console.print(rows(lines))
    note = facts.note(facts.planned)
    if note:
        console.print(rows([("note", note)]), style="bold red")


def print_result(
    facts: PublicFacts,
    guarantee: Guarantee | None,
    released: dict[str, Any],
    verdict: Verdict,
    folder: Path,
    confidential: Path,
    console: Console,
) -> None:
    """Print what may be published, and where it is.

    Args:
        facts: of the run.
        guarantee: of its draws, which may be published with it (``facts.publishable``).
        released: ``metrics.json``.
        verdict: on what is released.
        folder: that it is in.
        confidential: folder of what may not be published.
        console: to print on.
    """
    plain = released["non_private"] or {}
    distance = plain.get("distance") or {}
    held_out = [
        (
            predictive.measure(facts.target) or "density",
            f"confidential: in {confidential / 'diagnostics.json'}",
        )
    ]
    lines = scores(facts, released) or held_out
    if INTERVALS in verdict.usable_for:
        lines += width(distance.get("std_ratio"), verdict.predicted_width)
    lines += uses(verdict, facts.plan, facts.command or facts.name)
    if guarantee is not None and guarantee != facts.planned:
        lines.append(("spent", line_of_promise(guarantee, facts.plan.unit)))
    console.print(rows(lines))
    inside = confidential.parent == folder
    shared = f"share all but {confidential.name}/" if inside else f"share it, and keep {confidential} to yourself"
    console.print(rows(saved(folder, f"open {page.FILE}; {shared}")))


def print_withheld(facts: PublicFacts, confidential: Path, console: Console) -> None:
    """Print where the draws are of a run without a guarantee on private records."""
    lines = [
        ("saved", str(confidential)),
        (
            "note",
            f"no guarantee, and {facts.spec.name} is not public: this folder, readable by you alone, holds all "
            "that was computed from it; never publish or archive it",
        ),
    ]
    console.print(rows(lines), style="bold red")


def scores(facts: PublicFacts, released: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (label, sentence) pairs of how well the draws predict public test rows; none where rows are not public.

    Accuracy or rmse where the target predicts, log predictive density where it does not.
    """
    if facts.test is None:
        return []
    measure = predictive.measure(facts.target)
    what = "" if measure else " log density of a test row"

    def score(of: dict[str, Any]) -> str:
        return _number(of[measure]["posterior_predictive"] if measure else of["log_predictive_density"])

    plain = released["non_private"]
    against = f"   {score(plain)} without privacy" if plain else ""
    return [(measure or "density", f"{score(released)}{what}{against}")]


def _number(value: float | None) -> str:
    return "not finite" if value is None or not np.isfinite(value) else f"{value:.4f}"
