"""Code that a plan rests on and that is not the library's, in sentences for the assumptions of its guarantee.

A plan is walked from its fields down: what a class outside this library made, a function that is not its own, and what
stands in the place of a method of it. The code of a stage, or of a plan within it, that has its own guarantee is in
that one.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

from dpmcmc.planning.whole_plan import WholePlan
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.samplers.base import missing_of
from dpmcmc.storage.fingerprint import enclosed
from dpmcmc.targets.base import missing_of_target, target_offers

#: Sums that the query takes from a target as they are.
_SUMS = ("clipped_gradient_sum", "longest_labels", "prepared", "zeros_are_absent")
#: Facts about a record's loss that the price of a one-shot release may rest on.
_FACTS = (
    "curvature_bound",
    "gradient_bound",
    "gradient_bound_within",
    "log_concave",
    "loss_bounds",
    "prior_precision",
    "smoothness",
)
_LIBRARY = __name__.partition(".")[0]
_HOLDERS = (tuple, list, set, frozenset)
#: Packages whose objects hold values alone, unless they can be called.
_VALUES = sys.stdlib_module_names | {"flax", "jax", "jaxlib", "numpy"}


def assumed(plan: WholePlan) -> tuple[str, ...]:
    """Return what the guarantee of a plan assumes of code that dpmcmc does not ship; empty where there is none."""
    # A stage or a plan with a guarantee of its own has its assumptions there.
    apart = [stage for stage in plan.stages if stage is not plan.main and stage.guarantee is not None]
    apart += plan.main.candidates
    found = list(_own(plan, {id(one): one for one in apart}))
    if not found:
        return ()
    said = [
        f"The code of {_listed(name for name, _ in found)}, which dpmcmc does not ship, reads nothing of the records "
        "but its arguments, as its author vouches."
    ]
    rest = []
    for name, one in found:
        if not missing_of_target(one):
            said += _of_target(one, _SUMS)
        elif missing_of(one) and not (callable(one) or hasattr(one, "update")):
            rest.append(name)
    if not plan.has_chains and any(_own(plan.target, {})):
        said += _of_target(plan.target, _FACTS)
    if rest:
        said.append(
            f"All that {_listed(rest)} does with records costs no more than the plan charges, as its author vouches."
        )
    return tuple(dict.fromkeys(said))


def _of_target(target: object, names: tuple[str, ...]) -> list[str]:
    """Return the sentence on what a target states of records by these names; none where it states nothing."""
    stated = [name for name in names if _states(target, name)]
    if not stated:
        return []
    return [
        f"All that {_name(type(target))} states ({', '.join(stated)}) holds for every record, as its author vouches."
    ]


def _states(target: object, name: str) -> bool:
    try:
        fact = getattr(target_offers(target), name, None)
    except Exception:  # a property of the user's may raise anything
        return True
    return fact is not None and fact is not False


def _listed(names: Any) -> str:
    return ", ".join(dict.fromkeys(names))


def _name(made: Any) -> str:
    """Return the ``module:attribute`` of a class or a function."""
    module = getattr(made, "__module__", None) or "builtins"
    return f"{module}:{getattr(made, '__qualname__', type(made).__qualname__)}"


def _root(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _ours(module: object) -> bool:
    return str(module).partition(".")[0] == _LIBRARY


def _own(value: Any, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (name, object that it belongs to) of all code inside a value that is not the library's."""
    if id(value) in seen or isinstance(value, Guarantee):
        return
    seen[id(value)] = value
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, MethodType):
        yield from _each((value.__func__, value.__self__), seen)
    elif isinstance(value, functools.partial):
        yield from _each((value.func, value.args, value.keywords), seen)
    elif isinstance(value, FunctionType):
        if _ours(value.__globals__.get("__name__")):
            yield from _each(enclosed(value), seen)
        else:
            yield _name(value), value
    elif isinstance(value, _HOLDERS) and _root(kind) in ("builtins", _LIBRARY):
        yield from _each(value, seen)
    elif isinstance(value, Mapping) and _root(kind) in _VALUES:
        yield from _each(value.values(), seen)
    elif _root(kind) == _LIBRARY:
        yield from () if kind is value else _inside(value, seen)
    elif callable(value) and hasattr(value, "__wrapped__"):  # compiled by JAX, or cached
        yield from _own(value.__wrapped__, seen)
    elif _root(kind) not in _VALUES or (callable(value) and kind is not value):
        yield _name(value if hasattr(value, "__qualname__") else kind), value


def _each(values: Iterable[Any], seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    for value in values:
        yield from _own(value, seen)


def _inside(made: Any, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what :func:`_own` does of the fields of an object of the library, and of what replaces its methods."""
    held = vars(made) if hasattr(made, "__dict__") else {}
    declared = [one.name for one in dataclasses.fields(made)] if dataclasses.is_dataclass(made) else [*held]
    others = {n: one for n, one in held.items() if callable(one) and n not in declared}
    yield from _each((one for name, one in held.items() if name not in others), seen)
    for kind in type(made).__mro__:
        if _ours(kind.__module__):
            others = vars(kind) | others
    for name, one in others.items():
        function = getattr(one, "fget", None) or getattr(one, "__func__", one)
        if callable(function) and not name.startswith("_") and any(_own(function, {})):
            yield f"{_name(type(made))}.{name}", made
