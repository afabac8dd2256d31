#!/bin/sh
# Set up and run: scripts/run.sh [CONFIG] [options of dpmcmc run]
. "$(dirname "$0")/environment.sh"
install run ""
[ $# -gt 0 ] || set -- adult
exec "$venv/bin/dpmcmc" run "$@"
