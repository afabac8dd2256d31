#!/bin/sh
# Our events by an accountant that is not ours: scripts/test_accountants.sh [pytest options].
# Compares the events of shipped configs with dp-accounting.
. "$(dirname "$0")/environment.sh"
install test "[dev]"
cd "$root"
"$venv/bin/python" -m pytest --numprocesses 0 tests/accounting/test_second_accountant.py "$@"
"$venv/bin/python" -m scripts.second_accountant adult breast_cancer digits_bnn adult_hybrid adult_certified_ops \
    adult_output adult_labels
