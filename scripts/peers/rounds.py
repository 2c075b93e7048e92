#!/usr/bin/env python3
"""Rounds of scripts/compare-peers.sh: in each round every row of the table visits all contenders before the next row.

A run during which other processes took more than 0.4 cores is repeated."""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

BUSY_CORES = 0.4
REPEATS = 5
SPARSE_ROWS, SPARSE_KEYS, SPARSE_VALUES = 500_000, 10_000, 16


class Row:
    """One line of the table: a request, and how many workers send it."""

    def __init__(self, name, push, size, workers, unit, scale):
        self.name, self.push, self.size, self.workers, self.unit, self.scale = name, push, size, workers, unit, scale

    @property
    def is_sparse(self):
        return self.size is None

    def gigabytes(self):
        return (SPARSE_KEYS * SPARSE_VALUES * 4 if self.is_sparse else self.size) / 1e9

    def contenders(self):
        """(name, system, window, variant) of each; the variant is the data threads or the store."""
        windows = (1, 4)
        if not self.is_sparse:
            return [(f"{system}, {window} in flight", system, window, variant)
                    for system, variant in (("Heddle", 1), ("ps-lite", "array")) for window in windows]
        variants = [("Heddle", 1, "1 data thread"), ("Heddle", 2, "2 data threads")]
        variants += [("ps-lite", "array", "array"), ("ps-lite", "map", "map")]
        return [(f"{system}, {text}, {window} in flight", system, window, variant)
                for system, variant, text in variants for window in windows]


def rows():
    sizes = [("64 B", 64, "k/s", 1e-3), ("1 MiB", 1 << 20, "GB/s", (1 << 20) / 1e9),
             ("16 MiB", 16 << 20, "GB/s", (16 << 20) / 1e9), ("sparse", None, "M rows/s", SPARSE_KEYS / 1e6)]
    kinds, counts = [("push", True), ("pull", False)], [(1, "1 worker"), (2, "2 workers")]
    return [Row(f"{kind} {name}, {text}", push, size, workers, unit, scale)
            for name, size, unit, scale in sizes for workers, text in counts for kind, push in kinds]


def all_times():
    """Busy seconds of all cores, and those that a hypervisor took."""
    fields = [int(field) / os.sysconf("SC_CLK_TCK") for field in open("/proc/stat").readline().split()[1:]]
    return sum(fields[:3]) + sum(fields[5:7])


def own_times():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def quiet(run):
    """The result of a run beside which other processes were idle."""
    for _ in range(REPEATS):
        busy, own, begun = all_times(), own_times(), time.monotonic()
        result = run()
        others = (all_times() - busy - (own_times() - own)) / (time.monotonic() - begun)
        if others <= BUSY_CORES:
            return result
        print(f"repeated: other processes took {others:.1f} cores", file=sys.stderr)
    return result


class Result:
    """Requests a second of all workers, the median latency of the first, and processor seconds a request."""

    def __init__(self, workers, server_seconds, server_requests):
        figures = [[float(word) for word in line.split()] for line in workers]
        self.rate = sum(worker[0] for worker in figures)
        self.median, self.highest = figures[0][1], figures[0][2]
        self.seconds = sum(worker[3] / worker[4] for worker in figures) / len(figures) + server_seconds / server_requests


def start(command, **options):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def ask(process):
    process.stdin.write("\n")
    process.stdin.flush()


def heddle(program, row, window, threads, seconds):
    sparse = ["--rows", str(SPARSE_ROWS)] if row.is_sparse else []
    server = start([program, "server", *sparse, *(["--threads", str(threads)] if row.is_sparse else [])])
    endpoints = server.stdout.readline().split()
    size = SPARSE_KEYS if row.is_sparse else row.size
    workers = []
    for index in range(row.workers):
        command = [program, "worker", "--index", str(index), *(["--push"] if row.push else []), *sparse, "--size", str(size),
                   "--window", str(window), "--seconds", str(seconds), *endpoints]
        workers.append(start(command))
        assert workers[-1].stdout.readline() == "ready\n"
    ask(server)
    before = float(server.stdout.readline())
    for worker in workers:
        ask(worker)
    lines = [worker.communicate()[0] for worker in workers]
    ask(server)
    used = float(server.stdout.readline()) - before
    server.communicate()
    # The server's time has the warm-up, whose requests are as many a second.
    requests = sum(float(line.split()[4]) * (1 + 0.3 / seconds) for line in lines)
    return Result(lines, used, requests)


def ps_lite(program, row, window, store, seconds):
    keys, values, table = (SPARSE_KEYS, SPARSE_VALUES, SPARSE_ROWS) if row.is_sparse else (1, row.size // 4, 1)
    command = [program, "push" if row.push else "pull", *map(str, (keys, values, window, seconds, table)), store]
    port = 20000 + os.getpid() % 20000
    environment = dict(os.environ, DMLC_NUM_SERVER="1", DMLC_NUM_WORKER=str(row.workers), DMLC_PS_ROOT_URI="127.0.0.1",
                       DMLC_PS_ROOT_PORT=str(port), DMLC_NODE_HOST="127.0.0.1", DMLC_INTERFACE="lo", DMLC_PS_VAN_TYPE="zmq")
    roles = ["scheduler", "server"] + ["worker"] * row.workers
    processes = [start(command, env=dict(environment, DMLC_ROLE=role), stderr=subprocess.DEVNULL) for role in roles]
    lines = [line.split(maxsplit=1) for process in processes for line in process.communicate()[0].splitlines()]
    workers = [rest for role, rest in lines if role == "worker"]
    used, requests = next(rest for role, rest in lines if role == "server").split()
    return Result(workers, float(used), float(requests))


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def best(results, round_number):
    return max(result[round_number].rate for result in results)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ps_lite", help="the program of scripts/peers/exchange.cc")
    parser.add_argument("heddle", help="the example exchange of heddle-bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="of each run")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    arguments = parser.parse_args()
    chosen = [row for row in rows() if arguments.only in row.name]
    found = {row.name: {name: [] for name, *_ in row.contenders()} for row in chosen}
    for _ in range(arguments.rounds):
        for row in chosen:
            for name, system, window, variant in row.contenders():
                run, program = (heddle, arguments.heddle) if system == "Heddle" else (ps_lite, arguments.ps_lite)
                found[row.name][name].append(quiet(lambda: run(program, row, window, variant, arguments.seconds)))
    print("| request | contender | rate | p50 / p99, µs | CPU, s/GB |\n| --- | --- | --- | --- | --- |")
    for row in chosen:
        for name, results in found[row.name].items():
            latency = f"{statistics.median(r.median for r in results):.0f} / {statistics.median(r.highest for r in results):.0f}"
            processors = spread([result.seconds / row.gigabytes() for result in results], 2)
            rate = spread([result.rate * row.scale for result in results], 1)
            print(f"| {row.name} | {name} | {rate} {row.unit} | {latency} | {processors} |")
    print("\nRatios within a round, median (range); above 1 Heddle is faster.\n")
    print("| request | Heddle | to | ratio |\n| --- | --- | --- | --- |")
    for row in chosen:
        results = found[row.name]
        stores = ("array", "map") if row.is_sparse else ("",)
        for store in stores:
            theirs = [own for name, own in results.items() if name.startswith("ps-lite") and store in name]
            rival = f"the better window of ps-lite{', ' + store if store else ''}"
            for name, ours in results.items():
                if name.startswith("Heddle"):
                    ratios = [ours[n].rate / best(theirs, n) for n in range(arguments.rounds)]
                    print(f"| {row.name} | {name.removeprefix('Heddle, ')} | {rival} | {spread(ratios, 2)} |")


if __name__ == "__main__":
    main()
