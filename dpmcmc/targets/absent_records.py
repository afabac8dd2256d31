"""Absent records: a record that is absent adds exactly zero to every sum.

Every proof for ``add_remove`` and ``zero_out`` compares a data set with one in which a record adds zero. Under
``zero_out`` that neighbour is a definition, and no data set need hold it. Under ``add_remove`` data sets may lack
records, so each of the N slots must be able to hold none:

* :class:`~dpmcmc.targets.PerOwner`: an owner without rows. Its mask keeps values and gradients at zero, whatever the
  model of a row is;
* a regression of arrays, whose intercept, if any, is a column of the records: a row of zeros. Its gradient is a
  residual times the row, and its loss is the same at all parameters;
* a target of your own that says ``zeros_are_absent = True``: a record of zeros, for which you vouch.

A network with a bias, features with a constant, and a NumPyro model with an intercept have no such record: their
record of zeros adds up to C. A record that is taken away then moves a sum by up to 2C, where C is charged. Trying a
few parameters proves nothing of a model's own code, so models that do not say it are refused under ``add_remove``.
So is a table with a schema, whose every row is encoded with a constant or a level.

Claim: Under ``add_remove`` an absent record adds exactly zero to every sum.
Proof: an owner without rows is masked, and a regression's residual is multiplied by a row of zeros. Other models
are refused.
Held by: test_a_model_whose_record_of_zeros_adds_to_sums_is_refused_under_add_remove,
test_a_row_of_zeros_is_an_absent_record_of_a_regression, test_an_absent_owner_moves_a_chains_sums_by_no_more_than_c,
"a record of zeros for an absent one", "an absent owner is a row of zeros"
"""

from __future__ import annotations

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.targets.base import Target, target_offers
from dpmcmc.targets.per_owner import PerOwner

_INSTEAD = (
    "gather rows with dpmcmc.data.by_owner, where an owner without rows is absent, or take zero_out, under which no "
    "data set need lack a record"
)


def check_absent(target: Target, adjacency: str, table: bool = False) -> None:
    """Refuse a target that has no absent record, under ``add_remove``.

    Args:
        target: bound or not.
        adjacency: of the plan.
        table: whether its records are rows of a table with a schema.

    Raises:
        UnsupportedCombination: nothing proves that a record of its kind adds zero to every sum.
    """
    if adjacency != Adjacency.ADD_REMOVE or isinstance(target, PerOwner):
        return
    if table:
        why = "every row of a table adds to the sums"
    elif target_offers(target).zeros_are_absent:
        return
    else:
        why = (
            f"no record of {type(target).__name__} is known to, since a model with an intercept, a bias or a constant "
            "feature has none"
        )
    raise UnsupportedCombination(
        f"adjacency: under add_remove a record may be absent and add nothing, and {why}; {_INSTEAD}.",
        "adjacency",
    )
