#!/usr/bin/env bash
# Writes tables with Spark: tests/spark/write.sh FOLDER. write.py has their contents.
#
# Needs a Java that Spark knows (8, 11 or 17), and Python 3 with venv; Spark comes as a Python package into a folder of its own below
# the target directory, nothing is installed on the system.
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$0")/../.."

tools=${CARGO_TARGET_DIR:-target}/spark-tools
if [ ! -e "$tools/installed" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check pyspark==3.5.8 numpy==1.26.4
    touch "$tools/installed"
fi
# For this machine alone.
export SPARK_LOCAL_IP=127.0.0.1
exec "$tools/bin/python" -B tests/spark/write.py "$folder"
