#!/usr/bin/env bash
# Checks what CI checks: messages of commits, format, lints, dependencies, fuzz targets, all tests, a quick round of the
# benchmarks. The declared minimum of Rust is the version in rust-toolchain.toml, so that all of this checks it.
# Names what is missing on this machine, or installs it when run as root.
set -euo pipefail
cd "$(dirname "$0")/.."

# A time as minutes and seconds.
clock() { printf "%d:%02d" $(($1 / 60)) $(($1 % 60)); }
# With the time since the start, so that a slow part is seen.
say() { printf "\n== [%s] %s\n" "$(clock $SECONDS)" "$*"; }

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

# Some tests need more than a user of any machine has. What cannot be run is reported; all else is checked.
unchecked=()
skipped=()
# optional TEST WHAT PACKAGE…: installs the packages if root may, and leaves the test out if COMMANDS are missing still.
optional() {
    local test=$1 what=$2
    shift 2
    has_commands && return
    if [ "$(id -u)" = 0 ]; then
        say "installing $*"
        # The update may have been done above; a stale list is better than none.
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null || true
        has_commands && return
    fi
    skipped+=("$test")
    unchecked+=("$what; run: sudo apt-get install $*")
}
has_commands() (
    PATH="$PATH:/usr/sbin:/sbin"
    for command in "${COMMANDS[@]}"; do
        command -v "$command" >/dev/null || exit 1
    done
)
COMMANDS=(krb5kdc kadmin.local kinit faketime)
optional yarn_kerberos "jobs on a Kerberised cluster" krb5-kdc krb5-admin-server krb5-user faketime
if [ "$(id -u)" = 0 ]; then
    COMMANDS=(nft ip ss unshare nsenter setpriv)
    optional local::cuts "network paths that are cut" iproute2 nftables util-linux
else
    skipped+=(local::cuts)
    unchecked+=("network paths that are cut: only root may make network namespaces")
fi
export HEDDLE_TEST_SKIP="${skipped[*]}"

say "commits"
python3 -B -m doctest scripts/check-commits.py
scripts/check-commits.py
say "format"
cargo fmt --all --check
say "lints"
cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
say "programs"
scripts/run-tests.py --no-run

beside=$(mktemp)
trap 'rm -f "$beside"' EXIT
say "tests"
built=$SECONDS
# The system tests leave the cores idle for most of their time: all else is built and checked beside them, with what they leave.
scripts/run-tests.py --beside "$beside"
mapfile -t -O "${#unchecked[@]}" unchecked <"$beside"
say "builds and lints took $(clock $built), tests $(clock $((SECONDS - built)))"
if [ ${#unchecked[@]} -gt 0 ]; then
    say "all passed, except what was not checked:"
    printf '   %s\n' "${unchecked[@]}"
else
    say "all passed"
fi
