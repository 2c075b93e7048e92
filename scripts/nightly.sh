#!/usr/bin/env bash
# Runs many more seeds of the simulation than CI does: 100,000 of each job, or the number in the argument. These take about three
# hours on two cores; HEDDLE_JOBS chooses jobs. Prints the table of faults and the runs a minute; a failure prints the command that
# replays it.
# Then compares the event logs of two builds, disturbs jobs for minutes, restores ten million keys into other numbers of shards, and
# packages the crates that can be published.
set -euo pipefail
cd "$(dirname "$0")/.."

# Optimised, with the assertions of a debug build: a broken assertion is a finding.
export CARGO_PROFILE_DEV_OPT_LEVEL=2
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/nightly"
HEDDLE_SEEDS="${1:-100000}" cargo test --locked -p heddle-simulation --test simulation -- --nocapture explore_all_jobs
cargo build --locked --workspace --bins

# The same seed gives the same events in every build.
event_logs() {
    HEDDLE_LOG_HASHES=1 cargo test --locked --quiet -p heddle-simulation --test simulation -- --nocapture --test-threads 1 --exact \
        a_seed_gives_the_same_event_log_in_another_process | grep -o 'LOG .*'
}
logs="$(mktemp)"
trap 'rm -f "$logs"' EXIT
event_logs >"$logs"
CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_TARGET_DIR="$CARGO_TARGET_DIR-unoptimised" event_logs | diff "$logs" -
echo "$(wc -l <"$logs") event logs are equal in two builds"

cargo test --locked -p heddle-tests --test local_soak -- --ignored
cargo test --locked -p heddle-tests --test yarn_job_chaos -- --ignored --nocapture
cargo test --locked -p heddle-tests --test local_warm_start -- --ignored
scripts/check-publish.sh
