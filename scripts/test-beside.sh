#!/usr/bin/env bash
# What scripts/test.sh checks while the system tests wait for daemons: it needs cores and no quiet. Called by it at the lowest
# priority, with a file that gets a line for each check that this machine cannot do.
#
# Checks that take minutes and concern few files are left out where these files are as they were when the check passed with this
# target directory. scripts/nightly.sh makes all of them, by --all.
set -euo pipefail
cd "$(dirname "$0")/.."
all=no
if [ "$1" = --all ]; then
    all=yes
    shift
fi
unchecked=$1
passed=${CARGO_TARGET_DIR:-target}/passed
mkdir -p "$passed"

say() { printf '\n== beside the tests, [%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# unless_passed NAME COMMAND PATTERN…: runs the command where a file of these patterns (gitglossary(7), pathspec) has changed.
unless_passed() {
    local name=$1 command=$2 digest
    shift 2
    digest=$(git ls-files -z --cached --others --exclude-standard -- "$@" scripts/test-beside.sh rust-toolchain.toml |
        xargs -0 sha256sum | sha256sum)
    if [ "$all" = no ] && [ "$(cat "$passed/$name" 2>/dev/null)" = "$digest" ]; then
        say "$name: passed before with these files"
        return
    fi
    say "$name"
    rm -f "$passed/$name"
    "$command"
    [ -s "$unchecked" ] || echo "$digest" >"$passed/$name"
}

# Links and examples. Each takes as long as a build of the workspace.
documentation() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
    cargo test --workspace --locked --doc --quiet
}
# What cannot be installed is reported and does not hide what the other checks find.
dependencies() {
    scripts/check-dependencies.sh || {
        [ $? = 2 ]
        echo "licences, bans and sources of dependencies (cargo-deny is not installed)" >>"$unchecked"
    }
}
fuzz_targets() { cargo check --manifest-path fuzz/Cargo.toml --locked --bins --quiet; }
# That they run. Their figures count with the profile of benchmarks alone; this one has the dependencies of the tests.
benchmarks() {
    HEDDLE_BENCH_QUICK=1 cargo bench --profile dev --locked --quiet \
        -p heddle-am-core -p heddle-bench -p heddle-trainer --bench containers --bench dense --bench snapshot --bench refill --bench parse --bench cache
}

manifests=(Cargo.lock Cargo.toml '*/Cargo.toml')
if [ "$all" = yes ]; then
    say "documentation"
    documentation
fi
unless_passed "the release binary runs on old systems" scripts/test-release.sh \
    "${manifests[@]}" launcher scripts/test-release.sh scripts/release.sh scripts/launcher.sh
unless_passed "fuzz targets" fuzz_targets fuzz Cargo.lock shared/{avro,channel,columns,hadoop,input,parquet,protocol,storage}/src
unless_passed "benchmarks, a quick round" benchmarks '*/benches/*' bench
# The last one, since it may note what it cannot check.
unless_passed "dependencies" dependencies "${manifests[@]}" deny.toml scripts/check-dependencies.sh
say "done"
