#!/bin/sh
# Build what a release uploads: scripts/release.sh [FOLDER] (default: dist). Nothing is uploaded.
# Makes wheel and sdist, checks their metadata, runs the wheel in an environment that holds the locked packages and
# nothing else, from an empty folder, and writes a list of everything inside that environment (an SBOM, in CycloneDX).
#   PYTHON  which interpreter (default: python3, 3.11 or newer)
set -eu
unset PYTHONDONTWRITEBYTECODE PYTHONPATH
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$root/dist}"
out=$(cd "${1:-$root/dist}" && pwd)
[ -z "$(ls "$out")" ] || {
    echo "error: $out is not empty; a release is built into an empty folder, so remove it or name another." >&2
    exit 2
}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/tools"
"$place/tools/bin/python" -m pip install --quiet --disable-pip-version-check uv build twine cyclonedx-bom
# The time of the commit, so that two builds of one commit are the same files.
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
"$place/tools/bin/python" -m build --outdir "$out" "$root" > "$place/build.log" || { cat "$place/build.log" >&2; exit 1; }
"$place/tools/bin/twine" check --strict "$out"/*.whl "$out"/*.tar.gz

"${PYTHON:-python3}" -m venv --without-pip "$place/venv"
uv() { UV_LINK_MODE=copy "$place/tools/bin/uv" pip install --quiet --python "$place/venv/bin/python" "$@"; }
uv --require-hashes --requirement "$root/scripts/locked/run.txt"
uv --no-deps "$out"/*.whl
mkdir "$place/empty"
cd "$place/empty"
for config in adult digits_bnn digits_last_layer numpyro_poisson; do
    "$place/venv/bin/dpmcmc" plan "$config" > /dev/null
done
"$place/venv/bin/dpmcmc" run adult --out "$place/adult" --quiet
"$place/venv/bin/dpmcmc" verify "$place/adult/privacy.json"
"$place/tools/bin/cyclonedx-py" environment "$place/venv/bin/python" --pyproject "$root/pyproject.toml" \
    --output-reproducible --of JSON --output-file "$out/sbom.cdx.json"
cd "$out"
sha256sum -- *.whl *.tar.gz sbom.cdx.json | tee SHA256SUMS
