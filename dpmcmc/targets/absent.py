r"""Absent records: a record that is absent adds exactly zero to every sum.

Every proof for ``add_remove`` and ``zero_out`` compares a data set with one in which a record adds zero. Under
``zero_out`` that neighbour is a definition, and no data set need hold it. Under ``add_remove`` data sets may lack
records, so each of the N slots must be able to hold none:

* :class:`~dpmcmc.targets.PerOwner`: an owner without rows. Its mask keeps values and gradients at zero, whatever the
  model of a row is;
* a model to which a record of zeros adds nothing, such as a regression whose intercept is a column of the records.

A network with a bias, features with a constant, and a NumPyro model with an intercept have no such record: their record
of zeros adds up to C. A record that is taken away then moves a sum by up to 2C, where C is charged. So they are refused
under ``add_remove``. So is a table with a schema, whose every row is encoded with a constant or a level.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.storage.compiled_programs import RUN_ONCE
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, bind, record_shapes, shared_by_equal_targets
from dpmcmc.targets.per_owner import PerOwner

#: Parameters that the gradient of a record of zeros is tried at.
_POINTS = 3
_INSTEAD = (
    "gather rows with dpmcmc.data.by_owner, where an owner without rows is absent, or take zero_out, under which no "
    "data set need lack a record"
)


def check_absent(target: Target, records: PyTree, adjacency: str) -> None:
    """Refuse a target that has no absent record, under ``add_remove``; only shapes of records are looked at.

    Args:
        target: bound or not.
        records: leaves (N, ...).
        adjacency: of the plan.

    Raises:
        UnsupportedCombination: a record of zeros adds to its sums.
    """
    if adjacency != Adjacency.ADD_REMOVE:
        return
    shapes = record_shapes(records)
    leaves, structure = jax.tree.flatten(shapes)
    facts = (structure, *((leaf.shape, leaf.dtype) for leaf in leaves))
    if _adds(bind(target, shapes), facts):
        raise UnsupportedCombination(
            f"adjacency: under add_remove a record may be absent and add nothing, and a record of zeros adds to the "
            f"sums of {type(target).__name__}; {_INSTEAD}.",
            "adjacency",
        )


def check_table(target: Target, adjacency: str) -> None:
    """Refuse a table with a schema under ``add_remove``, unless its records are owners.

    Raises:
        UnsupportedCombination: no row of a table is absent.
    """
    if adjacency == Adjacency.ADD_REMOVE and not isinstance(target, PerOwner):
        raise UnsupportedCombination(
            f"adjacency: under add_remove a record may be absent and add nothing, and every row of a table adds to the "
            f"sums; {_INSTEAD}.",
            "adjacency",
        )


@shared_by_equal_targets(maxsize=128)
def _adds(target: Target, facts: tuple) -> bool:
    """Return whether the gradient of a record of zeros is a number other than zero, at any of a few points."""
    structure, leaves = facts[0], facts[1:]
    record = jax.tree.unflatten(structure, [np.zeros(shape, dtype) for shape, dtype in leaves])

    def gradients(record: PyTree) -> PyTree:
        like = jax.eval_shape(target.init, jax.random.key(0))

        def at(key: jax.Array) -> PyTree:
            keys = jax.tree.unflatten(jax.tree.structure(like), jax.random.split(key, len(jax.tree.leaves(like))))
            params = jax.tree.map(lambda leaf, k: jax.random.normal(k, leaf.shape), like, keys)
            return jax.grad(lambda p: target.log_likelihood(p, record))(params)

        return jax.lax.map(at, jax.random.split(jax.random.key(0), _POINTS))

    found = jax.jit(gradients, compiler_options=RUN_ONCE)(record)
    # A query takes a gradient that is no number for zero.
    each = jnp.concatenate([leaf.reshape(_POINTS, -1) for leaf in jax.tree.leaves(found)], axis=1)
    return bool(np.any(np.isfinite(each).all(axis=1) & (np.asarray(each) != 0).any(axis=1)))
