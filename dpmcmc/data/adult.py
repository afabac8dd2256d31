"""UCI Adult (census income, 1994): 32,561 training and 16,281 test records in their official split.

Source: B. Becker and R. Kohavi, "Adult", UCI Machine Learning Repository, 1996; the label is income above
50,000 dollars. A feature row has 109 columns: 6 numeric, 102 one-hot (eight categorical columns, a missing
value "?" being a level of its own) and an intercept. Rows are then scaled to l2 norm 1.

``linear`` and ``public`` differ in the six numeric columns only. ``linear`` divides each by its public range.
``public`` centres and scales them by common knowledge (a working age near 40, nine years of schooling, a 40-hour
week), takes money on a log scale, and drops the survey weight fnlwgt, which says nothing about a person. ``bins`` has
85 columns of its own (``adult.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

import numpy as np

from dpmcmc.data import generated, store
from dpmcmc.data.adult_steps import LEVELS_OF_BINS, STEPS, make_steps
from dpmcmc.data.base import DataSet, DataSpec
from dpmcmc.data.request import DataRequest
from dpmcmc.data.row_maps import add_intercept, normalise_rows
from dpmcmc.data.structure import RowStructure
from dpmcmc.errors import DataError

# Columns of a line, in file order; the last field is the label.
FIELDS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country",
)  # fmt: skip
NUMERIC = (
    "age",
    "fnlwgt",
    "education-num",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
)
# Upper ends of the ranges [0, upper] used by `linear`; ours, rounded up from the published documentation.
RANGES = np.array([100.0, 1_500_000.0, 16.0, 100_000.0, 5_000.0, 100.0])

# The level lists are constants: collecting them from the records would let one record add a column.
_LEVEL_LISTS = {
    "workclass": """
        ? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay""",
    "education": """
        10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters
        Preschool Prof-school Some-college""",
    "marital-status": """
        Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated
        Widowed""",
    "occupation": """
        ? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners
        Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support
        Transport-moving""",
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "native-country": """
        ? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany
        Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica
        Japan Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico
        Scotland South Taiwan Thailand Trinadad&Tobago United-States Vietnam Yugoslavia""",
}
LEVELS: dict[str, tuple[str, ...]] = {name: tuple(text.split()) for name, text in _LEVEL_LISTS.items()}


def _level_columns(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}={level}" for name in names for level in LEVELS[name])


COLUMNS = (*NUMERIC, *_level_columns(LEVELS), "intercept")

SPEC = DataSpec(
    name="adult",
    num_records=32561,
    num_features=109,
    num_classes=2,
    public=True,
    row_bound=1.0,
    encoding="public",
    description="UCI Adult: income above 50,000 dollars from 14 census attributes; rows of norm 1.",
    structure=RowStructure.of_columns(COLUMNS, nonnegative=("fnlwgt", "capital-gain", "capital-loss"), unit_norm=True),
)
_BINS_COLUMNS = (*STEPS, *_level_columns(LEVELS_OF_BINS), "intercept")
#: Public facts under ``bins``.
BINS = dataclasses.replace(
    SPEC,
    num_features=len(_BINS_COLUMNS),
    encoding="bins",
    description="UCI Adult: income above 50,000 dollars from 11 census attributes in steps; rows of norm 1.",
    structure=RowStructure.of_columns(_BINS_COLUMNS, unit_norm=True),
)

_NUM_TEST = 16281
_POSITIVE_RATE = 0.2408
_STANDIN_SEED = 1994


def load(spec: DataSpec, request: DataRequest) -> DataSet:
    """Adult under ``spec.encoding``, or the stand-in where a file is missing and the request allows it."""
    columns = _BINS_COLUMNS if spec.encoding == "bins" else COLUMNS
    files = store.find_all(("adult.data", "adult.test"), request.standin)
    if files is None:
        train, test = _standin(str(spec.encoding))
        return DataSet(spec, train, test, True, "stand-in", {}, columns)
    parts = []
    for name, size in (("adult.data", spec.num_records), ("adult.test", _NUM_TEST)):
        numeric, levels, labels = parse(files[name].content.decode("ascii"), name)
        if labels.shape[0] != size:
            raise DataError(f"{name} holds {labels.shape[0]} records where {size} are expected: fetch it again.")
        parts.append({"x": encode(numeric, levels, str(spec.encoding)), "y": labels})
    digests = {name: file.sha256 for name, file in files.items()}
    return DataSet(spec, parts[0], parts[1], True, store.origin_of(files), digests, columns)


def parse(text: str, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numeric values (N, 6) float64, level numbers (N, 8) int64 and labels (N,) int32 of a file's text.

    The test file begins with a comment line and ends its labels with a dot.

    Raises:
        DataError: a line has the wrong number of fields, or a value that the documentation does not list.
    """
    lines = {number: line for number, line in enumerate(text.splitlines(), start=1) if line and line[0] != "|"}
    try:
        return _parsed(lines.values())
    except (ValueError, KeyError):
        for number, line in lines.items():
            try:
                _parsed([line])
            except (ValueError, KeyError) as reason:
                said = f"{name}, line {number}: not a record of Adult ({reason}): fetch it again."
                raise DataError(said) from reason
        raise


_RANK = {column: {level: k for k, level in enumerate(levels)} for column, levels in LEVELS.items()}
_LABELS = {label + end: k for k, label in enumerate(("<=50K", ">50K")) for end in ("", ".")}


def _parsed(lines: Collection[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what :func:`parse` does of the lines of records, column by column, which is faster than line by line."""
    *fields, income = zip(*[line.split(", ") for line in lines], strict=True)
    known = dict(zip(FIELDS, fields, strict=True))
    numeric = [[*map(float, known[column])] for column in NUMERIC]
    levels = [[*map(rank.__getitem__, known[column])] for column, rank in _RANK.items()]
    labels = [*map(_LABELS.__getitem__, income)]
    return np.stack(numeric, axis=1), np.stack(levels, axis=1), np.array(labels, np.int32)


def encode(numeric: np.ndarray, levels: np.ndarray, encoding: str) -> np.ndarray:
    """Return feature rows (N, d), float32, of norm 1, from the arrays of :func:`parse`."""
    if encoding == "linear":
        numbers = np.clip(numeric / RANGES, 0.0, 1.0)
        kept = tuple(LEVELS)
    elif encoding == "public":
        numbers = _scaled(numeric)
        kept = tuple(LEVELS)
    else:
        numbers = make_steps(dict(zip(NUMERIC, numeric.T, strict=True)))
        kept = LEVELS_OF_BINS
    blocks = [
        codes[:, None] == np.arange(len(LEVELS[name]))
        for name, codes in zip(LEVELS, levels.T, strict=True)
        if name in kept
    ]
    return normalise_rows(add_intercept(np.concatenate([numbers, *blocks], axis=1)))


def _scaled(numeric: np.ndarray) -> np.ndarray:
    """Return the numbers of ``public``, (N, 6)."""
    age, fnlwgt, schooling, gain, loss, hours = numeric.T
    columns = [
        (age - 40.0) / 25.0,
        np.zeros_like(fnlwgt),
        (schooling - 9.0) / 4.0,
        np.log1p(gain) / 4.0,
        np.log1p(loss) / 4.0,
        (hours - 40.0) / 20.0,
    ]
    return np.stack(columns, axis=1).clip(-3.0, 3.0)


#: Coefficients of the numbers of a stand-in, about as strong as Adult's own; those of levels are of size 1.
_STANDIN_SLOPES = (2.0, 0.0, 3.0, 2.5, 1.5, 3.0)


def _standin(encoding: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    random = np.random.RandomState(_STANDIN_SEED)
    num_train = SPEC.num_records or 0
    size = num_train + _NUM_TEST
    some_gain, some_loss = random.uniform(size=(2, size)) < np.array([[0.08], [0.05]])
    numeric = np.stack(
        [
            np.clip(np.round(random.normal(39.0, 13.0, size)), 17, 90),
            np.round(random.lognormal(12.0, 0.5, size)),
            random.randint(1, 17, size).astype(float),
            np.where(some_gain, np.round(random.lognormal(8.5, 1.0, size)), 0.0),
            np.where(some_loss, np.round(random.normal(1900.0, 300.0, size)), 0.0).clip(0.0),
            np.clip(np.round(random.normal(40.0, 12.0, size)), 1, 99),
        ],
        axis=1,
    )
    levels = generated.random_levels(random, size, [len(column) for column in LEVELS.values()])
    # The labels come from one encoding whichever was asked for, so that the two describe the same people.
    weights = random.normal(size=len(COLUMNS))
    weights[: len(_STANDIN_SLOPES)] = _STANDIN_SLOPES
    labels = generated.logistic_labels(
        random,
        encode(numeric, levels, "public").astype(float),
        weights,
        _POSITIVE_RATE,
        num_train,
    )
    rows = encode(numeric, levels, encoding)
    return (
        {"x": rows[:num_train], "y": labels[:num_train]},
        {"x": rows[num_train:], "y": labels[num_train:]},
    )
