#!/bin/sh
# Writes the golden files again with Hadoop's own Configuration. Needs a JDK from 11 on, and Maven or JARS=<dir of jars>.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
jars=${JARS:-$here/../../../../../target/hadoop-jars}
[ -d "$jars" ] || mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$jars"
grep -ho '^    ("[^"]*"' "$here/../../../src/configuration/defaults.rs" | cut -d'"' -f2 > "$here/defaults.keys"
class_path=$(printf '%s:' "$jars"/*.jar)
# The tests use the same environment and system properties.
env -i PATH="$PATH" ${JAVA_HOME:+JAVA_HOME="$JAVA_HOME"} HOST_NAME=env.example.com EMPTY= \
    java -Duser.name=golden -Duser.home=/home/golden -Dsite.name=prod -cp "$class_path" "$here/Golden.java" "$here" 2>/dev/null
