"""How hard the compiler works for tests: little, but for those of bits, sensitivities and speed.

Most of the tests' time is compilation, and most of that makes programs fast. Without it, and with the kernels that XLA
made for CPUs before it had "fusion emitters", a program takes a third of the time.
"""

import functools
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Without most optimisations: JAX's option, and the same for a process that is given XLA's own.
OPTION = "jax_disable_most_optimizations"
PLAIN_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
_KERNELS = {"xla_cpu_use_fusion_emitters": False}

_plain = True
_GIVEN = os.environ.get("XLA_FLAGS", "")


def compile_plainly(plain: bool) -> None:
    """Compile from here on without optimisation, or as users do."""
    global _plain
    import jax
    from jax._src import compiler

    from dpmcmc.engine import compilation

    compiler.get_compile_options = _choices()[plain]
    # This process has parsed its flags; those that a test starts are given them.
    os.environ["XLA_FLAGS"] = f"{_GIVEN} {flags()}" if plain else _GIVEN
    if plain == _plain:
        return
    # Programs of either way stay in memory, apart.
    _way().set_global(plain)
    compilation._compile_cached = _kept_programs()[plain]
    jax.config.update(OPTION, plain)
    os.environ[OPTION.upper()] = str(int(plain))  # of processes that a test starts
    _plain = plain


def flags() -> str:
    """Return what ``XLA_FLAGS`` is to say in a process of its own that depends on no rounding."""
    kernels = [f"--{name}={str(value).lower()}" for name, value in _KERNELS.items() if _known()]
    return " ".join([PLAIN_FLAGS, *kernels])


@functools.cache
def _way() -> Any:
    """Make a part of JAX's key for programs."""
    import jax

    return jax.make_user_context(default_value=True)


@functools.cache
def _kept_programs() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(the engine's cache of programs, another one like it)."""
    from dpmcmc.engine import compilation

    plain = compilation._compile_cached
    optimised = functools.lru_cache(maxsize=compilation.KEPT_PROGRAMS)(plain.__wrapped__)
    return optimised, plain


@functools.cache
def _choices() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(JAX's function that chooses the compiler's options, the same with ``_KERNELS`` where XLA knows of them)."""
    from jax._src import compiler

    chosen = compiler.get_compile_options

    def plainly(*arguments: Any, env_options_overrides: Any = None, **more: Any) -> Any:
        return chosen(*arguments, env_options_overrides=_KERNELS | (env_options_overrides or {}), **more)

    return chosen, plainly if _known() else chosen


@functools.cache
def _known() -> bool:
    import jax

    try:
        jax.jit(lambda: 0, compiler_options=_KERNELS)()
    except jax.errors.JaxRuntimeError:
        return False
    return True


#: Memory maps and bytes of a process from which on its programs are forgotten. A system gives a process 65,530 maps.
MOST_MAPS = 20_000
MOST_BYTES = 4 << 30


def forget_programs_where_they_are_many() -> None:
    """Forget compiled programs before they take all that a process may have; others stay for the next module."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if resident < MOST_BYTES and len(maps.read_bytes().splitlines()) < MOST_MAPS:
        return
    import jax

    jax.clear_caches()
    for kept in _kept_programs():
        kept.cache_clear()  # type: ignore[attr-defined]
    gc.collect()
