"""Shared set-up: where the benchmark files are, caches, entropy, and how hard the compiler works."""

import os
import tempfile
from pathlib import Path

# Before NumPy is imported, also by the processes that tests start: workers of a test runner share the cores, and the
# threads of a BLAS would spin beside them (`dpmcmc/storage/blas.py`).
os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"), "1")

import hypothesis
import platformdirs
import pytest

from tests import entropy
from tests.compiling import OPTION, compile_plainly, forget_programs_where_they_are_many

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
os.environ[OPTION.upper()] = "1"
# Before the package binds a function of ``secrets``.
entropy.follow("")
# The same examples in every run, and as long as a busy machine takes.
hypothesis.settings.register_profile("known", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("known")


def pytest_collection_modifyitems(items):
    """Run tests marked ``optimised`` before others of their module, whose fixtures are then compiled as users do."""
    order = {path: place for place, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: (order[item.path], item.get_closest_marker("optimised") is None))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Compile as users do for tests that are marked ``optimised``, fixtures included; entropy follows the test."""
    # A test that is moved to another folder keeps its entropy.
    entropy.follow(
        "tests/" + item.nodeid.removeprefix(item.path.parent.relative_to(item.config.rootpath).as_posix() + "/")
    )
    compile_plainly(item.get_closest_marker("optimised") is None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Between modules, forget programs where a process has very many of them."""
    if nextitem is None or nextitem.path != item.path:
        forget_programs_where_they_are_many()
