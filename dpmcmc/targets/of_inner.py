"""Facts that a target takes over from the target that it is made of."""

from __future__ import annotations

from typing import Any

from dpmcmc.targets.base import target_offers


class _OfInner:
    """An attribute that is the inner target's, or its default."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, outer: Any, owner: type) -> Any:
        return self if outer is None else getattr(target_offers(outer.target), self.name)


def of_inner() -> Any:
    """Declare an attribute of a class that has the inner ``target``'s value."""
    return _OfInner()
