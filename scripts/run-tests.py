#!/usr/bin/env python3
"""Runs all test programs of the workspace, several side by side, and then the examples in the documentation.

Those of the whole system (tests/tests) wait most of their time for daemons and for processes to notice that others died:
one after the other they would keep a machine idle for twenty minutes. Each program's output comes when it has ended.
Arguments are names of test programs (`cargo test --test NAME`); without any all are run. HEDDLE_TEST_JOBS says how many
at once (default: as many as there are cores).
"""
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Clusters take longest, so that they are begun first.
FIRST = ("hdfs_", "yarn_", "local_", "simulation")


def programs():
    """The workspace's test programs: name, executable, directory that cargo would run them in."""
    command = ["cargo", "test", "--workspace", "--locked", "--no-run", "--message-format", "json-render-diagnostics"]
    built = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in built.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            yield message["target"]["name"], message["executable"], Path(message["manifest_path"]).parent


def rank(program):
    name = program[0]
    return next((n for n, begin in enumerate(FIRST) if name.startswith(begin)), len(FIRST)), name


def run(program):
    name, executable, home = program
    started = time.monotonic()
    done = subprocess.run([executable], cwd=home, env={**os.environ, "CARGO_MANIFEST_DIR": str(home)},
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace")
    print(f"\n== {name}, {time.monotonic() - started:.0f} s\n{done.stdout}", flush=True)
    return done.returncode == 0


def main():
    wanted = set(sys.argv[1:])
    all_programs = sorted(programs(), key=rank)
    unknown = wanted - {name for name, _, _ in all_programs}
    if unknown:
        sys.exit(f"no such test program: {', '.join(sorted(unknown))}")
    chosen = [program for program in all_programs if not wanted or program[0] in wanted]
    jobs = int(os.environ.get("HEDDLE_TEST_JOBS") or os.cpu_count() or 1)
    with ThreadPoolExecutor(jobs) as pool:
        passed = list(pool.map(run, chosen))
    failed = [name for (name, _, _), ok in zip(chosen, passed) if not ok]
    if not wanted:
        documented = subprocess.run(["cargo", "test", "--workspace", "--locked", "--doc", "--quiet"], check=False)
        failed += ["documentation"] if documented.returncode else []
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    print(f"\n{len(chosen)} test programs passed")


if __name__ == "__main__":
    main()
