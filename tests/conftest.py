"""Shared set-up: where the benchmark files are, caches, and how hard the compiler works."""

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
# A third of the time to compile goes into optimisation, which matters to tests of bits, sensitivities and speed alone.
_FLAG = "jax_disable_most_optimizations"
os.environ[_FLAG.upper()] = "1"


@pytest.fixture(autouse=True, scope="module")
def _compiler_effort(request):
    """Optimise as users do in modules that are marked ``optimised``, and there alone."""
    import jax

    from dpmcmc.engine import program

    if request.node.get_closest_marker("optimised") is None:
        yield
        return
    for plain in (False, True):
        # What is in memory was compiled the other way.
        jax.clear_caches()
        program._compile_cached.cache_clear()
        jax.config.update(_FLAG, plain)
        os.environ[_FLAG.upper()] = str(int(plain))  # of processes that a test starts
        if not plain:
            yield
