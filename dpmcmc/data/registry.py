"""The list of known data sets, and the two public functions of the room."""

from __future__ import annotations

from dpmcmc.data import abalone, adult, bundled, generated, row_folder, user_file
from dpmcmc.data.base import DataSet, DataSpec, KnownSet
from dpmcmc.data.request import ENCODINGS, DataRequest
from dpmcmc.errors import DataError

REGISTRY: dict[str, KnownSet] = {
    "adult": KnownSet(adult.SPEC, adult.load, (*ENCODINGS, "bins"), {"bins": adult.BINS}),
    "abalone": KnownSet(abalone.SPEC, abalone.load, ENCODINGS),
    "two_normals": KnownSet(generated.TWO_NORMALS, generated.load_two_normals),
    "breast_cancer": KnownSet(bundled.BREAST_CANCER, bundled.load_breast_cancer, ENCODINGS),
    "digits": KnownSet(bundled.DIGITS, bundled.load_digits, ENCODINGS),
    "diabetes": KnownSet(bundled.DIABETES, bundled.load_diabetes),
    "poisson_counts": KnownSet(generated.POISSON_COUNTS, generated.load_poisson_counts),
}

NAMES: tuple[str, ...] = tuple(REGISTRY)


def describe(config: object, **options: object) -> DataSpec:
    """Return the public facts of a data set; opens no data file.

    ``config`` is a registered name, the path of an ``.npz``, a mapping, or an object with the attributes of
    :class:`~dpmcmc.data.request.DataRequest`; keywords override it. For a user's own file the facts are those
    the configuration declares, so ``num_records`` is None unless declared.

    Raises:
        DataError: the name is unknown or an option does not apply.
    """
    request = DataRequest.of(config, **options)
    if request.path is not None:
        return user_file.describe(request)
    return _known(request).describe(request)


def load(config: object, *, partitions: bool = False, **options: object) -> DataSet:
    """Reads and checks the records; takes what :func:`describe` takes, and returns that spec with them.

    With ``partitions`` a table in partitions stays where it is, and is read where it is computed.

    Those of a folder are memory-mapped (``row_folder.py``).

    A generated stand-in of the same shape replaces a benchmark file that cannot be had only where
    ``standin="allow"``; the result then has ``origin == "stand-in"``.

    Raises:
        DataError: a file is missing, altered or unusable; the message says how to mend it.
    """
    request = DataRequest.of(config, **options)
    if request.path is not None:
        found = user_file.in_partitions(request) if partitions else None
        if found is not None:
            return found
        if row_folder.is_folder(request):
            return row_folder.load_folder(request)
        return user_file.load(request)
    entry = _known(request)
    return entry.load(entry.describe(request), request)


def _known(request: DataRequest) -> KnownSet:
    entry = REGISTRY.get(str(request.name))
    if entry is None:
        raise DataError.at(
            "name",
            f"{request.name!r} is not a known data set ({', '.join(NAMES)}); for your own records give data.path, an "
            ".npz file or a folder of .npy files",
        )
    return entry
