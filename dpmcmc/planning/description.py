"""A Plan in words: what a person wants to know before any record is read."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.planning.verdict import INTERVALS
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.rounding import three_digits
from dpmcmc.privacy.accounting.sampling import Poisson

if TYPE_CHECKING:
    from dpmcmc.planning.plan import Plan


#: Temperatures that differ less are one.
_SAME = 1e-3


def lines(plan: Plan, secret: bool = True) -> list[tuple[str, str]]:
    """(label, sentence) pairs that describe the plan to a person; ``secret`` as in ``Plan.to_json``."""
    rate = plan.sampling.rate(plan.num_records)
    batch = f"all {plan.num_records:,} records"
    if rate < 1:
        about = "about " if isinstance(plan.sampling, Poisson) else ""
        batch = f"{plan.sampling.scheme}, {about}{plan.batch_size:g} of {plan.num_records:,} records (rate {rate:.4g})"
    unit = getattr(plan.target, "unit", None)
    out = [
        ("target", repr(plan.target)),
        *([] if unit is None else [("unit", f"a record is one {unit}: privacy, clipping and sampling are by owner")]),
        ("sampler", repr(plan.sampler)),
        *([] if plan.metric is None else [("metric", plan.metric.line())]),
        ("sampling", batch),
        (
            "steps",
            f"{plan.steps:,} ({plan.steps * rate:.1f} passes) x {plan.chains} chain{'s' * (plan.chains > 1)}, "
            f"{plan.num_draws:,} draw{'s' * (plan.num_draws != 1)} each after {plan.burn_in:,} steps, "
            f"one in {plan.thin}",
        ),
    ]
    heat = _range(plan.temperatures)
    if plan.privacy is None or plan.guarantee is None or plan.noise_multipliers is None:
        out += [("privacy", "none: plain SG-MCMC, no guarantee"), ("temperature", _with_minibatches(plan, heat))]
        return out + plan.verdict.lines()
    z = plan.noise_multipliers
    spread = f"{z.min():.4g}" if z.max() <= z.min() * 1.001 else f"{z.min():.4g} to {z.max():.4g}"
    out += [
        ("guarantee", guaranteed(plan.guarantee, secret)),
        *labelled("note", plan.said_note),
        ("noise", f"multiplier {spread} (noise std on the clipped sum / clip {plan.privacy.clip:g})"),
        ("thesis", _thesis_line(plan)),
        ("free", _free_line(plan)),
        ("temperature", _temperature_line(plan, heat)),
        ("time", _time_line(plan)),
        *labelled("unproved", plan.unproved),
    ]
    return out + plan.verdict.lines()


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
    return f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


def _thesis_line(plan: Plan) -> str:
    needed, failed = plan.thesis_multiplier
    if needed is None:
        return "Wang's formula takes a target epsilon, and this plan has none"
    assert plan.noise_multipliers is not None
    assert plan.privacy is not None
    ratio = three_digits(needed / float(plan.noise_multipliers.min()))
    line = f"Wang's formula (constant corrected) would need a multiplier of {needed:.4g}, {ratio} times as much"
    if isinstance(plan.sampling, Poisson) and plan.sampling.rate(plan.num_records) < 1:
        line += ", with batches of fixed size (it is not proved for Poisson ones)"
    if Adjacency(plan.privacy.adjacency) != Adjacency.REPLACE_ONE:
        line += ", under replace_one (it has no other adjacency)"
    return line if failed is None else f"{line}, and does not apply: {failed}"


def _free_line(plan: Plan) -> str:
    if plan.free_fraction == 1:
        cost = "" if INTERVALS in plan.usable_for else "; clipping and a short run still rule out intervals (see there)"
        return f"privacy is free: at every step the sampler's own noise is at least what privacy needs{cost}"
    more = "noise beyond the sampler's own; a larger epsilon or a smaller step_size needs less of it"
    if plan.free_fraction == 0:
        return f"every step adds {more}"
    share = 100 * plan.free_fraction
    return f"privacy is free on {share:.0f} % of the steps; the other {100 - share:.0f} % add {more}"


def _range(values: np.ndarray) -> str:
    """Return the least and the largest number, or the one where they agree within a thousandth."""
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if high <= low * 1.001 else f"{low:.3g} to {high:.3g}"


def _temperature_line(plan: Plan, heat: str) -> str:
    own = plan.own_temperatures
    # A temperature as asked promises nothing where time or clipping disqualify the draws.
    kept = "as asked" if INTERVALS in plan.usable_for else "of the noise alone: see intervals below"
    line = (
        f"{heat}, {kept}"
        if np.all(plan.temperatures <= own * 1.001)
        else f"{heat}, and the sampler alone has {_range(own)}: privacy needs more noise than the sampler injects"
    )
    return _with_minibatches(plan, line)


def _with_minibatches(plan: Plan, line: str) -> str:
    """Return a line on temperature with how wide draws are by it, and with what minibatches add."""
    line += _width_clause(plan.temperatures[plan.burn_in :])
    # A sampler that is told the rate allows for minibatch noise itself.
    if plan.sampling.rate(plan.num_records) < 1 and not hasattr(plan.sampler, "with_rate"):
        line += "; the noise of minibatches adds to it"
    return line


def _width_clause(kept: np.ndarray) -> str:
    """Return how wide draws at these temperatures are; empty where the posterior's own is kept, or none is known."""
    low, high = float(kept.min()), float(kept.max())
    if not np.isfinite(low + high) or (low >= 1 - _SAME and high <= 1 + _SAME):
        return ""
    if high <= 1 + _SAME:
        wide = "narrower than the posterior"
    elif low >= 1 - _SAME:
        wide = "wider than the posterior"
    else:
        wide = "at times narrower than the posterior (below temperature 1) and at times wider"
    return f"; draws of a chain that has mixed are {wide}"


def _time_line(plan: Plan) -> str:
    bought, used = plan.private_time, plan.time
    assert bought is not None
    whose = " each chain" if plan.chains > 1 else ""
    line = f"the run takes {used:.3g} of Langevin time; at temperature 1 the budget buys{whose} {bought:.3g}"
    line += " (full batches)"
    if plan.in_metric:
        return line + " (in the units of the metric)"
    if plan.curvature is not None:
        fastest = plan.curvature * plan.num_records
        line += (
            f"; in relaxation times of the direction of curvature {plan.curvature:g}: {bought * fastest:.3g} bought, "
            f"{used * fastest:.3g} taken"
        )
    return line
