"""Where compiled programs are kept between runs, and how a program that runs once is compiled."""

from __future__ import annotations

import jax

from dpmcmc.storage.cache import cache_folder

#: Compiler options of a program that runs once, on little: it takes a quarter of the time to compile.
RUN_ONCE = {"xla_backend_optimization_level": 0}


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
