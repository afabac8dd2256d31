#!/bin/sh
# Format: scripts/format.sh [--check]. The package is formatted to 90 columns, about what the libraries that it is read
# beside have; tests, experiments and scripts are tables of cases, and keep the limit of 120 that lint holds everywhere.
set -eu
cd "$(dirname "$0")/.."
ruff=${RUFF:-.venv/bin/ruff}
failed=0
"$ruff" format --quiet --line-length 90 "$@" dpmcmc || failed=1
"$ruff" format --quiet --exclude dpmcmc "$@" . || failed=1
exit "$failed"
