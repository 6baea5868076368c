"""Which messages compaction leaves: of each key the last one. Pure.

Two passes over the same entries, in the order of the log: ``note`` each, then ask ``kept`` of each.

=================================  ================================================================
message                            after compaction
=================================  ================================================================
the last of its key                stays, under its position and index
an earlier one of its key          gone
an empty one (a tombstone)         gone, with all before it of its key
without a key                      gone, as in Pulsar since 4.0
in an encrypted batch              stays: its key is not known here
large, in chunks                   as one message, at the place of its last chunk; unfinished: gone
=================================  ================================================================

A key costs some 200 bytes here; a long one counts by its digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

from magnetar.model.ids import Position
from magnetar.model.keyed import KeyedEntry

KEY_BYTES: Final = 24
"""Longer ones are condensed to so many."""
_ALL: Final = None

Place: TypeAlias = tuple[int, int, int]
"""Ledger, entry, index in the batch."""


def condensed(key: bytes) -> bytes:
    """What a key is known by: no two keys alike."""
    if len(key) < KEY_BYTES:
        return key
    return blake2b(key, digest_size=KEY_BYTES).digest()


class Survivors:
    """See the module's text."""

    def __init__(self) -> None:
        self._last: dict[bytes, Place] = {}
        self._ends: dict[str, Position] = {}

    def __len__(self) -> int:
        """Keys that have a value."""
        return len(self._last)

    def note(self, position: Position, entry: KeyedEntry) -> None:
        if entry.chunk is not None:
            if not entry.chunk.last:
                return
            self._ends[entry.chunk.uuid] = position
        for message in entry.messages:
            if message.key is None:
                continue
            key = condensed(message.key)
            if message.tombstone:
                self._last.pop(key, None)
            else:
                self._last[key] = (*position, message.batch_index)

    def kept(self, position: Position, entry: KeyedEntry) -> Sequence[int] | None:
        """The indexes of the messages that stay; None: the entry stays as it is; empty: nothing of
        it does."""
        if entry.sealed:
            return _ALL
        if entry.chunk is not None:
            end = self._ends.get(entry.chunk.uuid)
            if end is None:
                return ()
            position = end
        found = [
            message.batch_index
            for message in entry.messages
            if message.key is not None
            and self._last.get(condensed(message.key)) == (*position, message.batch_index)
        ]
        whole = len(found) == entry.size
        return _ALL if whole else found


def ack_words(kept: Sequence[int], size: int) -> list[int]:
    """``kept`` of a batch of that size as Pulsar's ack set: unsigned words, lowest first."""
    bits = sum(1 << index for index in kept)
    return [bits >> shift & (1 << 64) - 1 for shift in range(0, size, 64)]
