"""Adjacency: which two data sets count as neighbours."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from dpmcmc.errors import UnsupportedCombination


class Adjacency(StrEnum):
    """Relation between neighbouring data sets; ``Adjacency("replace_one")`` parses a name.

    * ``replace_one``: one record has another value. N is public.
    * ``add_remove``: one record is there, or is absent. The number of record slots is public.
    * ``zero_out``: one record contributes, or contributes zero. N is public.
    * ``one_label``: one record has another label. N and all features are public, and nothing of them is protected. It
      is of randomised labels alone, and no promise about whole records.

    An absent record adds exactly zero to every sum (``targets/checks.py``).

    Raises:
        UnsupportedCombination: an unknown name.

    Example:
        >>> from dpmcmc.privacy import Adjacency
        >>> Adjacency("replace_one") is Adjacency.REPLACE_ONE
        True
    """

    REPLACE_ONE = "replace_one"
    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    ONE_LABEL = "one_label"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise UnsupportedCombination(f"unknown adjacency {value!r}; known: {', '.join(cls)}.", "adjacency")

    @property
    def sensitivity(self) -> float:
        """How far a neighbour moves a sum of vectors of norm at most 1.

        Under ``replace_one`` and ``one_label`` one such vector leaves the sum and another enters; otherwise one leaves
        or enters.
        """
        one_side = self in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
        return 1.0 if one_side else 2.0

    __repr__ = str.__repr__
