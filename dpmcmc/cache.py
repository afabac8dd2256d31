"""The one folder where downloads, calibrations and compiled programs are kept between runs. Holds no record."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import platformdirs

#: Compiler options of a program that runs once, on little: it takes a quarter of the time to compile.
RUN_ONCE = {"xla_backend_optimization_level": 0}


def cache_folder() -> Path:
    """The folder named by ``DPMCMC_CACHE``, else the user's cache folder for dpmcmc."""
    named = os.environ.get("DPMCMC_CACHE")
    return Path(os.path.expanduser(named)) if named else Path(platformdirs.user_cache_dir("dpmcmc"))


def keep_compiled_programs() -> None:
    """Keep compiled programs between runs, readable by their owner alone.

    They hold shapes and public constants; records are arguments of everything compiled here.
    """
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return  # a cache that cannot be made costs time, never a run
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
