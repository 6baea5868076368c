#!/bin/sh
# Fetch Pulsar's Go clients and build the peers (once per source), run one.
# Usage: run.sh WORK_DIR peer SERVICE_URL HTTP_URL   the client of messages
#        run.sh WORK_DIR admin HTTP_URL       the client of REST
#        run.sh WORK_DIR shared TOPICS SERVICE_URL...   many topics of several brokers
#        run.sh WORK_DIR compacted HTTP_URL SERVICE_URL   what is compacted
#        run.sh WORK_DIR secured SERVICE_URL TLS_URL HTTPS_URL FILES... TOKENS...
#        run.sh WORK_DIR steered SERVICE_URL COUNT KIND=TOPIC...   a consumer
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$1
what=$2
shift 2
peers="admin shared steered compacted secured"
for peer in $peers; do mkdir -p "$work/$peer"; done
for file in go.mod main.go admin/main.go shared/main.go steered/main.go compacted/main.go \
    secured/main.go; do
    cmp -s "$here/$file" "$work/sources/$file" || changed=yes
done
if [ -n "${changed:-}" ]; then
    rm -rf "$work/sources"
    for peer in $peers; do mkdir -p "$work/sources/$peer"; done
    cp "$here/go.mod" "$here/main.go" "$work/sources"
    cp "$here/go.mod" "$here/main.go" "$work"
    for peer in $peers; do
        cp "$here/$peer/main.go" "$work/$peer"
    done
    (cd "$work" && go mod tidy && go build -o peer-peer . && for peer in $peers; do
        go build -o "peer-$peer" "./$peer"
    done) >&2
    for peer in $peers; do # last: it says that all of it is built
        cp "$here/$peer/main.go" "$work/sources/$peer"
    done
fi
exec "$work/peer-$what" "$@"
