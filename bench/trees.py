"""Source trees: this checkout, and others that run beside it.

What a process with another tree's sources imports is of this checkout's ``bench/``, and of that
tree only what every tree has: the ledger library, the ``magnetar`` command, Spark's format
(``tests/tidy/test_benches.py`` holds that).
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent


def environment_of(source: Path | None) -> dict[str, str]:
    """The environment of a process that is to import ``magnetar`` from ``source``."""
    return dict(os.environ) if source is None else {**os.environ, "PYTHONPATH": str(source)}
