"""An entry as it lies in a bookie, and the layout of its header.

Layout (BookKeeper's, big-endian)::

    ledger id 8 | entry id 8 | last add confirmed 8 | cumulative length 8 | digest n | payload

The digest covers the 32 bytes before it and the payload. With CRC-32C (our default) n is 4, so
the payload starts at byte 36. An entry is built once, by the ledger writer, as one ``bytes``
object; the journal, the write cache, the tail cache and dispatch all share that object and take
``memoryview`` slices of it. Nothing on the way copies a payload again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from magnetar.model.ids import Position

ENTRY_HEADER_BYTES = 32
"""Bytes before the digest."""


class Chunk(NamedTuple):
    """A chunk of message number ``message`` (any number that is the same for all its chunks)."""

    message: int
    last: bool


class TransactionPart(NamedTuple):
    """What an entry is of a producer's transaction. ``commits``: whether the entry is the marker
    that commits it (or aborts it: False); None: it holds messages of it."""

    producer_id: int
    commits: bool | None = None


class Description(NamedTuple):
    """What an entry says of itself, as far as it decides who gets it, and when. A chunk of a
    message that is larger than an entry counts as one message. ``deliver_at_ms``: the time before
    which it is not delivered to shared consumers (milliseconds since 1970; 0: none).
    ``transaction``: the transaction that it is part of, whose outcome decides whether it is
    delivered at all."""

    messages: int
    chunk: Chunk | None = None
    deliver_at_ms: int = 0
    transaction: TransactionPart | None = None


class Entry:
    """One entry, read back. ``data`` is the whole entry (header, digest, payload).

    ``description`` is None until somebody asked for it (``topics.entry_format.describe``); it is
    kept here because all who read the entry while it is new share this object, so that its contents
    are looked at once and not once for each of them.
    """

    __slots__ = ("data", "description", "entry_id", "ledger_id", "payload_offset")

    kept: ClassVar[Sequence[int]] = ()
    """Which messages of a batch compaction has left, as Pulsar's ack sets; empty: all."""

    def __init__(
        self, ledger_id: int, entry_id: int, data: bytes | memoryview, payload_offset: int
    ) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.data = data
        self.payload_offset = payload_offset
        self.description: Description | None = None

    @property
    def position(self) -> Position:
        """Where it lies in its log."""
        return Position(self.ledger_id, self.entry_id)

    @property
    def payload(self) -> memoryview:
        """The client's bytes, not copied."""
        return memoryview(self.data)[self.payload_offset :]

    def __repr__(self) -> str:
        return f"Entry({self.ledger_id}:{self.entry_id}, {len(self.data)} bytes)"


class SurvivingEntry(Entry):
    """What compaction has left of an entry."""

    __slots__ = ("kept",)

    def __init__(
        self, ledger_id: int, entry_id: int, data: bytes, payload_offset: int, kept: Sequence[int]
    ) -> None:
        super().__init__(ledger_id, entry_id, data, payload_offset)
        self.kept = kept  # type: ignore[misc]  # other entries need no room for it


class LacReply(NamedTuple):
    """A bookie's answer to "how far is this ledger confirmed?".

    ``last_add_confirmed`` is the highest that the bookie knows of; ``last_entry`` is the whole
    entry of highest id that it holds (None if it holds none); ``explicit_lac`` is the body of the
    latest ``write_lac``, digest and all (None without one).
    """

    last_add_confirmed: int
    last_entry: bytes | None
    explicit_lac: bytes | None = None
