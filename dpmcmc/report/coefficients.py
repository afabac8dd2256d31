"""Coefficients as tables and figures show them: by name, in the units of the columns, each class relative to the first.

A softmax regression has a coefficient for every class, and data identify only their differences. So a summary shows
differences from the first class; ``draws.nc`` holds the model's own parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError
from dpmcmc.inference.names import flat
from dpmcmc.report.forest import Spans
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target
from dpmcmc.targets.generalised_linear import GeneralisedLinear
from dpmcmc.targets.per_owner import PerOwner
from dpmcmc.targets.softmax import SoftmaxRegression
from dpmcmc.targets.tempered import untempered


class Shown(NamedTuple):
    """Draws as tables and figures show them.

    Attributes:
        names: of the numbers.
        numbers: (chains, draws, numbers); the first ones where there are many.
        total: of numbers.
        own_units: whether they are in the units of the columns before encoding.
        said: (label, sentence) pairs that explain the numbers.
        spans: of the numbers in their own units; None of others.
    """

    names: list[str]
    numbers: np.ndarray
    total: int
    own_units: bool
    said: tuple[tuple[str, str], ...]
    spans: Spans | None = None


class Reading(NamedTuple):
    """How draws are shown.

    Attributes:
        target: their model.
        schema: public facts of the table, or None.
        columns: names of the columns of the records, or None.
        original_units: whether in the units of the columns before encoding; None: where these are known.
    """

    target: Target
    schema: Schema | None
    columns: Sequence[str] | None
    original_units: bool | None = None

    def of(self, draws: PyTree, most: int | None = None) -> Shown:
        """Return draws, leaves (chains, draws, ...), as they are shown; the first ``most`` numbers, or all.

        Raises:
            InputError: original units, which are not known here.
        """
        draws, units, own = self.in_units(draws)
        columns = self.columns
        said = [("units", units)]
        spans = None
        if own and self.schema is not None:
            columns = self.schema.own_names
            spans = Spans.of(self.schema)
        classes = self._classes(draws)
        if classes:
            reference, *others = classes
            said.insert(
                0,
                (
                    "classes",
                    f"each is compared with the first, '{reference}', whose coefficients are 0",
                ),
            )
            draws = draws[..., 1:] - draws[..., :1]
            rows = columns or [f"theta[{j}]" for j in range(draws.shape[2])]
            names = [f"{row}, {other} − {reference}" for row in rows for other in others][:most]
            numbers = draws.reshape(*draws.shape[:2], -1)[..., :most]
            if spans is not None:
                spans = spans._replace(factors=np.repeat(spans.factors, len(others)))
        else:
            names, numbers = flat(draws, columns, most)
        total = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(draws))
        if spans is not None:
            spans = spans._replace(factors=spans.factors[:most])
        return Shown(names, numbers, total, own, tuple(said), spans)

    def directions(self, draws: PyTree, most: int | None = None) -> np.ndarray | None:
        """Return the weights of the model's coefficients in each number that is shown, (numbers, coefficients).

        Args:
            draws: (chains, draws, ...); None is returned where they are no one array.
            most: as of :meth:`of`.
        """
        if not _is_array(draws):
            return None
        shape = draws.shape[2:]
        size = math.prod(shape)
        each = np.concatenate([np.zeros((1, size)), np.eye(size)]).reshape(1, -1, *shape)
        numbers = self.of(each, most).numbers[0]
        return (numbers[1:] - numbers[0]).T

    def _classes(self, draws: PyTree) -> Sequence[str]:
        """Return the classes of a softmax regression's draws, the reference first; none of other draws."""
        if not isinstance(self._model, SoftmaxRegression) or not _is_array(draws) or np.ndim(draws) != 4:
            return ()
        count = draws.shape[-1]
        levels = () if self.schema is None else self.schema.outcome.levels
        return levels if len(levels) == count else [f"class {k}" for k in range(count)]

    @property
    def _model(self) -> Target:
        """Return the model of one row, without the targets that wrap it."""
        model = untempered(self.target)
        return model.target if isinstance(model, PerOwner) else model

    def in_units(self, draws: PyTree) -> tuple[PyTree, str, bool]:
        """Return (draws, units in words, whether these are the columns' own)."""
        schema = self.schema
        asked = self.original_units
        known = schema is not None and _is_array(draws)
        if asked and not known:
            raise InputError(
                "original_units: are known of a linear model whose plan has a schema",
                "original_units",
            )
        if schema is None or not known or not (asked or isinstance(self._model, GeneralisedLinear)):
            return (
                draws,
                "of the model's parameters, for rows as the target takes them",
                False,
            )
        encoded = "of the encoded columns: a range is mapped into [-1, 1], a level is 0 or 1, and every row is "
        encoded += f"multiplied by {schema.row_scale:.3g}"
        if asked is False:
            return draws, encoded, False
        own = schema.to_original_units(np.asarray(draws))
        units = "of the columns as they were before encoding; a level is compared with the first of its column, "
        units += "unless that one has a coefficient too"
        name = schema.own_name(schema.label)
        return (
            own,
            units if name == schema.label else f"{units}; the label is {name}",
            True,
        )


def _is_array(draws: PyTree) -> bool:
    return isinstance(draws, np.ndarray | jax.Array)
