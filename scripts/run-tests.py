#!/usr/bin/env python3
"""Runs all test programs of the workspace, several side by side.

Those of the whole system (tests/tests) wait most of their time for daemons and for processes to notice that others died:
one after the other they would keep a machine idle for twenty minutes. Each program's output comes when it has ended, and at the end
the seconds of each: on the clock, of the processors (daemons too), and of Java and of `heddle` among these.
Arguments are names of test programs (`cargo test --test NAME`), or of modules that are processes of their own, such as `local::recovery`;
without any all are run. `--no-run` only builds them. `--beside FILE` runs scripts/test-beside.sh FILE too. HEDDLE_TEST_JOBS is the
number of programs at once (default: two more than there are cores, since most of them wait).
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Seconds on two busy cores, as this script prints them. The longest are begun first, so that none of them runs alone at
# the end; only the order counts. Programs that are not listed take a few seconds.
SECONDS = {
    "simulation": 450,
    "local::cuts": 290,
    "yarn_kerberos": 200,
    "hdfs::faults": 180,
    "local::pauses": 170,
    "yarn::job_sites": 140,
    "yarn::job_replicas": 122,
    "local::chaos": 121,
    "local::counting": 120,
    "local::initial_values": 113,
    "local::warm_start": 110,
    "local::recovery": 105,
    "local::failover": 92,
    "yarn::job": 90,
    "yarn::job_queues": 80,
    "hdfs::damage": 73,
    "yarn_kerberos::controller": 70,
    "yarn::job_kills": 60,
    "yarn::job_moves": 90,
    "yarn::job_operations": 60,
    "yarn::job_refusals": 60,
    "hdfs::jobs": 50,
    "local::policies": 48,
    "local::stragglers": 48,
    "local::model_saves": 40,
    "local::hangs": 40,
    "hdfs::commit": 36,
    "yarn::protocol": 36,
    "quality": 35,
    "local::output": 28,
    "yarn::jobs": 25,
    "local::strangers": 25,
    "hdfs::files": 23,
    "local::outage": 20,
    "local::launcher": 18,
    "local::stop": 18,
    "yarn::single_node": 16,
    "local::best_pass": 15,
    "local::ssp": 15,
    "local::no_hang": 15,
    "yarn::cluster": 12,
    "heddle_storage": 10,
    "heddle_pserver": 10,
    "yarn::faults": 0,
    "yarn::job_chaos": 0,
    "yarn::job_hdfs_faults": 0,
    "yarn::job_stale": 0,
}
# Examples that tests start.
EXAMPLES = ["blocks", "fetch_tokens", "probe"]
# Modules of test programs that run as processes of their own, since they have daemons of their own; without names each one.
APART = {"local": None, "hdfs": None, "yarn": None, "yarn_kerberos": {"controller", "expiry"}}
# A module with a cluster that is not listed yet.
CLUSTER_SECONDS = 120
# Programs that keep the cores busy for minutes and measure no time. They run beside the others at the lowest priority, which
# gives them what the others leave.
PATIENT = {"simulation", "beside"}
MEASURE = Path(__file__).with_name("measured.py").resolve()
MEASURED = tempfile.TemporaryDirectory()
COLUMNS = ("clock", "cpu", "java", "heddle")
# Tests of one program at once, where that is more than one for each core: they wait for the ends of tokens and tickets.
THREADS = {"yarn_kerberos": 4}


ROOT = Path(__file__).resolve().parent.parent


def programs():
    """The workspace's test programs: name, command, directory that cargo would run them in."""
    # With what the system tests start, in one build, so that dependencies have one set of features.
    command = ["cargo", "build", "--workspace", "--locked", "--bins", "--tests", "--message-format", "json-render-diagnostics"]
    command += [flag for example in EXAMPLES for flag in ("--example", example)]
    built = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in built.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            name, command, home = message["target"]["name"], [message["executable"]], Path(message["manifest_path"]).parent
            if name in APART:
                yield from processes_of(name, command, home)
            else:
                yield name, command, home


def processes_of(name, command, home):
    """The same for each process of a test program. The tests' names are exact: one module's name may end as another's."""
    tests = subprocess.run([*command, "--list", "--format", "terse"], check=True, stdout=subprocess.PIPE, text=True).stdout
    tests = [line.removesuffix(": test") for line in tests.splitlines() if line.endswith(": test")]
    processes = {}
    for test in tests:
        module = test.split("::")[0]
        is_apart = APART[name] is None or module in APART[name]
        processes.setdefault(f"{name}::{module}" if is_apart else name, []).append(test)
    for process, of_process in processes.items():
        yield process, [*command, "--exact", *of_process], home


def lowest_priority():
    """The start of a command that runs when nothing else does (SCHED_IDLE), or nearly so."""
    idle = ["chrt", "--idle", "0"]
    has_idle = shutil.which("chrt") and subprocess.run([*idle, "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0
    return ["nice", "-n", "19", *(idle if has_idle else [])]


LOWEST_PRIORITY = lowest_priority()


def rank(program):
    """Longest first."""
    name = program[0]
    unlisted = CLUSTER_SECONDS if name.startswith(("hdfs::", "yarn::")) else 0
    return -SECONDS.get(name, unlisted), name


def run(program):
    name, command, home = program
    started = time.monotonic()
    command = [*LOWEST_PRIORITY, *command] if name in PATIENT else command
    report = tempfile.mktemp(dir=MEASURED.name)
    environment = {**os.environ, "CARGO_MANIFEST_DIR": str(home)}
    if name in THREADS:
        environment.setdefault("RUST_TEST_THREADS", str(THREADS[name]))
    done = subprocess.run([MEASURE, report, *command], cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace")
    seconds = {"clock": time.monotonic() - started, **json.loads(Path(report).read_text())}
    print(f"\n== {name}, {seconds['clock']:.0f} s\n{done.stdout}", flush=True)
    return name, done.returncode == 0, seconds


def print_seconds(rows, clock):
    """The table of all programs, and what these processors need at least."""
    total = {column: sum(seconds[column] for _, seconds in rows) for column in COLUMNS}
    print(f"\n{'seconds':32}" + "".join(f"{column:>8}" for column in COLUMNS))
    for name, seconds in [*sorted(rows, key=lambda row: -row[1]["cpu"]), ("all", total)]:
        print(f"{name:32}" + "".join(f"{seconds[column]:8.1f}" for column in COLUMNS))
    cores = os.cpu_count() or 1
    print(f"{clock:.0f} s on the clock; {cores} cores need {total['cpu'] / cores:.0f} s at least")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--beside", metavar="FILE")
    arguments.add_argument("--no-run", action="store_true")
    arguments.add_argument("names", nargs="*")
    arguments = arguments.parse_args()
    wanted = set(arguments.names)
    all_programs = sorted(programs(), key=rank)
    if arguments.no_run:
        return
    unknown = wanted - {wanted_name for name, _, _ in all_programs for wanted_name in (name, name.split("::")[0])}
    if unknown:
        sys.exit(f"no such test program: {', '.join(sorted(unknown))}")
    left_out = set(os.environ.get("HEDDLE_TEST_SKIP", "").split())
    chosen = [program for program in all_programs
              if (not wanted or wanted & {program[0], program[0].split("::")[0]}) and program[0] not in left_out]
    if arguments.beside:
        chosen.append(("beside", ["scripts/test-beside.sh", arguments.beside], ROOT))
    jobs = int(os.environ.get("HEDDLE_TEST_JOBS") or (os.cpu_count() or 1) + 2)
    started = time.monotonic()
    # Patient ones take no place of others.
    with ThreadPoolExecutor(len(PATIENT)) as beside, ThreadPoolExecutor(jobs) as pool:
        ended = [(beside if program[0] in PATIENT else pool).submit(run, program) for program in chosen]
        results = [one.result() for one in ended]
    print_seconds([(name, seconds) for name, _, seconds in results], time.monotonic() - started)
    failed = [name for name, passed, _ in results if not passed]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    print(f"\n{len(chosen)} programs passed")


if __name__ == "__main__":
    main()
