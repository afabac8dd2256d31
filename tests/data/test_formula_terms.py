"""Terms of a formula beside columns: offsets, survey weights, splines with public knots, polynomials and groups."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from scipy.interpolate import BSpline

import dpmcmc
from dpmcmc.audit.neighbours import strongest
from dpmcmc.data import Counts, DataError, Levels, Range, Schema, by_owner
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import predictive
from dpmcmc.mechanisms import (
    OPS,
    AdaSSP,
    CertifiedOPS,
    ObjectivePerturbation,
    OutputPerturbation,
    SufficientStatistics,
)
from dpmcmc.mechanisms.minimise import minimise
from dpmcmc.targets import (
    Custom,
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PerOwner,
    PoissonRegression,
    SoftmaxRegression,
)
from dpmcmc.targets.base import TargetError, bind, record_shapes
from dpmcmc.targets.checks import check_target
from dpmcmc.targets.predicting import by_row
from dpmcmc.targets.tempered import Tempered

COLUMNS = {
    "age": Range(20, 80),
    "income": Range(0, 1e4, scale="log1p"),
    "gap": Range(0, 1, missing=True),
    "clinic": Levels(["north", "south", "west"]),
    "job": Levels(["office", "field"]),
    "years": Range(0.5, 20),
    "w": Range(0, 4),
    "visits": Counts(50),
}
ROWS = 200


def table(rows=ROWS):
    rng = np.random.default_rng(0)
    return {
        "age": rng.uniform(10, 90, rows),
        "income": rng.uniform(0, 2e4, rows),
        "gap": rng.uniform(size=rows),
        "clinic": rng.choice(["north", "south", "west"], rows),
        "job": rng.choice(["office", "field"], rows),
        "years": rng.uniform(0.2, 25, rows),
        "w": rng.uniform(0, 5, rows),
        "visits": rng.poisson(3, rows),
    }


def schema(formula, **more):
    return Schema(COLUMNS, label="visits", formula=formula, **more)


def functions(formula, values, column="age"):
    """Encoded columns without the intercept, over the constants that they are multiplied by, (n, d − 1)."""
    made = schema(formula)
    x = made.encode_features({column: values})[:, :-1]
    (basis,) = (made._factors[name] for (name,) in made.terms)
    return made, x / made.row_scale / basis.scale


def test_b_splines_are_those_of_scipy_with_the_ends_of_the_range_as_outer_knots():
    ages = np.linspace(20, 80, 41)
    made, found = functions("visits ~ bs(age, knots=[30, 45, 60], degree=3)", ages)
    knots = [20.0] * 4 + [30, 45, 60] + [80.0] * 4
    want = BSpline.design_matrix(ages, knots, 3).toarray()[:, 1:]
    np.testing.assert_allclose(found, want, atol=1e-6)
    assert made.names == (*(f"bs(age)[{k}]" for k in range(1, 7)), "intercept")
    assert made.structure.nonnegative == tuple(range(6))
    assert schema("visits ~ bs(age, knots=[30, 45, 60])").names == made.names
    assert schema("visits ~ bs(age, knots=30, degree=1)").names == ("bs(age)[1]", "bs(age)[2]", "intercept")


def test_natural_splines_are_one_at_their_knot_and_straight_at_the_ends():
    _, at_knots = functions("visits ~ ns(age, knots=[30, 45, 60])", np.array([20, 30, 45, 60, 80]))
    np.testing.assert_allclose(at_knots, np.eye(5)[:, 1:], atol=1e-6)
    step = 0.5
    for end in (20, 80 - 2 * step):
        _, near = functions("visits ~ ns(age, knots=[30, 45, 60])", end + step * np.arange(3))
        curved = near[0] - 2 * near[1] + near[2]
        assert np.abs(curved).max() < 1e-3
    _, middle = functions("visits ~ ns(age, knots=[30, 45, 60])", 45 + step * np.arange(3))
    assert np.abs(middle[0] - 2 * middle[1] + middle[2]).max() > 1e-3


def test_polynomials_are_those_of_legendre_on_the_range():
    ages = np.linspace(20, 80, 11)
    made, found = functions("visits ~ poly(age, 2)", ages)
    t = (ages - 50) / 30
    np.testing.assert_allclose(found, np.stack([t, (3 * t**2 - 1) / 2], axis=1), atol=1e-6)
    assert made == schema("visits ~ poly(age, degree=2)") or made.names == ("poly(age)[1]", "poly(age)[2]", "intercept")


@pytest.mark.parametrize(
    "formula",
    [
        "visits ~ bs(age, knots=[30, 45, 60])",
        "visits ~ ns(age, knots=[21, 22, 79])",
        "visits ~ ns(age, knots=[50]) + poly(income, 5) + (1|clinic) + (age|clinic) + job - 1",
        "visits ~ poly(age, 10)",
        "visits ~ (age + income | clinic)",
    ],
)
def test_rows_with_made_columns_are_within_the_bound_and_the_structure_is_true(formula):
    made = schema(formula)
    ends = {**table(2001), "age": np.linspace(10, 90, 2001)}
    x = made.encode(ends)["x"]
    assert np.all((x.astype(float) ** 2).sum(axis=1) <= 1)
    assert x.shape == (2001, len(made.names))
    structure = made.structure
    structure.check(made.num_features)
    for block in structure.blocks:
        assert np.all((x[:, block] != 0).sum(axis=1) == 1)
        assert np.all(x[:, block].max(axis=1) == x[:, structure.constant])
    assert np.all(x[:, list(structure.nonnegative)] >= 0)
    assert structure.unit_norm == (not made.num_features) or not structure.unit_norm


def test_the_norm_of_natural_splines_comes_near_the_bound_and_never_beyond():
    made = schema("visits ~ ns(age, knots=[21, 22, 79]) - 1")
    norms = np.linalg.norm(made.encode_features({"age": np.linspace(20, 80, 200001)}).astype(float), axis=1)
    assert 0.999 < norms.max() <= 1


def predictions(made, rows, theta):
    return made.encode_features(rows) @ theta


def test_an_offset_is_the_log_of_the_clipped_exposure():
    made = schema("visits ~ age + offset(log(years))")
    given = Schema(COLUMNS, label="visits", formula="visits ~ age", offset="years")
    for one in (made, given):
        records, outside = one.encode_counted(table())
        assert records["offset"].dtype == np.float32
        np.testing.assert_allclose(records["offset"], np.log(np.clip(table()["years"], 0.5, 20)), rtol=1e-6)
        assert outside["years"] == np.sum((table()["years"] < 0.5) | (table()["years"] > 20)) > 0
        assert one.exposure == "years"
        assert one.names == ("age", "intercept")
        bound = one.leaf_facts["offset_bound"]
        assert bound == pytest.approx(np.log(20), rel=1e-6)
        assert np.abs(records["offset"]).max() <= bound
    everything = Schema(COLUMNS, label="visits", offset="years", weights="w")
    assert "years" not in everything.names
    assert "w" not in everything.names
    assert given.with_formula("visits ~ job").exposure == "years"
    assert made.with_formula("visits ~ job").exposure == ""


def test_an_offset_of_a_real_label_is_in_the_labels_units():
    columns = {**COLUMNS, "y": Range(0, 10)}
    made = Schema(columns, label="y", formula="y ~ 1 + age", offset="years")
    offset = made.encode({**table(), "y": np.zeros(ROWS)})["offset"]
    np.testing.assert_allclose(offset * 5, np.log(np.clip(table()["years"], 0.5, 20)), rtol=1e-6)


def test_weights_are_over_the_end_of_their_range_and_clipped_to_it():
    made = schema("visits ~ age", weights="w")
    records, outside = made.encode_counted(table())
    np.testing.assert_allclose(records["weight"], np.clip(table()["w"], 0, 4) / 4, rtol=1e-6)
    assert records["weight"].dtype == np.float32
    assert records["weight"].max() == 1
    assert outside["w"] == np.sum(table()["w"] > 4) > 0
    assert made.leaf_facts == {"weight_scale": 1.0}
    assert schema("visits ~ age", weights="w", mean_weight=0.5).leaf_facts == {"weight_scale": 8.0}


def test_a_schema_with_all_of_it_goes_to_yaml_and_back():
    made = schema("visits ~ bs(age, knots=[30]) + (1|clinic)", offset="years", weights="w", mean_weight=1.5)
    back = Schema.from_yaml(yaml.safe_load(yaml.safe_dump(made.to_yaml(), sort_keys=False)))
    for one in (back, copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert one == made
        assert hash(one) == hash(made)
        assert one.names == made.names
        np.testing.assert_array_equal(one.encode(table())["x"], made.encode(table())["x"])
    assert made != schema(made.formula, offset="years", weights="w")
    assert "offset" not in schema("visits ~ age").to_yaml()


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("bs(age)", r"bs\(\) without knots .* give public knots"),
        ("ns(age, df=3)", "give public knots"),
        ("bs(age, 4)", "give public knots"),
        ("bs(age, knots=[10])", r"must lie inside the range \(20, 80\)"),
        ("bs(age, knots=[20, 30])", "must lie inside"),
        ("ns(age, knots=[30, 90])", "must lie inside"),
        ("ns(age, knots=[60, 30])", "in increasing order"),
        ("ns(age, knots=[30, 30])", "in increasing order"),
        ("bs(age, knots=[])", "list of numbers"),
        ("bs(age, knots=[True])", "list of numbers"),
        ("bs(age, knots=age)", "list of numbers"),
        ("bs(age, knots=[30], degree=0)", "degree must be"),
        ("bs(age, knots=[30], degree=2.5)", "degree must be"),
        ("ns(age, knots=[30], degree=3)", "takes a column and knots alone"),
        ("bs(age, 3, knots=[30])", "takes a column and knots and degree alone"),
        ("poly(age, 99)", "degree must be"),
        ("poly(age, knots=[30])", "takes a column and degree alone"),
        ("bs(clinic, knots=[30])", "for a column with a range"),
        ("poly(gap, 2)", "without missing=True"),
        ("bs(height, knots=[30])", "height is no column"),
        ("bs(age + 1, knots=[30])", "the name of one column"),
        ("bs(age, knots=[30])[0]", "no public range"),
        ("bs(age, knots=[30]) + bs(age, knots=[40])", "two sets of numbers"),
        ("job:bs(age, knots=[30])", "is an interaction with bs"),
        ("age*(1|clinic)", r"is an interaction with \(1\|clinic\)"),
        ("(1|age)", "declare Levels of age"),
        ("(1|height)", "one column stands right of"),
        ("(1|clinic:job)", "one column stands right of"),
        ("(1|clinic/job)", "one column stands right of"),
        ("(age||clinic)", r"write \(1 \| g\)"),
        ("(0|clinic)", "1 or columns stand left"),
        ("(age:income|clinic)", "no interaction"),
        ("(job|clinic)", "the slope job"),
        ("(gap|clinic)", "the slope gap"),
        ("offset(years)", r"write offset\(log\(exposure\)\)"),
        ("offset(log(years + 1))", "the name of one column"),
        ("offset(log(age)) + offset(log(years))", "two columns are offsets"),
        ("offset(log(w))", "low > 0"),
        ("offset(log(income))", "low > 0"),
        ("offset(log(visits))", "beside the label"),
        ("age:offset(log(years))", "is an interaction with offset"),
    ],
)
def test_a_term_that_is_not_public_is_refused_with_a_remedy(formula, said):
    with pytest.raises(InputError, match=said) as refusal:
        schema(f"visits ~ 1 + {formula}")
    assert refusal.value.about in ("formula", "offset")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"offset": "height"}, "offset: 'height' is no column"),
        ({"offset": "w"}, "low > 0"),
        ({"offset": 3}, "must be texts"),
        ({"weights": "clinic"}, "low >= 0"),
        ({"weights": "visits"}, "beside the label"),
        ({"weights": "below"}, "low >= 0"),
        ({"weights": "w", "mean_weight": 9.0}, "within the range"),
        ({"weights": "w", "mean_weight": 0}, "within the range"),
        ({"mean_weight": 1.0}, "there are no weights"),
        ({"offset": "years", "formula": "visits ~ offset(log(age))"}, "give one"),
    ],
)
def test_an_impossible_offset_or_weight_is_refused(more, said):
    with pytest.raises(InputError, match=said):
        Schema({**COLUMNS, "below": Range(-1, 1)}, label="visits", **more)


def test_an_offset_of_a_label_of_several_classes_is_refused():
    columns = {"years": Range(0.5, 20), "age": Range(20, 80), "kind": Levels(["a", "b", "c"])}
    with pytest.raises(InputError, match="all classes"):
        Schema(columns, label="kind", offset="years")


def test_a_column_with_the_name_of_a_made_factor_is_refused():
    with pytest.raises(InputError, match="rename the column"):
        Schema({**COLUMNS, "bs(age)": Range(0, 1)}, label="visits", formula="visits ~ bs(age, knots=[30])")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("years", -1.0, "a number that is not above 0"),
        ("years", 0.0, "a number that is not above 0"),
        ("years", np.nan, "no value in some rows"),
        ("w", -0.1, "a negative number"),
        ("w", np.nan, "no value in some rows"),
    ],
)
def test_an_exposure_that_is_not_positive_and_a_negative_weight_are_refused(column, value, said):
    rows = table()
    rows[column][3] = value
    with pytest.raises(DataError, match=said) as refusal:
        schema("visits ~ age", offset="years", weights="w").encode(rows)
    assert refusal.value.rows == (3,)
    assert column in str(refusal.value)


FAMILIES = {
    "linear": LinearRegression(noise_scale=0.7),
    "logistic": LogisticRegression(),
    "poisson": PoissonRegression(),
    "negative binomial": NegativeBinomialRegression(dispersion=0.5),
    "softmax": SoftmaxRegression(num_classes=3),
}


def told(name, **facts):
    facts = {"weight_scale": 2.5, **({} if name == "softmax" else {"offset_bound": 2.0}), **facts}
    return type(FAMILIES[name])(**{**vars(FAMILIES[name]), **facts})


def records_of(name, rows=60, d=3):
    rng = np.random.default_rng(3)
    y = {"linear": rng.normal(size=rows), "softmax": rng.integers(0, 3, rows)}.get(name, rng.integers(0, 2, rows))
    found = {
        "x": (rng.uniform(-1, 1, (rows, d)) / np.sqrt(d)).astype(np.float32),
        "y": y.astype(np.float32 if name == "linear" else np.int32),
        "weight": rng.uniform(0, 1, rows).astype(np.float32),
    }
    return found if name == "softmax" else {**found, "offset": rng.uniform(-2, 2, rows).astype(np.float32)}


MARKS = {"logistic": (), "softmax": (pytest.mark.slow, pytest.mark.exhaustive)}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, (pytest.mark.slow,))) for name in FAMILIES])
def test_every_law_of_a_target_holds_with_offset_and_weight(name):
    """Closed forms agree with the generic path, bounds hold, and predictions are finite."""
    check_target(told(name, row_bound=1.0), records_of(name))
    if name in ("logistic", "softmax"):  # the wrapper is the same for all
        owners = by_owner(records_of(name), np.arange(60) // 3, num_owners=20, records_per_owner=3)
        check_target(PerOwner(told(name)), owners)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_log_likelihood_is_that_of_the_shifted_predictor_times_the_weight(name):
    records = records_of(name)
    target = bind(told(name), record_shapes(records))
    plain = bind(FAMILIES[name], {key: value for key, value in record_shapes(records).items() if key in "xy"})
    params = jax.random.normal(jax.random.key(0), target.init(jax.random.key(0)).shape)
    for i in range(5):
        one = {key: jnp.asarray(value[i]) for key, value in records.items()}
        # A row with the offset as a column whose coefficient is 1.
        shift = {"x": one["x"], "y": one["y"]}
        theta = params
        if name != "softmax":
            shift["x"] = jnp.append(one["x"], one["offset"])
            theta = jnp.append(params, 1.0)
        want = 2.5 * one["weight"] * plain.log_likelihood(theta, shift)
        np.testing.assert_allclose(target.log_likelihood(params, one), want, rtol=2e-5)


def test_label_blind_weights_see_the_offset_and_the_weight():
    records = records_of("logistic")
    target = bind(told("logistic"), record_shapes(records))
    params = jnp.array([3.0, -2.0, 1.0])
    mask = jnp.ones(60, bool)
    clip = 0.2
    found = target.clipped_gradient_sum(params, target.prepared(records), mask, clip, label_blind=True)
    margin = records["x"] @ np.asarray(params) + records["offset"]
    p = 1 / (1 + np.exp(-margin))
    norm = np.linalg.norm(records["x"], axis=1)
    strength = 2.5 * records["weight"]
    weight = np.minimum(1, clip / np.maximum(strength * np.maximum(p, 1 - p) * norm, 1e-30))
    want = ((weight * strength * (p - records["y"]))[:, None] * records["x"]).sum(axis=0)
    np.testing.assert_allclose(found.to_float(clip, 21), want, atol=1e-3)


@pytest.mark.parametrize("name", ["linear", "logistic", "softmax"])
def test_loss_bounds_cover_losses_of_every_weight(name):
    target = told(name, row_bound=1.0, **({"label_bound": 1.0} if name == "linear" else {}))
    records = records_of(name, 2000)
    records["y"] = np.clip(records["y"], -1, 1) if name == "linear" else records["y"]
    records["weight"][:100] = 0
    target = bind(target, record_shapes(records))
    shape = target.init(jax.random.key(0)).shape
    largest, difference = target.loss_bounds(2.0)
    for seed in range(5):
        params = jax.random.normal(jax.random.key(seed), shape)
        params = 2 * params / jnp.linalg.norm(params)
        losses = -jax.vmap(target.log_likelihood, (None, 0))(params, records)
        assert np.abs(losses).max() <= largest
        assert np.max(losses) - np.min(losses) <= difference
    if name == "logistic":
        assert difference > 2.5 * (2 + 2.0)  # a weight of 0 has a smaller loss than any label


def test_the_posterior_of_a_weighted_linear_regression_is_that_of_repeated_records():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    offset = rng.uniform(-1, 1, 30)
    y = x @ [1.0, -1.0] + offset + rng.normal(size=30)
    times = rng.integers(0, 4, 30)
    target = LinearRegression(offset_bound=1.0, weight_scale=3.0)
    mean, covariance = target.posterior({"x": x, "y": y, "offset": offset, "weight": times / 3})
    want, spread = LinearRegression().posterior({"x": np.repeat(x, times, 0), "y": np.repeat(y - offset, times)})
    np.testing.assert_allclose(mean, want)
    np.testing.assert_allclose(covariance, spread)


def test_arrays_that_a_target_does_not_declare_are_refused_and_so_are_missing_ones():
    records = records_of("logistic")
    for leaf, fact in (("offset", "offset_bound"), ("weight", "weight_scale")):
        one = {"x": records["x"], "y": records["y"], leaf: records[leaf]}
        with pytest.raises(TargetError, match=f"states no {fact}"):
            bind(LogisticRegression(), record_shapes(one))
        with pytest.raises(TargetError, match=f"no array '{leaf}'"):
            bind(LogisticRegression(**{fact: 1.0}), record_shapes({"x": records["x"], "y": records["y"]}))
    with pytest.raises(DataError, match=r"public range \[0, 1\]"):
        told("logistic").check_records({**records, "weight": records["weight"] + 0.5})
    with pytest.raises(DataError, match=r"public range \[-2, 2\]"):
        told("linear").check_records({**records, "offset": records["offset"] * 2})
    with pytest.raises(InputError, match="all classes alike"):
        SoftmaxRegression(num_classes=3, offset_bound=1.0)
    unknown = Custom(lambda key: jnp.zeros(2), lambda p: 0.0, lambda p, r: 0.0)
    with pytest.raises(UnsupportedCombination, match="takes no weight"):
        schema("visits ~ age", weights="w").with_public_facts(unknown)


SMALL = {"num_records": ROWS, "epsilon": 1.0, "delta": 1e-3}


@pytest.mark.parametrize(
    "mechanism",
    [
        AdaSSP(),
        SufficientStatistics(),
        ObjectivePerturbation(),
        OutputPerturbation(),
        CertifiedOPS(),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_mechanism_without_a_derivation_refuses_an_offset(mechanism):
    linear = type(mechanism).__name__ in ("AdaSSP", "SufficientStatistics")
    kind = LinearRegression(label_bound=1.0) if linear else LogisticRegression()
    facts = {"num_features": 2, "row_bound": 1.0}
    target = type(kind)(**{**vars(kind), **facts, "offset_bound": 1.0})
    with pytest.raises(UnsupportedCombination, match="no derivation for records with an offset") as refusal:
        mechanism.plan(target, **SMALL)
    assert refusal.value.about == "offset"
    weighted = type(kind)(**{**vars(kind), **facts, "weight_scale": 1.0})
    if "weight" in mechanism.honours:
        assert mechanism.plan(weighted, **SMALL).guarantee.epsilon <= 1
    else:
        with pytest.raises(UnsupportedCombination, match="no derivation for records with a weight"):
            mechanism.plan(weighted, **SMALL)


def test_a_minimiser_of_weighted_losses_is_that_of_repeated_records():
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (400, 2))
    y = (rng.uniform(size=400) < 1 / (1 + np.exp(-4 * x[:, 0]))).astype(np.int32)
    times = rng.integers(0, 3, 400)
    facts = {"num_features": 2, "row_bound": 1.0}
    weighted = LogisticRegression(weight_scale=2.0, **facts)
    found, _ = minimise(weighted, {"x": x, "y": y, "weight": times / 2}, 5.0, tolerance=1e-8)
    again = {"x": np.repeat(x, times, 0), "y": np.repeat(y, times)}
    want, _ = minimise(LogisticRegression(**facts), again, 5.0, tolerance=1e-8)
    np.testing.assert_allclose(found, want, atol=1e-7)


def test_which_records_are_strongest_is_not_known_with_an_offset():
    target = LogisticRegression(num_features=2, row_bound=1.0, offset_bound=1.0)
    plan = OPS(prior_precision=1.0).plan(target, **SMALL)
    with pytest.raises(UnsupportedCombination, match="strongest"):
        strongest(plan)


def test_a_run_on_a_table_with_an_offset_finds_the_rate():
    """A Poisson rate a year is found where years differ, and predictions are for the years that are asked for."""
    rng = np.random.default_rng(0)
    n = 2000
    years = np.exp(rng.uniform(np.log(0.5), np.log(20), n))
    age = rng.uniform(20, 80, n)
    visits = rng.poisson(years * np.exp(-1.5 + (age - 50) / 60))
    people = {"age": age, "years": years, "visits": visits}
    made = Schema(
        {"age": Range(20, 80), "years": Range(0.5, 20), "visits": Counts(200)},
        formula="visits ~ age + offset(log(years))",
    )
    plan = dpmcmc.plan(
        PoissonRegression(prior_scale=3.0),
        num_records=n,
        sampler=dpmcmc.SGLD(step_size=0.1),
        steps=400,
        burn_in=200,
        schema=made,
        privacy=None,
    )
    assert plan.target.offset_bound == pytest.approx(np.log(20), rel=1e-6)
    result = dpmcmc.sample(plan, people)
    slope, intercept = made.to_original_units(result.flat_draws().mean(axis=0))
    assert slope == pytest.approx(1 / 60, abs=0.003)
    assert intercept + 50 * slope == pytest.approx(-1.5, abs=0.1)
    at_fifty = result.predict({"age": [50.0, 50.0], "years": [1.0, 10.0]})
    np.testing.assert_allclose(at_fifty, np.exp(-1.5) * np.array([1, 10]), rtol=0.1)
    x = made.encode_features({"age": [50.0, 50.0]})
    np.testing.assert_allclose(result.predict(x, offset=np.log([1.0, 10.0])), at_fifty, rtol=1e-5)
    with pytest.raises(InputError, match=r"predict\(x, offset=...\)"):
        result.predict(x)
    with pytest.raises(InputError, match="one number for each row"):
        result.predict(x, offset=np.zeros(3))
    assert "age" in str(result.summary())


def test_predictions_use_the_offset_and_leave_the_weight_out():
    records = records_of("poisson")
    target = bind(told("poisson"), record_shapes(records))
    draws = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    found = predictive.predict(target, draws, records)
    rates = np.exp(draws @ records["x"].T + records["offset"])
    np.testing.assert_allclose(found.mean, rates.mean(axis=0), rtol=1e-5)
    plain, rows = by_row(Tempered(target, 0.5), records)
    assert rows["x"].shape == (60, 4)
    assert "weight" not in rows
    np.testing.assert_allclose(plain.predict(draws[0], rows["x"]), rates[0], rtol=1e-5)


def test_a_private_run_takes_weights_and_its_summary_names_groups():
    made = schema("visits ~ age + (1|clinic) + ns(income, knots=[100])", offset="years", weights="w", mean_weight=2.0)
    plan = dpmcmc.plan(
        NegativeBinomialRegression(prior_scale=2.0),
        num_records=ROWS,
        sampler=dpmcmc.SGLD(step_size=0.5),
        steps=20,
        privacy=dpmcmc.Privacy(epsilon=2.0, delta=1e-3, clip=1.0),
        schema=made,
    )
    result = dpmcmc.sample(plan, table())
    said = str(result.summary())
    for name in ("1|clinic=south", "ns(log1p(income))[2]", "intercept"):
        assert name in said
    assert plan.target.weight_scale == 2.0
    assert "weight_scale=2.0" in repr(plan.target)
    with pytest.raises(TargetError, match="no array 'offset'"):
        dpmcmc.sample(plan, {name: made.encode(table())[name] for name in ("x", "y")})


def test_a_draw_from_a_ball_charges_losses_of_every_weight():
    facts = {"num_features": 2, "row_bound": 1.0}
    plain, weighted = (
        OPS("range", radius=1.0).plan(LogisticRegression(**facts, **more), **SMALL).settings["temper"]
        for more in ({}, {"weight_scale": 1.0, "offset_bound": 1.0})
    )
    assert plain > weighted
