"""A law, by metamorphosis: in every container, one row of a table decides its own encoded row and nothing else."""

import contextlib
import datetime
import decimal
import enum

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow.feather import write_feather
from pyarrow.parquet import write_table

from dpmcmc.data import DataError, Levels, Range, Schema, load, to_rows
from dpmcmc.data.containers import read_values
from dpmcmc.data.values import word
from dpmcmc.estimators import PrivateLogisticRegression

D = decimal.Decimal
BIG = 2**53
LEVELS = Levels([1, 2, BIG, BIG + 1, 0.5, 0.1, "a", "b", "01", "é", True], other=True, missing=True)
WORDS = Schema({"g": LEVELS, "y": Levels([0, 1])}, formula="y ~ g")
NUMBERS = Schema({"g": Range(-4, 4, missing=True), "y": Levels([0, 1])}, formula="y ~ g")

#: Values of one kind that a container may hold; None is missing.
WHOLE = [1, 2, 3, 0, -1, None]
HUGE = [*WHOLE, BIG, BIG + 1, -BIG - 1, 2**63 - 1]
REAL = [1.0, 0.5, 2.0, -0.0, 3.75, float("inf"), float(BIG), None]
TRUTH = [True, False, None]
TEXT = ["a", "b", "01", "1", "1.0", "2", "é", "True", "", "c", None]
DECIMAL = [D("1"), D("1.0"), D("0.5"), D("2.00"), D("0.10"), D("3.25"), None]
ANY = [*HUGE, *REAL, *TRUTH, *TEXT, *DECIMAL, 10**400, D("NaN"), D("sNaN"), float("nan")]
BIT128 = [*HUGE, 2**100]


def arrow(kind):
    return lambda values: pa.array(values, kind)


def dictionary(kind):
    """An Arrow dictionary whose entries are all values that occur, which differ with the rows."""
    return lambda values: pa.array(values, kind).dictionary_encode()


def null_entry(values):
    """A dictionary that has null for an entry, beside nulls that are no entry."""
    entries = [None, *sorted({value for value in values if value is not None}, reverse=True)]
    codes = [None if value is None and k % 2 else entries.index(value) for k, value in enumerate(values)]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int16()), pa.array(entries, pa.string()))


def runs(kind):
    def made(values):
        ends = [*range(2, len(values) + 2)]  # and one row before, which the slice leaves out
        array = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array([*values], kind))
        return array.slice(1, len(values))

    return made


def chunks(make):
    """Chunks of one and two rows, each with a dictionary of its own."""

    def made(values):
        cuts = [*range(0, len(values), 3)]
        parts = [part for at in cuts for part in (values[at : at + 1], values[at + 1 : at + 3]) if part]
        return pa.chunked_array([make(part) for part in parts])

    return made


def masked(dtype):
    """A masked array with a number beneath the mask that no unmasked one has."""

    def made(values):
        held = [77 if value is None else value for value in values]
        return np.ma.array(np.array(held, dtype), mask=[value is None for value in values])

    return made


def structured(values):
    return masked([("g", float)])([None if value is None else (value,) for value in values])["g"]


def fields(values):
    held = np.array([(77 if v is None else v, v is None) for v in values], [("g", int), ("gone", bool)])
    return np.ma.array(held["g"], mask=held["gone"])


def series(dtype=None):
    return lambda values: pd.Series(values, dtype=dtype)


def sparse(values):
    return pd.Series(pd.arrays.SparseArray([np.nan if value is None else value for value in values]))


def unused(values):
    return pd.Series(pd.Categorical(values, [*"zyx", *sorted({v for v in values if v is not None} - {*"zyx"})]))


def enumeration(values):
    return pl.Series(values, dtype=pl.Enum([v for v in TEXT if v is not None]))


def scalars(values):
    kinds = {int: np.int64, float: np.float64, bool: np.bool_, str: np.str_}
    return [kinds.get(type(value), lambda value: value)(value) for value in values]


def gone(values):
    """Every way to say that a value is missing."""
    ways = [None, float("nan"), pd.NA, pd.NaT, np.ma.masked, D("NaN"), D("sNaN")]
    return [ways[k % len(ways)] if value is None else value for k, value in enumerate(values)]


CONTAINERS = {
    "list": (ANY, list),
    "tuple": (ANY, tuple),
    "list of NumPy's scalars": (HUGE + REAL + TRUTH + TEXT, scalars),
    "list, missing in many ways": (HUGE + REAL + TEXT, gone),
    "NumPy objects": (ANY, lambda values: np.fromiter(values, object, len(values))),
    "NumPy whole": ([v for v in HUGE if v is not None], lambda values: np.array(values, np.int64)),
    "NumPy unsigned": ([1, 2, BIG, BIG + 1, 2**64 - 1], lambda values: np.array(values, np.uint64)),
    "NumPy other byte order": ([1, 2, 3], lambda values: np.array(values, ">i4")),
    "NumPy float64": (REAL, lambda values: np.array(values, float)),
    "NumPy float32": (REAL, lambda values: np.array(values, np.float32)),
    "NumPy long double": (REAL, lambda values: np.array(values, np.longdouble)),
    "NumPy truth": ([True, False], np.array),
    "NumPy unicode": ([v for v in TEXT if v is not None], lambda values: np.array(values, "U")),
    "NumPy StringDType": (TEXT, lambda values: np.array(values, np.dtypes.StringDType(na_object=None))),
    "masked whole": (HUGE, masked(np.int64)),
    "masked real": (REAL, masked(float)),
    "masked truth": (TRUTH, masked(bool)),
    "masked objects": (HUGE + REAL + TEXT, masked(object)),
    "masked structured": (REAL, structured),
    "masked field": (WHOLE, fields),
    "pandas, inferred": (WHOLE, series()),
    "pandas objects": (ANY, series(object)),
    "pandas float": (REAL, series(float)),
    "pandas Int64": (HUGE, series("Int64")),
    "pandas Float64": (REAL, series("Float64")),
    "pandas boolean": (TRUTH, series("boolean")),
    "pandas str": (TEXT, series("str" if pd.__version__ >= "3" else "string")),
    "pandas string, Python's": (TEXT, series("string[python]")),
    "pandas string, Arrow's": (TEXT, series("string[pyarrow]")),
    "pandas categories": (TEXT, series("category")),
    "pandas categories of numbers": (HUGE, lambda values: pd.Series(pd.Categorical(pd.array(values, "Int64")))),
    "pandas categories that do not occur": (TEXT, unused),
    "pandas categories of all kinds": (HUGE + TEXT, lambda values: pd.Series(values, dtype=object).astype("category")),
    "pandas sparse": (REAL, sparse),
    "pandas index": (TEXT, lambda values: pd.Index(values, dtype=object)),
    "pandas, Arrow's int64": (HUGE, series("int64[pyarrow]")),
    "pandas, Arrow's dictionary": (TEXT, series(pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string())))),
    "polars Int64": (HUGE, lambda values: pl.Series(values, dtype=pl.Int64)),
    "polars Int128": (BIT128, lambda values: pl.Series(values, dtype=pl.Int128)),
    "polars Float32": (REAL, lambda values: pl.Series(values, dtype=pl.Float32)),
    "polars Boolean": (TRUTH, lambda values: pl.Series(values, dtype=pl.Boolean)),
    "polars String": (TEXT, lambda values: pl.Series(values, dtype=pl.String)),
    "polars Categorical": (TEXT, lambda values: pl.Series(values, dtype=pl.Categorical)),
    "polars Enum": (TEXT, enumeration),
    "polars Decimal": (DECIMAL, lambda values: pl.Series(values, dtype=pl.Decimal(38, 4))),
    "polars Object": (HUGE + TEXT, lambda values: pl.Series(values, dtype=pl.Object)),
    "polars Null": ([None], lambda values: pl.Series(values, dtype=pl.Null)),
    "Arrow int64": (HUGE, arrow(pa.int64())),
    "Arrow uint64": ([1, BIG + 1, 2**64 - 1, None], arrow(pa.uint64())),
    "Arrow half": ([1.0, 0.5, None], lambda values: pa.array([v if v is None else np.float16(v) for v in values])),
    "Arrow double": (REAL, arrow(pa.float64())),
    "Arrow bool": (TRUTH, arrow(pa.bool_())),
    "Arrow string": (TEXT, arrow(pa.string())),
    "Arrow string view": (TEXT, arrow(pa.string_view())),
    "Arrow decimal128": (DECIMAL, arrow(pa.decimal128(20, 3))),
    "Arrow null": ([None], arrow(pa.null())),
    "Arrow dictionary": (TEXT, dictionary(pa.string())),
    "Arrow dictionary of numbers": (HUGE, dictionary(pa.int64())),
    "Arrow dictionary with a null": (TEXT, null_entry),
    "Arrow dictionary, chunked": (TEXT, chunks(dictionary(pa.string()))),
    "Arrow int64, chunked": (HUGE, chunks(arrow(pa.int64()))),
    "Arrow runs": (TEXT, runs(pa.string())),
    "Arrow runs, chunked": (TEXT, chunks(runs(pa.string()))),
}
#: Columns that become Arrow's, which has no objects of Python, no sparse columns, and no whole numbers of 128 bits.
STORED = [
    name
    for name in CONTAINERS
    if name.startswith(("Arrow", "pandas", "polars"))
    and not any(word in name for word in ("objects", "kinds", "sparse", "128", "Object"))
] + ["Arrow decimal128"]


def encoded(schema, column, count):
    return schema.encode({"g": column, "y": [0] * count})["x"]


def alone(schema, values):
    """Every value encoded in a list of one."""
    rows = {}
    for value in values:
        if (key := (type(value), repr(value))) not in rows:
            rows[key] = encoded(schema, [value], 1)[0]
    return np.array([rows[type(value), repr(value)] for value in values])


def tables_of(pool):
    """Small tables, which lack most values of a pool, and large ones, which have them all."""
    rng = np.random.default_rng(0)
    sizes = [*rng.integers(1, 8, 25), 40, 40]
    yield from ([pool[k] for k in rng.integers(len(pool), size=size)] for size in sizes)


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_row_is_encoded_as_its_value_alone_in_every_container(name):
    """So that one changed row changes no other one, whatever value it has or lacks."""
    pool, make = CONTAINERS[name]
    of_words = any(type(value) is str for value in pool)
    for schema in (WORDS,) if of_words else (WORDS, NUMBERS):
        for values in tables_of(pool):
            rows = encoded(schema, make(values), len(values))
            np.testing.assert_array_equal(rows, alone(schema, values), str(values))


@pytest.mark.parametrize("name", STORED)
def test_the_same_holds_of_parquet_and_feather_files(name, tmp_path):
    pool, make = CONTAINERS[name]
    rng = np.random.default_rng(1)
    values = [pool[k] for k in rng.integers(0, len(pool), 30)]
    column = make(values)
    if isinstance(column, pl.Series):
        table = pl.DataFrame({"g": column, "y": [0] * 30}).to_arrow()
    elif isinstance(column, pa.Array | pa.ChunkedArray):
        table = pa.table({"g": column, "y": [0] * 30})
    else:
        table = pa.Table.from_pandas(pd.DataFrame({"g": column, "y": 0}))
    written = []
    for path, write in ((tmp_path / "t.parquet", write_table), (tmp_path / "t.feather", write_feather)):
        with contextlib.suppress(pa.ArrowException, NotImplementedError):  # no such file can be of this type
            write(table, path)
            written.append(path)
    assert written
    for path in written:
        np.testing.assert_array_equal(WORDS.encode(path)["x"], alone(WORDS, values))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i1", "i8", "u8", "?"])
def test_changing_one_row_of_an_archive_changes_no_other_row(dtype, tmp_path):
    rng = np.random.default_rng(2)
    values = rng.uniform(-1, 1, (20, 2)) if "f" in dtype else rng.integers(0, 2, (20, 2))
    records = {"x": values.astype(dtype), "y": rng.integers(0, 2, 20)}

    def rows(x):
        np.savez(tmp_path / "mine.npz", **records | {"x": x})
        return load(tmp_path / "mine.npz", row_bound=None if dtype in ("i8", "u8") else 2.0).train["x"]

    before = rows(records["x"])
    for place, value in ((3, 1), (7, 0), (11, 2**62 if dtype in ("i8", "u8") else 1)):
        neighbour = records["x"].copy()
        neighbour[place] = value
        changed = (rows(neighbour) != before).any(axis=1)
        assert not np.delete(changed, place).any()


@pytest.mark.parametrize("write", [write_table, write_feather])
@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (pa.float64(), 6e4),
        (pa.float32(), 6e4),
        (pa.float16(), np.float16(6e4)),
        (pa.int64(), 2**60),
        (pa.uint64(), 2**60),
        (pa.int8(), 127),
        (pa.bool_(), True),
    ],
)
def test_changing_one_row_of_a_file_changes_no_other_row_of_its_folder(kind, other, write, tmp_path):
    rng = np.random.default_rng(3)
    pool = rng.uniform(0, 3, 30) if pa.types.is_floating(kind) else rng.integers(0, 2, 30)
    values = [type(other)(value) for value in pool]
    file = tmp_path / ("t.parquet" if write is write_table else "t.feather")

    def rows(value):
        changed = pa.array([*values[:5], value, *values[6:]], kind)
        write(pa.table({"a": changed, "y": [0, 1] * 15}), file)
        to_rows(file, tmp_path / str(value), x=["a"], y="y")
        return np.load(tmp_path / str(value) / "x.npy")

    changed = (rows(type(other)(0)) != rows(other)).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [5]


FRAMES = {
    "list": lambda rows: rows,
    "NumPy": lambda rows: np.array(rows, float),
    "NumPy objects": lambda rows: np.array(rows, object),
    "pandas": lambda rows: pd.DataFrame(rows, columns=["a", "b"]),
    "pandas objects": lambda rows: pd.DataFrame(rows, columns=["a", "b"], dtype=object),
    "pandas, nullable": lambda rows: pd.DataFrame(rows, columns=["a", "b"]).astype("Float64"),
    "polars": lambda rows: pl.DataFrame(rows, schema=["a", "b"], orient="row", strict=False),
}


@pytest.mark.parametrize("name", FRAMES)
def test_changing_one_row_of_an_estimator_changes_no_other_record(name, monkeypatch):
    """scikit-learn makes one array of all rows, whose type may depend on one of them."""

    class Encoded(Exception):
        pass

    encode = Schema.encode

    def encoded(self, table):
        raise Encoded(encode(self, table))

    monkeypatch.setattr(Schema, "encode", encoded)
    rng = np.random.default_rng(4)
    rows = [[int(a), float(b)] for a, b in zip(rng.integers(-3, 4, 400), rng.uniform(-2, 2, 400), strict=True)]
    labels = [int(k % 2) for k in range(400)]

    def records(rows, labels):
        with pytest.raises(Encoded) as found:
            PrivateLogisticRegression(ranges=(-3, 3)).fit(FRAMES[name](rows), labels)
        return found.value.args[0]

    before = records(rows, labels)
    for value in (0.3, 2**53 + 1, True, -0.0, 1e300, 7):
        after = records([*rows[:9], [value, 0.5], *rows[10:]], [*labels[:9], 1.0, *labels[10:]])
        assert set(np.flatnonzero((after["x"] != before["x"]).any(axis=1))) <= {9}
        assert set(np.flatnonzero(after["y"] != before["y"])) <= {9}


class Colour(enum.Enum):
    RED = "red"


REFUSED = {
    "dates": pd.to_datetime(["2020-01-01", None]),
    "intervals": pd.Series(pd.interval_range(0, 2)),
    "NumPy dates": np.array(["2020", "NaT"], "M8[D]"),
    "NumPy bytes": np.array([b"a", b"b"]),
    "NumPy complex": np.array([1j, 1]),
    "NumPy records": np.zeros(2, [("a", int)]),
    "NumPy two columns": np.zeros((2, 2)),
    "Arrow dates": pa.array([0, None], pa.date32()),
    "Arrow bytes": pa.array([b"a", None]),
    "Arrow lists": pa.array([[1], None]),
    "Arrow extension": pa.array([b"0" * 16, None], pa.uuid()),
    "Arrow dictionary of dates": pa.array([0, None], pa.date32()).dictionary_encode(),
    "polars dates": pl.Series([datetime.date(2020, 1, 1), None]),
    "polars lists": pl.Series([[1], None]),
    "polars lists of an enumeration": pl.Series([["secret"], None], dtype=pl.List(pl.Enum(["secret"]))),
    "a data frame of pandas": pd.DataFrame({"a": [1]}),
    "a data frame of polars": pl.DataFrame({"a": [1]}),
    "a lazy frame": pl.DataFrame({"a": [1]}).lazy(),
    "a table of Arrow": pa.table({"a": [1]}),
    "a date of pandas": pd.Timestamp("2020"),
    "text": "ab",
    "number": 3,
    "mapping": {"a": 1},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_without_numbers_texts_or_truth_values_is_refused_by_its_name(name):
    with pytest.raises(DataError, match="column 'g'") as refusal:
        read_values("g", REFUSED[name])
    assert refusal.value.rows == ()
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "value",
    [
        *(datetime.date(1923, 4, 5), pd.Timestamp("1923"), np.datetime64("1923"), np.timedelta64(1, "s")),
        *(b"secret", ["secret"], {"secret": 1}, ("secret",), Colour.RED, 1j, object(), np.array([1, 2])),
    ],
)
def test_a_value_of_another_kind_is_refused_and_not_quoted(value):
    with pytest.raises(DataError, match="values that are no number, text or truth value") as refusal:
        read_values("g", ["a", value, None])
    assert refusal.value.rows == (1,)
    assert "secret" not in str(refusal.value)
    assert "1923" not in str(refusal.value)


def test_bytes_that_are_no_text_are_a_value_of_their_own_row():
    """Arrow's conversion of a whole column fails on them, with a message that quotes them."""
    buffers = [None, pa.py_buffer(np.array([0, 1, 2, 3], np.int32)), pa.py_buffer(b"a\xffb")]
    array = pa.Array.from_buffers(pa.string(), 3, buffers)
    assert read_values("g", array).values.tolist() == ["a", "\udcff", "b"]
    assert encoded(WORDS, array, 3)[:, LEVELS.names.index("other")].astype(bool).tolist() == [False, True, False]


def test_an_entry_that_a_dictionary_lacks_is_refused():
    array = pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array(["a"]), safe=False)
    with pytest.raises(DataError, match="column 'g' is damaged"):
        read_values("g", array)


@pytest.mark.parametrize(
    ("levels", "takes"),
    [
        ([1], [[1, 1.0, D("1.00"), "1", "1.0", "1e0", " 1 "], ["01", "+1", True, "one", 1.5]]),
        (["1"], [[1, 1.0, D("1.00"), "1", " 1"], ["1.0", "01", True]]),
        (["01", "1"], [["01"], ["1", 1, 1.0], ["1.0", "001"]]),
        (["250.0", "250.00", 7], [["250.0"], ["250.00"], [7, "7.0"], [250.0]]),
        ([True, False], [[True, "True", "true", "TRUE"], [False, "false"], [1, 0.0, "1", "tRue"]]),
        (["true", "no"], [[True, "true"], ["no"], ["True", 1, False]]),
        ([BIG, BIG + 1], [[BIG, float(BIG), str(BIG)], [BIG + 1, D(BIG + 1), str(BIG + 1)], [BIG + 2]]),
        ([0.1, 0.5], [[0.1, D("0.1"), "0.1", "0.10"], [0.5, D("0.50")], [D(0.1), np.float32(0.1), ".5"]]),
        ([D("0.1000000000000000000000000000001")], [[D("0.1000000000000000000000000000001")], [0.1]]),
        ([10**400], [[10**400, D("1e400"), "1e400"], [float("inf"), 10**400 + 1]]),
        ([-1, 0], [[-1, "-1", "-1.0"], [0, -0.0, "-0", D("-0")], [False]]),
    ],
)
def test_a_level_takes_a_value_by_its_kind_and_exactly(levels, takes):
    """Values that each level takes, and then those that none does; docs/data.md says the rule."""
    kind = Levels(levels, other=True)
    for code, values in enumerate(takes):
        for value in values:
            assert kind.codes(read_values("g", [value]))[0].tolist() == [code], value


@pytest.mark.parametrize("levels", [[1, 1.0], [1, "1"], [1, D("1.0")], [True, "true"], [" a", "a"], [0.1, "0.1"]])
def test_a_level_that_is_there_twice_is_refused(levels):
    with pytest.raises(ValueError, match="is there twice"):
        Levels(levels)


def test_levels_of_two_kinds_are_not_equal():
    assert Levels([0, 1]) != Levels([False, True])
    assert Levels([0, 1]) == Levels([0.0, D("1")])
    schemas = [Schema({"g": Levels(levels), "y": Levels([0, 1])}, label="y") for levels in ([0, 1], [False, True])]
    assert schemas[0] != schemas[1]
    for schema in schemas:
        assert Schema.from_yaml(schema.to_yaml()) == schema


def test_a_ledger_knows_a_table_by_texts_that_readers_have_in_common():
    column = read_values("g", [1, 1.0, "1", " 01", True, "TRUE", None, 2.5, "x ", 10**400, D("1.50"), float("inf")])
    words = ["1", "1", "1", "1", "true", "true", None, "2.5", "x", hex(10**400), "1.5", "inf"]
    assert column.words() == words
    assert word(BIG + 1) == "9007199254740992.0"
