#!/bin/sh
# Format: scripts/format.sh [--check]. The package is formatted to 88 columns, as the libraries it is compared with
# are; tests, experiments and scripts are tables of cases, and keep the 120 columns that are the limit everywhere.
set -eu
cd "$(dirname "$0")/.."
ruff=${RUFF:-.venv/bin/ruff}
failed=0
"$ruff" format --quiet --line-length 88 "$@" dpmcmc || failed=1
"$ruff" format --quiet --exclude dpmcmc "$@" . || failed=1
exit "$failed"
