"""Formulas in Wilkinson's notation, over the columns of a schema: ``income ~ age + C(job) + age:job``.

``formulaic`` parses, and nothing of a formula is evaluated: a schema encodes each column by its declared range or
levels, so ``C(job)`` and ``job`` are the same. A function of a column would need a public range of its own, and one
that is fitted (``scale``, ``poly``, a spline with knots from the data) would publish what it read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dpmcmc.errors import InputError

if TYPE_CHECKING:
    from formulaic.parser.types import Term

#: Functions of formulas whose result for a row depends on other rows.
_READ_DATA = ("scale", "standardize", "center", "poly", "bs", "cr", "cs", "cc", "ns", "te", "Q", "lag")
_CATEGORICAL = re.compile(r"C\(\s*`?(.*?)`?\s*\)")
_EVERY = re.compile(r"(?<![\w.])\.(?![\w.])")
_CALL = re.compile(r"([\w.]+)\(")


def parsed(formula: str, columns: tuple[str, ...]) -> tuple[str, tuple[tuple[str, ...], ...], bool]:
    """Return (label, or empty; source columns of each term; whether there is an intercept).

    Args:
        formula: as in R and statsmodels; ``-1`` leaves the intercept out.
        columns: of the schema.

    Raises:
        InputError: about ``formula``: it is none, it names no column, or a function that would read data.
    """
    label, right = "", _sides(formula)
    if hasattr(right, "lhs"):
        sides = [_source(term, columns) for term in right.lhs]
        if len(sides) != 1 or len(sides[0]) != 1:
            raise InputError("formula: one column stands left of ~, the label", "formula")
        label, right = sides[0][0], right.rhs
    if not all(hasattr(term, "factors") for term in right):
        raise InputError("formula: must have one right side, such as income ~ age + job", "formula")
    sources = [_source(term, columns) for term in right]
    return label, tuple(term for term in sources if term), () in sources


def _sides(formula: str) -> Any:
    """Return what formulaic makes of a formula."""
    try:
        from formulaic import Formula
        from formulaic.errors import FormulaicError
    except ImportError:
        raise InputError("formula: needs formulaic: pip install formulaic", "formula") from None
    try:
        return Formula(formula)
    except (FormulaicError, SyntaxError, TypeError, ValueError):
        if _EVERY.search(formula):
            said = "formula: . for all other columns is not taken; leave the formula out (None), or name the columns"
            raise InputError(said, "formula") from None
        raise InputError(f"formula: {formula!r} is no formula such as income ~ age + C(job)", "formula") from None


def _source(term: Term, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the source columns of a term; none for the intercept."""
    names = []
    for factor in term.factors:
        categorical = _CATEGORICAL.fullmatch(factor.expr)
        name = factor.expr.strip("`") if categorical is None else categorical.group(1)
        if name == "1":
            continue
        if name not in columns:
            raise InputError(f"formula: {_unknown(factor.expr, columns)}", "formula")
        names.append(name)
    return tuple(names)


def _unknown(expression: str, columns: tuple[str, ...]) -> str:
    call = _CALL.match(expression)
    if call is None:
        return f"{expression} is no column of the schema ({', '.join(columns)})"
    fitted = call.group(1) in _READ_DATA
    why = "would be fitted to the data, which publishes what it reads" if fitted else "of a column has no public range"
    return f"{call.group(1)}() {why}; give the column scale='log1p', or declare the range of a column made beforehand"
