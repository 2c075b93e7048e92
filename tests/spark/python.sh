#!/usr/bin/env bash
# Python with Spark and PyArrow: tests/spark/python.sh FILE.py ARGUMENT…
#
# Needs Python 3 with venv and, for Spark, a Java that it knows (8, 11 or 17). The packages are installed into a folder of their own
# below the target directory at the first call, nothing on the system.
set -euo pipefail
root=$(realpath "$(dirname "$0")/../..")
tools=$(cd "$root" && realpath -m "${CARGO_TARGET_DIR:-target}")/spark-tools

mkdir -p "$tools"
(
    flock 9
    [ ! -e "$tools/installed" ] || exit 0
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check pyspark==3.5.8 numpy==1.26.4 pyarrow==21.0.0 >&2
    touch "$tools/installed"
) 9>"$tools/lock"
# For this machine alone.
export SPARK_LOCAL_IP=127.0.0.1
exec "$tools/bin/python" -B "$@"
