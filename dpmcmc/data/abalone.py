"""UCI Abalone (1995): is a shell at least ten rings old? 3,133 training and 1,044 test records.

Source: W. Nash et al., "Abalone", UCI Machine Learning Repository, 1995. A feature row has 9 columns: the sex
as one number (male 1, infant 0, female -1), seven measurements on public ranges, and an intercept; rows are
then scaled to l2 norm 1. The label rule (rings >= 10, close to half of the shells) and the split are ours.
"""

from __future__ import annotations

import numpy as np

from dpmcmc.data import generated, store
from dpmcmc.data.base import DataSet, DataSpec
from dpmcmc.data.request import DataRequest
from dpmcmc.data.row_maps import add_intercept, normalise_rows, scale_columns
from dpmcmc.data.split import split_rows
from dpmcmc.errors import DataError

SPEC = DataSpec(
    name="abalone",
    num_records=3133,
    num_features=9,
    num_classes=2,
    public=True,
    row_bound=1.0,
    encoding="public",
    description="UCI Abalone: at least ten rings, from sex and seven shell measurements; rows of norm 1.",
)

COLUMNS = (
    "sex",
    "length",
    "diameter",
    "height",
    "whole",
    "shucked",
    "viscera",
    "shell",
    "intercept",
)
# Upper ends of the ranges [0, upper], in the file's own units (200 mm, 200 g); ours, rounded from the
# published documentation. The few values beyond them (two heights are recording errors) are clipped.
RANGES = np.array([1.0, 1.0, 0.5, 3.0, 2.0, 1.0, 1.25])

SEX = {"M": 1.0, "I": 0.0, "F": -1.0}
_NUM_ROWS = 4177
_NUM_TEST = 1044
MIN_RINGS = 10
_POSITIVE_RATE = 0.498
_STANDIN_SEED = 1995


def load(spec: DataSpec, request: DataRequest) -> DataSet:
    """Abalone under ``spec.encoding``, or the stand-in where there is no file and the request allows it."""
    files = store.find_all(("abalone.data",), request.standin)
    if files is None:
        sex, measurements, labels = _standin()
        origin = "stand-in"
        digests = {}
    else:
        found = files["abalone.data"]
        sex, measurements, rings = parse(found.content.decode("ascii"))
        labels = (rings >= MIN_RINGS).astype(np.int32)
        origin = found.origin
        digests = {"abalone.data": found.sha256}
    rows = encode(sex, measurements, str(spec.encoding))
    train, test = ({"x": rows[part], "y": labels[part]} for part in split_rows(_NUM_ROWS, _NUM_TEST))
    return DataSet(spec, train, test, True, origin, digests, COLUMNS)


def parse(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sex (N,), measurements (N, 7) and rings (N,), all float64; the sex may be the first or the last field.

    Raises:
        DataError: a line is not a record, or the number of records is not 4,177.
    """
    sexes = []
    numbers = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line:
            continue
        values = [value.strip() for value in line.split(",")]
        if values[0] in SEX:
            values = [*values[1:], values[0]]
        if len(values) != 9 or values[-1] not in SEX:
            raise DataError(f"abalone.data, line {number}: not a record of Abalone: fetch the file again.")
        sexes.append(SEX[values[-1]])
        numbers.append([float(value) for value in values[:-1]])
    if len(numbers) != _NUM_ROWS:
        raise DataError(f"abalone.data holds {len(numbers)} records where {_NUM_ROWS} are expected: fetch it again.")
    table = np.array(numbers)
    return np.array(sexes), table[:, :7], table[:, 7]


def encode(sex: np.ndarray, measurements: np.ndarray, encoding: str) -> np.ndarray:
    """Feature rows (N, 9), float32, of norm 1; ``encoding`` as in ``dpmcmc.data.row_maps.scale_columns``."""
    scaled = scale_columns(measurements, RANGES, encoding)
    return normalise_rows(add_intercept(np.concatenate([sex[:, None], scaled], axis=1)))


def _standin() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.RandomState(_STANDIN_SEED)
    sex = random.randint(-1, 2, _NUM_ROWS).astype(float)
    size = random.beta(5.0, 4.0, _NUM_ROWS)[:, None]
    # Lengths grow with the size of the animal, weights with its cube.
    shape = np.concatenate([np.repeat(size, 3, axis=1), np.repeat(size**3, 4, axis=1)], axis=1)
    measurements = 0.8 * RANGES * shape * random.lognormal(0.0, 0.1, (_NUM_ROWS, 7))
    weights = 2.0 * np.array([0.0, 3.0, 3.0, 3.0, 2.0, -2.0, 0.0, 3.0, 0.0])
    rows = encode(sex, measurements, "public").astype(float)
    labels = generated.logistic_labels(random, rows, weights, _POSITIVE_RATE, _NUM_ROWS)
    return sex, measurements, labels
