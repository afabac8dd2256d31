"""YAML of configs, written: a text that would be read as a number is quoted.

It is read by ``yaml_reading.py``.
"""

from __future__ import annotations

import re

import yaml

from dpmcmc.errors import printable

_NUMBER = r"[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?"
#: (tag, pattern, first characters) of what is no text where it has no quotes: what JSON has too, and decimal numbers.
RESOLVERS = [
    (f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))
    for tag, pattern, first in (
        ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
        ("int", r"[-+]?(0|[1-9]\d*)", "-+0123456789"),
        ("float", rf"{_NUMBER}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
        ("merge", "<<", "<"),
    )
]


class _Dumper(yaml.SafeDumper):
    """YAML in which a text that reads as another value is quoted."""


for _resolver in RESOLVERS:
    _Dumper.add_implicit_resolver(*_resolver)


def to_yaml(values: object) -> str:
    """Return values as YAML that ``config/file.py`` reads back; a text that it would read as a number is quoted."""
    text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    plain = printable(text, "\n") == text
    return text if plain else yaml.dump(values, Dumper=_Dumper, sort_keys=False)
