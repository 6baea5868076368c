#!/bin/sh
# Fetch Pulsar's Java clients and pulsar-perf (once), compile the peers, run what is asked for.
# Usage: run.sh WORK_DIR peer SERVICE_URL [STEP...]   each step of PulsarPeer, or those
#        run.sh WORK_DIR admin HTTP_URL SERVICE_URL                 AdminPeer
#        run.sh WORK_DIR schemas SERVICE_URL                        SchemaPeer
#        run.sh WORK_DIR shared TOPICS SERVICE_URL...               SharedPeer
#        run.sh WORK_DIR steered SERVICE_URL COUNT KIND=TOPIC...   SteeredPeer, compiled
#        run.sh WORK_DIR receipts NAME SERVICE_URL HISTORY TOPIC=SUBSCRIPTION...   ReceiptsPeer, compiled
#        run.sh WORK_DIR compacted HTTP_URL SERVICE_URL             CompactedPeer
#        run.sh WORK_DIR secured SERVICE_URL TLS_URL HTTPS_URL FILES... TOKENS...   SecuredPeer
#        run.sh WORK_DIR perf SERVICE_URL HTTP_URL COMMAND [ARGUMENT...]   pulsar-perf
#        run.sh WORK_DIR fetch                                      nothing but fetch and compile
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
quiet="-Dorg.slf4j.simpleLogger.defaultLogLevel=${PEER_LOG_LEVEL:-off}"
peers() {
    javac -nowarn -Xlint:-deprecation -cp "$work/lib/*" -d "$work/classes" \
        "$here/PulsarPeer.java" "$here/AdminPeer.java" "$here/SchemaPeer.java" \
        "$here/SharedPeer.java" "$here/SteeredPeer.java" "$here/ReceiptsPeer.java" \
        "$here/CompactedPeer.java" "$here/SecuredPeer.java" >&2
}
case $what in
fetch)
    peers
    ;;
peer)
    peers
    exec java "$quiet" -cp "$work/classes:$work/lib/*" PulsarPeer "$@"
    ;;
admin)
    peers
    exec java "$quiet" -cp "$work/classes:$work/lib/*" AdminPeer "$@"
    ;;
schemas)
    peers
    exec java "$quiet" -cp "$work/classes:$work/lib/*" SchemaPeer "$@"
    ;;
shared)
    peers
    exec java "$quiet" -cp "$work/classes:$work/lib/*" SharedPeer "$@"
    ;;
steered)
    exec java "$quiet" -cp "$work/classes:$work/lib/*" SteeredPeer "$@"
    ;;
receipts)
    exec java -Xmx128m -XX:+UseSerialGC "$quiet" -cp "$work/classes:$work/lib/*" ReceiptsPeer "$@"
    ;;
compacted)
    peers
    exec java "$quiet" -cp "$work/classes:$work/lib/*" CompactedPeer "$@"
    ;;
secured)
    peers
    exec java "$quiet" -cp "$work/classes:$work/lib/*" SecuredPeer "$@"
    ;;
perf)
    printf 'brokerServiceUrl=%s\nwebServiceUrl=%s\n' "$1" "$2" > "$work/client.conf"
    shift 2
    exec java -cp "$work/lib/*" org.apache.pulsar.testclient.PulsarPerfTestTool \
        "$work/client.conf" "$@"
    ;;
esac
