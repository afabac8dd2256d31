r"""Average ranks of methods over tables, with the critical difference of Nemenyi (Demšar 2006).

On each table methods are ranked by the mean of a score over repeats, 1 is best, and ties share the mean of their ranks.
A method that failed, or that does not take the table's labels, is last on that table; two such share a rank. Two
average ranks differ at the level α if they are further apart than

    CD = q_α √(k(k + 1)/(6n)),    q_α the upper α quantile of the studentised range of k groups over √2,

for k methods and n tables.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import rankdata, studentized_range

#: Level of the critical difference.
ALPHA = 0.05


def ranked(scores: np.ndarray) -> np.ndarray:
    """Return ranks (tables, methods) of scores where more is better; NaN is last."""
    return rankdata(np.where(np.isnan(scores), np.inf, -scores), axis=1)


def critical_difference(methods: int, tables: int) -> float:
    """Return Nemenyi's critical difference at :data:`ALPHA`; NaN of fewer than two methods or tables."""
    if methods < 2 or tables < 2:
        return math.nan
    q = float(studentized_range.ppf(1 - ALPHA, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * tables))
