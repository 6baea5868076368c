"""What compaction asks of an entry: which keys its messages have, and which delete their key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class KeyedMessage(NamedTuple):
    """``batch_index`` -1: a message that is no batch. ``tombstone``: it has no value,
    so its key is deleted."""

    batch_index: int
    key: bytes | None
    tombstone: bool


class ChunkOf(NamedTuple):
    """Of which message an entry is a part."""

    uuid: str
    last: bool


class KeyedEntry(NamedTuple):
    """``size``: how many messages it says it has. ``sealed``: a batch that is encrypted, whose keys
    cannot be read."""

    messages: Sequence[KeyedMessage]
    size: int = 1
    chunk: ChunkOf | None = None
    sealed: bool = False
