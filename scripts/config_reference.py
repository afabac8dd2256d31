"""Write docs/config.md from the constructors that a config's sections are made of; ``scripts/docs.sh`` calls it.

python scripts/config_reference.py          write
python scripts/config_reference.py --check  make the page and write nothing
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import re
import sys
import types
import typing
from pathlib import Path

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from dpmcmc import data
from dpmcmc.config import model as config
from dpmcmc.config.run_section import Devices
from dpmcmc.config.sections import Derived, derived
from dpmcmc.errors import alternatives
from dpmcmc.samplers import SAMPLERS, SCHEDULES, OptaxSchedule
from dpmcmc.targets import TARGETS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "config.md"
_NAMES = {float: "number", int: "integer", str: "text", bool: "true or false", type(None): "null"}
_SYMBOLS = {Gt: ">", Ge: "≥", Lt: "<", Le: "≤"}


def sections() -> dict[str, list[type[BaseModel]]]:
    """Heading -> the sections that stand below it."""

    def each(known: typing.Mapping[str, type], tag: str = "name") -> list[type[BaseModel]]:
        return [derived(constructor, tag, name) for name, constructor in known.items()]

    return {
        "data": [config.DataSection, derived(data.Schema)],
        "target": [*each(TARGETS), config.CustomSection],
        "sampler": each(SAMPLERS),
        "step_size schedules": [*each(SCHEDULES, "schedule"), derived(OptaxSchedule)],
        "mechanism": each(config.ONE_SHOT),
        "sampling": each(config.SCHEMES, "scheme"),
        "metric": [config.MetricSection],
        "privacy": [config.PrivacySection],
        "run": [config.RunSection, derived(Devices)],
    }


def type_name(hint: object) -> str:
    """A type as a person would write it in YAML; empty for one that YAML cannot say."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        values = ", ".join(str(a) for a in typing.get_args(hint))
        return f"{{{values}}}" if "," in values else values
    if origin is typing.Annotated:
        kind, *bounds = typing.get_args(hint)
        limits = [
            f"{_SYMBOLS[type(b)]} {getattr(b, type(b).__name__.lower()):.10g}" for b in bounds if type(b) in _SYMBOLS
        ]
        return " ".join([type_name(kind), ", ".join(limits)]).strip()
    if origin in (typing.Union, types.UnionType):
        names = [type_name(a) for a in alternatives(hint)]
        return " or ".join(dict.fromkeys(name for name in names if name))
    if origin in (list, tuple, collections.abc.Sequence):
        return "list"
    if origin in (collections.abc.Callable, collections.abc.Mapping) or dataclasses.is_dataclass(hint):
        return "mapping"
    return _NAMES.get(hint, "")  # type: ignore[call-overload]


def entry(section: type[BaseModel], name: str) -> str:
    """One key: its type, its default, and the first sentence of its description."""
    field = section.model_fields[name]
    hints = typing.get_type_hints(section.constructor, include_extras=True) if issubclass(section, Derived) else {}
    if issubclass(section, Derived) and not field.description:
        raise TypeError(f"{section.constructor.__name__}: document {name} in the docstring's Args")
    kind = type_name(hints.get(name, field.annotation))
    if field.default is PydanticUndefined:
        given = "required"
    elif field.default in (None, ""):
        given, kind = "optional", kind.removesuffix(" or null")
    else:
        given = f"default {field.default}"
    about = ", ".join(filter(None, (kind, given)))
    first_sentence = re.split(r"(?<=\.)\s+(?=[A-Z`])", field.description or "")[0]
    return f"* `{name}` ({about}): {first_sentence}"


def name_of(model: type[BaseModel]) -> str:
    """Name by which a config chooses a section; empty for one that has none."""
    if not issubclass(model, Derived) or not model.tag:
        return ""
    return str(typing.get_args(model.model_fields[model.tag].annotation)[0])


def keys(models: list[type[BaseModel]]) -> dict[type[BaseModel], list[str]]:
    """Entries of each section of a heading, without the key that names the section."""
    tags = {model: model.tag if issubclass(model, Derived) else "" for model in models}
    return {model: [entry(model, name) for name in model.model_fields if name != tags[model]] for model in models}


def title(model: type[BaseModel]) -> str:
    """First line of a section: its name in a config, and what it is."""
    text = " ".join((model.__doc__ or "").split())
    name = name_of(model)
    return f"`{model.tag}: {name}`. {text}" if issubclass(model, Derived) and name else text


def part(models: list[type[BaseModel]]) -> list[str]:
    """Lines of one heading; a key that several of its sections share stands once, at its top."""
    found = keys(models)
    named = [model for model in models if name_of(model)]
    counts = collections.Counter(line for lines in found.values() for line in lines)
    shared = [line for line, count in counts.items() if count > 1]
    lines: list[str] = []
    for line in shared:
        users = [model for model in named if line in found[model]]
        names = ", ".join(f"`{name_of(model)}`" for model in users)
        lines.append(line if users == named else f"{line} ({names})")
    lines.append("")
    for model, own in found.items():
        lines += [title(model), "", *(line for line in own if line not in shared), ""]
    return lines


def page() -> str:
    """The whole page."""
    lines = [
        "# Configuration reference",
        "",
        "This page is for somebody who writes a YAML by hand and looks up a key. It is made by",
        "`python scripts/config_reference.py` from the constructors that the sections build.",
        "Unknown keys are errors. Values of `--set a.b=VALUE` are YAML; `1e-5` is a number. Another scheme, sampler,",
        "target or mechanism by `--set` takes the keys of the old one away, and the command says which. The",
        "[Python reference](reference/index.md) has the full text of each argument.",
        "",
        "`name` (required) names the run folder. `target` and `sampler` may be `my_module:attribute`",
        "([extending](extending.md)).",
        "",
        "An editor with yaml-language-server, such as VS Code with its YAML extension, completes and explains keys",
        "and marks a misspelt one. `dpmcmc configs --schema` prints the JSON schema that it needs. The",
        "first line of a config beside that file names it: `# yaml-language-server: $schema=schema.json`. Shipped",
        "configs have this line; their schema is `configs/schema.json`. It checks each section;",
        "`dpmcmc plan` checks which sections go together.",
        "",
        f"Registered data sets: {', '.join(data.NAMES)}.",
        "",
    ]
    for heading, models in sections().items():
        lines += [f"## {heading}", "", *part(models)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def main() -> int:
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
