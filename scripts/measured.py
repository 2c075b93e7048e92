#!/usr/bin/env python3
"""Runs a command and measures the processor time of all that it starts, daemons too.

    scripts/measured.py FILE COMMAND…

Orphans come to this process (PR_SET_CHILD_SUBREAPER), which waits for them: what a test leaves to be ended by others counts as the
test's. FILE gets JSON: seconds of `cpu` (user and system), and those of `java` and `heddle` among them. These two are read from
/proc every three seconds, so that the last ones of each process are missing there. The exit code is the command's.
"""
import ctypes
import json
import os
import resource
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
# What outlives the command by this many seconds is not waited for: it is named.
OUTLIVES = 60
# A look reads files of all processes of the machine.
LOOK_EVERY = 3
TICKS = os.sysconf("SC_CLK_TCK")


def processes():
    """All processes of the machine: id, parent, name, seconds of CPU of it alone."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                head, rest = file.read().rsplit(") ", 1)
        except OSError:  # It has ended.
            continue
        fields = rest.split()
        yield int(pid), int(fields[1]), head.split("(", 1)[1], (int(fields[11]) + int(fields[12])) / TICKS


def descendants():
    """Names and seconds of CPU of all processes below this one, by id."""
    found = {pid: (parent, name, seconds) for pid, parent, name, seconds in processes()}
    below = {os.getpid()}
    size = 0
    while size != len(below):
        size = len(below)
        below |= {pid for pid, (parent, _, _) in found.items() if parent in below}
    return {pid: found[pid][1:] for pid in below - {os.getpid()} if pid in found}


def main():
    report, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Not subprocess, which waits for its children too. Python ignores these signals, a command must not.
    own = os.posix_spawnp(command[0], command, os.environ, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))
    code, seen, looked, ended = None, {}, 0, None
    while ended is None or time.monotonic() - ended < OUTLIVES:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == own:
            code, ended = os.waitstatus_to_exitcode(status), time.monotonic()
        if pid == 0:
            time.sleep(0.05)
        if time.monotonic() - looked >= LOOK_EVERY:
            looked = time.monotonic()
            seen |= descendants()
    else:
        names = sorted(name for name, _ in descendants().values())
        print(f"{len(names)} processes outlive the command by {OUTLIVES} s: {', '.join(names)}", flush=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    by_name = {wanted: sum(seconds for name, seconds in seen.values() if name == wanted) for wanted in ("java", "heddle")}
    with open(report, "w", encoding="utf-8") as file:
        json.dump({"cpu": used.ru_utime + used.ru_stime, **by_name}, file)
    # As a shell reports a signal.
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
