"""The one folder where downloads, calibrations and compiled programs are kept between runs. Holds no record."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """The folder named by ``DPMCMC_CACHE``, else the user's cache folder for dpmcmc."""
    named = os.environ.get("DPMCMC_CACHE")
    return Path(os.path.expanduser(named)) if named else Path(platformdirs.user_cache_dir("dpmcmc"))
