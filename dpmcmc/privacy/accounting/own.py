"""An accountant of the user's own: a function (events, adjacency, delta) -> ε, known by its ``module:attribute``.

Its ε is the user's word, and a guarantee says so among its assumptions. Two checks stand against a wrong one. An ε that
lies below the lower bound of ``lower_bound.py`` is refused: a guarantee's, one at another δ, and a group's. ``dpmcmc
verify`` shows the library's own accountants beside it.

A saved guarantee holds the function's name alone. The function is looked for in modules that are imported already, so
reading a file runs no code that its reader has not loaded. It must say that it returns a float; a name of anything else
is refused and not called.
"""

from __future__ import annotations

import inspect
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

from dpmcmc.errors import InputError, UnsupportedCombination, quoted
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import QUERIES, Event
from dpmcmc.privacy.accounting.gaussian_queries import queries

#: −log of the smallest δ that is looked for, and the halvings of that.
_MOST = 700.0
_HALVINGS = 40


def named(function: Callable[..., Any] | str) -> str:
    """Return the name of a function as files have it; a name is its own."""
    if isinstance(function, str):
        return function
    if isinstance(function, types.FunctionType):
        return f"{function.__module__}:{function.__qualname__}"
    return type(function).__name__


def is_ones_own(name: str) -> bool:
    """Whether a name is the ``module:attribute`` of a function of the user's, and none of the library's."""
    return ":" in name


def declared(function: object) -> Any:
    """Return the type that a function says it returns; None where it says none, or is no function."""
    try:
        return returned(function) if isinstance(function, types.FunctionType) else None
    except Exception:  # an annotation may be any expression
        return None


def returned(function: types.FunctionType) -> Any:
    """Return the return annotation of a function, ``inspect.Signature.empty`` where there is none; raises anything."""
    made = function.__annotations__.get("return", inspect.Signature.empty)
    if made is inspect.Signature.empty:
        return made
    stub = types.SimpleNamespace(__annotations__={"return": made})
    return typing.get_type_hints(stub, inspect.unwrap(function).__globals__)["return"]


def assumption(name: str) -> str:
    """Return the sentence that a guarantee by this accountant rests on."""
    return f"The accountant {name}, which is not the library's, never says less than the true epsilon."


def refuse_below(lowest: float, epsilon: float, name: str, delta: float) -> None:
    """Refuse an ε of this accountant that is less than the lower bound."""
    if epsilon < lowest:
        raise UnsupportedCombination(
            f"accountant {name} says epsilon {epsilon:.6g} at delta {delta:g} where these queries cost at least "
            f"{lowest:.6g} on two data sets; its formula is wrong, or is that of another adjacency",
            "accountant",
        )


class OwnAccountant:
    """An accountant, as ``accounting`` takes it, from a function of the user's.

    Args:
        name: ``module:attribute`` of a function at the top of a module that is imported.

    Raises:
        UnsupportedCombination: there is no such function, or it does not say that it returns a float.
    """

    def __init__(self, name: str) -> None:
        module, _, attribute = name.partition(":")
        function = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
        if module.partition(".")[0] == __name__.partition(".")[0]:
            # Among them is the lower bound that stands against a wrong accountant.
            raise UnsupportedCombination(
                f"accountant {name} is a function of this library, which has accountants of its own: take pld, rdp or "
                "advanced",
                "accountant",
            )
        if not isinstance(function, types.FunctionType):
            raise UnsupportedCombination(
                f"accountant {name} is no function at the top of a module that is imported; import its module first, "
                f"or, at the command line, give --allow-code {module}",
                "accountant",
            )
        if declared(function) is not float:
            raise UnsupportedCombination(
                f"accountant {name} does not say that it returns an epsilon, so it is not called; write for example "
                "def mine(events, adjacency, delta) -> float",
                "accountant",
            )
        self.name = name
        self.function = function

    def check(self, events: Iterable[Event], adjacency: Adjacency) -> None:
        """Raise UnsupportedCombination for what is no noisy query; the function is not called."""
        for e in queries(events):
            if e.mechanism not in QUERIES:
                raise UnsupportedCombination(
                    f"accountant {self.name} is called for noisy queries alone, and not for {e.mechanism}",
                    "accountant",
                )

    def epsilon(self, events: Iterable[Event], adjacency: Adjacency, delta: float) -> float:
        """ε at δ, as the function says it; infinite for a query without noise.

        Raises:
            InputError: the function fails, or returns no number >= 0.
        """
        parts = tuple(queries(events))
        if not parts:
            return 0.0
        if delta <= 0 or any(e.noise_multiplier == 0 for e in parts):
            return math.inf
        try:
            found = float(self.function(parts, adjacency, delta))
        except Exception as error:  # a user's function may raise anything
            raise InputError(f"accountant {self.name} says: {quoted(error)}", "accountant") from None
        if not found >= 0:
            raise InputError(
                f"accountant {self.name} must return an epsilon >= 0, got {found:g}",
                "accountant",
            )
        return found

    def delta(self, events: Iterable[Event], adjacency: Adjacency, epsilon: float) -> float:
        """Smallest δ found at which the function says at most ``epsilon``, which falls with δ; 1 where none is."""
        parts = tuple(queries(events))
        if not parts:
            return 0.0
        # δ = e^−t, from the t = 0 that always serves toward larger ones.
        low = 0.0
        high = _MOST
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            meets = self.epsilon(parts, adjacency, math.exp(-middle)) <= epsilon
            low, high = (middle, high) if meets else (low, middle)
        return math.exp(-low)
