"""The words of this room: what is asked for, what is public about it, and what comes back."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dpmcmc.errors import InputError

ENCODINGS = ("public", "linear")


class DataError(InputError):
    """A message to the data holder: what is wrong, where, and how to mend it.

    It may quote counts and row numbers of private records, so show it to whoever holds the data and never
    write it into a released file.
    """


@dataclass(frozen=True)
class DataSpec:
    """Public facts of a data set, known without reading a record.

    ``num_records`` is the number of training records N (None: not declared). ``num_features`` counts the
    intercept column. ``num_classes`` is None for regression, for counts, or when it is not known. ``public``
    says that the records themselves, train and test, may be published. ``row_bound`` is a public bound on the
    l2 norm of a record's feature row (``inf``: none was declared). ``encoding`` is None where a set offers no
    choice. ``records_per_owner`` is None where a record is a row; otherwise a record is an owner with at most so many
    rows, and ``num_records`` counts training owners.
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


@dataclass(frozen=True)
class DataSet:
    """Records, checked, and within ``spec.row_bound``, in memory or memory-mapped (``npy_folder.py``; there as their
    files hold them, which may pass the bound by rounding).

    ``train`` and ``test`` are ``{"x": float32 (N, d), "y": (N,)}``; ``y`` is int32 for class numbers
    (0 and 1 for two classes) and counts, and float32 for reals; memory-mapped, they have these types once read. Where
    records are owners, ``train`` is what
    ``by_owner`` makes, and ``test`` has rows all the same. ``test_is_public`` says whether metrics on the
    test rows may be released; rows held out of a private file are as private as the training rows. ``origin``
    is one of ``DPMCMC_DATA``, ``cache``, ``download``, ``stand-in``, ``generated``, ``scikit-learn``, ``user file``.
    ``sha256`` maps the name of each known public file to its digest and is empty for a user's own file,
    whose digest would be a function of private records.
    """

    spec: DataSpec
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray] | None
    test_is_public: bool
    origin: str
    sha256: dict[str, str]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class DataRequest:
    """The ``data:`` section of a configuration, whatever form it arrived in.

    Either ``name`` (a registered set) or ``path`` (a user's ``.npz``, or folder of ``.npy`` files, taken from
    ``base_dir`` when relative).
    ``encoding`` and ``standin`` concern registered sets; ``x``, ``y``, ``row_bound``, ``test_fraction``,
    ``num_records`` and ``public`` concern a user's file, and so do ``owner``, ``num_owners`` and
    ``records_per_owner``, which go together.

    Raises:
        DataError: a value is out of range, or belongs to the other kind of source.
    """

    name: str | None = None
    path: str | None = None
    encoding: str = "public"
    standin: str = "refuse"
    x: str = "x"
    y: str = "y"
    row_bound: float | None = None
    test_fraction: float = 0.0
    num_records: int | None = None
    public: bool = False
    owner: str | None = None
    num_owners: int | None = None
    records_per_owner: int | None = None
    base_dir: str | None = None

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None):
            raise DataError("data: give either name (a registered data set) or path (your own .npz file or folder).")
        if self.encoding not in ENCODINGS:
            raise DataError(f"data.encoding: {self.encoding!r} is not one of {', '.join(ENCODINGS)}.")
        if self.standin not in ("allow", "refuse"):
            raise DataError(f"data.standin: {self.standin!r} is neither allow nor refuse.")
        if self.row_bound is not None and not (0.0 < self.row_bound < math.inf):
            raise DataError(f"data.row_bound: {self.row_bound} is not a positive number; leave it out for none.")
        if not 0.0 <= self.test_fraction < 1.0:
            raise DataError(f"data.test_fraction: {self.test_fraction} is not in [0, 1).")
        if self.num_records is not None and self.num_records < 1:
            raise DataError(f"data.num_records: {self.num_records} is not a positive count of training records.")
        if self.path is None and self.row_bound is not None:
            raise DataError(f"data.row_bound is for your own file; {self.name} has a fixed bound: leave it out.")
        if self.path is None and self.test_fraction:
            raise DataError(f"data.test_fraction is for your own file; {self.name} has a fixed split: leave it out.")
        if self.path is not None and self.encoding != ENCODINGS[0]:
            raise DataError("data.encoding is for registered sets; your own file is used as it is: leave it out.")
        if self.path is not None and self.standin != "refuse":
            raise DataError("data.standin is for registered sets; nothing replaces your own file: leave it out.")
        if self.path is None and (self.x, self.y, self.public) != ("x", "y", False):
            raise DataError(
                f"data.x, data.y and data.public are for your own file; {self.name} has its own: leave them out."
            )
        self._check_owners()

    def _check_owners(self) -> None:
        """Refuse half of a declaration of owners, and one that contradicts itself."""
        for key in ("num_owners", "records_per_owner"):
            value = getattr(self, key)
            if self.owner is None and value is not None:
                raise DataError(f"data.{key}: says nothing without data.owner, the array of who each row belongs to.")
            if self.owner is not None and (value is None or value < 1):
                raise DataError(f"data.{key}: with data.owner this must be declared, a public whole number >= 1.")
        if self.owner is None:
            return
        if self.path is None:
            raise DataError(f"data.owner is for your own file; {self.name} has one record a row: leave it out.")
        if self.num_records is not None:
            raise DataError(
                "data.num_records: with data.owner N counts training owners, which follows from data.num_owners and "
                "data.test_fraction; leave it out."
            )
        if self.owner in (self.x, self.y):
            raise DataError(
                f"data.owner: {self.owner!r} is also the name of the features or labels; name another array."
            )

    @classmethod
    def of(cls, config: Any, **options: Any) -> DataRequest:
        """Reads ``config``: a name, the path of an ``.npz``, a mapping, or any object with these attributes.

        ``options`` override what ``config`` says. A None stands for the default, as in a YAML key left out.

        Raises:
            DataError: an unknown key, or a value that :class:`DataRequest` refuses.
        """
        known = [field.name for field in fields(cls)]
        if isinstance(config, os.PathLike) or (isinstance(config, str) and config.endswith(".npz")):
            given: dict[str, Any] = {"path": config}
        elif isinstance(config, str):
            given = {"name": config}
        elif isinstance(config, Mapping):
            given = dict(config)
        else:
            given = {key: getattr(config, key) for key in known if hasattr(config, key)}
        given.update(options)
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise DataError(f"data: unknown key {', '.join(unknown)}; the keys are {', '.join(known)}.")
        given = {key: value for key, value in given.items() if value is not None}
        for key in ("path", "base_dir"):
            if key in given:
                given[key] = os.fspath(given[key])
        return cls(**given)


@dataclass(frozen=True)
class KnownSet:
    """One registry entry: the public facts, how to get the records, and the encodings on offer."""

    spec: DataSpec
    load: Callable[[DataSpec, DataRequest], DataSet]
    encodings: tuple[str, ...] = ()

    def describe(self, request: DataRequest) -> DataSpec:
        """The public facts under the requested encoding; constants only, no file.

        Raises:
            DataError: the set does not offer the encoding, or has another number of training records.
        """
        name, count = self.spec.name, self.spec.num_records
        if request.num_records not in (None, count):
            raise DataError(
                f"data.num_records: {request.num_records} was declared, but {name} has {count} training "
                "records; leave the key out."
            )
        if not self.encodings:
            if request.encoding != ENCODINGS[0]:
                raise DataError(f"data.encoding: {name} has only one encoding; leave the key out.")
            return self.spec
        return replace(self.spec, encoding=request.encoding)
