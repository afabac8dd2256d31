"""Public facts of a source of records that a target, a mechanism or a metric takes where it says nothing itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeVar

from dpmcmc.errors import InputError

Told = TypeVar("Told")
#: Facts that an argument may not contradict. A bound may be wider than the source's.
_FIXED = ("num_features", "num_classes")


def told(made: Told, facts: Mapping[str, object], model: object = None) -> Told:
    """Return a dataclass whose fields that say nothing have the facts of the same names; anything else as it is.

    Args:
        made: a target, a mechanism or a metric.
        facts: by name.
        model: target that a mechanism or a metric is for. A model of features (``LastLayer``) multiplies no column of
            the source, so that only the number of classes holds of it; None: ``made`` is the target.

    Raises:
        InputError: about an argument that says another number of features or classes.
    """
    if not dataclasses.is_dataclass(made):
        return made
    if hasattr(made if model is None else model, "features"):
        facts = {"num_classes": facts.get("num_classes")}
    known = {name: fact for name, fact in facts.items() if fact is not None and hasattr(made, name)}
    for name in _FIXED:
        if name in known and getattr(made, name) not in (None, known[name]):
            said = f"{name}: {type(made).__name__} has {getattr(made, name)}, and the data have {known[name]}"
            raise InputError(f"{said}; give the same number, or another target", name)
    unsaid = {f.name: known[f.name] for f in dataclasses.fields(made) if f.init and f.name in known}
    unsaid = {name: fact for name, fact in unsaid.items() if getattr(made, name) is None}
    return dataclasses.replace(made, **unsaid) if unsaid else made  # type: ignore[type-var]
