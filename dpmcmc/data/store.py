"""The store of known public files: the ``DPMCMC_DATA`` folder, then the cache, then the official UCI address.

A file is accepted only if its SHA-256 is the known one. A file with another SHA-256 stops the search. Another
source, or generated data, would hide that something is wrong with it. The module of
a data set knows what the lines of its file mean.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpmcmc.errors import DataError
from dpmcmc.storage.cache import cache_folder, make_private, refuse_unsafe
from dpmcmc.storage.files import read_bytes

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
