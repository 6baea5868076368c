#!/usr/bin/env bash
# Prepares what the make targets need. Each step checks first and does nothing when it is done.
#
#   scripts/setup.sh venv DIRECTORY        a virtual environment with Python 3.11 or later
#   scripts/setup.sh install DIRECTORY EXTRA   the project in it, with one of its extras
#   scripts/setup.sh java                  Java 17 or later (Spark and ZooKeeper need it)
#
# Packages of the system are installed with apt-get when we are root or sudo works without a
# password; otherwise a message says what to install.
set -euo pipefail

PYTHON_LEAST="3.11"
JAVA_LEAST=17

say() { printf '%s\n' "setup: $*" >&2; }
fail() { say "$@"; exit 1; }

# apt PACKAGE...: install, or fail with the words that a person needs.
apt() {
    local as=()
    command -v apt-get >/dev/null || fail "please install: $*"
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || fail "please install: sudo apt-get install $*"
        as=(sudo -n)
    fi
    say "installing $*"
    "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2
    "${as[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >&2
}

recent_enough() {
    "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$PYTHON_LEAST'.split('.'))))" \
        2>/dev/null
}

# The first Python that will do: $PYTHON if it is set, else the newest of the usual names.
find_python() {
    local name
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if command -v "$name" >/dev/null && recent_enough "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

make_venv() {
    local directory=$1 python
    if [ -x "$directory/bin/python" ] && "$directory/bin/python" -m pip --version >/dev/null 2>&1
    then
        return
    fi
    if ! python=$(find_python); then
        [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is not Python $PYTHON_LEAST or later"
        apt python3 python3-venv
        python=$(find_python) || fail "Python $PYTHON_LEAST or later is needed"
    fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        local version
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        apt "python$version-venv"
    fi
    say "making $directory with $("$python" --version)"
    rm -rf "$directory"
    "$python" -m venv "$directory"
}

# A C compiler and the headers of the Python in that environment, for magnetar._speedups. Optional:
# where they cannot be installed the package does without.
want_compiler() {
    local python=$1/bin/python version
    if command -v "${CC:-cc}" >/dev/null && "$python" - 2>/dev/null <<'END'
import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))
END
    then
        return
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    (apt gcc libc6-dev "python$version-dev") ||
        say "going on without a C compiler and Python's headers: pure Python will be used"
}

install_project() {
    local directory=$1 extra=$2
    make_venv "$directory"
    want_compiler "$directory"
    say "installing magnetar[$extra] into $directory"
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$extra]"
    scripts/speedups.sh check "$directory/bin/python"
}

java_version() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
    "$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}

need_java() {
    local version
    version=$(java_version || true)
    if [ -n "$version" ] && [ "$version" -ge "$JAVA_LEAST" ]; then
        return
    fi
    [ -z "${JAVA_HOME:-}" ] || fail "JAVA_HOME=$JAVA_HOME is not Java $JAVA_LEAST or later"
    apt default-jre-headless
    version=$(java_version || true)
    [ -n "$version" ] && [ "$version" -ge "$JAVA_LEAST" ] ||
        fail "Java $JAVA_LEAST or later is needed; found ${version:-none}"
}

cd "$(dirname "$0")/.."
case "${1:-}" in
    venv) make_venv "${2:?a directory}" ;;
    install) install_project "${2:?a directory}" "${3:?an extra}" ;;
    java) need_java ;;
    *) fail "usage: scripts/setup.sh venv DIRECTORY | install DIRECTORY EXTRA | java" ;;
esac
