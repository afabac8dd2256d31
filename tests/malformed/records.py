"""Data files: a user's .npz that is damaged, foreign, or of the wrong shape, type or values; wrong official files."""

import io
import os
import random
import struct
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.malformed.case import (
    CONFIGS,
    EITHER,
    OWNERS,
    REFUSED,
    ROWS,
    Case,
    npy,
    npz,
    on_file,
    plant,
    records,
    zipped,
)

_DICT = "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }"


def _npy(text: str, version: tuple[int, int] = (1, 0)) -> bytes:
    """NumPy's format with a header of one's own, and no numbers after it."""
    content = text.encode("latin-1") + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version[0] == 1 else "<I", len(content)) + content


def arrays() -> Iterator[Case]:
    """Arrays that are no records."""
    good = records()
    x, y = good["x"], good["y"]

    def at(row: int, value: float, array: np.ndarray = x) -> np.ndarray:
        out = array.astype(type(value))
        out[row] = value
        return out

    changes: dict[str, dict[str, Any]] = {
        "other-names": {"x": None, "y": None, "features": x},
        "object-y": {"y": np.array([None] * ROWS)},
        "digits-as-text": {"x": np.full((ROWS, 3), "0.1")},
        "bytes-x": {"x": np.full((ROWS, 3), b"a")},
        "complex-y": {"y": y.astype(complex)},
        "dates": {"x": np.full((ROWS, 3), np.datetime64("2001-01-01"))},
        "structured": {"x": np.zeros(ROWS, [("a", float), ("b", int)])},
        "x-0d": {"x": np.array(1.0)},
        "x-3d": {"x": x[:, :, None]},
        "y-0d": {"y": np.array(1)},
        "y-longer": {"y": np.append(y, 1)},
        "transposed": {"x": x.T},
        "no-columns": {"x": x[:, :0]},
        "one-row": {"x": x[:1], "y": y[:1]},
        "more-rows": {"x": np.tile(x, (2, 1)), "y": np.tile(y, 2)},
        "inf-y": {"y": at(3, np.inf, y)},
        "y-two": {"y": at(5, 2, y)},
        "y-huge": {"y": at(5, 2**40, y)},
        "y-uint64": {"y": np.full(ROWS, 2**64 - 1, np.uint64)},
        "y-real": {"y": y + 0.25},
    }
    for name, change in changes.items():
        content = npz({key: array for key, array in (good | change).items() if array is not None})
        words = ("data.y",) if name in ("y-two", "y-real") else ("mine.npz",)
        yield Case(f"data-{name}", "run", on_file(content), REFUSED, words)
    for kind in ("f2", "f4", ">f8", "g", "i1", "u8", "?", "i8"):
        yield Case(f"data-x-{kind}", "run", on_file(npz({**good, "x": x.astype(kind)})), EITHER)
        yield Case(f"data-y-{kind}", "run", on_file(npz({**good, "y": y.astype(kind)})), EITHER)
    compressed = io.BytesIO()
    np.savez_compressed(compressed, x=np.asfortranarray(x), y=y, z=np.zeros(3))
    yield Case("data-good", "run", on_file(compressed.getvalue()), (0,))


def archives() -> Iterator[Case]:
    """Files that are no archive of arrays, or claim more than they hold."""
    x, y = records().values()
    whole = npz(records())

    def headed(text: str, version: tuple[int, int] = (1, 0)) -> bytes:
        return zipped({"x.npy": _npy(text, version), "y.npy": npy(y)})

    contents: dict[str, bytes | None] = {
        "nowhere": None,
        "empty": b"",
        "random": random.Random(3).randbytes(2000),
        "single-array": npy(x),
        "single-header": _npy(_DICT % ("<f8", "1000000000000,")),
        "pickle": b"\x80\x04K\x01.",
        "zip-of-nothing": zipped({}),
        "zip-of-text-npy": zipped({"x.npy": b"words", "y.npy": b"words"}),
        "zip-of-folders": zipped({"x.npy/": b"", "y.npy/": b""}),
        "one-trillion": headed(_DICT % ("<f8", "1000000, 1000000")),
        "beyond-int64": headed(_DICT % ("<f8", "10000000000, 10000000000, 3")),
        "negative-shape": headed(_DICT % ("<f8", "-1, 3")),
        "shape-of-text": headed(_DICT % ("<f8", "'a', 3")),
        "header-code": headed("__import__('os').system('true')"),
        "header-unclosed": headed("{'descr': '<f8'"),
        "header-long": headed(" " * 200_000, (2, 0)),
        "header-version": headed(_DICT % ("<f8", "40, 3"), (9, 0)),
        "header-size": zipped({"x.npy": b"\x93NUMPY\x01\x00\xff\xff{", "y.npy": npy(y)}),
        "type-unknown": headed(_DICT % ("<q9", "40, 3")),
        "type-object": headed(_DICT % ("|O", "40, 3")),
        "too-few-bytes": zipped({"x.npy": npy(x)[:-8], "y.npy": npy(y)}),
        "zip-bomb": _bomb(),
        "zip-size-lies": _patched(whole, directory=24, local=22, value=struct.pack("<I", 2**31)),
        "zip-encrypted": _patched(whole, directory=8, local=6, value=b"\x01\x00"),
        "zip-method": _patched(whole, directory=10, local=8, value=struct.pack("<H", 99)),
    }
    for name, content in contents.items():
        yield Case(f"file-{name}", "run", on_file(content), REFUSED, ("mine.npz",))
    yield Case("file-twice", "run", on_file(_twice(x, y)), REFUSED, ("mine.npz", "'x'"))
    both = zipped({"x": npy(100 * x), "x.npy": npy(x), "y.npy": npy(y)})
    yield Case("file-x-and-x.npy", "run", on_file(both), REFUSED, ("mine.npz", "'x'"))
    for cut in (1, 10, 30, 100, 300, 700, 1000, len(whole) - 100, len(whole) - 22, len(whole) - 1):
        yield Case(f"file-cut-{cut}", "run", on_file(whole[:cut]), REFUSED, ("mine.npz",))
    rng = random.Random(4)
    for number in range(40):
        spoilt = bytearray(whole)
        for _ in range(rng.choice([1, 3, 20])):
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        yield Case(f"file-flipped-{number}", "run", on_file(bytes(spoilt)), EITHER)
    for number in range(30):
        array = bytearray(npy(x))
        for _ in range(rng.choice([1, 3, 8])):
            array[rng.randrange(128)] = rng.randrange(256)
        content = zipped({"x.npy": bytes(array), "y.npy": npy(y)})
        yield Case(f"file-header-flipped-{number}", "run", on_file(content), EITHER)


def _bomb() -> bytes:
    """Fifty kilobytes that unpack to 48 MB of zeros, with no labels beside them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as stream:
        stream.write(_npy(_DICT % ("<f8", "1000000, 6")))
        for _ in range(48):
            stream.write(b"\x00" * 1_000_000)
    return buffer.getvalue()


def _patched(whole: bytes, directory: int, local: int, value: bytes) -> bytes:
    """The archive with a field of every entry overwritten, at its offsets in the directory and before the entry."""
    out = bytearray(whole)
    for signature, offset in ((b"PK\x01\x02", directory), (b"PK\x03\x04", local)):
        start = -1
        while (start := out.find(signature, start + 1)) >= 0:
            out[start + offset : start + offset + len(value)] = value
    return bytes(out)


def _twice(x: np.ndarray, y: np.ndarray) -> bytes:
    """Two arrays of one name."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")
        for name, array in (("x", 100 * x), ("y", y), ("x", x)):
            archive.writestr(f"{name}.npy", npy(array))
    return buffer.getvalue()


_DECLARED = r"""
data.num_records=39
data.num_records=41
data.num_records=4000000000
data.row_bound=0.1
data.row_bound=.inf
data.test_fraction=0.99
data.test_fraction=0.5
data.x=y
data.y=x
data.x=z
data.x=''
data.x="\n"
data.name=adult
data.path=''
data.path=.
data.path=/
data.path=/dev/null
data.path=/dev/zero
data.path="a\0b"
data.path="\ud800"
data.path=~nobody_at_all/x.npz
data.path=config.yaml
data.path=config.yaml/x.npz
target={name: softmax_regression}
target={name: softmax_regression, num_classes: 1}
target={name: softmax_regression, num_classes: 2}
target={name: linear_regression}
target={name: linear_regression, noise_scale: 1e-300}
target={name: linear_regression, label_bound: 0.5}
""".strip().splitlines()


def declared() -> Iterator[Case]:
    """A good file, and a config that says something else of it."""
    whole = npz(records())
    for number, override in enumerate([*_DECLARED, "data.path=" + "x" * 5000, "data.path=" + "x/" * 3000]):
        for command in ("plan", "run"):
            yield Case(f"declared-{number}-{override[:40]}-{command}", command, on_file(whole, override), EITHER)

    def place(folder: Path) -> list[str]:
        (folder / "mine.npz").mkdir()
        return on_file(None)(folder)

    def link(folder: Path) -> list[str]:
        (folder / "mine.npz").symlink_to(folder / "mine.npz")
        return on_file(None)(folder)

    def locked(folder: Path) -> list[str]:
        arguments = on_file(whole)(folder)
        (folder / "mine.npz").chmod(0)
        return arguments

    yield Case("declared-folder", "run", place, REFUSED, ("mine.npz",))
    yield Case("declared-link-to-itself", "run", link, REFUSED, ("mine.npz",))
    yield Case("declared-locked", "run", locked, EITHER, ("mine.npz",))


def owners() -> Iterator[Case]:
    """Who the rows belong to."""
    good, u = records(), np.arange(ROWS) // 4
    for name, array in {
        "good": u,
        "missing": None,
        "object": u.astype(object),
        "beyond": u + 1,
        "negative": u - 1,
        "shorter": u[:-1],
        "table": u[:, None],
        "single": np.array(3),
        "nan": np.where(u == 2, np.nan, u),
        "uint64": u.astype(np.uint64) + np.uint64(2**63),
    }.items():
        content = npz(good | ({} if array is None else {"u": array}))
        yield Case(f"owner-{name}", "run", on_file(content, text=OWNERS), (0,) if name == "good" else REFUSED)
    for override in [
        *(f"num_owners={number}" for number in (9, 11, 1, 10_000_000_000)),
        *(f"records_per_owner={number}" for number in (1, 1_000_000_000_000)),
        *(f"owner={name}" for name in ("x", "y", "z")),
        "num_records=40",
        "test_fraction=0.99",
        "name=adult",
    ]:
        make = on_file(npz({**good, "u": u}), f"data.{override}", text=OWNERS)
        yield Case(f"owner-{override}", "run", make, EITHER)


def official() -> Iterator[Case]:
    """A DPMCMC_DATA folder that holds something else than the official files; never replaced by a stand-in."""
    real = Path(os.environ.get("DPMCMC_DATA", "nowhere")) / "abalone.data"
    text = real.read_bytes() if real.exists() else b"M,1\n" * 4177
    files: dict[str, bytes] = {
        "empty": b"",
        "flipped": text[:1000] + bytes([text[1000] ^ 1]) + text[1001:],
        "crlf": text.replace(b"\n", b"\r\n"),
        "random": random.Random(8).randbytes(10_000),
    }

    def on(name: str, standin: str, **more: bytes) -> Any:
        def make(folder: Path) -> list[str]:
            (folder / "data").mkdir()
            (folder / "place" / "abalone.data").mkdir(parents=True)
            plant(folder, {"file": b""} | {f"data/{stem}.data": content for stem, content in more.items()})
            return [str(CONFIGS / f"{name}.yaml"), "--set", f"data.standin={standin}"]

        return make

    for standin in ("allow", "refuse"):
        for name in ("abalone", "adult"):
            for kind, content in files.items():
                make = on(name, standin, **{name: content})
                yield Case(f"official-{name}-{kind}-{standin}", "run", make, REFUSED, (f"{name}.data",), data="data")
        make = on("abalone", standin)
        yield Case(f"official-folder-{standin}", "run", make, REFUSED, ("abalone.data",), data="place")
        for place in ("nowhere", "file", "~nobody_at_all", "a\udc80"):
            yield Case(f"official-in-{place!r}-{standin}", "run", make, REFUSED, ("DPMCMC_DATA",), data=place)
    make = on("abalone", "refuse")
    yield Case("official-missing", "run", make, REFUSED, ("abalone.data", "standin"), data="data")
