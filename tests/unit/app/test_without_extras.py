"""A plain ``pip install magnetar`` has servers: what the extras bring is not asked for."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = ("cramjam", "numpy", "pandas", "pyarrow", "pyiceberg", "pyspark")
SERVERS = ("magnetar.app.standalone", "magnetar.app.roles", "magnetar.cli.servers")


def test_servers_are_imported_without_what_extras_bring() -> None:
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"  # as if not installed
        f"import {', '.join(SERVERS)}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
