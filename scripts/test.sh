#!/bin/sh
# Set up and test: scripts/test.sh [--all] [pytest options]. --all adds the slow tests.
. "$(dirname "$0")/environment.sh"
install test "[dev]"
cd "$root"
if [ "${1:-}" = --all ]; then
    shift
    set -- -m "not gpu and not gpu_compile and not exhaustive" "$@"
fi

# Style, claims, budgets, import contracts and types, each of which is silent where all is well.
check() {
    "$venv/bin/ruff" check --quiet . &&
        "$venv/bin/ruff" format --check --quiet . &&
        "$venv/bin/python" scripts/architecture.py --check &&
        "$venv/bin/python" -m scripts.proofs --check &&
        "$venv/bin/python" scripts/house.py --check &&
        "$venv/bin/mypy" --no-error-summary
}

# Types take as long as a tenth of the quick tests, so they are checked beside them; a failure is said at once.
check &
checks=$!
trap 'kill "$checks" 2> /dev/null || :' EXIT INT TERM
failed=0
"$venv/bin/python" -m pytest --numprocesses 2 --dist worksteal "$@" || failed=$?
wait "$checks" || {
    echo "error: style, claims, budgets, import contracts or types are wrong; see the messages above." >&2
    [ "$failed" != 0 ] || failed=1
}
exit "$failed"
