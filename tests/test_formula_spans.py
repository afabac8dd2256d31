"""A formula is the model it says: columns of encoded rows span what formulaic's model matrix spans on the raw table."""

import warnings

import formulaic
import numpy as np
import pandas as pd
import pytest

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.errors import InputError

N = 400
RNG = np.random.default_rng(1)
TABLE = pd.DataFrame(
    {
        "a": RNG.uniform(2, 10, N),
        "b": RNG.uniform(-3, 1, N),
        "c": RNG.uniform(0, 50, N),
        "g": RNG.choice(["u", "v", "w"], N),
        "k": RNG.choice(["p", "q"], N),
        "y": 0.0,
    }
)
COLUMNS = {
    "a": Range(2, 10),
    "b": Range(-3, 1),
    "c": Range(0, 50, scale="log1p"),
    "g": Levels(["u", "v", "w"]),
    "k": Levels(["p", "q"]),
    "y": Range(-5, 40),
}
#: Formulas that lack a lower term, of the sources of the fault and of its kind.
LACKING = [
    *("0 + a", "a - 1", "-1 + a + b", "a + 0 + b", "a:g", "a/g", "g/a", "a + a:g", "0 + a + a:g", "a:b:g", "b*a:g"),
    *("0 + g + a", "g + k - 1", "0 + g:k", "g:k", "0 + a:b", "a + b + a:b - 1", "(a + b + g)**2 - a", "0 + a*b*g"),
    *("0 + a/g/k", "a %in% g", "(a + g + k)^3 - g - a:k", "0 + C(g):k + c", "c:k", "0 + k:g + g", "a:g + k - 1"),
    *("g - 1 + a:k", "a:k + a:g", "0 + k + a:g:k", "b:c - 1", "(a + b + c)**3 - a:b - 1"),
]
SPLINES = [
    ("0 + bs(a, knots=[4, 6])", "0 + bs(a, knots=[4, 6], lower_bound=2, upper_bound=10)"),
    ("bs(a, knots=[4, 6]) + b:g", "bs(a, knots=[4, 6], lower_bound=2, upper_bound=10) + b:g"),
    ("0 + k + poly(a, 2)", "0 + k + poly(a, 2)"),
    ("poly(a, 3) + a:b", "poly(a, 3) + a:b"),
]


def drawn(rng):
    """A random right side: a sum of products and powers, with parentheses, removals and some splines."""
    names = ["a", "b", "c", "g", "k", "C(g)"]

    def part(depth):
        kind = rng.integers(6) if depth else 5
        if kind == 5:
            return str(rng.choice(names))
        if kind == 4:
            one, two = rng.choice(names[:5], 2, replace=False)
            return f"({one} + {two}){rng.choice(['**', '^'])}2"
        one, two = part(depth - 1), part(depth - 1)
        return f"({one} {['+', ':', '*', '/'][kind]} {two})"

    sides = [part(2) for _ in range(rng.integers(1, 4))]
    if rng.random() < 0.2:
        sides.append("bs(a, knots=[5])")
    if rng.random() < 0.2:
        sides.append("0")
    right = " + ".join(sides)
    return right + str(rng.choice(["", " - 1", " - a", " - g"]))


def rank(matrix):
    values = np.linalg.svd(matrix / np.maximum(np.linalg.norm(matrix, axis=0), 1e-300), compute_uv=False)
    return int((values > 1e-6 * values[0]).sum())  # rows are encoded as float32


def raw(right):
    """formulaic's model matrix, on the scales of the columns."""
    right = right.replace("bs(a, knots=[5])", "bs(a, knots=[5], lower_bound=2, upper_bound=10)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matrix = formulaic.model_matrix(right, TABLE.assign(c=np.log1p(TABLE.c)))
    return matrix.to_numpy(float)


def check_span(right, theirs):
    schema = Schema(COLUMNS, formula=f"y ~ {right}")
    ours, said = schema.encode_features(TABLE).astype(float), raw(theirs)
    assert rank(ours) == rank(said) == rank(np.hstack([ours, said])), right
    assert np.all((ours**2).sum(axis=1) <= 1)
    return schema, ours, said


@pytest.mark.parametrize("right", LACKING)
def test_a_formula_without_a_lower_term_spans_what_formulaic_does(right):
    check_span(right, right)


@pytest.mark.parametrize(("right", "theirs"), SPLINES)
def test_splines_and_polynomials_span_what_formulaic_does(right, theirs):
    check_span(right, theirs)


def test_spans_of_a_hundred_random_formulas_are_those_of_formulaic():
    rng = np.random.default_rng(7)
    left = 100
    while left:
        right = drawn(rng)
        try:
            schema = Schema(COLUMNS, formula=f"y ~ {right}")
        except InputError as error:
            assert "multiplies a term by itself" in str(error) or "no feature is left" in str(error), right  # noqa: PT017
            continue
        if not schema.terms or schema.num_features > 60:
            continue
        left -= 1
        check_span(right, right)
        check_least_squares(right)


def check_least_squares(right, theirs=None):
    """Exact least squares on encoded rows gives, in the columns' units, the truth of a table without noise."""
    schema, ours, said = check_span(right, theirs or right)
    truth = said @ np.random.default_rng(3).normal(size=said.shape[1])
    middle, half = 17.5, 22.5
    if not schema.constant_sum.any():
        middle, half = 0.0, 40.0
    theta = np.linalg.lstsq(ours, (truth - middle) / half, rcond=1e-8)[0]
    found = schema.to_original_units(theta)
    own = own_columns(schema)
    scale = max(1.0, np.abs(truth).max())
    np.testing.assert_allclose(own @ found, truth, atol=2e-4 * scale)
    # What is left is a basis, so that every coefficient that is not 0 is that of the raw columns alone.
    kept = np.abs(schema._span.own).sum(axis=1) > 0
    if "bs(" not in right:
        assert rank(own[:, kept]) == kept.sum(), right
        np.testing.assert_allclose(own @ schema.constant_sum, float(schema.constant_sum.any()), atol=1e-12)


def own_columns(schema):
    """Columns in their own units, made by their names."""
    values = {name: TABLE[name].to_numpy(float) for name in "ab"} | {"c": np.log1p(TABLE.c.to_numpy())}
    values |= {f"{name}={level}": (TABLE[name] == level).to_numpy(float) for name in "gk" for level in "uvwpq"}
    made = Schema(COLUMNS, formula="y ~ bs(a, knots=[5])")
    values |= {f"bs(a)[{k + 1}]": one for k, one in enumerate(made.encode_features(TABLE).T / made.row_scale)}
    return np.stack(
        [
            np.prod([values[part] for part in parts] or [np.ones(N)], axis=0)
            for block in schema.blocks
            for parts in block
        ],
        axis=1,
    )


@pytest.mark.parametrize("right", [*LACKING, "a + g", "a*g*k", "a*b + c"])
def test_coefficients_are_in_the_units_of_the_columns(right):
    check_least_squares(right)
