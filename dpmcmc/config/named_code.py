"""A user's code that a config names as ``module:attribute``: it is imported, checked, and then called.

A config may name any module, so a name alone must not lead to a call: ``os:system`` would run a command. Only a class
with the methods of a target or a sampler is called, or a function whose return annotation is such a class. An import
runs the module's code, so a config that somebody else may have written imports nothing until the user allows the
module, which ``file.py`` sees to.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpmcmc.errors import Hint, InputError, alternatives
from dpmcmc.privacy.accounting.own import declared, returned
from dpmcmc.samplers.base import PROTOCOL
from dpmcmc.targets.base import REQUIRED as TARGET_METHODS

#: ``module:attribute``, both of identifiers with dots between them.
PATTERN = r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*$"
#: Methods of the class that a section is made with.
REQUIRED: dict[str, tuple[str, ...]] = {"target": TARGET_METHODS, "sampler": PROTOCOL}
#: Example of a function's return annotation.
_EXAMPLES = {"target": "dpmcmc.targets.Target", "sampler": "dpmcmc.samplers.Sampler"}


def find_code(section: str, name: str) -> Callable[..., Any]:
    """The class or function that ``module:attribute`` names.

    Args:
        section: ``target`` or ``sampler``, which it must declare that it makes.
        name: of the form ``PATTERN``.

    Raises:
        ValueError: it cannot be imported, or declares no such thing; nothing was called.
    """
    item = import_named(name)
    missing = _missing(section, item)
    if missing:
        raise InputError(
            f"{missing}, so it is not called; name a class with the methods of the {section.title()} protocol, or "
            f"annotate the function that makes one with its type, for example -> {_EXAMPLES[section]}"
        )
    return item


def import_named(name: str) -> Any:
    """Import what ``module:attribute`` names.

    Raises:
        ValueError: it cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    own = module_name.partition(".")[0] != "dpmcmc"
    # A module of this library may look for one that is not installed, and must not find it in this folder.
    if own and not {"", folder} & set(sys.path):
        sys.path.append(folder)  # at the end of the path, so that no file of this folder replaces a library's module
    try:
        item: Any = importlib.import_module(module_name)
        before = ""
        for part in attribute.split("."):
            if before and not inspect.isclass(item):
                raise AttributeError(f"{before} is no class, and only a class may stand before a dot")
            item = getattr(item, part)
            before = part
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise InputError(
            f"cannot be imported ({describe_error(error)}); it is looked for from the current folder"
        ) from None
    return item


def find_calibrator(name: str) -> Callable[..., Any]:
    """The function that ``module:attribute`` names, which must say that it returns a number or an array of them.

    Raises:
        ValueError: it cannot be imported, or says no such thing; nothing was called.
    """
    item = import_named(name)
    if declared(item) not in (float, np.ndarray):
        raise InputError(
            "is no function that says that it returns a noise multiplier, so it is not called; write for example "
            "def mine(queries, promise) -> float"
        )
    return item


def _missing(section: str, item: object) -> str:
    """Return why an object does not declare itself a target or a sampler; empty where it does."""
    if inspect.isclass(item):
        lacks = _lacks(section, item)
        return f"is a class that makes no {section}: it lacks {', '.join(lacks)}" if lacks else ""
    if not inspect.isfunction(item):
        return f"is a {type(item).__name__}, neither a class nor a function that is written in Python"
    try:
        made = returned(item)
    except Exception as error:  # an annotation may be any expression
        return f"is a function whose return annotation cannot be read ({describe_error(error)})"
    if made is inspect.Signature.empty:
        return "is a function that does not say what it returns"
    made = typing.get_origin(made) or made
    if not inspect.isclass(made):
        return f"is a function that returns {made}, which is no class"
    lacks = _lacks(section, made)
    return f"is a function that returns a {made.__name__}, which lacks {', '.join(lacks)}" if lacks else ""


def types_of_keys(factory: Callable[..., Any]) -> dict[str, Hint]:
    """Return the annotations that name numbers, texts and truth values alone, by argument."""
    of_fields = inspect.isclass(factory) and dataclasses.is_dataclass(factory)
    try:
        hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) and not of_fields else factory)
    except Exception:  # an annotation may be any expression
        return {}
    plain = (int, float, str, bool, type(None))
    return {name: hint for name, hint in hints.items() if all(kind in plain for kind in alternatives(hint))}


def _lacks(section: str, kind: type) -> list[str]:
    """Return what instances of a class lack; a dataclass's field without a default is no attribute of its class."""
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else ()
    return [name for name in REQUIRED[section] if not hasattr(kind, name) and name not in fields]


def describe_error(error: BaseException) -> str:
    """Return the text of somebody else's exception, with its kind where that is needed to understand it."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{error}".removesuffix(": ").removesuffix(".")
