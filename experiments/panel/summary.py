"""Means over repeats of a panel: all that its pictures and tables need, in a file that is small enough to keep."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from dpmcmc.cli.refusals import CommandError
from dpmcmc.privacy.accounting.events import round_up
from experiments.panel.cells import Row


@dataclass(frozen=True)
class Mean:
    """Runs of one method at one ε.

    Attributes:
        encoding, version, method, epsilon: which.
        runs: how many have draws.
        accuracy, std: mean of the test accuracy, and its standard deviation over runs (0 of one run).
        proved: ε of the guarantee; infinite where there is none, NaN where the table does not say.
        crps: mean score for the posterior (``scores.Posterior.crps``), NaN where there is none.
    """

    encoding: str
    version: str
    method: str
    epsilon: float
    runs: int
    accuracy: float
    std: float
    proved: float
    crps: float

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.std / np.sqrt(self.runs)


def summarised(rows: Iterable[Row]) -> list[Mean]:
    """Return the means of ``results.csv``, in its order."""
    groups: dict[tuple[str, str, str, float], list[Row]] = {}
    for row in rows:
        if row["accuracy"] != "":
            key = (row["encoding"], row["version"], row["method"], float(row["epsilon"]))
            groups.setdefault(key, []).append(row)
    out = []
    for key, those in groups.items():
        accuracy = np.array([float(row["accuracy"]) for row in those])
        scored = [float(row["crps"]) for row in those if row.get("crps")]
        out.append(
            Mean(
                *key,
                runs=len(those),
                accuracy=round(float(accuracy.mean()), 5),
                std=round(float(accuracy.std(ddof=1)), 5) if len(those) > 1 else 0.0,
                proved=float(round_up(float(those[0]["guarantee_epsilon"] or "nan"))),
                crps=float(f"{np.mean(scored):.4g}") if scored else float("nan"),
            )
        )
    return out


def write(path: Path, means: Iterable[Mean]) -> None:
    """Write a summary as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([field.name for field in fields(Mean)])
        table.writerows([[getattr(mean, field.name) for field in fields(Mean)] for mean in means])


def read(path: Path, option: str) -> list[Mean]:
    """Return a summary that :func:`write` wrote.

    Raises:
        CommandError: it is none; named by the option that it was found by.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            found = [
                Mean(*(kind(row[name]) for name, kind in _KINDS.items()))  # type: ignore[arg-type]
                for row in csv.DictReader(file)
            ]
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, TypeError, ValueError):
        raise CommandError(f"{option}: {path} is no summary of a panel; make it anew.") from None
    if not found:
        raise CommandError(f"{option}: {path} holds no row; make it anew.")
    return found


_KINDS = {
    **dict.fromkeys(("encoding", "version", "method"), str), "epsilon": float, "runs": int,
    **dict.fromkeys(("accuracy", "std", "proved", "crps"), float),
}  # fmt: skip
