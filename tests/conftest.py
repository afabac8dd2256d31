"""Shared set-up: where the benchmark files are, caches, and how hard the compiler works."""

import functools
import os
import tempfile
from pathlib import Path

import platformdirs
import pytest

# Before any test module is imported: some decide at import whether the real files can be had.
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "datasets"
if "DPMCMC_DATA" not in os.environ and (_BESIDE / "adult.data").exists():
    os.environ["DPMCMC_DATA"] = str(_BESIDE)
os.environ.setdefault("DPMCMC_CACHE", tempfile.mkdtemp(prefix="dpmcmc-tests-"))
# Before JAX is imported: most of the tests' time is compilation, so programs are kept from run to run, for this user
# alone. JAX knows them by what is compiled, by its version, and by the compiler's options.
_KEPT = Path(
    os.environ.get("JAX_COMPILATION_CACHE_DIR") or Path(platformdirs.user_cache_dir("dpmcmc-tests"), "compiled")
)
_KEPT.mkdir(parents=True, exist_ok=True, mode=0o700)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_KEPT)
# Most programs compile faster than the default asks for, and there are thousands of them.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Most of the time to compile makes programs fast, which matters to tests of bits, sensitivities and speed alone. Without
# that, and with the kernels that XLA made for CPUs before it had "fusion emitters", a program takes a third of the time.
_FLAG = "jax_disable_most_optimizations"
os.environ[_FLAG.upper()] = "1"
_KERNELS = {"xla_cpu_use_fusion_emitters": False}
_compiles_fast = True


def pytest_collection_modifyitems(items):
    """Run the tests of a module that are marked ``optimised`` before its others: a change forgets all programs."""
    modules = list(dict.fromkeys(item.path for item in items))
    items.sort(key=lambda item: (modules.index(item.path), item.get_closest_marker("optimised") is None))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Compile as users do for tests that are marked ``optimised``, their fixtures included, and there alone."""
    _compile_fast(item.get_closest_marker("optimised") is None)


def _compile_fast(fast):
    global _compiles_fast
    import jax
    from jax._src import compiler

    from dpmcmc.engine import program

    plain, quick = _compiler_options()
    compiler.get_compile_options = quick if fast else plain
    if fast == _compiles_fast:
        return
    # What is in memory was compiled the other way.
    jax.clear_caches()
    program._compile_cached.cache_clear()
    jax.config.update(_FLAG, fast)
    os.environ[_FLAG.upper()] = str(int(fast))  # of processes that a test starts
    _compiles_fast = fast


@functools.cache
def _compiler_options():
    """(JAX's function that chooses the compiler's options, the same with ``_KERNELS`` where XLA knows of them)."""
    import jax
    from jax._src import compiler

    plain = compiler.get_compile_options
    try:
        jax.jit(lambda: 0, compiler_options=_KERNELS)()
    except jax.errors.JaxRuntimeError:
        return plain, plain

    def quick(*arguments, env_options_overrides=None, **more):
        return plain(*arguments, env_options_overrides=_KERNELS | (env_options_overrides or {}), **more)

    return plain, quick
