"""Class labels and counts: whole numbers, refused otherwise before anything is computed from them.

A label that is no class would not fail in compiled code: indexing clamps, and clipping hides the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpmcmc.data.checks import Marked
from dpmcmc.storage.record_blocks import blocks


def check_labels(y: np.ndarray, num_classes: int, who: str) -> None:
    """Refuse labels that are none of 0..K−1.

    Args:
        y: (N,).
        num_classes: K.
        who: the target, for the message.

    Raises:
        DataError: there are some; its ``rows`` say which.
    """
    known = np.arange(num_classes)
    takes = f"{who} takes labels {'0 and 1' if num_classes == 2 else f'0 to {num_classes - 1}'}"
    _refuse_unless(lambda part: np.isin(part, known), y, takes)


def check_counts(y: np.ndarray, who: str) -> None:
    """Refuse labels that are none of 0, 1, 2, ….

    Args:
        y: (N,).
        who: the target, for the message.

    Raises:
        DataError: there are some; its ``rows`` say which.
    """
    _refuse_unless(
        lambda part: (part >= 0) & (part == np.floor(part)),
        y,
        f"{who} takes counts 0, 1, 2, and so on",
    )


def _refuse_unless(good: Callable[[np.ndarray], np.ndarray], y: np.ndarray, takes: str) -> None:
    bad = Marked()
    for start, part in blocks(y):
        wrong: np.ndarray = ~good(part)
        bad.add(start, np.any(wrong.reshape(len(part), -1), axis=1))
    bad.refuse(f"y: {takes}, and some rows have others; recode the labels.")
