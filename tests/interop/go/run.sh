#!/bin/sh
# Fetch Pulsar's Go clients and build the peers (once per source), run one.
# Usage: run.sh WORK_DIR peer SERVICE_URL     the client of messages
#        run.sh WORK_DIR admin HTTP_URL       the client of REST
#        run.sh WORK_DIR shared TOPICS SERVICE_URL...   many topics of several brokers
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$1
what=$2
shift 2
mkdir -p "$work/admin" "$work/shared"
for file in go.mod main.go admin/main.go shared/main.go; do
    cmp -s "$here/$file" "$work/sources/$file" || changed=yes
done
if [ -n "${changed:-}" ]; then
    rm -rf "$work/sources"
    mkdir -p "$work/sources/admin" "$work/sources/shared"
    cp "$here/go.mod" "$here/main.go" "$work/sources"
    cp "$here/go.mod" "$here/main.go" "$work"
    cp "$here/admin/main.go" "$work/admin"
    cp "$here/shared/main.go" "$work/shared"
    (cd "$work" && go mod tidy && go build -o peer-peer . && go build -o peer-admin ./admin &&
        go build -o peer-shared ./shared) >&2
    cp "$here/admin/main.go" "$work/sources/admin"
    cp "$here/shared/main.go" "$work/sources/shared" # last: it says that all of it is built
fi
exec "$work/peer-$what" "$@"
