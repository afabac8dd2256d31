"""The comparison that the text rests on: our best sampler against each baseline, by a paired test over repeats.

Our best at an ε is the one that was best when settings were chosen, on a split of the training set: which one it is
does not depend on the test set.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import ttest_rel

from experiments.panel.config import Panel
from experiments.panel.methods import METHODS
from experiments.panel.results import Row

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
    """One line for each (encoding, ε, baseline) whose tasks are done."""
    frame = pd.DataFrame(rows).astype({"epsilon": float, "repeat": int})
    frame["accuracy"] = pd.to_numeric(frame["accuracy"], errors="coerce")
    lines = []
    for encoding, epsilon in itertools.product(panel.encodings, panel.epsilons):
        ours = best_of_ours(panel, encoding, epsilon)
        here = frame[(frame["encoding"] == encoding) & (frame["epsilon"] == epsilon)]
        runs = {which: those.sort_values("repeat")["accuracy"] for which, those in here.groupby(["version", "method"])}
        own = runs.get(("tight", ours), ())
        for baseline in BASELINES:
            other = runs.get(baseline, ())
            if len(own) == len(other) > 1:
                lines.append({"encoding": encoding, "epsilon": epsilon, "ours": ours} | _paired(own, other, baseline))
    return lines


def _paired(own: pd.Series, other: pd.Series, baseline: tuple[str, str]) -> dict[str, Any]:
    """Return the rest of a line: means of both, and the test of their differences."""
    gaps = own.to_numpy() - other.to_numpy()
    test = ttest_rel(own, other) if np.ptp(gaps) > 0 else None
    return {
        "accuracy": round(float(own.mean()), 5),
        "baseline": "/".join(baseline),
        "baseline_accuracy": round(float(other.mean()), 5),
        "difference": round(float(gaps.mean()), 5),
        "t": None if test is None else round(float(test.statistic), 2),
        "p_two_sided": None if test is None else float(f"{test.pvalue:.3g}"),
        "repeats": len(own),
    }


def lines_of(lines: list[dict[str, Any]]) -> list[str]:
    """The table for a terminal."""
    shown = ["encoding", "epsilon", "ours", "accuracy", "baseline", "baseline_accuracy", "difference", "p_two_sided"]
    return pd.DataFrame(lines, columns=shown).to_string(index=False).splitlines()
