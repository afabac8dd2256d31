"""A sampler or a target with its numbers taken out, so that those that differ in numbers alone share a program.

The numbers were validated where the object was made; inside a trace the object is put together again with traced
ones in their place, past its ``__post_init__``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import jax
import numpy as np

from dpmcmc.targets.base import immutable

#: Public constants that a plan sets, the same for all plans with its sampling and N; compiled in at full precision.
_CONSTANTS = ("num_records", "rate")
#: Numbers beyond these stay compiled in: float32 would lose their squares.
_SMALLEST, _LARGEST = 1e-12, 1e12


#: A number of a plan, or what stands for it in a trace.
Number = np.float32 | jax.Array


@dataclass(frozen=True)
class Template:
    """An object without the numbers in ``names``; equal where only those differ.

    Attributes:
        kind: its class, or None where the object stays whole.
        settings: (field, value) pairs that stay.
        names: fields that were taken out.
        whole: the object, where it stays whole.
    """

    kind: type | None
    settings: tuple[tuple[str, object], ...] = ()
    names: tuple[str, ...] = ()
    whole: Any = None

    def fill(self, numbers: Mapping[str, Number]) -> Any:
        """The object with these numbers, which may be traced."""
        if self.kind is None:
            return self.whole
        return self._made((name, numbers[name]) for name in self.names)

    def without(self) -> Any:
        """The object for what needs none of its numbers: in their place is what no arithmetic takes."""
        return self.whole if self.kind is None else self._made((name, object()) for name in self.names)

    @property
    def steady(self) -> bool:
        """Whether equal templates stay the same, so that a program compiled for one serves the other."""
        parts = [self.whole] if self.kind is None else [value for _, value in self.settings if hasattr(value, "init")]
        return all(part is None or immutable(part) for part in parts)

    def _made(self, numbers: Iterable[tuple[str, object]]) -> Any:
        assert self.kind is not None
        made: Any = object.__new__(self.kind)
        for name, value in (*self.settings, *numbers):
            object.__setattr__(made, name, value)
        return made


def template(item: Any, names: Collection[str] = ()) -> Template:
    """``item`` without the fields ``names``, a subset of those of :func:`numbers`."""
    if not names:
        return Template(None, whole=item)
    settings = tuple((f.name, getattr(item, f.name)) for f in dataclasses.fields(item) if f.name not in names)
    return Template(type(item), settings, tuple(sorted(names)))


def numbers(item: Any) -> dict[str, np.float32]:
    """Fields that hold a number and are declared as one that may be fractional; none where nothing can be taken out."""
    if not dataclasses.is_dataclass(item) or isinstance(item, type):
        return {}
    fields = dataclasses.fields(item)
    # Something derived from the fields and kept beside them would not follow when they change.
    if set(getattr(item, "__dict__", ())) != {f.name for f in fields}:
        return {}
    fractional = _fractional(type(item))
    values = {field.name: getattr(item, field.name) for field in fields if field.name in fractional}
    return {name: np.float32(value) for name, value in values.items() if name not in _CONSTANTS and _is_number(value)}


@functools.cache
def _fractional(kind: type) -> frozenset[str]:
    """Fields of a dataclass that may hold a float, whatever the name of their type."""
    try:
        hints = get_type_hints(kind)
    except Exception:  # a user's annotation may name what does not exist at run time
        hints = {field.name: field.type for field in dataclasses.fields(kind)}
    return frozenset(name for name, hint in hints.items() if "float" in str(hint))


def _is_number(value: object) -> bool:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return value == 0 or _SMALLEST <= abs(float(value)) <= _LARGEST
