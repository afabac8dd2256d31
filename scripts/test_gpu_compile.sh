#!/bin/sh
# Compile the engine's programs for a GPU, on a machine without one: scripts/test_gpu_compile.sh [pytest options].
# The compiler, 600 MB, goes into an environment of its own, which sees what the ordinary one has: beside the ordinary
# tests it would be looked for by every process that starts JAX.
#   DPMCMC_VENV      the ordinary environment (default: .venv beside this repository's README)
#   DPMCMC_GPU_VENV  where (default: .venv-gpu-check beside it)
. "$(dirname "$0")/environment.sh"
install test "[dev]"
cd "$root"
gpu=${DPMCMC_GPU_VENV:-$root/.venv-gpu-check}
[ -x "$gpu/bin/python" ] || "$venv/bin/python" -m venv --without-pip "$gpu"
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
echo "import site; site.addsitedir('$("$venv/bin/python" -c "$packages")')" > "$("$gpu/bin/python" -c "$packages")/ordinary.pth"
# The extra's packages alone, JAX's plugins at its own version: all else is there.
"$venv/bin/python" - > "$gpu/wanted.txt" << 'END'
import pathlib, tomllib
import jax
extras = tomllib.loads(pathlib.Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
for package in extras["gpu-check"]:
    print(f"{package},=={jax.__version__}" if package.startswith("jax-") else package)
END
UV_LINK_MODE=copy "$venv/bin/uv" pip install --quiet --python "$gpu/bin/python" --no-deps --requirement "$gpu/wanted.txt"
# Tests that cannot compile fail here, and are not skipped.
JAX_PLATFORMS=cpu DPMCMC_GPU_CHECK=required "$gpu/bin/python" -m pytest -m gpu_compile --numprocesses 0 \
    tests/house/test_gpu_compile.py "$@"
