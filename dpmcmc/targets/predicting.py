"""A regression as it predicts: one row at a time, without weights, with the offset as a column."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpmcmc.data.owners import MASK
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, TargetOffers
from dpmcmc.targets.counts import LEAST_DISPERSION, NegativeBinomialRegression, PoissonRegression
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.of_inner import of_inner
from dpmcmc.targets.per_owner import PerOwner, rows_of
from dpmcmc.targets.tempered import Tempered, untempered


def by_row(target: Target, records: PyTree) -> tuple[Target, PyTree]:
    """(target, records) as they predict: one row at a time, whoever the rows belong to.

    Predictions have no weight, and take an offset as the last column of x (:class:`OffsetColumn`).
    """
    if isinstance(target, PerOwner):
        records = rows_of(records) if MASK in records else records
        target = target.target
    return _with_offset_column(_unweighted(target), records)


def with_label_scale(target: Target, scale: float | None) -> Target:
    """Return a regression whose labels vary about their means as a release tells; another target as it is.

    Args:
        target: of the release; its parameters stay the same.
        scale: standard deviation of a linear regression's residuals, or α of counts, Var[y] = μ + αμ²; None: as the
            target supposes.
    """
    if scale is None:
        return target
    if isinstance(target, PerOwner):
        return dataclasses.replace(target, target=with_label_scale(target.target, scale))
    if type(target) is LinearRegression:
        return dataclasses.replace(target, noise_scale=scale)
    if type(target) is PoissonRegression and scale >= LEAST_DISPERSION:
        return NegativeBinomialRegression(**vars(target), dispersion=scale)
    return target


def _unweighted(target: Target) -> Target:
    """Return a regression whose records have no weight; another target as it is."""
    if isinstance(target, Tempered):
        return dataclasses.replace(target, target=_unweighted(target.target))
    if isinstance(target, GeneralisedLinear) and target.weight_scale is not None:
        return dataclasses.replace(target, weight_scale=None)
    return target


def _with_offset_column(target: Target, records: PyTree) -> tuple[Target, PyTree]:
    inner = untempered(target)
    if not isinstance(inner, GeneralisedLinear):
        return target, records
    rows = {name: leaf for name, leaf in records.items() if name != "weight"}
    if inner.offset_bound is None or "offset" not in rows:
        return target, rows
    offset = np.asarray(rows.pop("offset"), np.float32)[:, None]
    x = np.concatenate([np.asarray(rows["x"], np.float32), offset], axis=1)
    return OffsetColumn(target), {**rows, "x": x}


@dataclass(frozen=True)
class OffsetColumn(TargetOffers):
    """A regression with an offset, whose rows have the offset as their last column; for predictions alone.

    Args:
        target: the regression, bound to the shapes of its records.
    """

    target: Any

    num_classes = of_inner()

    def init(self, key: jax.Array) -> PyTree:
        """The regression's starting point."""
        return self.target.init(key)

    def log_prior(self, params: PyTree) -> jax.Array:
        """The regression's log prior."""
        return self.target.log_prior(params)

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """The regression's log-likelihood of one record."""
        x = record["x"]
        return self.target.log_likelihood(params, {**record, "x": x[:-1], "offset": x[-1]})

    def predict(self, params: PyTree, x: jax.Array) -> jax.Array:
        """The regression's predictions of rows x (n, d + 1)."""
        return self.target.predict(params, x[:, :-1], x[:, -1])
