"""YAML of configs, written: a text that would be read as a number is quoted.

It is read by ``yaml_reading.py``.
"""

from __future__ import annotations

import re

import yaml

from dpmcmc.errors import (
    printable,
)

#: How a number with an exponent is written, which YAML 1.1 reads as a text without a point and a sign: 1e-6, 2e3.
EXPONENT = (
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


class _Dumper(yaml.SafeDumper):
    """YAML in which a text that reads as a number is quoted."""


_Dumper.add_implicit_resolver(*EXPONENT)


def to_yaml(values: object) -> str:
    """Return values as YAML that ``config/file.py`` reads back; a text that it would read as a number is quoted."""
    text = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    plain = printable(text, "\n") == text
    return text if plain else yaml.dump(values, Dumper=_Dumper, sort_keys=False)
