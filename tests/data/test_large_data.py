"""Records larger than memory: folders of .npy files, and Parquet and Arrow files turned over into them."""

import json
import os
import re
import stat
import sys

import numpy as np
import pytest
import xarray
import yaml

import dpmcmc
from dpmcmc import data
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.config import make_plan
from dpmcmc.data import DataError, checks, conversion, to_rows
from dpmcmc.engine.checked_records import checked
from dpmcmc.privacy import Ledger
from dpmcmc.storage import record_blocks
from tests.peak_memory import printed

N, D = 300, 3
rng = np.random.default_rng(4)
X = (rng.uniform(-0.5, 0.5, size=(N, D))).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def save(folder, **arrays):
    folder.mkdir(exist_ok=True)
    for name, array in ({"x": X, "y": Y} | arrays).items():
        if array is not None:
            np.save(folder / f"{name}.npy", array)
    return folder


@pytest.fixture
def write(tmp_path):
    return lambda **arrays: save(tmp_path / "mine", **arrays)


def config(folder, path="mine", **sections):
    body = {
        "name": "mine",
        "data": {"path": str(path), "num_records": N, "row_bound": 1.0},
        "target": {"name": "logistic_regression", "prior_scale": 1.0},
        "sampler": {"name": "sgld", "step_size": 0.5},
        "sampling": {"scheme": "poisson", "batch_size": 30},
        "privacy": {"epsilon": 5.0, "delta": 1e-4, "accountant": "rdp", "insecure_noise_seed": 1},
        "run": {"steps": 40},
    } | sections
    (folder / "mine.yaml").write_text(yaml.safe_dump({key: body[key] for key in body if body[key] is not None}))
    return str(folder / "mine.yaml")


# A folder of .npy files.


def test_a_folder_is_mapped_and_not_read(write, monkeypatch):
    monkeypatch.setattr(record_blocks, "_BLOCK_BYTES", 1000)
    folder = write(y=Y.astype(np.float64), x_test=X[:5], y_test=Y[:5].astype(float))
    found = data.load(path=folder, config={}, num_records=N, row_bound=1.0)
    assert record_blocks.on_disk(found.train)
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in found.train.values())
    np.testing.assert_array_equal(found.train["x"], X)
    assert not any(isinstance(array, np.memmap) for array in found.test.values())
    assert [array.dtype for array in found.test.values()] == [np.float32, np.float32]
    assert found.spec == data.describe(path=folder, config={}, num_records=N, row_bound=1.0)
    assert (found.test_is_public, found.sha256, found.columns) == (False, {}, ("x[0]", "x[1]", "x[2]"))


def _with(value, *rows):
    x = X.copy()
    x[list(rows), 1] = value
    return x


def _labels(value, *rows):
    y = Y.astype(type(value)) if isinstance(value, float) else Y.astype(np.int64)
    y[list(rows)] = value
    return y


@pytest.mark.parametrize(
    ("arrays", "options", "words", "rows"),
    [
        ({"x": None}, {}, r"no file .*x\.npy", ()),
        ({}, {"y": "label"}, r"no file .*label\.npy", ()),
        ({}, {"x": "../mine/x"}, "data.x: .* is no name of a file", ()),
        ({}, {"test_fraction": 0.1}, r"data.test_fraction: .*store test rows as x_test\.npy and y_test\.npy", ()),
        ({}, {"owner": "who", "num_owners": 3, "records_per_owner": 2}, "data.owner: .*one .npz file", ()),
        ({}, {"num_records": N - 1}, "data.num_records: declares 299 training records, and x.npy has 300", ()),
        ({}, {"num_features": 4}, "^data.num_features: declares 4 features, and 'x' in .* has 3", ()),
        ({"y": Y[:-1]}, {}, "'x' has 300 rows and 'y' has 299", ()),
        ({"x": X[:, 0]}, {}, r"'x' has shape \(300,\)", ()),
        ({"x": X[:0], "y": Y[:0]}, {}, r"x\.npy has shape \(0, 3\)", ()),
        ({"y": Y[:, None]}, {}, r"'y' has shape \(300, 1\)", ()),
        ({"x": np.asfortranarray(X)}, {}, "by columns .*ascontiguousarray", ()),
        ({"x": (X * 10).astype(int)}, {}, "type int64: store float32", ()),
        ({"x": X.astype(">f4")}, {}, "byte order", ()),
        ({"y": np.full(N, "cat")}, {}, "whole numbers or floats", ()),
        ({"x": X.astype(object)}, {}, "Python objects", ()),
        ({"x_test": X}, {}, r"no file .*y_test\.npy", ()),
        ({"x_test": X[:, :2], "y_test": Y}, {}, "'x_test' has 2 features and 'x' has 3", ()),
        # Rows, of which the holder alone is told.
        ({"y": _labels(-1, 7, 290)}, {}, "integers that are no class numbers", (7, 290)),
        ({"y": _labels(2**40, 299)}, {}, "integers that are no class numbers", (299,)),
        ({"y": _labels(np.nan, 250)}, {}, "some rows hold NaN", (250,)),
        ({"x": _with(np.nan, 120, 130)}, {}, "some rows hold NaN", (120, 130)),
        ({"x": X.astype(float) * 1e300}, {}, "NaN or a value too large", (*range(N),)),
        ({"x": _with(1.01, 41, 290)}, {"row_bound": 1.0}, "l2 norm above .*raise row_bound", (41, 290)),
        ({"x_test": _with(np.inf, 3), "y_test": Y}, {}, "some rows hold NaN", (3,)),
    ],
)
def test_an_unusable_folder_is_refused_and_its_holder_told_which_rows(write, arrays, options, words, rows, monkeypatch):
    monkeypatch.setattr(record_blocks, "_BLOCK_BYTES", 1000)
    folder = write(**arrays)
    with pytest.raises(DataError, match=words) as refusal:
        data.load(path=folder, config={}, **options)
    assert refusal.value.rows == rows
    said = str(refusal.value).replace(str(folder), "").replace("float32", "")
    assert not any(str(row) in said for row in rows if row > 9)


def test_a_file_that_is_not_what_its_header_says_is_refused(write):
    folder = write()
    whole = (folder / "x.npy").read_bytes()
    longer = whole.replace(b"(300, 3)", b"(3000,3)")
    assert len(longer) == len(whole)
    for spoilt, words in (
        (whole[:-1], "damaged: its header states"),
        (whole + b"0", "damaged: its header states"),
        (longer, "damaged: its header states"),
        (whole.replace(b"(300, 3)", b"(-30,-3)"), "damaged"),
        (whole[:40], "damaged or is no .npy file"),
        (b"x,y\n1,2\n", "damaged or is no .npy file"),
        (b"", "damaged or is no .npy file"),
    ):
        (folder / "x.npy").write_bytes(spoilt)
        with pytest.raises(DataError, match=words):
            data.load(path=folder, config={})


@pytest.mark.optimised
def test_rows_beyond_the_bound_by_rounding_stay_and_the_mechanisms_draw_them_back(write):
    long = (X / np.linalg.norm(X, axis=1, keepdims=True) * (1 + 3e-7)).astype(np.float32)
    assert (checks.norms(long) > 1).any()
    found = data.load(path=write(x=long), config={}, row_bound=1.0).train
    np.testing.assert_array_equal(found["x"], long)
    target = dpmcmc.targets.LogisticRegression(1.0, num_features=D, row_bound=1.0)
    plan = dpmcmc.mechanisms.OutputPerturbation().plan(
        target, num_records=N, epsilon=1.0, delta=1e-4, adjacency="replace_one"
    )
    assert np.linalg.norm(checked(found, plan.target, plan.num_records, reads_sums=False)["x"], axis=1).max() <= 1.0


def test_the_guarantee_of_a_sampler_does_not_rest_on_the_bound_of_rows():
    def guarantee(bound):
        return dpmcmc.plan(
            dpmcmc.targets.LogisticRegression(1.0, row_bound=bound),
            num_records=N,
            sampler=dpmcmc.SGLD(step_size=0.5),
            sampling=dpmcmc.Poisson(30),
            steps=20,
            privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-4, accountant="rdp"),
        ).guarantee

    assert guarantee(1.0) == guarantee(1e-3) == guarantee(None)


def test_a_model_of_numpyro_is_asked_block_by_block(write, monkeypatch):
    import numpyro
    import numpyro.distributions as dist

    def model(x, y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(rate / (1 + rate)), obs=y)

    monkeypatch.setattr(record_blocks, "_BLOCK_BYTES", 2000)
    target = dpmcmc.targets.from_numpyro(model)
    good = data.load(path=write(), config={}).train
    target = target.bind(dpmcmc.targets.record_shapes(good))
    target.check_records(good)
    bad = data.load(path=write(y=_labels(2, 290)), config={}).train
    with pytest.raises(DataError, match="y: some rows are outside the support") as caught:
        target.check_records(bad)
    assert caught.value.rows == (290,)


# A run on one.


@pytest.mark.optimised
@pytest.mark.slow
def test_a_run_gives_the_draws_of_the_same_records_in_memory(tmp_path, capsys):
    save(tmp_path / "mine", x_test=X[:50], y_test=Y[:50])
    path = config(tmp_path)
    assert main(["run", path, "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    assert "on disk   no fit without privacy, which reads all records" in capsys.readouterr().out
    inside = dpmcmc.sample(make_plan(config_file.load(path)), {"x": X, "y": Y}, key=1).draws
    # The noise of this config is known and its records are not public, so its draws are confidential.
    path = tmp_path / "out" / "confidential" / "draws.nc"
    with xarray.open_dataset(path, group="path", engine="h5netcdf") as draws:
        np.testing.assert_allclose(draws["theta"].values, inside, rtol=1e-4, atol=1e-6)
    kept = json.loads((tmp_path / "out" / "confidential" / "diagnostics.json").read_text())
    assert kept["train"] is None
    assert "lie on disk" in kept["skipped"]
    assert "non_private" not in kept
    assert kept["accuracy"]["mean"] > 0.4  # of the test rows, which are not public
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["accuracy"] is None


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {
                "mechanism": {"name": "ops"},
                "privacy": {"epsilon": 1.0, "delta": 1e-4},
                **dict.fromkeys(("sampler", "sampling", "run")),
            },
            "mechanism: ops computes from all records at once",
        ),
        ({"sampling": {"scheme": "full"}}, "sampling: memory-mapped records need minibatches"),
        ({"data": {"path": "mine", "num_records": N, "test_fraction": 0.5}}, "data.test_fraction: rows cannot be held"),
    ],
)
def test_what_needs_all_records_is_refused_before_anything_is_spent(sections, words, tmp_path, capsys):
    save(tmp_path / "mine")
    ledger = Ledger.init(
        tmp_path / "mine.ledger", name="mine", epsilon=9.0, delta=1e-3, adjacency="replace_one", num_records=N
    )
    sections = {"privacy": {"epsilon": 1.0, "delta": 1e-4, "accountant": "rdp"}} | sections
    sections["privacy"]["ledger"] = str(ledger.path)
    assert main(["run", config(tmp_path, **sections), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert ledger.state().spent == 0


# Parquet and Arrow.


def table(**columns):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table({"a": X[:, 0], "b": X[:, 1].astype(np.float64), "c": X[:, 2], "label": Y} | columns)


def store(path, content):
    import pyarrow.feather
    import pyarrow.parquet

    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(content, path, row_group_size=70)
    else:
        pyarrow.feather.write_feather(content, path, compression="lz4", chunksize=70)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columns_become_rows_in_the_order_that_is_asked(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "_BATCH_BYTES", 13 * 12)  # batches that do not divide row groups
    source = store(tmp_path / f"t{suffix}", table())
    made = to_rows(source, tmp_path / "mine", x=["c", "a", "b"], y="label", test=source)
    assert made == conversion.WrittenRows(tmp_path / "mine", N, 3, "int32", N)
    for end in ("", "_test"):
        np.testing.assert_array_equal(np.load(tmp_path / "mine" / f"x{end}.npy"), X[:, [2, 0, 1]])
        np.testing.assert_array_equal(np.load(tmp_path / "mine" / f"y{end}.npy"), Y)
    assert sorted(os.listdir(tmp_path)) == ["mine", f"t{suffix}"]  # nothing temporary is left
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "mine").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    found = data.load(path=tmp_path / "mine", config={}, num_records=N)
    assert found.train["x"].dtype == np.float32
    assert found.columns == ("c", "a", "b")
    (tmp_path / "mine" / "names.txt").write_text("c\na")
    with pytest.raises(DataError, match="2 names, one a line, for 3 features"):
        data.load(path=tmp_path / "mine", config={}, num_records=N)


def test_the_files_of_a_folder_follow_each_other(tmp_path):
    whole = table()
    (tmp_path / "t" / "part=2").mkdir(parents=True)
    store(tmp_path / "t" / "b.arrow", whole.slice(100, 50))
    store(tmp_path / "t" / "a.parquet", whole.slice(0, 100))
    store(tmp_path / "t" / "part=2" / "a.parquet", whole.slice(150))
    store(tmp_path / "t" / "c.parquet", whole.slice(0, 0))
    (tmp_path / "t" / "_SUCCESS").write_text("")
    assert to_rows(tmp_path / "t", tmp_path / "mine", x=["a", "b", "c"], y="label").num_records == N
    np.testing.assert_array_equal(np.load(tmp_path / "mine" / "x.npy"), X)
    (tmp_path / "t" / "rest.csv").write_text("a,b\n")
    with pytest.raises(DataError, match=r"holds rest\.csv, which is neither"):
        to_rows(tmp_path / "t", tmp_path / "again", x=["a"], y="label")


def _null(values, row):
    return [None if k == row else value for k, value in enumerate(values.tolist())]


@pytest.mark.parametrize(
    ("columns", "options", "words", "row"),
    [
        ({}, {"x": ["a", "z"]}, "has 0 columns 'z'; name one of a, b, c, label", None),
        ({}, {"y": "z"}, "has 0 columns 'z'", None),
        ({}, {"x": ["a", "label"]}, "each named once", None),
        ({}, {"x": []}, "one or more features", None),
        ({"a": ["cat"] * N}, {}, "column 'a' holds string: turn it into numbers", None),
        ({"label": ["cat"] * N}, {}, "column 'label' holds string", None),
        ({"a": [[1.0]] * N}, {}, "a column of lists stands alone", None),
        ({"a": [[]] * N}, {"x": "a"}, "an empty list", None),
        ({"a": [["cat"]] * N}, {"x": "a"}, "column 'a' holds string", None),
        # Rows, of which the holder alone is told.
        ({"a": [[1.0, 2.0]] * 200 + [[1.0]] * 100}, {"x": "a"}, "'a' has lists of unequal length", 200),
        ({"a": [[1.0, 2.0]] * 299 + [[1.0, None]]}, {"x": "a"}, "column 'a' holds nulls", 299),
        ({"a": [[1.0, 2.0]] * 299 + [None]}, {"x": "a"}, "column 'a' holds nulls", 299),
        ({"b": _null(X[:, 1], 142)}, {}, "column 'b' holds nulls", 142),
        ({"label": _null(Y, 250)}, {}, "column 'label' holds nulls", 250),
        ({"b": _with(np.nan, 233)[:, 1]}, {}, "some rows hold NaN", 233),
        ({"b": np.full(N, 1e300)}, {}, "some rows hold NaN or a value too large", 0),
        ({"label": _labels(np.nan, 30)}, {}, "some rows hold NaN", 30),
        ({"label": _labels(-1, 72)}, {}, "column 'label' has integers that are no class numbers", 72),
        ({"label": _labels(2**31, 299)}, {}, "column 'label' has integers that are no class numbers", 299),
    ],
)
def test_columns_that_cannot_be_converted_are_refused_and_the_holder_told_which_row(
    columns, options, words, row, tmp_path, monkeypatch
):
    monkeypatch.setattr(conversion, "_BATCH_BYTES", 13 * 12)
    asked = {"x": ["a", "b", "c"], "y": "label"} | options
    source = store(tmp_path / ("t.parquet" if row is None else "t.arrow"), table(**columns))
    with pytest.raises(DataError, match=words) as refusal:
        to_rows(source, tmp_path / "mine", **asked)
    assert os.listdir(tmp_path) == [source.name]
    if row is not None:
        assert refusal.value.rows[0] == row
        said = str(refusal.value).replace(str(source), "").partition(": number the")[0].replace("t32", "")
        assert not re.search(r"\d", said)


def test_what_is_there_or_is_no_such_file_is_refused(tmp_path):
    source = store(tmp_path / "t.parquet", table())
    asked = {"x": ["a"], "y": "label"}
    (tmp_path / "old").mkdir()
    with pytest.raises(DataError, match="old exists"):
        to_rows(source, tmp_path / "old", **asked)
    with pytest.raises(DataError, match="is no folder"):
        to_rows(source, tmp_path / "none" / "mine", **asked)
    with pytest.raises(DataError, match="no such file or folder"):
        to_rows(tmp_path / "none", tmp_path / "mine", **asked)
    with pytest.raises(DataError, match="holds none"):
        to_rows(tmp_path / "old", tmp_path / "mine", **asked)
    both = tmp_path / "both"
    both.mkdir()
    store(both / "1.parquet", table())
    store(both / "2.parquet", table(label=Y.astype(float)))
    with pytest.raises(DataError, match="parquet has 1 features and labels that become float32, others have 1 and"):
        to_rows(both, tmp_path / "mine", **asked)
    whole = source.read_bytes()
    for spoilt, words in (
        (whole[: len(whole) // 2], "is damaged, or of a kind"),
        (whole[:200] + bytes(500) + whole[700:], "is damaged, or of a kind"),
        (b"a,b\n1,2\n", "is neither Parquet nor an Arrow"),
        (b"", "is neither Parquet nor an Arrow"),
    ):
        source.write_bytes(spoilt)
        with pytest.raises(DataError, match=words):
            to_rows(source, tmp_path / "mine", **asked)
    assert not (tmp_path / "mine").exists()


def test_without_pyarrow_a_sentence_says_how_to_have_it(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install pyarrow"):
        to_rows(tmp_path / "t.parquet", tmp_path / "mine", x="a", y="b")


def test_the_command_refuses_in_one_sentence(tmp_path, capsys):
    source = store(tmp_path / "t.parquet", table())
    assert main(["data", str(source), str(tmp_path / "mine"), "--x", "a,q", "--y", "label"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "0 columns 'q'" in said


# Memory.


RUN = """
    import numpy as np
    from dpmcmc.cli.commands import main
    folder, rows = {folder!r}, {rows}
    np.lib.format.open_memmap(folder + "/x.npy", "w+", np.float32, (rows, 109))
    np.lib.format.open_memmap(folder + "/y.npy", "w+", np.int32, (rows,))
    assert main(["run", folder + "/mine.yaml", "--out", folder + "/out", "--quiet"]) == 0
    print(peak_mib())
"""


@pytest.mark.optimised
@pytest.mark.slow
def test_a_run_needs_less_memory_than_its_records(tmp_path):
    """1.8 GB, in holes of a file: every check reads them, and nothing holds them."""
    rows = 4_000_000
    config(
        tmp_path,
        ".",
        data={"path": ".", "num_records": rows, "row_bound": 1.0},
        sampling={"scheme": "poisson", "batch_size": 180},
        privacy={"epsilon": 1.0, "delta": 1e-9, "accountant": "rdp"},
        run={"steps": 50, "thin": 10},
    )
    assert int(printed(RUN, folder=str(tmp_path), rows=rows)) < 1500
