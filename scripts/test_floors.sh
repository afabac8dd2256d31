#!/bin/sh
# The lowest versions that pyproject.toml allows: scripts/test_floors.sh [pytest options].
# Installs them in an environment of their own, and runs tests of saving and of accounting there.
#   DPMCMC_FLOORS_VENV  where (default: a temporary folder, removed afterwards)
#   PYTHON              which interpreter makes it (default: python3, 3.11 or newer)
set -eu
unset PYTHONDONTWRITEBYTECODE # as in environment.sh
cd "$(dirname "$0")/.."
if [ -n "${DPMCMC_FLOORS_VENV:-}" ]; then
    venv=$DPMCMC_FLOORS_VENV
else
    place=$(mktemp -d)
    trap 'rm -rf "$place"' EXIT
    venv=$place/venv
fi
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
UV_LINK_MODE=copy "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" \
    --resolution lowest-direct --editable ".[dev]"
PATH=$venv/bin:$PATH
export PATH
# An old version may use what a newer one beneath it deprecates: a warning is no fault of the floor.
"$venv/bin/python" -m pytest -m "not gpu and not gpu_compile" --numprocesses 0 -W ignore::DeprecationWarning \
    tests/accounting/test_guarantee.py \
    tests/storage/test_result.py::test_the_summary_of_arviz_is_that_of_the_posterior_of_a_path \
    tests/accounting/test_accounting.py::test_golden_poisson_zero_out \
    tests/accounting/test_accounting.py::test_golden_poisson_replace_one \
    tests/accounting/test_accounting.py::test_golden_fixed_size_replace_one_rdp \
    tests/accounting/test_accounting.py::test_golden_fixed_size_replace_one_advanced_charges_twice_the_clip \
    tests/accounting/test_accounting.py::test_golden_schedule_is_composed_and_not_averaged \
    tests/cli/test_command_line.py::test_run_writes_a_folder_that_can_be_published \
    tests/cli/test_command_line.py::test_verify_refuses_a_stated_epsilon_that_its_events_exceed \
    tests/cli/test_command_line.py::test_user_file_runs_and_keeps_private_test_metrics_confidential "$@"
