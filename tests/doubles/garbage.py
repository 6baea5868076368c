"""What only the garbage collector finds: cycles that something left behind when it ended."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_cycles() -> Iterator[list[object]]:
    """Afterwards the list has what became garbage within, and was not gone by itself."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def ours(found: list[object]) -> list[str]:
    """The names of those whose class is of the product."""
    return sorted(
        type(each).__name__ for each in found if type(each).__module__.startswith("magnetar.")
    )
