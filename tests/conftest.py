"""Shared set-up: where the benchmark files are, and caches that do not touch the user's."""

import os
import tempfile
from pathlib import Path

# Before any test module is imported: some decide at import whether the real files can be had.
_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "datasets"
if "DPMCMC_DATA" not in os.environ and (_BESIDE / "adult.data").exists():
    os.environ["DPMCMC_DATA"] = str(_BESIDE)
os.environ.setdefault("DPMCMC_CACHE", tempfile.mkdtemp(prefix="dpmcmc-tests-"))
# Before JAX is: most of the tests' time is compilation, and some of it of programs that another test has compiled.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(os.environ["DPMCMC_CACHE"]) / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
