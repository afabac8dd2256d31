"""Checks of rows and labels as scikit-learn makes them, but with messages that quote no value.

scikit-learn's messages show an array of one dimension or of complex numbers, and a text that is no number. Its checks
also ignore the mask of an array.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from dpmcmc.data.checks import refuse_mask
from dpmcmc.errors import InputError


def check_rows(estimator: BaseEstimator, X: ArrayLike) -> np.ndarray:
    """Return rows to predict, (n, d), as ``validate_data`` of scikit-learn checks them.

    Raises:
        ValueError: they are none; the message quotes no value.
    """
    _look_at(X, "X", numeric=True)
    return validate_data(estimator, X, reset=False)


def check_records(
    estimator: BaseEstimator, X: ArrayLike, y: ArrayLike, y_numeric: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows, (n, d), and labels, (n,), to fit to; as :func:`check_rows`.

    Raises:
        ValueError: they are none; the message quotes no value.
    """
    _look_at(X, "X", numeric=True)
    _look_at(y, "y", numeric=y_numeric)
    return validate_data(estimator, X, y, y_numeric=y_numeric)


def _look_at(given: ArrayLike, name: str, numeric: bool) -> None:
    """Refuse arrays that scikit-learn would quote in its message; sentences begin as its own do."""
    refuse_mask(given, name)
    if issparse(given):
        return
    array = np.asarray(given)
    if array.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} must hold real numbers", name)
    if name == "X" and array.ndim < 2:
        raise InputError(
            f"Expected 2D array, got {array.ndim}D array instead: give X one row for each record. Reshape your data "
            "either using array.reshape(-1, 1) if your data has a single feature or array.reshape(1, -1) if it "
            "contains a single sample",
            name,
        )
    if numeric and array.dtype == object:
        try:
            array.astype(np.float64)
        except (ValueError, OverflowError):
            raise InputError(
                f"{name}: a column holds text, or another value that is no number; mend it",
                name,
            ) from None
