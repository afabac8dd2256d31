"""Maps from one raw record to one feature row, with public constants only.

Every map acts on each row alone. Scaling by a statistic of the table (its largest norm, a column mean) would
publish that statistic outside the privacy account.
"""

from __future__ import annotations

import numpy as np

# Rounding to float32 changes a norm by at most a relative 2^-24; this margin keeps every row inside the ball.
MARGIN = 1e-6


def normalise_rows(rows: np.ndarray) -> np.ndarray:
    """Scales every row (N, d) to l2 norm 1, less a margin of 1e-6 so that float32 rows never exceed 1.

    No row may be zero; the intercept column sees to that.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: np.ndarray = rows * ((1.0 - MARGIN) / norms)
    return scaled.astype(np.float32)


def clip_rows(rows: np.ndarray, bound: float) -> np.ndarray:
    """Scales down only the rows (N, d) whose l2 norm exceeds ``bound``; float32 rows never exceed it."""
    limit = bound * (1.0 - MARGIN)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: np.ndarray = rows * (limit / np.maximum(norms, limit))
    return scaled.astype(np.float32)


def scale_columns(values: np.ndarray, upper: np.ndarray, encoding: str) -> np.ndarray:
    """Brings columns (N, d) with public range [0, upper] to a common scale, clipping what lies outside.

    ``linear``: value / upper, in [0, 1]. ``public``: centred on the middle of the range, in [-1, 1]; after
    row normalisation this keeps more of the signal, because rows no longer share one dominant direction.
    """
    fraction: np.ndarray = np.clip(values / upper, 0.0, 1.0)
    return fraction if encoding == "linear" else 2.0 * fraction - 1.0


def add_intercept(rows: np.ndarray) -> np.ndarray:
    """Appends a column of ones."""
    return np.concatenate([rows, np.ones((rows.shape[0], 1))], axis=1)
