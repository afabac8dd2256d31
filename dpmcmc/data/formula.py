"""Formulas in Wilkinson's notation, over the columns of a schema: ``income ~ age + C(job) + age:job``.

``formulaic`` parses, and nothing of a formula is evaluated: a schema encodes each column by its declared range or
levels, so ``C(job)`` and ``job`` are the same. A name that is no word stands between backticks, ```x-1```, and a
backtick within it is written twice. A function of a column would need a public range of its own, and one
that is fitted (``scale``, ``poly``, a spline with knots from the data) would publish what it read.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dpmcmc.errors import InputError, shown

if TYPE_CHECKING:
    from formulaic.parser.types import Term

#: Functions of formulas whose result for a row depends on other rows.
_READ_DATA = (
    "scale",
    "standardize",
    "center",
    "poly",
    "bs",
    "cr",
    "cs",
    "cc",
    "ns",
    "te",
    "Q",
    "lag",
)
_CATEGORICAL = re.compile(r"C\(\s*(.*?)\s*\)")
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_EVERY = re.compile(r"(?<![\w.])\.(?![\w.])")
_CALL = re.compile(r"([\w.]+)\(")


def parsed(
    formula: str, columns: tuple[str, ...]
) -> tuple[str, tuple[tuple[str, ...], ...], bool]:
    """Return (label, or empty; source columns of each term; whether there is an intercept).

    Args:
        formula: as in R and statsmodels; ``-1`` leaves the intercept out.
        columns: of the schema.

    Raises:
        InputError: about ``formula``: it is none, it names no column, or a function that would read data.
    """
    # A quoted name may hold an operator of formulas, so a word of our own stands in its place.
    stem = "quoted"
    while any(stem in text for text in (formula, *columns)):
        stem += "_"
    quoted: dict[str, str] = {}

    def word(found: re.Match) -> str:
        return quoted.setdefault(
            found.group(1).replace("``", "`"), f"{stem}{len(quoted)}"
        )

    label = ""
    right = _sides(_QUOTED.sub(word, formula), formula)
    known = {name: name for name in columns} | {
        made: name for name, made in quoted.items()
    }
    if hasattr(right, "lhs"):
        sides = [_source(term, columns, known) for term in right.lhs]
        if len(sides) != 1 or len(sides[0]) != 1:
            raise InputError("formula: one column stands left of ~, the label", "formula")
        label = sides[0][0]
        right = right.rhs
    if not all(hasattr(term, "factors") for term in right):
        raise InputError(
            "formula: must have one right side, such as income ~ age + job", "formula"
        )
    sources = [_source(term, columns, known) for term in right]
    return label, tuple(term for term in sources if term), () in sources


def of_names(label: str, names: Iterable[str], intercept: bool) -> str:
    """Return the formula whose features are these columns, whatever they are called."""
    left, *right = map(_quoted, (label, *names))
    return f"{left} ~ {' + '.join(right)}{'' if intercept else ' - 1'}"


def _quoted(name: str) -> str:
    plain = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
    return name if plain else f"`{name.replace('`', '``')}`"


def _sides(formula: str, given: str) -> Any:
    """Return what formulaic makes of a formula, which was given with quoted names."""
    try:
        from formulaic import Formula
        from formulaic.errors import FormulaicError
    except ImportError:
        raise InputError(
            "formula: needs formulaic: pip install formulaic", "formula"
        ) from None
    try:
        return Formula(formula)
    except (FormulaicError, SyntaxError, TypeError, ValueError):
        if _EVERY.search(formula):
            said = "formula: . for all other columns is not taken; leave the formula out (None), or name the columns"
            raise InputError(said, "formula") from None
        raise InputError(
            f"formula: {shown(given)} is no formula such as income ~ age + C(job)",
            "formula",
        ) from None


def _source(
    term: Term, columns: tuple[str, ...], known: dict[str, str]
) -> tuple[str, ...]:
    """Return the source columns of a term; none for the intercept.

    Args:
        term: of a formula.
        columns: of the schema.
        known: word of the formula -> name that it stands for.
    """
    names = []
    for factor in term.factors:
        categorical = _CATEGORICAL.fullmatch(factor.expr)
        word = factor.expr if categorical is None else categorical.group(1)
        if word == "1":
            continue
        name = known.get(word, factor.expr)
        if name not in columns:
            raise InputError(f"formula: {_unknown(name, columns)}", "formula")
        names.append(name)
    return tuple(names)


def _unknown(expression: str, columns: tuple[str, ...]) -> str:
    call = _CALL.match(expression)
    if call is None:
        return f"{expression} is no column of the schema ({', '.join(columns)})"
    fitted = call.group(1) in _READ_DATA
    why = (
        "would be fitted to the data, which publishes what it reads"
        if fitted
        else "of a column has no public range"
    )
    return f"{call.group(1)}() {why}; give the column scale='log1p', or declare the range of a column made beforehand"
