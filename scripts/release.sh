#!/usr/bin/env bash
# Builds the `heddle` that clusters can run: linked against glibc 2.17 (CentOS 7 and everything since),
# so that one file serves all nodes. The launcher for `yarn jar` is appended, so that the file is also a jar: `heddle` and
# `heddle.jar` are two names of it. Prints the path of the result.
#
# Needs javac, and Python 3 with venv; cargo-zigbuild and the zig compiler come as Python packages into a folder of
# their own below the target directory, nothing is installed on the system.
set -euo pipefail
cd "$(dirname "$0")/.."

target=x86_64-unknown-linux-gnu
glibc=2.17
target_dir=${CARGO_TARGET_DIR:-target}
tools=$target_dir/release-tools

if [ ! -x "$tools/bin/cargo-zigbuild" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check cargo-zigbuild==0.24.0 ziglang==0.15.2 >&2
fi
PATH="$(cd "$tools/bin" && pwd):$PATH"
export PATH
# No instruction above x86-64-v2 outside run-time dispatch: clusters have old nodes.
export RUSTFLAGS="-C target-cpu=x86-64"
# Zig's compiler refuses these functions of libdeflate, which are checksums alone: its own flags contradict their attributes.
export CFLAGS="-DLIBDEFLATE_ASSEMBLER_DOES_NOT_SUPPORT_AVX512VNNI -DLIBDEFLATE_ASSEMBLER_DOES_NOT_SUPPORT_VPCLMULQDQ"
cargo zigbuild --quiet --locked --release -p heddle-cli --target "$target.$glibc" >&2
# Not in place: cargo keeps a hard link of the program, and would not build it again.
files=$target_dir/release-files
mkdir -p "$files"
cp "$target_dir/$target/release/heddle" "$files/heddle.new"
scripts/launcher.sh "$files/heddle.new"
mv "$files/heddle.new" "$files/heddle"
ln -f "$files/heddle" "$files/heddle.jar"
echo "$files/heddle"
