"""Class labels and counts: whole numbers, refused otherwise before anything is computed from them.

A label that is no class would not fail in compiled code: indexing clamps, and clipping hides the rest.
"""

from __future__ import annotations

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.storage.row_blocks import blocks


def check_labels(y: np.ndarray, num_classes: int, who: str) -> None:
    """Raise ValueError, with the number of rows, unless every label is one of 0..K−1.

    Args:
        y: (N,).
        num_classes: K.
        who: the target, for the message.
    """
    good = np.concatenate([np.isin(part, np.arange(num_classes)) for _, part in blocks(y)])
    _refuse(~good, f"{who} takes labels {'0 and 1' if num_classes == 2 else f'0 to {num_classes - 1}'}")


def check_counts(y: np.ndarray, who: str) -> None:
    """Raise ValueError, with the number of rows, unless every label is one of 0, 1, 2, ….

    Args:
        y: (N,).
        who: the target, for the message.
    """
    good = np.concatenate([(part >= 0) & (part == np.floor(part)) for _, part in blocks(y)])
    _refuse(~good, f"{who} takes counts 0, 1, 2, and so on")


def _refuse(bad: np.ndarray, what: str) -> None:
    """Raise InputError where a row of ``bad``, (N, ...), is marked; no label is quoted."""
    rows = bad.reshape(len(bad), -1).any(axis=1)
    if rows.any():
        raise InputError(
            f"y: {what}, and {int(rows.sum())} rows have others (first: row {int(rows.argmax())}, counted from 0); "
            "recode the labels"
        )
