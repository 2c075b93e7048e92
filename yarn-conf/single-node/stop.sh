#!/usr/bin/env bash
# Ends every process of the cluster in DIR: the daemons, then what is left of their containers.
#   stop.sh DIR
# A process is the cluster's when its command line names DIR as -Dheddle.dir (daemons) or its environment has
# its LOCAL_DIRS below DIR (containers and what they started). Containers outlive their NodeManager, so
# stopping the daemons alone would leave them running.
set -u
[ $# = 1 ] && dir=$(cd "$1" 2>/dev/null && pwd) || { sed -n '2,3p' "$0" >&2; exit 2; }

# The pattern comes by file, otherwise grep would find itself.
daemons() { grep -lsaF -f <(echo "-Dheddle.dir=$dir/") /proc/[0-9]*/cmdline; }
containers() { grep -lsaF -f <(echo "LOCAL_DIRS=$dir/nm") /proc/[0-9]*/environ; }
# pids PATH…: the process ids in /proc/<pid>/…, without this script and its children.
pids() { sed -n 's|^/proc/\([0-9]*\)/.*|\1|p' | grep -vx -e "$$" -e "$BASHPID"; }

for found in daemons containers; do
  # Again until none is left: a process may have been started while we looked.
  for _ in $(seq 200); do
    left=$($found | pids)
    [ -z "$left" ] && break
    kill -KILL $left 2>/dev/null
    sleep 0.02
  done
done
left=$({ daemons; containers; } | pids)
[ -z "$left" ] || { echo "stop.sh: still there: $left" >&2; exit 1; }
rm -f "$dir"/*/*.pid
