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
                                   if the compaction before had read it, else its chunks stay
=================================  ================================================================

The last chunk of what is unfinished may be on its way, behind all that is read now; it is worth
nothing without those before it.

A key costs some 200 bytes here; a long one counts by its digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, TypeAlias

from magnetar.model.ids import EARLIEST, Position
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
    """See the module's text. ``base``: up to where the log was compacted before."""

    def __init__(self, base: Position = EARLIEST) -> None:
        self._base = base
        self._last: dict[bytes, Place] = {}
        self._ends: dict[str, tuple[Position, bytes | None]] = {}
        """Of messages in chunks: where the last chunk is, and its key."""

    def __len__(self) -> int:
        """Keys that have a value."""
        return len(self._last)

    def note(self, position: Position, entry: KeyedEntry) -> None:
        if entry.chunk is not None:
            if not entry.chunk.last:
                return
            (end,) = entry.messages
            self._ends[entry.chunk.uuid] = position, end.key
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
            if entry.chunk.uuid not in self._ends:
                return _ALL if position > self._base else ()
            end, last_key = self._ends[entry.chunk.uuid]
            if last_key is None or self._last.get(condensed(last_key)) != (*end, -1):
                return ()
            return _ALL
        found = [
            message.batch_index
            for message in entry.messages
            if message.key is not None
            and self._last.get(condensed(message.key)) == (*position, message.batch_index)
        ]
        return whole_or_some(found, entry.size)


class PieceNotes:
    """As ``Survivors.note``, of a piece of a log. What several pieces have noted is put together by
    others (``pipeline.jobs.compact``): of each key the last place; a chunk with the last of its
    message; sealed entries as they are."""

    def __init__(self) -> None:
        self.last: dict[bytes, tuple[Place, bool, str | None]] = {}
        """By key: its last place here, whether a tombstone is there, of which message in chunks."""
        self.parts: list[tuple[str, Position, bool]] = []
        """Entries that are chunks: of which message, and whether it is the last of it."""
        self.sealed: list[Position] = []

    def note(self, position: Position, entry: KeyedEntry) -> None:
        if entry.sealed:
            self.sealed.append(position)
        uuid = None
        if entry.chunk is not None:
            uuid = entry.chunk.uuid
            self.parts.append((uuid, position, entry.chunk.last))
            if not entry.chunk.last:
                return
        for message in entry.messages:
            if message.key is not None:
                place = (*position, message.batch_index)
                self.last[condensed(message.key)] = place, message.tombstone, uuid


def whole_or_some(found: Sequence[int], size: int) -> Sequence[int] | None:
    """As ``Survivors.kept``, of an entry of that many messages of which those are left."""
    return _ALL if found and len(found) == size else found


def ack_words(kept: Sequence[int], size: int) -> list[int]:
    """``kept`` of a batch of that size as Pulsar's ack set: unsigned words, lowest first."""
    bits = sum(1 << index for index in kept)
    return [bits >> shift & (1 << 64) - 1 for shift in range(0, size, 64)]
