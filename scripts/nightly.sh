#!/usr/bin/env bash
# Long checks, in parts of at most an hour on two idle cores. A part that passes gets its line in docs/measurements/nightly.txt, with a
# digest of the sources that it tests, and is due again when these change. Commit that file: the history shows which sources were checked.
#
#     scripts/nightly.sh            runs the parts that are due
#     scripts/nightly.sh NAME…      runs these parts
#     scripts/nightly.sh --list     shows each part: done or due, and the minutes that it takes
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."

record=docs/measurements/nightly.txt
logs="${CARGO_TARGET_DIR:-target}/nightly-logs"

names=()
declare -A minutes tested commands
# part NAME MINUTES simulation|workspace COMMAND…: what the command tests are the packages of the simulation, or all others.
part() {
    names+=("$1")
    minutes[$1]=$2
    tested[$1]=$3
    commands[$1]="${*:4}"
}
for n in 1 2 3 4 5 6 7 8; do
    part "simulation-$n" 10 simulation explore "$n/8"
done
part event-logs 10 simulation compare_event_logs
part defects 2 simulation find_defects
# Test programs with tests that are too long for scripts/test.sh: #[ignore = "nightly: …"].
nightly_tests=(hdfs local spark yarn yarn_kerberos)
declare -A test_minutes=([hdfs]=2 [local]=15 [spark]=2 [yarn]=35 [yarn_kerberos]=10)
for program in "${nightly_tests[@]}"; do
    part "$program" "${test_minutes[$program]}" workspace ignored_tests "$program"
done
part planner 4 workspace simulate_clusters
part decoders 20 workspace damaged_files
part released 10 workspace test_released
part beside 8 workspace check_beside
part publish 10 workspace scripts/check-publish.sh

simulation() { cargo test --locked -p heddle-simulation --test simulation "$@"; }

explore() {
    HEDDLE_JOBS=$1 HEDDLE_SEEDS=100000 simulation --profile simulation -- --nocapture --exact explore_all_jobs
}

# The same seed gives the same events in every build.
compare_event_logs() {
    export HEDDLE_LOG_HASHES=1
    local optimised other
    local test=(-- --nocapture --test-threads 1 --exact a_seed_gives_the_same_event_log_in_another_process)
    optimised=$(simulation --profile simulation "${test[@]}" | grep -o 'LOG .*')
    other=$(simulation "${test[@]}" | grep -o 'LOG .*')
    diff <(echo "$optimised") <(echo "$other")
    echo "$(echo "$other" | wc -l) event logs are equal in two builds"
}

# Defects that are put back must be found by the simulation.
find_defects() {
    cargo test --profile nightly --locked -p heddle-simulation --features mutations --test simulation_mutations -- --nocapture
}

ignored_tests() {
    scripts/run-tests.py --no-run
    cargo test --locked --workspace --test "$1" --no-fail-fast -- --ignored --nocapture
}

# The planner on a million random clusters, and days of whole ones.
simulate_clusters() {
    local experiment
    HEDDLE_SEEDS=1000000 cargo test --profile nightly --locked -p heddle-controller-core --test properties -- --nocapture
    for experiment in a2 m b day; do
        cargo run --release --locked -p heddle-controller-core --example day -- --experiment "$experiment"
    done
}

# A million damaged files for each decoder of input.
damaged_files() {
    PROPTEST_CASES=1000000 cargo test --profile nightly --locked -p heddle-avro -p heddle-parquet -p heddle-input --lib damaged -- --nocapture
}

# With the program that clusters get: linked against glibc 2.17, without fail points.
test_released() {
    local released
    scripts/run-tests.py --no-run
    released=$(realpath "$(scripts/release.sh)")
    HEDDLE_PROGRAM=$released cargo test --locked --workspace --test yarn --no-fail-fast -- --include-ignored --nocapture --exact \
        job::a_bsp_job_gives_the_bytes_of_a_local_run_and_deletes_staging \
        job::a_protected_job_gives_the_bytes_of_a_local_run \
        job::yarn_jar_trains_as_a_local_run_and_passes_codes_on \
        job_kills::bytes_outlive_kills_without_fail_points \
        job_refusals::a_job_that_cannot_run_is_rejected_at_submission
}

# All that scripts/test.sh checks once for the same files.
check_beside() {
    local unchecked
    unchecked=$(mktemp)
    scripts/test-beside.sh --all "$unchecked"
    cat "$unchecked"
}

# Of the sources that a part tests.
digest() {
    local packages paths=('*.rs' ':!tests/simulation' tests/spark '*Cargo.toml' Cargo.lock)
    if [ "$1" = simulation ]; then
        packages=$(cargo tree --locked --package heddle-simulation --edges normal --prefix none)
        mapfile -t paths < <(sed -n "s|.*($(pwd -P)/\([^)]*\)).*|\1/src\n\1/Cargo.toml|p" <<<"$packages")
        paths+=(tests/simulation)
    fi
    git ls-files -z -- "${paths[@]}" | xargs -0 sha256sum | sha256sum | cut -c 1-12
}

# done_line NAME: the rest of the part's line, if it passed for the present sources.
done_line() { sed -n "s/^$1  *\(.* $(digest "${tested[$1]}") .*\)/done \1/p" "$record"; }

list() {
    local name line
    for name in "${names[@]}"; do
        line=$(done_line "$name")
        printf '%-14s %2d minutes, %s\n' "$name" "${minutes[$name]}" "${line:-due}"
    done
}

# Leaves names in $failed.
run() {
    local name=$1 digest log="$logs/$1.txt" begun=$SECONDS status others result
    digest=$(digest "${tested[$name]}")
    printf '\n== %s, %s minutes on two idle cores\n' "$name" "${minutes[$name]}"
    set +e
    (set -e; ${commands[$name]}) 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    set -e
    others=$(grep -v "^$name " "$record")
    result=$({ grep -E 'runs a minute$|equal in two builds$' "$log" || grep '^test result' "$log"; } | tail -n 1) || true
    {
        echo "$others"
        [ "$status" != 0 ] || printf '%-14s %s %6d %s %s\n' \
            "$name" "$(date --utc +%Y-%m-%dT%H:%MZ)" $((SECONDS - begun)) "$digest" "${result:-passed}"
    } | LC_ALL=C sort >"$record"
    [ "$status" = 0 ] || failed+=("$name")
}

case "${1-}" in
--help | -h) sed -n '2,/^set/{/^#/s/^# \?//p}' "$0" && exit ;;
--list) list && exit ;;
esac
for name in "$@"; do
    [ -n "${commands[$name]-}" ] || { echo "no such part: $name; they are ${names[*]}" >&2 && exit 2; }
done
mkdir -p "$logs"
failed=()
for name in "${@:-${names[@]}}"; do
    if [ $# -gt 0 ] || [ -z "$(done_line "$name")" ]; then
        run "$name"
    fi
done
for name in "${failed[@]}"; do
    printf '\n== %s failed; all that it printed: %s\n' "$name" "$logs/$name.txt"
    grep '^to replay:' "$logs/$name.txt" || true
    tail -n 15 "$logs/$name.txt"
done
[ ${#failed[@]} = 0 ]
