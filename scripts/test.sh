#!/usr/bin/env bash
# Checks what CI checks: format, lints, documentation, dependencies, fuzz targets, all tests, a quick round of the
# benchmarks. The declared minimum of Rust is the version in rust-toolchain.toml, so that all of this checks it.
# Names what is missing on this machine, or installs it when run as root.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }

missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need cc build-essential
need mvn maven
need javac openjdk-17-jdk-headless
need python3 python3
need setsid util-linux
need ps procps
need md5sum coreutils
need curl curl
python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ]; then
        say "installing ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
    else
        echo "missing on this machine; run: sudo apt-get install ${missing[*]}" >&2
        exit 2
    fi
fi
if ! command -v cargo >/dev/null 2>&1; then
    echo "cargo is missing: install rustup from https://rustup.rs" >&2
    exit 2
fi

# A DataNode takes no block on a disk that is nearly full, which shows as any kind of failure.
least_free_gigabytes=8
for dir in "${CARGO_TARGET_DIR:-.}" "${TMPDIR:-/tmp}"; do
    mkdir -p "$dir"
    free=$(df --output=avail --block-size=1G "$dir" | tail -1 | tr -d ' ')
    if [ "$free" -lt "$least_free_gigabytes" ]; then
        echo "$free GB are free at $dir; the tests need $least_free_gigabytes GB" >&2
        exit 2
    fi
done

# The Kerberos tests need a Key Distribution Center. Where it cannot be installed, all else is checked.
unchecked=()
kerberos=(krb5-kdc krb5-admin-server krb5-user)
has_kerberos() (
    PATH="$PATH:/usr/sbin"
    command -v krb5kdc && command -v kadmin.local && command -v kinit
) >/dev/null
if ! has_kerberos && [ "$(id -u)" = 0 ]; then
    say "installing ${kerberos[*]}"
    # The update may have been done above; a stale list is better than none.
    apt-get update -qq || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${kerberos[@]}" >/dev/null || true
fi
if ! has_kerberos; then
    export HEDDLE_TEST_SKIP=yarn_kerberos
    unchecked+=("jobs on a Kerberised cluster; run: sudo apt-get install ${kerberos[*]}")
fi

say "format"
cargo fmt --all --check
say "lints"
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
say "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet
say "dependencies"
# What cannot be installed is reported and does not hide what the other checks find.
scripts/check-dependencies.sh || {
    [ $? = 2 ]
    unchecked+=("licences, bans and sources of dependencies (cargo-deny is not installed)")
}
say "fuzz targets"
cargo build --manifest-path fuzz/Cargo.toml --locked --bins --quiet
say "programs"
# The system tests start these as real processes. Building them with the tests gives dependencies one set of features,
# so that they are compiled once.
cargo build --workspace --bins --tests --locked --quiet
say "tests"
scripts/run-tests.py
say "defects that are put back must be found by the simulation"
cargo test --locked --quiet -p heddle-tests --features mutations --test simulation_mutations -- --nocapture
say "the release binary runs on old systems"
scripts/test-release.sh
say "benchmarks, a quick round"
HEDDLE_BENCH_QUICK=1 cargo bench --locked --quiet \
    -p heddle-am-core -p heddle-bench -p heddle-shard -p heddle-trainer --bench containers --bench push --bench dense --bench snapshot --bench parse
if [ ${#unchecked[@]} -gt 0 ]; then
    say "all passed, except what was not checked:"
    printf '   %s\n' "${unchecked[@]}"
else
    say "all passed"
fi
