"""Errors: refusals on purpose, and failures that stop a run.

Every refusal is an InputError, so that a command can tell it from a fault: a ValueError of NumPy, JAX or of our own
code that nobody meant to raise is never printed as the user's.

A constraint on an argument is declared once, in the annotation of the field that holds it. The constructor refuses
with it, :func:`check_fields`, and the sections of a config are made of the same annotations (``config/sections.py``)::

    @dataclass(frozen=True)
    class Dynamics(Checked):
        temperature: Annotated[float, Ge(0)] = 1.0
        structure: Literal["dense", "diagonal"] = "dense"
"""

from __future__ import annotations

import collections.abc
import copyreg
import dataclasses
import difflib
import functools
import math
import operator
import re
import types
import unicodedata
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import unquote

from annotated_types import Ge, Gt, Le, Lt

#: A type as an annotation says it: a class, a union, ``Annotated[float, Gt(0)]``. Python has no type for these.
Hint: TypeAlias = Any


#: Categories of characters that a terminal or a reader takes for more than a sign: control, order of writing, halves of
#: pairs, ends of lines. Joiners are of emoji and of some scripts.
_UNSEEN, _JOINERS = ("Cc", "Cf", "Cs", "Zl", "Zp"), "\u200c\u200d"


def printable(text: str, kept: str = "") -> str:
    """Return a text with the characters escaped that a terminal would obey, or that make it read as another.

    Names of columns, levels and files are anybody's, so whatever prints one calls this.

    Args:
        text: to be printed.
        kept: characters that stay, such as ends of lines.
    """
    if text.isprintable():
        return text
    return "".join(
        sign.encode("unicode_escape").decode()
        if unicodedata.category(sign) in _UNSEEN and sign not in _JOINERS + kept
        else sign
        for sign in text
    )


def meant(given: object, known: Iterable[str]) -> str:
    """Return `` (did you mean X?)`` with the known name that is nearest to a given one; empty where none is near."""
    near = difflib.get_close_matches(str(given), list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def without_password(url: str) -> str:
    """Return a database's URL with its password replaced by ``***``; it may hold any sign, so it ends at the last @."""
    shown = re.sub(r"(://[^:@]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    named = re.search(r"[?&]\s*(ssl)?password", unquote(url))
    return f"{shown.partition('?')[0]}?***" if named else shown


def redacted(text: str) -> str:
    """Return a text with the password of every database's URL in it replaced by ``***``."""
    return re.sub(r"postgres(?:ql)?://\S*", lambda found: without_password(found[0]), text)


class Carried(Exception):
    """Base of exceptions that a process pool can carry, whatever their constructors take.

    A pickle holds the words and the fields, and the copy is made without the constructor.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InputError(Carried, ValueError):
    """Something given cannot be used; the message says what, where and how to mend it.

    Args:
        message: one sentence.
        about: the argument of the constructor or function that it is about, ``"step_size"`` or ``"step_size.floor"``;
            empty where it is about none, or about all of them.

    Example:
        >>> from dpmcmc import Privacy
        >>> Privacy(epsilon=-1.0)
        Traceback (most recent call last):
            ...
        dpmcmc.errors.InputError: epsilon must be a finite number in (0, 1e+06], got -1.0
    """

    #: YAML path that such a refusal is about where it names no argument; empty where there is no usual one.
    section = ""

    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(printable(message, "\n"))
        self.about = about


class DataError(InputError):
    """Message to the data holder: the problem, its place, and how to mend it.

    Messages are logged and sent around. This one says which column or array it is about and what kind of thing is
    wrong with it. It quotes no value, no count of rows and no row number. The rows are in ``rows``, for whoever holds
    the data.

    Args:
        message: one sentence.
        about: as of :class:`InputError`.
        rows: numbers of the rows that it is about, counted from 0; empty where it is about none.

    Example:
        >>> import dpmcmc
        >>> dpmcmc.data.load(dpmcmc.data.DataRequest(path="no_such_file.npz"))
        Traceback (most recent call last):
            ...
        dpmcmc.errors.DataError: data.path: there is no file no_such_file.npz: correct the path (a relative...
    """

    def __init__(self, message: str, about: str = "", rows: Iterable[int] = ()) -> None:
        super().__init__(message, about)
        self.rows = tuple(map(int, rows))

    @classmethod
    def at(cls, key: str, said: str) -> Self:
        """Return the error that says this of a key of :class:`dpmcmc.data.DataRequest`."""
        return cls(f"data.{key}: {said}.", key)


class UnsupportedCombination(InputError):
    """A (sampling, adjacency, release, accountant) combination without a derivation.

    Example:
        >>> from dpmcmc import FixedSize
        >>> from dpmcmc.privacy import account
        >>> account(1.0, steps=10, sampling=FixedSize(10), num_records=1000, adjacency="add_remove", delta=1e-5)
        Traceback (most recent call last):
            ...
        dpmcmc.errors.UnsupportedCombination: accountant pld has no dominating pair for fixed_size...
    """

    section = "privacy"


class CalibrationError(InputError):
    """A calibrator's condition fails, or its target is out of reach.

    Example:
        >>> from dpmcmc import Poisson
        >>> from dpmcmc.privacy import calibrate
        >>> calibrate(epsilon=1.0, delta=1e-5, steps=9, sampling=Poisson(9), num_records=99, calibrator="closed_form")
        Traceback (most recent call last):
            ...
        dpmcmc.errors.CalibrationError: calibrator closed_form is proved for scheme fixed_size (or full):...
    """

    section = "privacy.calibrator"


class NotForIntervals(UserWarning):
    """The draws of a run are no basis for intervals; the message says why, and what to use for them.

    Example:
        >>> import warnings
        >>> import dpmcmc
        >>> warnings.simplefilter("ignore", dpmcmc.NotForIntervals)  # where only predictions are wanted
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message, "\n"))


class NoGuarantee(UserWarning):
    """A fit that was asked for an ε has no guarantee; the message says why.

    Example:
        >>> import warnings
        >>> import dpmcmc
        >>> warnings.simplefilter("error", dpmcmc.NoGuarantee)  # stop, in place of a warning
    """


class RunFailed(Carried, RuntimeError):
    """A run that was stopped for a reason that is not the user's; the message says it, and what to do.

    Example:
        >>> from dpmcmc.engine.self_test import MiscompiledError
        >>> from dpmcmc.errors import RunFailed
        >>> issubclass(MiscompiledError, RunFailed)
        True
    """


class DrawError(RuntimeError):
    """A message to the data holder: nothing was released.

    The failure is a function of the records, which no guarantee covers: keep it from others.

    Example:
        >>> from dpmcmc.mechanisms import DrawError
        >>> raise DrawError("NUTS diverged in every transition: restrict the parameters to a smaller radius")
        Traceback (most recent call last):
            ...
        dpmcmc.errors.DrawError: NUTS diverged in every transition: restrict the parameters to a smaller radius
    """


class SaidByFirst(InputError):
    """Process 0 of several has failed; it says the message itself, so this process ends and says nothing.

    Args:
        message: as process 0 says it.
        code: exit code of the command there.

    Example:
        >>> from dpmcmc.errors import SaidByFirst
        >>> SaidByFirst("budget.db: run 'a' is refused: it costs more than is left.", 2).code
        2
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def check_fields(made: object) -> None:
    """Refuse a dataclass whose fields break what their annotations declare: bounds on numbers, lists of words.

    Only fields whose annotation holds a bound (``Annotated[float, Gt(0)]``) or a ``Literal`` are looked at. A number
    must be finite, and a field of type ``int`` takes whole numbers alone.

    Raises:
        InputError: about the first such field.
    """
    kind: Hint = type(made)
    for name, kinds in _constrained(kind):
        value = getattr(made, name)
        if not any(_meets(value, kind) for kind in kinds):
            wanted = " or ".join(text for text in map(_described, kinds) if text)
            raise InputError(f"{name} must be {wanted}, got {shown(value)}", name)


def shown(value: object) -> str:
    """Return what was given as a message quotes it: shortened if it is long, by its type if it cannot be written."""
    try:
        text = repr(value)
    except Exception:  # Python writes no number of 5,000 digits, and a foreign class may raise anything
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}...{text[-_LONGEST // 4 :]}"


#: Metadata of a dataclass's field of (name, value) pairs, each of which is a key of its own in a YAML.
REST = {"rest": True}


def quoted(error: BaseException) -> str:
    """Return what somebody else's exception says, in one line that is not too long."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]


#: Characters of a value, or of somebody else's words, that a message quotes.
_LONGEST = 200


class Checked:
    """Base of dataclasses that are made only of fields that :func:`check_fields` takes."""

    def __post_init__(self) -> None:
        check_fields(self)


@functools.cache
def _constrained(cls: type) -> tuple[tuple[str, tuple[Hint, ...]], ...]:
    """(name, alternatives of its type) of every field of a dataclass that check looks at."""
    hints = get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    of_field = {field.name: alternatives(hints[field.name]) for field in fields}
    return tuple((name, kinds) for name, kinds in of_field.items() if any(map(_declares, kinds)))


def _declares(kind: Hint) -> bool:
    return get_origin(kind) in (Annotated, Literal)


def alternatives(hint: Hint) -> tuple[Hint, ...]:
    """The types that a union allows, or the type alone."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in alternatives(part))
    return (hint,)


def _meets(value: Any, kind: Hint) -> bool:
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) is collections.abc.Callable:
        return callable(value)
    of_type, bounds = _bounded(kind)
    if of_type not in (int, float):
        return isinstance(value, of_type)
    if isinstance(value, (str, bytes, bool)) or (of_type is int and not isinstance(value, Integral)):
        return False
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return math.isfinite(number) and all(_SYMBOLS[type(bound)][0](number, _end(bound)) for bound in bounds)


def _described(kind: Hint) -> str:
    """An alternative in words; empty for None, which stands for an argument that is left out."""
    if get_origin(kind) is Literal:
        return ("one of " if len(get_args(kind)) > 1 else "") + ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is collections.abc.Callable:
        return "a schedule"
    of_type, bounds = _bounded(kind)
    if of_type not in (int, float):
        return "" if of_type is types.NoneType else of_type.__name__
    number = "a whole number" if of_type is int else "a finite number"
    if len(bounds) == 2:
        opens, closes = (_SYMBOLS[type(bound)][2] for bound in bounds)
        return f"{number} in {opens}{_end(bounds[0]):g}, {_end(bounds[1]):g}{closes}"
    return " ".join([number, *(f"{_SYMBOLS[type(bound)][1]} {_end(bound):g}" for bound in bounds)])


#: Kind of a bound -> (what it asks, its symbol, its bracket in an interval).
_SYMBOLS: dict[type, tuple[Callable[[float, float], bool], str, str]] = {
    Gt: (operator.gt, ">", "("),
    Ge: (operator.ge, ">=", "["),
    Lt: (operator.lt, "<", ")"),
    Le: (operator.le, "<=", "]"),
}


def _bounded(kind: Hint) -> tuple[type, tuple[Gt | Ge | Lt | Le, ...]]:
    """(type, bounds on it, the lower one first) of an alternative."""
    if get_origin(kind) is Annotated:
        of_type, *bounds = get_args(kind)
        return of_type, tuple(bounds)
    origin: Hint = get_origin(kind)
    return origin or kind, ()


def _end(bound: Gt | Ge | Lt | Le) -> float:
    """The number that a bound is."""
    (number,) = dataclasses.astuple(bound)
    return number
