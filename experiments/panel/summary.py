"""Means over repeats of a panel: all that its pictures and tables need, in a file that is small enough to keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dpmcmc.cli.refusals import CommandError
from dpmcmc.privacy.accounting.shown_numbers import round_up
from experiments.panel.results import Row


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
    frame = pd.DataFrame(list(rows)).replace("", np.nan).dropna(subset="accuracy")
    numbers = frame.reindex(columns=["epsilon", "accuracy", "guarantee_epsilon", "crps"]).astype(float)
    frame[numbers.columns] = numbers
    out = []
    for key, those in frame.groupby(["encoding", "version", "method", "epsilon"], sort=False):
        out.append(
            Mean(
                *key,
                runs=len(those),
                accuracy=round(float(those["accuracy"].mean()), 5),
                std=round(float(those["accuracy"].std()), 5) if len(those) > 1 else 0.0,
                proved=float(round_up(those["guarantee_epsilon"].iloc[0])),
                crps=float(f"{those['crps'].mean():.4g}"),
            )
        )
    return out


def write(path: Path, means: Iterable[Mean]) -> None:
    """Write a summary as CSV."""
    pd.DataFrame(means).to_csv(path, index=False, na_rep="nan")


def read(path: Path, option: str) -> list[Mean]:
    """Return a summary that :func:`write` wrote.

    Raises:
        CommandError: it is none; named by the option that it was found by.
    """
    try:
        columns = pd.read_csv(path, dtype=_KINDS, usecols=list(_KINDS))[list(_KINDS)]
    except (OSError, ValueError):
        raise CommandError(f"{option}: {path} is no summary of a panel; make it anew.") from None
    if columns.empty:
        raise CommandError(f"{option}: {path} holds no row; make it anew.")
    return [Mean(*row) for row in columns.itertuples(index=False, name=None)]


_KINDS = {
    **dict.fromkeys(("encoding", "version", "method"), str), "epsilon": float, "runs": int,
    **dict.fromkeys(("accuracy", "std", "proved", "crps"), float),
}  # fmt: skip
