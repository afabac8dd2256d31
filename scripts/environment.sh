# Sourced by the other scripts: a virtual environment with the package in it.
#   DPMCMC_VENV  where (default: .venv beside this repository's README)
#   PYTHON       which interpreter makes it (default: python3, 3.11 or newer)
set -eu
# uv compiles no modules, so the first import must: where it may not, every process compiles JAX and the rest anew.
unset PYTHONDONTWRITEBYTECODE
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${DPMCMC_VENV:-$root/.venv}
if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "error: dpmcmc needs Python 3.11 or newer; set PYTHON to such an interpreter." >&2
        exit 2
    }
    "${PYTHON:-python3}" -m venv "$venv"
fi
install() {
    # Skipped while nothing that decides it has changed.
    stamp=$venv/.installed-$1
    if [ ! -f "$stamp" ] || [ "$root/pyproject.toml" -nt "$stamp" ]; then
        # uv resolves and installs in a third of pip's time.
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
        UV_LINK_MODE=copy "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --editable "$root$2"
        touch "$stamp"
    fi
}
