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
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dpmcmc.config.named_code import PATTERN
from dpmcmc.errors import Hint, InputError, alternatives, meant, shown
from dpmcmc.samplers import SCHEDULES
from dpmcmc.samplers.optax_schedules import OPTAX, OptaxSchedule

#: Least and largest size of a number: float32 holds products of two.
_SMALLEST, _LARGEST = 1e-30, 1e15
_T = TypeVar("_T")


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

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    _sizes = field_validator("*")(of_a_size)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: object) -> object:
        closed = cls.model_config["extra"] == "forbid"
        for key in values if closed and isinstance(values, dict) else ():
            if key not in cls.model_fields:
                context = {"key": str(key), "meant": cls.meant(key), "known": ", ".join(cls.model_fields)}
                raise PydanticCustomError("about_key", "unknown key{meant}; known keys: {known}", context)
        return values

    @classmethod
    def meant(cls, key: object) -> str:
        """Return which key was meant, in brackets, or nothing."""
        return meant(key, cls.model_fields)


class OpenSection(Section):
    """A section whose further keys somebody else knows."""

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(of_a_size)]]


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
        return {key: _build_part(key, value) for key, value in self if key != self.tag}

    def built(self) -> Any:
        """Call the constructor with its keys.

        Raises:
            InputError: what the constructor refuses, about one of its keys.
        """
        return self.constructor(**self.arguments())


class OpenDerived(Derived, OpenSection):
    """A section derived from a constructor that takes further arguments by their names, and refuses wrong ones."""


def _build_part(key: str, value: Any) -> Any:
    if not isinstance(value, Derived):
        return value
    try:
        return value.built()
    except InputError as error:
        raise InputError(str(error), f"{key}.{error.about}") from None


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


#: Name of a user's own code.
OwnName: Hint = Annotated[str, Field(pattern=PATTERN, description="Your own module:attribute.")]


def choice(
    known: Mapping[str, type],
    tag: str,
    own: type[Section] | None = None,
    own_name: Hint = OwnName,
    words: str = "your own module:attribute",
) -> Hint:
    """Return the type of a section that is one of several; where some may be a user's own, a name alone is a section.

    Args:
        known: name -> constructor.
        tag: the key that holds the name.
        own: for a name ``module:attribute``, which is a user's, or a name with a colon in it of another kind.
        own_name, words: type of such a name, and what a refusal calls it.
    """

    # A colon tells a kind from a key in the place of an error.
    members: list[Hint] = [Annotated[derived(made, tag, name), Tag(f":{name}")] for name, made in known.items()]
    more = ""
    if own is not None:
        members.append(Annotated[own, Tag(":own")])
        more = f" or {words}"

    def kind_of(value: Any) -> str:
        name = dict(value)[tag]
        return f":{name}" if name in known else ":own"

    def checked(value: Any) -> Any:
        if isinstance(value, Section):
            return value
        if isinstance(value, str) and own is not None:
            value = {tag: value}
        name = value.get(tag) if isinstance(value, dict) else value
        is_own = own is not None and isinstance(name, str) and ":" in name
        if not isinstance(value, dict) or (not is_own and (not isinstance(name, str) or name not in known)):
            given = "" if isinstance(value, dict) and tag not in value else f", got {shown(name)}"
            context = {"key": tag, "known": ", ".join(known) + more, "meant": meant(name, known), "given": given}
            raise PydanticCustomError("about_key", "must be one of {known}{meant}{given}", context)
        return value

    section: Hint = Annotated[reduce(or_, members), Discriminator(kind_of)]
    written: Hint = section if own is None else section | own_name
    return Annotated[section, BeforeValidator(checked, json_schema_input_type=written)]


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
    plain = reduce(or_, [kind for kind in map(_plain_type, kinds) if kind is not None])
    if not any(get_origin(kind) is collections.abc.Callable for kind in kinds):
        return plain

    def kind_of(value: object) -> str:
        return ":schedule" if isinstance(value, dict | Derived) or says_schedule(value) else ":value"

    return Annotated[
        Annotated[plain, Tag(":value")] | Annotated[ScheduleSection, Tag(":schedule")],
        Discriminator(kind_of),
    ]


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


def says_schedule(value: object) -> bool:
    """Whether a value of a YAML says a schedule: its section, or the name of one of optax."""
    named = value.get("name", "") if isinstance(value, dict) else value
    of_optax = isinstance(named, str) and named.startswith(OPTAX)
    return of_optax or (isinstance(value, dict) and "schedule" in value)


def _with_schedule(value: object) -> object:
    """A schedule of optax may be said as its ``name``."""
    if isinstance(value, dict) and "schedule" not in value and says_schedule(value):
        return {"schedule" if key == "name" else key: part for key, part in value.items()}
    return value


_OptaxName: Hint = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^{OPTAX}\\w+$"})]


class OptaxSection(derived(OptaxSchedule)):  # type: ignore[misc]
    """A schedule of optax, with its arguments."""

    schedule: _OptaxName = Field(description="``optax:NAME``, a function of optax that makes a schedule.")


_SCHEDULES: Hint = choice(SCHEDULES, "schedule", OptaxSection, _OptaxName, "a schedule of optax, optax:NAME")
#: A schedule of the step size.
ScheduleSection: Hint = Annotated[_SCHEDULES, BeforeValidator(_with_schedule, json_schema_input_type=_SCHEDULES)]
#: Reads one.
SCHEDULE = TypeAdapter[Derived](ScheduleSection)
