#!/usr/bin/env bash
# What scripts/test.sh checks while the system tests wait for daemons: it needs cores and no quiet. Called by it at the lowest
# priority, with a file that gets a line for each check that this machine cannot do.
set -euo pipefail
cd "$(dirname "$0")/.."
unchecked=$1

say() { printf '\n== beside the tests, [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# First what has a target directory of its own: cargo lists the test programs meanwhile.
say "the release binary runs on old systems"
scripts/test-release.sh
say "dependencies"
# What cannot be installed is reported and does not hide what the other checks find.
scripts/check-dependencies.sh || {
    [ $? = 2 ]
    echo "licences, bans and sources of dependencies (cargo-deny is not installed)" >>"$unchecked"
}
say "fuzz targets"
cargo build --manifest-path fuzz/Cargo.toml --locked --bins --quiet
say "defects that are put back must be found by the simulation"
cargo test --locked --quiet -p heddle-simulation --features mutations --test simulation_mutations -- --nocapture
say "done"
