"""The words that every kind of plan has for itself."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType

import numpy as np

from dpmcmc.privacy.accounting.guarantee import Guarantee


def guaranteed(guarantee: Guarantee, secret: bool) -> str:
    """Return what a plan guarantees, in a sentence; ``secret`` as in ``Plan.to_json``."""
    if secret:
        return str(guarantee)
    return f"NONE: insecure_noise_seed makes the noise known (secret noise would give {guarantee})"


def labelled(label: str, sentence: str) -> list[tuple[str, str]]:
    """Return a line of a plan's description; none where nothing is to be said."""
    return [(label, sentence)] if sentence else []


def html_table(rows: Iterable[Sequence[str]], titles: Sequence[str] = ()) -> str:
    """Return rows of text, the first cell of each a heading, as an HTML table for notebooks."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
    cells = (
        f"<th>{html.escape(name)}</th>" + "".join(f"<td>{html.escape(s)}</td>" for s in row) for name, *row in rows
    )
    return f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"


# ----------------------------------------------------------------------------------------------------
# Sections of a config: what made each part of a plan, and with which settings. ``plan.json`` holds them.

#: Values that a section holds as they are.
_PLAIN = (bool, int, float, str)


def section(made: object, known: Mapping[str, type] | None = None) -> dict[str, object]:
    """Return the section of a config that makes an object.

    Args:
        made: for example a sampler. A dataclass's arguments are keys; one that is None is left out.
        known: classes by the names that a YAML gives them; another class is named ``module:attribute``.
    """
    kind = type(made)
    name = next((name for name, one in (known or {}).items() if one is kind), f"{kind.__module__}:{kind.__qualname__}")
    return {"name": name} | settings(made)


def settings(made: object) -> dict[str, object]:
    """Return the arguments of a dataclass that are not None, as JSON takes them; none of another object."""
    if not dataclasses.is_dataclass(made):
        return {}
    values = {field.name: getattr(made, field.name) for field in dataclasses.fields(made) if field.init}
    return {name: _said(value) for name, value in values.items() if value is not None}


def _said(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_said(part) for part in value]
    if isinstance(value, FunctionType):
        return f"{value.__module__}:{value.__qualname__}"
    return section(value)
