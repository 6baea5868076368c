#!/bin/sh
# Fetch BookKeeper's Java client and shell (once), run what is asked for.
# Usage: run.sh WORK_DIR peer ZOOKEEPER_HOST:PORT LEDGERS_ROOT v2|v3   BookiePeer
#        run.sh WORK_DIR autorecovery CONFIGURATION             AutoRecoveryMain
#        run.sh WORK_DIR shell CONFIGURATION COMMAND [ARGUMENT...]      one command of the shell
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$1
what=$2
shift 2
mkdir -p "$work/classes"
if ! cmp -s "$here/pom.xml" "$work/fetched"; then
    rm -rf "$work/lib"
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/lib" >&2
    cp "$here/pom.xml" "$work/fetched"
fi
case $what in
peer)
    javac -cp "$work/lib/*" -d "$work/classes" "$here/BookiePeer.java"
    exec java -cp "$work/classes:$work/lib/*" BookiePeer "$@"
    ;;
autorecovery) # auditor and worker, until it is told to end
    exec java -Dlog4j2.level=INFO -cp "$work/lib/*" \
        org.apache.bookkeeper.replication.AutoRecoveryMain -conf "$1"
    ;;
shell) # what it has to say it logs
    exec java -Dlog4j2.level=INFO -cp "$work/lib/*" org.apache.bookkeeper.bookie.BookieShell \
        -conf "$@"
    ;;
esac
