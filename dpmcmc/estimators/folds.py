"""Folds of a cross-validation that depend on the number of records and a public seed alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike
from sklearn.model_selection import BaseCrossValidator

from dpmcmc.errors import InputError


class PublicKFold(BaseCrossValidator):
    """k folds that depend on N and a public seed alone, not on rows, labels or groups.

    Two tables that differ in one record have the same folds, and the training sets of both differ in that record or not
    at all. A record is in at most k − 1 of the k training sets. So k fits of ε cost any record (k − 1)·ε at most, and a
    ledger charges all k. The order of the rows must be public, such as that of an identifier: in a table that is sorted
    by a private column, one changed record moves others.

    scikit-learn's default for a classifier, ``StratifiedKFold``, reads the labels: one changed label moves other
    records from one fold to another, and no such bound holds.

    All training sets have ``train_records`` rows, one less than the smaller ones of ``KFold``. An estimator with this
    ``num_records`` refuses the training sets of k stratified folds, which have the sizes of ``KFold``.

    Args:
        n_splits: k, at least 2.
        num_records: N, of the whole table.
        seed: of the permutation that deals the rows into folds; public.

    Raises:
        InputError: numbers that make no folds.

    Example:
        >>> import numpy as np
        >>> from sklearn.model_selection import cross_validate
        >>> from dpmcmc.estimators import PrivateLinearRegression, PublicKFold
        >>> x = np.random.default_rng(0).uniform(-1, 1, size=(1000, 2))
        >>> folds = PublicKFold(3, num_records=1000)
        >>> model = PrivateLinearRegression(1.0, num_records=folds.train_records, ranges=(-1, 1), label_range=(-1, 1))
        >>> found = cross_validate(model, x, x[:, 0], cv=folds, return_estimator=True)
        >>> [fit.guarantee_.epsilon <= 1.0 for fit in found["estimator"]]
        [True, True, True]
    """

    def __init__(self, n_splits: int = 5, *, num_records: int, seed: int = 0) -> None:
        self.n_splits = n_splits
        self.num_records = num_records
        self.seed = seed
        for name, value, least in (
            ("n_splits", n_splits, 2),
            ("num_records", num_records, 1),
            ("seed", seed, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise InputError(
                    f"{name}: must be a whole number of at least {least}, got {value!r}",
                    name,
                )
        if n_splits > num_records or self.train_records < 1:
            raise InputError(
                f"n_splits: {num_records} records are too few for {n_splits} folds",
                "n_splits",
            )

    @property
    def train_records(self) -> int:
        """Number of records in each training set, N − ⌈N/k⌉ − 1."""
        return int(self.num_records - -(-self.num_records // self.n_splits) - 1)

    def get_n_splits(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> int:
        """Return k; nothing is read of scikit-learn's arguments."""
        return self.n_splits

    def split(
        self,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (rows to train on, rows to test on) of each fold, in ascending order.

        Args:
            X: only its number of rows is read.
            y: not read.
            groups: None.

        Raises:
            InputError: another number of rows than N, or groups.
        """
        if groups is not None:
            raise InputError(
                "groups: folds by groups depend on private rows; leave groups out",
                "groups",
            )
        if X is not None and _rows(X) != self.num_records:
            raise InputError(
                f"num_records: these folds are of {self.num_records} records, and the table has another number of "
                "rows; make them for its own",
                "num_records",
            )
        return self._folds()

    def _folds(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        dealt = np.random.default_rng(self.seed).permutation(self.num_records)
        tests = np.array_split(dealt, self.n_splits)
        for at, test in enumerate(tests):
            others = np.concatenate([*tests[at + 1 :], *tests[:at]])
            yield np.sort(others[-self.train_records :]), np.sort(test)


def _rows(table: ArrayLike) -> int:
    shape = getattr(table, "shape", None)
    return len(table) if shape is None else shape[0]  # type: ignore[arg-type]
