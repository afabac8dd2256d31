"""Versions of what is installed, for the files of a release and for fingerprints."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def installed(name: str) -> str:
    """Return a package's version, or "source" where it is used without being installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "source"


def versions() -> dict[str, str]:
    """Return the versions of the packages that compute a guarantee."""
    return {name: installed(name) for name in ("dpmcmc", "jax", "numpy", "scipy")}
