#!/bin/sh
# Build the documentation site: scripts/docs.sh [sphinx-build options]. Open build/docs/html/index.html.
# Pages with code are run; what they print is kept in build/docs/executed until their code changes. A warning is an error.
. "$(dirname "$0")/environment.sh"
install docs "[docs]"
cd "$root"
# What pages compile is kept from build to build, with what tests compile.
: "${JAX_COMPILATION_CACHE_DIR:=${XDG_CACHE_HOME:-$HOME/.cache}/dpmcmc-tests/compiled}"
mkdir -p -m 700 "$JAX_COMPILATION_CACHE_DIR"
PATH=$venv/bin:$PATH
PYTHONPATH=$root
PYDEVD_DISABLE_FILE_VALIDATION=1
export JAX_COMPILATION_CACHE_DIR PATH PYTHONPATH PYDEVD_DISABLE_FILE_VALIDATION
# Two pages are made of the code, and are not kept in git.
"$venv/bin/python" scripts/config_reference.py
"$venv/bin/python" -m scripts.proofs
exec "$venv/bin/python" -m sphinx --fail-on-warning --keep-going --jobs 2 -d build/docs/doctrees "$@" docs build/docs/html
