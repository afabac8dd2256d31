"""A target or a sampler of your own, with a default in the place of everything that it does not offer.

All that a target may offer stands in ``TargetOffers`` (``targets/base.py``), and all that a sampler may offer in
``SamplerOffers`` (``samplers/base.py``). Those of this library inherit the defaults. Yours may inherit nothing: it is
completed, and nobody else asks an object whether it has an attribute.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax

from dpmcmc.storage.pytree import STATIC

#: A class of optional attributes, each with its default.
Offers = TypeVar("Offers")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Completed:
    """An object of a class of your own, completed with the defaults of another class.

    Attributes:
        own: the object; its numbers are leaves where JAX knows its class.
        kind: class whose attributes are the defaults.
    """

    own: Any
    kind: type = dataclasses.field(metadata=STATIC)

    def __getattr__(self, name: str) -> Any:
        if name in ("own", "kind"):  # not set yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.own if hasattr(self.own, name) else self.kind(), name)

    def __repr__(self) -> str:
        return repr(self.own)


def completed(item: object, kind: type[Offers]) -> Offers:
    """Return an object with all that a class offers: itself where it inherits that, or it with defaults."""
    return item if isinstance(item, kind) else cast(Offers, Completed(item, kind))
