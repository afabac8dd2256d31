"""A folder from a stranger asks for no more memory than it holds, and one clear sentence says which file does."""

import io
import json
import random
import tracemalloc
import zipfile

import h5py
import numpy as np
import pytest

import dpmcmc
from dpmcmc.data import Range, Schema
from dpmcmc.inference import saved_arrays
from dpmcmc.privacy.query.metric import PublicMatrix
from dpmcmc.storage import arrays as sealed
from dpmcmc.storage import files
from tests.storage.test_shared_folders import with_digests

#: Bytes that a load may take at most, far below what the files ask for.
MOST = 64 << 20


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a result with evidence."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, 400)
    table = {"x": x, "y": (x + rng.normal(0, 0.2, 400)).clip(-2, 2)}
    schema = Schema({"x": Range(-1, 1), "y": Range(-2, 2)}, label="y")
    result = dpmcmc.fit("y ~ x", table, schema, epsilon=5.0)
    return result.save(tmp_path_factory.mktemp("saved") / "run")


@pytest.fixture
def copy(saved, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def refusal(folder):
    """What ``load`` says, within its memory."""
    with_digests(folder)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="holds no result that can be loaded") as refused:
            dpmcmc.load(folder)
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()
    said = str(refused.value)
    assert said.count("\n") == 0
    return said


def test_what_was_saved_is_loaded_to_the_bit(saved):
    loaded, again = (dpmcmc.load(saved) for _ in range(2))
    assert loaded.columns == again.columns
    with h5py.File(saved / "draws.nc") as file:
        (group,) = [file[name] for name in file]
        (leaf,) = [one for one in group.values() if not one.is_scale]
        np.testing.assert_array_equal(np.asarray(loaded.released), leaf[()])
        assert [row.tobytes().rstrip(b"\0").decode() for row in group["column"][()]] == list(loaded.columns)
    assert np.asarray(loaded.released).flags.writeable


@pytest.mark.parametrize("seed", range(12))
def test_draws_that_ask_for_more_than_the_file_holds_are_refused(copy, seed):
    chance = random.Random(seed)
    with h5py.File(copy / "draws.nc", "r+") as file:
        group = file[chance.choice(list(file))]
        (leaf,) = [name for name, one in group.items() if not one.is_scale]
        way = seed % 6
        if way == 0:  # 81 GiB of nothing
            del group[leaf]
            group.create_dataset(leaf, (1, 87 * 2**30 // 8), "f8")
        elif way == 1:  # numbers whose product is 0 in 64 bits
            del group[leaf]
            group.create_dataset(leaf, (2**32, 2**32), "f8", chunks=(1, 1))
        elif way == 2:  # zeros, packed
            group.create_dataset("more", (1, 2**24), "f8", data=np.zeros((1, 2**24)), compression="gzip")
        elif way == 3:  # the same numbers under many names
            for number in range(200):
                group[f"more{number}"] = group[leaf]
        elif way == 4:  # texts that may lie anywhere, one of them many times
            del group["column"]
            text = group.create_dataset("column", (4096,), h5py.string_dtype(), data=["a" * 200_000] + [""] * 4095)
            text.make_scale("column")
        else:  # a coordinate that nobody needs
            group.create_dataset("other", (2**33,), "f8").make_scale("other")
            group.create_dataset("more", (1, 2**33), "f8")
    assert "draws.nc" in refusal(copy)


@pytest.mark.parametrize("way", ["external", "soft", "virtual", "link"])
def test_draws_that_lie_in_another_file_are_refused(copy, tmp_path, way):
    other = tmp_path / "secret"
    other.write_bytes(bytes(800))
    with h5py.File(copy / "draws.nc", "r+") as file:
        (name,) = file
        group = file[name]
        if way == "external":
            group.create_dataset("more", (1, 100), "f8", external=[(str(other), 0, 800)])
        elif way == "soft":
            group["more"] = h5py.SoftLink(f"/{name}/chain")
        elif way == "link":
            group["more"] = h5py.ExternalLink(str(saved_elsewhere(tmp_path)), "/numbers")
        else:
            layout = h5py.VirtualLayout((1, 100), "f8")
            layout[0] = h5py.VirtualSource(str(saved_elsewhere(tmp_path)), "numbers", (100,))
            group.create_virtual_dataset("more", layout)
    assert "lies whole in the file" in refusal(copy)


def saved_elsewhere(folder):
    with h5py.File(folder / "other.h5", "w") as file:
        file["numbers"] = np.zeros(100)
    return folder / "other.h5"


def npz(how, arrays):
    out = io.BytesIO()
    (np.savez_compressed if how == "packed" else np.savez)(out, **arrays)
    return out.getvalue()


@pytest.mark.parametrize("name", ["evidence.npz", "trace.npz"])
@pytest.mark.parametrize("way", ["packed", "header", "overlap", "objects", "no zip"])
def test_arrays_that_ask_for_more_than_the_file_holds_are_refused(copy, name, way):
    if way == "packed":
        made = npz("packed", {"facts": np.zeros(2**28, np.uint8)})
    elif way == "header":
        made = npz("plain", {"facts": np.zeros(8)}).replace(b"(8,), }      ", b"(8000000,), }")
    elif way == "overlap":
        made = _overlapping(npz("plain", {"facts": np.zeros(2**16, np.uint8)}), 2000)
    elif way == "objects":
        made = npz("plain", {"facts": np.array([{}], object)})
    else:
        made = b"PK\x03\x04" + bytes(100)
    (copy / name).write_bytes(made)
    assert name.partition(".")[0] in refusal(copy)
    with pytest.raises((ValueError, zipfile.BadZipFile, KeyError)):
        saved_arrays.unpacked(made)


def _overlapping(one, count):
    """A ZIP archive that names the content of one member many times."""
    at = one.index(b"PK\x01\x02")
    end = one.index(b"PK\x05\x06")
    entry = one[at:end]
    tail = bytearray(one[end:])
    tail[8:12] = count.to_bytes(2, "little") * 2
    tail[12:16] = (len(entry) * count).to_bytes(4, "little")
    return one[:at] + entry * count + bytes(tail)


@pytest.mark.parametrize("name", ["privacy.json", "plan.json", "metrics.json"])
def test_tables_that_are_too_long_or_too_deep_are_refused(copy, name):
    before = (copy / name).read_text()
    for text in ("[" * 100_000, '{"a":' * 100_000, "[]", before[:-3]):
        (copy / name).write_text(text)
        if name == "privacy.json":
            with pytest.raises(ValueError, match="holds no result that can be loaded"):
                dpmcmc.load(copy)
        else:
            refusal(copy)
    with open(copy / name, "wb") as stream:  # a hole in a file takes no room on the disk
        stream.truncate(1 << 36)
    with pytest.raises(OSError, match="read at most"):
        files.read_json(copy / name)
    if name == "privacy.json":
        with pytest.raises(ValueError, match="read at most"):
            dpmcmc.load(copy)


def test_a_metric_whose_header_lies_is_refused(tmp_path):
    out = io.BytesIO()
    np.save(out, np.zeros(8))
    (tmp_path / "metric.npy").write_bytes(out.getvalue().replace(b"(8,), }         ", b"(80000000000,), }"[:16]))
    with pytest.raises(ValueError, match="cannot be read as a"):
        PublicMatrix(str(tmp_path / "metric.npy"))


def test_a_checkpoint_that_is_damaged_is_none(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.arange(6).reshape(2, 3)), "c": np.zeros(0)}
    found = sealed.seal(tmp_path / "state", arrays), sealed.unseal(tmp_path / "state")
    assert found[1][0] == found[0]
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[1][1][name], array)
        found[1][1][name][...] = 0  # it can be written to
    (tmp_path / "state").write_bytes(b"x" * 40)
    assert sealed.unseal(tmp_path / "state") is None


def test_a_page_of_json_is_read(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps({"columns": {f"c{k}": "x" * 100 for k in range(20_000)}}))
    assert len(files.read_json(tmp_path / "plan.json")["columns"]) == 20_000
