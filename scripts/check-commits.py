#!/usr/bin/env python3
"""Checks the messages of the commits after the one that added this script. The rules are in CONTRIBUTING.md.

With the name of a file it checks the message in it against what is staged, as Git's hook commit-msg.
"""
import re
import subprocess
import sys

SUBJECT_MAX = 60
LINE_MAX = 130
# Lines added and removed, above which a body is needed.
CHANGED_MAX = 50
SUBJECT = re.compile(r"[a-z0-9][a-z0-9./_-]*(, [a-z0-9][a-z0-9./_-]*)*: [a-z][a-z-]* \S.*")
# Files whose lines count for nothing: locks, measurements, golden files, data, pages and code that programs write.
GENERATED = re.compile(
    r"(.*/)?Cargo\.lock|docs/(measurements/.*|job-file\.md|metrics\.md)|(.*/)?(golden|testdata|proptest-regressions|proto)/.*"
    r"|examples/[^/]*/data/.*"
)


def broken(message, changed):
    """The rules that the message of a commit with this number of changed lines breaks.

    >>> broken("am, am/core: end a job with its cause", 50)
    []
    >>> broken("am: end a job with its cause\\n\\nA reason.\\n", 51)
    []
    >>> broken("am: end a job with its cause", 51)
    ['no body for 51 changed lines (at most 50)']
    >>> broken("am: end " + "x" * 53, 1)
    ['the subject has 61 letters (at most 60)']
    >>> broken("am: end a job\\n\\n" + "x" * 131, 1)
    ['a line of the body has 131 columns (at most 130)']
    >>> [broken(subject, 1) for subject in ("am: end a job.", "am: end a job; name its cause")]
    [['the subject ends with a period'], ['the subject has a ;']]
    >>> all(broken(subject, 1) for subject in ("end a job", "Am: end a job", "am: End a job", "am: end", "am:end a job", "am: a\\nb"))
    True
    """
    subject, _, body = message.strip().partition("\n\n")
    widest = max(map(len, body.splitlines()), default=0)
    rules = [
        (SUBJECT.fullmatch(subject), f"the subject {subject!r} must have the form `area: verb object`, in lower case"),
        (len(subject) <= SUBJECT_MAX, f"the subject has {len(subject)} letters (at most {SUBJECT_MAX})"),
        (";" not in subject, "the subject has a ;"),
        (not subject.endswith("."), "the subject ends with a period"),
        (body or changed <= CHANGED_MAX, f"no body for {changed} changed lines (at most {CHANGED_MAX})"),
        (widest <= LINE_MAX, f"a line of the body has {widest} columns (at most {LINE_MAX})"),
    ]
    return [text for kept, text in rules if not kept]


def changed_lines(numstat):
    """Lines added and removed by `git diff --numstat`, without generated and binary files.

    >>> changed_lines("3\\t4\\tam/src/lib.rs\\n9\\t9\\tCargo.lock\\n-\\t-\\ta.png\\n1\\t0\\tcontainer/pserver/src/data/mod.rs\\n")
    8
    """
    files = [line.split("\t", 2) for line in numstat.splitlines() if line]
    return sum(int(added) + int(removed) for added, removed, path in files if added != "-" and not GENERATED.fullmatch(path))


def git(*arguments, **options):
    return subprocess.run(["git", *arguments], check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def commits():
    """Abbreviated hash, message and numstat of each commit after the first of this script; None where history is missing."""
    try:
        if git("rev-parse", "--is-shallow-repository").strip() == "true":
            return None
        first = git("log", "--diff-filter=A", "--format=%H", "--", ":/scripts/check-commits.py").split()
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None
    if not first:
        return None
    log = git("log", "--no-merges", "--numstat", "--format=%x01%h%x02%B%x02", f"{first[-1]}..")
    return [commit.split("\2") for commit in log.split("\1")[1:]]


def staged(path):
    """The same for the message in a file and what is staged; empty for a merge."""
    with open(path, encoding="utf-8") as file:
        # What `git commit --verbose` shows below this mark is not of the message.
        text = re.split(r"^# -+ >8 -+$", file.read(), flags=re.MULTILINE)[0]
    message = git("stripspace", "--strip-comments", input=text)
    return [] if message.startswith("Merge ") else [("this commit", message, git("diff", "--cached", "--numstat"))]


def main():
    found = staged(sys.argv[1]) if len(sys.argv) > 1 else commits()
    if found is None:
        print("messages of commits are not checked: the history of scripts/check-commits.py is missing")
        return 0
    failures = [f"{name}: {rule}" for name, message, numstat in found for rule in broken(message, changed_lines(numstat))]
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
