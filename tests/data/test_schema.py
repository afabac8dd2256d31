"""A schema: how a table becomes records, by public ranges and levels alone."""

import copy
import os
import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import yaml

from dpmcmc.data import Counts, DataError, Levels, Range, Schema
from dpmcmc.data.formula import of_names
from dpmcmc.errors import InputError

SCHEMA = Schema(
    {
        "age": Range(17, 90),
        "income": Range(0, 1e5, scale="log1p", missing=True),
        "job": Levels(["office", "field"], other=True),
        "region": Levels([1, 2, 3], missing=True),
        "late": Levels(["no", "yes"]),
    },
    label="late",
)
TABLE = {
    "age": [20.0, 40.0, 100.0, 17.0],
    "income": [None, 0.0, 500.0, 2e5],
    "job": ["office", "field", "sea", "office"],
    "region": [1, None, 3, 2],
    "late": ["no", "yes", "yes", "no"],
    "unused": [1, 2, 3, 4],
}
ROWS = 4


def same(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


def test_a_row_is_what_the_page_says():
    found = SCHEMA.encode(TABLE)
    assert SCHEMA.names == (
        *("age", "income", "income=missing", "job=office", "job=field", "job=other"),
        *("region=1", "region=2", "region=3", "region=missing", "intercept"),
    )
    c = SCHEMA.row_scale
    assert c == pytest.approx(1 / np.sqrt(5), rel=1e-7)
    age = (np.array([20, 40, 90, 17]) - 53.5) / 36.5
    income = 2 * np.log1p([0, 0, 500, 1e5]) / np.log1p(1e5) - 1
    income[0] = 0
    np.testing.assert_allclose(found["x"][:, 0] / c, age, rtol=1e-6)
    np.testing.assert_allclose(found["x"][:, 1] / c, income, rtol=1e-6, atol=1e-7)
    hot = [[1, 1, 0, 0, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 1, 0, 0]]
    np.testing.assert_array_equal(found["x"][:, 2:10] / np.float32(c), hot)
    np.testing.assert_array_equal(found["x"][:, 10], np.float32(c))
    np.testing.assert_array_equal(found["y"], [0, 1, 1, 0])
    assert found["y"].dtype == np.int32
    assert found["x"].dtype == np.float32


def test_every_source_gives_the_same_records(tmp_path):
    want = SCHEMA.encode(TABLE)
    frame = pd.DataFrame(TABLE)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_feather(tmp_path / "t.feather")
    (tmp_path / "parts").mkdir()
    frame[:1].to_parquet(tmp_path / "parts" / "a.parquet")
    frame[1:].to_parquet(tmp_path / "parts" / "b.parquet")
    sources = {
        "pandas": frame,
        "pandas, categories": frame.astype({"job": "category", "region": "Int64"}),
        "pandas, objects": frame.astype(object),
        "pandas, another index": frame.set_index(np.arange(ROWS)[::-1]),
        "polars": pl.DataFrame(TABLE),
        "polars, categories": pl.DataFrame(TABLE).with_columns(pl.col("job").cast(pl.Categorical)),
        "arrow": pa.table(TABLE),
        "arrow, dictionary": pa.table({**TABLE, "job": pa.array(TABLE["job"]).dictionary_encode()}),
        "record batch": pa.record_batch(TABLE),
        **{file: tmp_path / file for file in ("t.csv", "t.parquet", "t.feather", "parts")},
        "text": str(tmp_path / "t.csv"),
    }
    for name, source in sources.items():
        assert same(SCHEMA.encode(source), want), name
        assert np.array_equal(SCHEMA.encode_features(source), want["x"]), name
        assert SCHEMA.encode_counted(source)[1] == {"age": 1, "income": 1, "job": 1, "region": 0, "late": 0}, name


@pytest.mark.parametrize("blocks", range(1, 40))
def test_the_row_bound_holds_exactly_in_float32(blocks):
    schema = Schema({f"x{k}": Range(-1, 1) for k in range(blocks)} | {"y": Counts(3)}, label="y", intercept=False)
    for value in (-1, 1, 2):
        x = schema.encode({**{f"x{k}": [value] for k in range(blocks)}, "y": [0]})["x"].astype(np.float64)
        assert 1 - 1e-6 < (x**2).sum() <= 1


def test_the_structure_is_true_of_every_row():
    rng = np.random.default_rng(0)
    table = {
        "age": rng.uniform(0, 100, 50),
        "income": np.where(rng.random(50) < 0.3, np.nan, rng.uniform(0, 2e5, 50)),
        "job": rng.choice(["office", "field", "x"], 50),
        "region": rng.choice([1, 2, 3], 50),
        "late": rng.choice(["no", "yes"], 50),
    }
    only_levels = Schema({name: SCHEMA.columns[name] for name in ("job", "region", "late")}, label="late")
    crossed = SCHEMA.with_formula("late ~ age + job + region + income + job:region + age:job")
    for schema in (SCHEMA, only_levels, crossed, crossed.with_formula("late ~ job + income - 1")):
        x, structure = schema.encode(table)["x"], schema.structure
        structure.check(schema.num_features)
        assert x.shape == (50, len(schema.names))
        for block in structure.blocks:
            assert np.all((x[:, block] != 0).sum(axis=1) == 1)
            assert np.all(x[:, block].max(axis=1) == x[:, structure.constant])
        assert np.all(x[:, list(structure.nonnegative)] >= 0)
        exact = np.allclose(np.linalg.norm(x, axis=1), 1, atol=1e-6)
        assert exact == structure.unit_norm == (schema is only_levels)
        assert np.all((x.astype(float) ** 2).sum(axis=1) <= 1)
    assert crossed.structure.blocks[2] == tuple(range(10, 22))
    assert crossed.names[10] == "job=office:region=1"


def test_yaml_takes_a_schema_there_and_back():
    crossed = SCHEMA.with_formula("late ~ age + C(job) + age:job - 1")
    assert crossed.names == ("age", *(f"{pre}job={k}" for pre in ("", "age:") for k in ("office", "field", "other")))
    for schema in (SCHEMA, crossed, Schema({"n": Counts(9), "x": Range(-1, 1)}, label="n")):
        back = Schema.from_yaml(yaml.safe_load(yaml.safe_dump(schema.to_yaml(), sort_keys=False)))
        for one in (back, copy.deepcopy(schema), pickle.loads(pickle.dumps(schema))):
            assert one == schema
            assert hash(one) == hash(schema)
            assert one.names == schema.names
    assert crossed != SCHEMA


def test_labels_of_every_kind():
    x = {"x": [0, 1, 1]}
    for column, values, want, kind in (
        (Levels(["a", "b"]), ["b", "a", "b"], [1, 0, 1], "binary"),
        (Levels(["a", "b", "c"]), ["b", "c", "a"], [1, 2, 0], "classes"),
        (Counts(5), [0, 7, 2], [0, 5, 2], "count"),
        (Range(0, 10), [0, 5, 20], [-1, 0, 1], "real"),
    ):
        schema = Schema({"x": Range(0, 1), "y": column}, label="y")
        y = schema.encode({**x, "y": values})["y"]
        np.testing.assert_array_equal(y, want)
        assert y.dtype == (np.float32 if kind == "real" else np.int32)
        assert schema.outcome.kind == kind
        assert schema.outcome.num_classes == {"binary": 2, "classes": 3}.get(kind)
        assert schema.outcome.bounds == {"count": (0, 5), "real": (-1, 1)}.get(kind)


SECRET = "31415926"


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("age", ["x" + SECRET, 20], "has text, or another value that is no number"),
        ("age", ["x" + SECRET, None], "has text, or another value that is no number"),
        ("age", [None, float(SECRET)], "no value in some rows"),
        ("age", pd.to_datetime([SECRET[:4], "2020"]), "datetime64"),
        ("age", np.zeros((2, 2)), "shape"),
        ("age", [[SECRET], 3], "no number, text or truth value"),
        ("job2", [SECRET, "office"], "a value that is no level"),
        ("late", [SECRET, "no"], "a value that is no level"),
        ("late", [None, "no"], "no value in some rows"),
        ("n", [float(SECRET) + 0.5, 1], "no whole number"),
        ("n", [1, 2, 3], "differ in length"),
    ],
)
def test_a_refusal_names_the_column_and_no_value(column, values, said):
    columns = {**SCHEMA.columns, "job2": Levels(["office"])}
    label = "n" if column == "n" else "late"
    schema = Schema(columns | {label: Counts(3) if column == "n" else columns["late"]}, label=label)
    table = {name: TABLE.get(name, ["office"] * 4)[2:] for name in columns} | {"n": [1, 2], column: values}
    with pytest.raises(DataError) as refusal:
        schema.encode(table)
    assert said in str(refusal.value)
    assert column in str(refusal.value)
    assert SECRET[:4] not in str(refusal.value)
    assert refusal.value.rows == (
        (0,) if "shape" not in said and "datetime" not in said and "length" not in said else ()
    )


def test_a_missing_column_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(DataError, match="0 columns 'age'"):
        SCHEMA.encode({name: TABLE[name] for name in TABLE if name != "age"})
    with pytest.raises(DataError, match="no file"):
        SCHEMA.encode(tmp_path / "gone.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="is no CSV file"):  # and does not wait for a writer
        SCHEMA.encode(tmp_path / "pipe.csv")
    (tmp_path / "bad.csv").write_text(f"a,b\n1,{SECRET},3\n")
    with pytest.raises(DataError, match="some have more or fewer") as refusal:
        SCHEMA.encode(tmp_path / "bad.csv")
    assert SECRET not in str(refusal.value)
    assert refusal.value.rows == (0,)
    (tmp_path / "twice.csv").write_text("age, age\n1,2\n")
    with pytest.raises(DataError, match="no column, or one twice"):
        SCHEMA.encode(tmp_path / "twice.csv")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (pd.DataFrame(TABLE)[:0], "the table has no row"),
        ({name: [] for name in TABLE}, "the table has no row"),
        (pd.DataFrame(), "0 columns"),
        (pl.DataFrame(TABLE, strict=False).lazy(), "LazyFrame is a query .* collect"),
        (pd.Series(TABLE["age"]), "an object of type Series is no table"),
        (pl.Series(TABLE["age"]), "an object of type Series is no table"),
        (pa.array(TABLE["age"]), "an object of type DoubleArray is no table"),
        (pa.table(TABLE).to_reader(), "an object of type RecordBatchReader is no table"),
        (np.zeros((4, 2)), "an object of type ndarray is no table"),
        (None, "an object of type NoneType is no table"),
        ({**TABLE, "age": 3}, "column 'age' is of type int"),
        ({**TABLE, "age": "abcd"}, "column 'age' is of type str"),
    ],
)
def test_what_is_no_table_is_refused_with_one_sentence(table, said):
    for encode in (SCHEMA.encode, SCHEMA.encode_features):
        with pytest.raises(DataError, match=said):
            encode(table)


def test_columns_are_found_by_what_their_names_are_written_as():
    schema = Schema({"0": Range(0, 1), "1": Levels([0, 1])}, label="1")
    want = schema.encode({"0": [0.0, 1.0], "1": [0, 1]})
    held = np.array([(0.0, 0), (1.0, 1)], [("0", float), ("1", int)])
    tables = {
        "pandas": pd.DataFrame([[0.0, 0], [1.0, 1]]),
        "keys": {0: [0.0, 1.0], 1: [0, 1]},
        "structured": held,
        "records": held.view(np.recarray),
        "masked": np.ma.array(held),
    }
    for name, table in tables.items():
        assert same(schema.encode(table), want), name
    with pytest.raises(DataError, match="2 columns '0'"):
        schema.encode({0: [0.0], "0": [1.0], 1: [0]})


@pytest.mark.parametrize(
    ("make", "about"),
    [
        (lambda: Range(1, 1), "low"),
        (lambda: Range(-2, 1, scale="log1p"), "low"),
        (lambda: Range(0, float("inf")), "low"),
        (lambda: Range(0, 10**400), "low"),
        (lambda: Range(-(10**5000), 10**5000), "low"),
        (lambda: Range(1e308, 1.7e308), "low"),
        (lambda: Range(0, 5e-324), "low"),
        (lambda: Range(1e300, 1e300 * (1 + 2**-50), scale="log1p"), "low"),
        (lambda: Range(0, 1, scale="log"), "scale"),
        (lambda: Levels([]), "levels"),
        (lambda: Levels("ab"), "levels"),
        (lambda: Levels(["other"], other=True), "levels"),
        (lambda: Levels([None]), "levels"),
        (lambda: Levels([float("nan")]), "levels"),
        (lambda: Levels([Decimal("sNaN")]), "levels"),
        (lambda: Levels([Decimal("1e999999999")]), "levels"),
        (lambda: Levels([10**5000]), "levels"),
        (lambda: Levels([["a"]]), "levels"),
        (lambda: Levels([b"a"]), "levels"),
        (lambda: Counts(0), "largest"),
        (lambda: Counts(2**31), "largest"),
        (lambda: Counts(10**5000), "largest"),
        (lambda: Schema({"x": Range(0, 1), "y": Counts(3)}, formula="y ~ x\0"), "formula"),
        (lambda: Schema({"x": Range(0, 1), "y": Counts(3)}, formula=3), "formula"),
        (lambda: Schema.from_yaml(yaml.safe_load('{columns: {"a\\0": {range: [0, 1]}}, label: y}')), "columns"),
        (lambda: Schema.from_yaml({"columns": {"x": {"range": [0, 10**400]}}, "label": "x"}), "columns.x"),
        (lambda: Schema({"x": Range(0, 1)}, label="y"), "label"),
        (lambda: Schema({"x": Range(0, 1), "y": Levels(["a"])}, label="y"), "label"),
        (lambda: Schema({"x": Counts(3), "y": Counts(3)}, label="y"), "columns.x"),
        (lambda: Schema({"x": {"range": [0]}, "y": Counts(3)}, label="y"), "columns.x"),
        (lambda: Schema({"x": {"ranges": [0, 1]}, "y": Counts(3)}, label="y"), "columns.x"),
        (lambda: Schema({"x": {"range": [0, 1], "other": True}, "y": Counts(3)}, label="y"), "columns.x"),
        (lambda: Schema({"intercept": Range(0, 1), "y": Counts(3)}, label="y"), "columns"),
        (lambda: Schema.from_yaml({"columns": {}, "levels": 3}), ""),
    ],
)
def test_impossible_schemas_are_refused_by_name(make, about):
    with pytest.raises(InputError) as refusal:
        make()
    assert refusal.value.about == about


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("late ~ scale(age)", r"scale\(\) would be fitted to the data"),
        ("late ~ center(age)", r"center\(\)"),
        ("late ~ poly(age)", r"poly\(\): degree"),
        ("late ~ bs(age, df=4)", r"bs\(\) .* give public knots"),
        ("late ~ age + job:standardize(age)", r"standardize\(\)"),
        ("late ~ np.log(age)", r"np.log\(\) of a column has no public range"),
        ("late ~ height", "height is no column"),
        ("late ~ age + late", "label late is a feature"),
        ("late ~ (age", "is no formula"),
        ("late ~ age | job", "one right side"),
        ("age + late ~ job", "one column stands left"),
    ],
)
def test_a_formula_that_is_not_public_is_refused_with_its_name(formula, said):
    with pytest.raises(InputError, match=said) as refusal:
        SCHEMA.with_formula(formula)
    assert refusal.value.about == "formula"


@pytest.mark.parametrize(
    "name", ["x-1", "a:b", "my age", "1", "C", "class", "x", "`", "a`b``c", "y ~ x", "log(x)", "é"]
)
def test_a_list_of_names_is_no_formula(name):
    schema = Schema({name: Levels([0, 1]), "x ": Range(0, 1), "y": Levels([0, 1])}, label="y")
    for names, intercept in (([name], True), ([name, "x "], False)):
        chosen = schema.with_formula(of_names("y", names, intercept))
        assert chosen.terms == tuple((one,) for one in names)
        assert chosen.intercept == intercept
        assert Schema.from_yaml(chosen.to_yaml()).terms == chosen.terms
    crossed = schema.with_formula(f"y ~ C(`{name.replace('`', '``')}`):`x `")
    assert crossed.terms == ((name, "x "),)


def test_a_formula_chooses_columns_and_multiplies_them():
    crossed = SCHEMA.with_formula("late ~ age*C(job)")
    plain, x = SCHEMA.encode(TABLE)["x"], crossed.encode(TABLE)["x"]
    unit, found = plain / np.float32(SCHEMA.row_scale), x / np.float32(crossed.row_scale)
    np.testing.assert_allclose(found[:, :4], unit[:, [0, 3, 4, 5]], rtol=1e-6)
    np.testing.assert_allclose(found[:, 4:7], unit[:, [0]] * unit[:, 3:6], rtol=1e-6)
    assert crossed.row_scale == 0.5
    assert SCHEMA.with_formula("age + job").label == "late"
    np.testing.assert_array_equal(SCHEMA.with_formula("late ~ 1").encode(TABLE)["x"], np.ones((ROWS, 1)))
