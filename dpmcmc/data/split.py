"""Train and test rows by a public permutation that no record can influence.

The rows of a sampler's batch are chosen elsewhere (``privacy/query/selection.py``).
"""

from __future__ import annotations

import numpy as np

SPLIT_SEED = 2015


def split_rows(num_rows: int, num_test: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (train, test), each ascending; depends on the two counts and on nothing else.

    The test rows are the last ``num_test`` of a permutation with the public seed ``SPLIT_SEED``. Neighbouring
    data sets of a guarantee are neighbouring *training* sets: under add-or-remove adjacency a file with one
    more row would be split anew.
    """
    # RandomState rather than a Generator: its stream is frozen (NumPy NEP 19), so a split outlives upgrades.
    order = np.random.RandomState(SPLIT_SEED).permutation(num_rows)
    cut = num_rows - num_test
    return np.sort(order[:cut]), np.sort(order[cut:])
