"""Records as a one-shot release takes them: refused where they do not fit, before anything is computed from them.

A release that reads sums asks a table that may be in partitions (``privacy/query/record_sums.py``), and :class:`Fits`
looks at it where its rows are. Any other release takes arrays, whose rows are brought within their bound here.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from dpmcmc import targets
from dpmcmc.data.checks import Marked
from dpmcmc.privacy.query.gram_release import within
from dpmcmc.storage.pytree import PyTree, length_of
from dpmcmc.targets.base import Target, check_bound, target_offers


def checked(data: PyTree, target: Target, num_records: int, reads_sums: bool) -> PyTree:
    """Return NumPy arrays of the right length, finite, and within the public bounds that the proof rests on.

    Args:
        data: pytree of arrays, leaves (N, ...).
        target: of the plan.
        num_records: N of the plan.
        reads_sums: whether the mechanism does, which then brings rows within their bound itself.

    Raises:
        InputError: they are not.
    """
    # A file that is mapped is read once, for the checks as for the release.
    own = jax.tree.map(lambda leaf: np.array(leaf) if isinstance(leaf, np.memmap) else leaf, data)
    targets.check_rows(own, num_records)
    targets.check(target, own)
    records = jax.tree.map(np.asarray, own)
    fits = Fits(target)
    fits.check_bounds(records)
    if fits.row_bound is None or reads_sums:
        return records
    # Rows that rounding left beyond the bound are scaled back.
    x = records["x"]
    rows = within(np.asarray(fits.rows(records), np.float64), fits.row_bound)
    return {**records, "x": rows.reshape(x.shape)}


@dataclass(frozen=True)
class Fits:
    """Refuses some records of a table that a release does not take, before anything is computed from them.

    Attributes:
        target: of the plan.
    """

    target: Target

    def __call__(self, records: PyTree) -> None:
        """Refuse records, NumPy arrays of one length, by their values.

        Raises:
            DataError: rows that are not finite, that the target does not take, or beyond a public bound.
        """
        targets.check_rows(records, length_of(records))
        bound = targets.bind(self.target, targets.record_shapes(records))
        check = target_offers(bound).check_records
        if check is not None:
            check(records)
        self.check_bounds(records)

    def check_bounds(self, records: PyTree) -> None:
        """Refuse rows and labels beyond the public bounds that a proof rests on."""
        if self.row_bound is not None:
            check_bound(self.rows(records), self.row_bound, "the guarantee")
        label_bound = target_offers(self._model).label_bound
        if label_bound is not None:
            beyond = Marked()
            # In float64: the smallest signed integer has no absolute value of its own type.
            sizes = np.abs(np.asarray(records["y"], np.float64))
            beyond.add(0, np.any(sizes.reshape(len(sizes), -1) > label_bound, axis=1))
            beyond.refuse(
                f"data['y']: some labels are beyond the public label_bound {label_bound:g}: clip labels to it."
            )

    @property
    def row_bound(self) -> float | None:
        """Public bound on rows; None where none is declared."""
        return target_offers(self._model).row_bound

    def rows(self, records: PyTree) -> np.ndarray:
        """Return the rows of all records, (N, ...), or of all owners, (N·m, ...)."""
        x: np.ndarray = records["x"]
        return x.reshape(-1, *x.shape[2:]) if self._owners else x

    @property
    def _owners(self) -> bool:
        return isinstance(self.target, targets.PerOwner)

    @property
    def _model(self) -> Target:
        owners = isinstance(self.target, targets.PerOwner)
        return self.target.target if owners else self.target  # type: ignore[attr-defined]
