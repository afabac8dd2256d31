"""A target whose records are people: all rows of one owner are one record.

    log p(owner | θ) = Σ over the owner's rows of log p(row | θ)

The query clips the gradient of that SUM to C, samples owners, and N is the number of owners. So whatever a guarantee
says of one record, it says of one owner and all their rows (:func:`dpmcmc.data.by_owner` arranges them). The
posterior is that of the rows: prior and likelihood are the inner target's.

Padding contributes exactly zero, value and gradient, whatever the likelihood makes of it: a padded place is evaluated
at the owner's first row, and an owner without rows at parameters that are not differentiated.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge

from dpmcmc.data.owners import MASK
from dpmcmc.errors import Checked
from dpmcmc.storage.pytree import STATIC, PyTree
from dpmcmc.targets.base import Target, TargetError, TargetOffers, bind, target_offers
from dpmcmc.targets.of_inner import of_inner


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PerOwner(Checked, TargetOffers):
    """A target of rows as one of owners.

    Args:
        target: the model of one row.
        records_per_owner: m, public; None until the data's shape is known.

    Raises:
        ValueError: m is not a whole number >= 1.

    Example:
        >>> from dpmcmc.targets import LogisticRegression, PerOwner
        >>> target = PerOwner(LogisticRegression(num_features=2), records_per_owner=3)
        >>> target.records_per_owner
        3
    """

    target: Target
    records_per_owner: Annotated[int, Ge(1)] | None = dataclasses.field(default=None, metadata=STATIC)

    predict = of_inner()
    constrain = of_inner()
    num_classes = of_inner()
    prior_precision = of_inner()
    num_features = of_inner()
    offset_bound = of_inner()
    weight_scale = of_inner()
    takes_every_leaf = of_inner()

    @property
    def unit(self) -> str:
        """Whom a guarantee speaks of."""
        return "owner" if self.records_per_owner is None else f"owner (at most {self.records_per_owner} rows)"

    @property
    def gradient_bound(self) -> float | None:
        """m·L, where both are known."""
        bound = target_offers(self.target).gradient_bound
        return None if bound is None or self.records_per_owner is None else self.records_per_owner * bound

    def bind(self, record_shapes: PyTree) -> PerOwner:
        """The same around the inner target bound to one row, with m from the records.

        Raises:
            TargetError: records that are not those of ``dpmcmc.data.by_owner``, or of another m.
        """
        if not isinstance(record_shapes, dict) or MASK not in record_shapes:
            raise TargetError("records have no owners; gather their rows with dpmcmc.data.by_owner")
        (places,) = record_shapes[MASK].shape
        if self.records_per_owner not in (None, places):
            raise TargetError(f"target has records_per_owner {self.records_per_owner} but records have {places}")
        row = {
            name: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
            for name, leaf in record_shapes.items()
            if name != MASK
        }
        return PerOwner(bind(self.target, row), places)

    def init(self, key: jax.Array) -> PyTree:
        """The inner target's starting point."""
        return self.target.init(key)

    def log_prior(self, params: PyTree) -> jax.Array:
        """The inner target's."""
        return self.target.log_prior(params)

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """Σ over the rows of ONE owner.

        Args:
            params: of the inner target.
            record: the owner's rows, leaves (m, ...), and ``mask`` (m,).
        """
        mask = record[MASK]
        first = jnp.argmax(mask)
        # 0 · NaN is NaN, so what is masked must be a row that counts anyway, or not be differentiated at all.
        params = jax.tree.map(
            lambda leaf: jnp.where(jnp.any(mask), leaf, jax.lax.stop_gradient(leaf)),
            params,
        )

        def filled(leaf: jax.Array) -> jax.Array:
            return jnp.where(mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, leaf[first])

        rows = {name: filled(leaf) for name, leaf in record.items() if name != MASK}
        each = jax.vmap(lambda row: self.target.log_likelihood(params, row))(rows)
        return jnp.sum(jnp.where(mask, each, 0.0))

    def check_records(self, records: PyTree) -> None:
        """Check the rows as the inner target does."""
        own = target_offers(self.target).check_records
        if own is not None:
            own(rows_of(records))


def rows_of(records: PyTree) -> dict[str, np.ndarray]:
    """The rows of all owners one after another, padding left out: leaves (rows, ...)."""
    mask = np.asarray(records[MASK])
    return {name: np.asarray(leaf)[mask] for name, leaf in records.items() if name != MASK}
