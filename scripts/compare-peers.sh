#!/usr/bin/env bash
# Pushes and pulls of Heddle beside those of ps-lite, over loopback, all in turn in one sitting. Prints a table.
#
#     scripts/compare-peers.sh PS_LITE [--rounds N] [--seconds S] [--only TEXT]
#
# PS_LITE is a source folder of https://github.com/dmlc/ps-lite. Needs g++, protoc, and the headers of ZeroMQ and protobuf
# (Debian: libzmq3-dev libprotobuf-dev protobuf-compiler).
set -euo pipefail
cd "$(dirname "$0")/.."
[ -f "${1-}/src/meta.proto" ] || { echo "usage: $0 PS_LITE [--rounds N] [--seconds S] [--only TEXT]" >&2 && exit 2; }
source=$(realpath "$1")
built=$(realpath "${CARGO_TARGET_DIR:-target}")/peers
mkdir -p "$built"
protoc --cpp_out="$built" --proto_path="$source/src" meta.proto
g++ -O3 -march=native -std=c++14 -DNDEBUG -w -I"$source/include" -I"$source/src" -I"$built" \
    "$source"/src/{customer,postoffice,van}.cc "$built/meta.pb.cc" scripts/peers/exchange.cc \
    -lzmq -lprotobuf -lpthread -o "$built/ps-lite"
cargo build --quiet --release --locked -p heddle-cli -p heddle-bench --example exchange
exec scripts/peers/rounds.py "$built/ps-lite" "$built/../release/examples/exchange" "${@:2}"
