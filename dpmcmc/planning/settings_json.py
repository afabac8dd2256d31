"""Sections of a config: what made each part of a plan, and with which settings, for ``plan.json``.

The sections of a YAML, which make the parts, are in ``config/sections.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import FunctionType

import numpy as np

from dpmcmc.privacy.accounting.own import named

#: Values that a section holds as they are.
_PLAIN = (bool, int, float, str)


def section(made: object, known: Mapping[str, type] | None = None) -> dict[str, object]:
    """Return the section of a config that makes an object.

    Args:
        made: for example a sampler. A dataclass's arguments are keys; one that is None is left out.
        known: classes by the names that a YAML gives them; another class is named ``module:attribute``.
    """
    kind = type(made)
    name = next(
        (name for name, one in (known or {}).items() if one is kind),
        f"{kind.__module__}:{kind.__qualname__}",
    )
    return {"name": name} | settings(made)


def settings(made: object) -> dict[str, object]:
    """Return the arguments of a dataclass that are not None, as JSON takes them; none of another object."""
    if not dataclasses.is_dataclass(made):
        return {}
    values: dict[str, object] = {}
    for one in dataclasses.fields(made):
        value = getattr(made, one.name)
        if "rest" in one.metadata:
            values |= dict(value)
        elif one.init:
            values[one.name] = value
    return {name: _said(value) for name, value in values.items() if value is not None}


def _said(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_said(part) for part in value]
    if isinstance(value, Mapping):
        return {str(key): _said(part) for key, part in value.items()}
    if isinstance(value, FunctionType):
        return named(value)
    return section(value)
