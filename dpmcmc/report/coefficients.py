"""Coefficients as a person reads them: by name, each class compared with the first, in the units of the columns.

A softmax regression has a coefficient for every class, and the data tell only their differences: the level of all of
them is the prior's. A summary has the differences from the first class, and ``draws.nc`` the model's own parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError
from dpmcmc.inference.names import flat
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target
from dpmcmc.targets.glm import SoftmaxRegression
from dpmcmc.targets.glm.base import GeneralisedLinear
from dpmcmc.targets.last_layer import LastLayer

if TYPE_CHECKING:
    from dpmcmc.inference.trace import NoiseAwarePosterior


class Shown(NamedTuple):
    """Numbers of draws as they are shown.

    Attributes:
        names: of the numbers.
        numbers: (chains, draws, numbers), of which there may be more.
        total: of numbers.
        own_units: whether they are in the units of the columns before their encoding.
        said: (label, sentence) pairs about what a number stands for.
    """

    names: list[str]
    numbers: np.ndarray
    total: int
    own_units: bool
    said: tuple[tuple[str, str], ...]


class Reading(NamedTuple):
    """How draws are shown.

    Attributes:
        target: their model.
        schema: public facts of the table, or None.
        columns: names of the columns of the records, or None.
        original_units: whether in the units of the columns before their encoding; None: where these are known.
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
        columns, said = self.columns, [("units", units)]
        if own and self.schema is not None:
            columns = self.schema.own_names
        classes = self._classes(draws)
        if classes:
            reference, *others = classes
            said.insert(0, ("classes", f"each is compared with the first, '{reference}', whose coefficients are 0"))
            draws = draws[..., 1:] - draws[..., :1]
            rows = columns or [f"theta[{j}]" for j in range(draws.shape[2])]
            names = [f"{row}, {other} − {reference}" for row in rows for other in others][:most]
            numbers = draws.reshape(*draws.shape[:2], -1)[..., :most]
        else:
            names, numbers = flat(draws, columns, most)
        total = sum(math.prod(leaf.shape[2:]) for leaf in jax.tree.leaves(draws))
        return Shown(names, numbers, total, own, tuple(said))

    def of_normal(self, found: NoiseAwarePosterior) -> tuple[Shown, np.ndarray, np.ndarray]:
        """Return a posterior (d,) that is normal as it is shown: names, mean and standard deviation."""
        size = len(found.mean)
        shown = self.of(np.vstack([np.zeros(size), np.eye(size)])[None])
        zero, *rows = shown.numbers[0]
        turn = np.transpose(rows - zero)
        return shown, turn @ found.mean + zero, np.sqrt(np.einsum("ij,jk,ik->i", turn, found.covariance, turn))

    def _classes(self, draws: PyTree) -> Sequence[str]:
        """Return the classes of a softmax regression's draws, the reference first; none of other draws."""
        if not isinstance(self._model, SoftmaxRegression) or not _is_array(draws) or np.ndim(draws) != 4:
            return ()
        count, levels = draws.shape[-1], () if self.schema is None else self.schema.outcome.levels
        return levels if len(levels) == count else [f"class {k}" for k in range(count)]

    @property
    def _model(self) -> Target:
        """The model of one row, without what is around it."""
        return getattr(self.target, "target", self.target)

    def in_units(self, draws: PyTree) -> tuple[PyTree, str, bool]:
        """Return (draws, units in words, whether these are the columns' own)."""
        schema, asked = self.schema, self.original_units
        known = schema is not None and _is_array(draws) and not isinstance(self._model, LastLayer)
        if asked and not known:
            raise InputError("original_units: are known of a linear model whose plan has a schema", "original_units")
        if schema is None or not known or not (asked or isinstance(self._model, GeneralisedLinear)):
            return draws, "of the model's parameters, for rows as the target takes them", False
        encoded = "of the encoded columns: a range is mapped to [-1, 1], a level is 0 or 1, and every row is "
        encoded += f"multiplied by {schema.row_scale:.3g}"
        if asked is False:
            return draws, encoded, False
        try:
            own = schema.to_original_units(np.asarray(draws))
        except InputError as error:  # a term that has no units of its own
            if asked:
                raise
            return draws, f"{encoded} ({error})", False
        units = "of the columns as they were before encoding; a level is compared with the first of its column"
        name = schema.own_name(schema.label)
        return own, units if name == schema.label else f"{units}; the label is {name}", True


def _is_array(draws: PyTree) -> bool:
    return isinstance(draws, np.ndarray | jax.Array)
