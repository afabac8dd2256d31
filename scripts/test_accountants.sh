#!/bin/sh
# Our events by the accountants of other libraries: scripts/test_accountants.sh [pytest options].
# Adds OpenDP to the environment of the tests, which has dp-accounting, and compares shipped configs with both.
. "$(dirname "$0")/environment.sh"
install test "[dev]"
cd "$root"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "opendp==0.16.0"
"$venv/bin/python" -m pytest --numprocesses 0 tests/test_second_accountant.py "$@"
"$venv/bin/python" -m scripts.second_accountant adult breast_cancer digits_bnn adult_hybrid adult_certified_ops \
    adult_output adult_labels
