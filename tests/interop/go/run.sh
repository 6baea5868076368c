#!/bin/sh
# Fetch Pulsar's Go client and build the peer (once per source), run it.
# Usage: run.sh WORK_DIR SERVICE_URL
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$1
mkdir -p "$work"
if ! cmp -s "$here/main.go" "$work/main.go" || [ ! -x "$work/peer" ]; then
    cp "$here/go.mod" "$here/main.go" "$work"
    (cd "$work" && go mod tidy && go build -o peer .) >&2
fi
exec "$work/peer" "$2"
