#!/bin/sh
# Write the lock files: scripts/lock.sh. Every package that dpmcmc needs (run.txt), those of its tests and its
# documentation too (dev.txt), and those that build a release (release.txt), each at one version for each Python and
# system, with the hashes of its files.
. "$(dirname "$0")/environment.sh"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
cd "$root"
lock() {
    name=$1
    shift
    "$venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
        --output-file "scripts/locked/$name.txt" --upgrade "$@"
}
lock run pyproject.toml
lock dev --extra dev --extra docs pyproject.toml
lock release --group release
