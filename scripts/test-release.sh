#!/usr/bin/env bash
# Builds the file that clusters get and reads its dynamic symbols: nothing newer than glibc 2.17, no library
# that an old system lacks. It must contain no fail points, and run as a jar too.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=$(scripts/release.sh)
python3 - "$binary" <<'PYTHON'
import re
import subprocess
import sys

binary = sys.argv[1]
dynamic = subprocess.run(["readelf", "--wide", "--dynamic", "--version-info", binary],
                         check=True, capture_output=True, text=True).stdout
versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", dynamic)}
libraries = set(re.findall(r"Shared library: \[([^]]+)\]", dynamic))
known = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1",
         "ld-linux-x86-64.so.2"}
if not versions or max(versions) > (2, 17):
    sys.exit(f"{binary} needs glibc versions {sorted(versions)}, expected none above 2.17")
if libraries - known:
    sys.exit(f"{binary} needs {sorted(libraries - known)}, which an old system may lack")
with open(binary, "rb") as file:
    program = file.read()
for text in (b"FAILPOINTS", b"before-unregister"):
    if text in program:
        sys.exit(f"{binary} contains fail points: {text.decode()}")
newest = ".".join(map(str, max(versions)))
print(f"{binary}: newest symbol GLIBC_{newest}, needs {', '.join(sorted(libraries))}")
PYTHON
"$binary" --version
java -Xmx64m -jar "$binary.jar" --version
