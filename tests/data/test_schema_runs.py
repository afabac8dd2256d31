"""Runs, configs and pages that take a table by its schema."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.data import DataError, Levels, Range, Schema
from dpmcmc.data.split import split_rows
from dpmcmc.data.tables import refuse_no_schema
from dpmcmc.errors import InputError
from dpmcmc.privacy.ledger import Ledger
from tests.data.test_schema import SCHEMA, TABLE


def test_a_table_without_a_schema_gets_one_to_fill_in():
    enum = pl.DataFrame({"point": ["int"], "age": [3]}, schema={"point": pl.Enum(["int"]), "age": pl.Int8})
    for table in (pd.DataFrame(TABLE), pl.DataFrame(TABLE), pa.table(TABLE), TABLE):
        said = str(refuse_no_schema(table))
        assert "\n" not in said
        assert "'job': Levels([...])" in said
        assert "office" not in said
        if table is not TABLE:
            assert "'age': Range(low, high)" in said
    assert "'point': Levels([...]), 'age': Range(low, high)" in str(refuse_no_schema(enum))
    frame = pd.DataFrame({"owns": [True], "age": [3], "late": ["no"], "job": ["office"]})
    for table in (frame, pl.from_pandas(frame), pa.table(frame)):
        with pytest.raises(InputError) as caught:
            dpmcmc.fit("late ~ owns + age:owns", table)
        made = "{'owns': Levels([False, True]), 'age': Range(low, high), 'late': Levels([...])}, label='late')"
        assert str(caught.value).endswith(f"schema=Schema({made}")
    assert str(refuse_no_schema(frame, ["age", "no"])).endswith("Schema({'age': Range(low, high)}, label='...')")
    assert "'job'" in str(refuse_no_schema(frame, "late ~ ."))


def test_sample_takes_a_table_when_the_plan_has_a_schema():
    schema = Schema({"age": Range(0, 1), "y": Levels(["no", "yes"])}, label="y")
    frame = pd.DataFrame({"age": np.linspace(0, 1, 40), "y": ["no", "yes"] * 20})
    promise = {"epsilon": 1.0, "delta": 1e-3}
    plan = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(),
        num_records=40,
        sampler=dpmcmc.SGLD(step_size=0.1),
        steps=4,
        schema=schema,
        privacy=None,
    )
    assert (plan.target.num_features, plan.target.row_bound) == (2, 1.0)
    assert plan.describe().stated["schema"] == schema.to_yaml()
    assert dpmcmc.sample(plan, frame, key=0).draws.shape == (1, 4, 2)
    want = dpmcmc.sample(plan, schema.encode(frame), key=0).draws
    np.testing.assert_array_equal(dpmcmc.sample(plan, pl.from_pandas(frame), key=0).draws, want)
    by_name = {name: frame[name].tolist() for name in frame}
    np.testing.assert_array_equal(dpmcmc.sample(plan, by_name, key=0).draws, want)
    bare = dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(), num_records=40, sampler=dpmcmc.SGLD(step_size=0.1), steps=4, privacy=None
    )
    with pytest.raises(InputError, match=r"plan with schema=Schema\(\{'age': Range"):
        dpmcmc.sample(bare, frame, key=0)
    one_shot = dpmcmc.mechanisms.NoiseAware(draws=100, steps=32).plan(
        dpmcmc.targets.LogisticRegression(), num_records=40, schema=schema, **promise
    )
    assert one_shot.mechanism.structure == schema.structure
    assert one_shot.schema is schema
    with pytest.raises(InputError, match="has 5, and the data have 2"):
        schema.with_public_facts(dpmcmc.targets.LogisticRegression(num_features=5))
    with pytest.raises(InputError, match="has 3, and the data have 2"):
        schema.with_public_facts(dpmcmc.targets.SoftmaxRegression(num_classes=3))
    assert schema.with_public_facts(dpmcmc.targets.SoftmaxRegression()).num_classes == 2


CONFIG = """
name: late
data:
  path: people.csv
  num_records: 40
  test_fraction: 0.2
  schema:
    columns: {age: {range: [0, 1]}, job: {levels: [a, b], other: true}, late: {levels: ["no", "yes"]}}
    label: late
target: {name: logistic_regression}
sampler: {name: sgld, step_size: 0.1}
sampling: {scheme: full}
privacy: {epsilon: 1.0, delta: 1.0e-3}
run: {steps: 4}
"""
PEOPLE = pd.DataFrame(
    {"age": np.linspace(0, 1.5, 50), "job": [*"abcab"] * 10, "late": ["no", "yes"] * 25, "who": [*range(25)] * 2}
)


@pytest.mark.slow
def test_a_run_of_a_csv_keeps_its_schema_and_its_counts_to_itself(tmp_path, capsys):
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert main(["run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "run")]) == 0
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]["schema"]
    assert Schema.from_yaml(plan["schema"]) == Schema.from_yaml(kept)
    private = json.loads((tmp_path / "run" / "confidential" / "diagnostics.json").read_text())
    assert private["outside_schema"] == {"age": 17, "job": 10, "late": 0}
    assert "accuracy" in private
    released = [path.read_text(errors="ignore") for path in (tmp_path / "run").glob("*.*")]
    screen = capsys.readouterr().out
    assert not any("outside_schema" in text for text in (*released, screen))
    assert dpmcmc.load(tmp_path / "run").summary(most=12).table in screen


def test_rows_of_a_refusal_are_shown_at_a_terminal_alone(tmp_path, capsys, monkeypatch):
    (tmp_path / "people.csv").write_text("age,job,late\n1,a,no\n31415926x,b,no\n")
    (tmp_path / "c.yaml").write_text(CONFIG)
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)  # noqa: B023
        assert main(["run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "run")]) == 2
        error = capsys.readouterr().err
        assert "31415926" not in error
        assert error.splitlines()[1:] == (["rows, counted from 0: 1"] if terminal else [])


X = np.random.default_rng(0).uniform(0, 0.5, (40, 2))
Y = np.random.default_rng(1).integers(0, 2, 40)


def small_plan(schema):
    sampler = dpmcmc.SGLD(step_size=0.1)
    return dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(), num_records=40, sampler=sampler, steps=4, schema=schema, privacy=None
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda x, y: {"x": np.ma.array(x), "y": y}, r"data\['x'\] is a masked array"),
        (lambda x, y: {"x": x, "y": np.ma.array(y, mask=y == 1)}, r"data\['y'\] is a masked array"),
        (lambda x, y: {"x": pd.DataFrame(x), "y": y}, r"data\['x'\] is of type DataFrame"),
        (lambda x, y: {"x": x, "y": pd.Series(y, dtype="Int64")}, r"data\['y'\] is of type Series"),
        (lambda x, y: {"x": x, "y": pl.Series(y)}, r"data\['y'\] is of type Series"),
        (lambda x, y: {"x": x, "y": pa.array(y)}, r"data\['y'\] is of type Int64Array"),
        (lambda x, y: {"x": x.astype(object), "y": y}, r"data\['x'\] is of type ndarray and holds no plain numbers"),
        (lambda x, y: {"x": x.astype(str), "y": y}, r"data\['x'\] is of type ndarray and holds no plain numbers"),
        (lambda x, y: pl.DataFrame(x).lazy(), "LazyFrame is a query"),
        (lambda x, y: pd.Series(y), "an object of type Series is no table"),
    ],
)
@pytest.mark.parametrize("schema", [None, SCHEMA.with_formula("late ~ age")])
def test_records_that_are_no_arrays_of_numbers_are_refused_and_not_quoted(data, said, schema):
    """JAX's refusal of a data frame would show its first rows, and no conversion sees a mask."""
    plan = small_plan(schema)
    with pytest.raises(DataError, match=said) as refusal:
        dpmcmc.sample(plan, data(X, Y), key=0)
    assert "0." not in str(refusal.value)


def test_rows_to_predict_that_are_no_arrays_of_numbers_are_refused():
    result = dpmcmc.sample(small_plan(None), {"x": X, "y": pd.Series(Y)}, key=0)
    with pytest.raises(InputError, match="predict: x is a masked array"):
        result.predict(np.ma.array(X))
    with pytest.raises(InputError, match="predict: x has no row"):
        result.predict(X[:0])


def test_names_of_a_data_set_that_no_file_holds_are_refused_before_anything_is_charged(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    np.save(tmp_path / "mine" / "x.npy", np.zeros((40, 1), np.float32))
    np.save(tmp_path / "mine" / "y.npy", np.arange(40) % 2)
    (tmp_path / "mine" / "names.txt").write_text("a\0b")
    terms = {"name": "people", "num_records": 40, "adjacency": "replace_one"}
    ledger = Ledger.init(tmp_path / "people.ledger", **terms, epsilon=9.0, delta=1e-2)
    config = yaml.safe_load(CONFIG)
    config["data"] = {"path": "mine", "num_records": 40, "row_bound": 1.0}
    config["privacy"]["ledger"] = str(ledger.path)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    for content, said in ((b"a\0b", "holds NUL or a surrogate"), (b"\xff", "names in UTF-8")):
        (tmp_path / "mine" / "names.txt").write_bytes(content)
        assert main(["run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "run")]) == 2
        assert said in capsys.readouterr().err
        assert ledger.state().spent == 0
    with pytest.raises(InputError, match="holds NUL or a surrogate"):
        dpmcmc.data.DataSet(None, {}, None, False, "generated", {}, ("\ud800",))
    for name in ("a\0b", "a\nb"):
        pq.write_table(pa.table({name: [0.0, 1.0], "y": [0, 1]}), tmp_path / "t.parquet")
        with pytest.raises(InputError, match=r"NUL or a surrogate|line break"):
            dpmcmc.data.to_rows(tmp_path / "t.parquet", tmp_path / "rows", x=[name], y="y")


def test_a_config_takes_a_csv(tmp_path):
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    found = dpmcmc.data.load(yaml.safe_load(CONFIG)["data"], base_dir=str(tmp_path))
    schema = found.spec.schema
    whole = schema.encode(PEOPLE)
    train, _ = split_rows(50, 10)
    np.testing.assert_array_equal(found.train["x"], whole["x"][train])
    assert found.columns == schema.names == ("age", "job=a", "job=b", "job=other", "intercept")
    assert (found.spec.num_features, found.spec.row_bound, found.spec.num_classes) == (5, 1.0, 2)
    owned = {"owner": "who", "num_owners": 25, "records_per_owner": 2, "num_records": None}
    found = dpmcmc.data.load(yaml.safe_load(CONFIG)["data"] | owned, base_dir=str(tmp_path))
    assert found.train["x"].shape == (20, 2, 5)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.schema=null", "data.schema: schema: a table needs one"),
        ("data.row_bound=1.0", "data.row_bound: is said by the schema"),
        ("data.schema.label=z", "data.schema.label"),
        ("data.schema.colour=z", "data.schema.colour: unknown key"),
        ("data.schema.columns.age.wide=3", "data.schema.columns.age"),
        ("data.schema.formula=late ~ scale(age)", r"data.schema.formula: formula: scale\(\) would be fitted"),
        ("data.num_records=41", "data.num_records: declares 41"),
        (
            f"data.schema.columns.age.range=[0, 1{'0' * 400}]",
            "data.schema.columns.age: age: range: ends must be finite",
        ),
        ('data.schema.columns={"a\\0b": {range: [0, 1]}}', "data.schema.columns.*holds NUL or a surrogate"),
        ("data.path=empty.csv", "the table has no row"),
        ("data.path=ragged.csv", "some have more or fewer"),
    ],
)
def test_a_config_with_a_wrong_schema_is_one_sentence(override, said, tmp_path, capsys):
    PEOPLE.to_csv(tmp_path / "people.csv", index=False)
    PEOPLE[:0].to_csv(tmp_path / "empty.csv", index=False)
    (tmp_path / "ragged.csv").write_text("age,job,late\n1,a,no\n0.5,b\n")
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert main(["run", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "run"), "--set", override]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert re.search(said, error)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_python_of_the_page_runs_and_covers_its_own_truth(capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    first, refusal = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(first, names)
    assert capsys.readouterr().out.count("\n") == 5
    assert np.isfinite(names["per_year"]).all()
    exec(refusal, names)
    assert capsys.readouterr().out.startswith("data: column 'age' has text, or another value that is no number: ")
    assert names["rows"] == (*range(3000),)


def test_the_config_of_the_page_makes_a_plan(tmp_path, capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    config, chain = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for text in (config, config.replace("mechanism: {name: noise_aware}\n", chain)):
        (tmp_path / "late.yaml").write_text(text)
        assert main(["plan", str(tmp_path / "late.yaml")]) == 0  # there is no people.csv
        assert "5 features" in capsys.readouterr().out
