"""The headers of a ledger's entries, and what a ledger's last entry says of the whole.

Rule: the header of an entry is the only place that says how many messages the entries up to it
hold. So after a recovery, whatever its outcome, the next offset is the last entry's index plus
one, and nobody need know what the former owner meant to append.

Format: docs/formats/managed-ledger.md. Why: docs/adr/0056-offsets-in-headers.md,
docs/adr/0106-kafka-protocol-over-logs.md (record batches).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.log.managed.ledgers import ChainReader
from magnetar.log.seam import Buffer, Stamp
from magnetar.model.entry import Entry
from magnetar.model.errors import LogError
from magnetar.wire.kafka.batches import STAMP_BYTES
from magnetar.wire.kafka.batches import stamp as batch_stamp
from magnetar.wire.pulsar.broker_metadata import (
    HEADER_BYTES,
    TIME_MS_MAX,
    BrokerMetadata,
    Stamper,
    header_before,
    header_bytes,
    read_header,
)

__all__ = [
    "HEADER_BYTES",
    "Extent",
    "LedgerStamps",
    "behind_header",
    "extent_of",
    "header_of",
    "stamped",
]

ENTRY_BYTES_MAX = 1 << 30
"""Of one entry that is read by itself: no bound but that of bookies."""


class Extent(NamedTuple):
    """What a ledger holds beside its entries; (0, 0) if it was written without headers.
    ``least_ms`` is not in headers: only who has written all entries knows it."""

    messages: int
    greatest_ms: int
    least_ms: int = 0


class LedgerStamps(Stamper):
    """Gives the entries of one open ledger their headers. ``least_ms``: no publish time of theirs
    is less; it may be, of an entry that was not stored."""

    __slots__ = ("first_offset", "least_ms")

    def __init__(self, first_offset: int) -> None:
        super().__init__(first_offset, greatest_ms=1)  # so that 0 says that there are no headers
        self.first_offset = first_offset
        self.least_ms = TIME_MS_MAX  # also for what is later: so none was published before

    @property
    def extent(self) -> Extent:
        """Of all that got a header."""
        return Extent(self.next_offset - self.first_offset, self.greatest_ms, self.least_ms)


def stamped(header: bytes, batch: Buffer, stamp: Stamp) -> tuple[tuple[bytes], tuple[memoryview]]:
    """The prefix and the rest of a record batch's entry. The stamp stands before all that the
    batch's checksum covers, so it goes into the prefix, and the batch is copied once, as every
    payload is. What was stamped before (for a ledger that failed) is written over."""
    view = memoryview(batch)
    length = int.from_bytes(view[8:12], "big")
    head = batch_stamp(stamp.base_offset, length, stamp.leader_epoch)
    return (header + head,), (view[STAMP_BYTES:],)


def behind_header(entries: Sequence[Entry]) -> None:
    """``entries``, just read, are to begin with what their producers sent."""
    for entry in entries:
        entry.payload_offset += header_bytes(entry.data, entry.payload_offset)


def header_of(entry: Entry) -> BrokerMetadata | None:
    """The header of an entry that was read from the log, which begins behind it."""
    return header_before(entry.data, entry.payload_offset)


async def extent_of(reader: ChainReader, first_offset: int, last: int, where: str) -> Extent:
    """What the ledger with that last entry holds. Raises what reading raises, and ``LogError``
    when its header cannot be true."""
    if last < 0:
        return Extent(0, 0)
    (entry,) = await reader.read(last, 1, ENTRY_BYTES_MAX)
    header = read_header(entry.payload)
    if header is None:
        return Extent(0, 0)
    messages = header.last_offset + 1 - first_offset
    if messages <= last:
        raise LogError(
            f"{where}: entry {last} ends with message {header.last_offset} by its header, and the "
            f"ledger begins with message {first_offset}; the ledger or the log's record is damaged"
        )
    return Extent(messages, header.greatest_ms)
