"""Types of this room: the request for a data set, its public facts, and its records."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt

from dpmcmc.data.checks import check_name
from dpmcmc.data.partitions import EncodedPartitions
from dpmcmc.data.schema import RowStructure, Schema
from dpmcmc.errors import Checked, DataError, InputError, check_fields
from dpmcmc.storage.stamps import Stamps

ENCODINGS = ("public", "linear")
#: A public number of things.
Count = Annotated[int, Gt(0)]


@dataclass(frozen=True)
class Privatised(Checked):
    """Promise that your records came with: whoever gave them to you added noise first.

    Args:
        epsilon: ε of that promise.
        delta: δ of that promise; 0 where it is pure.
        relation: the two data sets that it does not tell apart, in your words.
        noise_std: standard deviation of the Gaussian noise on every label. A linear regression takes it as its
            noise_scale, so that the likelihood of the noisy labels is exact; null: the target says it.
    """

    epsilon: Annotated[float, Gt(0)]
    delta: Annotated[float, Ge(0), Lt(1)]
    relation: str
    noise_std: Annotated[float, Gt(0)] | None = None

    def __str__(self) -> str:
        return f"the data came with ε {self.epsilon:g}, δ {self.delta:g}"


@dataclass(frozen=True)
class DataSpec:
    """Public facts of a data set, known without reading a record.

    ``num_records`` is the number of training records N (None: not declared). ``num_features`` counts the
    intercept column. ``num_classes`` is None for regression, for counts, or when it is not known. ``public``
    says that the records themselves, train and test, may be published. ``row_bound`` is a public bound on the
    l2 norm of a record's feature row (``inf``: none was declared). ``encoding`` is None where a set offers no
    choice. ``records_per_owner`` is None where a record is a row; otherwise a record is an owner with at most so many
    rows, and ``num_records`` counts training owners. ``structure`` is what the encoder declares of every row, or None.
    ``schema`` says what is public about the columns of a table, where records come from one. ``privatised`` is the
    promise that the records came with, or None.

    Example:
        >>> import dpmcmc
        >>> spec = dpmcmc.data.describe("breast_cancer")
        >>> spec.num_records, spec.num_classes
        (426, 2)
    """

    name: str
    num_records: int | None
    num_features: int | None
    num_classes: int | None
    public: bool
    row_bound: float
    encoding: str | None
    description: str
    records_per_owner: int | None = None
    structure: RowStructure | None = None
    schema: Schema | None = None
    privatised: Privatised | None = None

    @property
    def facts(self) -> dict[str, object]:
        """Facts that ``data/checks.py`` gives a target, a mechanism or a metric."""
        bound = self.row_bound if math.isfinite(self.row_bound) else None
        known = {
            "num_classes": self.num_classes,
            "row_bound": bound,
            "structure": self.structure,
        }
        of_records = {} if self.schema is None else self.schema.leaf_facts
        return {"num_features": self.num_features, **known, **of_records}


@dataclass(frozen=True)
class DataSet:
    """Records, checked, and within ``spec.row_bound``, in memory or memory-mapped (``user_file.py``; there as their
    files hold them, which may pass the bound by rounding).

    ``train`` and ``test`` are ``{"x": float32 (N, d), "y": (N,)}``; ``y`` is int32 for class numbers
    (0 and 1 for two classes) and counts, and float32 for reals; memory-mapped, they have these types once read. Where
    records are owners, ``train`` is what
    ``by_owner`` makes, and ``test`` has rows all the same. ``test_is_public`` says whether metrics on the
    test rows may be released; rows held out of a private file are as private as the training rows. ``origin``
    is one of ``DPMCMC_DATA``, ``cache``, ``download``, ``stand-in``, ``generated``, ``scikit-learn``, ``user file``.
    ``sha256`` maps the name of each known public file to its digest and is empty for a user's own file,
    whose digest would be a function of private records. ``outside`` counts, for each column of a table, the values that
    lay beyond its schema, and is as private as the records; None where there is no schema. ``table`` is where a table's
    columns are, before their encoding, or None. ``partitions`` are a table's that is read where it is computed; then
    ``train`` has one made-up row, for shapes alone. ``seen`` is what the table's files were known by before they were
    read.

    Example:
        >>> import dpmcmc
        >>> records = dpmcmc.data.load("breast_cancer")
        >>> records.train["x"].shape, records.origin
        ((426, 31), 'scikit-learn')
    """

    spec: DataSpec
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray] | None
    test_is_public: bool
    origin: str
    sha256: dict[str, str]
    columns: tuple[str, ...]
    outside: dict[str, int] | None = None
    table: Path | None = None
    partitions: EncodedPartitions | None = None
    seen: Stamps = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.columns:
            check_name(name, "columns")


@dataclass(frozen=True)
class Owners:
    """Public facts of a file whose records are owners.

    Attributes:
        array: name of the array of who each row belongs to.
        count: owners, held out and absent ones included.
        rows: of one owner that count.
    """

    array: str
    count: int
    rows: int


@dataclass(frozen=True)
class DataRequest:
    """Source of the records: a registered ``name``, or the ``path`` of your own .npz file or folder of .npy files.

    Args:
        name: one of the registered data sets.
        path: your own .npz, or for records beyond memory a folder with x.npy and y.npy; relative to the config file.
        encoding: feature encoding of a registered set; every constant in it is public.
        standin: whether a generated set of the same shape may replace files that cannot be had.
        x: name of the feature array (N, d) in your .npz.
        y: name of the label array (N,) in your .npz.
        row_bound: public bound on the l2 norm of your rows.
        test_fraction: share of your rows held out for testing.
        num_records: public number of training records of your file; needed to plan without reading it.
        public: declare your file public: its test metrics, non-private fits and draws without a guarantee may be
            released.
        owner: name of the array in your .npz of who each row belongs to, numbered from 0. An owner with all their rows
            is then one record: what the guarantee speaks of, what is clipped and what is sampled.
        num_owners: public number of owners, held out and absent ones included; with owner, in place of num_records.
        records_per_owner: public number of rows of one owner that count, the first ones; with owner.
        num_features: public number d of features of your rows; a one-shot mechanism needs it to plan.
        schema: public ranges and levels of the columns, where path is a table: a CSV, Parquet or Arrow file.
        privatised: declare your file private before you got it: ``{epsilon, delta, relation, noise_std}``, with
            ``privacy: null``. Any sampler may use it, nothing more is charged, and what is computed may be published.
        base_dir: folder that a relative path starts from.

    Raises:
        DataError: a value is out of range, or belongs to the other kind of source.

    Example:
        >>> from dpmcmc.data import DataRequest, describe
        >>> describe(DataRequest(name="breast_cancer")).num_records
        426
    """

    name: str | None = None
    path: str | None = None
    encoding: Literal["public", "linear", "bins"] = "public"
    standin: Literal["allow", "refuse"] = "refuse"
    x: str = "x"
    y: str = "y"
    row_bound: Annotated[float, Gt(0)] | None = None
    test_fraction: Annotated[float, Ge(0), Lt(1)] = 0.0
    num_records: Count | None = None
    public: bool = False
    owner: str | None = None
    num_owners: Count | None = None
    records_per_owner: Count | None = None
    num_features: Count | None = None
    schema: Schema | None = None
    privatised: Privatised | None = None
    base_dir: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except InputError as error:
            raise DataError.at(error.about, str(error)) from None
        if (self.name is None) == (self.path is None):
            raise DataError("data: give either name (a registered data set) or path (your own .npz file or folder).")
        if self.privatised is not None and self.path is not None:
            # They were given away, under the promise that they came with.
            object.__setattr__(self, "public", True)
        said = [key for key, default in _DEFAULTS.items() if getattr(self, key) != default]
        for given, whose, reason in (
            (self.name, "your own file", f"{self.name} has its own"),
            (self.path, "registered sets", "your own file is used as it is"),
        ):
            wrong = [key for key in _ONLY_FOR[whose] if key in said]
            if given is not None and wrong:
                raise DataError.at(wrong[0], f"is for {whose}, and {reason}; leave it out")
        wrong = [key for key in ("x", "y", "row_bound", "num_features") if key in said]
        if self.schema is not None and wrong:
            raise DataError.at(wrong[0], "is said by the schema; leave it out")
        self._check_owners()

    @property
    def owners(self) -> Owners | None:
        """Owners that are declared, or None where a record is a row."""
        if self.owner is None or self.num_owners is None or self.records_per_owner is None:
            return None
        return Owners(self.owner, self.num_owners, self.records_per_owner)

    def _check_owners(self) -> None:
        """Refuse half of a declaration of owners, and one that contradicts itself."""
        for key, value in (
            ("num_owners", self.num_owners),
            ("records_per_owner", self.records_per_owner),
        ):
            if self.owner is None and value is not None:
                raise DataError.at(
                    key,
                    "says nothing without data.owner, the array of who each row belongs to",
                )
            if self.owner is not None and value is None:
                raise DataError.at(
                    key,
                    "with data.owner this must be declared, a public whole number >= 1",
                )
        if self.owner is None:
            return
        if self.num_records is not None:
            raise DataError.at(
                "num_records",
                "with data.owner N counts training owners, which follows from data.num_owners and data.test_fraction; "
                "leave it out",
            )
        if self.owner in (self.x, self.y):
            raise DataError.at(
                "owner",
                f"{self.owner!r} is also the name of the features or labels; name another array",
            )

    @classmethod
    def of(cls, config: object, **options: object) -> DataRequest:
        """Return the request that ``config`` stands for.

        Args:
            config: a name, the path of an ``.npz``, a mapping, or any object with these attributes.
            options: override what ``config`` says. A None stands for the default, as in a YAML key left out.

        Raises:
            DataError: an unknown key, or a value that :class:`DataRequest` refuses.
        """
        known = [one.name for one in fields(cls)]
        if isinstance(config, os.PathLike) or (isinstance(config, str) and config.endswith(".npz")):
            given: dict[str, Any] = {"path": config}
        elif isinstance(config, str):
            given = {"name": config}
        elif isinstance(config, Mapping):
            given = dict(config)
        else:
            given = {key: getattr(config, key, None) for key in known}
        given.update(options)
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise DataError(f"data: unknown key {', '.join(unknown)}; the keys are {', '.join(known)}.")
        given = {key: value for key, value in given.items() if value is not None}
        if isinstance(given.get("schema"), Mapping):
            given["schema"] = Schema.from_yaml(given["schema"])
        for key in ("path", "base_dir"):
            if key in given:
                given[key] = os.fspath(given[key])
        return cls(**given)


_DEFAULTS = {one.name: one.default for one in fields(DataRequest)}
#: Keys that only one kind of source takes.
_ONLY_FOR = {
    "your own file": (
        "x",
        "y",
        "row_bound",
        "test_fraction",
        "public",
        "privatised",
        "owner",
        "num_features",
        "schema",
    ),
    "registered sets": ("encoding", "standin"),
}


@dataclass(frozen=True)
class KnownSet:
    """One registry entry: the public facts, how to get the records, and the encodings on offer.

    ``own_columns`` has the public facts of encodings whose columns are not those of ``spec``.
    """

    spec: DataSpec
    load: Callable[[DataSpec, DataRequest], DataSet]
    encodings: tuple[str, ...] = ()
    own_columns: Mapping[str, DataSpec] = field(default_factory=dict)

    def describe(self, request: DataRequest) -> DataSpec:
        """The public facts under the requested encoding; constants only, no file.

        Raises:
            DataError: the set does not offer the encoding, or has another number of training records.
        """
        name = self.spec.name
        count = self.spec.num_records
        if request.num_records not in (None, count):
            raise DataError.at(
                "num_records",
                f"{request.num_records} was declared, but {name} has {count} training records; leave the key out",
            )
        if not self.encodings:
            if request.encoding != ENCODINGS[0]:
                raise DataError.at("encoding", f"{name} has only one encoding; leave the key out")
            return self.spec
        if request.encoding in self.own_columns:
            return self.own_columns[request.encoding]
        if request.encoding not in self.encodings:
            raise DataError.at(
                "encoding",
                f"{name} has no {request.encoding}; give {' or '.join(self.encodings)}",
            )
        return replace(self.spec, encoding=request.encoding)


# ----------------------------------------------------------------------------------------------------
# Train and test rows by a public permutation that no record can influence.

SPLIT_SEED = 2015


def fixed_split(num_rows: int, num_test: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (train, test), each ascending; depends on the two counts and on nothing else.

    The test rows are the last ``num_test`` of a permutation with the public seed ``SPLIT_SEED``. Neighbouring
    data sets of a guarantee are neighbouring *training* sets: under add-or-remove adjacency a file with one
    more row would be split anew.
    """
    # RandomState rather than a Generator: its stream is frozen (NumPy NEP 19), so a split outlives upgrades.
    order = np.random.RandomState(SPLIT_SEED).permutation(num_rows)
    cut = num_rows - num_test
    return np.sort(order[:cut]), np.sort(order[cut:])


# ----------------------------------------------------------------------------------------------------
# Maps from one raw record to one feature row, with public constants only.
#
# Both maps act on each row alone. Scaling by a statistic of the table (its largest norm, a column mean) would
# publish that statistic outside the privacy account.

# Rounding to float32 changes a norm by at most a relative 2^-24; this margin keeps every row inside the ball.
MARGIN = 1e-6


def normalised_rows(rows: np.ndarray) -> np.ndarray:
    """Scales every row (N, d) to l2 norm 1, less a margin of 1e-6 so that float32 rows never exceed 1.

    No row may be zero; the intercept column sees to that.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: np.ndarray = rows * ((1.0 - MARGIN) / norms)
    return scaled.astype(np.float32)


def clipped_rows(rows: np.ndarray, bound: float) -> np.ndarray:
    """Scales down only the rows (N, d) whose l2 norm exceeds ``bound``; float32 rows never exceed it."""
    limit = bound * (1.0 - MARGIN)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: np.ndarray = rows * (limit / np.maximum(norms, limit))
    return scaled.astype(np.float32)


def ranged_columns(values: np.ndarray, upper: np.ndarray, encoding: str) -> np.ndarray:
    """Brings columns (N, d) with public range [0, upper] to a common scale, clipping what lies outside.

    ``linear``: value / upper, in [0, 1]. ``public``: centred on the middle of the range, in [-1, 1]; after
    row normalisation this keeps more of the signal, because rows no longer share one dominant direction.
    """
    fraction: np.ndarray = np.clip(values / upper, 0.0, 1.0)
    return fraction if encoding == "linear" else 2.0 * fraction - 1.0


def with_intercept(rows: np.ndarray) -> np.ndarray:
    """Appends a column of ones."""
    return np.concatenate([rows, np.ones((rows.shape[0], 1))], axis=1)
