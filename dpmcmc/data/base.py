"""Types of this room: public facts of a data set, and its records. ``request.py`` has what a user asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dpmcmc.data.checks import check_name
from dpmcmc.data.encoded_partitions import EncodedPartitions
from dpmcmc.data.request import ENCODINGS, DataRequest, Privatised
from dpmcmc.data.schema import Schema
from dpmcmc.data.structure import RowStructure
from dpmcmc.errors import DataError
from dpmcmc.storage.stamps import Stamps


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
        """Facts that ``data/public_facts.py`` gives a target, a mechanism or a metric."""
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
    """Records, checked, and within ``spec.row_bound``, in memory or memory-mapped (``row_folder.py``; there as their
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
