#!/bin/sh
# Fetch BookKeeper's Java client (once), compile BookiePeer, run it.
# Usage: run.sh WORK_DIR ZOOKEEPER_HOST:PORT LEDGERS_ROOT v2|v3
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$1
shift
mkdir -p "$work/classes"
if [ ! -f "$work/fetched" ]; then
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/lib"
    touch "$work/fetched"
fi
javac -cp "$work/lib/*" -d "$work/classes" "$here/BookiePeer.java"
exec java -cp "$work/classes:$work/lib/*" BookiePeer "$@"
