"""Figure 3.2: private logistic regression, accuracy against ε for every method, as printed and with tight accounting.

    python -m experiments.fig3_2 --panel adult [--quick] [--methods printed/hybrid] [--encodings public] --out DIR
    python -m experiments.fig3_2 choose --panel adult --out DIR [--methods sgld,ops_gdp] [--encodings public]

The first writes ``results.csv``, one picture per encoding and, on a full run, ``comparison.csv``. A run that was killed
goes on where it was when it is started again with the same ``--out``. The second chooses every method's settings on a
split of the training set and writes them into ``configs/figures/fig3_2_<panel>.yaml``.

Runs are seeded, so that the figure can be made again; the guarantee in the table is the plan's, which a run under a
secret key carries.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

import dpmcmc
from dpmcmc.cli.refusals import CommandError
from dpmcmc.report.console import Screen
from dpmcmc.storage.compiled_programs import keep_compiled_programs
from experiments.arguments import Parser
from experiments.commands import command, folder_for
from experiments.figure_files import checked
from experiments.panel import choose, compare, draw, posterior, scores, summary
from experiments.panel.config import Panel, load
from experiments.panel.methods import METHODS, Method, encodings_of, selected
from experiments.panel.results import Results, Row
from experiments.panel.trial import Outcome, Site, Trial, clock, seed_of

PANELS = ("adult", "abalone", "two_normals")
_CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "figures"


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = Parser(
        prog="python -m experiments.fig3_2", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("command", nargs="?", choices=("figure", "choose"), default="figure")
    out.add_argument("--panel", required=True, help=f"{' | '.join(PANELS)}, or the path of a YAML file")
    out.add_argument("--out", required=True, metavar="DIR", help="folder of results")
    out.add_argument("--quick", action="store_true", help="fewer ε and repeats, shorter chains; every method")
    out.add_argument("--repeats", type=int, metavar="N", help="runs of each ε of a method, in place of the panel's")
    out.add_argument("--methods", metavar="A,B", help="run, or choose for, these alone (name, or version/name)")
    out.add_argument("--encodings", metavar="A,B", help="run, or choose for, these alone")
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point; see :func:`parser`."""
    arguments = parser().parse_args(argv)
    console = Screen()
    keep_compiled_programs()
    path = Path(arguments.panel) if arguments.panel.endswith(".yaml") else _CONFIGS / f"fig3_2_{arguments.panel}.yaml"
    elapsed = clock()
    if arguments.command == "choose":
        choose.choose(
            path,
            Path(arguments.out),
            methods=arguments.methods,
            encodings=arguments.encodings,
            say=console.print,
        )
    else:
        panel = load(path)
        folder = Path(arguments.out)
        panel = panel.shortened() if arguments.quick else panel
        methods, encodings = selected(arguments.methods), encodings_of(panel, arguments.encodings)
        with folder_for(folder):
            if arguments.repeats is not None:
                panel = checked(path, Panel, {**panel.model_dump(), "repeats": arguments.repeats})
            figure(panel, folder, console, methods, encodings)
        console.print(f"written to {arguments.out}")
    console.print(f"wall time {elapsed():.0f} s")


def figure(
    panel: Panel,
    folder: Path,
    console: Console,
    methods: Sequence[Method] = METHODS,
    encodings: Sequence[str] | None = None,
) -> None:
    """Run what is missing, then draw all that the folder has.

    Args:
        panel: which panel.
        folder: of results.
        console: for what runs, and the table.
        methods: that are run.
        encodings: that are run and drawn; the panel's for None.
    """
    encodings = panel.encodings if encodings is None else encodings
    missing = [f"{m.version}/{m.name}" for m in methods if not _settings(panel, m)]
    if missing:
        raise CommandError(
            f"panel {panel.name}: no settings for {', '.join(missing)}; choose them with `python -m experiments.fig3_2 "
            "choose`."
        )
    for encoding in encodings:  # before anything is written
        dpmcmc.data.describe(panel.data, encoding=encoding)
    with Results(folder, panel) as results:
        notes = _fill(panel, folder, console, methods, encodings, results)
        means = summary.summarised(results.rows)
        summary.write(folder / "summary.csv", means)
        for encoding in encodings:
            draw.panel_figure(folder / f"{panel.name}_{encoding}.png", panel, means, encoding, notes[encoding])
        lines = compare.table(panel, results.rows)
        pd.DataFrame(lines).to_csv(folder / "comparison.csv", index=False)
        for line in compare.lines_of(lines):
            console.print(line)


def _fill(
    panel: Panel,
    folder: Path,
    console: Console,
    methods: Sequence[Method],
    encodings: Sequence[str],
    results: Results,
) -> dict[str, str | None]:
    """Run the tasks that the results lack; return a note on the records of each encoding."""
    notes: dict[str, str | None] = {}
    for encoding in encodings:
        data = dpmcmc.data.load(panel.data, encoding=encoding, standin="allow")
        notes[encoding] = (
            f"generated stand-in for {panel.data}: not the real data" if data.origin == "stand-in" else None
        )
        assert data.test is not None
        bench = _Bench(panel, encoding, Site.of(panel, data.train, data.spec.row_bound), data.test, results)
        console.print(f"{encoding}: NUTS, not private")
        bench.non_private(folder)
        for method in methods:
            console.print(f"{encoding}: {method.version} {method.label}")
            bench.run(method)
    return notes


class _Bench:
    """One encoding of one panel: its records, its reference, and where results go."""

    def __init__(self, panel: Panel, encoding: str, site: Site, test: dict[str, Any], results: Results) -> None:
        self.panel = panel
        self.encoding = encoding
        self.site = site
        self.test = test
        self.results = results
        self.reference: scores.Posterior | None = None

    def non_private(self, folder: Path) -> None:
        """The reference posterior, and the three rows that are not private."""
        elapsed = clock()
        draws = posterior.nuts(self.panel, self.site, self.encoding, folder)
        self.reference = scores.Posterior(draws)
        fits = {
            "nuts": lambda: draws,
            "map": lambda: posterior.mode(self.site),
            "map_clipped": lambda: posterior.clipped_mode(self.site),
        }
        for name, make in fits.items():
            task = {"version": "non-private", "method": name, "encoding": self.encoding, "epsilon": float("inf")}
            if not self.results.has({**task, "repeat": 0}):
                outcome = Outcome(make(), None, elapsed())
                self.results.add([self._row({**task, "repeat": 0}, outcome, "not private")])

    def run(self, method: Method) -> None:
        """Every task of a method that is not finished yet."""
        settings = _settings(self.panel, method)
        settings = settings.get(self.encoding, settings[self.panel.encodings[0]])
        tasks = [
            {
                "version": method.version,
                "method": method.name,
                "encoding": self.encoding,
                "epsilon": float(epsilon),
                "repeat": repeat,
            }
            for epsilon in self.panel.epsilons
            for repeat in range(self.panel.repeats)
        ]
        tasks = [task for task in tasks if not self.results.has(task)]
        if not tasks:
            return
        trials = [
            Trial(
                task["epsilon"],
                task["repeat"],
                {k: v for k, v in settings[task["epsilon"]].items() if k != "split_accuracy"},
                seed_of("figure", self.panel.seed, *task.values()),
            )
            for task in tasks
        ]
        outcomes = method.run(trials, self.site)
        claim = "epsilon and delta are the source's claim, not proved here" if method.version == "printed" else ""
        self.results.add([self._row(task, outcome, claim) for task, outcome in zip(tasks, outcomes, strict=True)])

    def _row(self, task: Row, outcome: Outcome, claim: str) -> Row:
        guarantee = outcome.guarantee
        assumptions = [claim, *(guarantee.assumptions if guarantee is not None else ()), outcome.problem]
        row = {
            **task,
            "delta": 0.0 if task["version"] == "non-private" else self.panel.delta,
            "guarantee_epsilon": float("inf") if guarantee is None else guarantee.epsilon,
            "assumptions": "; ".join(a.rstrip(".") for a in assumptions if a),
            "seconds": outcome.seconds,
        }
        if outcome.draws is not None:
            assert self.reference is not None
            score = scores.predict(outcome.draws, self.test)
            row |= {
                "accuracy": score.accuracy,
                "log_predictive_density": score.log_predictive_density,
                "single_draw_accuracy": score.single_draw_accuracy,
            }
            if task["method"] != "nuts":
                row["crps"] = self.reference.crps(outcome.draws)
                row["coverage90"] = self.reference.coverage(outcome.draws)
        return row


def _settings(panel: Panel, method: Method) -> dict[str, dict[float, dict[str, Any]]]:
    """encoding -> ε -> settings; empty where the first encoding lacks an ε. Others may go by the first one's."""
    found = panel.settings.get(method.version, {}).get(method.name, {})
    complete = all(epsilon in found.get(panel.encodings[0], {}) for epsilon in panel.epsilons)
    return found if complete else {}


if __name__ == "__main__":
    raise SystemExit(main())
