"""Formulas in Wilkinson's notation, over the columns of a schema: ``income ~ age + C(job) + age:job``.

``formulaic`` parses, and nothing of a formula is evaluated: a schema encodes each column by its declared range or
levels, so ``C(job)`` and ``job`` are the same. A name that is no word stands between backticks, ```x-1```, and a
backtick within it is written twice. A function of a column would need a public range of its own, and one
that is fitted (``scale``, a spline with knots from the data) would publish what it read. Those that a formula may hold
rest on public numbers alone:

    bs(age, knots=[30, 45, 60], degree=3)   ns(age, knots=[30, 45, 60])   poly(age, 2)
    offset(log(exposure))                   (1 | clinic)                  (age | clinic)      (0 + age | clinic)
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from dpmcmc.errors import InputError, shown

if TYPE_CHECKING:
    from formulaic.parser.types import Term

#: Functions of formulas whose result for a row depends on other rows.
_READ_DATA = (
    "scale",
    "standardize",
    "center",
    "cr",
    "cs",
    "cc",
    "te",
    "Q",
    "lag",
)
#: Functions of a column that are computed from public numbers.
BASES = ("bs", "ns", "poly")
_CATEGORICAL = re.compile(r"C\(\s*(.*?)\s*\)")
_QUOTED = re.compile(r"`((?:[^`]|``)+)`")
_EVERY = re.compile(r"(?<![\w.])\.(?![\w.])")
_CALL = re.compile(r"([\w.]+)\(")
_GROUP = re.compile(r"(?<![\w.])\(([^()|]*)(\|{1,2})([^()|]*)\)")
#: Operators of formulaic whose terms are products, and those of them that are powers.
_POWERS = ("**", "^")
_PRODUCTS = (*_POWERS, ":", "*", "/", "in")
#: How knots are given.
_KNOTS = "give public knots, as in bs(age, knots=[30, 45, 60])"
#: Degree of ``bs`` where a formula says none, and the largest one.
_CUBIC, _MOST_DEGREE = 3, 10


class Call(NamedTuple):
    """A function of a column.

    Attributes:
        function: ``bs``, ``ns`` or ``poly``.
        column: its column.
        knots: inner knots, in the column's own units; none of ``poly``.
        degree: of its pieces, or of the polynomial.
    """

    function: str
    column: str
    knots: tuple[float, ...]
    degree: int


class Parsed(NamedTuple):
    """A formula.

    Attributes:
        label: column left of ~, or empty.
        terms: names of the factors of each term; a factor is a column, or one that was made.
        intercept: whether there is one.
        calls: made factor -> the function of a column that it is.
        groups: made factor -> column of the groups.
        exposure: column within ``offset(log(...))``, or empty.
        categorical: columns within ``C()``.
    """

    label: str
    terms: tuple[tuple[str, ...], ...]
    intercept: bool
    calls: dict[str, Call]
    groups: dict[str, str]
    exposure: str
    categorical: frozenset[str]

    @property
    def columns(self) -> list[str]:
        """Columns of the table that the formula needs, each once."""
        made = {name: call.column for name, call in self.calls.items()} | self.groups
        factors = (made.get(name, name) for term in self.terms for name in term)
        others = (name for name in (self.label, self.exposure) if name)
        return list(dict.fromkeys([*factors, *others]))


def parse_formula(formula: str, columns: tuple[str, ...]) -> Parsed:
    """Return what a formula says.

    Args:
        formula: as in R and statsmodels; ``-1`` leaves the intercept out.
        columns: of the schema.

    Raises:
        InputError: about ``formula``: it is none, it names no column, or a function that would read data.
    """
    return _Reader(formula, columns).read()


class _Reader:
    """Reads one formula; words of our own stand in for what formulaic does not parse."""

    def __init__(self, formula: str, columns: tuple[str, ...]) -> None:
        self.formula = formula
        self.columns = columns
        self.stem = "quoted"
        while any(self.stem in text for text in (formula, *columns)):
            self.stem += "_"
        self.known = {name: name for name in columns}
        self.quoted: dict[str, str] = {}
        self.bars: dict[str, tuple[str, str, str]] = {}
        self.calls: dict[str, Call] = {}
        self.groups: dict[str, str] = {}
        self.exposure = ""
        self.categorical: set[str] = set()

    def read(self) -> Parsed:
        """Return what the formula says."""
        # A quoted name may hold an operator of formulas.
        text = _GROUP.sub(self._group_word, _QUOTED.sub(self._word, self.formula))
        self.known |= {made: name for name, made in self.quoted.items()}
        label = ""
        right = _sides(text, self.formula)
        if hasattr(right, "lhs"):
            sides = [self._plain(term) for term in right.lhs]
            if len(sides) != 1 or len(sides[0]) != 1:
                raise _wrong("one column stands left of ~, the label")
            label = sides[0][0]
            right = right.rhs
        if not all(hasattr(term, "factors") for term in right):
            raise _wrong("must have one right side, such as income ~ age + job")
        terms: list[tuple[str, ...]] = []
        intercept = False
        for term in right:
            found = self._terms(term)
            intercept |= found == [()]
            known = [*map(set, terms)]
            terms += [one for one in found if one and set(one) not in known]
        return Parsed(
            label,
            tuple(terms),
            intercept,
            self.calls,
            self.groups,
            self.exposure,
            frozenset(self.categorical),
        )

    def _word(self, found: re.Match) -> str:
        name = found.group(1).replace("``", "`")
        return self.quoted.setdefault(name, f"{self.stem}{len(self.quoted)}")

    def _group_word(self, found: re.Match) -> str:
        made = f"{self.stem}bar{len(self.bars)}"
        self.bars[made] = (found.group(1), found.group(2), found.group(3))
        return made

    def _terms(self, term: Term) -> list[tuple[str, ...]]:
        """Return the terms that a term of formulaic stands for; the intercept is ()."""
        factors = [factor.expr for factor in term.factors]
        special = [one for one in factors if one in self.bars or _function(one)]
        if not special:
            return [self._plain(term)]
        if len(factors) > 1:
            product = shown(":".join(map(self._said, factors)))
            raise _wrong(
                f"{product} is an interaction with {self._said(special[0])}, which is not taken; add the terms, or "
                "make a column of the product and declare its range"
            )
        (expression,) = factors
        if expression in self.bars:
            return self._group(*self.bars[expression])
        call = ast.parse(expression, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise _wrong(_unknown(expression, self.columns))
        if _function(expression) == "offset":
            self._offset(call)
            return []
        return [(self._basis(call),)]

    def _said(self, expression: str) -> str:
        """Return an expression as the formula writes it."""
        return "({}{}{})".format(*self.bars[expression]) if expression in self.bars else expression

    def _plain(self, term: Term) -> tuple[str, ...]:
        """Return the columns of a term; none for the intercept."""
        names = []
        for factor in term.factors:
            categorical = _CATEGORICAL.fullmatch(factor.expr)
            word = factor.expr if categorical is None else categorical.group(1)
            if word == "1":
                continue
            if word in self.bars:
                raise _wrong(f"{self._said(word)} stands left of ~, or within C()")
            name = self.known.get(word, factor.expr)
            if name not in self.columns:
                raise _wrong(_unknown(name, self.columns))
            if categorical is not None:
                self.categorical.add(name)
            names.append(name)
        return tuple(dict.fromkeys(names))

    def _column(self, node: ast.expr, function: str) -> str:
        """Return the column that a node names."""
        name = self.known.get(node.id, node.id) if isinstance(node, ast.Name) else ""
        if not name:
            raise _wrong(f"{function}() takes the name of one column")
        if name not in self.columns:
            raise _wrong(_unknown(name, self.columns))
        return name

    def _offset(self, call: ast.Call) -> None:
        log = call.args[0] if len(call.args) == 1 and not call.keywords else None
        if not (
            isinstance(log, ast.Call) and isinstance(log.func, ast.Name) and log.func.id == "log" and len(log.args) == 1
        ):
            raise _wrong("an offset is the log of a positive column: write offset(log(exposure))")
        name = self._column(log.args[0], "log")
        if self.exposure not in ("", name):
            raise _wrong("two columns are offsets; give the column of their product")
        self.exposure = name

    def _basis(self, call: ast.Call) -> str:
        """Keep a function of a column; return the name of the factor."""
        assert isinstance(call.func, ast.Name)
        function = call.func.id
        if not call.args:
            raise _wrong(f"{function}() takes the name of a column first")
        column = self._column(call.args[0], function)
        given = {one.arg or "": one.value for one in call.keywords}
        if function == "poly":
            allowed = ["degree"]
            if len(call.args) == 2 and "degree" not in given:
                given["degree"] = call.args[1]
        else:
            allowed = ["knots", "degree"] if function == "bs" else ["knots"]
        positional = len(call.args) - (function == "poly" and len(call.args) == 2)
        unknown = [name or "**" for name in given if name not in allowed]
        if "df" in unknown or (function != "poly" and "knots" not in given):
            raise _wrong(
                f"{function}() without knots would take them from the data, which publishes what it reads; {_KNOTS}"
            )
        if unknown or positional != 1:
            raise _wrong(f"{function}() takes a column and {' and '.join(allowed)} alone")
        made = Call(
            function,
            column,
            _numbers(given["knots"], function) if "knots" in given else (),
            _degree(given.get("degree"), function),
        )
        name = f"{function}({column})"
        if self.calls.setdefault(name, made) != made:
            raise _wrong(f"{name} is there with two sets of numbers; give one")
        return name

    def _group(self, left: str, bar: str, right: str) -> list[tuple[str, ...]]:
        """Return the terms of ``(left | right)``: one for the intercepts of the groups, one for each slope."""
        said = f"({left}{bar}{right})"
        if bar == "||":
            raise _wrong(f"{said}: write (1 | g) + (0 + x | g) in the place of (x || g)")
        group = self.known.get(right.strip(), right.strip())
        if group not in self.columns:
            raise _wrong(f"{said}: one column stands right of |, the groups")
        right_side = _sides(left, said)
        if hasattr(right_side, "lhs") or not all(hasattr(term, "factors") for term in right_side):
            raise _wrong(f"{said}: columns stand left of |, or 1")
        slopes = [self._plain(term) for term in right_side]
        if not slopes or any(len(slope) > 1 for slope in slopes):
            raise _wrong(f"{said}: 1 or columns stand left of |, and no interaction")
        made = f"1|{group}"
        self.groups[made] = group
        # The intercept of the groups first, as in lme4.
        return [(*slope, made) for slope in sorted(slopes, key=bool)]


def _wrong(said: str) -> InputError:
    return InputError(f"formula: {said}", "formula")


def _function(expression: str) -> str:
    """Return the name of a function that a formula may hold, or empty."""
    call = _CALL.match(expression)
    name = "" if call is None else call.group(1)
    return name if name in (*BASES, "offset") else ""


def _numbers(node: ast.expr, function: str) -> tuple[float, ...]:
    """Return knots."""
    try:
        found = ast.literal_eval(node)
        numbers = found if isinstance(found, list | tuple) else [found]
        knots = tuple(float(one) for one in numbers if type(one) in (int, float))
    except (ValueError, OverflowError):
        numbers, knots = [], ()
    if not knots or len(knots) != len(numbers):
        raise _wrong(f"{function}(): knots are a list of numbers; {_KNOTS}")
    return knots


def _degree(node: ast.expr | None, function: str) -> int:
    """Return a degree, which is that of cubic splines where none is given."""
    found = node.value if isinstance(node, ast.Constant) else None
    if node is None and function != "poly":
        found = _CUBIC
    if type(found) is not int or not 1 <= found <= _MOST_DEGREE:
        raise _wrong(f"{function}(): degree must be a whole number from 1 to {_MOST_DEGREE}")
    return found


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
        from formulaic.parser import DefaultFormulaParser
    except ImportError:
        raise InputError("formula: needs formulaic: pip install formulaic", "formula") from None
    try:
        sides = Formula(formula)
        tree = DefaultFormulaParser().get_ast(formula)
    except (FormulaicError, SyntaxError, TypeError, ValueError):
        if _EVERY.search(formula):
            said = "formula: . for all other columns is not taken; leave the formula out (None), or name the columns"
            raise InputError(said, "formula") from None
        raise InputError(
            f"formula: {shown(given)} is no formula such as income ~ age + C(job)",
            "formula",
        ) from None
    _refuse_squares(tree, given)
    return sides


def _refuse_squares(node: Any, given: str) -> None:
    """Refuse products of a term with itself, which are the term in this notation and no square."""
    for part in getattr(node, "args", ()):
        _refuse_squares(part, given)
    symbol = node.operator.symbol if hasattr(node, "operator") else ""
    if symbol not in _PRODUCTS or len(node.args) != 2:
        return
    left, right = (list(part.to_terms()) for part in node.args)
    if symbol in _POWERS:
        right = left
    if len(left) == len(right) == 1 and set(left[0].factors) & set(right[0].factors):
        raise _wrong(
            f"{shown(given)} multiplies a term by itself, which is that term in this notation and no square; write "
            "poly(a, 2) for the square of a column a, or the term alone"
        )


def _unknown(expression: str, columns: tuple[str, ...]) -> str:
    call = _CALL.match(expression)
    if call is None:
        return f"{expression} is no column of the schema ({', '.join(columns)})"
    fitted = call.group(1) in _READ_DATA
    why = "would be fitted to the data, which publishes what it reads" if fitted else "of a column has no public range"
    return f"{call.group(1)}() {why}; give the column scale='log1p', or declare the range of a column made beforehand"
