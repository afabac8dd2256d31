"""A private step over what it could be at best: the step without privacy, and blackjax's, at three sizes of batch."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec

import numpy as np

from benchmarks import comparators, safeguards
from benchmarks.problem import Size, make_plan, records, sampled
from benchmarks.report import Table
from benchmarks.timing import Clock, in_turn, ratio, scanned


def tables(size: Size) -> list[Table]:
    """One table, a row for each size of batch."""
    n, d = size.num_records, size.features
    table = Table(
        "A private step, by the size of its batch",
        f"SGLD, N {n:,}, d {d}. The private step is that of `dpmcmc.sample`. The step without privacy is the first "
        "line of the safeguards, and blackjax draws its batch with replacement, by `randint`. The products are those "
        "of a given batch, which every step has to take: no step can be less.",
    )
    if not find_spec("blackjax"):
        table.skipped.append("blackjax: not installed.")
    data = records(n, d)
    for batch in (32, size.batch) if size.quick else (size.batch, 512, 2048):
        # As many steps of each: a run has some milliseconds of its own.
        steps, of = size.steps, dataclasses.replace(size, batch=batch)
        clocks: dict[str, Clock] = {
            "private": sampled(make_plan(n, d, batch, steps), data),
            "not private": safeguards.clock_without_privacy(of, data),
            "products": scanned(comparators.bare_products(data, of), steps),
        }
        if find_spec("blackjax"):
            program = comparators.blackjax_scan("SGLD", comparators.with_replacement, data, of, steps)
            clocks["blackjax"] = scanned(program, steps)
        times = in_turn(clocks, size.repeats)
        private = times["private"]
        row = {"batch": batch, "µs, private": float(np.median(private))}
        row |= {f"÷ {name}": ratio(private, base) for name, base in times.items() if name != "private"}
        table.rows.append(row)
    return [table]
