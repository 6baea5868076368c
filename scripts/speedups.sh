#!/usr/bin/env bash
# The module in C (src/magnetar/_speedups.c), without installing anything.
#
#   scripts/speedups.sh build PYTHON DIRECTORY [FLAG...]   compile it into DIRECTORY for that Python
#   scripts/speedups.sh check PYTHON                       say so if that Python does without it
#
# `build` is for working on it (into src/magnetar, which is what an editable install uses) and for
# builds with other flags, such as sanitizers. Installing the package builds it by setup.py.
set -euo pipefail

say() { printf '%s\n' "speedups: $*" >&2; }

build() {
    local python=$1 directory=$2 include
    shift 2
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
    mkdir -p "$directory"
    "${CC:-cc}" -shared -fPIC -O3 -Wall -Wextra "-I$include" "$@" src/magnetar/_speedups.c \
        -o "$directory/_speedups.abi3.so"
}

check() {
    local used
    used=$("$1" -c 'from magnetar.speedups import IN_USE; print(IN_USE)')
    case "$used" in
        native*) ;;
        *) say "$used; with a C compiler and Python's headers, remove .venv/.dev and run make again" ;;
    esac
}

cd "$(dirname "$0")/.."
case "${1:-}" in
    build) build "${2:?a Python}" "${3:?a directory}" "${@:4}" ;;
    check) check "${2:?a Python}" ;;
    *) say "usage: scripts/speedups.sh build PYTHON DIRECTORY [FLAG...] | check PYTHON"; exit 1 ;;
esac
