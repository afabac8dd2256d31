"""How each method's settings are chosen: the same protocol for ours and for the baselines.

Every combination of a method's grid runs on 80 % of the TRAINING set and is judged on the other 20 %
(:func:`split`) by the accuracy of its posterior predictive. All of them run once. For each (method,
encoding, ε) the best few run again, and the best of those once more, as often for every method. The one of highest mean
goes into the panel's YAML. The test set is not touched. The benchmark sets are public, so looking at their records
costs nothing; on private data it would.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dpmcmc
from dpmcmc.engine.results_table import Table
from experiments.commands import folder_for
from experiments.panel import scores
from experiments.panel.config import Chosen, Panel, Settings, load, write_settings
from experiments.panel.methods import METHODS, Method, encodings_of, selected
from experiments.panel.trial import Site, Trial, seed_of

#: Keys of a grid that say where it is tried.
_BOUNDS = ("least_epsilon", "most_epsilon")
#: Configs that are run together.
_MOST_TOGETHER = 400
_KEY = ("version", "method", "encoding", "epsilon", "settings", "context", "repeat")
_COLUMNS = (*_KEY, "accuracy", "problem")


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
    methods: str | None = None,
    encodings: str | None = None,
    say: Any = print,
) -> None:
    """Fill in the ``settings`` of a panel's YAML; what ``out`` holds already is not run again.

    Args:
        path: of the panel's YAML, rewritten below its mark.
        out: folder of the table of the configs tried, ``choose.csv``.
        methods: names of those to choose for, with commas between them; None for all.
        encodings: of those to choose for, with commas between them; None for all.
        say: told one line for each method.

    Raises:
        CommandError: a name is unknown.
    """
    panel = load(path)
    chosen = selected(methods), encodings_of(panel, encodings)
    with folder_for(out), Table(out, _COLUMNS, _KEY, file="choose.csv") as table:
        _choose(path, panel, table, *chosen, say)


def _choose(
    path: Path, panel: Panel, table: Table, methods: Sequence[Method], encodings: Sequence[str], say: Any
) -> None:
    for encoding in encodings:
        site, held_out = _site(panel, encoding)
        for method in methods:
            grids = panel.grids.get(method.version, {}).get(method.name)
            if grids is None:
                continue
            started = time.perf_counter()
            count = _try(method, encoding, grids, panel, site, held_out, table)
            say(f"{method.version}/{method.name} {encoding}: {count} runs, {time.perf_counter() - started:.0f} s")
            write_settings(path, best(table, load(path)))


def best(table: Table, panel: Panel) -> Chosen:
    """The panel's settings, replaced where the table has runs of the grids that the panel has now."""
    chosen: Chosen = {}
    done = _done(table, _context(panel))
    for method in METHODS:
        grids = panel.grids.get(method.version, {}).get(method.name, [])
        for encoding in panel.encodings:
            by_epsilon = dict(panel.settings.get(method.version, {}).get(method.name, {}).get(encoding, {}))
            for epsilon in panel.epsilons:
                means = [
                    (float(np.mean(runs)), settings)
                    for settings in combinations(grids, epsilon)
                    if len(runs := done.get(_key(method, encoding, epsilon, settings), [])) >= panel.choosing_runs[-1]
                ]
                if means:
                    accuracy, settings = max(means, key=lambda pair: pair[0])
                    by_epsilon[epsilon] = {**settings, "split_accuracy": round(accuracy, 5)}
            if by_epsilon:
                chosen.setdefault(method.version, {}).setdefault(method.name, {})[encoding] = by_epsilon
    return chosen


def split(train: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], ...]:
    """Return the training set in two: 80 % to run on, 20 % to judge by. The test set is not touched."""
    order = np.random.RandomState(20_261_120).permutation(len(train["y"]))
    cut = int(0.8 * len(order))
    return tuple({name: leaf[part] for name, leaf in train.items()} for part in (order[:cut], order[cut:]))


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
    table: Table,
) -> int:
    """Run the grid where the table lacks it; the number of runs."""
    context = _context(panel)
    configs = [(e, settings) for e in panel.epsilons for settings in combinations(grids, e)]
    count = 0
    for repeat in range(panel.choosing_runs[-1]):
        done = _done(table, context)
        if repeat in panel.choosing_runs:
            survivors = panel.choosing_survivors[panel.choosing_runs.index(repeat)]
            configs = _promising(method, encoding, configs, done, repeat, survivors)
        missing = [
            (epsilon, settings)
            for epsilon, settings in configs
            if len(done.get(_key(method, encoding, epsilon, settings), [])) <= repeat
        ]
        # A long grid in parts, so that little is lost when it is killed.
        for first in range(0, len(missing), _MOST_TOGETHER):
            part = missing[first : first + _MOST_TOGETHER]
            rows = _judge(method, encoding, part, repeat, panel, site, held_out)
            table.add([{**row, "context": context} for row in rows])
            count += len(part)
    return count


def _promising(
    method: Method,
    encoding: str,
    configs: list[tuple[float, Settings]],
    done: dict[tuple[str, ...], list[float]],
    runs: int,
    survivors: int,
) -> list[tuple[float, Settings]]:
    """The configs of each ε that were best in their first runs."""
    by_epsilon: dict[float, list[tuple[float, int]]] = {}
    for at, (epsilon, settings) in enumerate(configs):
        first = float(np.mean(done[_key(method, encoding, epsilon, settings)][:runs]))
        if not math.isnan(first):
            by_epsilon.setdefault(epsilon, []).append((first, at))
    kept = sorted(at for firsts in by_epsilon.values() for _, at in sorted(firsts, reverse=True)[:survivors])
    return [configs[at] for at in kept]


def _judge(
    method: Method,
    encoding: str,
    configs: list[tuple[float, Settings]],
    repeat: int,
    panel: Panel,
    site: Site,
    held_out: dict[str, np.ndarray],
) -> list[dict[str, Any]]:
    """Run configs once more, all together, and judge them."""
    about = ("choose", panel.seed, method.version, method.name, encoding, repeat)
    trials = [Trial(e, repeat, settings, seed_of(*about, e, json.dumps(settings))) for e, settings in configs]
    outcomes = method.run(trials, site)
    return [
        {
            "version": method.version,
            "method": method.name,
            "encoding": encoding,
            "epsilon": f"{epsilon:g}",
            "settings": json.dumps(settings),
            "repeat": repeat,
            "accuracy": "" if outcome.draws is None else f"{scores.predict(outcome.draws, held_out).accuracy:.6f}",
            "problem": outcome.problem,
        }
        for (epsilon, settings), outcome in zip(configs, outcomes, strict=True)
    ]


def _key(method: Method, encoding: str, epsilon: float, settings: Settings) -> tuple[str, ...]:
    return method.version, method.name, encoding, f"{epsilon:g}", json.dumps(settings)


def _done(table: Table, context: str) -> dict[tuple[str, ...], list[float]]:
    """Accuracies of each config, in the order of its repeats; NaN where there was no run."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in table.rows:
        if row["context"] == context:
            key = (row["version"], row["method"], row["encoding"], row["epsilon"], row["settings"])
            found.setdefault(key, []).append(float(row["accuracy"] or "nan"))
    return found


def _context(panel: Panel) -> str:
    """A short fingerprint of what a config depends on beside its settings."""
    body = panel.model_dump(include={"data", "delta", "adjacency", "prior_scale", "seed", "transitions"})
    body["printed_passes"] = panel.printed_passes
    return f"{seed_of(json.dumps(body, sort_keys=True)):08x}"
