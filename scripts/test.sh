#!/bin/sh
# Set up and test: scripts/test.sh [--all] [pytest options]. --all adds the slow tests.
. "$(dirname "$0")/environment.sh"
install test "[dev]"
cd "$root"
"$venv/bin/ruff" check --quiet .
"$venv/bin/ruff" format --quiet --check .
"$venv/bin/mypy" --no-error-summary
"$venv/bin/python" scripts/config_reference.py --check
"$venv/bin/python" scripts/architecture.py --check
"$venv/bin/lint-imports" > /dev/null || "$venv/bin/lint-imports"
if [ "${1:-}" = --all ]; then
    shift
    set -- -m "not gpu and not exhaustive" "$@"
fi
exec "$venv/bin/python" -m pytest --numprocesses 2 --dist loadfile "$@"
