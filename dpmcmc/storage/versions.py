"""Versions of what is installed."""

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def installed(name: str) -> str:
    """Return a package's version, or "source" where it is used without being installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "source"
