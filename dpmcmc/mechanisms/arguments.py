"""Checks of what a mechanism's constructor is given. A refusal names the argument first; None is always accepted."""

from __future__ import annotations

import math

from dpmcmc.errors import InputError


def check_positive(mechanism: object, *names: str) -> None:
    """Raise ValueError unless these fields are finite numbers > 0."""
    for name in names:
        value = getattr(mechanism, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise InputError(f"{name}: must be a finite number > 0, got {value}")


def check_share(mechanism: object, interval: str, *names: str) -> None:
    """Raise ValueError unless these fields lie between 0 and 1; brackets of ``interval``, as in "(0, 1]", say which end
    they may take."""
    for name in names:
        value = getattr(mechanism, name)
        ends = ("[" in interval, "]" in interval)
        if value is not None and not (0 < value < 1 or (ends[0] and value == 0) or (ends[1] and value == 1)):
            raise InputError(f"{name}: must lie in {interval}, got {value}")


def check_count(mechanism: object, least: int, *names: str) -> None:
    """Raise ValueError unless these fields are at least ``least``."""
    for name in names:
        value = getattr(mechanism, name)
        if value is not None and value < least:
            raise InputError(f"{name}: must be at least {least}, got {value}")


def check_choice(mechanism: object, name: str, known: tuple[str, ...]) -> None:
    """Raise ValueError unless a field is one of the known words."""
    value = getattr(mechanism, name)
    if value not in known:
        raise InputError(f"{name}: unknown {value!r}; known: {', '.join(known)}")
