"""What is in the topics: every message says by itself which one it is, and whether it is whole."""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

SIZES: Final = (20, 180, 900, 3000)
"""Bytes behind a message's name, in turns."""


class Topic(NamedTuple):
    """``engine``: what keeps it. ``writer``: the protocol that it was written by."""

    name: str
    engine: str
    writer: str


TOPICS: Final = tuple(
    Topic(f"{engine}-{writer}", engine, writer)
    for engine in ("ledger", "partition")
    for writer in ("pulsar", "kafka", "transaction")
)
COMPACTED: Final = (Topic("compact-ledger", "ledger", "pulsar"),)
KEYS: Final = 7


def message(topic: str, number: int) -> bytes:
    head = b"%s/%d/" % (topic.encode(), number)
    size = SIZES[number % len(SIZES)]
    return head + hashlib.shake_256(head).digest(size)


def number_of(topic: str, data: bytes) -> int | None:
    """None: these are not the bytes of any message of that topic."""
    parts = data.split(b"/", 2)
    if len(parts) != 3 or not parts[1].isdigit():
        return None
    number = int(parts[1])
    return number if data == message(topic, number) else None
