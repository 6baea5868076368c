#!/bin/sh
# Fetch BookKeeper's Java client and shell (once), run what is asked for.
# Usage: run.sh WORK_DIR peer ZOOKEEPER_HOST:PORT LEDGERS_ROOT v2|v3   BookiePeer
#        run.sh WORK_DIR autorecovery CONFIGURATION             AutoRecoveryMain
#        run.sh WORK_DIR bookie CONFIGURATION                  a bookie of BookKeeper's own
#        run.sh WORK_DIR check ZOOKEEPER_HOST:PORT LEDGERS_ROOT  CopiesCheck: its own check of copies
#        run.sh WORK_DIR load SOURCE CLASS ARGUMENT...          a load: CLASS of the file SOURCE
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
bookie) # until it is told to end
    exec java -Dlog4j2.level=INFO -Xmx512m -cp "$work/lib/*" \
        org.apache.bookkeeper.server.Main --conf "$1"
    ;;
check)
    javac -cp "$work/lib/*" -d "$work/classes" "$here/CopiesCheck.java"
    exec java -cp "$work/classes:$work/lib/*" CopiesCheck "$@"
    ;;
load)
    javac -nowarn -cp "$work/lib/*" -d "$work/classes" "$1"
    shift
    exec java -Dlog4j2.level=INFO -cp "$work/classes:$work/lib/*" "$@"
    ;;
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
