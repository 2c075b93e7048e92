#!/usr/bin/env python3
"""Prints the lines of code of each crate of the product: without comments, blank lines and tests.

With a commit as argument, of that commit's files instead of the present ones.
"""
import re
import subprocess
import sys
from collections import Counter


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def lines_of_code(text):
    """Lines of code outside `#[cfg(test)]` items, which rustfmt ends with a brace or semicolon of the same indentation."""
    count, end = 0, None
    waits = False
    for line in text.splitlines():
        stripped = line.strip()
        if end is not None:
            end = None if line.startswith(end) else end
        elif stripped.startswith("#[cfg(test)]") or stripped.startswith("#[cfg(all(test"):
            waits = True
        elif waits and not stripped.startswith("#"):
            waits = False
            indent = line[: len(line) - len(line.lstrip())]
            end = None if stripped.endswith((";", "}")) else indent + "}"
        elif stripped and not stripped.startswith("//"):
            count += 1
    return count


def main():
    commit = sys.argv[1] if len(sys.argv) > 1 else None
    names = git("ls-tree", "-r", "--name-only", commit).split() if commit else git("ls-files").split()
    crates = Counter()
    for name in names:
        crate = re.fullmatch(r"(.+)/src/.*\.rs", name)
        if not crate or re.match(r"(tests|examples|fuzz|launcher)/", name) or re.search(r"/tests(\.rs|/)", name):
            continue
        text = git("show", f"{commit}:{name}") if commit else open(name, encoding="utf-8").read()
        crates[crate.group(1)] += lines_of_code(text)
    for crate, lines in crates.most_common():
        print(f"{crate:24}{lines:>8,}")
    print(f"{'all':24}{crates.total():>8,}")


main()
