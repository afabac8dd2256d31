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
    kept = np.delete(own, schema.first_levels, axis=1)
    if "bs(" not in right:
        assert rank(kept) == kept.shape[1], right
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


@pytest.mark.parametrize(
    ("right", "theirs"),
    [
        ("(0 + a|g)", "a:g"),
        ("0 + (a|g)", "0 + g + a:g"),
        ("0 + a + (1|g)", "0 + a + g"),
        ("0 + a + (0 + a|g)", "0 + a:g"),
        ("g + (0 + a|g)", "g + a:g"),
    ],
)
def test_effects_of_groups_span_their_slopes_and_intercepts(right, theirs):
    theirs = theirs if theirs != "a:g" else "1 + a:g"
    check_span(right, theirs)


def test_a_mean_of_zero_over_groups_takes_no_shift_up():
    """Effects of groups are shrunk to 0, so that the slope of ``0 + a + (1|g)`` starts at 0 for an average group."""
    made = Schema(COLUMNS, formula="y ~ 0 + a + (1|g)")
    assert made.encode_features(TABLE)[:, 0].min() > 0
    assert not made.constant_sum.any()


@pytest.mark.parametrize(
    "right", ["0 + m", "m:g", "0 + g + m", "m:b - 1", "0 + m:k + k", "m*g", "m:b + b", "m + a:m:g"]
)
def test_a_missing_number_has_its_own_column_whatever_is_left_out(right):
    """Where a value is missing, its column is 0 in own units, and the indicator's coefficient is the prediction."""
    rng = np.random.default_rng(5)
    table = TABLE.assign(m=np.where(rng.random(N) < 0.3, np.nan, rng.uniform(3, 9, N)))
    schema = Schema(COLUMNS | {"m": Range(3, 9, missing=True)}, formula=f"y ~ {right}")
    values = {name: table[name].to_numpy(float) for name in "ab"}
    values |= {"m": table.m.fillna(0).to_numpy(), "m=missing": table.m.isna().to_numpy(float)}
    values |= {f"{name}={level}": (table[name] == level).to_numpy(float) for name in "gk" for level in "uvwpq"}
    own = np.stack(
        [
            np.prod([values[part] for part in parts] or [np.ones(N)], axis=0)
            for block in schema.blocks
            for parts in block
        ],
        axis=1,
    )
    x = schema.encode_features(table).astype(float)
    assert rank(x) == rank(own) == rank(np.hstack([x, own]))
    theta = rng.normal(size=schema.num_features)
    middle = 17.5 * schema.constant_sum.any()
    half = 22.5 if middle else 40
    np.testing.assert_allclose(own @ schema.to_original_units(theta), middle + half * (x @ theta), atol=1e-4)


@pytest.mark.parametrize(
    "right",
    ["a**2", "a^2", "(a)**3", "b + a ** 2", "a*a", "a:a", "(a:b)**2", "g**2", "a/a", "(a - b)^2", "1 + (a^2|g)"],
)
def test_a_product_of_a_term_with_itself_is_no_square_and_refused(right):
    with pytest.raises(InputError, match=r"multiplies a term by itself.*write poly\(a, 2\)"):
        Schema(COLUMNS, formula=f"y ~ {right}")


@pytest.mark.parametrize(
    ("right", "said"),
    [
        ("C(a)", r"C\(a\) is for a column of levels.*declare Levels of a"),
        ("0 + poly(a, 2)", r"poly\(a\) needs an intercept"),
        ("a + poly(a, 2) + (1|g) - 1", r"poly\(a\) needs an intercept"),
    ],
)
def test_what_would_be_another_model_is_refused_by_name(right, said):
    with pytest.raises(InputError, match=said):
        Schema(COLUMNS, formula=f"y ~ {right}")


def test_a_factor_that_is_named_twice_counts_once():
    made = Schema(COLUMNS, formula="y ~ g:C(g) + a:g + C(g):a")
    assert made.terms == (("g",), ("a", "g"))


def test_a_label_without_a_constant_is_divided_by_its_larger_end():
    bare, offset = (
        Schema(COLUMNS | {"y": Range(-5, 40)}, formula=f"y ~ {right}") for right in ("0 + a", "0 + a + offset(log(a))")
    )
    table = TABLE.assign(y=np.linspace(-9, 50, N))
    found = bare.encode(table)
    np.testing.assert_allclose(found["y"], np.clip(table.y, -5, 40) / 40, rtol=1e-6)
    np.testing.assert_allclose(bare.label_of(found["y"]), np.clip(table.y, -5, 40), atol=1e-5)
    np.testing.assert_allclose(offset.encode(table)["offset"], np.log(TABLE.a) / 40, rtol=1e-5)


def test_thresholds_of_an_ordered_label_begin_at_first_levels():
    columns = COLUMNS | {"y": Levels(["low", "mid", "high"], ordered=True)}
    for right, first in (("0 + g + a", "g=u"), ("0 + a", None), ("a + g", "intercept")):
        made = Schema(columns, formula=f"y ~ {right}")
        theta = np.ones(made.num_features + 1)
        own = dict(zip(made.own_names, made.to_original_units(theta), strict=True))
        assert own["y>mid"] == pytest.approx(0.5 + (own[first] if first else 0.0))


def fitted(formula, table, columns):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dpmcmc.fit(formula, table, Schema(columns, label=formula.split()[0]), epsilon=20.0)


@pytest.fixture(scope="module")
def reported():
    """The table of the reports: z = 1.5a without an intercept, y = 2 + slope_g·a."""
    rng, n = np.random.default_rng(1), 5000
    table = pd.DataFrame({"a": rng.uniform(0, 10, n), "g": rng.choice(["u", "v", "w"], n)})
    table["z"] = 1.5 * table.a + rng.normal(0, 1, n)
    table["y"] = 2 + table.g.map({"u": 1.0, "v": 2.0, "w": 3.0}) * table.a + rng.normal(0, 1, n)
    return table


REPORTED = {"a": Range(0, 10), "g": Levels(["u", "v", "w"]), "y": Range(-5, 40), "z": Range(-5, 40)}


def columns_of(label):
    return {name: one for name, one in REPORTED.items() if name in ("a", "g", label)}


def test_a_line_through_zero_predicts_zero_at_zero(reported, tmp_path):
    result = fitted("z ~ 0 + a", reported, columns_of("z"))
    new = pd.DataFrame({"a": [0.0, 5.0, 10.0]})
    np.testing.assert_allclose(result.predict(new), [0, 7.5, 15], atol=0.1)
    assert result.summary().names == ("a",)
    assert result.summary().mean[0] == pytest.approx(1.5, abs=0.02)
    result.save(tmp_path / "run")
    again = dpmcmc.load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict(new), result.predict(new))
    assert again.summary().to_dict() == result.summary().to_dict()


def test_a_prior_holds_the_first_level_of_each_column_that_is_compared_with_it():
    from dpmcmc.estimators.own_units import encoded_priors
    from dpmcmc.mechanisms.noise_aware import Normal

    made = Schema(COLUMNS, formula="y ~ 0 + g + k")
    assert made.names == ("g=u", "g=v", "g=w", "k=p", "k=q")
    found = encoded_priors(made, {"k=q": Normal(1.0, 0.5), "g=v": Normal(3.0, 0.5)})
    assert [one is not None for one in found] == [False, True, False, True, True]
    own = made.to_original_units(np.array([0.0 if one is None else one.mean for one in found]))
    np.testing.assert_allclose(own, [17.5, 3, 17.5, 0, 1])
