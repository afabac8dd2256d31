#!/bin/sh
# Build what a release uploads: scripts/release.sh [FOLDER] (default: dist). Nothing is uploaded.
# Makes wheel and sdist of the commit twice, in two folders, and refuses two builds that differ. Checks their metadata,
# runs the wheel in an environment that holds the locked packages and nothing else, from an empty folder, and writes a
# list of everything inside that environment (an SBOM, in CycloneDX). All tools are locked, with their hashes.
#   PYTHON  which interpreter (default: python3, 3.11 or newer)
set -eu
unset PYTHONDONTWRITEBYTECODE PYTHONPATH
root=$(cd "$(dirname "$0")/.." && pwd)
git -C "$root" diff --quiet HEAD || {
    echo "error: the working tree differs from its commit, and a release is built of a commit; commit or stash first." >&2
    exit 2
}
mkdir -p "${1:-$root/dist}"
out=$(cd "${1:-$root/dist}" && pwd)
[ -z "$(ls "$out")" ] || {
    echo "error: $out is not empty; a release is built into an empty folder, so remove it or name another." >&2
    exit 2
}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/tools"
"$place/tools/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
    --requirement "$root/scripts/locked/release.txt"
# The time of the commit, in place of that of the build.
SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
build() { # FOLDER for the sources, FOLDER for the result
    mkdir -p "$1" "$2"
    git -C "$root" archive HEAD | tar -x -m -f - -C "$1"
    "$place/tools/bin/python" -m build --no-isolation --outdir "$2" "$1" > "$place/build.log" 2>&1 || {
        cat "$place/build.log" >&2
        exit 1
    }
}
build "$place/here" "$out"
# Another folder, another mask of new files, another time zone.
(
    umask 077
    export TZ=Pacific/Auckland
    build "$place/and/there" "$place/again"
)
for file in "$out"/*; do
    cmp "$file" "$place/again/$(basename "$file")" || {
        echo "error: two builds of one commit differ in $(basename "$file"), so nobody could repeat this release." >&2
        exit 1
    }
done
"$place/tools/bin/twine" check --strict "$out"/*.whl "$out"/*.tar.gz

"${PYTHON:-python3}" -m venv --without-pip "$place/venv"
uv() { UV_LINK_MODE=copy "$place/tools/bin/uv" pip install --quiet --python "$place/venv/bin/python" "$@"; }
uv --require-hashes --requirement "$root/scripts/locked/run.txt"
uv --no-deps "$out"/*.whl
mkdir "$place/empty"
cd "$place/empty"
for config in adult digits_bnn numpyro_poisson; do
    "$place/venv/bin/dpmcmc" plan "$config" > /dev/null
done
"$place/venv/bin/dpmcmc" run adult --out "$place/adult" --quiet
"$place/venv/bin/dpmcmc" verify "$place/adult/privacy.json"
"$place/tools/bin/cyclonedx-py" environment "$place/venv/bin/python" --pyproject "$root/pyproject.toml" \
    --output-reproducible --of JSON --output-file "$out/sbom.cdx.json"
cd "$out"
sha256sum -- *.whl *.tar.gz sbom.cdx.json | tee SHA256SUMS
