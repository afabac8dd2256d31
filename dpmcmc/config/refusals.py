"""Refusal of a config, in one sentence that begins with its YAML path.

A path is never guessed. pydantic says where in the mapping a value stands; a constructor says which of its arguments
its refusal is about (``InputError.about``), and whoever called it knows the section that the arguments came from.
The constructors and ``model.py`` say which values are refused.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

import pydantic
from pydantic import (
    BaseModel,
)
from pydantic_core import ErrorDetails

from dpmcmc.errors import InputError
from dpmcmc.storage.cache import UnsafeCache


class ConfigError(InputError):
    """One sentence for the person who wrote the YAML; ``about`` is the YAML path."""

    @classmethod
    def at(cls, path: str, said: str) -> ConfigError:
        """Return the error that says this of a YAML path."""
        return cls(f"{path}: {said}.", path)


#: Errors whose message already names what they are about.
SAID_ALREADY = (ConfigError, UnsafeCache)


@contextlib.contextmanager
def with_yaml_path(sections: Mapping[str, BaseModel | None], otherwise: str) -> Iterator[None]:
    """Raise an error inside with the YAML path of the argument that it is about.

    Args:
        sections: name -> section whose keys are arguments of the calls inside, the nearest first.
        otherwise: path of a refusal that is about none of their keys.

    Raises:
        InputError: see :func:`refusal`; those of ``SAID_ALREADY`` are raised as they are.
    """
    try:
        yield
    except SAID_ALREADY:
        raise
    except InputError as error:
        raise refusal(error, sections, otherwise) from None


def refusal(error: InputError, sections: Mapping[str, BaseModel | None], otherwise: str) -> InputError:
    """Return what :func:`with_yaml_path` raises: a ConfigError, or one of the same type for an error with a section."""
    key = error.about.partition(".")[0]
    owners = [
        name
        for name, section in sections.items()
        if section is not None and (key in type(section).model_fields or key in (section.model_extra or {}))
    ]
    if owners:
        path = f"{owners[0]}.{error.about}"
    elif error.about in sections:
        path = error.about
    else:
        path = error.section or otherwise
    said = str(error).removesuffix(".")
    for named in (path, error.about):
        said = said.removeprefix(f"{named}: ") if named else said
    return (type(error) if error.section else ConfigError)(f"{path}: {said}.", path)


def invalid(error: pydantic.ValidationError, values: dict) -> ConfigError:
    """Return the first of pydantic's errors as one sentence with its YAML path."""
    texts: dict[str, list[str]] = {}
    given = ""
    for one in error.errors(include_url=False):
        path = _yaml_path(one["loc"], values)
        first = not texts
        texts.setdefault(path, []).append(_plain(one))
        if first and one["type"] not in ("refused", "missing") and not _is_whole_section(one):
            given = f", got {one['input']!r}"
    (path, said), *others = texts.items()
    more = f" ({len(others)} more problem{'s' * (len(others) > 1)} after this one)" if others else ""
    # Alternatives of one value (a number, auto, a schedule) have one error each.
    return ConfigError.at(path or "the file", f"{' or '.join(dict.fromkeys(said))}{given}{more}")


_SYMBOLS = {
    "greater_than": ">",
    "greater_than_equal": ">=",
    "less_than": "<",
    "less_than_equal": "<=",
}
_SAID = {"missing": "this key is required", "model_type": "must be a mapping"}
#: Missing key -> values that it may have, where the refusal names them.
_MAY_SAY = {"privacy": "; say epsilon and delta, or null for a run without a guarantee"}


def _plain(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind in _SYMBOLS:
        (bound,) = error["ctx"].values()
        return f"input should be {_SYMBOLS[kind]} {bound:g}"
    message = _SAID.get(kind) or re.sub(r"^(Value error|Assertion failed), ", "", error["msg"])
    more = _MAY_SAY.get(str(error["loc"][-1]), "") if kind == "missing" else ""
    return message[0].lower() + message[1:] + more


def _is_whole_section(error: ErrorDetails) -> bool:
    """Whether the error is about a whole section, so that others about its parts are left out."""
    return error["type"] == "value_error" and isinstance(error["input"], dict)


def _yaml_path(loc: tuple[int | str, ...], values: object) -> str:
    """Return pydantic's location without its names for alternatives of a type, which are not in the YAML."""
    path: list[str] = []
    place = values
    for number, part in enumerate(loc):
        if isinstance(place, dict) and part in place:
            path.append(str(part))
            place = place[part]
        elif isinstance(place, dict) and number == len(loc) - 1:  # the key that is not there
            path.append(str(part))
    return ".".join(path)
