"""A user's own file is read as it is, or refused with the row and the reason."""

import re

import numpy as np
import pytest

from dpmcmc import data
from tests.data.test_data import norms


@pytest.fixture
def write(tmp_path):
    def save(name="mine.npz", **arrays):
        rng = np.random.RandomState(3)
        given = {"x": rng.uniform(-0.5, 0.5, size=(10, 3)), "y": rng.randint(0, 2, size=10)} | arrays
        np.savez(tmp_path / name, **{key: value for key, value in given.items() if value is not None})
        return tmp_path / name

    return save


def test_a_user_file_is_read_as_it_is(write):
    x = np.random.RandomState(1).uniform(-0.5, 0.5, size=(10, 3))
    y = np.arange(10) % 3
    path = write(features=x, labels=y, x=None, y=None)
    dataset = data.load(path, x="features", y="labels", num_records=10, row_bound=1.0)
    np.testing.assert_array_equal(dataset.train["x"], x.astype(np.float32))
    np.testing.assert_array_equal(dataset.train["y"], y)
    assert dataset.train["y"].dtype == np.int32
    assert dataset.test is None
    assert dataset.spec == data.describe(path, num_records=10, row_bound=1.0)
    assert (dataset.origin, dataset.sha256, dataset.test_is_public) == ("user file", {}, False)
    assert dataset.columns == ("features[0]", "features[1]", "features[2]")


def test_a_relative_path_starts_at_the_base_folder(write, tmp_path):
    write()
    assert data.load({"path": "mine.npz", "base_dir": str(tmp_path)}).train["x"].shape == (10, 3)


def test_real_labels_stay_real_whatever_their_values(write):
    dataset = data.load(write(y=np.array([0.0, 1.0] * 5)))
    assert dataset.train["y"].dtype == np.float32
    assert data.load(write(y=np.array([False, True] * 5))).train["y"].dtype == np.int32


def test_rows_held_out_are_disjoint_private_and_always_the_same(write):
    path = write(x=np.arange(10.0)[:, None], y=np.zeros(10, int))
    dataset = data.load(path, test_fraction=0.25, num_records=8)
    again = data.load(path, test_fraction=0.25)
    held, kept = dataset.test["x"][:, 0], dataset.train["x"][:, 0]
    assert (kept.size, held.size) == (8, 2)
    assert sorted([*held, *kept]) == list(range(10))
    np.testing.assert_array_equal(held, again.test["x"][:, 0])
    assert not dataset.test_is_public
    assert data.load(path, test_fraction=0.25, public=True).test_is_public


def test_rows_normalised_elsewhere_are_drawn_back_onto_the_bound(write):
    x = np.random.RandomState(2).normal(size=(10, 3))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True) * (1.0 + 3e-7)).astype(np.float32)
    rows = data.load(write(x=x), row_bound=1.0).train["x"]
    assert norms(x).max() > 1.0
    assert norms(rows).max() <= 1.0
    np.testing.assert_allclose(rows, x, rtol=3e-6)


def _with(value, row):
    x = np.zeros((10, 3))
    x[row, 1] = value
    return x


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        ({}, {"x": "features"}, r"no array 'features'; it has x, y"),
        ({"x": np.zeros(10)}, {}, r"shape \(10,\)"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0)}, {}, r"shape \(0, 3\)"),
        ({"x": np.full((10, 3), "a")}, {}, "real numbers"),
        ({"x": np.zeros((10, 3), complex)}, {}, "real numbers"),
        ({"x": np.full((10, 3), None)}, {}, "Python objects"),
        ({"y": np.zeros((10, 1))}, {}, r"shape \(10, 1\)"),
        ({"y": np.full(10, "cat")}, {}, "class numbers"),
        ({"y": np.zeros(9, int)}, {}, "10 rows and 'y' has 9"),
        ({}, {"num_records": 11}, "declares 11 training records, but the file leaves 10"),
        ({}, {"num_records": 10, "test_fraction": 0.2}, "leaves 8"),
        ({}, {"num_features": 4}, "^data.num_features: declares 4 features, and 'x' in .* has 3"),
    ],
)
def test_an_unusable_user_file_is_refused_with_the_reason(write, arrays, options, words):
    with pytest.raises(data.DataError, match=words):
        data.load(write(**arrays), **options)


@pytest.mark.parametrize(
    ("arrays", "options", "words", "rows"),
    [
        ({"y": np.array([-1, 1] * 5)}, {}, "'y' has integers that are no class numbers", (0, 2, 4, 6, 8)),
        ({"y": np.array([0] * 9 + [2**40])}, {}, "'y' has integers that are no class numbers", (9,)),
        ({"x": _with(np.nan, 4)}, {}, "some rows hold NaN", (4,)),
        ({"x": _with(np.inf, [6, 8])}, {}, "some rows hold NaN", (6, 8)),
        ({"x": _with(1e300, 2)}, {}, "some rows hold NaN or a value too large", (2,)),
        ({"y": np.array([0.0] * 7 + [np.nan] * 3)}, {}, "some rows hold NaN", (7, 8, 9)),
        ({"x": _with(1.5, [3, 5])}, {"row_bound": 1.0}, "l2 norm above data.row_bound = 1: .*raise row_bound", (3, 5)),
    ],
)
def test_a_refusal_of_rows_quotes_nothing_of_them_and_tells_the_holder_which(write, arrays, options, words, rows):
    path = write(**arrays)
    with pytest.raises(data.DataError, match=words) as refusal:
        data.load(path, **options)
    assert refusal.value.rows == rows
    said = re.sub("l2|float32|bound = 1", "", str(refusal.value).replace(str(path), ""))
    assert not re.search(r"\d", said.partition(": number the classes")[0])


def test_a_missing_damaged_or_foreign_file_is_refused(tmp_path, write):
    whole = write().read_bytes()
    spoilt = bytearray(whole)
    spoilt[200] ^= 0xFF  # inside the stored array, where only the archive's own checksum notices
    damaged = {"text": b"x,y\n1,2\n", "empty": b"", "cut": whole[: len(whole) // 2], "spoilt": bytes(spoilt)}
    np.save(tmp_path / "single.npy", np.zeros(3))
    refused = {"nowhere.npz": "there is no file", "": "there is no file", "single.npy": "single array"}
    for name, content in damaged.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        refused[f"{name}.npz"] = "is damaged, is no"
    for name, said in refused.items():
        with pytest.raises(data.DataError, match=said):
            data.load({"path": tmp_path / name})


def test_rows_are_not_rescaled_where_no_bound_is_declared(write):
    x = np.random.RandomState(5).normal(size=(10, 3)) * 100.0
    np.testing.assert_array_equal(data.load(write(x=x)).train["x"], x.astype(np.float32))
