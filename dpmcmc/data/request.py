"""The request for a data set: a known set by name, or a user's own file, each with its options.

A request opens no file. ``DataSpec`` (``base.py``) has what is public about the data set.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Lt

from dpmcmc.data.schema import Schema
from dpmcmc.errors import Checked, DataError, InputError, check_fields

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
