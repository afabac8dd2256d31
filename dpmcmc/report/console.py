"""Console lines of a run: public facts and what its guarantee covers, because others often read a console's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from dpmcmc.inference import predictive
from dpmcmc.planning.permitted import Verdict
from dpmcmc.planning.verdict import ESS, RHAT
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.report import page
from dpmcmc.report.public_facts import PublicFacts


def print_plan(facts: PublicFacts, devices: tuple[int, int] | None, console: Console) -> None:
    """Say what will be done.

    Args:
        facts: of the run.
        devices: along the chains and along the records, of a run that shares them; None: one.
        console: to print on.
    """
    spec = facts.spec
    what = "records" if spec.records_per_owner is None else "owners"
    held_out = f" and {_test_rows(facts)} test records" if spec.public else ""
    console.print(facts.name, style="bold")
    console.print(
        f"data         {spec.name}: {facts.plan.num_records:,} training {what}{held_out}, {facts.num_features} "
        f"features, from {facts.origin}"
    )
    if facts.on_disk:
        console.print("             on disk: no training-set scores and no non-private fit, which read all records")
    note = facts.note(facts.planned)
    if note:
        console.print(f"             {note}", style="bold red")
    for name, text in facts.plan.lines(facts.secret):
        console.print(f"{name:<12} {text}")
    if devices is not None:
        console.print(f"devices      {devices[0]} along the chains, {devices[1]} along the records")
    if jax.process_count() > 1:
        console.print(f"processes    {jax.process_count()}, without a checkpoint: a run that is stopped is lost")


def _test_rows(facts: PublicFacts) -> str:
    return "no" if facts.test is None else f"{len(facts.test['y']):,}"


def print_result(
    facts: PublicFacts,
    guarantee: Guarantee | None,
    released: dict[str, Any],
    folder: Path,
    confidential: Path,
    console: Console,
) -> None:
    """Say what may be published and where it is.

    Args:
        facts: of the run.
        guarantee: of its draws, which may be published with it (``facts.publishable``).
        released: ``metrics.json``.
        folder: that it is in.
        confidential: folder of what may not be published.
        console: to print on.
    """
    plain = released["non_private"] or {}
    held_out = [
        (predictive.measure(facts.target) or "density", f"confidential: in {confidential / 'diagnostics.json'}")
    ]
    for name, text in scores(facts, released) or held_out:
        console.print(f"{name:<12} {text}")
    if plain.get("distance"):
        d = plain["distance"]
        width = "" if d["std_ratio"] is None else f"; draws observed {d['std_ratio']:.2f} times as wide"
        console.print(
            f"posterior    marginal W₁ to the non-private posterior {d['wasserstein_mean']:.2f} of its std "
            f"(mean over coordinates){width}"
        )
    if released["ess"] is not None:
        needed = f"intervals need at least {ESS:g} and at most {RHAT:g}"
        console.print(f"mixing       ESS {released['ess']:.0f}, split R-hat {released['rhat']:.3f} ({needed})")
    for name, text in Verdict.of_json(released).lines():
        console.print(f"{name:<12} {text}")
    if "noise_aware" in released:
        refused = released["noise_aware"].get("refused")
        console.print(
            "noise-aware  the path gives a posterior whose intervals account for the noise: noise_aware in metrics.json"
            f", or dpmcmc.Result.load({str(folder)!r}).summary()"
            if refused is None
            else refused.replace("noise_aware:", "noise-aware ")
        )
    _print_times(facts, released, confidential, console)
    console.print(f"spent        {guarantee or 'no guarantee (see privacy.json)'}", style="bold")
    console.print(f"saved        {folder}; open {folder / page.FILE}")
    console.print(f"never publish or archive {confidential}", style="red")


def print_withheld(facts: PublicFacts, confidential: Path, console: Console) -> None:
    """Say where the draws of a run are that has no guarantee, on records that are not public."""
    console.print("spent        no guarantee (see privacy.json)", style="bold")
    console.print(f"saved        {confidential}")
    console.print(
        f"no guarantee, and {facts.spec.name} is not public: all that was computed from it is in this folder, readable "
        f"by you alone; never publish or archive {confidential}",
        style="bold red",
    )


def _print_times(facts: PublicFacts, released: dict[str, Any], confidential: Path, console: Console) -> None:
    """A sampler's seconds; of records that are not public, those before the first was read."""
    if facts.trace is not facts.plan:
        return
    wall = released["wall_seconds"]
    if wall["run"] is None:
        console.print(
            f"wall clock   calibrate {wall['calibrate']:.1f} s; the rest is confidential: in "
            f"{confidential / 'diagnostics.json'}"
        )
        return
    console.print(
        f"wall clock   calibrate {wall['calibrate']:.1f} s, compile {wall['compile']:.1f} s, "
        f"run {wall['run']:.1f} s ({released['steps_per_second']:,.0f} steps/s)"
    )


def scores(facts: PublicFacts, released: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (label, sentence) pairs of how well the draws predict public test rows; none where rows are not public.

    Accuracy or rmse where the target predicts, log predictive density where it does not.
    """
    measure, plain = predictive.measure(facts.target), released["non_private"] or {}
    if facts.test is None:
        return []
    if measure is None:
        against = f"; non-private fit {_number(plain['log_predictive_density'])}" if plain else ""
        density = _number(released["log_predictive_density"])
        return [("density", f"{density} log predictive density of a test row{against}")]
    score = released[measure]
    against = f"; non-private fit {_number(plain[measure]['posterior_predictive'])}" if plain else ""
    said = f"{_number(score['posterior_predictive'])} posterior predictive, {_number(score['mean'])} ± "
    return [(measure, f"{said}{_number(score['std'])} single draw{against}")]


def _number(value: float | None) -> str:
    return "not finite" if value is None or not np.isfinite(value) else f"{value:.4f}"
