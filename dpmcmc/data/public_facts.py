"""Public facts of a source of records, which a target, a mechanism or a metric takes where it says nothing itself.

The facts are those of ``DataSpec.facts`` (``base.py``); no record is looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from dpmcmc.errors import InputError

Made = TypeVar("Made")
#: Facts that an argument may not contradict. A bound may be wider than the source's.
_FIXED = ("num_features", "num_classes")


def add_public_facts(made: Made, facts: Mapping[str, object]) -> Made:
    """Return a dataclass whose fields that say nothing have the facts of the same names; anything else as it is.

    Args:
        made: a target, a mechanism or a metric.
        facts: by name.


    Raises:
        InputError: about an argument that says another number of features or classes.
    """
    if not dataclasses.is_dataclass(made):
        return made
    known = {name: fact for name, fact in facts.items() if fact is not None}
    own = {name: getattr(made, name, None) for name in known}
    for name in _FIXED:
        if name in known and own[name] not in (None, known[name]):
            said = f"{name}: {type(made).__name__} has {own[name]}, and the data have {known[name]}"
            raise InputError(f"{said}; give the same number, or another target", name)
    unsaid = {name: fact for name, fact in known.items() if own[name] is None and name in _fields(made)}
    return dataclasses.replace(made, **unsaid) if unsaid else made  # type: ignore[type-var]


def _fields(item: object) -> set[str]:
    """Return the names of a dataclass's arguments; none of another object."""
    return {field.name for field in dataclasses.fields(item) if field.init} if dataclasses.is_dataclass(item) else set()
