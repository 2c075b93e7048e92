#!/usr/bin/env bash
# Runs many more seeds of the simulation than CI does: 100,000, or the number in the argument.
# Prints the table of faults and the runs a minute; a failure prints the command that replays it.
# Then restores ten million keys into other numbers of shards, and packages the crates that can be published.
set -euo pipefail
cd "$(dirname "$0")/.."

# Optimised, with the assertions of a debug build: a broken assertion is a finding.
export CARGO_PROFILE_DEV_OPT_LEVEL=2
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/nightly"
HEDDLE_SEEDS="${1:-100000}" cargo test --locked -p heddle-tests --test simulation -- --nocapture explore_all_jobs
cargo build --locked --workspace --bins
cargo test --locked -p heddle-tests --test local_warm_start -- --ignored
scripts/check-publish.sh
