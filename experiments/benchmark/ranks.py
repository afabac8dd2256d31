r"""Average ranks of methods over tables, with the critical difference of Friedman and Nemenyi (Demšar 2006).

On each table methods are ranked by the mean of a score over repeats, 1 is best, and ties share the mean of their ranks.
A method that failed, or that does not take the table's labels, is last on that table; two such share a rank. Two
average ranks differ at the level α if they are further apart than

    CD = q_α √(k(k + 1)/(6n)),    q_α the upper α quantile of the studentised range of k groups over √2,

for k methods and n tables. The statistic of Friedman says whether any differ at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import friedmanchisquare, rankdata, studentized_range

#: Level of the critical difference.
ALPHA = 0.05


class Ranks(NamedTuple):
    """Average ranks.

    Attributes:
        methods: names.
        mean: average rank of each.
        tables: number of tables.
        critical: difference of two average ranks that is beyond chance; NaN of fewer than two methods or tables.
        p: of Friedman's test; NaN of fewer than three methods or two tables.
    """

    methods: tuple[str, ...]
    mean: np.ndarray
    tables: int
    critical: float
    p: float


def ranked(scores: np.ndarray) -> np.ndarray:
    """Return ranks (tables, methods) of scores where more is better; NaN is last."""
    return rankdata(np.where(np.isnan(scores), np.inf, -scores), axis=1)


def critical_difference(methods: int, tables: int) -> float:
    """Return Nemenyi's critical difference at :data:`ALPHA`."""
    if methods < 2 or tables < 2:
        return math.nan
    q = float(studentized_range.ppf(1 - ALPHA, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * tables))


def average(methods: Sequence[str], scores: np.ndarray) -> Ranks:
    """Return average ranks of scores (tables, methods), more being better."""
    ranks = ranked(scores)
    n, k = ranks.shape
    p = float(friedmanchisquare(*ranks.T).pvalue) if k > 2 and n > 1 and not np.all(ranks == ranks[:, :1]) else math.nan
    return Ranks(tuple(methods), ranks.mean(axis=0), n, critical_difference(k, n), p)


def table_of(
    rows: Iterable[Mapping[str, object]], methods: Sequence[str], tables: Sequence[str], score: str
) -> np.ndarray:
    """Return means over repeats (tables, methods) of a score, NaN where a method has none or failed in any repeat.

    Args:
        rows: of one ε.
        methods: names.
        tables: names.
        score: column.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        value = row.get(score)
        number = float(value) if row["status"] == "ok" and isinstance(value, int | float) else math.nan
        found.setdefault((str(row["table"]), str(row["method"])), []).append(number)
    return np.array([[np.mean(found.get((table, method), [math.nan])) for method in methods] for table in tables])
