"""From a constructor to the section of a YAML that builds it, so that a new key touches the constructor alone.

A key is a field of the dataclass that may be given by position; what is bound from data or plan is ``kw_only`` and not
a key. Types and bounds come from the annotations, which the constructor itself refuses with
(:func:`dpmcmc.errors.check_fields`), descriptions from the docstring's ``Args:``, defaults from the fields.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import re
import warnings
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dpmcmc.errors import Hint, InputError, alternatives
from dpmcmc.samplers import SCHEDULES

#: Sizes of numbers whose products float32 still holds.
_SMALLEST, _LARGEST = 1e-30, 1e15
_T = TypeVar("_T")
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def of_a_size(value: _T) -> _T:
    """Return the value.

    Raises:
        InputError: a number other than 0 that no run can compute with.
    """
    if isinstance(value, int | float) and value != 0 and not _SMALLEST <= abs(value) <= _LARGEST:
        raise InputError(f"input should be 0 or of a size between {_SMALLEST:g} and {_LARGEST:g}")
    return value


class Section(BaseModel):
    """A mapping with known keys, its numbers 0 or of a size that a run can compute with."""

    model_config = _STRICT

    _sizes = field_validator("*")(of_a_size)


class Keyed(Section):
    """A section that says which keys there are beside an unknown one."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: object) -> object:
        unknown = [key for key in values if key not in cls.model_fields] if isinstance(values, dict) else []
        if unknown:
            raise refused(*((f"unknown key; known keys: {', '.join(cls.model_fields)}", (key,)) for key in unknown))
        return values


class Derived(Keyed):
    """A section that was made from a constructor.

    Attributes:
        constructor: what it builds.
        tag: the key that chose this constructor among others; empty where there was no choice.
    """

    constructor: ClassVar[type]
    tag: ClassVar[str] = ""

    def arguments(self) -> dict[str, Any]:
        """Arguments of the constructor; a section within this one is built."""
        values = {key: getattr(self, key) for key in type(self).model_fields if key != self.tag}
        return {key: _part(key, value) if isinstance(value, Derived) else value for key, value in values.items()}

    def built(self, **facts: Any) -> Any:
        """Call the constructor; ``facts`` are what it takes beside its keys.

        Raises:
            InputError: what the constructor refuses, about one of its keys.
        """
        return self.constructor(**self.arguments(), **facts)


def _part(key: str, section: Derived) -> Any:
    try:
        return section.built()
    except InputError as error:
        raise InputError(str(error), f"{key}.{error.about}") from None


def refused(*problems: tuple[str, tuple[str, ...]], value: object = None) -> ValidationError:
    """Return an error for a validator to raise: (message, keys that lead to what it is about) of each problem.

    Args:
        value: given, where the message leaves that to say.
    """
    kind = "refused" if value is None else "wrong"
    lines: list[InitErrorDetails] = [
        {"type": PydanticCustomError(kind, "{text}", {"text": text}), "loc": path, "input": value}
        for text, path in problems
    ]
    return ValidationError.from_exception_data("section", lines)


def keys(constructor: type) -> list[dataclasses.Field]:
    """Return the fields of a dataclass that are YAML keys."""
    return [f for f in dataclasses.fields(constructor) if f.init and not f.kw_only]


@functools.cache
def derived(constructor: type, tag: str = "", name: str = "", required: tuple[str, ...] = ()) -> type[Derived]:
    """Return the section that builds ``constructor``.

    Args:
        constructor: a dataclass.
        tag: the key that holds ``name``, where a section chooses one of several constructors.
        name: of this one.
        required: keys that a YAML must say although the constructor has a default.
    """
    hints, described = get_type_hints(constructor, include_extras=True), descriptions(constructor)
    fields: dict[str, Any] = {tag: (Literal[name], ...)} if tag else {}
    for field in keys(constructor):
        default = ... if field.default is dataclasses.MISSING or field.name in required else field.default
        fields[field.name] = (_yaml_type(hints[field.name]), Field(default, description=described.get(field.name)))
    first = (inspect.getdoc(constructor) or "").split("\n\n")[0].split("; see")[0].rstrip(".") + "."
    with warnings.catch_warnings():  # the key ``schema`` has the name of a method of pydantic that nothing here calls
        warnings.simplefilter("ignore", UserWarning)
        title, doc = f"{constructor.__name__}Section", " ".join(first.split())
        made = create_model(title, __base__=Derived, __doc__=doc, **fields)
    made.constructor, made.tag = constructor, tag
    return made


def choice(known: Mapping[str, type], tag: str, own: type[Section] | None = None) -> Hint:
    """Return the type of a section that is one of several, looked up when there is a mapping to be one.

    Args:
        known: name -> constructor.
        tag: the key that holds the name.
        own: for a name ``module:attribute``, which is a user's.
    """

    def validated(value: object) -> Section:
        if isinstance(value, Section):
            return value
        name = value.get(tag) if isinstance(value, dict) else value
        if own is not None and isinstance(name, str) and ":" in name:
            return own.model_validate(value)
        if not isinstance(value, dict) or not isinstance(name, str) or name not in known:
            wanted = ", ".join(known) + (" or your own module:attribute" if own is not None else "")
            there = isinstance(value, dict) and tag not in value
            raise refused((f"must be one of {wanted}", (tag,)), value=None if there else name)
        return derived(known[name], tag, name).model_validate(value)

    return Annotated[Hint, PlainValidator(validated)]


_schedule = TypeAdapter[Derived](choice(SCHEDULES, "schedule"))


def schedule_section(value: object) -> Derived:
    """Return the section of a mapping with the key ``schedule``.

    Raises:
        ValidationError: of pydantic.
    """
    return _schedule.validate_python(value)


def descriptions(constructor: type) -> dict[str, str]:
    """Return what ``Args:`` of the docstrings of a class and its bases says about each argument.

    ``python -OO`` keeps no docstrings: its sections describe nothing, and are otherwise the same.
    """
    out: dict[str, str] = {}
    for cls in constructor.__mro__:
        text = cls.__dict__.get("__doc__") or ""
        found = re.search(r"\n\s*Args:\n(.*?)(?:\n\s*\n|\Z)", inspect.cleandoc(text) + "\n\n", re.DOTALL)
        for entry in re.split(r"\n(?=    \w)", found.group(1)) if found else []:
            name, _, rest = entry.strip().partition(":")
            sentence = " ".join(rest.split())
            # A symbol keeps its case: a in (0, 1].
            out.setdefault(
                name, sentence if sentence[1:2] in (" ", ",", ":", "̂") else sentence[:1].upper() + sentence[1:]
            )
    return out


def _yaml_type(hint: Hint) -> Hint:
    """The annotation in terms of what YAML can say: a function becomes a schedule's section, a dataclass its own."""
    kinds = alternatives(hint)
    plain = [kind for kind in map(_plain_type, kinds) if kind is not None]
    joined = reduce(or_, plain)
    if not any(get_origin(kind) is collections.abc.Callable for kind in kinds):
        return joined
    otherwise = TypeAdapter[object](joined, config=ConfigDict(strict=True, allow_inf_nan=False))

    def validated(value: object) -> object:
        return schedule_section(value) if isinstance(value, dict) else otherwise.validate_python(value)

    return Annotated[Any, PlainValidator(validated)]


def _plain_type(kind: Hint) -> Hint:
    """An alternative without functions, arrays and classes that only Python has; None for these."""
    origin = get_origin(kind)
    if kind is Any or kind in (float, int, str, bool, type(None)) or origin is Literal:
        return kind
    if origin is Annotated:
        return None if _plain_type(get_args(kind)[0]) is None else kind
    if origin is collections.abc.Mapping:
        return dict[str, Any]
    if origin in (list, tuple, collections.abc.Sequence):
        return list[Any]
    return derived(kind) if dataclasses.is_dataclass(kind) and isinstance(kind, type) else None
