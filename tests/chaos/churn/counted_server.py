"""``magnetar``, which tells what its memory holds.

``python -m tests.chaos.churn.counted_server ARGUMENTS...`` with the variable ``CHURN_COUNTS``: a
file that is written anew for each SIGUSR1. See ``Counts`` in ``judge`` for what is in it.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOOKED_INTO: Final = ("magnetar.", "kazoo.", "prometheus_client.")
"""Modules whose objects' containers are measured."""
CONTAINERS: Final = (dict, list, set, deque, bytearray)


def look() -> dict[str, object]:
    gc.collect()
    kinds: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        name = f"{kind.__module__}.{kind.__qualname__}"
        kinds[name] += 1
        if name.startswith(LOOKED_INTO):
            for attribute, value in _attributes(each):
                if isinstance(value, CONTAINERS):
                    held[f"{name}.{attribute}"] += len(value)
    return {
        "kinds": kinds,
        "held": held,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "resident": int(Path("/proc/self/statm").read_text().split()[1])
        * os.sysconf("SC_PAGESIZE"),
    }


def _attributes(each: object) -> Iterator[tuple[str, object]]:
    yield from getattr(each, "__dict__", {}).items()
    for base in type(each).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            private = slot.startswith("__") and not slot.endswith("__")
            name = f"_{base.__name__.lstrip('_')}{slot}" if private else slot
            if hasattr(each, name):
                yield slot, getattr(each, name)


def tell(*_: object) -> None:
    path = Path(os.environ["CHURN_COUNTS"])
    written = path.with_suffix(".new")
    written.write_text(json.dumps(look()))
    written.rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    sys.argv[0] = "magnetar"
    runpy.run_module("magnetar", run_name="__main__", alter_sys=True)
