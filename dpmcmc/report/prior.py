"""Prior of a few parameters beside their draws, for a picture that shows how much the release told.

It is drawn where the prior is a known normal law, in the units in which the model has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.names import few
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.glm import (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
)
from dpmcmc.targets.transformed import PerOwner, untempered

#: Draws without which a histogram shows nothing.
_LEAST_DRAWS = 100
_KNOWN = (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
)


class BesidePrior(NamedTuple):
    """Contents of the picture.

    Attributes:
        rows: (name, draws (n,), mean of the prior, its standard deviation) of each parameter.
        units: of the numbers.
        caption: of the picture.
    """

    rows: list[tuple[str, np.ndarray, float, float]]
    units: str
    caption: str

    @classmethod
    def of(
        cls,
        plan: AnyPlan,
        draws: PyTree,
        columns: Sequence[str] | None,
        evidence: Evidence | None,
    ) -> BesidePrior | None:
        """Return up to six parameters; None where no prior is a known normal law, or draws are few.

        Args:
            plan: of the run.
            draws: released, (chains, draws, d) of a regression.
            columns: names of the columns of the records, or None.
            evidence: of a noise-aware release, which has the prior of each coefficient; None: the target's prior.
        """
        model = untempered(plan.target)
        model = model.target if isinstance(model, PerOwner) else model
        if type(model) not in _KNOWN or np.ndim(draws) != 3:
            return None
        chains, count, size = draws.shape
        if chains * count < _LEAST_DRAWS:
            return None
        means, scales = np.zeros(size), np.full(size, model.prior_scale)  # type: ignore[attr-defined]
        chosen = False
        if evidence is not None:
            if len(evidence.scales) != size:
                return None
            chosen = evidence.chosen
            scales = evidence.scales
            means = means if evidence.means is None else evidence.means
        kept = np.setdiff1d(np.arange(size), _of_groups(plan))
        if not len(kept):
            return None
        names = columns if columns is not None and len(columns) == size else [f"theta[{j}]" for j in range(size)]
        places = few(np.broadcast_to(kept, (1, 1, len(kept))), [names[j] for j in kept])
        rows = []
        for name, place in places.items():
            j = int(place[0, 0])
            one = np.asarray(draws[..., j], np.float64).ravel()
            rows.append((name, one, float(means[j]), float(scales[j])))
        schema = plan.schema
        units = "coefficients of the columns as the model takes them, after encoding"
        if schema is not None:
            units = (
                "coefficients of the encoded columns: a range is within [-1, 1], a level is 0 or 1,\n"
                f"and every row is multiplied by {schema.row_scale:.3g}"
            )
        follows = ", whose scale was chosen from the released numbers" if chosen else ""
        caption = (
            f"Prior{follows} (dashed) and posterior draws of up to six parameters, as encoded: the more the two "
            "differ, the more the records told"
        )
        return cls(rows, units, caption)


def _of_groups(plan: AnyPlan) -> list[int]:
    """Return the places of effects of groups, whose standard deviation is estimated."""
    given = plan.sections.get("mechanism", {}).get("group_effects") or []
    groups = [tuple(columns) for columns in given]
    if plan.schema is not None:
        groups += [effect.columns for effect in plan.schema.group_effects]
    return sorted({column for columns in groups for column in columns})
