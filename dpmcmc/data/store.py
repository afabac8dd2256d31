"""Generated data: the two-normals and Poisson examples, and the raw material of the stand-ins.

Everything here is a function of public seeds. ``RandomState`` is used because its stream is frozen (NumPy
NEP 19): a generated set stays the same set across NumPy releases.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.data.base import (
    DataError,
    DataRequest,
    DataSet,
    DataSpec,
    clipped_rows,
    fixed_split,
    normalised_rows,
    ranged_columns,
    with_intercept,
)
from dpmcmc.storage.cache import cache_folder, make_private, refuse_unsafe
from dpmcmc.storage.files import read_bytes

if TYPE_CHECKING:
    from sklearn.utils import Bunch


TWO_NORMALS = DataSpec(
    name="two_normals",
    num_records=1000,
    num_features=3,
    num_classes=2,
    public=True,
    row_bound=1.0,
    encoding=None,
    description="Two overlapping unit normals in the plane, means (0.8, 0.8) and (-0.8, -0.8); an intercept.",
)

_NUM_TEST = 1000
_SEED = 20150706
_MEAN = 0.8
_SCALE = 3.0  # public: rows are (x1, x2, 1) / 3, and the few beyond norm 1 are drawn back onto the ball

POISSON_COUNTS = DataSpec(
    name="poisson_counts",
    num_records=2000,
    num_features=5,
    num_classes=None,
    public=True,
    row_bound=1.0,
    encoding=None,
    description="Counts from a log-linear Poisson model on points of the unit ball in four dimensions; an intercept.",
)

#: Coefficients of the model that made ``poisson_counts``, on its rows (x1, x2, x3, x4, 1) / sqrt(2).
POISSON_COEFFICIENTS = np.array([1.7, -1.1, 0.7, 0.0, 1.4])
_NUM_COUNTS_TEST = 500
_COUNTS_SEED = 18371837


def load_two_normals(spec: DataSpec, request: DataRequest) -> DataSet:
    """1000 training and 1000 test rows; the best possible accuracy is Phi(0.8 * sqrt(2)) = 0.871."""
    random = np.random.RandomState(_SEED)
    parts = []
    for size in (TWO_NORMALS.num_records or 0, _NUM_TEST):
        y = random.randint(0, 2, size=size).astype(np.int32)
        points = random.normal(size=(size, 2)) + _MEAN * (2.0 * y[:, None] - 1.0)
        parts.append({"x": clipped_rows(with_intercept(points) / _SCALE, spec.row_bound), "y": y})
    return DataSet(spec, parts[0], parts[1], True, "generated", {}, ("x1", "x2", "intercept"))


def load_poisson_counts(spec: DataSpec, request: DataRequest) -> DataSet:
    """2000 training and 500 test rows; a count has mean exp(row . POISSON_COEFFICIENTS), from 0.59 to 12.3."""
    random = np.random.RandomState(_COUNTS_SEED)
    num_points = POISSON_COEFFICIENTS.size - 1
    parts = []
    for size in (POISSON_COUNTS.num_records or 0, _NUM_COUNTS_TEST):
        directions = random.normal(size=(size, num_points))
        radii = random.uniform(size=(size, 1)) ** (1.0 / num_points)
        points = directions * (radii / np.linalg.norm(directions, axis=1, keepdims=True))
        rows = clipped_rows(with_intercept(points) / np.sqrt(2.0), spec.row_bound)
        counts = random.poisson(np.exp(rows.astype(float) @ POISSON_COEFFICIENTS))
        parts.append({"x": rows, "y": counts.astype(np.int32)})
    return DataSet(
        spec,
        parts[0],
        parts[1],
        True,
        "generated",
        {},
        ("x1", "x2", "x3", "x4", "intercept"),
    )


def random_levels(random: np.random.RandomState, num_rows: int, sizes: Sequence[int]) -> np.ndarray:
    """Level numbers (num_rows, len(sizes)), int64; level k of a column has weight 1 / (k + 1)."""
    columns = []
    for size in sizes:
        weights = 1.0 / np.arange(1, size + 1)
        columns.append(random.choice(size, size=num_rows, p=weights / weights.sum()))
    return np.stack(columns, axis=1)


def logistic_labels(
    random: np.random.RandomState,
    rows: np.ndarray,
    weights: np.ndarray,
    rate: float,
    num_train: int,
) -> np.ndarray:
    """Labels (N,), int32, of a logistic model on rows (N, d); ``rate`` is the share of ones in training.

    A label is one where weights . row + logistic noise passes a threshold, which is the logistic model with
    minus the threshold as its intercept; taking the threshold as a quantile gives the rate at once.
    """
    scores = rows @ weights + random.logistic(size=rows.shape[0])
    threshold = np.sort(scores[:num_train])[round((1.0 - rate) * num_train)]
    labels: np.ndarray = scores >= threshold
    return labels.astype(np.int32)


# ------------------------------------------------------------------------------------
# Finds a known public file: the ``DPMCMC_DATA`` folder, then the cache, then the official UCI address.
#
# A file is accepted only if its SHA-256 is the known one. A file with another SHA-256 stops the search. Another
# source, or generated data, would hide that something is wrong with it.


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_TIMEOUT_SECONDS = (5, 20)  # to connect, and between two pieces of the answer
_ORIGINS = ("DPMCMC_DATA", "cache", "download")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownFile:
    """A public file: its official address, and every SHA-256 under which its content is accepted."""

    url: str
    sha256: tuple[str, ...]


KNOWN_FILES: dict[str, KnownFile] = {
    "adult.data": KnownFile(
        f"{_UCI}/adult/adult.data",
        ("5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",),
    ),
    "adult.test": KnownFile(
        f"{_UCI}/adult/adult.test",
        ("a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",),
    ),
    "abalone.data": KnownFile(
        f"{_UCI}/abalone/abalone.data",
        (
            # Two layouts of the same 4177 rows in the same order are in circulation: the sex column last, and
            # first. Moving that column turns either file into the other, byte for byte.
            "8545f56b9a964c6ff748049290d6a428c59c3099d63dd41c719e6b271aa6a247",
            "de37cdcdcaaa50c309d514f248f7c2302a5f1f88c168905eba23fe2fbc78449f",
        ),
    ),
}


@dataclass(frozen=True)
class FoundFile:
    """A verified file: the very bytes whose digest was checked, the digest, and where they came from."""

    content: bytes
    sha256: str
    origin: str


class FileUnavailable(DataError):
    """The file is in no local place and could not be downloaded."""


def find(name: str) -> FoundFile:
    """Return the verified content of a known file.

    Raises:
        FileUnavailable: it is nowhere to be had.
        DataError: ``DPMCMC_DATA`` names no folder, or a file is unreadable or has another checksum.
        UnsafeCache: somebody else can change what is in the cache.
    """
    named = os.environ.get("DPMCMC_DATA")
    if named:
        folder = Path(os.path.expanduser(named))
        if not folder.is_dir():
            raise DataError(f"DPMCMC_DATA names {folder}, which is not a folder: correct or unset it.")
        found = _read(folder / name, name, "DPMCMC_DATA")
        if found is not None:
            return found
    cached = cache_folder() / name
    refuse_unsafe(cached, "DPMCMC_CACHE")
    return _read(cached, name, "cache") or _download(name)


def find_all(names: Sequence[str], standin: str) -> dict[str, FoundFile] | None:
    """Return the files by name, or None if one cannot be found and ``standin`` is ``allow``.

    Raises:
        FileUnavailable: one cannot be had and ``standin`` is ``refuse``.
        DataError: as for :func:`find`; a wrong file is never replaced by a stand-in.
    """
    try:
        return {name: find(name) for name in names}
    except FileUnavailable:
        if standin != "allow":
            raise
        _log.warning(
            "a generated stand-in replaces %s, found in no local folder and not to be downloaded; "
            "set DPMCMC_DATA to a folder that holds it to use the real records",
            " and ".join(names),
        )
        return None


def origin_of(files: dict[str, FoundFile]) -> str:
    """Return the farthest source that any of the files came from."""
    return max((file.origin for file in files.values()), key=_ORIGINS.index)


def _read(path: Path, name: str, origin: str) -> FoundFile | None:
    try:
        content = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as reason:
        raise DataError(f"{path} cannot be read ({reason}): mend its permissions or move it away.") from reason
    remedy = f"delete it, or replace it by {KNOWN_FILES[name].url}"
    return FoundFile(
        content,
        _digest(content, name, f"{path} is not the official {name}", remedy),
        origin,
    )


def _download(name: str) -> FoundFile:
    import pooch

    url = KNOWN_FILES[name].url
    cache = cache_folder()
    logger = pooch.get_logger()
    level = logger.level
    # pooch, given no hash, advises its caller to pin one; the check is ours, as for every other source.
    logger.setLevel(logging.WARNING)
    try:
        make_private(cache)
        # A folder of its own inside the cache: the rename below is then atomic, and a download that breaks
        # off leaves nothing that a later run could mistake for the file.
        with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as folder:
            downloader = pooch.HTTPDownloader(timeout=_TIMEOUT_SECONDS)
            fetched = pooch.retrieve(url, known_hash=None, fname=name, path=folder, downloader=downloader)
            content = Path(fetched).read_bytes()
            remedy = "nothing was kept, so get the file by another way and set DPMCMC_DATA to its folder"
            digest = _digest(content, name, f"{url} answered with something else than {name}", remedy)
            os.replace(fetched, cache / name)
    except OSError as reason:
        folder_text = os.environ.get("DPMCMC_DATA") or "unset"
        raise FileUnavailable(
            f"{name} is neither in the DPMCMC_DATA folder ({folder_text}) nor in the cache ({cache}), and "
            f"fetching {url} failed ({type(reason).__name__}); set DPMCMC_DATA to a folder that holds it, or "
            "set data.standin: allow to run on generated data of the same shape."
        ) from reason
    finally:
        logger.setLevel(level)
    return FoundFile(content, digest, "download")


def _digest(content: bytes, name: str, otherwise: str, remedy: str) -> str:
    """SHA-256 of the content, if it is one of the known file's."""
    digest = hashlib.sha256(content).hexdigest()
    known = KNOWN_FILES[name].sha256
    if digest not in known:
        raise DataError(f"{otherwise}: expected SHA-256 {' or '.join(known)}, found {digest}; {remedy}.")
    return digest


# ----------------------------------------------------------------------------------------------------
# Real data that scikit-learn carries with it: no download, no file to look for.
#
# One specification and one loader per set; a further set is added below in the same form, with one line in the
# registry. The column ranges are constants of this file: rounded by us from the published documentation of the
# public benchmark or taken from common knowledge, and never computed at run time.

BREAST_CANCER = DataSpec(
    name="breast_cancer",
    num_records=426,
    num_features=31,
    num_classes=2,
    public=True,
    row_bound=1.0,
    encoding="public",
    description="Wisconsin breast cancer: benign (1) or malignant (0) from 30 measurements; rows of norm 1.",
)

# Upper ends of [0, upper] for ten properties: radius, texture, perimeter, area, smoothness, compactness,
# concavity, concave points, symmetry, fractal dimension; lengths in the data set's own image units.
_NUCLEUS_MEAN = (30.0, 40.0, 200.0, 2500.0, 0.2, 0.4, 0.5, 0.25, 0.35, 0.1)
_NUCLEUS_ERROR = (3.0, 5.0, 25.0, 600.0, 0.035, 0.15, 0.4, 0.06, 0.08, 0.03)
_NUCLEUS_WORST = (40.0, 50.0, 260.0, 4500.0, 0.25, 1.1, 1.3, 0.3, 0.7, 0.25)

DIGITS = DataSpec(
    name="digits",
    num_records=1347,
    num_features=65,
    num_classes=10,
    public=True,
    row_bound=1.0,
    encoding="public",
    description="Handwritten digits 0 to 9, images of 8 x 8 pixels with values 0 to 16; rows of norm 1.",
)

_BRIGHTEST = 16.0

DIABETES = DataSpec(
    name="diabetes",
    num_records=332,
    num_features=11,
    num_classes=None,
    public=True,
    row_bound=1.0,
    encoding=None,
    description="Progression of diabetes after a year, in units of 100 around 150, from ten measurements.",
)

# Age (years), sex (1 or 2), body mass index (kg/m2), mean arterial pressure (mm Hg), total, low- and high-density
# cholesterol (mg/dl), the ratio of total to high, log triglycerides (log mg/dl), glucose (mg/dl). Middle and half
# width of the range in which an adult is expected; a value beyond it is clipped.
_ADULT_MIDDLE = np.array([50.0, 1.5, 25.0, 95.0, 200.0, 120.0, 50.0, 4.0, 4.6, 90.0])
_ADULT_HALF_WIDTH = np.array([30.0, 0.5, 15.0, 35.0, 100.0, 80.0, 40.0, 3.0, 1.5, 35.0])
# Public: columns are within [-1, 1], rows are halved, and the few still beyond norm 1 are drawn back onto the ball.
_ROW_SCALE = 2.0
# The score runs from 0 to 350; a label is (score - 150) / 100, clipped to the range that this gives.
_SCORE_MIDDLE, _SCORE_UNIT = 150.0, 100.0
DIABETES_LABELS = (-1.5, 2.0)


def load_breast_cancer(spec: DataSpec, request: DataRequest) -> DataSet:
    """569 records, 426 of them for training; columns scaled by public ranges, then rows to norm 1.

    Source: W. Wolberg, O. Mangasarian, N. Street and W. Street, UCI Machine Learning Repository, 1995, as
    shipped by ``sklearn.datasets.load_breast_cancer``; labels keep its coding.
    """
    from sklearn.datasets import load_breast_cancer as bundled_breast_cancer

    bundle = bundled_breast_cancer()
    ranges = np.array(_NUCLEUS_MEAN + _NUCLEUS_ERROR + _NUCLEUS_WORST)
    return _classified(spec, bundle, ranges)


def load_digits(spec: DataSpec, request: DataRequest) -> DataSet:
    """1797 records, 1347 of them for training; pixels scaled by their public range, then rows to norm 1.

    Rows of norm 1 keep the gradient of every linear model within sqrt(2), so a small clip loses nothing. A
    network wants inputs of order one and should multiply its rows by 8, the root of the number of pixels.

    Source: E. Alpaydin and C. Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning
    Repository, 1998 (its test file), as shipped by ``sklearn.datasets.load_digits``.
    """
    from sklearn.datasets import load_digits as bundled_digits

    bundle = bundled_digits()
    return _classified(spec, bundle, np.array(_BRIGHTEST))


def load_diabetes(spec: DataSpec, request: DataRequest) -> DataSet:
    """442 records, 332 of them for training; real labels within ``DIABETES_LABELS``.

    Rows are clipped to norm 1 and not normalised, so that a linear model stays linear in the measurements.

    Source: B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, "Least angle regression", Annals of Statistics
    32, 2004, as shipped by ``sklearn.datasets.load_diabetes`` in raw units (its scaled form divides by
    statistics of the table, which a private loader may not read).
    """
    from sklearn.datasets import load_diabetes as bundled_diabetes

    bundle = bundled_diabetes(scaled=False)
    scaled = np.clip(
        (np.asarray(bundle.data, dtype=float) - _ADULT_MIDDLE) / _ADULT_HALF_WIDTH,
        -1.0,
        1.0,
    )
    rows = clipped_rows(with_intercept(scaled) / _ROW_SCALE, spec.row_bound)
    labels = np.clip(
        (np.asarray(bundle.target, dtype=float) - _SCORE_MIDDLE) / _SCORE_UNIT,
        *DIABETES_LABELS,
    )
    return _split(spec, bundle, rows, labels.astype(np.float32))


def _classified(spec: DataSpec, bundle: Bunch, upper: np.ndarray) -> DataSet:
    """Rows of norm 1 from columns of public range [0, upper], and class numbers."""
    scaled = ranged_columns(np.asarray(bundle.data, dtype=float), upper, str(spec.encoding))
    return _split(
        spec,
        bundle,
        normalised_rows(with_intercept(scaled)),
        np.asarray(bundle.target, dtype=np.int32),
    )


def _split(spec: DataSpec, bundle: Bunch, x: np.ndarray, y: np.ndarray) -> DataSet:
    columns = (*(str(name) for name in bundle.feature_names), "intercept")
    parts = fixed_split(x.shape[0], x.shape[0] - (spec.num_records or 0))
    train, test = ({"x": x[part], "y": y[part]} for part in parts)
    return DataSet(spec, train, test, True, "scikit-learn", {}, columns)
