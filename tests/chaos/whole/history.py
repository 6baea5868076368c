"""Histories: what each client process saw, in JSON lines that outlive it.

A line is ``[time, what, ...]``, the time of the machine's monotonic clock, which all processes
share. It is written by one call before what it says may have an effect elsewhere, so a killed
process leaves at most one torn line, its last. Times of one file never run backwards.
"""

from __future__ import annotations

import heapq
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

Record: TypeAlias = list[Any]

SEND: Final = "send"
"""topic, producer, number, due: about to be sent."""
SENT: Final = "sent"
"""topic, producer, number, message id as text: acknowledged."""
REFUSED: Final = "refused"
"""topic, producer, number, why: answered with an error; nothing is promised."""
GOT: Final = "got"
"""topic, subscription, producer, number, redelivery count, consumer, since: delivered, on a
connection that subscribed at ``since`` (0: not known)."""
ACKED: Final = "acked"
"""topic, subscription, producer, number: about to be acknowledged."""
STORED: Final = "stored"
"""topic, subscription, producer, number: the receipt of its acknowledgement has come."""
NOTE: Final = "note"
"""Anything for a person to read."""


class HistoryWriter:
    """Appends to ``path``; of any thread."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()

    def write(self, what: str, *values: object) -> None:
        with self._lock:  # the time within it, so that times of a file rise
            line = json.dumps([round(time.monotonic(), 6), what, *values], separators=(",", ":"))
            os.write(self._descriptor, line.encode() + b"\n")


def parse_lines(lines: Iterable[str]) -> Iterator[Record]:
    """Raises ``ValueError`` for a damaged line that is not the last."""
    torn = None
    for line in lines:
        if torn is not None:
            raise ValueError(f"damaged before the end: {torn!r}")
        try:
            yield json.loads(line)
        except ValueError:
            torn = line


def read_file(path: Path) -> Iterator[Record]:
    with path.open() as file:
        yield from parse_lines(file)


def read_folder(folder: Path) -> Iterator[Record]:
    """All records of all histories, by time."""
    files = [read_file(path) for path in sorted(folder.glob("*.jsonl"))]
    return heapq.merge(*files, key=lambda record: record[0])
