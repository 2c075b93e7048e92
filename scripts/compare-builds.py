#!/usr/bin/env python3
"""Compares two builds of `heddle`: push and pull over loopback, and whole training jobs, in turn in one run.

    scripts/compare-builds.py OLD NEW [--rounds 30] [--old-args "…"] [--new-args "…"]

OLD and NEW are programs built with --release; they may be the same one with other arguments of `heddle run`, such as
`--new-args "--set pservers.replicas=1"`. Each round measures both, the other one first each time, so that a machine that slows
down slows both. Prints for each figure the medians and the median and quartiles of the ratios OLD / NEW: above 1 the new one
is faster. `--json` prints all raw values instead. `--benches net,table,read,checkpoint,sparse` compares the rows of these
`heddle bench` that both builds have, in place of exchanges and jobs.
"""
import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = """\
name = "compared"
[data]
train = "data/*.libsvm"
passes = {passes}
[model]
features = {features}
[training]
consistency = "bsp"
lanes = {lanes}
batch = 512
[pservers]
count = 2
[trainers]
min = {trainers}
max = {trainers}
"""


def generate(directory, rows, features):
    """Writes records of 40 features whose label follows their indices."""
    (directory / "data").mkdir()
    state = 88172645463325252
    for part in range(4):
        with open(directory / f"data/{part}.libsvm", "w") as out:
            for _ in range(rows // 4):
                indices = set()
                while len(indices) < 40:
                    state ^= (state << 13) & 0xFFFFFFFFFFFFFFFF
                    state ^= state >> 7
                    state ^= (state << 17) & 0xFFFFFFFFFFFFFFFF
                    indices.add(state % features + 1)
                label = int(sum(index % 7 for index in indices) > 120)
                out.write(f"{label} " + " ".join(f"{index}:1" for index in sorted(indices)) + "\n")


def exchanges(program):
    """Microseconds of push and pull of each size, from `heddle bench net`."""
    done = subprocess.run([program, "bench", "net", "--rounds", "20", "--json"], capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        measured = json.loads(line)
        if "," not in measured["what"]:
            found[measured["what"] + ", us"] = measured["heddle"]
    return found


def benches(program, names):
    """All figures of these `heddle bench`."""
    found = {}
    for name in names:
        done = subprocess.run([program, "bench", name, "--json"], capture_output=True, text=True, check=True)
        for measured in map(json.loads, done.stdout.splitlines()):
            found[f"{measured['what']}, {measured['unit']}"] = measured["heddle"]
    return found


def ratio(what, old, new):
    """How many times as fast the new one is."""
    return new / old if what.endswith("/s") else old / new


def training(program, arguments, directory, number):
    """Milliseconds of one whole job, and of the processors for it."""
    target = directory / f"run-{number}"
    command = [program, "run", "job.toml", "--set", f'checkpoint.dir="{target}-ckpt"', "--set", f'output.model="{target}-model"']
    begun = time.monotonic()
    before = times()
    done = subprocess.run(command + arguments, cwd=directory, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command + arguments))}: exit code {done.returncode}\n{done.stderr}")
    return {"job, ms": (time.monotonic() - begun) * 1e3, "job, ms of CPU": (times() - before) * 1e3}


def times():
    """Seconds of CPU of all children that have ended."""
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--features", type=int, default=1_000_000)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--old-args", default="", help="further arguments of heddle run")
    parser.add_argument("--new-args", default="")
    parser.add_argument("--no-net", action="store_true", help="jobs alone")
    parser.add_argument("--benches", default="", help="names of `heddle bench`, with commas between")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    programs = {name: Path(path).resolve() for name, path in (("old", args.old), ("new", args.new))}
    arguments = {"old": shlex.split(args.old_args), "new": shlex.split(args.new_args)}
    values = {"old": {}, "new": {}}
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        if not args.benches:
            generate(directory, args.rows, args.features)
        (directory / "job.toml").write_text(JOB.format(**vars(args)))
        for number in range(args.rounds):
            for name in ("old", "new") if number % 2 == 0 else ("new", "old"):
                if args.benches:
                    measured = benches(programs[name], args.benches.split(","))
                else:
                    measured = {} if args.no_net else exchanges(programs[name])
                    measured |= training(programs[name], arguments[name], directory, f"{name}-{number}")
                for what, value in measured.items():
                    values[name].setdefault(what, []).append(value)
    if args.json:
        print(json.dumps(values))
        return
    both = [what for what in values["old"] if what in values["new"]]
    width = max(map(len, both))
    print(f"{'':{width}} {'old':>10} {'new':>10} {'old / new':>10}   quartiles")
    for what in both:
        old, new = values["old"][what], values["new"][what]
        ratios = sorted(ratio(what, a, b) for a, b in zip(old, new))
        low, high = ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]
        middle = statistics.median(ratios)
        print(f"{what:{width}} {statistics.median(old):10.1f} {statistics.median(new):10.1f} {middle:10.3f}   {low:.3f}–{high:.3f}")


if __name__ == "__main__":
    main()
