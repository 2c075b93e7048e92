#!/usr/bin/env bash
# Packages the crates that can be published, builds each from its package, and ends before the upload. They depend on each other, so
# that all are named: cargo then takes the siblings from their packages, not from the registry. Needs a network, and a clean work
# tree unless --allow-dirty is an argument. Builds in a directory of its own: about two minutes and 700 MB, removed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

target="${CARGO_TARGET_DIR:-target}/publish"
trap 'rm -rf "$target"' EXIT
CARGO_TARGET_DIR=$target cargo publish --dry-run --locked "$@" \
    -p heddle-backoff -p heddle-gssapi -p heddle-hadoop -p heddle-yarn
