#!/usr/bin/env bash
# Appends the launcher for `yarn jar` to a program: the file is then a program and a jar at once. Makes a jar where FILE does
# not exist. Append it last: `strip` removes it.
#
# Needs javac (any release from 8 to 25) and Python 3. The classes are of release 8, for the Java of old clusters.
set -euo pipefail
file=$(realpath -m "${1:?usage: launcher.sh FILE}")
cd "$(dirname "$0")/../launcher"

classes=$(mktemp -d)
trap 'rm -rf "$classes"' EXIT
release=(--release 8)
javac --version >/dev/null 2>&1 || release=(-source 8 -target 8)
javac "${release[@]}" -Xlint:-options -d "$classes" ./*.java >&2
python3 - "$file" "$classes" <<'PYTHON'
import sys
import zipfile
from pathlib import Path

file, classes = sys.argv[1], Path(sys.argv[2])
# Where the file is not a zip, mode "a" appends one, with offsets from the file's beginning, as Java expects them.
# The times are fixed, so that the same sources give the same bytes.
with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as jar:
    manifest = b"Manifest-Version: 1.0\r\nMain-Class: heddle.Launcher\r\n\r\n"
    jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF"), manifest)
    for path in sorted(classes.rglob("*.class")):
        entry = zipfile.ZipInfo(path.relative_to(classes).as_posix())
        jar.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
PYTHON
