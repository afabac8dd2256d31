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
from pydantic import BaseModel
from pydantic_core import ErrorDetails

from dpmcmc.config.named_code import PATTERN
from dpmcmc.errors import InputError, meant, shown
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


def invalid(error: pydantic.ValidationError, values: object) -> ConfigError:
    """Return pydantic's errors as one sentence, each with its YAML path; alternatives of one value are one error."""
    said: dict[str, list[str]] = {}
    given: dict[str, str] = {}
    for one in error.errors(include_url=False):
        path = ".".join([*_yaml_path(one["loc"], values), *_key_within(one)]) or "the file"
        said.setdefault(path, []).append(_plain(one))
        if one["type"] not in ("about_key", "missing") and not _is_whole_section(one):
            given[path] = f", got {shown(one['input'])}"
    problems = [f"{path}: {_joined(each)}{given.get(path, '')}" for path, each in said.items()]
    more = len(problems) - MOST_PROBLEMS
    rest = f" ({more} more problem{'s' * (more > 1)} after these)" if more > 0 else ""
    return ConfigError(f"{'; '.join(problems[:MOST_PROBLEMS])}{rest}.", next(iter(said)))


def _joined(said: list[str]) -> str:
    """Return alternatives of one value as one clause."""
    first, *others = dict.fromkeys(said)
    return " or ".join([first, *(one.removeprefix("input should be ") for one in others)])


#: Problems that one sentence tells.
MOST_PROBLEMS = 3
_SYMBOLS = {
    "greater_than": ">",
    "greater_than_equal": ">=",
    "less_than": "<",
    "less_than_equal": "<=",
}
_WORD = re.compile("'([^']*)'")
_SAID = {"missing": "this key is required", "model_type": "must be a mapping"}
#: Missing key -> values that it may have, where the refusal names them.
_MAY_SAY = {"privacy": "; say epsilon and delta, or null for a run without a guarantee"}


def _key_within(error: ErrorDetails) -> list[str]:
    """Return the key of a section that its error is about, where the section itself has found it."""
    return [str(error["ctx"]["key"])] if error["type"] == "about_key" else []


def _plain(error: ErrorDetails) -> str:
    kind = error["type"]
    if kind in _SYMBOLS:
        (bound,) = error["ctx"].values()
        return f"input should be {_SYMBOLS[kind]} {bound:g}"
    if kind == "literal_error":
        near = meant(error["input"], _WORD.findall(error["ctx"]["expected"]))
        return f"input should be {error['ctx']['expected']}{near}"
    if kind == "string_pattern_mismatch" and error["ctx"]["pattern"] == PATTERN:
        return "input should be your own module:attribute"
    message = _SAID.get(kind) or re.sub(r"^(Value error|Assertion failed), ", "", error["msg"])
    more = _MAY_SAY.get(str(error["loc"][-1]), "") if kind == "missing" else ""
    return message[0].lower() + message[1:] + more


def _is_whole_section(error: ErrorDetails) -> bool:
    """Whether the error is about a whole section, so that others about its parts are left out."""
    return error["type"] == "value_error" and isinstance(error["input"], dict)


def _yaml_path(loc: tuple[int | str, ...], values: object) -> list[str]:
    """Return pydantic's location without its names for alternatives of a type, which are not in the YAML."""
    path: list[str] = []
    place = values
    for number, part in enumerate(loc):
        if not isinstance(place, dict) or str(part).startswith(":"):
            continue
        if part in place or number == len(loc) - 1:  # or the key that is not there
            path.append(str(part))
            place = place.get(part)
    return path
