"""The comparison that the text rests on: our best sampler against each baseline, by a paired test over repeats.

Our best at an ε is the one that was best when settings were chosen, on a split of the training set: which one it is
does not depend on the test set.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from experiments.panel.cells import Row
from experiments.panel.config import Panel
from experiments.panel.methods import METHODS

#: (version, method) that ours are held against.
BASELINES = (
    ("tight", "objective_perturbation"),
    ("tight", "objective_clipped"),
    ("tight", "output_perturbation"),
    ("tight", "ops_printed"),
    ("tight", "noisy_sgd"),
    ("printed", "objective_perturbation"),
    ("printed", "output_perturbation"),
    ("printed", "ops"),
)
_COLUMNS = (
    "encoding",
    "epsilon",
    "ours",
    "accuracy",
    "baseline",
    "baseline_accuracy",
    "difference",
    "t",
    "p_two_sided",
    "repeats",
)


def accuracies(rows: list[Row], encoding: str, version: str, method: str, epsilon: float) -> np.ndarray:
    """Accuracy of each repeat, in their order."""
    found = {
        int(row["repeat"]): float(row["accuracy"] or "nan")
        for row in rows
        if (row["encoding"], row["version"], row["method"]) == (encoding, version, method)
        and float(row["epsilon"]) == epsilon
    }
    return np.array([found[repeat] for repeat in sorted(found)])


def best_of_ours(panel: Panel, encoding: str, epsilon: float) -> str | None:
    """Name of our sampler that was best on the split."""
    scores = {
        m.name: settings.get("split_accuracy", -1.0)
        for m in METHODS
        if m.ours
        and (settings := panel.settings.get("tight", {}).get(m.name, {}).get(encoding, {}).get(epsilon)) is not None
    }
    return max(scores, key=scores.__getitem__) if scores else None


def table(panel: Panel, rows: list[Row]) -> list[dict[str, Any]]:
    """One line for each (encoding, ε, baseline) whose cells are there."""
    lines = []
    for encoding in panel.encodings:
        for epsilon in panel.epsilons:
            ours = best_of_ours(panel, encoding, epsilon)
            if ours is None:
                continue
            own = accuracies(rows, encoding, "tight", ours, epsilon)
            for version, method in BASELINES:
                other = accuracies(rows, encoding, version, method, epsilon)
                if len(own) != len(other) or len(own) < 2:
                    continue
                gaps = own - other
                test = ttest_rel(own, other) if np.ptp(gaps) > 0 else None
                lines.append(
                    {
                        "encoding": encoding,
                        "epsilon": epsilon,
                        "ours": ours,
                        "accuracy": round(float(own.mean()), 5),
                        "baseline": f"{version}/{method}",
                        "baseline_accuracy": round(float(other.mean()), 5),
                        "difference": round(float(gaps.mean()), 5),
                        "t": None if test is None else round(float(test.statistic), 2),
                        "p_two_sided": None if test is None else float(f"{test.pvalue:.3g}"),
                        "repeats": len(own),
                    }
                )
    return lines


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    """Write the table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(lines)


def lines_of(lines: list[dict[str, Any]]) -> list[str]:
    """The table for a terminal."""
    out = ["encoding  epsilon  ours     accuracy  baseline                        accuracy  difference  p"]
    for line in lines:
        p = "" if line["p_two_sided"] is None else f"{line['p_two_sided']:.2g}"
        out.append(
            f"{line['encoding']:<9} {line['epsilon']:<8g} {line['ours']:<8} {line['accuracy']:.4f}    "
            f"{line['baseline']:<31} {line['baseline_accuracy']:.4f}    {line['difference']:+.4f}     {p}"
        )
    return out
