#!/usr/bin/env bash
# Checks licences, bans and sources of all dependencies with cargo-deny (rules: deny.toml). Installs the pinned version in
# the cache directory where it is missing; if that fails, reports it and ends with exit code 2.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
root="${XDG_CACHE_HOME:-$HOME/.cache}/heddle-ci/cargo-deny-$version"
if [ ! -x "$root/bin/cargo-deny" ]; then
    # Unoptimised: it runs once, and compiles in a quarter of the time.
    if ! CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR="$root/target" \
        cargo install --quiet --debug --locked --root "$root" --version "$version" cargo-deny; then
        echo "cannot install cargo-deny $version: licences, bans and sources were not checked" >&2
        exit 2
    fi
    rm -rf "$root/target"
fi
"$root/bin/cargo-deny" --log-level error --locked check --hide-inclusion-graph bans licenses sources
