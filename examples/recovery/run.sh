#!/usr/bin/env bash
# Trains, loses a process, a file of a checkpoint and a mirror's folder, and ends with the model of an undisturbed job.
#
#     examples/recovery/run.sh [FOLDER [FLAG…]]
#
# FOLDER (default: a new one below /tmp) gets all files; FLAGs are those of `heddle run`. The program is `heddle`, or the one that $HEDDLE names.
set -euo pipefail
job=$(cd "$(dirname "$0")" && pwd)/job.toml
heddle=${HEDDLE:-heddle}
work=${1:-$(mktemp -d)}
flags=("${@:2}")
mkdir -p "$work"
cd "$work"

step() { printf '\n== %s\n' "$*"; }
# train NAME: becomes the job with folders NAME, NAME-mirror and NAME-model; its output is in NAME.txt.
train() {
    exec "$heddle" run "$job" --work-dir state --set checkpoint.dir="$PWD/$1" --set "checkpoint.mirrors=[\"$PWD/$1-mirror\"]" \
        --set output.model="$PWD/$1-model" "${flags[@]}" >>"$1.txt" 2>&1
}
fail() { tail -n 20 hurt.txt >&2 && echo "$1" >&2 && exit 1; }
status() { "$heddle" status --work-dir state; }
# wait_for TEXT COMMAND…: until the command prints it.
wait_for() {
    for _ in $(seq 1200); do
        "${@:2}" 2>/dev/null | grep "$1" >/dev/null && return
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.05
    done
    fail "the job does not show \"$1\""
}
newest() { find "$1" -maxdepth 1 -name 'g*-c*' | sort -V | tail -n 1; }

step "a job that nothing disturbs"
(train calm)
tail -n 8 calm.txt

step "the same job loses a parameter server; its backup goes on"
train hurt &
pid=$!
wait_for 'checkpoint g1-c3 ' cat hurt.txt
kill -9 "$(status | awk '$1 == "pserver-1" { print $4 }')"
# Its successor gets backups of all shards, then serves its share of them again.
wait_for 'shards* moved from' cat hurt.txt
wait_for 'have 1 backup in sync' status
grep 'pserver-1\|moved' hurt.txt

step "it is stopped, and loses a file of its newest checkpoint and the mirror's copy of that checkpoint"
kill "$pid"
wait "$pid" || true
lost=$(find "$(newest hurt)" -name 'shard-00002-*.ckpt' | head -n 1)
rm "$lost" "$lost.md5"
rm -r "$(newest hurt-mirror)"
"$heddle" checkpoint groups hurt --cut "$(basename "$(newest hurt)")" --from hurt-mirror

step "the same command again: each shard is restored from a good file, and training continues"
(train hurt) || fail "the job ended with exit code $?"
grep 'stands in\|from checkpoint' hurt.txt
grep 'log-loss' hurt.txt | sed -n '1p;$p'

step "the models are equal, byte for byte"
cmp calm-model/model.safetensors hurt-model/model.safetensors
md5sum calm-model/model.safetensors hurt-model/model.safetensors
