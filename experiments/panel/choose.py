"""How each method's settings are chosen: the same protocol for ours and for the baselines.

Every combination of a method's grid runs on 80 % of the TRAINING set and is judged on the other 20 %
(``experiments.settings.split``), the same number of times for every method; for each (method, encoding, ε) the one of
highest mean accuracy of the posterior predictive is written into the panel's YAML. The test set is not touched. The
benchmark sets are public, so looking at their records costs nothing; on private data it would.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dpmcmc
from experiments.panel import scores
from experiments.panel.config import Chosen, Panel, Settings, load, write_settings
from experiments.panel.methods import METHODS, Method
from experiments.panel.trial import Report, Site, Trial, seed_of
from experiments.settings import split

#: Keys of a grid that say where it is tried.
_BOUNDS = ("least_epsilon", "most_epsilon")
#: More cells than this are run in as many parts as there are values of ε.
_MOST_TOGETHER = 250
_COLUMNS = ("version", "method", "encoding", "epsilon", "settings", "accuracy", "std", "runs", "context", "problem")


def combinations(grids: list[dict[str, Any]], epsilon: float) -> Iterator[Settings]:
    """Every setting of some grids that is tried at ε."""
    for grid in grids:
        if not grid.get("least_epsilon", 0.0) <= epsilon <= grid.get("most_epsilon", math.inf):
            continue
        axes = {k: v if isinstance(v, list) else [v] for k, v in grid.items() if k not in _BOUNDS}
        for values in itertools.product(*axes.values()):
            yield dict(zip(axes, values, strict=True))


def choose(
    path: Path,
    out: Path,
    *,
    methods: list[str] | None = None,
    encodings: list[str] | None = None,
    say: Any = print,
) -> None:
    """Fill in the ``settings`` of a panel's YAML; what ``out`` holds already is not run again.

    Args:
        path: of the panel's YAML, rewritten below its mark.
        out: folder of the table of grid cells, ``choose.csv``.
        methods: ``name`` or ``version/name`` of those to choose for; None for all.
        encodings: of those to choose for; None for all.
        say: told one line for each method.
    """
    panel = load(path)
    out.mkdir(parents=True, exist_ok=True)
    table = out / "choose.csv"
    for encoding in encodings or panel.encodings:
        site, held_out = _site(panel, encoding)
        for method in METHODS:
            if methods and method.name not in methods and f"{method.version}/{method.name}" not in methods:
                continue
            grids = panel.grids.get(method.version, {}).get(method.name)
            if grids is None:
                continue
            started = time.perf_counter()
            count = _try(method, encoding, grids, panel, site, held_out, table)
            say(f"{method.version}/{method.name} {encoding}: {count} runs, {time.perf_counter() - started:.0f} s")
            write_settings(path, best(table, load(path)))


def best(table: Path, panel: Panel) -> Chosen:
    """The panel's settings, replaced where the table has runs of the grids that the panel has now."""
    context = _context(panel)
    found: dict[tuple[str, str, str], dict[float, tuple[float, Settings]]] = {}
    for row in _rows(table):
        where = (row["version"], row["method"], row["encoding"])
        grids = panel.grids.get(row["version"], {}).get(row["method"])
        if row["accuracy"] == "" or grids is None or row["context"] != context:
            continue
        epsilon, accuracy = float(row["epsilon"]), float(row["accuracy"])
        if json.loads(row["settings"]) not in combinations(grids, epsilon):
            continue
        before = found.setdefault(where, {}).get(epsilon)
        if before is None or accuracy > before[0]:
            found[where][epsilon] = accuracy, json.loads(row["settings"])
    chosen: Chosen = {}
    for method in METHODS:
        for encoding in panel.encodings:
            by_epsilon = dict(panel.settings.get(method.version, {}).get(method.name, {}).get(encoding, {}))
            for epsilon, (accuracy, settings) in found.get((method.version, method.name, encoding), {}).items():
                by_epsilon[epsilon] = {**settings, "split_accuracy": round(accuracy, 5)}
            if by_epsilon:
                chosen.setdefault(method.version, {}).setdefault(method.name, {})[encoding] = by_epsilon
    return chosen


def _site(panel: Panel, encoding: str) -> tuple[Site, dict[str, np.ndarray]]:
    """(80 % of the training set, the rest of it)."""
    data = dpmcmc.data.load(panel.data, encoding=encoding, standin="allow")
    train, held_out = split(data.train)
    return Site.of(panel, train, data.spec.row_bound), held_out


def _try(
    method: Method,
    encoding: str,
    grids: list[dict[str, Any]],
    panel: Panel,
    site: Site,
    held_out: dict[str, np.ndarray],
    table: Path,
) -> int:
    """Run the grid where the table lacks it; the number of runs."""
    about = (method.version, method.name, encoding)
    context = _context(panel)
    done = {
        (float(row["epsilon"]), row["settings"])
        for row in _rows(table)
        if (row["version"], row["method"], row["encoding"], row["context"]) == (*about, context)
    }
    cells = [
        (epsilon, settings)
        for epsilon in panel.epsilons
        for settings in combinations(grids, epsilon)
        if (epsilon, json.dumps(settings)) not in done
    ]
    # A long grid ε by ε, so that little is lost when it is killed.
    together = len(cells) if len(cells) <= _MOST_TOGETHER else math.ceil(len(cells) / len(panel.epsilons))
    for first in range(0, len(cells), together):
        rows = _judge(method, cells[first : first + together], about, panel, site, held_out)
        _append(table, [{**row, "context": context} for row in rows])
    return len(cells) * panel.choosing_repeats


def _judge(
    method: Method,
    cells: list[tuple[float, Settings]],
    about: tuple[str, str, str],
    panel: Panel,
    site: Site,
    held_out: dict[str, np.ndarray],
) -> list[dict[str, Any]]:
    """Run cells, all repeats at once, and judge them."""
    trials = [
        Trial(epsilon, repeat, settings, seed_of("choose", panel.seed, *about, epsilon, json.dumps(settings), repeat))
        for epsilon, settings in cells
        for repeat in range(panel.choosing_repeats)
    ]
    outcomes = method.run(trials, site, _silent)
    each = panel.choosing_repeats
    rows = []
    for i, (epsilon, settings) in enumerate(cells):
        own = outcomes[i * each : (i + 1) * each]
        accuracy = [scores.predict(o.draws, held_out).accuracy for o in own if o.draws is not None]
        # One run in three that diverges is no setting to have.
        complete = len(accuracy) == each
        rows.append(
            {
                "version": method.version,
                "method": method.name,
                "encoding": about[2],
                "epsilon": f"{epsilon:g}",
                "settings": json.dumps(settings),
                "accuracy": f"{np.mean(accuracy):.6f}" if complete else "",
                "std": f"{np.std(accuracy):.6f}" if complete else "",
                "runs": each,
                "problem": next((o.problem for o in own if o.problem), ""),
            }
        )
    return rows


_silent: Report = lambda share: None  # noqa: E731


def _context(panel: Panel) -> str:
    """A short fingerprint of what a cell depends on beside its settings."""
    body = panel.model_dump(include={"data", "delta", "adjacency", "prior_scale", "seed", "transitions"})
    body |= panel.model_dump(include={"printed_passes", "choosing_repeats"})
    return f"{seed_of(json.dumps(body, sort_keys=True)):08x}"


def _rows(table: Path) -> list[dict[str, str]]:
    if not table.exists():
        return []
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _append(table: Path, rows: list[dict[str, Any]]) -> None:
    fresh = not table.exists()
    with table.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
