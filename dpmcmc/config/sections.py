"""Sections of a YAML, derived from the constructors that they call: a new key changes the constructor alone.

A key is a positional field of the dataclass. A field that data or plan fill in is ``kw_only`` and is no key. Types and
bounds come from the annotations, which the constructor checks too (:func:`dpmcmc.errors.check_fields`). Descriptions
come from the docstring's ``Args:``, and defaults from the fields.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError

from dpmcmc.config.named_code import PATTERN
from dpmcmc.errors import Hint, InputError, alternatives, meant
from dpmcmc.samplers import SCHEDULES
from dpmcmc.samplers.optax_schedules import OPTAX, OptaxSchedule

#: Least and largest size of a number: float32 holds products of two.
_SMALLEST, _LARGEST = 1e-30, 1e15
_T = TypeVar("_T")
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def of_a_size(value: _T) -> _T:
    """Return the value.

    Raises:
        InputError: a number other than 0 beyond these sizes.
    """
    if isinstance(value, int | float) and value != 0 and not _SMALLEST <= abs(value) <= _LARGEST:
        raise InputError(f"input should be 0 or of a size between {_SMALLEST:g} and {_LARGEST:g}")
    return value


class Section(BaseModel):
    """A mapping of known keys, its numbers 0 or of a size that a run can compute with."""

    model_config = _STRICT

    _sizes = field_validator("*")(of_a_size)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: object) -> object:
        given = values if isinstance(values, dict) and cls.model_config["extra"] == "forbid" else {}
        unknown = [key for key in given if key not in cls.model_fields]
        if unknown:
            known = ", ".join(cls.model_fields)
            raise refused(*((f"unknown key{cls.meant(key)}; known keys: {known}", (key,)) for key in unknown))
        return values

    @model_validator(mode="after")
    def _extra_sizes(self) -> Self:
        for key, value in (self.model_extra or {}).items():
            try:
                of_a_size(value)
            except InputError as error:
                raise refused((str(error), (key,)), value=value) from None
        return self

    @classmethod
    def meant(cls, key: object) -> str:
        """Return which key was meant, in brackets, or nothing."""
        return meant(key, cls.model_fields)


class Derived(Section):
    """A section derived from a constructor.

    Attributes:
        constructor: what it builds.
        tag: key that names this constructor among others; empty where there is no choice.
    """

    constructor: ClassVar[type]
    tag: ClassVar[str] = ""

    def arguments(self) -> dict[str, Any]:
        """Arguments of the constructor; a section within this one is built."""
        values = {key: value for key, value in self if key != self.tag}
        return {key: _part(key, value) if isinstance(value, Derived) else value for key, value in values.items()}

    def built(self, **facts: Any) -> Any:
        """Call the constructor with its keys and with ``facts``.

        Raises:
            InputError: what the constructor refuses, about one of its keys.
        """
        return self.constructor(**self.arguments(), **facts)


class OpenDerived(Derived):
    """A section derived from a constructor that takes further arguments by their names, and refuses wrong ones."""

    model_config = ConfigDict(extra="allow")


def _part(key: str, section: Derived) -> Any:
    try:
        return section.built()
    except InputError as error:
        raise InputError(str(error), f"{key}.{error.about}") from None


def refused(*problems: tuple[str, tuple[str, ...]], value: object = None) -> ValidationError:
    """Return an error for a validator to raise, from (message, keys that lead to its place) of each problem.

    Args:
        value: given, where the message leaves that to say.
    """
    kind = "refused" if value is None else "wrong"
    lines: list[InitErrorDetails] = [
        {
            "type": PydanticCustomError(kind, "{text}", {"text": text}),
            "loc": path,
            "input": value,
        }
        for text, path in problems
    ]
    return ValidationError.from_exception_data("section", lines)


def keys(constructor: type) -> list[dataclasses.Field]:
    """Return the fields of a dataclass that are YAML keys."""
    return [f for f in dataclasses.fields(constructor) if f.init and not f.kw_only and "rest" not in f.metadata]


@functools.cache
def derived(constructor: type, tag: str = "", name: str = "", required: tuple[str, ...] = ()) -> type[Derived]:
    """Return the section that builds ``constructor``.

    Args:
        constructor: a dataclass.
        tag: the key that holds ``name``, where a section chooses one of several constructors.
        name: of this one.
        required: keys that a YAML must give although the constructor has a default.
    """
    hints = get_type_hints(constructor, include_extras=True)
    described = descriptions(constructor)
    fields: dict[str, Any] = {tag: (Literal[name], ...)} if tag else {}
    for field in keys(constructor):
        default = ... if field.default is dataclasses.MISSING or field.name in required else field.default
        fields[field.name] = (
            _yaml_type(hints[field.name]),
            Field(default, description=described.get(field.name)),
        )
    first = (inspect.getdoc(constructor) or "").split("\n\n")[0].split("; see")[0].rstrip(".") + "."
    with warnings.catch_warnings():  # the key ``schema`` hides a method of pydantic that is not used here
        warnings.simplefilter("ignore", UserWarning)
        title = f"{constructor.__name__}Section"
        doc = " ".join(first.split())
        rest = any("rest" in field.metadata for field in dataclasses.fields(constructor))
        base = OpenDerived if rest else Derived
        made = create_model(title, __base__=base, __doc__=doc, **fields)
    made.constructor = constructor
    made.tag = tag
    return made


#: JSON schema of the name of a user's own code.
OWN_NAME = {
    "type": "string",
    "pattern": PATTERN,
    "description": "Your own module:attribute.",
}


class InEditors:
    """JSON schema of a value that a function of ours validates, of which pydantic knows nothing.

    Args:
        schema: makes it; ``handler`` gives that of a pydantic schema.
    """

    def __init__(self, schema: Callable[[GetJsonSchemaHandler], dict[str, Any]]) -> None:
        self.schema = schema

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema, as pydantic asks for it."""
        return self.schema(handler)


def choice(
    known: Mapping[str, type],
    tag: str,
    own: type[Section] | None = None,
    others: Mapping[str, Any] = OWN_NAME,
) -> Hint:
    """Return the type of a section that is one of several, looked up when there is a mapping to be one.

    Args:
        known: name -> constructor.
        tag: the key that holds the name.
        own: for a name ``module:attribute``, which is a user's, or a name with a colon in it of another kind.
        others: JSON schema of such a name.
    """

    def validated(value: object) -> Section:
        if isinstance(value, Section):
            return value
        name = value.get(tag) if isinstance(value, dict) else value
        if own is not None and isinstance(name, str) and ":" in name:
            return own.model_validate(value)
        if not isinstance(value, dict) or not isinstance(name, str) or name not in known:
            other = others["description"].removesuffix(".")
            more = "" if own is None else f" or {other[0].lower()}{other[1:]}"
            wanted = ", ".join(known) + more
            there = isinstance(value, dict) and tag not in value
            raise refused(
                (f"must be one of {wanted}{meant(name, known)}", (tag,)),
                value=None if there else name,
            )
        return derived(known[name], tag, name).model_validate(value)

    def schema(handler: GetJsonSchemaHandler) -> dict[str, Any]:
        named: list[tuple[dict[str, Any], type[Section]]] = [
            ({"const": name}, derived(made, tag, name)) for name, made in known.items()
        ]
        names = [const | {"description": section.__doc__} for const, section in named]
        if own is not None:
            names.append(dict(others))
            named.append((dict(others), own))
        mapping = {
            "type": "object",
            "required": [tag],
            "properties": {tag: {"anyOf": names}},
            "allOf": [
                {
                    "if": {"properties": {tag: name}, "required": [tag]},
                    "then": handler(section.__pydantic_core_schema__),
                }
                for name, section in named
            ],
        }
        return mapping if own is None else {"anyOf": [mapping, dict(others)]}

    return Annotated[Hint, PlainValidator(validated), InEditors(schema)]


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
                name,
                sentence if sentence[1:2] in (" ", ",", ":", "̂") else sentence[:1].upper() + sentence[1:],
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
        return (
            schedule_section(value)
            if isinstance(value, dict) or says_schedule(value)
            else otherwise.validate_python(value)
        )

    def schema(handler: GetJsonSchemaHandler) -> dict[str, Any]:
        *_, of_schedules = get_args(_SCHEDULE)
        return {"anyOf": [handler(otherwise.core_schema), of_schedules.schema(handler)]}

    return Annotated[Any, PlainValidator(validated), InEditors(schema)]


def _plain_type(kind: Hint) -> Hint:
    """Return an alternative of a type; None for functions, arrays and classes, which no YAML holds."""
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


#: JSON schema of the name of a schedule of optax.
_OPTAX_NAME = {
    "type": "string",
    "pattern": f"^{OPTAX}\\w+$",
    "description": f"A schedule of optax, {OPTAX}NAME.",
}
_SCHEDULE = choice(SCHEDULES, "schedule", derived(OptaxSchedule), _OPTAX_NAME)
_schedule = TypeAdapter[Derived](_SCHEDULE)


def says_schedule(value: object) -> bool:
    """Whether a value of a YAML says a schedule: its section, or the name of one of optax."""
    named = value.get("name", "") if isinstance(value, dict) else value
    of_optax = isinstance(named, str) and named.startswith(OPTAX)
    return of_optax or (isinstance(value, dict) and "schedule" in value)


def schedule_section(value: object) -> Derived:
    """Return the section of a mapping with the key ``schedule``, or with a schedule of optax as its ``name``.

    Raises:
        ValidationError: of pydantic.
    """
    if says_schedule(value):
        mapping = dict(value) if isinstance(value, dict) else {"name": value}
        if "schedule" not in mapping:
            mapping["schedule"] = mapping.pop("name")
        value = mapping
    return _schedule.validate_python(value)
