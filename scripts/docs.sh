#!/bin/sh
# Build the documentation site into build/docs/html: scripts/docs.sh [sphinx-build options].
# Pages with code are run; their output is kept in build/docs/executed until the code changes. A warning is an error.
. "$(dirname "$0")/environment.sh"
install docs "[docs]"
cd "$root"
PYDEVD_DISABLE_FILE_VALIDATION=1 PYTHONPATH=$root exec "$venv/bin/python" -m sphinx --fail-on-warning --keep-going \
    --jobs 2 -d build/docs/doctrees "$@" docs build/docs/html
