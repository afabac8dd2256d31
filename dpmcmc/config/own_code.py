"""Code of a user's own that a config names as ``module:attribute``: imported, checked, and only then called.

A config may name any module, so a name alone must not make a call: ``os:system`` would run a command. Called is a class
that has the methods of a target or a sampler, or a function whose return annotation is such a class. Importing runs the
module's code all the same, so a config that may be somebody else's imports nothing until the user names the module.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from dpmcmc.errors import InputError
from dpmcmc.samplers.base import PROTOCOL

#: ``module:attribute``, both of identifiers with dots between them.
PATTERN = r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*$"
#: Methods of the class that a section is made with.
REQUIRED: dict[str, tuple[str, ...]] = {"target": ("init", "log_prior", "log_likelihood"), "sampler": PROTOCOL}
#: Example of a function's return annotation.
_EXAMPLES = {"target": "dpmcmc.targets.Target", "sampler": "dpmcmc.samplers.Sampler"}
#: Files that a run leaves in its folder beside its config.
_MARKS = ("plan.json", "privacy.json", "metrics.json", "draws.nc", "confidential", "checkpoint")


def in_run_folder(path: Path) -> bool:
    """Whether a config lies in a run folder, or below one, and so may have been written by somebody else."""
    ways = [list(p.parents) for p in (path.absolute(), path.resolve())]  # through links, and past them
    if any(_holds(own, _MARKS) for own, *_ in ways):
        return True
    # Further up, names that other programs use too count only beside a run's config.
    above = dict.fromkeys(folder for _, *folders in ways for folder in folders)
    return any(
        _holds(folder, ("privacy.json",)) or (_holds(folder, ("config.yaml",)) and _holds(folder, _MARKS))
        for folder in above
    )


def _holds(folder: Path, names: Collection[str]) -> bool:
    return any(os.path.lexists(folder / name) for name in names)


def foreign(names: dict[str, str], allowed: Collection[str]) -> Iterator[tuple[str, str]]:
    """(section, module) of the modules outside this library that are not in ``allowed``.

    Args:
        names: section -> ``module:attribute``.
        allowed: names of modules.
    """
    for section, name in names.items():
        module = name.partition(":")[0]
        if module.partition(".")[0] != "dpmcmc" and module not in allowed:
            yield section, module


def found(section: str, name: str) -> Callable[..., Any]:
    """The class or function that ``module:attribute`` names.

    Args:
        section: ``target`` or ``sampler``, which it must declare that it makes.
        name: of the form ``PATTERN``.

    Raises:
        ValueError: it cannot be imported, or declares no such thing; nothing was called.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)  # last, so that no file of this folder replaces a library's module
    try:
        place: Any = importlib.import_module(module_name)
        *outer, last = attribute.split(".")
        for part in outer:
            place = getattr(place, part)
            if not inspect.isclass(place):
                raise AttributeError(f"{part} is no class, and only a class may stand before a dot")
        item = getattr(place, last)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise InputError(f"cannot be imported ({said(error)}); it is looked for from the current folder") from None
    missing = _missing(section, item)
    if missing:
        raise InputError(
            f"{missing}, so it is not called; name a class with the methods of the {section.title()} protocol, or "
            f"annotate the function that makes one with its type, for example -> {_EXAMPLES[section]}"
        )
    return item


def _missing(section: str, item: object) -> str:
    """Why an object does not declare itself; empty where it does."""
    if inspect.isclass(item):
        lacks = _lacks(section, item)
        return f"is a class that makes no {section}: it lacks {', '.join(lacks)}" if lacks else ""
    if not inspect.isfunction(item):
        return f"is a {type(item).__name__}, neither a class nor a function that is written in Python"
    made = item.__annotations__.get("return", inspect.Signature.empty)
    if made is inspect.Signature.empty:
        return "is a function that does not say what it returns"
    try:
        stub = types.SimpleNamespace(__annotations__={"return": made})
        made = typing.get_type_hints(stub, inspect.unwrap(item).__globals__)["return"]
    except Exception as error:  # an annotation may be any expression
        return f"is a function whose return annotation cannot be read ({said(error)})"
    made = typing.get_origin(made) or made
    if not inspect.isclass(made):
        return f"is a function that returns {made}, which is no class"
    lacks = _lacks(section, made)
    return f"is a function that returns a {made.__name__}, which lacks {', '.join(lacks)}" if lacks else ""


def _lacks(section: str, kind: type) -> list[str]:
    """Return what instances of a class lack; a dataclass's field without a default is no attribute of its class."""
    fields = getattr(kind, "__dataclass_fields__", {})
    return [name for name in REQUIRED[section] if not hasattr(kind, name) and name not in fields]


def said(error: BaseException) -> str:
    """Return the text of somebody else's exception, with its kind where that is needed to understand it."""
    kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{kind}{error}".removesuffix(": ").removesuffix(".")
