"""From a constructor to the YAML keys it takes: one registry line makes a sampler, target or schedule configurable.

A key is a field of the dataclass that may be given by position; what is bound from data or plan is ``kw_only`` and
not a key. Types come from the annotations, descriptions from the docstring's ``Args:``, defaults from the fields;
what a value must satisfy is the constructor's business.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import re
import types
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, Tag, create_model, field_validator

from dpmcmc.errors import InputError
from dpmcmc.samplers import SCHEDULES

#: Sizes of numbers whose products float32 still holds.
_SMALLEST, _LARGEST = 1e-30, 1e15


def of_a_size(value: Any) -> Any:
    """The value.

    Raises:
        ValueError: a number other than 0 that no run can compute with.
    """
    if isinstance(value, int | float) and value != 0 and not _SMALLEST <= abs(value) <= _LARGEST:
        raise InputError(f"input should be 0 or of a size between {_SMALLEST:g} and {_LARGEST:g}")
    return value


class Section(BaseModel):
    """A mapping with known keys, its numbers 0 or of a size that a run can compute with."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    _sizes = field_validator("*")(of_a_size)


def keys(constructor: type) -> list[dataclasses.Field]:
    """The fields of a dataclass that are YAML keys."""
    return [f for f in dataclasses.fields(constructor) if f.init and not f.kw_only]


def model(name: str, constructor: type, tag: str = "name") -> type[BaseModel]:
    """The section that builds ``constructor``; ``tag`` is the key that holds ``name``."""
    hints, described = get_type_hints(constructor), descriptions(constructor)
    fields: dict[str, Any] = {tag: (Literal[name], ...)}
    for field in keys(constructor):
        if field.name not in described:
            raise TypeError(f"{constructor.__name__}: document {field.name} in the docstring's Args")
        default = ... if field.default is dataclasses.MISSING else field.default
        fields[field.name] = (_yaml_type(hints[field.name]), Field(default, description=described[field.name]))
    first = (inspect.getdoc(constructor) or "").split("\n\n")[0].split("; see")[0].rstrip(".") + "."
    return create_model(f"{constructor.__name__}Config", __base__=Section, __doc__=" ".join(first.split()), **fields)


def tagged(models: dict[str, type[BaseModel]]) -> Any:
    """A union whose members are told apart by their names."""
    return reduce(or_, (Annotated[m, Tag(n)] for n, m in models.items()))


def arguments(section: BaseModel, tag: str = "name") -> dict[str, Any]:
    """Arguments of the constructor; a schedule's section becomes the schedule."""
    values = {key: getattr(section, key) for key in type(section).model_fields if key != tag}
    return {key: schedule(value, key) if hasattr(value, "schedule") else value for key, value in values.items()}


def schedule(section: Any, key: str = "step_size") -> Any:
    """The schedule that a validated section describes; ``key`` is where it stands.

    Raises:
        ValueError: from its constructor, beginning with ``key`` and the argument.
    """
    try:
        return SCHEDULES[section.schedule](**arguments(section, "schedule"))
    except InputError as error:
        raise InputError(f"{key}.{error}") from None


def descriptions(constructor: type) -> dict[str, str]:
    """Return the line of each argument under ``Args:`` of the docstrings of a class and its bases."""
    out: dict[str, str] = {}
    for cls in constructor.__mro__:
        text = cls.__dict__.get("__doc__") or ""
        found = re.search(r"\n\s*Args:\n(.*?)(?:\n\s*\n|\Z)", inspect.cleandoc(text) + "\n\n", re.DOTALL)
        for entry in re.split(r"\n(?=    \w)", found.group(1)) if found else []:
            name, _, rest = entry.strip().partition(":")
            sentence = " ".join(rest.split())
            # A symbol keeps its case: a in (0, 1].
            out.setdefault(name, sentence if sentence[1:2] in (" ", ",", "̂") else sentence[:1].upper() + sentence[1:])
    return out


def _yaml_type(hint: Any) -> Any:
    """The annotation in what YAML can say: no functions, no arrays, no classes of ours."""
    if hint is Any:
        return Any
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return reduce(or_, (t for t in map(_yaml_type, get_args(hint)) if t is not None))
    if origin is Literal or hint in (float, int, str, bool, type(None)):
        return hint
    if origin is collections.abc.Callable:
        return Annotated[tagged(SCHEDULE_SECTIONS), Field(discriminator="schedule")]
    if origin in (list, tuple, collections.abc.Sequence):
        return list[Any]
    return None


SCHEDULE_SECTIONS = {name: model(name, constructor, "schedule") for name, constructor in SCHEDULES.items()}
