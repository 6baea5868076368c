"""The entries of a compacted ledger: each is an entry of the log, under the position that it had.

Layout (big-endian), behind BookKeeper's header::

    ledger id 8 | entry id 8 | n 2 | kept, n words of 8 | a broker's header, the producer's bytes

``kept`` says which messages of a batch survived, in Pulsar's ack sets: bit i of the words, lowest
word first, is message i; without words all of it has. Entries ascend by position, so the survivor
at or after a position is found by bisection. (docs/formats/managed-ledger.md)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from magnetar.model.entry import Entry, SurvivingEntry
from magnetar.model.errors import LogError
from magnetar.model.ids import Position
from magnetar.wire.pulsar.broker_metadata import HEADER_BYTES, header_before, header_bytes

_HEAD: Final = struct.Struct(">qqH")
WORDS_MAX: Final = 0xFFFF


def prefix_of(position: Position, kept: Sequence[int]) -> bytes:
    """What stands before the payload of the entry that had that position."""
    assert len(kept) <= WORDS_MAX
    return _HEAD.pack(*position, len(kept)) + struct.pack(f">{len(kept)}Q", *kept)


def whole_payload(entry: Entry) -> memoryview:
    """Of an entry of a log, read behind its header: the header, if it has one, and the payload."""
    start = entry.payload_offset
    headed = header_before(entry.data, start) is not None
    return memoryview(entry.data)[start - (HEADER_BYTES if headed else 0) :]


def position_of(stored: Entry) -> Position:
    """Where an entry of a compacted ledger was in the log. Raises ``LogError``."""
    return _head(stored)[0]


def _head(stored: Entry) -> tuple[Position, int]:
    try:
        ledger_id, entry_id, words = _HEAD.unpack_from(stored.data, stored.payload_offset)
    except struct.error as error:
        raise LogError(
            f"entry {stored.ledger_id}:{stored.entry_id} is none of a compacted ledger's"
        ) from error
    return Position(ledger_id, entry_id), words


def original(stored: Entry) -> Entry:
    """The entry of the log that an entry of a compacted ledger is. Raises ``LogError``."""
    position, words = _head(stored)
    start = stored.payload_offset + _HEAD.size
    kept = struct.unpack_from(f">{words}Q", stored.data, start)
    start += 8 * words
    start += header_bytes(stored.data, start)
    return SurvivingEntry(*position, bytes(stored.data), start, kept)
